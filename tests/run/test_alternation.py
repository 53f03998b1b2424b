"""Programs that go one way and then another: a guard that does not hold is a verdict by itself.

Nothing is checked from its beginning and nothing is captured once both ways are known.
"""

import sys

import pytest
import torch

import preheat
from preheat.run.check import Checker
from preheat.run.variant import Variant


class Switched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.flag, self.n = torch.nn.Linear(4, 4), False, 0

    def forward(self, x):
        self.n += 1
        x = self.layer(x).relu()
        if self.flag:
            x = x * 2
        return x - 1 if self.n % 2 else x


def by_argument(x, n):
    return x * 2 if n % 3 == 0 else x - n


def by_value(x):
    total = x.sum().item()
    return x * total if total > 0 else x - 1


def calls_of_module(module):
    for k in range(1000):
        module.flag = k % 3 == 0
        yield (torch.full((2, 4), float(k)),)


WAYS = {
    "module": (Switched, calls_of_module),
    "argument": (lambda: by_argument, lambda _: ((torch.ones(3), k) for k in range(1000))),
    "value": (lambda: by_value, lambda _: ((torch.ones(3) * (-1) ** k,) for k in range(1000))),
}


@pytest.mark.parametrize("name", WAYS)
def test_both_ways_are_found_without_a_full_check(name, monkeypatch):
    make, calls = WAYS[name]
    torch.manual_seed(0)
    ours = make()
    torch.manual_seed(0)
    theirs = make()
    compiled = preheat.compile(ours, options={"cache": False})
    checks, resolve = [0], Checker.resolve

    def counted(self, *args):
        checks[0] += sys._getframe(1).f_code is Variant._slow.__code__
        return resolve(self, *args)

    with torch.no_grad():
        pairs = zip(calls(ours), calls(theirs))
        for number, (mine, other) in zip(range(60), pairs):
            if number == 40:
                monkeypatch.setattr(Checker, "resolve", counted)
                before = preheat.counters()["captures"]
            assert torch.allclose(compiled(*mine), theirs(*other))
    assert checks[0] == 0 and preheat.counters()["captures"] == before
