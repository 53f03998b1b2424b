"""Positions of two axes of which neither size is known, from one position along both: a division for a program,
and what is left by a product.

    x = program * 1024 + tl.arange(0, 1024)           row = (program * 1024) // s1
    i0 = x // s1                                      rest = program * 1024 - row * s1 + tl.arange(0, 1024)
    i1 = x % s1                               ->      turn = ((rest.to(tl.float32) + 0.5) * (1.0 / s1)).to(tl.int32)
                                                      i0 = row + turn;  i1 = rest - turn * s1

A division of each element takes 20 instructions and more. A quotient is half a position away from the next whole number at
the least, by which float32 is not wrong for rows of less than LONG_ROW: it rounds the inverse and the product by three parts
of 2 ** 23. Of longer rows a program has two at the most.

Requires positions of 32 bits.
"""

from collections.abc import Iterator
from typing import Any

from preheat.generate.tiles import Tile
from preheat.ir.scalar import Scalar

LONG_ROW = 1 << 20


def is_parted(tile: Tile) -> bool:
    """Whether all positions of a program are along one dimension of two axes, the last of which has an open size."""
    return not tile.down and not tile.grid and len(tile.along) == 2 and isinstance(tile.along[1].extent, Scalar)


def parts_of(writer: Any) -> Iterator[tuple[tuple[str, str], str]]:
    """Writes (by `writer`, of `triton`) the positions along both axes; what each is divided by, what it is the
    remainder by, and its name."""
    size, x, emit = writer.count(writer.tile.along[1:]), writer.names["x"], writer.emit
    start, columns = writer.start, writer.tile.columns
    emit(f"row = ({start}) // {size}")
    emit(f"rest = ({start} - row * {size} + tl.arange(0, {columns})).to(tl.int32)")
    emit(f"near = ((rest.to(tl.float32) + 0.5) * (1.0 / {size})).to(tl.int32)")
    emit(f"turn = tl.where({size} < {LONG_ROW}, near, (rest >= {size}).to(tl.int32))")
    emit(f"{x}_0_1 = row + turn")
    emit(f"{x}_1_2 = rest - turn * {size}")
    yield (size, ""), f"{x}_0_1"
    yield ("1", size), f"{x}_1_2"


def row_of(writer: Any) -> str:
    """Writes the row of a program all of which is in one; the question whether it is."""
    size, columns = writer.count(writer.tile.along[1:]), writer.tile.columns
    writer.emit(f"first = ({writer.start}) // {size}")
    writer.emit(f"before = {writer.start} - first * {size}")
    writer.emit(f"within = before + tl.arange(0, {columns})")
    writer.know(("position", "x", size, ""), "first", "")
    writer.know(("position", "x", "1", size), "within", "x")
    return f"before + {columns} <= {size}"
