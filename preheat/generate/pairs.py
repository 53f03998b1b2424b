"""Pairs: 16-bit floats that are loaded two in a word, and stay so until they are widened.

    v0 = tl.load(p0 + y * 4096 + x)         q0 = tl.load(p0.to(tl.pointer_type(tl.int32)) + y * 2048 + pair)
    v1 = v0.to(tl.float32)            ->    v1 = widened_bfloat16(q0, row >> 31)

What is held from one turn of a loop to the next has half the registers so: LLVM else takes a word apart where it is
loaded, and a half takes a register. What stays for all turns would be widened before the first of them: widening takes
a 0 that only the turn knows.

Requires a program that has one position down. Guarantees: values.
"""

from typing import Any

from preheat.generate.tiles import extent_of
from preheat.ir.loop import LoopOp

LEAST = {"bfloat16": -0x7F0080, "float16": -0x3FF0400}  # a word of two that are -inf, as int32


class Pairs:
    """What `writer` (of `triton`) loads in pairs, below the position `x`: what is consecutive along the tile, of an even
    number of elements, and read as float32 alone. words: the names; places: those of their positions."""

    def __init__(self, writer: Any):
        self.writer, self.words, self.places = writer, set[str](), list[str]()
        self.widened: dict[str, tuple[str, str]] = {}  # the pair of each float32, and its dtype
        ops = [op for stage in writer.kernel.stages for op in stage.body]
        loads = [op for op in ops if op.op == "load"]
        widened = {op.args[0] for op in ops if op.op == "cast" and op.dtype == "float32"}
        read = {
            value for op in ops for value in (*op.args, op.mask)
            if op.op != "cast" or op.dtype != "float32"}
        others = {
            (op.param, op.index) for op in loads
            if op.dtype not in LEAST or op.mask is not None or op.id in read or op.id not in widened
            or not _is_even(op, writer)}
        self.loads = {op.id for op in loads if (op.param, op.index) not in others}
        if self.loads:
            self._begin()

    def _begin(self) -> None:
        writer, half = self.writer, self.writer.tile.columns // 2
        self.places.append("pair")
        writer.emit(f"pair = part * {half} + tl.arange(0, {half})")
        if "x" in writer.masks:
            self.places.append("is_pair")
            writer.emit(f"is_pair = pair < {extent_of(writer.tile.along) // 2}")

    def operation(self, op: LoopOp) -> None:
        """Writes `op`, of a pair or not."""
        writer = self.writer
        source = writer.values.get(op.args[0]) if op.op == "cast" else None
        is_widened = source is not None and source.name in self.words
        if op.id not in self.loads and not is_widened:
            writer.eviction = "evict_first" if op.op == "store" else ""
            writer.operation(op)
            return
        key = writer.key_of(op)
        if key not in writer.same and is_widened:
            writer.emit(f"v{op.id} = widened_{source.dtype}({source.name}, row >> 31)")
            writer.same[key] = source._replace(name=f"v{op.id}", dtype=op.dtype)
            self.widened[f"v{op.id}"] = source.name, source.dtype
        elif key not in writer.same:
            self._load(op)
            writer.same[key] = writer.values[op.id]
        writer.values[op.id] = writer.same[key]

    def _load(self, op: LoopOp) -> None:
        writer, name = self.writer, f"q{op.id}"
        self.words.add(name)
        strides = [(axis, op.index.stride(axis.name)) for axis in writer.tile.down]
        at = " + ".join([
            *(f"{writer.axis(axis.name)} * {stride // 2}" for axis, stride in strides if stride),
            *([str(op.index.base // 2)] if op.index.base else []), "pair"])
        mask = ", mask=is_pair, other=0" if "is_pair" in self.places else ""
        writer.emit(f"{name} = tl.load(p{op.param}.to(tl.pointer_type(tl.int32)) + {at}{mask})")
        writer.give(op, name, "x")


def _is_even(op: LoopOp, writer: Any) -> bool:
    """Whether the elements that a program loads are whole words, one after another."""
    names = {axis.name for axis in writer.tile.along}
    others = [stride for term, stride in op.index.terms if term not in names]
    step, is_along = 1, False
    for axis in reversed(writer.tile.along):
        stride = op.index.stride(axis.name)
        is_along = is_along or stride == 1
        if axis.extent != 1 and stride != step:
            return False
        step *= axis.extent
    return is_along and step % 2 == 0 and all(type(n) is int and n % 2 == 0 for n in (*others, op.index.base))
