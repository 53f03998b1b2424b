"""The functions of torch that make products of any number of axes, and what autocast does to operands.

    operands_of(torch.matmul)                   ("input", "other")
    under_autocast([x, w])                      both in bfloat16, the last one cast first
"""

import operator
from typing import Any

import torch

from preheat.bridge.ops import overload

matmul, linear, add = torch.matmul, torch.nn.functional.linear, torch.add
unsafe_view = overload("aten._unsafe_view.default")

_OPERANDS = dict.fromkeys((
    matmul, torch.linalg.matmul, operator.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__,
), ("input", "other")) | {linear: ("input", "weight", "bias")}
_KINDS = frozenset(map(type, _OPERANDS))


def operands_of(function: Any) -> tuple[str, ...]:
    """The names of the operands of a product, () for any other function."""
    return _OPERANDS.get(function, ()) if type(function) in _KINDS else ()


def under_autocast(tensors: list) -> list:
    """The operands of a product as autocast hands them on; it begins with the last one. Those that are
    None stay so."""
    made = list(tensors)
    for place, tensor in reversed(list(enumerate(tensors))):
        if tensor is None or not torch.is_autocast_enabled(tensor.device.type):
            continue
        dtype = torch.get_autocast_dtype(tensor.device.type)
        if tensor.is_floating_point() and tensor.dtype not in (dtype, torch.float64):
            made[place] = tensor.to(dtype)
    return made
