"""Rungs: the tiles of a kernel whose sizes are arguments. Few serve all sizes; a launch takes the first that fits.

    softmax over i0:n2, stages j:n3     rows of 16, 128 at once; ..; of 64, 32 at once; of at most 64, 32 at once; ..
                                        of more than 4096 and at most 6144; ..; of any length, block by block
    add over i0:(n2 * n3)               1024 at once
    where over i0:n2, i1:n3             down (i0), 4 at once; along (i1), 256; of lines that begin anywhere along both, 1024

What a static size decides (`tiles`) is decided here by how long an axis was in a real call, wherever both
ways are right. A number of rows that is not known is taken to be large: with few of them a launch is
short in any case. Sizes that are no arguments are used as there.
"""

from dataclasses import replace
from typing import NamedTuple

from preheat.base.errors import Unsupported
from preheat.generate import tiles
from preheat.generate.moments import has_moments, in_one_walk
from preheat.generate.online import walks
from preheat.generate.tiles import (
    BLOCK_ELEMS, COLUMN_BYTES, COLUMNS_AHEAD, DEEP, HELD_COLUMNS, PROGRAM_ELEMS, VECTOR_BYTES, Tile,
    accesses, extent_of, flat_elems, is_far_tile, loaded_bytes, longest_held, parts_apart, power_of_two, row_elems,
    square, warps_of,
)
from preheat.ir.devices import Device, device_of
from preheat.ir.hinted import ends, estimate, holds
from preheat.ir.loop import Axis, Kernel
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import DTYPES

# Rows of fewer elements are as those, but for the very short ones: 1048576 x 16 took 1.2 to 2.9 times as long as with
# sizes known.
SHORTEST_ROW, VERY_SHORT_ROW = 64, 16
# From here on half as many sizes share a tile, since masked elements cost as others do: a softmax of 8191 columns
# has 80 registers a thread then, not 107, of 8192 floats 80, not 102, and so three programs a multiprocessor.
HALVED_ROW = 512
HELD_ROWS, WORD_BYTES = (256, 512), 4  # of columns that are walked twice
FEW_ROWS = 16  # of columns: so few have a tile of their own where there were no more in a real call
# Of a thread where squares of 16 bits are summed with their mean: with 72 not all programs of 32768 x 1024 have room at once.
COLUMN_REGISTERS = 64
ROW_STEPS = 16  # rows this much shorter and longer than the one of a real call have tiles of their own
MOST_PARTS = 2048  # rows that are never longer are parts of others: a tile for few, some and all of them
LINE_ELEMS = (32, 256)  # of a line that a program has part of: least and most
# Lines of no more elements have a tile of their own; where there are long ones in a real call, these have, too.
# Shorter ones would be masked but for less than half: 1048576 x 16 took 1.25 times as long in float32, 1.8 in 16 bits.
SHORTEST_LINE = 33
SHORT_LINES, LONG_LINE = (64, 128), 4096
MOST_ALIGNED = 8  # elements; bytes and bools alone would have 16


class Rung(NamedTuple):
    """least, most: elements of a row that it is for; a most of 0 for any. A row of just so many elements as the
    tile has needs no mask: where both are that number. few: rows that it is for, 0 for any number."""

    tile: Tile
    least: int = 0
    most: int = 0
    few: int = 0


def rungs(kernel: Kernel, target: Target) -> list[Rung]:
    """The tiles of `kernel`, the first that fits is the best. Raises Unsupported for sums over rows that one
    loop walks, whose parts have to be known."""
    device = device_of(target.arch)
    walked = next((stage.axes for stage in kernel.stages if stage.axes), ())
    if any(op.how for op in accesses(kernel)):
        raise Unsupported("symbolic", f"{kernel.name} sums over a number of rows that is not known")
    if not walked:
        turned = square(kernel)
        return [Rung(turned)] if turned else _lines(kernel, device)
    if kernel.lane is not None:
        return _short_columns(kernel, walked, device)
    return _rows(kernel, walked, device)


