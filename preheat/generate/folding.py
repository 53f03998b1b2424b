"""Folding: a kernel whose programs walk rows one after another and keep sums over them.

    for step in tl.range(0, 16):            rows of the program
        ...                                 a row: its reductions, its results
        a3 = a3 + v9                        the sum over rows, in registers
    tl.store(p3 + (y * 768 + x), a3)        one row of sums a program
"""

from collections.abc import Sequence
from typing import Any

from preheat.generate.tiles import FAR
from preheat.ir.loop import Kernel, LoopOp


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
        writer.stage(stage)
    writer.depth -= 1
    writer.same = outside
    writer.emit(f"y = program * {each}")
    for op in folds:
        at, _ = writer.offset(op.index)
        total = f"a{op.param}" if writer.is_flat else f"tl.sum(a{op.param}, 0, keep_dims=True)"
        mask = f", mask={writer.masks['x']}" if "x" in writer.masks else ""
        writer.emit(f"tl.store(p{op.param} + ({at}), {total}{mask})")
