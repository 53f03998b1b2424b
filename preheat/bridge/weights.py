"""Weights: numbers that change beside tensors that require grad: autograd is given a tensor without axes.

    loss + beta * penalty     ->     t = full((), beta);  loss + penalty * t

Autograd saves a number as it is, and a derivative that was recorded would be that of this one number. What it saves
of a tensor is a value of the graph. C makes the number one, too, of the dtype that it computes in: for float32 and
float64 that of the tensor beside it, so all bits are the same. (Of 16-bit floats it keeps more of the number, and
what divides by a tensor multiplies with its reciprocal: there the number is looked at. So is one beyond the dtype, of
which C makes no tensor, and any in a checkpoint, which counts what is saved.)
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from preheat.base.identity import identity
from preheat.bridge.bounds import is_within
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor

_BOTH_WAYS = ("add", "sub", "mul")
_OPERATORS = {getattr(operator, name): True for name in _BOTH_WAYS} | {operator.truediv: False}
_NAMES = frozenset(("add", "sub", "mul", "multiply", "subtract", "div", "divide", "true_divide"))
_FUNCTIONS = frozenset(getattr(torch, name) for name in (*_NAMES, "rsub"))
_METHODS = _NAMES | {"__add__", "__radd__", "__sub__", "__mul__", "__rmul__", "__truediv__"}
_NONE = (-1, None)
_DTYPES = frozenset((torch.float32, torch.float64))


def number_beside(function: Any, args: tuple, numbers: Mapping[int, Any]) -> tuple[int, Tensor | None]:
    """Which of `args` is a runtime number that `function` computes with a tensor that requires grad, and that
    tensor; None if none is."""
    owner = getattr(function, "__self__", None)
    if type(owner) in PLAIN_TENSORS:
        if len(args) != 1 or function.__name__ not in _METHODS:
            return _NONE
        return (0, owner) if _is_pair(owner, args[0], numbers) else _NONE
    if len(args) != 2 or not _is_known(function):
        return _NONE
    left, right = args
    if _is_pair(left, right, numbers):
        return 1, left
    return (0, right) if _OPERATORS.get(function) and _is_pair(right, left, numbers) else _NONE


def as_tensor(make: Callable, number: Any, beside: Tensor) -> Tensor:
    """`number` as a tensor without axes, by `make(function, args, kwargs)`."""
    return make(torch.full, ((), number), {"dtype": beside.dtype, "device": beside.device})


def _is_known(function: Any) -> bool:
    try:
        return function in _OPERATORS or function in _FUNCTIONS
    except TypeError:  # a callable object that cannot be hashed
        return False


def _is_pair(tensor: Any, number: Any, numbers: Mapping[int, Any]) -> bool:
    return (
        type(tensor) in PLAIN_TENSORS and identity(number) in numbers and type(number) in (int, float)
        and tensor.dtype in _DTYPES and is_within(number, tensor.dtype) and tensor.requires_grad
        and torch.is_grad_enabled())
