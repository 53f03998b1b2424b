"""Writes in place to results whose layout follows from the inputs', with sizes that change."""

import random

import pytest
import torch

import preheat

PROGRAMS = {
    "neg_": lambda x: (x + 1).neg_(), "add_": lambda x: (x + 1).add_(x), "sqrt_": lambda x: x.abs().sqrt_(),
    "part": lambda x: (x + 1)[:, 1:].mul_(2), "none": lambda x: (x + 1).neg(),
}
LAYOUTS = {
    "rows": lambda a, b, c: torch.randn(a, b, c),
    "turned": lambda a, b, c: torch.randn(c, b, a).permute(2, 1, 0),
    "gaps": lambda a, b, c: torch.randn(a, b, 2 * c)[..., ::2],
    "repeated": lambda a, b, c: torch.randn(a, 1, c).expand(a, b, c),
    "swapped": lambda a, b, c: torch.randn(b, a, c).transpose(0, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_strides_are_eagers(name):
    program = PROGRAMS[name]
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(2):
        for make in LAYOUTS.values():
            for sizes in ((2, 4, 4), (3, 5, 5), (6, 2, 3)):
                x = make(*sizes)
                found, expected = compiled(x), program(x)
                torch.testing.assert_close(found, expected)
                assert found.stride() == expected.stride()


def test_axes_that_are_repeated_have_no_say():
    """Found at strides that are none of zeros, a plan serves no tensor that is expanded, and the other way round."""
    made = {
        "rows": lambda: torch.randn(3, 4), "columns": lambda: torch.randn(4, 3).T, "one": lambda: torch.randn(3, 1).expand(3, 4),
        "other": lambda: torch.randn(1, 4).expand(3, 4), "steps": lambda: torch.randn(6, 8)[::2, ::2]}
    for seed in range(12):
        order = random.Random(seed)
        compiled = preheat.compile(lambda x, y: x * y, options={"cache": False, "recompile_limit": 40})
        for _ in range(12):
            x, y = (made[order.choice(list(made))]() for _ in range(2))
            found = compiled(x, y)
            assert torch.equal(found, x * y) and found.stride() == (x * y).stride()
