"""Matrix products among kernels: sums over a walk of what depends on rows times what on columns.

    kernel over i0:128, i1:512                       rows (i0), columns (i1), walked (j)
      stage                                          left   v2: bf16 = load p1[i0*256 + j]
        v1 = load p0[i1]                             right  v4: bf16 = load p2[i1*256 + j]
      stage j:256                                    rest   v1, v8 = add v7, v1, store
        v2: bf16 = load p1[i0*256 + j]; v3 = cast v2
        v4: bf16 = load p2[i1*256 + j]; v5 = cast v4
        v6 = mul v3, v5; v7: f32 = reduce sum v6
      stage
        v8 = add v7, v1; store p3[i0*512 + i1] = v8

A program computes a block of rows by columns, `depth` positions of the walk at once, by the matrix
units: 16-bit operands exactly, their products added in float32; float32 that the walk rounds to tf32
likewise (the units themselves would cut it off, which is 7 times as far from the truth); other float32 by float32 arithmetic
("ieee"), each block of the walk added up apart, so that errors grow with its square root
as the library's do. What the operands take besides loads is the prologue, computed for each block;
all that is not in the walk is the epilogue, computed after it, so its loads hold no registers during
the walk. Blocks are visited so that programs that run together share rows and columns in L2.

Small products of float32 are added up as rows are (`Tile.is_sum`): each thread has some positions of the walk of
a few rows and columns, and threads join their sums at the end. What a thread adds up for a block of the usual
kind waits for shared memory at every step: 128 x 256 x 256 takes 5.7 us so, 3.1 as sums (H200, in a graph).

Large ones whose rows begin anywhere are another kind of kernel (`interleaved`).

Guarantees: `product_of` is None for what is not such a sum; the kernel's meaning is the same either
way. Source: Triton's matmul tutorial (the order of blocks); research/gpu.md, G4.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from preheat.generate.interleaved import write_interleaved
from preheat.generate.triton_ops import constant
from preheat.generate.tiles import Tile, extent_of, power_of_two
from preheat.ir.devices import Device
from preheat.ir.loop import Axis, Kernel, LoopOp
from preheat.ir.types import DTYPES, HALVES

LEAST = 16  # of a block's sides: what the matrix units take
GROUP = 8  # blocks of rows that are visited together
MOST_TILES = 10  # that are worth trying
FULL_ELEMS = 128  # results that a thread holds
# rows, columns, depth, warps, stages: what wins somewhere between a layer of 256 and one of 8192
_HALF_TILES = (
    (16, 32, 128, 2, 4), (16, 64, 128, 4, 4), (16, 128, 64, 4, 4), (32, 32, 64, 2, 4),
    (32, 32, 128, 4, 3), (32, 64, 64, 4, 4), (32, 64, 128, 4, 3), (64, 32, 64, 4, 4),
    (64, 64, 64, 4, 4), (64, 64, 128, 4, 3), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
    (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (64, 256, 64, 8, 4), (128, 256, 64, 8, 3),
)
_FLOAT_TILES = (
    (16, 16, 64, 4, 3), (16, 32, 64, 2, 3), (16, 64, 32, 4, 3), (32, 32, 32, 2, 3), (32, 32, 64, 4, 3),
    (32, 64, 32, 4, 3), (64, 32, 32, 4, 3), (64, 64, 16, 4, 3), (64, 64, 32, 8, 3),
    (128, 64, 16, 8, 3),
)
_TILES = {
    "float32": _FLOAT_TILES,
    "tf32": tuple((high, wide, deep // 2, warps, stages) for high, wide, deep, warps, stages in _HALF_TILES)}

_SUM_TILES = ((4, 16, 128, 4), (8, 8, 128, 4), (4, 16, 256, 4), (8, 16, 128, 4), (4, 16, 128, 2))
MOST_UNROLLED = 4  # blocks of the walk
MOST_SUMMED = 1 << 25  # multiplications of a product that is added up as rows are


class Product(NamedTuple):
    """left, right: the ops that make the two operands, the last one the operand; rest: all others, in
    order. batch, down, along, walked: the axes of both, of rows, of columns, of the sum."""

    left: tuple[LoopOp, ...]
    right: tuple[LoopOp, ...]
    total: LoopOp
    rest: tuple[LoopOp, ...]
    batch: tuple[Axis, ...]
    down: tuple[Axis, ...]
    along: tuple[Axis, ...]
    walked: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        """Of the operands: "tf32" if they are float32 that has been rounded."""
        is_rounded = self.left[-1].op == self.right[-1].op == "tf32"
        return "tf32" if is_rounded else self.left[-1].dtype


def product_of(kernel: Kernel) -> Product | None:
    """The product that `kernel` is, with whatever is done to its result, or None."""
    walks = [stage for stage in kernel.stages if stage.axes]
    if len(walks) != 1 or any(op.op == "reduce" for s in kernel.stages for op in s.body if not s.axes):
        return None
    if adds_to_memory(kernel):
        return None
    (walk,) = walks
    totals = [op for op in walk.body if op.op in ("reduce", "store", "check")]
    made = {op.id: op for stage in kernel.stages for op in stage.body if op.id >= 0}
    if len(totals) != 1 or (totals[0].op, totals[0].how, totals[0].dtype) != ("reduce", "sum", "float32"):
        return None
    times = made[totals[0].args[0]]
    if times.op != "times" or times.dtype != "float32":
        return None
    sides = [_closure(value, made) for value in _operands(times.args, made)]
    depends = [_axes_of(side) for side in sides]
    names = {axis.name for axis in walk.axes}
    if any(not names & found for found in depends) or any(_is_effect(op) for s in sides for op in s):
        return None
    batch, one, other = (
        tuple(a for a in kernel.axes if (a.name in depends[0], a.name in depends[1]) == which)
        for which in ((True, True), (True, False), (False, True)))
    if not one or not other or len(batch) + len(one) + len(other) != len(kernel.axes):
        return None
    inside = {op.id for op in walk.body}
    rest = tuple(
        op for stage in kernel.stages for op in stage.body if op.id not in inside or op.op == "store")
    if any(_reads(op) & inside - {totals[0].id} for op in rest):
        return None
    left, right = sides
    if _is_turned(kernel, one, other):
        left, right, one, other = right, left, other, one
    return Product(left, right, totals[0], rest, batch, one, other, walk.axes)


def adds_to_memory(kernel: Kernel) -> bool:
    """Some store joins what is there."""
    return any(op.op == "store" and op.how for stage in kernel.stages for op in stage.body)


def _operands(args: Iterable[int], made: Mapping[int, LoopOp]) -> list[int]:
    """The factors; two of one 16-bit dtype as they are before they are widened."""
    narrow = [made[a].args[0] if made[a].op == "cast" else a for a in args]
    dtypes = {made[v].dtype for v in narrow}
    return narrow if len(dtypes) == 1 and dtypes <= set(HALVES) else list(args)


def _closure(value: int, made: Mapping[int, LoopOp]) -> tuple[LoopOp, ...]:
    """The ops that `value` is computed by, in order, itself last."""
    found: dict[int, LoopOp] = {}
    pending = [value]
    while pending:
        number = pending.pop()
        if number not in found:
            found[number] = made[number]
            pending += _reads(made[number])
    order = {number: place for place, number in enumerate(made)}
    return tuple(found[number] for number in sorted(found, key=order.__getitem__))


def _reads(op: LoopOp) -> set[int]:
    terms = {t for t, _ in op.index.terms if isinstance(t, int)} if op.index else set()
    return {*op.args, *terms, *(() if op.mask is None else (op.mask,))}


def _axes_of(side: Iterable[LoopOp]) -> set[str]:
    found = {op.axis for op in side} - {""}
    for op in side:
        found |= {t for t, _ in op.index.terms if isinstance(t, str)} if op.index else set()
    return found


def _is_effect(op: LoopOp) -> bool:
    return op.op in ("store", "check", "reduce")


def _is_turned(kernel: Kernel, rows: tuple[Axis, ...], columns: tuple[Axis, ...]) -> bool:
    """Results are consecutive along `rows`."""
    stores = [op.index for stage in kernel.stages for op in stage.body if op.op == "store"]
    return any(index.stride(axis.name) == 1 for index in stores for axis in rows) and not any(
        index.stride(axis.name) == 1 for index in stores for axis in columns)


# ---------------------------------------------------------------------------- tiles
def tiles_of_product(product: Product, device: Device) -> tuple[Tile, ...]:
    """The tiles that are worth trying, the most promising first."""
    rows, columns, depth = (
        max(LEAST, power_of_two(extent_of(axes)))
        for axes in (product.down, product.along, product.walked))
    itemsize = DTYPES[product.left[-1].dtype].itemsize
    whole = _whole_depth(product.walked, depth)
    summed = _summed(product) if product.dtype == "float32" else ()
    found: dict[Tile, float] = {}
    for high, wide, deep, warps, stages in _TILES.get(product.dtype, _HALF_TILES):
        high, wide, deep = min(high, rows), min(wide, columns), min(deep, whole)
        stages = min(stages, max(2, -(-depth // deep)))
        tile = Tile(
            product.batch, product.down, product.along, high, wide, False, warps, depth=deep,
            stages=stages)
        if (high + wide) * deep * itemsize * stages <= device.shared_bytes:
            found[tile] = _cost(tile, device)
    return (*summed, *sorted(found, key=found.__getitem__)[: MOST_TILES - len(summed)])


def _summed(product: Product) -> tuple[Tile, ...]:
    """The tiles by which `product` is added up as rows are: a small one whose operands both lie along the walk."""
    rows, columns, inner = map(extent_of, (product.down, product.along, product.walked))
    loads = [op.index for op in (*product.left, *product.right) if op.op == "load"]
    last = product.walked[-1].name
    is_along = len(product.walked) == 1 and all(index.stride(last) in (0, 1) for index in loads)
    if not is_along or rows * columns * inner * extent_of(product.batch) > MOST_SUMMED:
        return ()
    return tuple(dict.fromkeys(
        Tile(
            product.batch, product.down, product.along, min(high, power_of_two(rows)),
            min(wide, power_of_two(columns)), False, warps, depth=min(deep, power_of_two(inner)), is_sum=True)
        for high, wide, deep, warps in _SUM_TILES if min(rows, columns) > 1 and inner >= LEAST))


def _whole_depth(walked: tuple[Axis, ...], depth: int) -> int:
    """The deepest blocks: of several axes, those that stay at one place of all but the last, if it has any."""
    inner = walked[-1].extent & -walked[-1].extent
    return inner if len(walked) > 1 and inner >= LEAST else depth


def _cost(tile: Tile, device: Device) -> float:
    """An estimate to order tiles by: rounds of programs, by what each of them loads and multiplies.

    On an H200 it puts first the best tile of the layers of an MLP, BERT and GPT-2, or one within 15 %.
    """
    rounds, elems = -(-tile.programs // device.units), tile.rows * tile.columns
    is_full = elems >= FULL_ELEMS * device.warp * tile.warps  # no register is left for an epilogue
    return rounds * (elems / 64 + 2 * (tile.rows + tile.columns) + 64) * (1.15 if is_full else 1.0)


# ---------------------------------------------------------------------------- text
def write_kernel(writer: Any, product: Product) -> None:
    """A product, then all that is done besides it (`writer`: of `triton`)."""
    if writer.tile.is_interleaved:
        write_interleaved(writer, product)
        return
    write_positions(writer, product)
    write_product(writer, product)
    writer.give(product.total, f"v{product.total.id}")
    for op in product.rest:
        writer.operation(op)


def write_positions(writer: Any, product: Product) -> None:
    """`y` and `x` of the block that the program computes, and its matrix of a batch."""
    tile = writer.tile
    down, along = (-(-extent_of(axes) // size) for axes, size in (
        (tile.down, tile.rows), (tile.along, tile.columns)))
    writer.emit("program = tl.program_id(0)")
    place = "program"
    if tile.grid:
        writer.emit(f"place = program % {down * along}")
        writer.emit(f"matrix = program // {down * along}")
        place = "place"
    if down <= GROUP:
        writer.emit(f"at_y = {place} % {down}")
        writer.emit(f"at_x = {place} // {down}")
    else:
        writer.emit(f"first = {place} // {GROUP * along} * {GROUP}")
        many = str(GROUP) if down % GROUP == 0 else f"tl.minimum({down} - first, {GROUP})"
        writer.emit(f"at_y = first + {place} % {GROUP * along} % {many}")
        writer.emit(f"at_x = {place} % {GROUP * along} // {many}")
    for dim, axes, size, shape in (
        ("y", tile.down, tile.rows, "[:, None]"), ("x", tile.along, tile.columns, "[None, :]"),
    ):
        writer.emit(f"{dim} = at_{dim} * {size} + tl.arange(0, {size}){shape}")
        writer.bound(dim, extent_of(axes), size)
    rest = "matrix"
    for axis in reversed(tile.grid):
        rest = writer.grid_axis(axis, rest)


def write_product(writer: Any, product: Product) -> None:
    """The product: blocks of the operands, multiplied and added up."""
    tile, total = writer.tile, product.total
    count = extent_of(product.walked)
    a = f"a{total.id}"
    if tile.is_sum:
        _write_sum(writer, product, a, count)
        return
    writer.emit(f"{a} = tl.zeros([{tile.rows}, {tile.columns}], tl.float32)")
    if product.dtype == "float32":  # a zero that the compiler cannot see, or it would add to `a` at once
        writer.emit(f"none = {a} + program * 0.0")
    writer.emit(f"for start in range(0, {count}, {tile.depth}):")
    writer.depth += 1
    *outer, inner = product.walked
    begin, walked = "start", product.walked
    if outer and inner.extent % tile.depth == 0:  # a block stays at one place of the others: of a filter, at a tap
        writer.emit(f"whole = start // {inner.extent}")  # of a remainder Triton knows no divisor, and loads by bytes
        begin, rest, walked = f"(start - whole * {inner.extent})", "whole", (inner,)
        for axis in reversed(outer):
            rest = writer.grid_axis(axis, rest)
        tile = replace(tile, grid=(*tile.grid, *outer))
    at = f"{begin} + tl.arange(0, {tile.depth})"
    writer.emit(f"k = {at}[None, :]")
    writer.emit(f"kt = {at}[:, None]")
    if count % tile.depth:
        writer.emit(f"is_k = k < {count}")
        writer.emit(f"is_kt = kt < {count}")
    masks = {name: f"is_{name}" for name in ("k", "kt") if count % tile.depth}
    rows, columns = writer.masks.get("y"), writer.masks.get("x")
    left = _side(writer, product.left, replace(tile, along=walked, columns=tile.depth), {
        "y": ("y", rows), "x": ("k", masks.get("k"))})
    right = _side(writer, product.right, replace(tile, down=walked, rows=tile.depth), {
        "y": ("kt", masks.get("kt")), "x": ("x", columns)})
    if product.dtype == "float32":
        writer.emit(f'{a} += tl.dot({left}, {right}, none, input_precision="ieee")')
    else:
        precision = "tf32" if product.dtype == "tf32" else "ieee"
        writer.emit(f'{a} = tl.dot({left}, {right}, {a}, input_precision="{precision}")')
    writer.depth -= 1
    writer.emit(f"v{total.id} = {a}")


def _write_sum(writer: Any, product: Product, total: str, count: int) -> None:
    """The product as sums over the walk: of each pair of a row and a column in each thread, then of threads."""
    tile = writer.tile
    ends = {"y": (tile.down, tile.rows, "[:, None, None]"), "x": (tile.along, tile.columns, "[None, :, None]")}
    masks = {dim: f"is_{dim}k" for dim in ends if dim in writer.masks}
    for dim, (axes, size, shape) in ends.items():
        writer.emit(f"{dim}k = at_{dim} * {size} + tl.arange(0, {size}){shape}")
        if dim in masks:
            writer.emit(f"is_{dim}k = {dim}k < {extent_of(axes)}")
    writer.emit(f"{total} = tl.zeros([{tile.rows}, {tile.columns}], tl.float32)")
    steps = "tl.static_range" if count <= MOST_UNROLLED * tile.depth else "range"
    writer.emit(f"for start in {steps}(0, {count}, {tile.depth}):")
    writer.depth += 1
    writer.emit(f"k = start + tl.arange(0, {tile.depth})[None, None, :]")
    if count % tile.depth:
        masks["k"] = "is_k"
        writer.emit(f"is_k = k < {count}")
    walk = replace(tile, along=product.walked, columns=tile.depth)
    within = "k", masks.get("k")
    left = _side(writer, product.left, walk, {"y": ("yk", masks.get("y")), "x": within}, 1)
    right = _side(writer, product.right, replace(walk, down=product.along, rows=tile.columns), {
        "y": ("xk", masks.get("x")), "x": within}, 0)
    writer.emit(f"{total} += tl.sum({left} * {right}, 2)")
    writer.depth -= 1
    writer.emit(f"v{product.total.id} = {total}")


def _side(
    writer: Any, side: tuple[LoopOp, ...], tile: Tile, places: Mapping[str, tuple[str, str | None]],
    spread: int | None = None,
) -> str:
    """A block of an operand: the text of a tensor over rows and walk, or walk and columns, or columns and walk.
    places: of each dimension, the positions and which of them exist. spread: where it has one more dimension,
    of one element."""
    part = copy.copy(writer)
    part.tile, part.names = tile, {dim: name for dim, (name, _) in places.items()}
    part.is_flat, part.spread = False, spread
    part.stride = {axis.name: axis.extent for axis in (*tile.grid, *tile.down, *tile.along)}
    part.same = {key: value for key, value in writer.same.items() if key[0] == "at"}
    part.values = {}
    part.masks = {dim: mask for dim, (_, mask) in places.items() if mask is not None}
    for op in side:
        part.operation(op)
    value = part.values[side[-1].id]
    text = part.whole(value.name, value)
    walked = [part.masks[dim] for dim, (name, _) in places.items() if name in ("k", "kt") and dim in part.masks]
    if walked and (side[-1].op != "load" or side[-1].mask is not None):
        zero = constant(0, side[-1].dtype)
        text = f"tl.where({walked[0]}, {text}, {zero})"
    return text
