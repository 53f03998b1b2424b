"""Gradients for many tangents at once: torch's formulas run for all of them, as in eager."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import preheat
from tests.training.place import DEVICE


def several(x):
    h = x.sin()
    return (h * x).exp() * 0.5, h


def with_a_break(x):
    y = x.sin()
    print(end="")
    z = y * x
    z.mul_(2)
    return z, y


def drawing(x):
    return (F.dropout(x.sin(), 0.5).exp(),)


def checkpointed(x):
    return (checkpoint(lambda x: x.sin().exp() * x, x, use_reentrant=False),)


def many(results, x, is_differentiable=False):
    tangents = [torch.eye(len(x), device=DEVICE) for _ in results]
    return torch.autograd.grad(results, x, tangents, is_grads_batched=True, create_graph=is_differentiable)[0]


def twice(results, x):
    first = many(results, x, is_differentiable=True)
    return first.detach(), torch.autograd.grad(first.square().sum(), x)[0]


def mapped(results, x):
    return torch.func.vmap(
        lambda tangent: torch.autograd.grad(results[0], x, tangent, retain_graph=True)[0])(torch.eye(len(x), device=DEVICE))


def observed(call, use, number, sizes):
    torch.manual_seed(number)
    x = torch.randn(sizes[number], device=DEVICE, requires_grad=True)
    results = call(x)
    if number < 4 and use is mapped:  # a plain backward is known by then
        torch.autograd.backward(results, [torch.ones_like(r) for r in results], retain_graph=True)
    found = use(results, x)
    return found, torch.rand(2)


@pytest.mark.parametrize("sizes", [(3,) * 6, (3, 4, 5, 4, 6, 4)], ids=["one size", "sizes"])
@pytest.mark.parametrize("use", [many, twice, mapped])
@pytest.mark.parametrize("program", [several, with_a_break, drawing, checkpointed])
def test_gradients_for_many_tangents(program, use, sizes):
    compiled = preheat.compile(program, options={"cache": False})
    for number in range(len(sizes)):
        expected = observed(program, use, number, sizes)
        torch.testing.assert_close(observed(compiled, use, number, sizes), expected)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_jacobian_with_many_rows_at_once(strategy):
    def f(x):
        return x.sin().exp() * x

    compiled = preheat.compile(f, options={"cache": False})
    for number in range(5):
        x = torch.randn(4, device=DEVICE)
        found, expected = (
            torch.autograd.functional.jacobian(call, x, vectorize=True, strategy=strategy) for call in (compiled, f))
        torch.testing.assert_close(found, expected)
