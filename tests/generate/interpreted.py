"""Generated Triton source in Triton's own interpreter, on the memory of the loop interpreter.

    run_triton(plan, [x], target)      as run_plan, each kernel program by program in numpy

Import this before anything imports Triton: the interpreter is chosen when Triton is loaded, so a
process either interprets kernels or compiles them. Its bfloat16 is wrong; float32, float64, integers
and bools are right. libdevice is numpy here, so functions agree with it in a few ulp.
"""

import linecache
import math
import os
import random
import re
import types

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import torch
import triton
import triton.language as tl
from schedule.loop_interpret import Fault, _Run, flat_of
from triton.runtime.interpreter import InterpreterOptions, TensorHandle, interpreter_builder

from preheat.generate.tables import sources_of_table
from preheat.generate.sources import HEAD, Source
from preheat.generate.triton import source_of
from preheat.ir.loop import ANY, NUMBER, WORDS, Kernel, is_for_any
from preheat.ir.plan import KernelCall, Plan, Target
from preheat.run.batches import stretches
from preheat.run.buffers import places


GROUPS = 2  # of programs that share a row: each has several rows
UNTOLD: list[bool] = []  # of each wait of a run, whether nothing had been told: there it would wait for ever
interpreter_builder.options = InterpreterOptions(debug=True, sanitize_overflow=False)


def _wrapped(function):
    def call(*args):
        made = function(*(a.handle.data for a in args)).astype(args[0].handle.data.dtype)
        return tl.core.tensor(TensorHandle(made, args[0].dtype.scalar), args[0].type)
    return call


_VECTOR = {name: numpy.vectorize(getattr(math, name), otypes=[float]) for name in ("erf", "erfc")}
_NUMPY = {
    "exp": numpy.exp, "exp2": numpy.exp2, "expm1": numpy.expm1, "log": numpy.log,
    "log2": numpy.log2, "log10": numpy.log10, "log1p": numpy.log1p, "sin": numpy.sin,
    "cos": numpy.cos, "tan": numpy.tan, "asin": numpy.arcsin, "acos": numpy.arccos,
    "atan": numpy.arctan, "sinh": numpy.sinh, "cosh": numpy.cosh, "tanh": numpy.tanh,
    "asinh": numpy.arcsinh, "acosh": numpy.arccosh, "atanh": numpy.arctanh,
    "rsqrt": lambda x: 1 / numpy.sqrt(x), "sqrt": numpy.sqrt, "trunc": numpy.trunc,
    "rint": numpy.rint, "pow": numpy.power, "atan2": numpy.arctan2, "copysign": numpy.copysign,
    "mul_rn": numpy.multiply, "ex2": numpy.exp2, "rcp": lambda x: 1 / x, **_VECTOR,
}
LIBDEVICE = types.SimpleNamespace(**{name: _wrapped(f) for name, f in _NUMPY.items()})


def _instruction(text, constraints, args, *rest, **options):
    if text.startswith("cvt.rna.tf32.f32 "):
        return _to_tf32(*args)
    if "ld.relaxed" in text:  # programs run one after the other: what has not been told is 0
        made = tl.load(*args)
        UNTOLD.append(bool((made.handle.data == 0).any()))
        return made
    if text.startswith("max.NaN.f16x2"):
        pairs = (x.handle.data.astype(numpy.int32).view(numpy.float16) for x in args)
        made = numpy.maximum(*pairs).view(numpy.int32)
        return tl.core.tensor(TensorHandle(made, tl.int32), args[0].type)
    ((name, is_flushed),) = re.findall(r"^(\w+)\.approx(\.ftz)?\.f32 \$0, \$1;$", text)
    made = getattr(LIBDEVICE, name)
    return _flushed(made(_flushed(*args))) if is_flushed else made(*args)


@_wrapped
def _flushed(x):
    return numpy.where(abs(x) < numpy.finfo(numpy.float32).tiny, numpy.copysign(numpy.float32(0), x), x)


@_wrapped
def _to_tf32(x):
    near = ((x.view(numpy.uint32).astype(numpy.uint64) + 4096) >> 13 << 13).astype(numpy.uint32)
    return numpy.where(numpy.isnan(x), x, near.view(numpy.float32))


tl.inline_asm_elementwise = _instruction  # there is no device to give it to


