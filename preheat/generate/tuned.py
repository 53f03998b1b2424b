"""Which tiles a kernel may have: the one that the rules choose, and those worth measuring.

    choices(kernel, target)     {"128x64x64 warps 4 stages 4": Tile(..), ..}, the rules' own first
    tile_of(kernel, target)     the rules' own

A choice has a text, so that a table can keep it. Where another tile adds up in another order the
results may differ in the last bits (`changes_bits`); elsewhere every tile gives the same ones.
"""

from dataclasses import replace

from preheat.generate import tiles
from preheat.generate.interleaved import interleaved_tile
from preheat.generate.products import LEAST, Product, adds_to_memory, product_of, tiles_of_product
from preheat.generate.rows import side_by_side
from preheat.generate.tiles import Tile, extent_of, power_of_two
from preheat.ir.devices import device_of
from preheat.ir.loop import Kernel
from preheat.ir.plan import Target

MOST_ELEMS_A_THREAD = 128  # more would spill
LONG_ELEMS = 8192  # of a row that may be walked block by block


def tile_of(kernel: Kernel, target: Target) -> Tile:
    """The tile that the rules choose, for a kernel whose sizes are known."""
    product = product_of(kernel)
    if product is not None and not _is_few(kernel, product):
        device = device_of(target.arch)
        return interleaved_tile(product, device) or tiles_of_product(product, device)[0]
    return tiles.tile_of(side_by_side(kernel), target)


def choices(kernel: Kernel, target: Target) -> dict[str, Tile]:
    """By their text, the tiles that are worth measuring; the one that the rules choose is first."""
    if kernel.shared:  # the schedule has said into how many parts rows are cut
        first = tile_of(kernel, target)
        return {text_of(first): first}
    device, product = device_of(target.arch), product_of(kernel)
    found = () if product is None else tiles_of_product(product, device)
    interleaved = None if product is None else interleaved_tile(product, device)
    if interleaved is not None:
        found = (interleaved, *found)
    if product is None or _is_few(kernel, product):
        first = tiles.tile_of(side_by_side(kernel), target)
        found = (first, *found, *(
            tile for tile in _neighbours(first)
            if 1 <= tile.warps <= device.most_warps and _is_sound(tile, device.warp)
            and not adds_to_memory(kernel)))
    return {text_of(tile): tile for tile in found}


def _is_few(kernel: Kernel, product: Product) -> bool:
    """Its rows or columns are few, and computed side by side."""
    side = min(extent_of(product.down), extent_of(product.along))
    return kernel.parallel < len(kernel.axes) and side < LEAST


def text_of(tile: Tile) -> str:
    """A tile in words, the axes apart: those follow from the kernel."""
    if tile.depth:
        how = "summed" if tile.is_sum else f"stages {tile.stages}"
        rows = " of every eighth row" if tile.is_interleaved else ""
        return f"{tile.rows}x{tile.columns}x{tile.depth}{rows} warps {tile.warps} {how}"
    looped = " looped" if tile.is_looped else ""
    return f"{tile.rows}x{tile.columns}{looped} warps {tile.warps}"


def changes_bits(kernel: Kernel) -> bool:
    """Tiles of `kernel` add up in different orders."""
    return any(op.op == "reduce" and op.how in ("sum", "prod") for s in kernel.stages for op in s.body)


def _neighbours(tile: Tile) -> list[Tile]:
    """Tiles with more or fewer warps, and with more or fewer rows or columns at once."""
    found = [replace(tile, warps=tile.warps * 2), replace(tile, warps=tile.warps // 2)]
    if tile.down and not tile.grid and extent_of(tile.down) > 1 and extent_of(tile.along) >= LONG_ELEMS:
        found.append(_other_walk(tile))
    is_flat = not tile.down
    for up, down in ((2, 1), (1, 2)):
        if is_flat and not tile.grid:
            columns = tile.columns * up // down
            found.append(replace(tile, columns=columns))
            found.append(replace(tile, columns=columns, warps=tile.warps * up // down))
        elif tile.rows * up // down >= 1 and not tile.grid and not tile.is_looped:
            rows = min(tile.rows * up // down, power_of_two(extent_of(tile.down)))
            found.append(replace(tile, rows=rows))
    return list(dict.fromkeys(t for t in found if t != tile))


def _other_walk(tile: Tile) -> Tile:
    """A row that a program holds, walked block by block; and the other way round."""
    if tile.is_looped:
        length = power_of_two(extent_of(tile.along))
        return replace(tile, rows=1, columns=length, is_looped=False, warps=max(8, length // 1024))
    return replace(tile, rows=1, columns=tiles.BLOCK_ELEMS, is_looped=True, warps=8)


def _is_sound(tile: Tile, warp: int) -> bool:
    elems = tile.rows * tile.columns
    return tile.columns >= 1 and warp * tile.warps <= elems <= warp * tile.warps * MOST_ELEMS_A_THREAD
