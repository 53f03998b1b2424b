"""Programs that go one way and then another, and programs that write what they read.

Once all ways are known nothing is captured and no guard is judged in Python: a native row that
differs is a verdict by itself.
"""

import pytest
import torch

import preheat
from preheat.run.layout import layout
from preheat.run.rows import Rows
from same import is_enabled


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


class Counting(torch.nn.Module):
    """Writes a number, a tensor and a text next to what it reads."""

    def __init__(self):
        super().__init__()
        self.layer, self.n, self.rate, self.name = torch.nn.Linear(4, 4), 0, 0.5, "first"
        self.state = torch.zeros(2, 4)

    def forward(self, x):
        self.n += 1
        self.rate = self.rate * 0.99
        self.state = self.layer(x) + self.state * self.rate
        return self.state if self.n % 3 else self.state * 2


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def closure():
    n, log, box = 0, [], Slotted()

    def forward(x):
        nonlocal n
        n += 1
        box.n += 2
        log.append(n)
        return x * n + box.n if n > 3 else x - len(log)

    return forward


def same_input(_):
    return ((torch.full((2, 4), 0.5),) for _ in range(1000))


WAYS = {
    "module": (Switched, calls_of_module),
    "argument": (lambda: by_argument, lambda _: ((torch.ones(3), k) for k in range(1000))),
    "value": (lambda: by_value, lambda _: ((torch.ones(3) * (-1) ** k,) for k in range(1000))),
    "shape": (lambda: torch.tanh, lambda _: ((torch.ones(2 + k % 3),) for k in range(1000))),
    "keyword": (
        lambda: by_argument,
        lambda _: ((torch.ones(3), 3 * k) if k % 2 else (torch.ones(3), k) for k in range(1000))),
    "counting": (Counting, same_input),
    "closure": (closure, same_input),
}


@pytest.mark.skipif(not is_enabled(), reason="nothing is compiled")
@pytest.mark.skipif(layout().dict_version is None, reason="this Python has no versions of dicts")
@pytest.mark.parametrize("name", WAYS)
def test_all_ways_are_found_without_python(name, monkeypatch):
    make, calls = WAYS[name]
    torch.manual_seed(0)
    ours = make()
    torch.manual_seed(0)
    theirs = make()
    compiled = preheat.compile(ours, dynamic=False, options={"cache": False})
    asked, is_python = [], Rows.is_python

    def noted(self, row):
        asked.append(self.about(row))
        return is_python(self, row)

    with torch.no_grad():
        pairs = zip(calls(ours), calls(theirs))
        for number, (mine, other) in zip(range(90), pairs):
            if number == 60:
                monkeypatch.setattr(Rows, "is_python", noted)
                before = preheat.counters()["captures"]
            torch.testing.assert_close(compiled(*mine), theirs(*other))
    assert asked == [] and preheat.counters()["captures"] == before


@pytest.mark.parametrize("make", (closure, Counting))
def test_what_is_written_may_be_gone_or_of_another_type(make):
    """A cell that was emptied, an attribute that was deleted or is a text: eager's own errors."""
    ours, theirs = make(), make()
    compiled = preheat.compile(ours, options={"cache": False})
    x = torch.ones(2, 4)
    with torch.no_grad():
        for program in (compiled, theirs):
            for _ in range(6):
                program(x)
        for spoil in (spoil_by_deletion, spoil_by_text):
            spoil(ours), spoil(theirs)
            found = []
            for program in (compiled, theirs):
                with pytest.raises(Exception) as caught:
                    program(x)
                found.append((type(caught.value), str(caught.value)))
            assert found[0] == found[1]


def cell_of(program):
    names = program.__code__.co_freevars
    return program.__closure__[names.index("n")]


def spoil_by_deletion(program):
    if isinstance(program, Counting):
        del program.n
    else:
        del cell_of(program).cell_contents


def spoil_by_text(program):
    if isinstance(program, Counting):
        program.n = "text"
    else:
        cell_of(program).cell_contents = "text"
