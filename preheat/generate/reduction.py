"""Reductions: how each starts, takes in a value, merges and ends. One lane is one running result.

    sum over lanes   {a, b, c, d}  ->  {a+c, b+d}  ->  a+c+b+d

A state is a list of values: one, or for argmax and argmin two (the best value, its position).
NaN wins in max, min, argmax, argmin; the first of equal positions is kept.
"""

from preheat.base.errors import InternalError
from preheat.generate import elementwise
from preheat.generate.elementwise import ELEMENT
from preheat.generate.llvm import Builder, Value
from preheat.ir.loop import LoopOp
from preheat.ir.types import DTYPES

State = list[Value]
_COMBINE = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "logical_or",
    "all": "logical_and",
}
_ORDER = {"argmax": "gt", "argmin": "lt"}


def working_dtype(op: LoopOp, source: str) -> str:
    """In which dtype `op` reduces values of dtype `source`; 16-bit floats reduce in float32."""
    if op.how in ("any", "all"):
        return "bool"
    dtype = source if op.how in _ORDER else op.dtype
    return "float32" if DTYPES[dtype].kind == "f" and DTYPES[dtype].itemsize == 2 else dtype


def is_float_sum(op: LoopOp) -> bool:
    """Whether rounding errors add up, so that long sums are worth splitting."""
    return op.how == "sum" and DTYPES[op.dtype].kind == "f"


def start(
    b: Builder, op: LoopOp, dtype: str, lanes: int, position: int | Value, step: int
) -> State:
    """The state of no values yet; lane k will first see the position `position` + k * `step`."""
    neutral = elementwise.number(dtype, _neutral(op.how, dtype), lanes, b)
    if op.how not in _ORDER:
        return [neutral]
    if isinstance(position, Value):
        return [neutral, b.binary("add", b.splat(position, lanes), b.iota(lanes, step))]
    return [neutral, b.vector([position + k * step for k in range(lanes)], "i64")]


def _neutral(how: str, dtype: str) -> int | float | bool:
    if how in ("sum", "any"):
        return 0
    if how in ("prod", "all"):
        return 1
    is_max = how in ("max", "argmax")
    kind, bits = DTYPES[dtype].kind, DTYPES[dtype].itemsize * 8
    if kind == "f":
        return float("-inf") if is_max else float("inf")
    if kind == "b":
        return not is_max
    if kind == "u":
        return 0 if is_max else (1 << bits) - 1
    return -(1 << (bits - 1)) if is_max else (1 << (bits - 1)) - 1


def take(
    b: Builder, op: LoopOp, dtype: str, state: State, value: Value, mask: Value | None,
    position: Value | None,
) -> State:
    """`state` after `value`, in the lanes of `mask` only. `position`: i64 lanes, of arg ones."""
    if op.how not in _ORDER:
        after = merge(b, op, dtype, state, [value])
        return after if mask is None else [b.select(mask, after[0], state[0])]
    better = _is_better(b, op, dtype, value, state[0])
    if mask is not None:
        better = b.binary("and", better, mask)
    return [b.select(better, value, state[0]), b.select(better, position, state[1])]


def merge(b: Builder, op: LoopOp, dtype: str, one: State, other: State) -> State:
    """The state of the values of both."""
    if op.how not in _ORDER:
        return [elementwise.apply(b, _COMBINE[op.how], dtype, (one[0], other[0]))]
    better = _is_better(b, op, dtype, other[0], one[0])
    worse = _is_better(b, op, dtype, one[0], other[0])
    earlier = b.compare("slt", other[1], one[1])
    tie = elementwise.apply(b, "bitwise_not", "bool", (b.binary("or", better, worse),))
    chosen = b.binary("or", better, b.binary("and", tie, earlier))
    return [b.select(chosen, new, old) for new, old in zip(other, one)]


def _is_better(b: Builder, op: LoopOp, dtype: str, value: Value, best: Value) -> Value:
    """Strictly; a NaN is better than any number and not than a NaN."""
    better = elementwise.apply(b, _ORDER[op.how], dtype, (value, best))
    if DTYPES[dtype].kind != "f":
        return better
    first_nan = b.binary("and", b.compare("uno", value, value), b.compare("ord", best, best))
    return b.binary("or", better, first_nan)


def fold(b: Builder, op: LoopOp, dtype: str, state: State, lanes: int) -> State:
    """`state` on fewer lanes: halves are merged until `lanes` are left (both powers of two)."""
    while state[0].lanes > lanes:
        half = state[0].lanes // 2
        low, high = ([b.part(v, at, half) for v in state] for at in (0, half))
        state = merge(b, op, dtype, low, high)
    return state


def finish(b: Builder, op: LoopOp, dtype: str, state: State) -> Value:
    """The result, of the dtype that `op` declares."""
    if op.how not in (*_COMBINE, *_ORDER):
        raise InternalError(f"no reduction {op.how!r}; known: {', '.join((*_COMBINE, *_ORDER))}")
    result, held = (state[1], "int64") if op.how in _ORDER else (state[0], dtype)
    assert result.element == ELEMENT[held]
    return elementwise.cast(b, result, held, op.dtype)
