"""Large products of 16-bit floats whose rows begin anywhere in memory, as kernels of a GPU that copies tiles.

    kernel over i0:4096, i1:50257             for block in range(program, 6304, programs):     one program a multiprocessor
      stage j:768                               at_y, phase = ..; at_x = ..
        v5 = sum of load p0[i0*768 + j]    ->   for start in range(0, 768, 64):
                 times load p1[i1*768 + j]        total = dot(left.load([at_y, phase * 768 + start]), right.load(..), total)
      stage                                     for each 64 of 256 columns:
        store p2[i0*50257 + i1] = v5              out.store([at_y, phase * 50257 + at_x], ..)

The copy engine of a GPU (`Device.tiles_ahead`) loads and stores tiles that begin at a multiple of 16 bytes, of rows that are a multiple
of 16 bytes apart; else it stops the program by an illegal instruction. Every eighth row of the result begins at the same place between
two such multiples. So a block has rows that are eight apart, of the matrix whose rows are eight of the result's, and
columns that begin where 16 bytes do in its rows: from `begin` on, of 0 to 7. At both ends of a row up to 7 columns remain; programs
that get no last block compute those, rows as they come, and store them one by one. They do so at the end: programs that run in
step share what they load.

The product is a loop over blocks, whose loads begin while the block before is stored. What is done besides the product is computed for 64
columns at a time, as their memory is: for all at once neither registers nor shared memory would do.

Requires that operands lie along the sum, at multiples of 16 bytes, in blocks of DEPTH. Guarantees: each element is added up in
one order, whichever program has it; blocks that meet at the ends of the matrix store what is equal.
Source: CUDA C++ Programming Guide 13.0, "Tensor Memory Accelerator"; Triton's persistent matmul tutorial.
"""

import copy
from dataclasses import replace
from typing import Any

from preheat.generate.tiles import Tile
from preheat.ir.devices import Device
from preheat.ir.interleaved import BLOCKS, COLUMNS, DEPTH, PERIOD, Block, block_of
from preheat.ir.loop import Axis, LoopOp
from preheat.ir.scalar import Scalar
from preheat.ir.types import DTYPES, HALVES

PARTS = 4  # of a block's columns, each computed and stored by itself
EDGE_ROWS, EDGE_COLUMNS, EDGE_DEPTH = 128, 16, 128
GROUP = 4  # blocks of rows of each phase that are visited together
SHARED_BYTES = 2048  # of a program, besides tiles: barriers, descriptors while they are made


def interleaved_tile(product: Any, device: Device) -> Tile | None:
    """The tile of a product (`products.Product`) of known sizes that is computed so; None for another one."""
    rows = product.down[0].extent if is_interleaved(product) else 0
    block = None if isinstance(rows, Scalar) else block_of(rows)
    return tile_of(product, block, device) if block is not None and _fits(block, product, device) else None


def interleaved_tiles(product: Any, device: Device) -> list[tuple[Tile, int]]:
    """The tiles of a product for any number of rows, each with the fewest rows that it is for; the first that fits is the best."""
    if not is_interleaved(product):
        return []
    return [(tile_of(product, block, device), block.least) for block in BLOCKS if _fits(block, product, device)]


def _fits(block: Block, product: Any, device: Device) -> bool:
    loaded = (block.rows + COLUMNS) * DEPTH * block.stages * DTYPES[product.dtype].itemsize
    stored = block.rows * COLUMNS // PARTS * DTYPES[store_of(product).dtype].itemsize
    is_wide = product.along[0].extent >= COLUMNS + PERIOD
    return device.tiles_ahead > 0 and is_wide and loaded + stored + SHARED_BYTES <= device.shared_bytes


def tile_of(product: Any, block: Block, device: Device) -> Tile:
    return Tile(
        (), product.down, product.along, block.rows, COLUMNS, False, block.warps, 1, device.tiles_ahead, DEPTH,
        block.stages, is_interleaved=True)


def is_interleaved(product: Any) -> bool:
    """Whether its operands and its result lie as is required, the result's rows anywhere."""
    if product.batch or any(len(axes) != 1 for axes in (product.down, product.along, product.walked)):
        return False
    (down,), (along,), (walked,) = product.down, product.along, product.walked
    stores = [op for op in product.rest if op.op == "store"]
    if len(stores) != 1 or any(op.op == "check" for op in product.rest) or product.dtype not in HALVES:
        return False
    if DTYPES[stores[0].dtype].itemsize not in (2, 4):  # PERIOD elements of a byte are not 16
        return False
    if any(isinstance(axis.extent, Scalar) for axis in (along, walked)):
        return False
    out, columns = stores[0].index, along.extent
    is_out = out.base == 0 and dict(out.terms) == {down.name: columns, along.name: 1} and stores[0].mask is None
    return (
        is_out and columns % PERIOD != 0 and walked.extent % DEPTH == 0
        and is_operand(product.left, down.name, walked) and is_operand(product.right, along.name, walked))


