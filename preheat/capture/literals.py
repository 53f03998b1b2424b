"""Literals: the numbers of a program that torch made a tensor of.

    torch.tensor([1.0, 1.0, 2.0])   ->   cat(full((2,), 1.0), full((1,), 2.0))
"""

from typing import Any

from preheat.ir.types import TensorType, contiguous_strides


def vector(type: TensorType, length: int) -> TensorType:
    """The type of `length` elements in a row, otherwise as `type`."""
    return TensorType(type.dtype, (length,), contiguous_strides((length,)), type.device)


def runs(numbers: list) -> list[tuple[Any, int]]:
    """Equal neighbours counted; equal means by `repr`, so -0.0 and 0.0 differ and NaN is one
    run."""
    runs: list[tuple[Any, int]] = []
    for number in numbers:
        if runs and repr(runs[-1][0]) == repr(number):
            runs[-1] = (number, runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
