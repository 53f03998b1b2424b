"""Views: which ATen ops give views, where the view begins, and how a write to it reaches its base.

    LAZY                               views that compute when they are read, and what they compute
    VIEWS                              overloads whose results may share their first operand's
    memory SPLITS[name](op, type)             several views as one slice or select each
    offset_of(op, base, view)          elements from the base's first element to the view's
    INVERSES[name](emit, op, base, base_type, new)
                                       the base after `new` was stored through the view

    aten.select.int(%0, 0, 3), new value %9   ->   aten.select_scatter.default(%0, %9, 0, 3)
"""

from collections.abc import Callable
from typing import Protocol

from preheat.base.errors import Unsupported
from preheat.bridge.ops import arguments
from preheat.ir.dims import decide, normal
from preheat.ir.graph import Arg, Op, Ref, Token
from preheat.ir.scalar import Dim, product
from preheat.ir.types import DTYPES, TensorType, Type, is_unhinted, tensor


class Emitter(Protocol):
    """What an inverse needs of the functional graph."""

    def emit(self, name: str, args: tuple, type: Type, attrs: tuple = ()) -> int: ...


LAZY = {
    "aten._conj.default": "aten._conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
}


# ---------------------------------------------------------------------------- several views
def _slices(op: Op, type: TensorType, lengths: list[int], dim: int) -> tuple[Op, ...]:
    found, start = [], 0
    for length in lengths:
        end = _tidy(start + length)
        found.append(Op("aten.slice.Tensor", (op.args[0], dim, start, end, 1), (), ()))
        start = end
    return tuple(found)


def _split(op: Op, type: TensorType) -> tuple[Op, ...]:
    named = arguments(op)
    dim, length = named["dim"] % type.rank, named["split_size"]
    last = _tidy(type.sizes[dim] - length * (len(op.results) - 1))  # it may be shorter
    return _slices(op, type, [*(length for _ in op.results[1:]), last], dim)


def _split_sizes(op: Op, type: TensorType) -> tuple[Op, ...]:
    named = arguments(op)
    lengths, dim = list(named["split_sizes"]), named["dim"] % type.rank
    if sum(lengths) != type.sizes[dim]:
        raise Unsupported("unknown_view", f"{lengths} of {type.sizes[dim]}")  # torch will raise
    return _slices(op, type, lengths, dim)


def _unbind(op: Op, type: TensorType) -> tuple[Op, ...]:
    dim = arguments(op)["dim"] % type.rank
    return tuple(
        Op("aten.select.int", (op.args[0], dim, i), (), ()) for i in range(len(op.results))
    )


SPLITS: dict[str, Callable[[Op, TensorType], tuple[Op, ...]]] = {
    "aten.split.Tensor": _split,
    "aten.unsafe_split.Tensor": _split,
    "aten.split_with_sizes.default": _split_sizes,
    "aten.unsafe_split_with_sizes.default": _split_sizes,
    "aten.unbind.int": _unbind,
}


# ---------------------------------------------------------------------------- offsets
def clamped(start: Dim | None, size: Dim) -> Dim:
    """Where a slice that starts at `start` of an axis of `size` really starts."""
    if start is None:
        return 0
    if start < 0:
        start = start + size
        return start if start >= 0 else 0
    return start if start <= size else size


def _slice_offset(named: dict[str, Arg], base: TensorType, view: TensorType) -> Dim | None:
    """Of a slice with elements, whose start is therefore inside the axis, unless it is negative."""
    dim, start = named["dim"] % base.rank, named["start"]
    size, end = base.sizes[dim], named["end"]
    if not is_unhinted(start) and not is_unhinted(size):
        start = clamped(start, size)
    elif start is None:
        start = 0
    elif decide("ge", start, 0) is not True:
        if named["step"] != 1 or not (end is None or end == _INT_MAX):
            return None
        start = size - view.sizes[dim]
    return _tidy(start * base.strides[dim])


def _tidy(dim: Dim) -> Dim:
    return normal(dim) if is_unhinted(dim) else dim


def _select_offset(named: dict[str, Arg], base: TensorType, view: TensorType) -> Dim | None:
    dim, index = named["dim"] % base.rank, named["index"]
    is_from_start = decide("ge", index, 0) if is_unhinted(index) else index >= 0
    if is_from_start is None:
        return None
    return _tidy((index if is_from_start else index + base.sizes[dim]) * base.strides[dim])


def _diagonal_offset(named: dict[str, Arg], base: TensorType, view: TensorType) -> Dim:
    dim = named["dim1" if named["offset"] < 0 else "dim2"] % base.rank
    return abs(named["offset"]) * base.strides[dim]


