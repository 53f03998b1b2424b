"""Rows abreast: columns are reduced where rows of memory begin anywhere, as if some rows were one.

    %1: f32[1021] = sum(%0: bf16[32767, 1021], axes=(0,))
      ->
    %2: bf16[33554688] = pad(reshape(%0))
    %3: bf16[8, 513, 8168] = reshape(%2)          8 rows, one after another in memory, are one
    %4: f32[8, 1, 8168] = sum(%3, axes=(1,))
    %1: f32[1021] = sum(reshape(%4): f32[64, 1021], axes=(0,))

A row of 1021 elements of 16 bits begins at any of them, so threads load one at a time; 8 such rows begin
at 16 bytes, whatever their length, and a thread loads 8 elements at once. Of a size that is not known
the same serves all: eight rows of 1024 elements are one as well. On an H200, by one plan for all sizes: 34 us
for 32767 x 1021 in 16 bits, not 47, 28 for 4093 x 8191, not 47; with sizes known 12 for 262141 x 67, not 18.
"""

import math
from collections.abc import Callable

from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.hinted import estimate, holds, prefer
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import TensorType, tensor
from preheat.schedule.partial import Cut

VECTOR_BYTES, MOST_ELEMS = 16, 8  # of memory that a thread loads at once
# Fewer are done before it counts. With as many rows as KNOWN_ROWS the last one, which is not all there and loaded one
# element at a time, costs less than it gains where sizes are known: 4093 x 8191 in 16 bits takes 28 us so, not 25.
LEAST_ROWS, LEAST_COLUMNS, KNOWN_ROWS = 256, 16, 16384
ROOM = 8  # how many times as many rows a plan for all sizes may have that does not expect them, or as few


def rows_abreast(type: TensorType, itemsize: int) -> int:
    """How many rows of a matrix are one, so that each such one begins where threads load several elements of
    `itemsize` bytes; 1 where every row does."""
    rows, columns = type.sizes
    each = min(MOST_ELEMS, VECTOR_BYTES // itemsize)
    is_known = not isinstance(columns, Scalar)
    least = KNOWN_ROWS if is_known and not isinstance(rows, Scalar) else LEAST_ROWS
    if holds("eq", columns % each, 0) or estimate(columns) < LEAST_COLUMNS:
        return 1
    if estimate(rows) < least:
        prefer(("le", rows, ROOM * least))
        return 1
    prefer(("ge", rows, least // ROOM))
    return each // math.gcd(each, columns) if is_known else each


def reduce_abreast(
    builder: Builder, op: Op, matrix: TensorType, count: int, parts: Dim, cut: Dim, dtype: str,
    padded: Callable[[Builder, str, int, int, Dim], int],
) -> Cut:
    """Appends the reduction `op` of the columns of `matrix`: so many parts of `cut` times `count` rows each.
    dtype: of partial results; padded: a value whose axis is padded by what changes no result."""
    rows, columns = matrix.sizes
    length, device = product(matrix.sizes), matrix.device
    value = builder.add("reshape", [op.args[0].id], tensor(matrix.dtype, (length,), device=device))
    if dtype != matrix.dtype:
        value = builder.add("cast", [value], tensor(dtype, (length,), device=device), dtype=dtype)
    wide, whole = count * columns, parts * cut * count
    is_padded = isinstance(rows, Scalar) or whole != rows
    if is_padded:
        value = padded(builder, op.name, value, 0, parts * cut * wide)
    value = builder.add("reshape", [value], tensor(dtype, (parts, cut, wide), device=device))
    found = builder.add(
        op.name, [value], tensor(dtype, (parts, 1, wide), device=device), axes=(1,), keepdim=True)
    done = Cut(value, found, (1,), (0,), cut, length if is_padded else None, count)
    value = builder.add("reshape", [found], tensor(dtype, (parts * count, columns), device=device))
    total = tensor(dtype, (1, columns), device=device)
    value = builder.add(op.name, [value], total, axes=(0,), keepdim=True)
    if dtype != op.type.dtype:
        total = tensor(op.type.dtype, (1, columns), device=device)
        value = builder.add("cast", [value], total, dtype=op.type.dtype)
    builder.append(Op("reshape", (Ref(value),), op.results, op.types))
    return done
