"""Functions of C compiled as they are: each is itself, in this process and in the cache."""

import operator

import pytest
import torch
import torch.nn.functional as F

import preheat

PAIRS = [
    (torch.exp, torch.sin, 1), (F.gelu, F.logsigmoid, 1), (operator.add, operator.mul, 2),
    (torch.add, torch.mul, 2), (torch.Tensor.exp, torch.Tensor.sin, 1),
]


@pytest.mark.parametrize("first, second, count", PAIRS)
def test_two_functions_share_no_entry(first, second, count, cache_folder):
    x = torch.linspace(-2, 2, 5)
    for _ in range(2):  # captured, then from the cache
        for function in (first, second, first):
            compiled = preheat.compile(function)
            for _ in range(2):
                torch.testing.assert_close(compiled(*[x] * count), function(*[x] * count))


def test_methods_of_one_tensor(cache_folder):
    x = torch.linspace(-2, 2, 5)
    for method in (x.exp, x.sin, x.exp):
        torch.testing.assert_close(preheat.compile(method)(), method())
