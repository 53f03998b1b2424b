"""Resizing: what torch computes where it takes no symbolic numbers, spelled out.

    upsample_nearest2d(x, None, [2.0, 2.0])  ->  aten.upsample_nearest2d(x, [2*h, 2*w], 2.0, 2.0)

Source: `compute_output_size` of ATen/native/UpSample.cpp: the size times the factor, truncated.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.bridge.ops import overload, private
from preheat.ir.scalar import Dim, apply

# The functions of torch._C._nn, the axes that they resize, and whether they take `align_corners`.
_ROWS = (
    ("upsample_nearest1d", 1, False), ("upsample_nearest2d", 2, False),
    ("upsample_linear1d", 1, True), ("upsample_bilinear2d", 2, True),
    ("upsample_bicubic2d", 2, True), ("upsample_nearest3d", 3, False), ("upsample_trilinear3d", 3, True),
    *((f"_upsample_nearest_exact{axes}d", axes, False) for axes in (1, 2, 3)),
    ("_upsample_bilinear2d_aa", 2, True), ("_upsample_bicubic2d_aa", 2, True),
)
_FUNCTIONS = {private(f"_C._nn.{name}"): (name, axes, aligns) for name, axes, aligns in _ROWS}
RESIZED = tuple(name for name, _, _ in _ROWS)


def resizing(function: Any, args: tuple) -> tuple[str, int] | None:
    """The op of a function that resizes, given its arguments, and how many axes it resizes; None of any other."""
    row = _FUNCTIONS.get(function) if type(function) in _KINDS else None
    return row[:2] if row is not None and len(args) == (4 if row[2] else 3) else None


def spelled_out(
    function: Any, args: tuple, sizes: Sequence[Dim],
) -> tuple[Callable, tuple[Dim, ...] | None, tuple] | None:
    """The op, the sizes that it makes (None: those that the call has), and what else it takes, of a
    call that resizes a tensor of `sizes`; None for any other call."""
    row = _FUNCTIONS.get(function) if type(function) in _KINDS else None
    if row is None or len(args) != (4 if row[2] else 3):
        return None
    name, axes, _ = row
    factors = args[-1]
    if factors is None and isinstance(args[1], (list, tuple)) and len(args[1]) == axes:
        return overload(f"aten.{name}.default"), None, (*args[2:-1], *[None] * axes)
    if factors is None or args[1] is not None:
        return None
    made = [_scaled(size, factor) for size, factor in zip(sizes[-axes:], factors, strict=True)]
    if None in made:
        return None
    return overload(f"aten.{name}.default"), tuple(made), (*args[2:-1], *factors)


def _scaled(size: Dim, factor: float) -> Dim | None:
    """The whole part of the product, as C rounds it: of floats of 64 bits.

    A factor that is a quotient of small integers by a power of two is exact, and so is the product, for no axis is
    2**53 elements long: then it is one of integers, which says more of what follows from it. Others are floats.
    """
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        return None
    above, below = float(factor).as_integer_ratio()
    if above <= _LARGEST_TERM and below <= _LARGEST_TERM:
        return apply("floordiv", size * above, below)
    return apply("int", apply("mul", apply("float", size), float(factor)))


_LARGEST_TERM = 1 << 16
full = torch.full
_KINDS = frozenset(map(type, _FUNCTIONS))
