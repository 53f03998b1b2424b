"""What C decides by what Python gives it (a key, a test, a length, an index, a hash) is decided anew on each call."""

import collections
import functools
import heapq
import itertools
import math
import operator
import types

import pytest
import torch

import preheat

X = torch.arange(1.0, 4.0)
ROWS = ([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 1.0], [5.0, 4.0, 0.0], [0.0, 9.0, 4.0], [3.0, 2.0, 1.0])


class Less:
    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return self.number < other.number

    def __gt__(self, other):
        return self.number > other.number


def sort_in_place(rows):
    order = [0, 1, 2]
    order.sort(key=lambda k: rows[k], reverse=True)
    return order


def of_list(x):
    found = x.tolist()
    return sorted(range(3), key=lambda k: -found[k])


# the program, of a tensor and three numbers that change
KEYS = {
    "sorted": lambda x, rows: x[sorted(range(3), key=lambda k: rows[k])],
    "in reverse": lambda x, rows: x[sorted(range(3), key=lambda k: -rows[k], reverse=True)],
    "list.sort": lambda x, rows: x[sort_in_place(rows)],
    "min": lambda x, rows: x * min(range(3), key=lambda k: rows[k]),
    "max": lambda x, rows: x * max(range(3), key=lambda k: rows[k]),
    "max of arguments": lambda x, rows: x * max(0, 1, 2, key=lambda k: rows[k]),
    "nearest": lambda x, rows: x * min((1.0, 2.0, 3.0), key=lambda g: abs(g - rows[0])),
    "a tuple": lambda x, rows: x[sorted(range(3), key=lambda k: (-rows[k], k))],
    "a list": lambda x, rows: x[sorted(range(3), key=lambda k: [rows[k]])],
    "a text": lambda x, rows: x[sorted(range(3), key=lambda k: f"{rows[k]}")],
    "an object": lambda x, rows: x[sorted(range(3), key=lambda k: Less(rows[k]))],
    "the largest object": lambda x, rows: x * max(range(3), key=lambda k: Less(rows[k])),
    "a partial": lambda x, rows: x[sorted(range(3), key=functools.partial(list.__getitem__, rows))],
    "tolist": lambda x, rows: x[of_list(torch.tensor(rows))],
    "item": lambda x, rows: x * max(range(3), key=lambda k: torch.tensor(rows)[k].item()),
    "nlargest": lambda x, rows: x[heapq.nlargest(2, range(3), key=lambda k: rows[k])],
    "reduce": lambda x, rows: x * functools.reduce(lambda a, b: a if a > b else b, rows),
    "filter": lambda x, rows: x * len(list(filter(lambda k: rows[k], range(3)))),
    "filter by a test": lambda x, rows: x * len(list(filter(lambda v: v > 1.5, rows))),
    "filter of none": lambda x, rows: x * len(list(filter(None, rows))),
    "takewhile": lambda x, rows: x * len(list(itertools.takewhile(lambda k: rows[k] > 1, range(3)))),
    "accumulate": lambda x, rows: x * list(itertools.accumulate(rows, lambda a, b: a * b + 1))[-1],
    "groupby": lambda x, rows: x * len(list(itertools.groupby(range(3), key=lambda k: rows[k] > 1.5))),
    "map": lambda x, rows: x * sum(map(lambda v: v * 2, rows)),
}


@pytest.mark.parametrize("name", KEYS)
def test_key(name):
    program = KEYS[name]
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for rows in ROWS:
            torch.testing.assert_close(compiled(X, list(rows)), program(X, list(rows)), rtol=0, atol=0)


