"""Random differentiable programs do the same compiled as eager: values, gradients, hooks, errors."""

import pytest

from tests.training.check import check


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_random_programs(start):
    for seed in range(start, start + 10):
        check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(1000, 1600, 50))
def test_many_random_programs(start):
    for seed in range(start, start + 50):
        check(seed)


def test_random_programs_that_keep_little():
    for seed in range(700, 710):
        check(seed, {"options": {"cache": False, "memory_budget": 0.2}})


def test_random_programs_whose_backwards_read_any():
    for seed in range(720, 740):
        check(seed, {"options": {"cache": False, "backward_reads": "any"}})


def test_random_programs_with_checkpoints():
    for seed in range(20):
        check(seed, has_regions=True)
