"""Rows that several programs share: each has a part of a row, and waits for what the others' parts give.

    kernel softmax_0(..) over i0:64 parallel by 128          program = tl.program_id(0)
      stage j  v0 = load p0[..]; v2 = reduce max v0          part = program % 128
                                                   ->        x = part * 8192 + tl.arange(0, 8192)
                                                             for row in tl.range(program // 128, 64, ..):
                                                                 v0 = tl.load(p0 + y * 1048576 + x)
                                                                 m2 = tl.reduce(v0, 0, larger)
                                                                 publish(told + part, m2)
                                                                 t2 = told_by(told + other)
                                                                 v2 = tl.reduce(t2, 0, larger)

A part gives one number of 32 bits for a reduction. It is told by one word of 64, whose other half says that it is
there; so no order of memory matters but that of this word, which is written and read as a whole. The largest of a row
and the sum of exponentials below it are told together, both of the part alone (`online`), since the word is never 0:
a sum is 1 at the least, where the largest is a number. An exponential over the sum is that below the part's own largest,
scaled once more (`held`): it is computed once, and what it is of is not kept. A sum and one of squares about a number
that is made of it are told together, too: the part's squares about its own mean, to which what differs from that number is
added where the parts are joined (as `schedule/partial.py` does). So all of these wait once.

A program goes from row to row with the same part, and loads the next rows' parts meanwhile. Parts are joined in the
order of their places, whichever came first, so results do not hang on it.

Requires that all programs of a launch run at once, their number a multiple of the parts, and words that are 0 before.
"""

from dataclasses import replace
from typing import Any

from preheat.generate import triton_ops as ops
from preheat.generate.nest import operands
from preheat.generate.online import EXP_SUM, online, quotients, squares
from preheat.generate.tiles import extent_of, power_of_two
from preheat.ir.loop import WORDS, Kernel, LoopOp, Stage

HELD = "held"  # how of a division, args: the sum of exponentials, one of which it divides by that sum
MOMENTS = "moments"  # how of a sum whose part tells the squares about its mean, too
SQUARES = "squares"  # how of the sum of squares, args: the value, the sum before it, and what they are about


def held(kernel: Kernel) -> Kernel:
    """`kernel` with sums of exponentials in the walk of their largest value, quotients of such an exponential and the sum
    made of the exponential that was added up, and sums of squares made of what an earlier sum tells."""
    kernel = _with_moments(online(kernel))
    stages = list(kernel.stages)
    for place, stage in enumerate(stages):
        for total in [op for op in stage.body if op.how == EXP_SUM]:
            for later in range(place + 1, len(stages)):
                found = quotients(stage, total, stages[later])
                body = tuple(
                    replace(op, args=(total.id,), how=HELD) if op.id in found else op for op in stages[later].body)
                stages[later] = replace(stages[later], body=body)
    return _without_unused(replace(kernel, stages=tuple(stages)))


def _with_moments(kernel: Kernel) -> Kernel:
    stages = list(kernel.stages)
    for place, stage in enumerate(stages):
        for total in [op for op in stage.body if op.op == "reduce" and op.how == "sum" and op.dtype == "float32"]:
            found = [(k, *pair) for k in range(place + 1, len(stages)) for pair in squares(stage, total, stages[k])]
            if not found:
                continue
            later, made, centre = found[0]
            stages[place] = _with(stages[place], total, replace(total, how=MOMENTS))
            args = (total.args[0], total.id, centre)
            stages[later] = _with(stages[later], made, replace(made, how=SQUARES, args=args))
    return replace(kernel, stages=tuple(stages))


def _with(stage: Stage, old: LoopOp, new: LoopOp) -> Stage:
    return replace(stage, body=tuple(new if op is old else op for op in stage.body))


def _without_unused(kernel: Kernel) -> Kernel:
    used: set[int] = set()
    stages: list[Stage] = []
    for stage in reversed(kernel.stages):
        body: list[LoopOp] = []
        for op in reversed(stage.body):
            if op.op in ("store", "reduce") or op.id in used:
                body.insert(0, op)
                unread = {EXP_SUM: op.args[2:], SQUARES: op.args[:1]}.get(op.how, ())  # of other stages
                used.update(set(operands(op)) - set(unread))
        stages.insert(0, replace(stage, body=tuple(body)))
    return replace(kernel, stages=tuple(stages))


