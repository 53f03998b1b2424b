"""Folding: a kernel whose programs walk rows one after another and keep sums over them.

    for step in tl.range(0, 16):            rows of the program
        ...                                 a row: its reductions, its results
        a3 = a3 + v9                        the sum over rows, in registers
    tl.store(p3 + (y * 768 + x), a3)        one row of sums a program
"""

from collections.abc import Sequence
from typing import Any

from preheat.generate import triton_ops as ops
from preheat.generate.tiles import FAR
from preheat.ir.loop import Kernel, LoopOp, Stage


def folds_of(kernel: Kernel) -> list[LoopOp]:
    """The stores of `kernel` that add up over its rows."""
    return [op for stage in kernel.stages for op in stage.body if op.op == "store" and op.how]


def write_fold(writer: Any, folds: Sequence[LoopOp]) -> None:
    """Writes the body of the kernel of `writer` (`triton`): what does not depend on the rows is loaded
    before they are walked, what is summed over them is stored behind."""
    tile = writer.tile
    each = tile.rows * tile.steps
    writer.emit(f"program = tl.program_id(0){'.to(tl.int64)' if tile.programs * each >= FAR else ''}")
    writer.along("")
    walked, written = {axis.name for axis in tile.along}, {
        op.param for stage in writer.kernel.stages for op in stage.body if op.op == "store"}
    for op in [op for stage in writer.kernel.stages for op in stage.body if op.op == "load"]:
        terms = {term for term, _ in op.index.terms}
        if op.mask is None and op.param not in written and terms <= walked:
            writer.operation(op)
    for op in folds:
        writer.emit(f"a{op.param} = tl.zeros({writer.shape('yx')}, tl.float32)")
    outside = dict(writer.same)
    ahead = f", num_stages={tile.ahead}" if tile.ahead > 1 else ""
    writer.emit(f"for step in tl.range(0, {tile.steps}{ahead}):")
    writer.depth += 1
    rows = "" if writer.is_flat else f" + tl.arange(0, {tile.rows})[:, None]"
    writer.emit(f"y = program * {each} + step * {tile.rows}{rows}")
    for stage in writer.kernel.stages:
        _write_stage(writer, stage)
    writer.depth -= 1
    writer.same = outside
    writer.emit(f"y = program * {each}")
    for op in folds:
        at, _ = writer.offset(op.index)
        total = f"a{op.param}" if writer.is_flat else f"tl.sum(a{op.param}, 0, keep_dims=True)"
        mask = f", mask={writer.masks['x']}" if "x" in writer.masks else ""
        writer.emit(f"tl.store(p{op.param} + ({at}), {total}{mask})")


def _write_stage(writer: Any, stage: Stage) -> None:
    """The sums of a walk are last and together: threads wait for each other once for all of them, having done what they can. A
    layer norm's backward of 32768 x 4096 in 16 bits takes 214 us so, not 225, and of 8192 x 8192 124, not 214."""
    sums = [op for op in stage.body if op.op == "reduce" and op.how == "sum"]
    for op in stage.body:
        if op not in sums:
            writer.operation(op)
    apart: dict[tuple, LoopOp] = {}
    for op in sums:
        apart.setdefault((*writer.key_of(op), "reduce"), op)
    apart = {key: op for key, op in apart.items() if key not in writer.same}
    if {op.dtype for op in apart.values()} == {"float32"} and len(apart) in ops.SUMS:
        _write_sums(writer, [*apart.values()])
        writer.same.update((key, writer.values[op.id]) for key, op in apart.items())
    for op in sums:
        writer.operation(op)


def _write_sums(writer: Any, sums: Sequence[LoopOp]) -> None:
    """Writes these sums of float32 as one reduction."""
    texts, mask = [], writer.masks.get("x")
    for op in sums:
        value = writer.values[op.args[0]]
        wide = writer.widened(op, value)
        texts.append(writer.whole(f"tl.where({mask}, {wide}, 0.0)" if mask else wide, value))
        writer.give(op, f"v{op.id}", "" if writer.is_flat else "y")
    names = ", ".join(f"v{op.id}" for op in sums)
    axis, keep = ("0", "") if writer.is_flat else ("1", ", keep_dims=True")
    writer.emit(f"{names} = tl.reduce(({', '.join(texts)}), {axis}, {ops.SUMS[len(sums)]}{keep})")
