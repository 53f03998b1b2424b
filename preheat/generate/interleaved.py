"""Large products of 16-bit floats whose rows begin anywhere in memory, as kernels of a GPU that copies tiles.

    kernel over i0:4096, i1:50257             for tile in range(program, 4192, programs):      one program a multiprocessor
      stage j:768                               y, phase = ..; x = ..
        v5 = sum of load p0[i0*768 + j]    ->   for start in range(0, 768, 64):
                 times load p1[i1*768 + j]        a = left.load([y, phase * 768 + start])       every eighth row
      stage                                       wide = dot(a, columns x to x + 128, wide); narrow = dot(a, 64 more, narrow)
        store p2[i0*50257 + i1] = v5            for each 64 columns: out.store([y, phase * 50257 + x], ..)

The copy engine of a GPU (`Device.tiles_ahead`) stores what begins at a multiple of 16 bytes, in rows that are a multiple of 16
bytes apart. Every eighth row of the result begins at the same place between two such multiples. So a program has rows that are
eight apart, of the matrix that is as long as eight rows of the result together, and columns that begin where
16 bytes do in its rows: from `begin` on, of 0 to 7. At both ends of a row up to 7 columns remain; the programs that
would get no last tile compute those, rows as they come, and store them one by one.

A block of 256 x 192 is as large as registers and shared memory of a multiprocessor allow. That counts, since loads from L2 bound it: a
block of 128 x 256 loads 1.3 times as much. Triton's blocks have powers of two for sides, so it is two products, of 128
columns and of 64. What is done besides the product is computed for 64 columns at a time, as their memory is: for all at once the
registers would not do.

Requires that operands lie along the sum, at multiples of 16 bytes, in blocks of DEPTH. Guarantees: each element is added up in
one order, whichever program has it; blocks that meet at the ends of the matrix store what is equal.
Source: CUDA C++ Programming Guide 13.0, "Tensor Memory Accelerator"; Triton's persistent matmul tutorial.
"""

import copy
from dataclasses import replace
from typing import Any

from preheat.generate.tiles import Tile
from preheat.ir.devices import Device
from preheat.ir.loop import LoopOp
from preheat.ir.scalar import Scalar
from preheat.ir.types import HALVES

PERIOD = 8  # rows, and elements of 16 bits in 16 bytes
DEPTH, STAGES, WARPS = 64, 3, 8
EDGE_ROWS, EDGE_COLUMNS = 128, 16
GROUP = 4  # blocks of rows of each phase that are visited together
# Rows of a block, and columns that are computed at a time beside the product, a third of a block's.
BLOCKS = ((256, 64), (128, 128), (64, 128))
# What a block has in shared memory besides the operands: barriers, descriptors while they are made.
SHARED_BYTES = 2048


def interleaved_tile(product: Any, device: Device) -> Tile | None:
    """The tile of a product (`products.Product`) of known sizes that is computed so; None for another one."""
    tiles = interleaved_tiles(product, device)
    if not tiles or isinstance(product.down[0].extent, Scalar):
        return None
    return next((tile for tile in tiles if product.down[0].extent >= least_rows(tile)), None)


def interleaved_tiles(product: Any, device: Device) -> list[Tile]:
    """The tiles of a product for any number of rows, the highest first: each is for `least_rows` and more."""
    if not device.tiles_ahead or not is_interleaved(product):
        return []
    columns, found = product.along[0].extent, []
    for high, chunk in BLOCKS:
        shared = 2 * ((high + 3 * chunk) * DEPTH * STAGES + high * chunk) + SHARED_BYTES
        if columns >= 3 * chunk + PERIOD and shared <= device.shared_bytes:
            found.append(tile_of(product, high, chunk, device.tiles_ahead))
    return found


def least_rows(tile: Tile) -> int:
    """The fewest rows that a product by `tile` has."""
    return PERIOD * tile.rows


def tile_of(product: Any, rows: int, chunk: int, ahead: int = 1, depth: int = DEPTH) -> Tile:
    """The tile of blocks of so many rows by three times `chunk` columns."""
    return Tile(
        (), product.down, product.along, rows, 3 * chunk, False, WARPS, 1, ahead, depth, STAGES, is_interleaved=True)


