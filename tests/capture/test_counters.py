"""Numbers that a program counts up in containers: runtime numbers, whatever holds them and whatever finds them.

Each program is called 21 times, eager and compiled; results, exceptions and all that it keeps are the same after each
call. By `most`: how often it may be captured.
"""

import collections
import dataclasses
import types

import pytest
import torch

import preheat

X = torch.ones(3)
COUNTS: dict = {}
LIST = [0] * 8


@dataclasses.dataclass
class Plain:
    n: int = 0
    rate: float = 0.5


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int = 0


class Table(dict):
    """A dict of another class, which makes what is missing."""

    def __missing__(self, key):
        return 0


def fresh():
    COUNTS.clear()
    LIST[:] = [0] * 8
    return types.SimpleNamespace(
        table={}, list=[0] * 8, rates=[0, 0.5], counter=collections.Counter(), made=collections.defaultdict(float), plain=Plain(),
        slotted=Slotted(), ordered=collections.OrderedDict(a=0), nested={"a": [{"n": 0}]}, keyed={1: 0, (1, ("a", 2)): 0},
        mine=Table(), deque=collections.deque([0, 1]), seen=set(), lists={}, stack=list(range(30)))


def everything(state):
    return repr((vars(state), COUNTS, LIST))


def by_get(s, x):
    s.table["a"] = s.table.get("a", 0) + 1
    return x * s.table["a"]


def of_a_module(s, x):
    COUNTS["a"] = COUNTS.get("a", 0) + 1
    LIST[2] += 3
    return x * COUNTS["a"] + LIST[2]


def by_trying(s, x):
    try:
        s.table["a"] += 1
    except KeyError:
        s.table["a"] = 1
    return x * s.table["a"]


def by_asking(s, x):
    if "a" not in s.table:
        s.table["a"] = 0
    s.table["a"] += 1
    return x * s.table["a"]


def of_lists(s, x):
    s.list[3] += 1
    s.rates[1] *= 0.9
    return x * s.list[3] + s.rates[1]


def of_classes(s, x):
    s.plain.n += 1
    s.plain.rate *= 0.9
    s.slotted.n += 2
    return x * s.plain.n + s.plain.rate - s.slotted.n


def of_dicts(s, x):
    s.counter["a"] += 1
    s.made["b"] += 0.5
    s.mine["c"] += 2
    return x * s.counter["a"] + s.made["b"] - s.mine["c"]


def of_nested(s, x):
    s.nested["a"][0]["n"] += 1
    s.keyed[1] += 2
    return x * s.nested["a"][0]["n"] + s.keyed[1]


def by_tuple(s, x):
    s.keyed[1, ("a", 2)] += 1
    return x * s.keyed[1, ("a", 2)]


def and_fails(s, x):
    """What was counted stays so, where the call fails behind it."""
    s.table["a"] = s.table.get("a", 0) + 1
    s.list[0] += 1
    s.counter["k"] += 1
    y = x * s.table["a"]
    if s.list[0] % 4 == 3:
        raise ValueError(s.counter["k"])
    return y


def and_an_op_fails(s, x):
    s.plain.n += 1
    s.made["a"] += 0.25
    return x.view(s.plain.n % 4) + s.made["a"]


SAME_KEY = {
    "get": (by_get, 3), "of a module": (of_a_module, 3), "trying": (by_trying, 3), "asking": (by_asking, 3), "lists": (of_lists, 2),
    "classes": (of_classes, 2), "dicts": (of_dicts, 3), "nested": (of_nested, 2), "a tuple": (by_tuple, 3),
    "a failure": (and_fails, 9), "a failing op": (and_an_op_fails, 12),
}


def count(s, x, n):
    s.table[n] = s.table.get(n, 0) + 1
    return x * s.table[n]


def count_of_a_module(s, x, n):
    COUNTS[n] = COUNTS.get(n, 0) + 1
    return x * 2


def counter(s, x, n):
    s.counter[n] += 1
    return x * s.counter[n]


def made(s, x, n):
    s.made[n] += 0.5
    return x * s.made[n]


def own_class(s, x, n):
    s.mine[n] += 1
    return x * s.mine[n]


def counters(s, x, n):
    s.list[n % 8] += 1
    return x * s.list[n % 8]


def within(s, x, n):
    if n in s.table:
        s.table[n] += 1
    else:
        s.table[n] = 1
    return x * 2


def pair(s, x, n):
    s.table["step", n] = s.table.get(("step", n), 0) + 1
    return x


def text(s, x, n):
    key = f"step {n}"
    s.table[key] = s.table.get(key, 0) + 1
    return x * s.table[key]


def of_a_text(s, x, n):
    return text(s, x, str(n))


def appended(s, x, n):
    s.lists.setdefault(n, []).append(1)
    return x * 2


def seen(s, x, n):
    s.seen.add(n)
    return x * 2


def taken(s, x, n):
    s.table[n] = 1
    return x * s.table.pop(n), s.stack.pop(n % 3)


def size(s, x, n):
    rows = x.expand(n + 2, 3)
    s.table[rows.shape] = s.table.get(rows.shape, 0) + 1
    return rows * 2


def and_raises(s, x, n):
    s.counter[n] += 1
    if s.counter[n] == 3:
        raise KeyError(n)
    return x


CHANGING_KEY = {
    "get": (count, 5), "of a module": (count_of_a_module, 4), "a counter": (counter, 5), "a defaultdict": (made, 4),
    "a class of the program's": (own_class, 5), "a list": (counters, 6), "within": (within, 8), "a pair": (pair, 6), "a text": (text, 5),
    "of a text": (of_a_text, 5), "appended": (appended, 7), "a set": (seen, 4), "taken": (taken, 6), "a size": (size, 9),
    "a failure": (and_raises, 8),
}
KEYS = {
    "each once": list(range(21)), "three": [k % 3 for k in range(21)], "six": [(7 * k + k // 3) % 6 for k in range(21)],
    "as it comes": [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 3, 0, 5, 2, 14, 1, 9, 4, 2, 7],
}


def run(call, calls):
    state, found = fresh(), []
    for given in calls:
        try:
            result = call(state, X, *given)
        except Exception as error:
            result = type(error), str(error)
        found.append((repr(result), everything(state)))
    return found


def check(program, calls, most):
    expected = run(program, calls)
    before = preheat.counters()["captures"]
    with torch.no_grad():
        found = run(preheat.compile(program, options={"cache": False, "recompile_limit": 30}), calls)
    assert found == expected
    captures = preheat.counters()["captures"] - before
    assert captures <= most, captures


@pytest.mark.parametrize("name", SAME_KEY)
def test_a_counter(name):
    program, most = SAME_KEY[name]
    check(program, [()] * 21, most)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("name", CHANGING_KEY)
def test_counters_by_a_key_that_changes(name, keys):
    program, most = CHANGING_KEY[name]
    check(program, [(k,) for k in KEYS[keys]], most)


def test_a_text_made_of_a_text():
    """Such a text is the key of something; a variant that computes it is no use if it can never be bound."""
    table = {f"w{k}": torch.full((3,), float(k)) for k in range(8)}
    compiled = preheat.compile(lambda x, n: x * table[f"w{n}"], options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for k in (0, 1, 2, 3, 4, 5, 6, 7, 3, 1):
            assert torch.equal(compiled(X, str(k)), X * table[f"w{k}"])
    assert preheat.counters()["captures"] - before == 3
