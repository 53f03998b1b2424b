"""Python that C calls back: special methods, keys and callbacks are followed, guarded or host calls.

`Keyed` counts how often it is hashed and compared, in a dict that the results hang on; what it gives
hangs on that dict too. So a call of it that is left out, or made once more, shows.
"""

import bisect
import collections
import functools
import heapq
import itertools
import operator
import re
from collections import Counter, OrderedDict, defaultdict

import pytest
import torch

from same import Program, same_program

X = torch.linspace(-1.0, 1.2, 8)


class Keyed:
    """What its special methods give hangs on what changes from call to call."""

    def __init__(self, n, shared):
        self.n, self.shared = n, shared

    def __repr__(self):
        return f"Keyed({self.n})"

    def __hash__(self):
        self.shared["hash"] = self.shared.get("hash", 0) + 1
        return self.n % self.shared["modulo"]

    def __eq__(self, other):
        self.shared["eq"] = self.shared.get("eq", 0) + 1
        return self.n % self.shared["modulo"] == getattr(other, "n", 0) % self.shared["modulo"]

    def __lt__(self, other):
        return self.n * self.shared["sign"] < other.n * self.shared["sign"]


def escapes_that_read(x, shared):
    items = [Keyed(n, shared) for n in (5, 3, 9, 4)]
    items.sort()
    best = max([1, 2, 3], key=lambda n: n * shared["sign"])
    total = functools.reduce(lambda a, b: a * shared["modulo"] + b, [x, x * 2, x * 3])
    text = re.sub("[ab]", lambda found: found.group() * shared["modulo"], "abc")
    table = defaultdict(lambda: shared["sign"] * 2)
    kept = list(filter(lambda n: n > shared["modulo"], range(5)))
    scaled = list(map(lambda y: y * shared["sign"], [x, x + 1]))
    return [item.n for item in items], best, total, text, table["a"], kept, scaled


def escapes_that_write(x, shared):
    items = {Keyed(n, shared) for n in range(6)}
    table = {Keyed(n, shared): n for n in range(6)}
    found = Keyed(7, shared) in table, table.get(Keyed(8, shared)), [Keyed(1, shared)].index(
        Keyed(1, shared))
    print(len(items))
    pairs = dict(zip(map(lambda n: shared.setdefault(n, n + 1), "ab" and [1, 2]), [x, x * 2]))
    return len(items), sorted(table.values()), found, pairs, shared["hash"] * x


def test_what_escapes_through_c_is_followed_or_guarded():
    for program in (escapes_that_read, escapes_that_write):

        def make():
            shared = {"modulo": 2, "sign": 1}
            changes = [{"modulo": 3}, {"sign": -1}, {"modulo": 2}, {"modulo": 4, "sign": 1}]
            between = {
                2 * i + 2: lambda p, new=new: shared.update(new) for i, new in enumerate(changes)}
            return Program(program, (X.clone(), shared), between=between)

        same_program(make, calls=10)


ESCAPES = {
    "set comprehension": lambda s: len({Keyed(n, s) for n in range(6)}),
    "set display": lambda s: len({Keyed(0, s), Keyed(1, s)}),
    "unpacked into a set": lambda s: len({*[Keyed(1, s)], *(Keyed(i, s) for i in range(2))}),
    "dict comprehension": lambda s: len({Keyed(n, s): n for n in range(6)}),
    "dict display": lambda s: len({Keyed(0, s): 1, Keyed(1, s): 2}),
    "unpacked into a dict": lambda s: len({**dict([(Keyed(1, s), 1)])}),
    "set of a map": lambda s: len(set(map(lambda n: Keyed(n, s), range(3)))),
    "frozenset": lambda s: len(frozenset([Keyed(1, s), Keyed(2, s)])),
    "union": lambda s: len(set().union([Keyed(1, s)], (Keyed(i, s) for i in range(2)))),
    "dict": lambda s: len(dict([(Keyed(0, s), 1), (Keyed(1, s), 2)])),
    "OrderedDict": lambda s: len(OrderedDict([(Keyed(1, s), 1)])),
    "defaultdict": lambda s: len(defaultdict(int, [(Keyed(1, s), 1)])),
    "Counter": lambda s: len(Counter([Keyed(1, s), Keyed(3, s)])),
    "fromkeys": lambda s: len(dict.fromkeys([Keyed(1, s), Keyed(2, s)])),
    "setdefault": lambda s: {}.setdefault(Keyed(1, s), 2),
    "pop": lambda s: {1: 1}.pop(Keyed(7, s), 2),
    "get": lambda s: {1: 2}.get(Keyed(7, s)),
    "in a dict of constants": lambda s: Keyed(7, s) in {1: 2, 3: 4},
    "add": lambda s: {5}.add(Keyed(1, s)),
    "update of a set": lambda s: {5}.update([Keyed(1, s)]),
    "isdisjoint": lambda s: {5}.isdisjoint([Keyed(1, s)]),
    "in a list": lambda s: Keyed(1, s) in [Keyed(1, s)],
    "a number in a list and a tuple": lambda s: (3 in [Keyed(1, s)], 3 in (Keyed(1, s),)),
    "index": lambda s: [Keyed(1, s)].index(Keyed(1, s)),
    "count": lambda s: [Keyed(1, s)].count(Keyed(1, s)),
    "remove": lambda s: [Keyed(1, s)].remove(Keyed(1, s)),
    "count of a deque": lambda s: collections.deque([Keyed(1, s)]).count(Keyed(1, s)),
    "lists are equal": lambda s: [Keyed(1, s)] == [Keyed(1, s)],
    "tuples in order": lambda s: (Keyed(1, s), 1) < (Keyed(2, s), 1),
    "hash of a tuple": lambda s: hash((Keyed(1, s), 2)),
    "min": lambda s: min(Keyed(1, s), Keyed(2, s)).n,
    "bisect": lambda s: bisect.bisect([Keyed(1, s)], Keyed(2, s)),
    "heapify": lambda s: heapq.heapify([Keyed(1, s), Keyed(0, s)]),
    "groupby": lambda s: len(list(itertools.groupby([Keyed(1, s), Keyed(3, s)]))),
    "operator.contains": lambda s: operator.contains([Keyed(1, s)], Keyed(1, s)),
    "operator.countOf": lambda s: operator.countOf([Keyed(1, s)], Keyed(1, s)),
    "subscript of an outside dict": lambda s: s["table"][Keyed(2, s)],
    "no item of an outside dict": lambda s: s["table"].get(Keyed(3, s)),
    "get of an outside dict": lambda s: s["table"].get(Keyed(2, s)),
    "in an outside dict": lambda s: Keyed(2, s) in s["table"],
    "not in an outside dict": lambda s: Keyed(3, s) in s["table"],
    "in a set of the outside": lambda s: Keyed(2, s) in s["members"],
    "all of an outside dict": lambda s: [(k.n, v) for k, v in s["table"].items()],
    "keys of an outside dict": lambda s: [s["table"][k] for k in s["table"]],
    "number in an outside list": lambda s: 2 in s["list"],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_no_call_of_a_special_method_is_lost_or_made_twice(name):
    def program(x, shared):
        found = ESCAPES[name](shared)
        return x * shared.get("hash", 0) + shared.get("eq", 0), found

    def make():
        shared = {"modulo": 2, "sign": 1}
        shared["table"] = {Keyed(2, shared): 5}
        shared["members"], shared["list"] = {Keyed(2, shared)}, [Keyed(1, shared), Keyed(2, shared)]
        change = {3: lambda program: shared.update(modulo=3)}
        return Program(program, (X.clone(), shared), between=change)

    same_program(make, calls=5)
