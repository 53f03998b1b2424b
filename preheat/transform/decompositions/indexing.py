"""Indexing: embedding, index_select, gather, and advanced indexing by integers.

    aten.embedding.default(weight: [V, D], ids: [B, T])   ->   take(weight, ids, axis=0): [B, T, D]

Reading by a bool mask, whose result size is data, and scatters stay with the library. What is written by one is
chosen element by element:

    x[mask] = 0.5   ->   where(mask, 0.5, x)
"""

from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.scalar import Dim, product
from preheat.transform.lowering import (
    Lowering, Value, broadcast_sizes, decline_if, is_known,
)

INTEGERS = frozenset(("int64", "int32"))


def take(c: Lowering, x: Value, index: Value, axis: int, wrap: bool = False) -> Value:
    """x with `axis` replaced by the axes of `index`."""
    decline_if(index.dtype not in INTEGERS, f"index of {index.dtype}")
    sizes = (*x.sizes[:axis], *index.sizes, *x.sizes[axis + 1 :])
    return c.emit("take", [x, index], x.dtype, sizes, axis=axis, **({"wrap": True} if wrap else {}))


def embedding(c: Lowering, weight: Value, indices: Value, **_: Arg) -> Value:
    return take(c, weight, indices, 0)


def index_select(c: Lowering, self: Value, dim: int, index: Value) -> Value:
    axis = c.axis(dim, self)
    return take(c, self, c.reshape(index, (1,)) if index.rank == 0 else index, axis)


def gather(c: Lowering, self: Value, dim: int, index: Value, **_: Arg) -> Value:
    axis = c.axis(dim, self)
    decline_if(index.rank == 0 or 0 in index.sizes or index.dtype not in INTEGERS, "index")
    pairs = [pair for k, pair in enumerate(zip(index.sizes, self.sizes)) if k != axis]
    decline_if(not all(part <= whole for part, whole in pairs), "torch will raise")
    return c.emit("gather", [self, index], self.dtype, index.sizes, axis=axis)


def index(c: Lowering, self: Value, indices: tuple[Value | None, ...]) -> Value:
    chosen = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    decline_if(
        not chosen or any(i.dtype not in INTEGERS for _, i in chosen), "mask or bytes as index"
    )
    if len(chosen) == 1:
        return take(c, self, chosen[0][1], chosen[0][0], wrap=True)
    sizes = broadcast_sizes([i.sizes for _, i in chosen])
    decline_if(0 in sizes, "empty index")
    operands = [c.expand(c.cast(i, "int64"), sizes) for _, i in chosen]
    axes = tuple(axis for axis, _ in chosen)
    return c.emit("index", [self, *operands], self.dtype, c.result.sizes, axes=axes)


def index_put(
    c: Lowering, self: Value, indices: tuple[Value | None, ...], values: Value, accumulate: bool = False,
) -> Value:
    """Only by one mask, of values that are the same for all places where it is true."""
    chosen = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    decline_if(len(chosen) != 1 or accumulate, "several indices, or sums")
    ((axis, mask),) = chosen
    rest = self.rank - axis - mask.rank
    decline_if(mask.dtype != "bool" or mask.rank == 0 or rest < 0, "no mask")
    decline_if(mask.sizes != self.sizes[axis : axis + mask.rank], "torch will raise")
    decline_if(values.dtype != self.dtype, "torch will raise")
    if values.sizes == (1,):
        values = c.reshape(values, ())
    inner = self.sizes[self.rank - rest:]
    decline_if(values.rank > rest, "a value for each place")
    decline_if(any(n not in (1, m) for n, m in zip(values.sizes, inner[rest - values.rank:])), "torch will raise")
    return c.where(c.reshape(mask, (*mask.sizes, *(1,) * rest)), values, self)


def as_strided(
    c: Lowering, self: Value, size: tuple[Dim, ...], stride: tuple[Dim, ...], storage_offset: Dim
) -> Value:
    """Elements by their places in memory; `functionalize` saw that they lie there in order."""
    decline_if(not all(map(is_known, (*self.sizes, *size, *stride))), "symbolic sizes")
    decline_if(0 in size, "no elements")
    place = c.expand(c.iota(0, (1,) * len(size), storage_offset), size)
    for axis, (length, step) in enumerate(zip(size, stride)):
        along = (*(1,) * axis, length, *(1,) * (len(size) - axis - 1))
        if length > 1 and step:
            place = place + c.expand(c.iota(axis, along, 0, step), size)
    return take(c, c.reshape(self, (product(self.sizes),)), place, 0)


ROWS: dict[str, Callable] = {
    "aten.embedding.default": embedding, "aten.index_select.default": index_select,
    "aten.as_strided.default": as_strided,
    "aten.index_put.default": index_put,
    "aten.gather.default": gather, "aten.index.Tensor": index, "aten._unsafe_index.Tensor": index,
}
