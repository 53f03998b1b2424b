"""A number that changes from call to call is the one of that call, wherever a program reads it."""

import collections
import contextvars
import functools
import types

import pytest
import torch

import preheat

X = torch.ones(40)
VALUES, SIZES = (0.1, 0.2, 0.3, 0.4, 0.5), (2, 3, 4, 5, 6)
KEY = ("a", 1)
VARIABLE = contextvars.ContextVar("VARIABLE")
PLACE, QUEUE, SCALES = types.SimpleNamespace(a=1.0), collections.deque([1.0]), collections.OrderedDict()
COUNTED = {}


class Base:
    scale = 1.0


class Child(Base):
    pass


class Slots:
    __slots__ = ("a",)


CHILD, SLOTS = Child(), Slots()


def times(x, k=1.0):
    return x * k


def set_default(value):
    times.__defaults__ = (value,)


def counting(x):
    COUNTED[CHILD] = COUNTED.get(CHILD, 0) + 1
    return x * COUNTED[CHILD]


# what is set before a call, and the program
SET = {
    "an attribute of a class": (lambda v: setattr(Base, "scale", v), lambda x: x * Base.scale),
    "of its child's instance": (lambda v: setattr(Base, "scale", v), lambda x: x * CHILD.scale),
    "a context variable": (VARIABLE.set, lambda x: x * VARIABLE.get()),
    "a default": (set_default, lambda x: times(x)),
    "an item of a deque": (lambda v: QUEUE.__setitem__(0, v), lambda x: x * QUEUE[0]),
    "a sum of a deque": (lambda v: QUEUE.__setitem__(0, v), lambda x: x * sum(QUEUE)),
    "get by a tuple": (lambda v: SCALES.__setitem__(KEY, v), lambda x: x * SCALES.get(KEY, 1.0)),
    "get by an object": (lambda v: COUNTED.__setitem__(CHILD, v), lambda x: x * COUNTED.get(CHILD, 1.0)),
    "an item": (lambda v: SCALES.__setitem__(KEY, v), lambda x: x * SCALES[KEY]),
    "get of a copy": (lambda v: SCALES.__setitem__(KEY, v), lambda x: x * dict(SCALES).get(KEY)),
    "get of a view": (lambda v: SCALES.__setitem__(KEY, v), lambda x: x * types.MappingProxyType(SCALES).get(KEY)),
    "values": (lambda v: SCALES.__setitem__(KEY, v), lambda x: x * sum(SCALES.values())),
    "an attribute": (lambda v: setattr(PLACE, "a", v), lambda x: x * PLACE.a),
    "vars": (lambda v: setattr(PLACE, "a", v), lambda x: x * vars(PLACE).get("a")),
    "a slot": (lambda v: setattr(SLOTS, "a", v), lambda x: x * SLOTS.a),
}
# what is given, and the program
GIVEN = {
    "a slice": (lambda n: slice(0, n), lambda x, given: x[given] * 2, SIZES),
    "a slice behind": (lambda n: slice(n, None, 2), lambda x, given: x[given] * 2, SIZES),
    "a range": (range, lambda x, given: x * len(given), SIZES),
    "a range, added up": (range, lambda x, given: x * sum(given), SIZES),
    "an end of a range": (range, lambda x, given: x * given.stop, SIZES),
    "a partial": (lambda v: functools.partial(times, k=v), lambda x, given: given(x), VALUES),
    "a bound method": (lambda v: types.MethodType(lambda s, x: x * s, v), lambda x, given: given(x), VALUES),
    "a dict": (lambda v: {KEY: {None: v}}, lambda x, given: x * given.get(KEY).get(None), VALUES),
    "a counter": (lambda v: collections.Counter({torch.float32: v}), lambda x, given: x * given[torch.float32], VALUES),
    "a largest": (lambda v: frozenset([v]), lambda x, given: x * max(given), VALUES),
    "a list": (lambda v: [0.0, v], lambda x, given: x * sorted(given)[-1], VALUES),
    "a text of it": (lambda v: v, lambda x, given: x * float(f"{given}"), VALUES),
    "its hash": (lambda n: n, lambda x, given: x * (hash(given) % 7), SIZES),
}


@pytest.mark.parametrize("name", SET)
def test_set_between_calls(name):
    put, program = SET[name]
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for value in VALUES:
            put(value)
            torch.testing.assert_close(compiled(X), program(X), rtol=0, atol=0)


@pytest.mark.parametrize("name", GIVEN)
def test_given(name):
    make, program, values = GIVEN[name]
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for value in values:
            torch.testing.assert_close(compiled(X, make(value)), program(X, make(value)), rtol=0, atol=0)


def test_a_counter_by_an_object_counts_on():
    compiled = preheat.compile(counting, options={"cache": False})
    COUNTED[CHILD] = 0
    with torch.no_grad():
        for call in range(1, 7):
            torch.testing.assert_close(compiled(X), X * call)
    assert COUNTED[CHILD] == 6


class Counted:
    steps = 0
    scale = 0.5


class CountedChild(Counted):
    pass


def class_counter(x):
    Counted.steps += 1
    return x * Counted.steps


def class_counter_of_instance(x):
    type(CHILD).count = getattr(type(CHILD), "count", 0) + 1
    return x * CHILD.count


def class_counter_of_child(x):
    Counted.steps += 1
    return x * CountedChild.steps


def shadowed(x):
    CountedChild.scale = Counted.scale * 1.5
    Counted.scale = CountedChild.scale + 1
    return x * CountedChild.scale


def read_before_written(x):
    y = x * Counted.steps
    Counted.steps = Counted.steps + 2
    return y + Counted.steps


COUNTERS = {  # the program, its captures, whether it breaks: a read through a subclass of what was written
    "class": (class_counter, 2, False), "instance": (class_counter_of_instance, 3, False),
    "child": (class_counter_of_child, 4, True), "shadowed": (shadowed, 4, True), "before": (read_before_written, 2, False),
}


def reset_classes():
    Counted.steps, Counted.scale = 0, 0.5
    for cls, name in ((CountedChild, "scale"), (Child, "count")):
        if name in cls.__dict__:
            delattr(cls, name)


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_of_classes(name):
    program, most, breaks = COUNTERS[name]
    seen = []
    for compiled in (program, preheat.compile(program, options={"cache": False})):
        reset_classes()
        before = preheat.counters()
        with torch.no_grad():
            seen.append([compiled(X) for _ in range(12)] + [torch.tensor([Counted.steps, Counted.scale])])
    after = preheat.counters()
    assert all(map(torch.equal, *seen))
    assert after["captures"] - before["captures"] <= most + 4 * breaks, after["captures"] - before["captures"]
    assert breaks or after["breaks"] == before["breaks"]


def test_a_number_of_a_class_that_is_looked_at_is_pinned_and_one_that_is_hidden_is_seen():
    def program(x, n):
        return x * (1.0, 2.0, 3.0)[Counted.steps % 3] + Counted.scale

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for value in range(9):
            Counted.steps, Counted.scale = value, value / 8
            torch.testing.assert_close(compiled(X, 1), program(X, 1), rtol=0, atol=0)
        for value in (True, 2.5, -7, 1 << 40):
            Counted.scale = value
            torch.testing.assert_close(compiled(X, 1), program(X, 1), rtol=0, atol=0)