# ---------------------------------------------------------------------------- as Triton's text
def write_shared(writer: Any) -> None:
    """Writes (by `writer`, of `triton`) the rows of a program one after the other."""
    tile, kernel = writer.tile, writer.kernel
    begin_parts(writer)
    for op in common_loads(writer):
        writer.operation(op)
    turns = f"program // {tile.parts}, {extent_of(tile.down)}, tl.num_programs(0) // {tile.parts}"
    writer.emit(f"for row in tl.range({turns}, num_stages={tile.ahead}):")
    writer.depth += 1
    begin_row(writer)
    for stage in kernel.stages:
        waiting: list[LoopOp] = []
        for op in stage.body:
            if op.op == "reduce" and stage.axes:
                write_place(writer, op)
                tell(writer, op)
                waiting.append(op)
            elif op.how == HELD:
                (total,) = op.args
                writer.emit(f"v{op.id} = w{total} * z{total}")
                writer.values[op.id] = writer.values[total]._replace(name=f"v{op.id}", dims="x")
            else:
                writer.eviction = "evict_first" if op.op == "store" else ""
                writer.operation(op)
        for op in waiting:
            wait(writer, op)
    writer.depth = 1


def begin_parts(writer: Any) -> None:
    """Writes which part a program has, and what the parts of a row are numbered."""
    tile, parts = writer.tile, writer.tile.parts
    writer.emit("program = tl.program_id(0)")
    writer.emit(f"part = program % {parts}")
    writer.along(f"part * {tile.columns}")
    most = power_of_two(parts)
    writer.emit(f"other = tl.arange(0, {most})")
    if most != parts:
        writer.emit(f"is_other = other < {parts}")
        writer.emit(f"other = tl.minimum(other, {parts - 1})")


def common_loads(writer: Any) -> list[LoopOp]:
    """The loads of what all rows have in common: once for a program."""
    names = {axis.name for axis in writer.tile.along}
    loads = [op for stage in writer.kernel.stages for op in stage.body if op.op == "load" and op.mask is None]
    return [op for op in loads if op.index.terms and names.issuperset(term for term, _ in op.index.terms)]


def begin_row(writer: Any) -> None:
    writer.emit("y = tl.full([], row, tl.int64)")


def write_place(writer: Any, op: LoopOp) -> None:
    """Writes where the parts of a row tell what `op` gives, unless that is told with another."""
    telling = [
        each for stage in writer.kernel.stages for each in stage.body
        if each.op == "reduce" and each.how not in (EXP_SUM, SQUARES)]
    if op in telling:
        parts, place = writer.tile.parts, telling.index(op)
        words = next(k for k, param in enumerate(writer.kernel.params) if param.name == WORDS)
        before = f" + {place * extent_of(writer.tile.down) * parts}" if place else ""
        writer.emit(f"told{op.id} = p{words} + (row * {parts}{before})")


def tell(writer: Any, op: LoopOp) -> None:
    """Writes what the part of the program gives."""
    if op.how == SQUARES:
        return  # with the sum before it
    if op.how == EXP_SUM:
        _, largest, _ = op.args
        quotient = quotient_of(writer, op)
        form = "added_exp({0})" if quotient is None else forms_of(writer, quotient)[0]
        writer.emit(f'b{largest} = tl.where(m{largest} == float("-inf"), 0.0, m{largest})')
        writer.emit(f"w{op.id} = {form.format(f'g{largest} - b{largest}')}")
        writer.emit(f"publish_pair(told{largest} + part, m{largest}, tl.sum(w{op.id}, 0))")
        return
    value, mask = writer.values[op.args[0]], writer.masks.get("x")
    wide = writer.whole(writer.widened(op, value), value)
    writer.emit(f"g{op.id} = " + (f"tl.where({mask}, {wide}, {ops.least(op.how, value.dtype)})" if mask else wide))
    how = "sum" if op.how == MOMENTS else op.how
    writer.emit(f"m{op.id} = {writer.joined(f'g{op.id}', ops.COMBINED[how])}")
    if op.how == MOMENTS:
        spread = f"g{op.id} - m{op.id} / {_count(writer, 'part')}"
        spread = f"tl.where({mask}, {spread}, 0.0)" if mask else spread
        writer.emit(f"d{op.id} = {spread}")
        writer.emit(f"publish_pair(told{op.id} + part, m{op.id}, marked(tl.sum(d{op.id} * d{op.id}, 0)))")
    elif op.id not in writer.online:
        writer.emit(f"publish(told{op.id} + part, m{op.id})")


