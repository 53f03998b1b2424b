"""Blocks of products whose rows begin anywhere: what the schedule counts on and the generator makes.

    block_of(4096)     Block(128, ..)        a program has 128 rows, each the eighth after the one before
    excess(4096)       1.0                   4100 rows: 1.21, for 513 rows of one kind are nine blocks of 64

Rows that are PERIOD apart begin at the same place between two multiples of 16 bytes, so a block has rows of one such kind.
Measured on an H200, bfloat16, 4096 x 768 x 50257: 466 us by blocks of 128 x 256 of which four steps of the sum are on their way, 487
with three, 570 where a block's loads wait for the end of the one before; 504 by 64 x 256, 498 by 256 x 128; by two products
in one, 256 x 192, 609.
"""

from typing import NamedTuple

PERIOD = 8  # rows, and elements of 16 bits in 16 bytes
DEPTH = 64  # of the sum at once, of which it is a multiple
COLUMNS = 256  # of a block


class Block(NamedTuple):
    """Rows of a block, and how it is computed. cost: of a row, of that of the best."""

    rows: int
    warps: int
    stages: int
    cost: float

    @property
    def least(self) -> int:
        """The fewest rows that a product by such blocks has."""
        return PERIOD * self.rows


BLOCKS = (Block(128, 8, 4, 1.0), Block(64, 4, 5, 1.08))


def block_of(rows: int) -> Block | None:
    """The blocks for so many rows, None if there are too few."""
    fitting = [block for block in BLOCKS if rows >= block.least]
    return min(fitting, key=lambda block: _cost(rows, block), default=None)


def excess(rows: int) -> float:
    """What so many rows cost, of what they would as whole blocks of the best kind. Rows that several blocks have count as often."""
    block = block_of(rows)
    return float("inf") if block is None else _cost(rows, block) / rows


def _cost(rows: int, block: Block) -> float:
    return -(-rows // block.least) * block.least * block.cost
