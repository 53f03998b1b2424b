"""Sums over rows, where one loop walks the rows and reduces each: what is added up, and where it goes.

    i0:256 i1:128 i2:4096 (walked)      %5: f32[256, 1, 4096] = sum(%4: f32[256, 128, 4096], axes=(1,))
      ->  element [i0, i1, i2] of %4 is added to element [i0, 0, i2] of %5

Such a sum is a store of the loops that compute %4 (`ir.loop`: a store that folds), so that a norm's
backward reads its operands once for the gradients of its input, weight and bias.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preheat.ir.graph import Op
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType
from preheat.schedule.affine import ZERO, Affine, Space, axis, reshape_index

Index = tuple[Affine, ...]


class Fold(NamedTuple):
    """Element `position` of value `source` is added to element `index` of the sum."""

    source: int
    position: Index
    index: Index


def folded(
    value: int, axes: Sequence[tuple[str, Dim, bool]], ops: Mapping[int, Op],
    types: Mapping[int, TensorType], space: Space,
) -> Fold | None:
    """What `value` adds up in loops over `axes` (name, extent, whether it is walked inside the
    rows); None if it is no sum over their rows."""
    op, rows = ops.get(value), [a for a in axes if not a[2]]
    if op is None or op.name != "sum" or op.type.dtype != "float32" or len(rows) == len(axes):
        return None
    source, whole = op.args[0].id, tuple(extent for _, extent, _ in axes)
    sizes = types[source].sizes
    is_row = product(op.type.sizes) == product(extent for _, extent, _ in rows)
    if is_row or product(sizes) != product(whole):
        return None
    position = reshape_index(tuple(axis(name) for name, _, _ in axes), whole, sizes, space)
    reduced = set(op.attr("axes"))
    summed = {key for k in reduced for key in position[k].keys()}
    kept = {key for k, part in enumerate(position) if k not in reduced for key in part.keys()}
    if not summed <= {name for name, _, _ in rows} or summed & kept:
        return None
    index = tuple(
        ZERO if k in reduced else part for k, part in enumerate(position)
        if op.attr("keepdim") or k not in reduced)
    return Fold(source, position, index)
