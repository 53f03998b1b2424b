"""Padding: tensors made longer along axes, and results cut back.

    padded(x, 1, 64, 0)               x: [B, T] with zeros behind, [B, 64]
    grown(result, other)              the axes of each tensor in it that are longer in `other`
    cut(other, axes, T)               `other` with these axes cut to T
"""

from collections.abc import Mapping
from typing import Any

import torch

from preheat.base.errors import UserError

Axes = Any  # a tuple of axes for a tensor, None for anything else, containers of those


def padded(tensor: torch.Tensor, axis: int, size: int, value: float | bool) -> torch.Tensor:
    """`tensor` with `value` behind it along `axis`, `size` long in all."""
    axis %= tensor.dim()
    sizes = list(tensor.shape)
    sizes[axis] = size - sizes[axis]
    behind = tensor.new_full(sizes, value)
    return torch.cat([tensor, behind], axis)


def grown(short: Any, long: Any) -> Axes:
    """For each tensor in a result the axes that are longer in that of a longer call.

    Raises UserError for results that differ in anything else, and for objects that cannot be cut.
    """
    if isinstance(short, torch.Tensor):
        if not isinstance(long, torch.Tensor) or short.dim() != long.dim():
            raise UserError("a result is another one when its input is longer")
        return tuple(axis for axis, n in enumerate(short.shape) if long.shape[axis] != n)
    if _is_sequence(short):
        return [grown(*pair) for pair in zip(short, long, strict=True)]
    if isinstance(short, Mapping) and type(short) is type(long):
        return {key: grown(part, long[key]) for key, part in short.items()}
    if isinstance(short, (int, float, bool, str, type(None))) and short == long:
        return None
    raise UserError(f"a result of type {type(short).__name__} cannot be cut")


def cut(result: Any, axes: Axes, size: int) -> Any:
    """`result` with the axes that `grown` found cut to `size`."""
    if axes is None:
        return result
    if isinstance(result, torch.Tensor):
        for axis in axes:
            result = result.narrow(axis, 0, size)
        return result
    if _is_sequence(result):
        parts = [cut(part, own, size) for part, own in zip(result, axes, strict=True)]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    parts = {key: cut(part, axes[key], size) for key, part in result.items()}
    return parts if type(result) is dict else type(result)(**parts)


def largest_difference(found: Any, expected: Any) -> float:
    """The largest difference of elements of two results, against the size of the elements."""
    if isinstance(expected, torch.Tensor):
        if not expected.numel():
            return 0.0
        if not expected.is_floating_point():
            return 0.0 if torch.equal(found, expected) else float("inf")
        error = (found.double() - expected.double()).abs().nan_to_num(0.0)
        same_nan = torch.equal(found.isnan(), expected.isnan())
        scale = expected.double().abs().nan_to_num(0.0).max().clamp(min=1.0)
        return float(error.max() / scale) if same_nan else float("inf")
    if _is_sequence(expected):
        pairs = zip(found, expected, strict=True)
        return max((largest_difference(*pair) for pair in pairs), default=0.0)
    if isinstance(expected, Mapping):
        return max((largest_difference(found[k], part) for k, part in expected.items()), default=0.0)
    return 0.0


def tolerance(result: Any) -> float:
    """How far two runs of one program may be apart: by the narrowest dtype in its result."""
    if isinstance(result, torch.Tensor):
        return {1: 0.0, 2: 2e-2, 4: 1e-4}.get(result.itemsize, 1e-9) if (
            result.is_floating_point()) else 0.0
    parts = result.values() if isinstance(result, Mapping) else result if _is_sequence(result) else ()
    return max(map(tolerance, parts), default=0.0)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)
