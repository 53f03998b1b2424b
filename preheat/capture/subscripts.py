"""Subscripts of tensors by numbers that change, taken apart as C takes them.

    x[n, :m]         ->  aten.select(x, 0, n), aten.slice(x, 0, 0, m)
    x[..., n] = y    ->  aten.select(x, -1, n), then [...] = y
    x[rows, n]       ->  aten.select(x, 1, n), then [rows]

C passes on a symbolic number that bounds a slice, but looks at one that is an index. So the simple parts of a
key are done here, one after the other, by the ops and in the order of C. What is left, the indices that are
tensors, lists or bools, is a key of its own.

Source: `THPVariable_getitem` of torch/csrc/autograd/python_variable_indexing.cpp; `applySlice`, `applySelect` of
ATen/TensorIndexing.h.
"""

import operator
from collections.abc import Callable
from typing import Any

from preheat.bridge.ops import overload
from preheat.bridge.symint import is_box, plain
from preheat.bridge.tensors import Tensor, dtype_name

_WHOLE = slice(None)
_LAST = (1 << 63) - 1  # where C ends a slice that has no end
_MASKS = frozenset(("bool", "uint8"))
_LEFT = frozenset((bool, list))
_select, _slice = overload("aten.select.int"), overload("aten.slice.Tensor")


def spelled_subscript(function: Any, x: Tensor, key: Any, cuts: bool = False) -> Callable | None:
    """What does the same as the operator `function`, getitem or setitem, on `x` and `key`, in which symbolic
    numbers are, and passes on those that are indices. None where there are none, and where C has to look at them:
    beside other kinds of parts, and where it raises.

    cuts   also where such numbers bound slices alone: C leaves out one that, at this size, is of the whole
    """
    parts = key if type(key) is tuple else (key,)
    found = any(is_box(part) or cuts and type(part) is slice and any(map(is_box, _bounds(part))) for part in parts)
    return _SPELLED[function] if found and _is_simple(tuple(x.shape), parts) else None


def _getitem(x: Tensor, key: Any) -> Tensor:
    x, rest = _taken(x, key)
    return x[rest] if rest else x


def _setitem(x: Tensor, key: Any, value: Any) -> None:
    x, rest = _taken(x, key)
    x[rest or ...] = value


_SPELLED = {operator.getitem: _getitem, operator.setitem: _setitem}


def _taken(x: Tensor, key: Any) -> tuple[Tensor, tuple]:
    """`x` with what is simple in `key` done, and the key of what is left: () if nothing is."""
    parts = key if type(key) is tuple else (key,)
    skipped = x.dim() - sum(map(_axes, parts))
    axis, rest = 0, []
    for part in parts:
        if type(part) in _LEFT or isinstance(part, Tensor):
            axis += _axes(part)
            rest.append(part)
        elif _is_index(part):
            x = _select(x, axis, part)
        else:
            count = skipped if part is Ellipsis else 1
            if part is None:
                x = x.unsqueeze(axis)
            elif part is not Ellipsis and part != _WHOLE:
                x = _slice(x, axis, *_bounds(part))
            axis += count
            rest += [_WHOLE] * count
    while rest and rest[-1] is _WHOLE:
        rest.pop()
    return x, tuple(rest)


def _bounds(part: slice) -> tuple:
    """Where a slice starts and ends, and its step, as C has it."""
    start, stop, step = part.start, part.stop, part.step
    return 0 if start is None else start, _LAST if stop is None else stop, 1 if step is None else step


def _axes(part: Any) -> int:
    """How many axes a part of a key stands for."""
    return 0 if part is None or part is Ellipsis or type(part) is bool else 1


def _is_simple(sizes: tuple[int, ...], parts: tuple) -> bool:
    """Whether all parts are of kinds that `_taken` knows, and every index is one of its axis."""
    skipped = len(sizes) - sum(map(_axes, parts))
    if skipped < 0 or not all(map(_is_known, parts)) or sum(part is Ellipsis for part in parts) > 1:
        return False
    axis = 0
    for part in parts:
        if _is_index(part) and not -sizes[axis] <= _number(part) < sizes[axis]:
            return False
        axis += skipped if part is Ellipsis else _axes(part)
    return True


def _is_known(part: Any) -> bool:
    if type(part) is slice:
        bounds = _bounds(part)
        return all(map(_is_index, bounds)) and _number(bounds[2]) > 0
    if isinstance(part, Tensor):  # a mask of several axes stands for as many
        return part.dim() == 1 or part.dim() > 1 and dtype_name(part.dtype) not in _MASKS
    return part is None or part is Ellipsis or type(part) in _LEFT or _is_index(part)


def _is_index(part: Any) -> bool:
    """Whether a part is an int that C can hold."""
    number = _number(part)
    return type(number) is int and -_LAST <= number <= _LAST


def _number(part: Any) -> Any:
    return plain(part) if is_box(part) else part