def store_of(product: Any) -> LoopOp:
    (store,) = [op for op in product.rest if op.op == "store"]
    return store


def is_operand(side: tuple[LoopOp, ...], outer: str, walked: Axis) -> bool:
    """Whether an operand is memory with rows along the walk, at multiples of 16 bytes, that do not overlap: what a row has behind
    its end is not loaded."""
    if len(side) != 1 or side[0].op != "load" or side[0].mask is not None:
        return False
    index = side[0].index
    strides = dict(index.terms)
    numbers = (index.base, strides.get(outer, 0))
    is_aligned = all(isinstance(n, int) and n % PERIOD == 0 for n in numbers)
    is_along = strides.keys() == {outer, walked.name} and strides[walked.name] == 1
    return is_aligned and is_along and strides[outer] >= walked.extent


# ---------------------------------------------------------------------------- text
def write_interleaved(writer: Any, product: Any) -> None:
    """The whole kernel (`writer`: of `triton`)."""
    tile, emit = writer.tile, writer.emit
    (down,), (along,), (walked,) = product.down, product.along, product.walked
    rows, columns, chunk = down.extent, along.extent, tile.columns // PARTS
    left, right = product.left[0], product.right[0]
    a_step, b_step = left.index.stride(down.name), right.index.stride(along.name)
    store = store_of(product)
    if isinstance(rows, Scalar):
        emit(f"rows = {writer.number(rows)}.to(tl.int32)")
        rows = "rows"
    high = _quotient(rows, PERIOD)
    described = (
        ("left", left, (high, PERIOD * a_step), (tile.rows, tile.depth)),
        ("right", right, (columns, b_step), (tile.columns, tile.depth)),
        ("out", store, (high, PERIOD * columns), (tile.rows, chunk)))
    for name, op, (many, step), block in described:
        emit(f"{name} = tl.make_tensor_descriptor({_base(op)}, [{many}, {step}], [{step}, 1], {list(block)})")
    emit("programs = tl.num_programs(0)")
    emit(f"blocks = {_quotient(rows, PERIOD * tile.rows)} * {PERIOD * -(-columns // tile.columns)}")
    flat = ", flatten=True" if tile.ahead > 1 else ""  # the next block's loads begin before this one's end
    emit(f"for block in tl.range(tl.program_id(0), blocks, programs{flat}):")
    writer.depth += 1
    _write_position(writer, rows, columns)
    emit(f"total = tl.zeros([{tile.rows}, {tile.columns}], tl.float32)")
    emit(f"for start in range(0, {walked.extent}, {tile.depth}):")
    emit(f"    a = left.load([at_y, phase * {a_step} + start])")
    emit("    total = tl.dot(a, right.load([at_x, start]).T, total)")
    _write_parts(writer, tile.rows, tile.columns)
    emit(f"y = (at_y + tl.arange(0, {tile.rows})[:, None]) * {PERIOD} + phase")
    for number in range(PARTS):
        at = f"at_x + {number * chunk}" if number else "at_x"
        emit(f"x = {at} + tl.arange(0, {chunk})[None, :]")
        value = _written(_part(writer, product, tile.rows, chunk, f"total_{number}"), product)
        emit(f"out.store([at_y, phase * {columns} + {at}], {value})")
    writer.depth -= 1
    _write_edges(writer, product, store, rows)


def _write_parts(writer: Any, rows: int, columns: int) -> None:
    """The columns of `total` in PARTS: total_0, total_1, .."""
    for whole, first, second in (
        ("total", "low", "high"), ("low", "total_0", "total_1"), ("high", "total_2", "total_3")):
        each = columns // 2 if whole == "total" else columns // PARTS
        writer.emit(f"{first}, {second} = {whole}.reshape({rows}, 2, {each}).permute(0, 2, 1).split()")


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
    emit, size, many = writer.emit, EDGE_ROWS, EDGE_COLUMNS
    columns, inner = (axes[0].extent for axes in (product.along, product.walked))
    depth = EDGE_DEPTH if inner % EDGE_DEPTH == 0 else writer.tile.depth
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
    value = part.values[store_of(product).args[0]]
    return part.whole(value.name, value)
