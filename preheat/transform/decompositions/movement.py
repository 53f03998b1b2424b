"""Movement: views, permutations, slices, joining, padding, repetition, triangles.

    aten.select.int(x: [B, T, D], 1, 0)   ->   reshape(slice(x, axis=1, start=0, step=1)): [B, D]

Nothing computes here; the strides of results are the recorded ones.
"""

from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.scalar import Dim, Number
from preheat.transform.lowering import Lowering, Value, decline_if, is_known
from preheat.transform.views import clamped


def reshape(c: Lowering, self: Value, **_: Arg) -> Value:
    """Every view that keeps the elements in row-major order: the recorded sizes say which."""
    return c.reshape(self, c.result.sizes)


def expand(c: Lowering, self: Value, **_: Arg) -> Value:
    return c.expand(self, c.result.sizes)


def transpose(c: Lowering, self: Value, dim0: int, dim1: int) -> Value:
    return self if self.rank == 0 else c.transpose(self, c.axis(dim0, self), c.axis(dim1, self))


def transpose_matrix(c: Lowering, self: Value) -> Value:
    return c.transpose(self, 0, 1) if self.rank == 2 else self


def permute(c: Lowering, self: Value, dims: tuple[int, ...]) -> Value:
    return c.permute(self, [c.axis(d, self) for d in dims])


def slice_start(size: Dim, start: Arg) -> Dim:
    """Where a Python slice of an axis of `size` starts. Declines for one that is not known."""
    decline_if(not is_known(size) or not is_known(start), "symbolic bounds")
    return clamped(start, size)


def slice_axis(
    c: Lowering, self: Value, dim: int = 0, start: Arg = None, end: Arg = None, step: int = 1,
) -> Value:
    axis = c.axis(dim, self)
    first = slice_start(self.sizes[axis], start)
    return c.slice(self, axis, first, c.result.sizes[axis], step)


def select(c: Lowering, self: Value, dim: int, index: Dim) -> Value:
    axis = c.axis(dim, self)
    decline_if(not is_known(index), "a symbolic index")
    start = index + self.sizes[axis] if index < 0 else index
    return c.reshape(c.slice(self, axis, start, 1), c.result.sizes)


def slice_scatter(
    c: Lowering,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Arg = None,
    end: Arg = None,
    step: int = 1,
) -> Value:
    axis = c.axis(dim, self)
    first = slice_start(self.sizes[axis], start)
    return c.place(self, c.cast(src, self.dtype), axis, first, step)


def select_scatter(c: Lowering, self: Value, src: Value, dim: int, index: Dim) -> Value:
    axis = c.axis(dim, self)
    decline_if(not is_known(index), "a symbolic index")
    start = index + self.sizes[axis] if index < 0 else index
    kept = (*self.sizes[:axis], 1, *self.sizes[axis + 1 :])
    return c.place(self, c.reshape(c.cast(src, self.dtype), kept), axis, start)


