"""Random programs at random sizes: `make fuzz-sizes` runs many more of them."""

import pytest
import torch

from tests.sizes import check, gradients


def quick_of(starts, count):
    """The first `count` in the quick suite, the others by `make test-fuzz`."""
    return [*starts[:count], *(pytest.param(start, marks=pytest.mark.fuzz) for start in starts[count:])]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


@pytest.mark.parametrize("start", quick_of(range(0, 120, 20), 3))
def test_programs_at_sizes_that_they_were_not_captured_at(start):
    total = check.run(start, 20)
    assert not total["wrong"] and not total["faults"], total
    assert total["accepted replays"] >= 50, total  # calls that an earlier capture served


@pytest.mark.parametrize("start", quick_of(range(100, 160, 20), 1))
def test_gradients_at_sizes_that_they_were_not_captured_at(start):
    total = gradients.run(start, 20)
    assert not total["wrong"] and not total["faults"], total
    # in torch 2.11 the derivative of singular values takes no symbols
    most = 8 if torch.__version__ >= "2.13" else 12
    assert total["accepted replays"] >= 40 and total["pinned"] <= most, total


@pytest.mark.parametrize("start", quick_of(range(1000, 1060, 20), 2))
def test_programs_by_plans_for_all_sizes(start):
    """From the first size on that is new: nothing runs op by op."""
    total = check.run(start, 20, "preheat")
    assert not total["wrong"] and not total["faults"], total
    assert total["accepted replays"] >= 50, total
