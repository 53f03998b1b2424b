"""Positions of two axes of which neither size is known, from one position along both: a division for a program,
and what is left by a product.

    x = program * 1024 + tl.arange(0, 1024)           row = (program * 1024) // s1
    i0 = x // s1                                      rest = program * 1024 - row * s1 + tl.arange(0, 1024)
    i1 = x % s1                               ->      turn = (rest.to(tl.float32) * (1.0 / s1)).to(tl.int32)
                                                      i0 = row + turn;  i1 = rest - turn * s1     and corrected by one

A division of each element takes 20 instructions and more. `turn` is at most the elements of a program, so the product
is off by less than one, whatever the size is: float32 has rounded `rest` and the inverse by a part of 2 ** 24 each.

Requires positions of 32 bits.
"""

from collections.abc import Iterator
from typing import Any

from preheat.generate.tiles import Tile
from preheat.ir.scalar import Scalar


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
    emit(f"turn = (rest.to(tl.float32) * (1.0 / {size})).to(tl.int32)")
    emit(f"turn = turn - (rest < turn * {size}).to(tl.int32)")
    emit(f"turn = turn + (rest >= (turn + 1) * {size}).to(tl.int32)")
    emit(f"{x}_0_1 = row + turn")
    emit(f"{x}_1_2 = rest - turn * {size}")
    yield (size, ""), f"{x}_0_1"
    yield ("1", size), f"{x}_1_2"