_INT_MAX = (1 << 63) - 1
_OFFSETS: dict[str, Callable[[dict[str, Arg], TensorType, TensorType], Dim | None]] = {
    "aten.slice.Tensor": _slice_offset, "aten.select.int": _select_offset,
    "aten.diagonal.default": _diagonal_offset,
    "aten.as_strided.default": lambda named, base, view: named["storage_offset"],
}


def offset_of(op: Op, base: TensorType, view: TensorType) -> Dim | None:
    """Elements from the first of `base` to the first of the view; None: it cannot be an output."""
    if op.name in LAZY.values() or view.dtype != base.dtype:
        return None  # not made again by sizes, strides and an offset alone
    if 0 in view.sizes:
        return 0  # a view without elements begins anywhere
    return _OFFSETS[op.name](arguments(op), base, view) if op.name in _OFFSETS else 0


# ---------------------------------------------------------------------------- inverses
def _reshape(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    return g.emit("aten.reshape.default", (Ref(new), base_type.sizes), base_type)


def _alias(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    return new


def _transpose(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    return g.emit(op.name, (Ref(new), *op.args[1:]), base_type, op.attrs)


def _permute(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    axes = [a % base_type.rank for a in arguments(op)["dims"]]
    back = tuple(axes.index(i) for i in range(base_type.rank))
    return g.emit("aten.permute.default", (Ref(new), back), base_type)


def _scatter(name: str, *keys: str) -> Callable:
    """The inverse by the overload `name`, given the view's arguments `keys`."""

    def inverse(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
        named = arguments(op)
        return g.emit(name, (Ref(base), Ref(new), *(named[key] for key in keys)), base_type)

    return inverse


def _as_strided(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    """By places counted in `base`: `as_strided_scatter` counts from the start of the storage."""
    named = arguments(op)
    size, stride, offset = (named[key] for key in ("size", "stride", "storage_offset"))
    if 0 in size:
        return base
    whole, part = (product(base_type.sizes),), (product(size),)
    device = base_type.device

    def flat(value: int, sizes: tuple[Dim, ...], dtype: str) -> int:
        type = tensor(dtype, sizes, device=device)
        return g.emit("aten.reshape.default", (Ref(value), sizes), type)

    where, row = (("device", Token("device", device)),), tensor("int64", whole, device=device)
    seen = TensorType("int64", size, stride, device)
    places = g.emit("aten.arange.default", whole, row, where)
    places = g.emit("aten.as_strided.default", (Ref(places), size, stride, offset), seen)
    source = Ref(flat(new, part, base_type.dtype))
    target, index = Ref(flat(base, whole, base_type.dtype)), Ref(flat(places, part, "int64"))
    made_type = tensor(base_type.dtype, whole, device=device)
    made = g.emit("aten.scatter.src", (target, 0, index, source), made_type)
    return _reshape(g, op, base, base_type, made)


def _expand(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    """Only an expand that repeats nothing can be written to."""
    return _reshape(g, op, base, base_type, new)


def _bitcast(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    view = arguments(op)["dtype"].name
    if view not in DTYPES or DTYPES[view].itemsize != base_type.itemsize:
        raise Unsupported("written_view", f"a write through a view of {base_type} as {view}")
    return g.emit("aten.view.dtype", (Ref(new), Token("dtype", base_type.dtype)), base_type)


def _refuse(g: Emitter, op: Op, base: int, base_type: TensorType, new: int) -> int:
    raise Unsupported("written_view", f"a write through {op.name}")


INVERSES: dict[str, Callable[[Emitter, Op, int, TensorType, int], int]] = {
    **{f"aten.{name}": _reshape for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default",
        "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
    )},
    **{f"aten.{name}.default": _alias for name in ("alias", "detach", "lift_fresh", "contiguous")},
    "aten.t.default": _transpose, "aten.transpose.int": _transpose,
    "aten.permute.default": _permute,
    "aten.slice.Tensor": _scatter("aten.slice_scatter.default", "dim", "start", "end", "step"),
    "aten.select.int": _scatter("aten.select_scatter.default", "dim", "index"),
    "aten.diagonal.default": _scatter("aten.diagonal_scatter.default", "offset", "dim1", "dim2"),
    "aten.as_strided.default": _as_strided,
    "aten.expand.default": _expand, "aten.view.dtype": _bitcast,
    "aten._conj_physical.default": _transpose, "aten.neg.default": _transpose,  # their own inverses
    "aten.unfold.default": _refuse, "aten.view_as_real.default": _refuse,
    "aten.view_as_complex.default": _refuse,
}
VIEWS = (frozenset(INVERSES) | frozenset(SPLITS) | frozenset(LAZY)) - frozenset(LAZY.values())
