"""Tensors that C makes of lists of numbers, made by ops, which take symbolic numbers.

    torch.tensor([n, 2])       ->  stack([full((), n), full((), 2)])
    torch.tensor(v)            ->  full((), v, dtype=float64).to(float32)

C rounds a number to the dtype, whatever it is; `full` refuses one that is beyond it. So floats are made as they are, and
cast.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from preheat.bridge.symint import is_box, pin, plain, unboxed

tensor = torch.tensor
_MAKERS = frozenset((tensor, torch.as_tensor))  # of which ops do the same
_BY_C = frozenset((*_MAKERS, torch.asarray))
_FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
_MOST = 64  # elements that are ops of their own
_LARGEST = (1 << 63) - 1


def is_maker(function: Any) -> bool:
    """Whether `function` makes a tensor of numbers."""
    return type(function) is type(torch.tensor) and function in _BY_C


def made_by_c(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The call with numbers that are looked at: of a symbol C takes the low bits, where it refuses a number."""
    return function(*unboxed(args, pin), **unboxed(kwargs, pin))


def as_numbers(method: Callable, args: tuple) -> Callable:
    """The bound method of a tensor, which looks at the numbers that it makes a tensor of."""
    is_maker = method.__name__ == "new_tensor" or method.__name__ == "new" and args and isinstance(args[0], (list, tuple))
    return partial(made_by_c, method) if is_maker else method


def tensor_maker(function: Any, args: tuple, kwargs: Mapping[str, Any]) -> Callable | None:
    """What makes the tensor that torch.tensor makes of the numbers in `args[0]`, given them and nothing else; None
    where only C does."""
    if not is_maker(function) or function not in _MAKERS or len(args) != 1 or not kwargs.keys() <= {"dtype", "device"}:
        return None
    shape = _shape(args[0])
    numbers = None if shape is None else _flat(args[0], len(shape))
    if not numbers or len(numbers) > _MOST or not all(map(_is_number, numbers)):
        return None
    is_float = float in map(type, numbers)
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.get_default_dtype() if is_float else torch.int64
    if dtype not in _FLOATS and (is_float or dtype is not torch.int64):
        return None
    return partial(_made, shape, dtype, kwargs.get("device"))


def is_index(part: Any) -> bool:
    """Whether a part of a subscript is a list of ints, of which C makes a tensor."""
    return type(part) is list and 0 < len(part) <= _MOST and all(type(n) is int and _is_number(n) for n in part)


def _made(shape: tuple[int, ...], dtype: torch.dtype, device: Any, given: Any) -> torch.Tensor:
    wide = torch.int64 if dtype is torch.int64 else torch.float64

    def one(number: Any) -> torch.Tensor:
        own = torch.float64 if type(_value(number)) is float else torch.int64
        return torch.full((), number, dtype=own, device=device).to(wide)

    parts = [one(number) for number in _flat(given, len(shape))]
    made = torch.stack(parts).view(shape) if shape else parts[0]
    return made.to(dtype)


def _value(number: Any) -> Any:
    return plain(number) if is_box(number) else number


def _is_number(number: Any) -> bool:
    kind = type(number)
    return kind is float or kind is bool or kind is int and -_LARGEST <= number <= _LARGEST


def _shape(value: Any) -> tuple[int, ...] | None:
    """The sizes of nested lists and tuples, None where they differ."""
    if type(value) not in (list, tuple):
        return ()
    shapes = {_shape(part) for part in value}
    if len(shapes) != 1 or None in shapes:
        return None
    return (len(value), *shapes.pop())


def _flat(value: Any, depth: int) -> list:
    for _ in range(depth - 1):
        value = [part for row in value for part in row]
    return list(value) if depth else [value]
