"""The sources of a kernel: one, or several where sizes are arguments, of which a launch takes the first that fits.

    softmax over i0:n2, stages j:n3      rows of 64                                  Source(.., Sizing(..))
                                         rows of at most 64, n3 a multiple of 4
                                         rows of at most 64
                                         rows of 128
                                         ..
"""

from collections.abc import Sequence
from dataclasses import replace

from preheat.generate.interleaved import interleaved_tiles
from preheat.generate.products import product_of
from preheat.generate.rows import side_by_side
from preheat.generate.rungs import SHORTEST_LINE, Rung, alignments, parted, rungs
from preheat.generate.tables import sources_of_table
from preheat.generate.tiles import LEAST_SPREAD, Tile, is_spread
from preheat.generate.sources import Source
from preheat.generate.triton import Writer, source_of
from preheat.ir.devices import device_of
from preheat.ir.loop import Axis, Kernel, is_for_any, sizes_of
from preheat.ir.plan import Sizing, Target
from preheat.ir.scalar import Dim, Scalar

Pairs = Sequence[tuple[tuple[Dim, ...], int]]  # extents, and a number for their product


def sources_of(kernel: Kernel, target: Target, tile: Tile | None = None) -> list[Source]:
    """`kernel` as Triton source: more than one where it takes sizes, for each of them the first that is for
    them (`ir.plan.Sizing`); the last is for all. One that is for any number of elements, and the one that writes its
    table (`tables`). Sizes are hinted (`ir/hinted.py`). Raises Unsupported for a
    kernel that needs to know them."""
    if is_for_any(kernel):
        return sources_of_table(kernel, target)
    if kernel.shared and tile is None:  # the second one waits for nobody
        return [source_of(kernel, target), source_of(replace(kernel, shared=0, is_behind=False), target)]
    if not sizes_of(kernel):
        return [source_of(kernel, target, tile)]
    product = product_of(kernel)
    tiles = [] if product is None else interleaved_tiles(product, device_of(target.arch))
    if tiles:
        return [_interleaved(kernel, tile, least) for tile, least in tiles]
    kernel = side_by_side(kernel)
    found, other = list[Source](), parted(kernel, target)  # for lines that are not aligned, or very short
    for rung in rungs(kernel, target):
        aligned = alignments(kernel, rung.tile)
        is_one = rung.most and rung.least == rung.most
        one = _sized(kernel, rung, aligned) if aligned else None
        if one and other:
            one = replace(one, sizing=replace(one.sizing, least=((_plained(rung.tile.along), SHORTEST_LINE),)))
        found += [one] if one else []
        if one and other and is_spread(kernel) and not rung.most:
            some = _sized(kernel, rung, [])
            found.append(replace(some, sizing=replace(some.sizing, least=((_plained(rung.tile.along), LEAST_SPREAD),))))
        found += [] if aligned and (is_one or other) else [_sized(kernel, rung, [])]
    return [*found, _sized(kernel, other, [])] if other and (found[-1].sizing.multiples or found[-1].sizing.least) else found


def _interleaved(kernel: Kernel, tile: Tile, least: int) -> Source:
    """The source for at least so many rows; its programs share out what there is."""
    rows = tuple(map(_plain, _extents(tile.down)))
    return replace(Writer(kernel, tile).source(), sizing=Sizing((), least=((rows, least),)))


def _sized(kernel: Kernel, rung: Rung, multiples: Pairs) -> Source:
    """The source for rows that fit the rung, and for sizes with `multiples`."""
    tile = rung.tile
    blocks = [*(((axis.extent,), 1) for axis in tile.grid), (_extents(tile.down), tile.rows)]
    if not tile.is_looped:
        blocks.append((_extents(tile.along), tile.columns))
    least, most = ([(_extents(tile.along), count)] if count else [] for count in (rung.least, rung.most))
    if rung.few:
        most.append((_extents((*tile.grid, *tile.down)), rung.few))
    known = {str(dims[0]): n for dims, n in multiples if len(dims) == 1}
    source = Writer(kernel, tile, known, (rung.least, rung.most)).source()
    return replace(source, sizing=Sizing(*(
        tuple((tuple(map(_plain, dims)), count) for dims, count in pairs) for pairs in (blocks, most, multiples, least))))


def _plained(axes: tuple[Axis, ...]) -> tuple[Dim, ...]:
    return tuple(map(_plain, _extents(axes)))


def _extents(axes: tuple[Axis, ...]) -> tuple[Dim, ...]:
    return tuple(axis.extent for axis in axes)


def _plain(dim: Dim) -> Dim:
    """`dim` without hints."""
    return Scalar(dim.op, dim.args, dim.type) if isinstance(dim, Scalar) else dim
