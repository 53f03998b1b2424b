"""Kernels of a GPU that do several calls at once: the tensors of each are a row of a table.

    kernel sqrt_0(%p0, %p1) over i0:n, called for 200 pairs of tensors

    def sqrt_0(table, sizes, blocks):                     a program for each block of each call
        block = tl.load(blocks + tl.program_id(0))        which call, and which block of it
        at = table + (block >> 32) * 2
        n = tl.load(sizes + (block >> 32))
        p0 = tl.load(at + 0).to(tl.pointer_type(tl.float32)); ..
        x = program * 1024 + tl.arange(0, 1024)
        ..                                                as any kernel: masked in the last block alone

    def sqrt_0_table(table, w0, w1, w2, ..):              writes rows: addresses and numbers as they
        tl.store(table + 0, w0); ..                       are passed to a launch

Sizes are known when a plan is bound, addresses on each call. So `sizes` and `blocks` lie in the
GPU's memory for good, and the table is written by a launch whose arguments are its words: what a launch is
given it has, whatever the host does next, in a recorded graph, too, whose nodes are set as those of any
kernel. No copy from the host's memory has to be waited for.
"""

from preheat.generate import triton_ops as ops
from preheat.generate.tiles import FAR, Tile, flat_elems, warps_of
from preheat.generate.sources import ALIGN_BYTES, HEAD, Source, text_of
from preheat.generate.triton import Writer
from preheat.generate.whole import write_stages
from preheat.ir.devices import device_of
from preheat.ir.loop import ANY, NUMBER, TABLE, TABLE_WORDS, Kernel, Param
from preheat.ir.plan import Sizing, Target
from preheat.ir.types import DTYPES

WORD_BYTES = 8


def sources_of_table(kernel: Kernel, target: Target) -> list[Source]:
    """The kernel, then the one that writes its table. Their `sizing` counts elements, and rows."""
    return [_kernel(kernel, target), _table(kernel)]


def _kernel(kernel: Kernel, target: Target) -> Source:
    is_single = not any(op.index is not None and op.index.terms for s in kernel.stages for op in s.body)
    columns, each = (1, 1) if is_single else flat_elems(kernel)
    warps = warps_of(columns, each, device_of(target.arch))
    writer = Writer(kernel, Tile((), (), kernel.axes, 1, columns, False, warps))
    writer.arguments, writer.numbers[str(ANY)] = (ANY,), "n"
    writer.stride = {axis.name: FAR - 1 for axis in kernel.axes}  # a position has 32 bits
    writer.emit("block = tl.load(blocks + tl.program_id(0))")
    writer.emit("row = block >> 32")
    writer.emit("program = block.to(tl.int32)")
    writer.emit("n = tl.load(sizes + row).to(tl.int32)")
    writer.emit(f"at = table + row * {len(kernel.params)}")
    for k, param in enumerate(kernel.params):
        writer.emit(f"p{k} = {_read(param, f'tl.load(at + {k})')}")
    if is_single:
        for stage in kernel.stages:
            writer.stage(stage)
    else:
        writer.along(f"program * {columns}", is_masked=False)
        writer.emit("is_x = x < n")
        writer.masks["x"] = "is_x"
        write_stages(writer)
    return Source(
        kernel.name, text_of(kernel.name, ("table", "sizes", "blocks"), writer.lines), ("*i64",) * 3,
        writer.tile, writer.has_check, writer.is_fused, (WORD_BYTES,) * 3,
        Sizing((((ANY,), columns),)))


def _read(param: Param, word: str) -> str:
    """A pointer, or a number, of the word of a table."""
    if param.name != NUMBER:
        type = f"tl.pointer_type({ops.triton_dtype(param.dtype)})"
        return f"tl.multiple_of({word}.to({type}), {ALIGN_BYTES})"
    if param.dtype == "bool":
        return f"{word}.to(tl.int8)"
    bits = word if _bits(param) == 64 else f"{word}.to(tl.int{_bits(param)})"
    dtype = ops.triton_dtype(param.dtype)
    return f"{bits}.to({dtype}, bitcast=True)"


def _table(kernel: Kernel) -> Source:
    count = TABLE_WORDS // len(kernel.params)
    words = [param for _ in range(count) for param in kernel.params]
    lines = [f"    tl.store(table + {k}, {_written(param, f'w{k}')})" for k, param in enumerate(words)]
    name = f"{kernel.name}{TABLE}"
    signature = [
        ops.signature(p.dtype, True) if p.name == NUMBER else "i64" for p in words]
    return Source(
        name, text_of(name, ("table", *(f"w{k}" for k in range(len(words)))), lines),
        ("*i64", *signature), Tile((), (), (), 1, 1, False, 1), False, False,
        (WORD_BYTES, *(1 for _ in words)), Sizing((((ANY,), count),)))


def _written(param: Param, word: str) -> str:
    """The word of a table of what a launch passes."""
    if param.name != NUMBER:
        return word
    if param.dtype != "bool":
        word = f"{word}.to(tl.int{_bits(param)}, bitcast=True)"
    return word if _bits(param) == 64 and param.dtype != "bool" else f"{word}.to(tl.int64)"


def _bits(param: Param) -> int:
    return 8 * DTYPES[param.dtype].itemsize
