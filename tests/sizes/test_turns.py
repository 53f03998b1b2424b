"""Loops that a number ends which changes, `while i < n`: from its third value on the body is one compiled part."""

import pytest
import torch

import preheat
from tests.sizes.check import differs
from tests.sizes.test_ranges import X, grad_outcome

VALUES = [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 12, 0, 13, -1, 20, 3, 5]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def upward(x, n):
    i = 0
    while i < n:
        x = x * 0.5 + i
        i += 1
    return x, i


def downward(x, n):
    while n > 0:
        x = x * 0.5 + n
        n -= 1
    return x


def until_zero(x, n):
    n = abs(n)
    while n:
        x = x * 0.5 + n
        n -= 1
    return x


def halved(x, n):
    while n > 1:
        n = n // 2
        x = x * 0.5 + n
    return x


def by_halves(x, n):
    t = 0.0
    while t < n:
        x = x * 0.5 + t
        t += 0.5
    return x


def common_divisor(x, n):
    a, b = abs(n), 30
    while b:
        a, b = b, a % b
        x = x * 0.5 + a
    return x, a


def left_inside(x, n):
    i = 0
    while True:
        if i >= n:
            break
        i += 1
        if i == 3:
            continue
        x = x * 0.5 + i
    return x, i


def with_else(x, n):
    i = 0
    while i < n:
        if i == 6:
            break
        x = x + i if i % 2 else x * 0.5
        i += 1
    else:
        x = x + 100
    return x


def nested(x, n):
    i = 0
    while i < n:
        j = 0
        while j < i:
            x = x * 0.5 + j
            j += 1
        i += 1
    return x


def within(x, n):
    for k in range(2):
        i = 0
        while i < n:
            x = x * 0.5 + i
            i += 1
        x = x + k
    return x


def is_less(i, n):
    return i < n


def asking(x, n):
    i = 0
    while is_less(i, n):
        x = x * 0.5 + i
        i += 1
    return x


def in_a_cell(x, n):
    i = 0

    def added(y):
        return y + i

    while i < n:
        x = added(x) * 0.5
        i += 1
    return x


def in_a_generator(x, n):
    def numbers():
        i = 0
        while i < n:
            yield i
            i += 1

    for i in numbers():
        x = x * 0.5 + i
    return x


def listed(x, n):
    made = []
    while len(made) < n:
        made.append(x * len(made))
    return made


def guarded(x, n):
    i = 0
    while i < n:
        try:
            x = x * 0.5 + i
        finally:
            i += 1
    return x


class Setting:
    turns = 0


SETTING = Setting()


def by_attribute(x, n):
    SETTING.turns = n
    i = 0
    while i < SETTING.turns:
        x = x * 0.5 + i
        i += 1
    return x


def grown(x, n):
    while x.shape[1] < n:
        x = torch.cat([x, x.sum(1, keepdim=True)], 1)
    return x


def bounded(x, n):
    """The loop itself is the same in all calls."""
    k = 0
    while k < 3:
        x = x * (2 if n > 4 else 3)
        k += 1
    return x


# and the captures that all of VALUES may take
PROGRAMS = {
    "upward": (upward, 8), "downward": (downward, 6), "until zero": (until_zero, 6), "halved": (halved, 7),
    "by halves": (by_halves, 6), "common divisor": (common_divisor, 7), "left inside": (left_inside, 8),
    "with else": (with_else, 10), "nested": (nested, 10), "within": (within, 10), "asking": (asking, 8),
    "in a cell": (in_a_cell, 8), "in a generator": (in_a_generator, 8), "listed": (listed, 8), "guarded": (guarded, 8),
    "by attribute": (by_attribute, 11), "grown": (grown, 9), "bounded": (bounded, 5),
}


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_captures_serve_every_count_of_turns(name, has_grad):
    program, most = PROGRAMS[name]
    compiled = preheat.compile(program, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()
    with torch.set_grad_enabled(has_grad):
        for value in VALUES:
            ours, theirs = (X.clone().requires_grad_(has_grad) for _ in range(2))
            found, expected = grad_outcome(compiled, (ours, value)), grad_outcome(program, (theirs, value))
            assert found[0] == expected[0] and not differs(found[1], expected[1], not has_grad), value
            assert theirs.grad is None or torch.allclose(ours.grad, theirs.grad), value
    captures = preheat.counters()["captures"] - before["captures"]
    assert captures <= most, captures


def test_a_whole_graph_has_a_variant_for_each_count():
    compiled = preheat.compile(upward, fullgraph=True, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()
    with torch.no_grad():
        for value in VALUES[:6]:
            assert torch.equal(compiled(X, value)[0], upward(X, value)[0])
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 6 and after["breaks"] == before["breaks"]


def test_the_break_is_told():
    compiled = preheat.compile(upward, options={"cache": False})
    before = preheat.counters()["breaks"]
    with torch.no_grad():
        for value in VALUES[:2]:
            compiled(X, value)
        assert preheat.counters()["breaks"] == before
        compiled(X, VALUES[2])
    assert preheat.counters()["breaks"] > before
