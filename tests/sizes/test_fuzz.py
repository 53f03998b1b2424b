"""Random programs at random sizes: `make fuzz-sizes` runs many more of them."""

import pytest

from tests.sizes import check, gradients


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_programs_at_sizes_that_they_were_not_captured_at(start):
    total = check.run(start, 20)
    assert not total["wrong"] and not total["faults"], total
    assert total["replays"] >= 50, total  # calls that an earlier capture served


@pytest.mark.parametrize("start", range(100, 160, 20))
def test_gradients_at_sizes_that_they_were_not_captured_at(start):
    total = gradients.run(start, 20)
    assert not total["wrong"] and not total["faults"], total
    assert total["replays"] >= 40 and total["pinned"] <= 8, total


def test_plans_of_sizes_that_come_again():
    total = check.run(1000, 12, "preheat", calls=24)
    assert not total["wrong"] and not total["faults"], total
