"""Movement ops as strided views: of memory that is read, and of memory that is stored to.

    %4 = permute(%3, axes=(1, 0))       View(3, 0, (1, 128)) over the memory of %3: f32[8, 128]

`view_of` follows movement ops down to memory, for operands of library calls, which take strides.
`store_through` goes the other way: a root that only moves the elements of another value is stored
by that value's own loops, through the inverse movement, so that a transposed result of a softmax is
still computed row by row.
"""

from collections.abc import Callable, Mapping

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Op
from preheat.ir.scalar import Dim
from preheat.ir.types import TensorType
from preheat.schedule.affine import common_groups

Strides = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class View:
    """`sizes` and `strides` at element `offset` of the memory of value `base`."""

    base: int
    offset: Dim
    sizes: tuple[Dim, ...]
    strides: Strides


def view_of(
    value: int,
    ops: Mapping[int, Op],
    types: Mapping[int, TensorType],
    is_memory: Callable[[int], bool],
) -> View | None:
    """The view that `value` is of a value with `is_memory`, or None when it is no strided view."""
    type = types[value]
    if is_memory(value):
        return View(value, 0, type.sizes, type.strides)
    op = ops.get(value)
    if op is None or op.name not in _FORWARD or type.elems == 0:
        return None
    source = view_of(op.args[0].id, ops, types, is_memory)
    if source is None:
        return None
    moved = _FORWARD[op.name](op, source)
    return None if moved is None else View(source.base, moved[0], type.sizes, moved[1])


def reshape_strides(
    sizes: tuple[Dim, ...], strides: Strides, new: tuple[Dim, ...]
) -> Strides | None:
    """Strides that give the elements of a strided tensor the sizes `new`, or None if none do."""
    result: list[Dim] = []
    for first, second in common_groups(sizes, new):
        axes = [k for k in first if sizes[k] != 1]
        for outer, inner in zip(axes, axes[1:]):
            if strides[outer] != strides[inner] * sizes[inner]:
                return None
        step: Dim = strides[axes[-1]] if axes else 1
        part: list[Dim] = []
        for k in reversed(second):
            part.append(step)
            step = step * new[k]
        result += reversed(part)
    return tuple(result)


def _reshape(op: Op, x: View):
    strides = reshape_strides(x.sizes, x.strides, op.type.sizes)
    return None if strides is None else (x.offset, strides)


def _permute(op: Op, x: View):
    return x.offset, tuple(x.strides[k] for k in op.attr("axes"))


def _expand(op: Op, x: View):
    new = op.type.rank - len(x.sizes)
    kept = (
        0 if size != wanted else stride
        for size, stride, wanted in zip(x.sizes, x.strides, op.type.sizes[new:])
    )
    return x.offset, (0,) * new + tuple(kept)


def _slice(op: Op, x: View):
    axis, start, step = op.attr("axis"), op.attr("start"), op.attr("step")
    strides = tuple(s * step if k == axis else s for k, s in enumerate(x.strides))
    return x.offset + x.strides[axis] * start, strides


# Views that a library takes: torch has no negative strides, so `flip` is none.
_FORWARD = {"reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice}


@dataclass(frozen=True, slots=True)
class Store:
    """Element [i, j, ..] of `value` goes to `offset` + i*strides[0] + .. of the memory `memory`.

    root   the value of the graph that the memory then holds
    """

    root: int
    value: int
    memory: int
    offset: Dim
    strides: Strides


def store_through(
    store: Store,
    ops: Mapping[int, Op],
    types: Mapping[int, TensorType],
    is_memory: Callable[[int], bool],
) -> Store:
    """The same store by the loops of the value that `store.value` only moves."""
    while not is_memory(store.value) and ops[store.value].name in _BACKWARD:
        op = ops[store.value]
        source = op.args[0].id
        moved = _BACKWARD[op.name](op, types[source], store)
        if moved is None:
            break
        store = Store(store.root, source, store.memory, *moved)
    return store


def placed_region(
    store: Store, ops: Mapping[int, Op], types: Mapping[int, TensorType]
) -> Store | None:
    """Where `store.value` is a `place` on what the memory holds there: the store of its part.

    %2 = place(%0, %1, axis=0, start=5, step=1) stored to %0      stores %1 to %0[5:]
    """
    op = ops.get(store.value)
    if op is None or op.name != "place":
        return None
    base = view_of(op.args[0].id, ops, types, lambda value: value == store.memory)
    if base is None or base.offset != store.offset:
        return None
    if any(n != 1 and a != b for n, a, b in zip(base.sizes, base.strides, store.strides)):
        return None
    axis, step = op.attr("axis"), op.attr("step")
    strides = tuple(s * step if k == axis else s for k, s in enumerate(store.strides))
    offset = store.offset + store.strides[axis] * op.attr("start")
    return Store(store.root, op.args[1].id, store.memory, offset, strides)


def _back_reshape(op: Op, source: TensorType, store: Store):
    strides = reshape_strides(op.type.sizes, store.strides, source.sizes)
    return None if strides is None else (store.offset, strides)


def _back_permute(op: Op, source: TensorType, store: Store):
    strides: list[Dim] = [0] * source.rank
    for place, axis in enumerate(op.attr("axes")):
        strides[axis] = store.strides[place]
    return store.offset, tuple(strides)


def _back_flip(op: Op, source: TensorType, store: Store):
    offset, strides = store.offset, list(store.strides)
    for axis in op.attr("axes"):
        offset = offset + strides[axis] * (source.sizes[axis] - 1)
        strides[axis] = -strides[axis]
    return offset, tuple(strides)


def _back_expand(op: Op, source: TensorType, store: Store):
    new = op.type.rank - source.rank
    for place, stride in enumerate(store.strides):
        repeats = place < new or source.sizes[place - new] != op.type.sizes[place]
        if repeats and stride != 0 and op.type.sizes[place] != 1:
            return None  # the repeated elements are separate in memory
    return store.offset, store.strides[new:]


# How a store goes through the op that moves its value.
_BACKWARD = {
    "reshape": _back_reshape,
    "permute": _back_permute,
    "flip": _back_flip,
    "expand": _back_expand,
}