class TritonRun(_Run):
    """The loop interpreter, except that kernels are generated Triton source, interpreted."""

    def __init__(
        self, plan: Plan, inputs: list[torch.Tensor], order: random.Random, target: Target, tile=None,
    ):
        self.target, self.tile = target, tile
        self.batches = {batch[-1]: batch for batch in stretches(plan, places(plan))}
        self.numbers = iter([k for k, call in enumerate(plan.calls) if isinstance(call, KernelCall)])
        super().__init__(plan, inputs, order)

    def source_of(self, kernel: Kernel, call: KernelCall) -> tuple[Source, int, list]:
        """The source, its number of programs, and the sizes that it takes."""
        source = source_of(kernel, self.target, self.tile)
        programs = source.tile.programs
        return source, min(programs, GROUPS * source.tile.parts) if source.tile.parts else programs, []

    def _kernel(self, kernel: Kernel, call: KernelCall) -> None:
        number = next(self.numbers)
        if is_for_any(kernel):
            if number in self.batches:
                self._batch(kernel, [self.plan.calls[k] for k in self.batches[number]])
            return
        source, programs, sizes = self.source_of(kernel, call)
        memories = [flat_of(self.value(b)) for b in call.buffers]
        turns = self._turns(kernel, memories)
        arguments = [
            memory.flat[memory.start].item() if param.name == NUMBER else memory.flat[memory.start:]
            for memory, param in zip(memories, kernel.params)
        ]
        try:
            with numpy.errstate(all="ignore"):
                for _ in range(turns):
                    UNTOLD.clear()
                    interpreted(source.name, source.text)[(programs,)](*arguments, *sizes)
        except Exception as error:
            if "index out of bounds" not in f"{error} {error.__cause__} {error.__context__}":
                raise
            self.is_wrong = True
        if turns > 1:
            check_words(kernel, memories)
            assert not any(UNTOLD), "a wait for a word that nobody writes"

    def _turns(self, kernel: Kernel, memories: list) -> int:
        """How often a kernel is run until each program of a row that is shared has been told what it waits for: once more
        than it waits. The words are 0 before."""
        if not kernel.shared or self.tile is not None:
            return 1
        assert not words_of(kernel, memories).any(), "words that are not 0 before"
        return 1 + sum(op.op == "reduce" for stage in kernel.stages for op in stage.body)

    def _batch(self, kernel: Kernel, calls: list[KernelCall]) -> None:
        """Calls that are one launch, of a table that a kernel writes as far as its arguments are addresses: the
        interpreter takes a float for a float32."""
        source, writer = sources_of_table(kernel, self.target)
        each, rows = (dict(s.sizing.blocks)[(ANY,)] for s in (source, writer))
        blocks = torch.tensor([
            row << 32 | block for row, call in enumerate(calls) for block in range(-(-call.extent // each))])
        table = torch.zeros(-(-len(calls) // rows) * rows, len(kernel.params), dtype=torch.int64)
        numbers = [k for k, param in enumerate(kernel.params) if param.name == NUMBER]
        for row, call in enumerate(calls):
            for k, buffer in enumerate(call.buffers):
                memory = flat_of(self.value(buffer))
                tensor = memory.flat[memory.start:]
                table[row, k] = int.from_bytes(tensor[:1].numpy().tobytes(), "little") if k in numbers else tensor.data_ptr()
        if not numbers:
            given, table = table, torch.zeros_like(table)
            for first in range(0, len(calls), rows):
                interpreted(writer.name, writer.text)[(1,)](table[first:], *given[first:first + rows].flatten().tolist())
        sizes = torch.tensor([call.extent for call in calls])
        with numpy.errstate(all="ignore"):
            interpreted(source.name, source.text)[(len(blocks),)](table, sizes, blocks)


def words_of(kernel: Kernel, memories: list) -> torch.Tensor:
    """What programs that share rows have told each other, a row of the matrix for each reduction."""
    place = next(k for k, param in enumerate(kernel.params) if param.name == WORDS)
    rows = math.prod(axis.extent for axis in kernel.axes)
    memory = memories[place]
    count = sum(op.op == "reduce" for stage in kernel.stages for op in stage.body) * rows * kernel.shared
    return memory.flat[memory.start : memory.start + count].view(-1, rows * kernel.shared)


def check_words(kernel: Kernel, memories: list) -> None:
    """A program that waited for a word of 0 would wait for ever."""
    told = words_of(kernel, memories).ne(0)
    assert torch.equal(told.all(1), told.any(1)) and told[0].all()


def _range(*bounds, **hints):
    """Of numbers that kernels take or compute, too, which are arrays of one element here."""
    return range(*(n.handle.data.item() if isinstance(n, tl.core.tensor) else n for n in bounds))


def interpreted(name: str, text: str):
    """The kernel of generated text as a function of Triton's interpreter."""
    assert text.startswith(HEAD)
    text = text.replace("from triton.language.extra import libdevice\n", "\n").replace("tl.range(", "range(")
    file = f"<interpreted {name} {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = {"__name__": "kernels", "libdevice": LIBDEVICE, "range": _range}
    exec(compile(text, file, "exec"), names)
    return names[name]


def run_triton(
    plan: Plan, inputs: list[torch.Tensor], target: Target, seed: int = 0, tile=None,
) -> list[torch.Tensor]:
    """As `run_plan`, by Triton's interpreter. tile: of every kernel, by default what the rules choose."""
    return TritonRun(plan, inputs, random.Random(seed), target, tile).run()


__all__ = ["Fault", "KernelCall", "run_triton", "triton"]
