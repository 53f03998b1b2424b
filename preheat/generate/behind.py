"""Rows that are stored when the next one has been told of: what programs tell each other is there by then.

    for row in ..:                               for row in tl.range(first, 64, step, ..):
        v0 = tl.load(p0 + y * 4096 + x)              v0 = tl.load(p0 + y * 4096 + x)
        m2 = tl.sum(v0, 0)                           m2 = tl.sum(v0, 0)
        publish(told2 + part, m2)          ->        publish(told2 + part, m2)
        t2 = told_by(told2 + other)                  store_row(p0, p1, x, .., row - step, row != first, held_v0)
        v2 = tl.sum(t2, 0)                           held_v0 = v0
        tl.store(.., v0 - v2)                    store_row(p0, p1, x, other, last, True, held_v0)

So no program waits as long as a word takes to be written and read (about 2 us on an H200), while the memory of later rows is
on its way. Of a row is held what was loaded, 16-bit floats in pairs; what is stored is computed again. In the first turn there
is no row to store: it waits for the program's own word, and its stores are masked (beside a branch, and where a turn gives the
next one its number, Triton loads nothing ahead).

Requires what `sharing` does. Guarantees: values, and the order of everything that is told.
"""

from typing import Any

from preheat.generate import triton_ops as ops
from preheat.generate.nest import operands
from preheat.generate.online import EXP_SUM
from preheat.generate.pairs import LEAST, Pairs
from preheat.generate.sharing import (
    HELD, begin_parts, begin_row, common_loads, forms_of, quotient_of, tell, wait, write_place)
from preheat.generate.tiles import extent_of, power_of_two
from preheat.ir.loop import LoopOp

NAME = "store_row"


def write_behind(writer: Any) -> None:
    """Writes (by `writer`, of `triton`) the rows of a program one after the other."""
    tile, stages = writer.tile, writer.kernel.stages
    writer.is_fused |= any(op.how == EXP_SUM for stage in stages for op in stage.body)  # squares of roots are added
    begin_parts(writer)
    pairs = Pairs(writer)
    for op in common_loads(writer):
        pairs.operation(op)
    common = dict(writer.same)
    writer.emit(f"first = program // {tile.parts}")
    writer.emit(f"step = tl.num_programs(0) // {tile.parts}")
    outside = len(writer.lines)
    writer.emit(f"for row in tl.range(first, {extent_of(tile.down)}, step, num_stages={tile.ahead}):")
    writer.depth += 1
    begin_row(writer)
    count = 1 + next(k for k, stage in enumerate(stages) if any(op.op == "reduce" for op in stage.body))
    told = [op for stage in stages[:count] for op in stage.body]
    for op in told:
        if op.op == "reduce":
            write_place(writer, op)
            _tell(writer, pairs, op)
        else:
            pairs.operation(op)
    held = {
        key: known for key, known in writer.same.items()
        if key[0] == "load" and "x" in known.dims and key not in common}
    fixed = _function(writer, pairs, told, count, common, held)
    writer.lines[outside:outside] = [
        f"    held_{known.name} = {_nothing(writer, pairs, known)}" for known in held.values()]
    given = ", ".join(f"held_{known.name}" for known in held.values())
    writer.emit("is_there = row != first")
    writer.emit("behind = tl.where(is_there, row - step, row)")
    writer.emit(f"{NAME}({fixed}, tl.where(is_there, other, part), behind, is_there, {given})")
    for known in held.values():
        writer.emit(f"held_{known.name} = {known.name}")
    writer.depth = 1
    writer.emit(f"last = first + ({extent_of(tile.down) - 1} - first) // step * step")
    writer.emit(f"{NAME}({fixed}, other, last, True, {given})")


