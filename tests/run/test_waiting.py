"""Nodes that their own effects end: code for them is made when they come again, and not before."""

import pytest
import torch

import preheat
from preheat.base.events import bus
from preheat.capture.capture import capture
from preheat.ir.spent import spent_by


class State:
    def __init__(self):
        self.count, self.cache, self.items, self.is_odd = 0, None, {}, False


def cached(state, x):
    if state.cache is None:
        state.cache = x * 2
    return x + state.cache


def entered(state, x):
    if "sum" not in state.items:
        state.items["sum"] = x * 2
    return x + state.items["sum"]


def made(state, x):
    if not hasattr(state, "late"):
        state.late = x.sum()
    return x + state.late


def counted(state, x):
    state.count += 1
    return x + state.count


def same(state, x):
    if state.count == 0:
        state.count = 0
    return x + 1


def kept(state, x):
    state.last = x + 1
    return state.last * 2


@pytest.mark.parametrize("program, is_spent", [
    (cached, True), (entered, True), (made, True), (counted, True), (same, False), (kept, False),
], ids=lambda value: getattr(value, "__name__", None))
def test_what_a_node_ends_itself(program, is_spent):
    outcome = capture(program, (State(), torch.ones(3)), {}, limits=None)
    assert (spent_by(outcome.nodes[-1].trace) is not None) is is_spent


def plans(function):
    """What `function` gives, and how many graphs were compiled meanwhile."""
    told = []
    stop = bus.subscribe(lambda event: told.append(event.data), {"compile"})
    try:
        return function(), len(told)
    finally:
        stop()


@pytest.mark.parametrize("program", [cached, entered, made], ids=lambda program: program.__name__)
def test_a_first_call_that_makes_state_is_not_compiled(program):
    compiled, state, twin = preheat.compile(program, options={"cache": False}), State(), State()
    x = torch.arange(3.0)
    counts = []
    for _ in range(4):
        found, count = plans(lambda: compiled(state, x))
        torch.testing.assert_close(found, program(twin, x), rtol=0, atol=0)
        counts.append(count)
    assert counts == [0, 1, 0, 0]


def test_a_node_that_comes_again_gets_its_plan():
    """For each new object the first node comes again: op by op once, then with a plan."""
    compiled, x = preheat.compile(cached, options={"cache": False}), torch.arange(3.0)
    counts = []
    for _ in range(5):
        state = State()
        found, count = plans(lambda: (compiled(state, x), compiled(state, x)))
        for one in found:
            torch.testing.assert_close(one, x * 3, rtol=0, atol=0)
        assert torch.equal(state.cache, x * 2)
        counts.append(count)
    assert counts == [1, 0, 1, 0, 0]


def test_two_ways_in_turn_get_plans():
    def turned(state, x):
        state.is_odd = not state.is_odd
        return x * 2 if state.is_odd else x - 1

    compiled, state, x = preheat.compile(turned, options={"cache": False}), State(), torch.arange(3.0)
    counts = []
    for k in range(8):
        found, count = plans(lambda: compiled(state, x))
        assert torch.equal(found, x - 1 if k % 2 else x * 2)
        counts.append(count)
    assert sum(counts) == 2 and counts[6:] == [0, 0]


def test_an_explanation_shows_its_kernels():
    explanation = preheat.explain(cached)(State(), torch.ones(3))
    assert explanation.kernels


def test_a_second_process_finds_it_without_a_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    x, before = torch.arange(3.0), preheat.counters()
    for _ in range(2):
        compiled, state = preheat.compile(cached), State()
        for _ in range(3):
            assert torch.equal(compiled(state, x), x * 3)
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 2
    assert after["compiles"] - before["compiles"] == 1