def test_each_order_is_captured_once():
    compiled = preheat.compile(KEYS["min"], options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for k in range(12):
            rows = [1.0 + k, 0.5, 0.25 + k] if k % 2 else [1.0 + k, 9.0 + k, 90.0 + k]
            torch.testing.assert_close(compiled(X, rows), KEYS["min"](X, rows), rtol=0, atol=0)
    assert preheat.counters()["captures"] - before <= 4


@pytest.mark.parametrize("keys", [(1.0, "a", 2), (None, 1, 2)])
def test_keys_that_cannot_be_compared_raise_as_in_python(keys):
    def program(x, number):
        return x[sorted(range(4), key=lambda k: (number, *keys)[k])]

    compiled = preheat.compile(program, options={"cache": False})
    for number in (1.0, 2.0, 3.0):
        with pytest.raises(TypeError) as expected:
            program(X, number)
        with pytest.raises(TypeError) as found:
            compiled(X, number)
        assert str(found.value) == str(expected.value)


class Asked:
    """Gives C its number by whatever it asks for."""

    number = 1

    def __index__(self):
        return self.number

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self.number > 2

    def __len__(self):
        return self.number

    def __float__(self):
        return float(self.number)

    def __length_hint__(self):
        return self.number

    def __format__(self, spec):
        return str(self.number)

    def __contains__(self, key):
        return key < self.number


class Truth(Asked):
    def __bool__(self):
        return self.number > 2


class Iterable:
    number = 1

    def __iter__(self):
        yield from range(self.number)


class Indexed:
    number = 1

    def __getitem__(self, place):
        if place >= self.number:
            raise IndexError
        return place


class Mapping:
    number = 1

    def keys(self):
        return ["a"]

    def __getitem__(self, key):
        return self.number


class Calls:
    number, count = 1, 0

    def __call__(self):
        self.count += 1
        return 4 if self.count > 5 else self.count + self.number


def changed(method, *args):
    made = [1, 2, 3, 4, 5, 6, 7]
    getattr(made, method)(*args)
    return made[0] + 10 * made[1] + 100 * made[2] + 1000 * made[3] + len(made) * 10000


def written(key):
    made = [1, 2, 3, 4, 5, 6, 7]
    made[key] = 9
    return made.index(9)


def deleted(key):
    made = [1, 2, 3, 4, 5, 6, 7]
    del made[key]
    return len(made) + 10 * made[1]


def filled(made, method, value):
    getattr(made, method)(value)
    return len(made)


def spread(*args):
    return len(args)


def unpacked(value):
    _, *rest = value
    return len(rest)


# the class of an object that C asks, and the program
ASKED = {
    "range": (Asked, lambda x, o: x * len(range(o))),
    "an end of a range": (Asked, lambda x, o: x * len(range(1, o))),
    "a slice of a list": (Asked, lambda x, o: x * len([1, 2, 3, 4, 5, 6][:o])),
    "a slice of a tuple": (Asked, lambda x, o: x * len((1, 2, 3, 4, 5, 6)[o:])),
    "a slice of a text": (Asked, lambda x, o: x * len("abcdef"[:o])),
    "an index of a text": (Asked, lambda x, o: x * ord("abcdef"[o])),
    "an index of bytes": (Asked, lambda x, o: x * b"abcdef"[o]),
    "an index of a list": (Asked, lambda x, o: x * [1, 2, 3, 4, 5, 6][o]),
    "an index of a range": (Asked, lambda x, o: x * range(10, 20)[o]),
    "an index of a tensor": (Asked, lambda x, o: x[o]),
    "insert": (Asked, lambda x, o: x * changed("insert", o, 9)),
    "pop": (Asked, lambda x, o: x * changed("pop", o)),
    "write": (Asked, lambda x, o: x * written(o)),
    "delete": (Asked, lambda x, o: x * deleted(o)),
    "delete a slice": (Asked, lambda x, o: x * deleted(slice(o))),
    "islice": (Asked, lambda x, o: x * len(list(itertools.islice(range(9), o)))),
    "repeat": (Asked, lambda x, o: x * len(list(itertools.repeat(1, o)))),
    "product": (Asked, lambda x, o: x * len(list(itertools.product((1, 2), repeat=o)))),
    "enumerate": (Asked, lambda x, o: x * next(enumerate([1], o))[0]),
    "round": (Asked, lambda x, o: x * round(1.234567, o)),
    "find": (Asked, lambda x, o: x * "aaaaaaaa".find("a", o)),
    "hash": (Asked, lambda x, o: x * hash(o)),
    "a hash of a tuple": (Asked, lambda x, o: x * (hash((o,)) % 7)),
    "a key": (Asked, lambda x, o: x * {1: 10, 3: 20}.get(o, 5)),
    "in a set": (Asked, lambda x, o: x * (o in {1, 3})),
    "in a list": (Asked, lambda x, o: x * (7 in [o])),
    "in values": (Asked, lambda x, o: x * (7 in {1: o}.values())),
    "count": (Asked, lambda x, o: x * [o].count(7)),
    "lists": (Asked, lambda x, o: x * ([o] == [7])),
    "in": (Asked, lambda x, o: x * (2 in o)),
    "float": (Asked, lambda x, o: x * float(o)),
    "sqrt": (Asked, lambda x, o: x * math.sqrt(o)),
    "length": (Asked, lambda x, o: x * len(o)),
    "length hint": (Asked, lambda x, o: x * operator.length_hint(o)),
    "format": (Asked, lambda x, o: x * float(f"{o}")),
    "format by C": (Asked, lambda x, o: x * float("{}".format(o))),
    "truth": (Truth, lambda x, o: x * 2 if o else x),
    "any": (Truth, lambda x, o: x * any([o])),
    "filter": (Truth, lambda x, o: x * len(list(filter(None, [o])))),
    "filter by it": (Truth, lambda x, o: x * len(list(filter(lambda k: o, [1])))),
    "compress": (Truth, lambda x, o: x * len(list(itertools.compress([1, 2], [o, o])))),
    "chain": (Iterable, lambda x, o: x * len(list(itertools.chain(o, [1])))),
    "cycle": (Iterable, lambda x, o: x * sum(itertools.islice(itertools.cycle(o), 4))),
    "deque": (Iterable, lambda x, o: x * len(collections.deque(o))),
    "extend": (Iterable, lambda x, o: x * filled([], "extend", o)),
    "update of a set": (Iterable, lambda x, o: x * filled(set(), "update", o)),
    "fromkeys": (Iterable, lambda x, o: x * len(dict.fromkeys(o))),
    "union": (Iterable, lambda x, o: x * len(set().union(o))),
    "elements of a chain": (Iterable, lambda x, o: x * len(list(itertools.chain.from_iterable([o])))),
    "in, by its elements": (Indexed, lambda x, o: x * (2 in o)),
    "list": (Indexed, lambda x, o: x * len(list(o))),
    "tuple": (Indexed, lambda x, o: x * len(tuple(o))),
    "zip": (Indexed, lambda x, o: x * len(list(zip(o)))),
    "sum": (Indexed, lambda x, o: x * sum(o)),
    "a star": (Indexed, lambda x, o: x * len([*o])),
    "a star of a call": (Indexed, lambda x, o: x * spread(*o)),
    "unpacking": (Indexed, lambda x, o: x * unpacked(o)),
    "update": (Mapping, lambda x, o: x * dict(o)["a"]),
    "two stars": (Mapping, lambda x, o: x * {**o}["a"]),
    "iter of calls": (Calls, lambda x, o: x * len(list(iter(o, 4)))),
}


@pytest.mark.parametrize("is_own", [False, True], ids=["from outside", "made inside"])
@pytest.mark.parametrize("name", ASKED)
def test_asked(name, is_own):
    kind, use = ASKED[name]
    outside = kind()

    def program(x, number):
        if not is_own:
            return use(x, outside)
        made = kind()
        made.number = number
        return use(x, made)

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for number in (1, 2, 1, 2, 1) if name == "an index of a tensor" else (1, 2, 3, 4, 5):
            outside.number, outside.count = number, 0
            found = compiled(X, number)
            outside.count = 0
            torch.testing.assert_close(found, program(X, number), rtol=0, atol=0)


class Length:
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number


def test_a_length_below_zero_raises_as_in_python():
    def program(x, number):
        return x * len(Length(number))

    compiled = preheat.compile(program, options={"cache": False})
    for number in (1, 2, 3, 0, 5):
        torch.testing.assert_close(compiled(X, number), program(X, number))
    with pytest.raises(ValueError, match="should return >= 0"):
        compiled(X, -1)


def test_the_truth_of_a_length():
    def program(x, number):
        return x * 2 if Length(number) else x

    compiled = preheat.compile(program, options={"cache": False})
    for number in (1, 2, 3, 0, 5, 0):
        torch.testing.assert_close(compiled(X, number), program(X, number))


def adding():
    total = 0.0
    while True:
        try:
            total += (yield total) or 0.0
        except ValueError:
            total += 100.0


def delegated(numbers):
    yield from numbers


def started():
    made = adding()
    next(made)
    return made


# an iterator that was there before the call, and what the program does with it
ADVANCED = {
    "send": (started, lambda x, given, k: x * given.send(k)),
    "send of the class": (started, lambda x, given, k: x * types.GeneratorType.send(given, k)),
    "a bound send": (lambda: started().send, lambda x, given, k: x * given(k)),
    "throw": (started, lambda x, given, k: x * given.throw(ValueError)),
    "next": (started, lambda x, given, k: x * next(given)),
    "its method": (lambda: iter([1.0, 2.0, 3.0, 4.0, 5.0]), lambda x, given, k: x * given.__next__()),
    "of a map": (lambda: map(float, range(9)), lambda x, given, k: x * given.__next__()),
    "of a count": (lambda: itertools.count(1), lambda x, given, k: x * given.__next__()),
    "its hint": (lambda: iter([1, 2, 3, 4, 5, 6]), lambda x, given, k: x * given.__length_hint__() + next(given)),
    "yield from": (lambda: itertools.count(1), lambda x, given, k: x * next(delegated(given))),
}


@pytest.mark.parametrize("name", ADVANCED)
def test_advanced(name):
    make, use = ADVANCED[name]
    given, expected = make(), make()
    compiled = preheat.compile(lambda x, k: use(x, given, k), options={"cache": False})
    with torch.no_grad():
        for k in (0.5, 1.0, 2.0, 3.0, 4.0):
            torch.testing.assert_close(compiled(X, k), use(X, expected, k), rtol=0, atol=0)
