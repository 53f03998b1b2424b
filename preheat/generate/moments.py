"""A sum and the sum of squares about what is made of it, in one walk instead of two.

    stage j   v0 = load ..; r1 = reduce sum v0            stage j   v0 = load ..
              v2 = div r1, 4096                                     r1 = reduce moments v0
    stage j   v3 = load ..; v4 = sub v3, v2       ->                v2 = div r1, 4096
              v5 = mul v4, v4; r6 = reduce sum v5                   r6 = reduce squares v0, r1, v2

For rows and columns that no program holds. Each lane has the mean so far of what it was given, and the squares about
that; those of a block, about its own mean, are joined to them, so nothing is lost where values are large and near each other. What is
padded counts as none where the squares leave it out.

Guarantees: the rounding of two walks.
Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from preheat.generate.online import EXP_SUM, lanes_of, online, same_text, works
from preheat.ir.loop import Kernel, LoopOp, Stage

MOMENTS = ALL, THERE = "walked moments", "walked moments of what is there"  # how of the sum
IN_ONE_WALK = (EXP_SUM, *MOMENTS)
SQUARES = "walked squares"  # how of the sum of squares; args: the value, its sum, and what they are about


def in_one_walk(kernel: Kernel) -> Kernel:
    """`kernel` with largest values and the sums of exponentials below them, and sums and the squares about their means, in
    one walk each."""
    stages = list(online(kernel).stages)
    consts = {op.id: op.other for stage in stages for op in stage.body if op.op == "const"}
    for place, stage in enumerate(stages):
        for total in [op for op in stage.body if op.op == "reduce" and op.how == "sum" and op.dtype == "float32"]:
            for later in range(place + 1, len(stages)):
                found = _squares(stages[place], total, stages[later], consts)
                if found is None:
                    continue
                made, centre, how = found
                stages[place] = _with(stages[place], total, replace(total, how=how))
                joined = Stage((), (replace(made, how=SQUARES, args=(total.args[0], total.id, centre)),))
                rest = replace(stages[later], body=tuple(op for op in stages[later].body if op is not made))
                stages[later : later + 1] = [joined, rest]
                break
    return replace(kernel, stages=tuple(stage for stage in stages if not stage.axes or works(stage)))


def has_moments(kernel: Kernel) -> bool:
    """Whether a sum and squares are in one walk."""
    return any(op.how in MOMENTS for stage in kernel.stages for op in stage.body)


def _squares(
    stage: Stage, total: LoopOp, later: Stage, consts: Mapping[int, Any],
) -> tuple[LoopOp, int, str] | None:
    """The sum in `later` of (value - centre)^2 of the value whose sum `total` is in `stage`, that number of its row, and
    whether what the value has 0 for counts."""
    made, before = {op.id: op for op in later.body}, {op.id: op for op in stage.body}
    value = before.get(total.args[0])
    if value is None or value.dtype != "float32" or not later.axes:
        return None
    for op in later.body:
        square = made.get(op.args[0]) if op.op == "reduce" and op.how == "sum" and op.dtype == "float32" else None
        if square is None or square.op != "mul" or square.args[0] != square.args[1]:
            continue
        below, mask = made.get(square.args[0]), None
        if below is not None and below.op == "mul":
            below, mask = made.get(below.args[0]), _mask(made.get(below.args[1]), consts)
            there = _there(value)
            if mask is None or there is None or not same_text(later, mask, stage, there):
                continue
        if below is None or below.op != "sub" or below.args[1] in made:
            continue
        if same_text(later, below.args[0], stage, value.id):
            return op, below.args[1], ALL if mask is None else THERE
    return None


def _mask(op: LoopOp | None, consts: Mapping[int, Any]) -> int | None:
    """The mask of which a value is 1, and else 0."""
    is_mask = op is not None and op.op == "where" and [consts.get(arg) for arg in op.args[1:]] == [1, 0]
    return op.args[0] if is_mask else None


def _there(value: LoopOp) -> int | None:
    """The mask of which a value is something, and else padding."""
    return value.args[0] if value.op == "where" else value.mask


def _with(stage: Stage, old: LoopOp, new: LoopOp) -> Stage:
    return replace(stage, body=tuple(new if op is old else op for op in stage.body))


# ---------------------------------------------------------------------------- as Triton's text
def begin(writer: Any, op: LoopOp) -> None:
    """Writes (by `writer`, of `triton`) what each lane begins with: sum, mean, squares, and of how many."""
    for name in "acq":
        writer.emit(f"{name}{op.id} = tl.full({lanes_of(writer).so_far}, 0.0, tl.float32)")
    writer.emit(f"n{op.id} = tl.full([], 0.0, tl.float32)")


def begin_masked(writer: Any, op: LoopOp) -> None:
    """Writes that from here on lanes may be of different numbers."""
    writer.emit(f"n{op.id} = tl.full({lanes_of(writer).so_far}, 0.0, tl.float32) + n{op.id}")


def accumulate(writer: Any, op: LoopOp, wide: str, mask: str | None) -> None:
    """Writes what the walk does for the sum `op` and its squares. The factors of what means differ by are in an order in which
    nothing is infinite that the result is not."""
    number, value = op.id, writer.values[op.args[0]]
    _, shape, axis, spread, each = lanes_of(writer)
    masks = [mask] if mask else []
    if op.how == THERE:
        there = _there(next(o for stage in writer.kernel.stages for o in stage.body if o.id == op.args[0]))
        masks += [] if there in writer.known else [writer.values[there].name]
    wide = f"tl.where({mask}, {wide}, 0.0)" if mask else wide
    writer.emit(f"g{number} = tl.reshape({writer.whole(wide, value)}, {shape})")
    writer.emit(f"w{number} = tl.sum(g{number}, {axis})")
    writer.emit(f"a{number} = a{number} + w{number}")
    if masks:
        writer.emit(f"h{number} = tl.where({' & '.join(masks)}, 1.0, 0.0) + tl.zeros({writer.shape('yx')}, tl.float32)")
        writer.emit(f"h{number} = tl.reshape(h{number}, {shape})")
        writer.emit(f"k{number} = tl.sum(h{number}, {axis})")
        writer.emit(f"m{number} = n{number} + k{number}")
        writer.emit(f"e{number} = w{number} / tl.maximum(k{number}, 1.0)")
        writer.emit(f"d{number} = (g{number} - e{number}[{spread}]) * h{number}")
        writer.emit(f"r{number} = k{number} / tl.maximum(m{number}, 1.0)")
    else:
        writer.emit(f"m{number} = n{number} + {each}.0")
        writer.emit(f"e{number} = w{number} * {1 / each}")
        writer.emit(f"d{number} = g{number} - e{number}[{spread}]")
        writer.emit(f"r{number} = {each}.0 / m{number}")
    writer.emit(f"u{number} = e{number} - c{number}")
    apart = f"u{number} * (n{number} * r{number}) * u{number}"
    writer.emit(f"q{number} = q{number} + (tl.sum(d{number} * d{number}, {axis}) + {apart})")
    writer.emit(f"c{number} = c{number} + u{number} * r{number}")
    writer.emit(f"n{number} = m{number}")


def finish(writer: Any, op: LoopOp) -> None:
    """Writes the sum once the row has been walked."""
    writer.emit(f"v{op.id} = {writer.joined(f'a{op.id}', 'tl.sum')}")


def join(writer: Any, op: LoopOp) -> None:
    """Writes the sum of squares `op`, when what they are about is known."""
    _, total, centre = op.args
    writer.emit(f"u{op.id} = c{total} - {writer.values[centre].name}")
    squares = f"q{total} + u{op.id} * n{total} * u{op.id}"
    writer.emit(f"v{op.id} = {writer.joined(squares, 'tl.sum')}")
    writer.values[op.id] = writer.values[total]._replace(name=f"v{op.id}")
