"""What C decides by what Python gives it (a key, a test, a length, an index, a hash) is decided anew on each call."""

import functools
import heapq
import itertools

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
