"""Inputs that are written to between forward and backward, where eager's formulas do not need them."""

import pytest
import torch

import preheat

LAYOUTS = {
    "plain": lambda: torch.randn(3, 3),
    "turned": lambda: torch.randn(3, 3).t(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 3),
}


def chosen(x, y):
    seen = y.view(9).view(3, 3)
    return torch.where(seen > 0, seen, x), seen


def _gradient(call, layout, is_changed):
    torch.manual_seed(0)
    x, leaf = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    result, seen = call(x, leaf * 1.5)
    if is_changed:
        with torch.no_grad():
            seen.mul_(1.5)
    result.backward(LAYOUTS[layout]())
    return leaf.grad


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tangent_of_a_new_layout_after_a_change(layout):
    call = preheat.compile(chosen, options={"cache": False})
    for _ in range(3):
        _gradient(call, "plain", False)
    for _ in range(2):
        assert torch.equal(_gradient(call, layout, True), _gradient(chosen, layout, True))


def test_the_first_backward_of_all_after_a_change():
    call = preheat.compile(chosen, options={"cache": False})
    for _ in range(3):
        call(torch.randn(3, 3), torch.randn(3, 3, requires_grad=True) * 1.5)
    assert torch.equal(_gradient(call, "plain", True), _gradient(chosen, "plain", True))