def wait(writer: Any, op: LoopOp) -> None:
    """Writes what all parts give together."""
    value = writer.values[op.args[0]]
    if op.id in writer.online:
        return  # with its sum
    if op.how == SQUARES:
        _, total, centre = op.args
        apart = f"f{total} / {_count(writer, 'other')} - {writer.values[centre].name}"
        writer.emit(f"d{op.id} = {apart}")
        joined = f"unmarked(t{total} >> 32) + d{op.id} * d{op.id} * {_count(writer, 'other')}"
        writer.emit(f"v{op.id} = tl.sum({_of_others(writer, joined, '0.0')}, 0)")
        writer.values[op.id] = writer.values[total]._replace(name=f"v{op.id}", dtype=op.dtype)
        return
    if op.how == MOMENTS:
        writer.emit(f"t{op.id} = told_by(told{op.id} + other)")
        writer.emit(f"f{op.id} = {ops.bitcast(f't{op.id}.to(tl.int32)', 'float32')}")
        writer.emit(f"v{op.id} = tl.sum({_of_others(writer, f'f{op.id}', '0.0')}, 0)")
        writer.values[op.id] = value._replace(name=f"v{op.id}", dims="", dtype=op.dtype)
        return
    if op.how != EXP_SUM:
        dtype = ops.wide(op.how, value.dtype)
        text = f"told_by(told{op.id} + other).to(tl.int32)"
        text = ops.bitcast(text, dtype) if dtype != "int32" else text
        writer.emit(f"t{op.id} = {_of_others(writer, text, ops.least(op.how, value.dtype))}")
        writer.reduced(op, f"t{op.id}")
        writer.values[op.id] = value._replace(name=f"v{op.id}", dims="", dtype=op.dtype)
        return
    _, largest, _ = op.args
    writer.emit(f"t{op.id} = told_by(told{largest} + other)")
    quotient = quotient_of(writer, op)
    exp, over = ("added_exp({0})", "") if quotient is None else forms_of(writer, quotient)
    first, second = f"t{op.id}.to(tl.int32)", f"(t{op.id} >> 32).to(tl.int32)"
    first, second = (ops.bitcast(text, "float32") for text in (first, second))
    least = 'float("-inf")'
    writer.emit(f"f{op.id} = {_of_others(writer, first, least)}")
    writer.emit(f"v{largest} = tl.reduce(f{op.id}, 0, larger)")
    writer.emit(f"b{op.id} = tl.where(v{largest} == {least}, 0.0, v{largest})")
    writer.emit(f"v{op.id} = tl.sum({second} * {exp.format(f'f{op.id} - b{op.id}')}, 0)")
    writer.emit(f'v{op.id} = tl.where(v{largest} == {least}, float("nan"), v{op.id})')
    for number in (largest, op.id):
        writer.values[number] = value._replace(name=f"v{number}", dims="", dtype="float32")
    if quotient is not None and not writer.tile.is_behind:
        writer.emit(f"z{op.id} = {over.format(exp.format(f'm{largest} - v{largest}'), f'v{op.id}')}")


def _of_others(writer: Any, text: str, least: str) -> str:
    return f"tl.where(is_other, {text}, {least})" if power_of_two(writer.tile.parts) != writer.tile.parts else text


def _count(writer: Any, place: str) -> str:
    """The text of how many elements of a row the part `place` has."""
    length, columns = extent_of(writer.tile.along), writer.tile.columns
    if length % columns == 0:
        return f"{columns}.0"
    return f"tl.minimum({length} - {place} * {columns}, {columns}).to(tl.float32)"


def quotient_of(writer: Any, total: LoopOp) -> LoopOp | None:
    """What is made of the exponentials that were added up to `total`; the most exact one."""
    made = [op for stage in writer.kernel.stages for op in stage.body if op.how == HELD and op.args == (total.id,)]
    return min(made, key=lambda op: op.id in writer.coarse, default=None)


def forms_of(writer: Any, quotient: LoopOp) -> tuple[str, str]:
    """The exponential and the division of a quotient."""
    if quotient.id in writer.coarse:
        return "near_exp({0})", "share({0}, {1})"
    return "libdevice.exp({0})", "divided({0}, {1})"