def _rows(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> list[Rung]:
    count = walks(in_one_walk(kernel))
    is_once = count == 1  # then nothing is gained by holding the row
    longest = 2 * BLOCK_ELEMS if is_once else longest_held(kernel, count)
    length, rows = extent_of(walked), extent_of(kernel.axes)
    near = power_of_two(estimate(length))
    lengths, is_known, is_part = [near], not isinstance(length, Scalar), False
    if not is_known:
        least, most = max(SHORTEST_ROW, near // ROW_STEPS), max(SHORTEST_ROW, near * ROW_STEPS)
        fewest, greatest = ends(length)
        is_part = greatest is not None and greatest <= MOST_PARTS
        if is_part:
            lengths = [n for n in (SHORTEST_ROW, 8 * SHORTEST_ROW) if n < greatest] + [power_of_two(greatest)]
        else:
            lengths = [n for k in range(31) if max(least, fewest or 0) <= (n := 1 << k) <= most]
            lengths = [VERY_SHORT_ROW, *lengths] if VERY_SHORT_ROW >= (fewest or 0) else lengths
    found: list[Rung] = []
    for size in lengths:
        if size <= longest:
            at_once = max(1, PROGRAM_ELEMS // size)
            if not isinstance(rows, Scalar):
                at_once = min(at_once, power_of_two(rows))
            is_alone = not isinstance(rows, Scalar) and rows * tiles.FEW_ROWS <= device.units
            warps = warps_of(at_once * size, 8 if is_alone else row_elems(at_once, size), device)
            tile = Tile((), kernel.axes, walked, at_once, size, False, warps)
            if is_known:
                return [Rung(tile)]
            least = found[-1].most if found else 0
            if size == lengths[-1] and is_part:
                return [*found, Rung(tile)]
            found += [] if is_part else [Rung(tile, size, size)]
            if least and size >= HALVED_ROW and not is_part:
                found.append(Rung(tile, least, size - size // 4))
                least = size - size // 4
            found.append(Rung(tile, least, size))
    short, long = (
        Tile((), kernel.axes, walked, 1, columns, True, warps)
        for columns, warps in ((BLOCK_ELEMS, 8), (4 * BLOCK_ELEMS, 32)))
    if is_once and has_moments(in_one_walk(kernel)):  # half as long: all programs of rows in parts have room at once
        alone = [Rung(long, few=device.units)] if isinstance(rows, Scalar) else []
        return [*found, *alone, Rung(replace(short, columns=short.columns // 2, warps=short.warps // 2))]
    if is_once:
        return [*found, Rung(short)]
    is_far = not is_known and lengths[-1] < longest  # rows much longer than in the real call, but not long
    return [*found, *([Rung(short, 0, longest)] if is_far else []), Rung(long)]


def _short_columns(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> list[Rung]:
    """Of sums down columns, as the second step of longer ones is, short ones are taken at once, by fewer threads: of 64
    parts a tile of 256 would be masked but for a quarter, of a few rows one of 64."""
    tile, length = _columns(kernel, walked, device), extent_of(walked)
    found = _held_columns(kernel, tile, device) if tile.is_looped and isinstance(length, Scalar) else []
    found += _few_columns(tile, device)
    if tile.is_looped and isinstance(length, Scalar) and estimate(length) <= FEW_ROWS:
        warps = warps_of(tile.rows * FEW_ROWS, 16, device)
        found.append(Rung(Tile(tile.grid, tile.down, walked, tile.rows, FEW_ROWS, False, warps), 0, FEW_ROWS))
    if tile.is_looped and tile.columns > DEEP and isinstance(extent_of(walked), Scalar):
        for deep in (DEEP, 4 * DEEP, *HELD_ROWS[1:]) if _is_walked_twice(kernel) else (DEEP, 4 * DEEP):
            warps = warps_of(tile.rows * deep, 16, device)
            found.append(Rung(Tile(tile.grid, tile.down, walked, tile.rows, deep, False, warps), 0, deep))
    return [*found, Rung(tile)]


def _few_columns(tile: Tile, device: Device) -> list[Rung]:
    """Where programs would be few, twice as many of half as many columns each, as where sizes are known: a variance of 262144
    x 64 in 16 bits took 16.5 us on an H200, 13.1 so."""
    few = 2 * device.units * tile.rows
    if not tile.is_looped or not tile.grid or 2 * tile.rows != COLUMN_BYTES:
        return []
    return [Rung(replace(tile, rows=tile.rows // 2, columns=2 * tile.columns), few=few)]


def _held_columns(kernel: Kernel, tile: Tile, device: Device) -> list[Rung]:
    """Of columns that are walked twice, parts that one program has in its registers: a variance of 32768 x 1024 floats
    took 71 us where means came first, 45 so. Those of 16 bits are as fast from L2 again."""
    is_held = tile.grid and _is_walked_twice(kernel) and loaded_bytes(kernel)[0] >= WORD_BYTES
    found: list[Rung] = []
    for deep in HELD_ROWS if is_held else ():
        rows = min(tile.rows, HELD_COLUMNS // deep)
        held = Tile(tile.grid, tile.down, tile.along, rows, deep, False, warps_of(rows * deep, 32, device))
        found += [Rung(held, deep, deep), Rung(held, 0, deep)]
    return found


def _is_walked_twice(kernel: Kernel) -> bool:
    return walks(in_one_walk(kernel)) > 1


def _columns(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> Tile:
    columns, length = extent_of(kernel.axes), extent_of(walked)
    at_once, near = max(16, COLUMN_BYTES // loaded_bytes(kernel)[0]), estimate(columns)
    is_second = isinstance(length, Scalar) and len(kernel.axes) == 1  # of parts, or there is no other
    if is_second or not isinstance(columns, Scalar):
        while at_once > 16 and -(-near // at_once) < 2 * device.units:
            at_once //= 2
    if not isinstance(columns, Scalar):
        at_once = min(at_once, power_of_two(columns))
    is_half = at_once * 2 == COLUMN_BYTES
    is_alone = is_second and -(-near // at_once) <= device.units  # what counts is how soon a program is done
    deep = DEEP // 2 if is_half else 4 * DEEP if is_alone else DEEP
    deep = deep if isinstance(length, Scalar) else min(power_of_two(length), deep)
    is_looped = isinstance(length, Scalar) or deep < length
    is_masked = isinstance(columns, Scalar)  # a load that may not happen is waited for before the next one
    warps, ahead = warps_of(at_once * deep, 16, device), COLUMNS_AHEAD if is_looped and (is_half or is_masked) else 1
    grid, down = parts_apart(kernel, at_once)
    is_tight = is_looped and loaded_bytes(kernel)[0] < WORD_BYTES and has_moments(in_one_walk(kernel))
    most = COLUMN_REGISTERS if is_tight else 0
    return Tile(grid, down, walked, at_once, deep, is_looped, warps, 1, ahead, registers=most)


def parted(kernel: Kernel, target: Target) -> Rung | None:
    """Of a kernel that takes lines: all axes along one dimension, with a division by the length of a line
    (`quotients`). So lines that begin anywhere are loaded several elements at once."""
    device, walked = device_of(target.arch), any(stage.axes for stage in kernel.stages)
    if walked or square(kernel) or len(kernel.axes) != 2 or not isinstance(kernel.axes[1].extent, Scalar):
        return None
    at_once, each = flat_elems(kernel)
    tile = Tile((), (), kernel.axes, 1, at_once, False, warps_of(at_once, each, device))
    return None if is_far_tile(tile) else Rung(tile)


def _lines(kernel: Kernel, device: Device) -> list[Rung]:
    """All axes along one dimension where that needs no division by a size, else lines of the last ones, several short
    ones at once."""
    at_once, each = flat_elems(kernel)
    first = max((k for k, axis in enumerate(kernel.axes) if isinstance(axis.extent, Scalar)), default=0)
    if first == 0:
        return [Rung(Tile((), (), kernel.axes, 1, at_once, False, warps_of(at_once, each, device)))]
    down, along = kernel.axes[:first], kernel.axes[first:]
    least, most = LINE_ELEMS
    length, found = extent_of(along), []
    near = max(least, min(most, power_of_two(estimate(length))))
    widths = {near: 0}  # of parts of lines, and of which lines at the most
    if isinstance(length, Scalar):
        widths = {**{n: n for n in SHORT_LINES if n < near}, near: 0}
        if estimate(length) >= LONG_LINE:
            widths = {**widths, most: LONG_LINE, at_once: 0}
    for columns, longest in widths.items():
        rows = max(1, at_once // columns)
        tile = Tile((), down, along, rows, columns, False, warps_of(rows * columns, each, device))
        found.append(Rung(tile, 0, longest))
    return found


def alignments(kernel: Kernel, tile: Tile) -> list[tuple[tuple[Dim, ...], int]]:
    """What decides whether threads load several neighbours at once: extents whose product should be a
    multiple of a number of elements, and is not whatever the sizes are."""
    found: dict[tuple[str, ...], tuple[tuple[Dim, ...], int]] = {}
    sizes = [DTYPES[op.dtype].itemsize for op in accesses(kernel)]
    each = min(MOST_ALIGNED, VECTOR_BYTES // min(sizes, default=VECTOR_BYTES))

    def want(dims: tuple[Dim, ...]) -> None:
        is_open = any(isinstance(dim, Scalar) for dim in dims)
        if is_open and not holds("eq", product(dims) % each, 0):
            found[tuple(map(str, dims))] = dims, each

    walked = {axis.name for stage in kernel.stages for axis in stage.axes}
    for op in accesses(kernel):
        if walked and walked.isdisjoint(term for term, _ in op.index.terms):
            continue  # once a row
        for axes, at_once in ((tile.down, tile.rows), (tile.along, tile.columns)):
            near = next((axis.name for axis in axes if _is_one(op.index.stride(axis.name))), None)
            if near is None or at_once == 1:
                continue
            want((op.index.base,))
            for term, stride in op.index.terms:
                if term != near:
                    want((stride,))
            if tile.down or tile.grid:  # else whole programs need no mask
                want(tuple(axis.extent for axis in axes if axis.extent != 1))
    return list(found.values())


def _is_one(stride: Dim) -> bool:
    return not isinstance(stride, Scalar) and stride == 1