def is_interleaved(product: Any) -> bool:
    """Whether its operands and its result lie as is required, the result's rows anywhere."""
    if product.batch or any(len(axes) != 1 for axes in (product.down, product.along, product.walked)):
        return False
    (down,), (along,), (walked,) = product.down, product.along, product.walked
    stores = [op for op in product.rest if op.op == "store"]
    if len(stores) != 1 or any(op.op == "check" for op in product.rest) or product.dtype not in HALVES:
        return False
    out, columns = stores[0].index, along.extent
    is_out = out.base == 0 and dict(out.terms) == {down.name: columns, along.name: 1} and stores[0].mask is None
    known = all(isinstance(n, int) for n in (columns, walked.extent))
    return (
        known and is_out and columns % PERIOD != 0 and walked.extent % DEPTH == 0
        and is_operand(product.left, down.name, walked.name) and is_operand(product.right, along.name, walked.name))


def is_operand(side: tuple[LoopOp, ...], outer: str, walked: str) -> bool:
    """Whether an operand is memory with rows along the walk, at multiples of 16 bytes."""
    if len(side) != 1 or side[0].op != "load" or side[0].mask is not None:
        return False
    index = side[0].index
    strides = dict(index.terms)
    numbers = (index.base, strides.get(outer, 0))
    is_aligned = all(isinstance(n, int) and n % PERIOD == 0 for n in numbers) and strides.get(outer, 0) > 0
    return is_aligned and strides.keys() == {outer, walked} and strides[walked] == 1


# ---------------------------------------------------------------------------- text
def write_interleaved(writer: Any, product: Any) -> None:
    """The whole kernel (`writer`: of `triton`)."""
    tile, emit = writer.tile, writer.emit
    (down,), (along,), (walked,) = product.down, product.along, product.walked
    rows, columns, chunk = down.extent, along.extent, tile.columns // 3
    left, right = product.left[0], product.right[0]
    a_step, b_step = left.index.stride(down.name), right.index.stride(along.name)
    (store,) = [op for op in product.rest if op.op == "store"]
    if isinstance(rows, Scalar):
        emit(f"rows = {writer.number(rows)}.to(tl.int32)")
        rows = "rows"
    high = _quotient(rows, PERIOD)
    described = (
        ("left", left, (high, PERIOD * a_step), (tile.rows, tile.depth)),
        ("wide", right, (columns, b_step), (2 * chunk, tile.depth)),
        ("narrow", right, (columns, b_step), (chunk, tile.depth)),
        ("out", store, (high, PERIOD * columns), (tile.rows, chunk)))
    for name, op, (many, step), block in described:
        emit(f"{name} = tl.make_tensor_descriptor({_base(op)}, [{many}, {step}], [{step}, 1], {list(block)})")
    emit("programs = tl.num_programs(0)")
    emit(f"blocks = {_quotient(rows, PERIOD * tile.rows)} * {PERIOD * -(-columns // tile.columns)}")
    _write_edges(writer, product, store, rows)
    flat = ", flatten=True" if tile.ahead > 1 else ""  # the next block's loads begin before this one's end
    emit(f"for block in tl.range(tl.program_id(0), blocks, programs{flat}):")
    writer.depth += 1
    _write_position(writer, rows, columns)
    emit(f"total_wide = tl.zeros([{tile.rows}, {2 * chunk}], tl.float32)")
    emit(f"total_narrow = tl.zeros([{tile.rows}, {chunk}], tl.float32)")
    emit(f"for start in range(0, {walked.extent}, {tile.depth}):")
    writer.depth += 1
    emit(f"a = left.load([at_y, phase * {a_step} + start])")
    emit("total_wide = tl.dot(a, wide.load([at_x, start]).T, total_wide)")
    emit(f"total_narrow = tl.dot(a, narrow.load([at_x + {2 * chunk}, start]).T, total_narrow)")
    writer.depth -= 1
    emit(f"total_0, total_1 = total_wide.reshape({tile.rows}, 2, {chunk}).permute(0, 2, 1).split()")
    emit("total_2 = total_narrow")
    emit(f"y = (at_y + tl.arange(0, {tile.rows})[:, None]) * {PERIOD} + phase")
    for number in range(3):
        at = f"at_x + {number * chunk}" if number else "at_x"
        emit(f"x = {at} + tl.arange(0, {chunk})[None, :]")
        value = _written(_part(writer, product, tile.rows, chunk, f"total_{number}"), product)
        emit(f"out.store([at_y, phase * {columns} + {at}], {value})")
    writer.depth -= 1


