"""Operators of regions, which a backward computes again: what they have held, and their random numbers.

    preheat.kept(%3, 1)                              ->  %3, as no pass can see
    preheat.standing(1)                              ->  %4: u8[5056], before the draws of region 1
    preheat.bernoulli_p_again(%4, %2, 0.9)           ->  the same elements, and where it stands then

What is computed again from a value that was kept is not shared with what the forward computes from it;
the operator is taken out before anything runs (`transform/whole.py`). A forward notes where the
generator of the CPU stands before a region draws; the backward, which computes the region again, draws
from there, one draw after the other by their data, and leaves the generator as it was.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from preheat.bridge.operators import Operator

KEPT = "preheat.kept.default"
STANDING = "preheat.standing.default"
STATE_BYTES = torch.default_generator.get_state().numel()
# What may be drawn again, and the form that writes to its argument.
_FORMS = {
    "aten.bernoulli.p": "aten.bernoulli_.float", "aten.bernoulli.default": "aten.bernoulli_.Tensor",
    "aten.uniform.default": "aten.uniform_.default", "aten.normal_functional.default": "aten.normal_.default",
    "aten.native_dropout.default": "", "aten.rand.default": "", "aten.randn.default": "",
    "aten.rand_like.default": "", "aten.randn_like.default": "", "aten.randint.low": "",
}
DRAWN_AGAIN = frozenset((*_FORMS, *_FORMS.values()))
"""The overloads, as recorded or functional, of which a region may hold draws on a CPU."""


def again(name: str) -> str:
    """The overload that draws again what the functional overload `name` draws."""
    _, op, variant = name.split(".")
    return f"preheat.{op}_{variant}_again.default"


def _kept(value: torch.Tensor, region: int) -> torch.Tensor:
    return value.clone()


def _standing(region: int) -> torch.Tensor:
    return torch.default_generator.get_state()


def _drawn_again(function: Callable) -> Callable:
    def draw(standing: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        generator = torch.default_generator
        now = generator.get_state()
        generator.set_state(standing)
        try:
            made = function(*args, **kwargs)
            then = generator.get_state()
        finally:
            generator.set_state(now)
        return (*made, then) if isinstance(made, tuple) else (made, then)

    return draw


def _again(name: str) -> Operator:
    _, op, variant = name.split(".")
    function = getattr(getattr(torch.ops.aten, op), variant)
    taken, given = str(function._schema).partition("(")[2].rsplit(") -> ", 1)
    return Operator(
        f"{again(name).split('.')[1]}(Tensor standing, {taken}) -> ({given.strip('()')}, Tensor)",
        _drawn_again(function))


OPERATORS: dict[str, Callable[[], Operator]] = {
    KEPT: lambda: Operator("kept(Tensor value, int region) -> Tensor", _kept),
    STANDING: lambda: Operator(
        "standing(int region) -> Tensor", _standing, tags=(torch.Tag.nondeterministic_seeded,)),
    **{again(name): partial(_again, name) for name in _FORMS},
}
