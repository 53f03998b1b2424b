"""Movement: chains of views become shorter ones. Nothing computes, so every rule is exact.

    permute(permute(x, (1, 0)), (1, 0))            ->  x
    reshape(reshape(x))                            ->  reshape(x)
    slice(place(x, part, 0, 3, 1), 0, 3, 1)        ->  part        the same region
    slice(cat(a, b, axis=0), axis=0, start=4)      ->  slice(b)    inside one part
"""

from preheat.ir.graph import Op, Ref
from preheat.ir.scalar import Scalar
from preheat.rules.engine import Rewriter, Rule, same_region


def unmoved(g: Rewriter, op: Op) -> int | None:
    """A reshape, expand or slice to the sizes there are."""
    return op.args[0].id if g.type(op.args[0]).sizes == op.type.sizes else None


def collapse(g: Rewriter, op: Op) -> int | None:
    """reshape of reshape, expand of expand: the outer one alone."""
    below = g.definition(op.args[0], op.name)
    return g.emit(op.name, below.args, op.type) if below is not None else None


def of_constant(g: Rewriter, op: Op) -> int | None:
    """Movement of a constant is a constant."""
    below = g.definition(op.args[0], "full")
    return g.emit("full", (), op.type, value=below.attr("value")) if below is not None else None


def permute_still(g: Rewriter, op: Op) -> int | None:
    axes = op.attr("axes")
    return op.args[0].id if axes == tuple(range(len(axes))) else None


def permute_pair(g: Rewriter, op: Op) -> int | None:
    below = g.definition(op.args[0], "permute")
    if below is None:
        return None
    inner = below.attr("axes")
    return g.emit("permute", below.args, op.type, axes=tuple(inner[a] for a in op.attr("axes")))


def flip_pair(g: Rewriter, op: Op) -> int | None:
    below = g.definition(op.args[0], "flip")
    if below is None:
        return None
    axes = tuple(sorted(set(op.attr("axes")) ^ set(below.attr("axes"))))
    return g.emit("flip", below.args, op.type, axes=axes) if axes else below.args[0].id


def slice_pair(g: Rewriter, op: Op) -> int | None:
    """A slice of a slice along the same axis."""
    below = g.definition(op.args[0], "slice")
    if below is None or below.attr("axis") != op.attr("axis"):
        return None
    start = below.attr("start") + op.attr("start") * below.attr("step")
    step = below.attr("step") * op.attr("step")
    return g.emit("slice", below.args, op.type, axis=op.attr("axis"), start=start, step=step)


def slice_of_place(g: Rewriter, op: Op) -> int | None:
    """What was just placed there, or what was there before when the two ranges do not meet.

    Not for memory of an input: there the place is a store, and readers read the memory after it.
    """
    below = g.definition(op.args[0], "place")
    if below is None or below.attr("axis") != op.attr("axis") or _is_input_memory(g, below.args[0]):
        return None
    axis = op.attr("axis")
    placed, taken = g.type(below.args[1]).sizes[axis], op.type.sizes[axis]
    if same_region(op, below, taken, placed):
        return below.args[1].id
    spans = [(o.attr("start"), n, o.attr("step")) for o, n in ((op, taken), (below, placed))]
    if any(isinstance(v, Scalar) for span in spans for v in span):
        return None
    (a, n, p), (b, m, q) = spans
    if n and m and (a + (n - 1) * p < b or b + (m - 1) * q < a):
        return g.emit("slice", below.args[:1], op.type, axis=axis, start=a, step=p)
    return None


def _is_input_memory(g: Rewriter, arg: Ref) -> bool:
    """Whether `arg` is an input, a view of one, or one with parts replaced."""
    op = g.definition(arg)
    while op is not None and op.name in ("place", "slice", "reshape", "permute"):
        arg = op.args[0]
        op = g.definition(arg)
    return op is None


def slice_of_cat(g: Rewriter, op: Op) -> int | None:
    """A slice inside one part of a cat along the same axis."""
    below = g.definition(op.args[0], "cat")
    axis, start, step, size = (
        op.attr("axis"),
        op.attr("start"),
        op.attr("step"),
        op.type.sizes[op.attr("axis")],
    )
    if below is None or below.attr("axis") != axis or size == 0:
        return None
    begin = 0
    for part in below.args:
        length = g.type(part).sizes[axis]
        if any(isinstance(v, Scalar) for v in (length, start, step, size)):
            return None
        if begin <= start and start + (size - 1) * step < begin + length:
            return g.emit("slice", (part,), op.type, axis=axis, start=start - begin, step=step)
        begin += length
    return None


def place_pair(g: Rewriter, op: Op) -> int | None:
    """Of two places at one region the later one counts."""
    below = g.definition(op.args[0], "place")
    if below is None:
        return None
    axis = op.attr("axis")
    sizes = [g.type(o.args[1]).sizes[axis] for o in (op, below)]
    if not same_region(op, below, *sizes):
        return None
    kept = {key: op.attr(key) for key in ("axis", "start", "step")}
    return g.emit("place", (below.args[0], op.args[1]), op.type, **kept)


def place_all(g: Rewriter, op: Op) -> int | None:
    """A part as large as the whole replaces it."""
    return (
        op.args[1].id
        if g.type(op.args[1]).sizes == op.type.sizes and op.attr("start") == 0
        else None
    )


def place_back(g: Rewriter, op: Op) -> int | None:
    """A region placed where it was taken from, unchanged."""
    below = g.definition(op.args[1], "slice")
    if below is None or below.args[0] != op.args[0]:
        return None
    axis = op.attr("axis")
    size = g.type(op.args[1]).sizes[axis]
    return op.args[0].id if same_region(op, below, size, size) else None


def cat_nested(g: Rewriter, op: Op) -> int | None:
    """A cat of cats along one axis, and parts without elements."""
    parts: list[Ref] = []
    for arg in op.args:
        below = g.definition(arg, "cat")
        if below is not None and below.attr("axis") == op.attr("axis"):
            parts += below.args
        elif g.type(arg).sizes[op.attr("axis")] != 0:
            parts.append(arg)
    if len(parts) == 1:
        return parts[0].id
    if not parts or len(parts) == len(op.args):
        return None
    return g.emit("cat", parts, op.type, axis=op.attr("axis"))


def no_padding(g: Rewriter, op: Op) -> int | None:
    return None if any(op.attr("low")) or any(op.attr("high")) else op.args[0].id


_MOVES = ("reshape", "expand", "slice", "permute", "flip")

RULES: tuple[Rule, ...] = (
    *(Rule("unmoved", name, unmoved) for name in ("reshape", "expand", "slice")),
    *(Rule("of constant", name, of_constant) for name in _MOVES),
    *(Rule("collapse", name, collapse) for name in ("reshape", "expand")),
    Rule("permute still", "permute", permute_still), Rule("permute pair", "permute", permute_pair),
    Rule("flip pair", "flip", flip_pair), Rule("slice pair", "slice", slice_pair),
    Rule("slice of place", "slice", slice_of_place), Rule("slice of cat", "slice", slice_of_cat),
    Rule("place back", "place", place_back), Rule("place pair", "place", place_pair),
    Rule("place all", "place", place_all), Rule("cat nested", "cat", cat_nested),
    Rule("no padding", "pad", no_padding),
)
