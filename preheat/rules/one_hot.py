"""Sums of what is zero but at one place of the axis: no need to walk it.

    %4: f32[64, 5003] = where(eq(iota(axis=1), expand(%1)), expand(%2), 0.0)
    %5: f32[64, 1] = sum(%4, axes=(1,), keepdim=True)
      ->
    %5: f32[64, 1] = where(0 <= %1 < 5003, %2, 0.0) + 0.0

The gradient of a loss over classes is such a value, and that of the softmax before it sums it.
Exact: all other terms are zeros, and so is -0.0 plus one of them.
"""

from dataclasses import replace

from preheat.ir.graph import Op, Ref
from preheat.ir.ops import ELEMENTWISE
from preheat.ir.types import TensorType, tensor
from preheat.rules.algebra import constant, full
from preheat.rules.engine import Rewriter, Rule


def one_hot_sum(g: Rewriter, op: Op) -> int | None:
    """See the module docstring."""
    chosen = g.definition(op.args[0], "where")
    if chosen is None or len(op.attr("axes")) != 1 or op.type.dtype != chosen.type.dtype:
        return None
    (axis,), (condition, value, other) = op.attr("axes"), chosen.args
    size = chosen.type.sizes[axis]
    if constant(g, other) != 0 or not isinstance(size, int) or size < 2:
        return None
    found, small = _is_hit(g, condition, axis, size), _narrow(g, value, axis)
    if found is None or small is None:
        return None
    type = _narrowed(chosen.type, axis)
    zero = Ref(full(g, 0, type))
    made = g.emit("where", (Ref(found), Ref(small), zero), type)
    if type.kind == "f":
        made = g.emit("add", (Ref(made), zero), type)
    return made if op.type.sizes == type.sizes else g.emit("reshape", (Ref(made),), op.type)


def _is_hit(g: Rewriter, condition: Ref, axis: int, size: int) -> int | None:
    """For each line along `axis` whether `condition` holds at one place of it, if it holds at one
    at most; None if it may hold at more."""
    op = g.definition(condition)
    if op is None or op.name not in ("eq", "logical_and"):
        return None
    for one, other in (op.args, op.args[::-1]):
        if op.name == "logical_and":
            hit, also = _is_hit(g, one, axis, size), _narrow(g, other, axis)
            if hit is not None and also is not None:
                return g.emit("logical_and", (Ref(hit), Ref(also)), _narrowed(op.type, axis))
            continue
        place, position = _narrow(g, other, axis), g.definition(one, "iota")
        if position is None or place is None or g.type(one).kind not in "iu":
            continue
        if (position.attr("axis"), position.attr("start"), position.attr("step")) == (axis, 0, 1):
            return _is_between(g, place, size)
    return None


def _is_between(g: Rewriter, place: int, size: int) -> int:
    type = g.type(Ref(place))
    truth = replace(type, dtype="bool")
    low = g.emit("ge", (Ref(place), Ref(full(g, 0, type))), truth)
    high = g.emit("lt", (Ref(place), Ref(full(g, size, type))), truth)
    return g.emit("logical_and", (Ref(low), Ref(high)), truth)


def _narrow(g: Rewriter, arg: Ref, axis: int) -> int | None:
    """`arg`, whose elements along `axis` are all the same, with one of them; None if they may differ."""
    type, op = g.type(arg), g.definition(arg)
    if type.sizes[axis] == 1:
        return arg.id
    if op is None:
        return None
    small = _narrowed(type, axis)
    if op.name == "full":
        return g.emit("full", (), small, value=op.attr("value"))
    if op.name == "expand":
        return _unexpanded(g, op, axis, small)
    if op.name not in ELEMENTWISE:
        return None
    args = [_narrow(g, part, axis) for part in op.args]
    return None if None in args else g.emit(op.name, map(Ref, args), small, **dict(op.attrs))


def _unexpanded(g: Rewriter, op: Op, axis: int, small: TensorType) -> int | None:
    source = g.type(op.args[0])
    missing = small.rank - source.rank
    if axis < missing or source.sizes[axis - missing] != 1:
        return None
    if source.sizes == small.sizes:
        return op.args[0].id
    kept = tuple(
        stride if have == want else 0
        for have, want, stride in zip(source.sizes, small.sizes[missing:], source.strides))
    return g.emit("expand", op.args, replace(small, strides=(0,) * missing + kept))


def _narrowed(type: TensorType, axis: int) -> TensorType:
    sizes = (*type.sizes[:axis], 1, *type.sizes[axis + 1:])
    return tensor(type.dtype, sizes, device=type.device)


RULES: tuple[Rule, ...] = (Rule("one hot sum", "sum", one_hot_sum),)