def _function(writer: Any, pairs: Pairs, told: list[LoopOp], count: int, common: dict, held: dict) -> str:
    """Writes the function that stores a row; what it is given of the program's, as text."""
    lines, depth = writer.lines, writer.depth
    writer.lines, writer.depth, writer.gate, writer.same = [], 1, "is_there", {**common, **held}
    begin_row(writer)
    later = [op for stage in writer.kernel.stages[count:] for op in stage.body]
    for op in _again(told, later):
        pairs.operation(op)
    for op in (op for op in told if op.op == "reduce"):
        write_place(writer, op)
        wait(writer, op)
    for op in later:
        if op.op == "reduce":
            wait(writer, op)
        elif op.how == HELD:
            _divide(writer, op, next(each for each in told if each.id in op.args))
        else:
            pairs.operation(op)
    of_loads = [known.name for known in common.values() if known.name]
    names = dict.fromkeys(["x", *writer.masks.values(), *pairs.places, *of_loads])
    parts = writer.tile.parts
    masked = ["is_other"] if power_of_two(parts) != parts else []
    fixed = ", ".join([*(f"p{k}" for k in range(len(writer.kernel.params))), *names, *masked])
    given = ", ".join(known.name for known in held.values())
    writer.functions.append(
        "\n".join([f"\n\n@triton.jit\ndef {NAME}({fixed}, other, row, is_there, {given}):", *writer.lines]))
    writer.lines, writer.depth, writer.gate, writer.eviction = lines, depth, "", ""
    return fixed


def _tell(writer: Any, pairs: Pairs, op: LoopOp) -> None:
    """Writes what the part of the program gives. The largest of pairs is one of words, and exponentials are as few
    instructions as they are exact with: the largest times log2(e) is rounded, which the sum is multiplied by once."""
    value, mask = writer.values[op.args[0]].name, writer.masks.get("x")
    if op.id in writer.online and value in pairs.widened:
        words, dtype = pairs.widened[value]
        words = f"tl.where(is_pair, {words}, {LEAST[dtype]})" if mask else words
        writer.emit(f"m{op.id} = largest_{dtype}({words})")
    elif op.how == EXP_SUM and _is_near(writer, op):
        _, largest, _ = op.args
        writer.emit(f'b{largest} = tl.where(m{largest} == float("-inf"), 0.0, m{largest})')
        root = f"root_below({value}, b{largest})"
        writer.emit(f"w{op.id} = " + (f"tl.where({mask}, {root}, 0.0)" if mask else root))
        total = f"tl.sum(w{op.id} * w{op.id}, 0) * rounded_by(b{largest})"
        writer.emit(f"publish_pair(told{largest} + part, m{largest}, {total})")
    else:
        tell(writer, op)


def _divide(writer: Any, op: LoopOp, total: LoopOp) -> None:
    """Writes an exponential over the sum of all of the row."""
    number, largest, _ = total.args
    value, largest = writer.values[number].name, writer.values[largest].name
    if op.id in writer.coarse:
        writer.emit(f"z{op.id} = share(rounded_by({largest}), v{total.id})")
        writer.emit(f"w{op.id} = root_below({value}, {largest})")
        writer.emit(f"v{op.id} = w{op.id} * w{op.id} * z{op.id}")
    else:
        exp, over = forms_of(writer, op)
        writer.emit(f"v{op.id} = {over.format(exp.format(f'{value} - {largest}'), f'v{total.id}')}")
    writer.give(op, f"v{op.id}", "x")


def _is_near(writer: Any, total: LoopOp) -> bool:
    quotient = quotient_of(writer, total)
    return quotient is None or quotient.id in writer.coarse


def _again(told: list[LoopOp], later: list[LoopOp]) -> list[LoopOp]:
    """What of the ops that were told of the later ones need, without the reductions."""
    totals = {op.id: op for op in told if op.how == EXP_SUM}
    needed = {value for op in later for value in operands(op)}
    needed |= {totals[op.args[0]].args[0] for op in later if op.how == HELD}
    found: list[LoopOp] = []
    for op in reversed(told):
        if op.op != "reduce" and op.id in needed:
            found.insert(0, op)
            needed.update(operands(op))
    return found


def _nothing(writer: Any, pairs: Pairs, known: Any) -> str:
    """What is held before the first row."""
    if known.name in pairs.words:
        return f"tl.full([{writer.tile.columns // 2}], 0, tl.int32)"
    return f"tl.full([{writer.tile.columns}], 0, {ops.triton_dtype(known.dtype)})"