def diagonal(c: Lowering, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Every (columns + 1)-th element of the two axes in one row."""
    row, column = c.axis(dim1, self), c.axis(dim2, self)
    rest = [axis for axis in range(self.rank) if axis not in (row, column)]
    decline_if(not all(map(is_known, self.sizes)), "a symbolic size")
    x = c.permute(self, (*rest, row, column))
    *lead, rows, columns = x.sizes
    start = offset if offset >= 0 else -offset * columns
    size = c.result.sizes[-1]
    decline_if(size == 0, "an empty diagonal")
    return c.slice(c.reshape(x, (*lead, rows * columns)), len(lead), start, size, columns + 1)


def unfold(c: Lowering, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows that do not overlap: the axis in pieces of `step`, of each the first `size`."""
    axis, wanted = c.axis(dimension, self), (*self.sizes, *c.result.sizes, size, step)
    decline_if(not all(map(is_known, wanted)) or 0 in wanted, "symbolic or empty")
    windows = c.result.sizes[axis]
    decline_if(size > step, "windows overlap")
    decline_if(windows * step > self.sizes[axis], "the last window has no gap behind it")
    x = c.slice(self, axis, 0, windows * step)
    x = c.reshape(x, (*x.sizes[:axis], windows, step, *x.sizes[axis + 1 :]))
    x = c.slice(x, axis + 1, 0, size)
    return c.permute(x, [a for a in range(x.rank) if a != axis + 1] + [axis + 1])


# ---------------------------------------------------------------------------- joining
def cat(c: Lowering, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    """torch lets 1-d empty tensors stand among others, whatever their rank."""
    parts = [t for t in tensors if not (t.rank == 1 and t.sizes[0] == 0)]
    if not parts:
        return c.full(0, c.result.sizes, c.result.dtype)
    axis = dim % len(c.result.sizes)
    made = c.cat([c.cast(t, c.result.dtype) for t in parts], axis)
    return c.copy(made) if len(parts) == 1 else made


def stack(c: Lowering, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    axis = dim % c.result.rank
    kept = (*c.result.sizes[:axis], 1, *c.result.sizes[axis + 1 :])
    made = c.cat([c.reshape(c.cast(t, c.result.dtype), kept) for t in tensors], axis)
    return c.copy(made) if len(tensors) == 1 else made


def pad(c: Lowering, self: Value, pad: tuple[Dim, ...], value: Number = 0) -> Value:
    """Pads come in pairs, last axis first; a negative one cuts."""
    decline_if(not all(map(is_known, (*pad, value))), "symbolic padding")
    low, high = [0] * self.rank, [0] * self.rank
    x = self
    for place in range(len(pad) // 2):
        axis = self.rank - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        if before < 0 or after < 0:
            kept = x.sizes[axis] + min(before, 0) + min(after, 0)
            x = c.slice(x, axis, max(-before, 0), kept)
        low[axis], high[axis] = max(before, 0), max(after, 0)
    if not any(low) and not any(high):
        return c.copy(x)
    fill = bool(value) if self.dtype == "bool" else value
    return c.emit(
        "pad", [x], self.dtype, c.result.sizes, low=tuple(low), high=tuple(high), value=fill
    )


def flip(c: Lowering, self: Value, dims: tuple[int, ...]) -> Value:
    axes = tuple(sorted({c.axis(d, self) for d in dims})) if self.rank else ()
    return c.emit("flip", [self], self.dtype, self.sizes, axes=axes) if axes else c.copy(self)


def roll(c: Lowering, self: Value, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Value:
    decline_if(0 in self.sizes or self.rank == 0, "nothing to roll")
    sizes, x = self.sizes, self
    if not dims:
        total = 1
        for size in sizes:
            total = total * size
        x, dims = c.reshape(self, (total,)), (0,)
    for shift, dim in zip(shifts, dims):
        axis = dim % x.rank
        size = x.sizes[axis]
        decline_if(not is_known(size), "a symbolic size")
        start = -shift % size
        if start:
            x = c.cat([c.slice(x, axis, start, size - start), c.slice(x, axis, 0, start)], axis)
    return c.copy(c.reshape(x, sizes)) if x is self else c.reshape(x, sizes)


def repeat(c: Lowering, self: Value, repeats: tuple[Dim, ...]) -> Value:
    sizes = (1,) * (len(repeats) - self.rank) + self.sizes
    apart, wide = [], []
    for times, size in zip(repeats, sizes):
        apart += [1, size]
        wide += [times, size]
    repeated = c.expand(c.reshape(self, apart), wide)
    made = c.reshape(repeated, c.result.sizes)
    return c.copy(made) if made.id == self.id else made


def repeat_interleave(
    c: Lowering, self: Value, repeats: int, dim: int | None = None, **_: Arg
) -> Value:
    decline_if(dim is None or not isinstance(repeats, int), "flattened or symbolic")
    axis = c.axis(dim, self)
    apart = (*self.sizes[: axis + 1], 1, *self.sizes[axis + 1 :])
    wide = (*self.sizes[: axis + 1], repeats, *self.sizes[axis + 1 :])
    return c.reshape(c.expand(c.reshape(self, apart), wide), c.result.sizes)


def pixel_shuffle(c: Lowering, self: Value, upscale_factor: int) -> Value:
    *lead, channels, height, width = self.sizes
    r, n = upscale_factor, len(lead)
    x = c.reshape(self, (*lead, channels // (r * r), r, r, height, width))
    x = c.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return c.reshape(x, c.result.sizes)


def triangle(name: str) -> Callable:
    """A row of tril (columns up to row + diagonal) or triu (columns from there)."""

    def row(c: Lowering, self: Value, diagonal: int = 0) -> Value:
        rows, columns = self.sizes[-2:]
        across = c.expand(c.iota(1, (1, columns)), (rows, columns))
        down = c.expand(c.iota(0, (rows, 1), diagonal), (rows, columns))
        kept = across <= down if name == "tril" else across >= down
        zero = c.full(0, (), self.dtype)
        return c.where(kept, self, zero)

    return row


ROWS: dict[str, Callable] = {
    **{f"aten.{name}": reshape for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default",
        "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints", "view_copy.default",
        "_reshape_copy.default", "unsqueeze_copy.default", "squeeze_copy.dim",
    )},
    "aten.expand.default": expand, "aten.expand_copy.default": expand,
    "aten.transpose.int": transpose, "aten.t.default": transpose_matrix,
    "aten.permute.default": permute, "aten.diagonal.default": diagonal,
    "aten.unfold.default": unfold,
    "aten.slice.Tensor": slice_axis, "aten.select.int": select,
    "aten.slice_scatter.default": slice_scatter, "aten.select_scatter.default": select_scatter,
    "aten.cat.default": cat, "aten.stack.default": stack, "aten.constant_pad_nd.default": pad,
    "aten.flip.default": flip, "aten.roll.default": roll, "aten.repeat.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.tril.default": triangle("tril"), "aten.triu.default": triangle("triu"),
}