def _write_position(writer: Any, rows: int | str, columns: int) -> None:
    """Which rows of which phase, and which columns, a block has: some rows of some columns after each other, so that
    programs that run together share them in L2."""
    tile, emit = writer.tile, writer.emit
    down, along = _quotient(rows, PERIOD * tile.rows), -(-columns // tile.columns)
    first = ""
    if isinstance(down, int) and down <= GROUP:
        emit(f"place = block % {PERIOD * down}")
        emit(f"over = block // {PERIOD * down}")
    else:
        emit(f"first = block // {PERIOD * GROUP * along} * {GROUP}")
        emit(f"many = {PERIOD} * tl.minimum({down} - first, {GROUP})")
        emit(f"within = block % {PERIOD * GROUP * along}")
        emit("place = within % many")
        emit("over = within // many")
        first = "first + "
    emit(f"phase = place % {PERIOD}")
    last = rows + PERIOD - 1 if isinstance(rows, int) else f"{rows} + {PERIOD - 1}"
    emit(f"at_y = tl.minimum(({first}place // {PERIOD}) * {tile.rows}, ({last} - phase) // {PERIOD} - {tile.rows})")
    emit(f"begin = {_begin('phase', columns)}")
    emit(f"at_x = begin + tl.minimum(over * {tile.columns}, ({columns - tile.columns} - begin) // {PERIOD} * {PERIOD})")


def _quotient(number: int | str, each: int) -> int | str:
    """How many times `each` it takes for `number`, or the text of that."""
    return -(-number // each) if isinstance(number, int) else f"(({number} + {each - 1}) // {each})"


def _base(op: LoopOp) -> str:
    """The text of the pointer to where the memory of an access begins."""
    return f"p{op.param} + {op.index.base}" if op.index.base else f"p{op.param}"


def _begin(phase: str, columns: int) -> str:
    """The text of the first column of a row that begins at 16 bytes."""
    return f"({PERIOD} - {phase} * {columns % PERIOD} % {PERIOD}) % {PERIOD}"


def _write_edges(writer: Any, product: Any, store: LoopOp, rows: int | str) -> None:
    """What rows have before `begin` and behind the last block: eight columns at either end, as far as no block has them."""
    emit, depth, size, many = writer.emit, writer.tile.depth, EDGE_ROWS, EDGE_COLUMNS
    columns, inner = (axes[0].extent for axes in (product.along, product.walked))
    left, right = product.left[0], product.right[0]
    a_step, b_step = left.index.stride(product.down[0].name), right.index.stride(product.along[0].name)
    emit("after = (tl.program_id(0) + programs - blocks % programs) % programs")
    emit(f"for block in range(after, {_quotient(rows, size)}, programs):")
    writer.depth += 1
    emit(f"y = tl.minimum(block * {size}, {rows} - {size}) + tl.arange(0, {size})[:, None]")
    emit(f"edge = tl.arange(0, {many})[None, :]")
    emit(f"x = tl.where(edge < {many // 2}, edge, {columns - many} + edge)")
    emit(f"total = tl.zeros([{size}, {many}], tl.float32)")
    emit(f"for start in range(0, {inner}, {depth}):")
    writer.depth += 1
    emit(f"k = start + tl.arange(0, {depth})")
    emit(f"a = tl.load({_base(left)} + (y.to(tl.int64) * {a_step} + k[None, :]))")
    emit(f"b = tl.load({_base(right)} + (x.to(tl.int64) * {b_step} + k[:, None]))")
    emit("total = tl.dot(a, b, total)")
    writer.depth -= 1
    value = _written(_part(writer, product, size, many, "total"), product)
    emit(f"begin = {_begin(f'y % {PERIOD}', columns)}")
    emit(f"is_edge = tl.where(edge < {many // 2}, edge < begin, x >= {columns} - ({columns} - begin) % {PERIOD})")
    emit(f"tl.store({_base(store)} + (y.to(tl.int64) * {columns} + x), {value}, mask=is_edge)")
    writer.depth -= 1


def _part(writer: Any, product: Any, rows: int, columns: int, total: str) -> Any:
    """A writer of what is done besides the product at rows `y` and columns `x`, whose sums are `total`."""
    part = copy.copy(writer)
    part.tile = replace(writer.tile, rows=rows, columns=columns)
    part.same, part.values, part.masks = {}, {}, {}
    part.give(product.total, total)
    return part


def _written(part: Any, product: Any) -> str:
    """Writes all but the store of `product`; the text of what is stored."""
    for op in product.rest:
        if op.op != "store":
            part.operation(op)
    (store,) = [op for op in product.rest if op.op == "store"]
    value = part.values[store.args[0]]
    return part.whole(value.name, value)
