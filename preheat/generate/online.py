"""The largest of a row and the sum of exponentials below it, in one walk instead of two.

    stage j   v0 = load ..; r1 = reduce max v0            stage j   v0 = load ..
    stage j   v2 = load ..; v3 = sub v2, r1         ->              r1 = reduce max v0
              v4 = exp v3; r5 = reduce sum v4                       r5 = reduce exp_sum v0, r1

For rows that no program holds: the sum so far is scaled whenever the largest grows, once a block. A
stage whose only work was the sum is gone. Source: Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from preheat.generate.triton_ops import least as least_of
from preheat.ir.hinted import holds
from preheat.ir.loop import Kernel, LoopOp, Stage
from preheat.ir.types import DTYPES

LANE = 8  # elements of a row apart, whose exponentials are added before the sum so far is scaled
WARP, VECTOR_BYTES = 32, 16  # threads that compute together; of memory that one loads at once
EXP_SUM = "exp_sum"  # args: the value, its largest, and the exponential that it replaces


def online(kernel: Kernel) -> Kernel:
    """`kernel` with each such pair of reductions in the walk of the first."""
    stages = list(kernel.stages)
    for place, stage in enumerate(stages):
        taken: set[int] = set()
        for largest in [op for op in stage.body if op.op == "reduce" and op.how == "max"]:
            for later in range(place + 1, len(stages)):
                found = _sum_below(stages[place], largest, stages[later])
                if found is None or largest.id in taken:
                    continue
                total, exponential = found
                taken.add(largest.id)
                args = (largest.args[0], largest.id, exponential)
                merged = replace(total, how=EXP_SUM, args=args)
                stages[place] = _after(stages[place], largest, merged)
                body = tuple(op for op in stages[later].body if op is not total)
                stages[later] = replace(stages[later], body=body)
    return replace(kernel, stages=tuple(s for s in stages if not s.axes or works(s)))


def exponential_sums(kernel: Kernel) -> frozenset[int]:
    """The sums of exponentials below the largest of their row: no less than 1 and no more than the row is long."""
    return frozenset(
        found[0].id for place, stage in enumerate(kernel.stages) for largest in stage.body
        if largest.op == "reduce" and largest.how == "max" for later in kernel.stages[place + 1 :]
        if (found := _sum_below(stage, largest, later)) is not None)


def quotients(stage: Stage, total: LoopOp, later: Stage) -> frozenset[int]:
    """The divisions in `later` of exp(value - largest) by `total`, which `stage` has of the same value and largest."""
    value, largest, _ = total.args
    made = {op.id: op for op in later.body}
    powers = {
        power.id for power in later.body if power.op == "exp" and (below := made.get(power.args[0])) is not None
        and below.op == "sub" and below.args[1] == largest and _text(later, below.args[0]) == _text(stage, value)}
    return frozenset(op.id for op in later.body if op.op == "div" and op.args[1] == total.id and op.args[0] in powers)


def squares(stage: Stage, total: LoopOp, later: Stage) -> list[tuple[LoopOp, int]]:
    """The sums in `later` of (value - centre)^2 of the value whose sum `total` is in `stage`, and the centre of each, a
    number of its row."""
    made, found = {op.id: op for op in later.body}, []
    for op in later.body:
        square = made.get(op.args[0]) if op.op == "reduce" and op.how == "sum" else None
        if square is None or square.op != "mul" or square.args[0] != square.args[1]:
            continue
        below = made.get(square.args[0])
        if below is None or below.op != "sub" or below.args[1] in made or op.dtype != "float32":
            continue
        if _text(later, below.args[0]) == _text(stage, total.args[0]):
            found.append((op, below.args[1]))
    return found


def walks(kernel: Kernel) -> int:
    """How often a row is walked."""
    return sum(bool(stage.axes) for stage in kernel.stages)


def works(stage: Stage) -> bool:
    """Something outlives the walk."""
    return any(op.op in ("reduce", "store", "check") or op.keep for op in stage.body)


def _after(stage: Stage, first: LoopOp, added: LoopOp) -> Stage:
    body = [op for each in stage.body for op in ((each, added) if each is first else (each,))]
    return replace(stage, body=tuple(body))


def _sum_below(stage: Stage, largest: LoopOp, later: Stage) -> tuple[LoopOp, int] | None:
    """The sum in `later` of exp(value - largest) for the value whose largest it is, and the exp."""
    if largest.dtype != "float32":
        return None
    made = {op.id: op for op in later.body}
    for total in later.body:
        if total.op != "reduce" or total.how != "sum" or total.dtype != "float32":
            continue
        power = made.get(total.args[0])
        below = made.get(power.args[0]) if power is not None and power.op == "exp" else None
        if below is None or below.op != "sub" or below.args[1] != largest.id:
            continue
        if _text(later, below.args[0]) == _text(stage, largest.args[0]):
            return total, power.id
    return None


def same_text(one: Stage, value: int, other: Stage, of_other: int) -> bool:
    """Whether two values of stages are made of the same."""
    return _text(one, value) == _text(other, of_other)


def _text(stage: Stage, value: int) -> tuple:
    """What `value` is, by the ops of the stage down to what is known before it."""
    made = {op.id: op for op in stage.body}

    def parts(number: int) -> Iterator:
        op = made.get(number)
        if op is None or op.op == "reduce":
            yield number
            return
        index = None if op.index is None else (
            op.index.base,
            *((tuple(parts(t)) if isinstance(t, int) else t, s) for t, s in op.index.terms))
        mask = None if op.mask is None else tuple(parts(op.mask))
        yield (op.op, op.dtype, op.param, index, mask, repr(op.other), op.axis,
               tuple(tuple(parts(a)) for a in op.args))

    return tuple(parts(value))


# ---------------------------------------------------------------------------- as Triton's text
def begin(writer: Any, op: LoopOp) -> None:
    """Writes (by `writer`, of `triton`) what the largest value or the sum begins with."""
    least = "0.0" if op.how == EXP_SUM else 'float("-inf")'
    writer.emit(f"a{op.id} = tl.full({lanes_of(writer).so_far}, {least}, tl.float32)")


def accumulate(writer: Any, op: LoopOp, wide: str, mask: str | None) -> None:
    """Writes what the walk does for `op`: the sum so far is scaled when the
    largest grows. Both are one value a lane of some elements that a thread has, which
    are joined behind the walk: nothing waits within it. Exponentials are ex2's: what is far below the
    largest, where it is less exact, adds little."""
    lanes = lanes_of(writer)
    if op.how != EXP_SUM:
        least = least_of(op.how, "float32")
        wide = f"tl.where({mask}, {wide}, {least})" if mask else wide
        whole = writer.whole(wide, writer.values[op.args[0]])
        writer.emit(f"g{op.id} = tl.reshape({whole}, {lanes.block})")
        writer.emit(f"n{op.id} = larger(a{op.id}, tl.reduce(g{op.id}, {lanes.axis}, larger))")
        writer.emit(f'b{op.id} = tl.where(n{op.id} == float("-inf"), 0.0, n{op.id})')
        return
    (_, largest, _) = op.args
    writer.emit(f"w{op.id} = tl.sum(added_exp(g{largest} - b{largest}[{lanes.spread}]), {lanes.axis})")
    writer.emit(f"a{op.id} = a{op.id} * added_exp(a{largest} - b{largest}) + w{op.id}")
    writer.emit(f"a{largest} = n{largest}")


class Lanes(NamedTuple):
    """so_far: the shape of what a walk has so far, a number each lane. block: that of a block in which `axis` is along a lane;
    spread: the index by which what is so far is as a block. each: elements of a block that are a lane."""

    so_far: list[int]
    block: list[int]
    axis: int
    spread: str
    each: int


def lanes_of(writer: Any) -> Lanes:
    """The lanes of a walk. A lane are elements that one thread has, so that nothing waits for other threads: neighbours of rows
    that begin where it loads several at once, else elements apart."""
    tile, down = writer.tile, [] if writer.is_flat else [writer.tile.rows]
    vector = _vector(writer)
    are_neighbours = writer.is_flat and not writer.is_light and are_aligned(writer)
    held = tile.rows * tile.columns // (tile.warps * WARP)  # by a thread
    if writer.is_light:
        each = 1
    elif writer.is_flat:
        each = vector if are_neighbours else LANE
    else:
        each = min(tile.columns, max(1, held // vector))
    lanes = tile.columns // each
    block = [*down, lanes, each] if are_neighbours else [*down, each, lanes]
    axis = len(down) + are_neighbours
    return Lanes([*down, lanes], block, axis, ", ".join("None" if k == axis else ":" for k in range(len(block))), each)


def are_aligned(writer: Any) -> bool:
    """Whether rows begin where a thread may load several elements at once."""
    along, vector = {axis.name for axis in writer.tile.along}, _vector(writer)
    walked = [op.index for op in _loads(writer) if any(term in along for term, _ in op.index.terms)]
    steps = [step for index in walked for step in (index.base, *(s for term, s in index.terms if term not in along))]
    return all(holds("eq", step % vector, 0) or str(step) in writer.multiples for step in steps)


def _vector(writer: Any) -> int:
    """The elements that a thread loads at once, of the narrowest."""
    return VECTOR_BYTES // min(DTYPES[op.dtype].itemsize for op in _loads(writer))


def _loads(writer: Any) -> list[LoopOp]:
    return [op for stage in writer.kernel.stages for op in stage.body if op.op == "load"]


def finish(writer: Any, op: LoopOp) -> None:
    """Writes what `op` is once the row has been walked."""
    if op.how != EXP_SUM:
        writer.emit(f"v{op.id} = {writer.joined(f'a{op.id}', 'larger')}")
        return
    _, largest, _ = op.args
    writer.emit(f'b{largest} = tl.where(v{largest} == float("-inf"), 0.0, v{largest})')
    total = writer.joined(f"a{op.id} * added_exp(a{largest} - b{largest})", "tl.sum")
    writer.emit(f'v{op.id} = tl.where(v{op.args[1]} == float("-inf"), float("nan"), {total})')
