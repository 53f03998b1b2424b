"""Algebra: constants, identities and casts, each exact in IEEE arithmetic and wrapping integers.

    mul(x, full(1.0))                ->  x          x + 0.0 is not: it turns -0.0 into 0.0
    div(x, full(8.0))                ->  mul(x, full(0.125))      powers of two only
    cast(cast(maximum(cast(x: bf16, f32), 0), bf16), f32)  ->  the maximum      it has 16 bits as it is
    cast(cast(x: bf16, f32), f64)    ->  cast(x, f64)             widening loses nothing
    where(c, cast(x: bf16, f32), 0)  ->  cast(where(c, x, 0), f32)
"""

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import replace

from preheat.ir.graph import Op, Ref
from preheat.ir.ops import COMPARISONS
from preheat.ir.scalar import Number, Scalar
from preheat.ir.types import DTYPES, HALVES, TensorType
from preheat.rules.engine import Rewriter, Rule


# ---------------------------------------------------------------------------- numbers
def rounded(value: Number, dtype: str) -> Number | None:
    """`value` as `dtype` holds it; None where that is not defined."""
    facts = DTYPES[dtype]
    if facts.kind == "b":
        return value != 0
    if facts.kind == "f":
        return _ROUND[dtype](float(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value)
    bits = facts.itemsize * 8
    value = int(value) & (2**bits - 1)
    return value - 2**bits if facts.kind == "i" and value >> (bits - 1) else value


def _float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _float16(value: float) -> float:
    try:
        return struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _bfloat16(value: float) -> float:
    """To nearest, ties to even, on the bits of the float32."""
    value = _float32(value)
    if not math.isfinite(value):
        return value
    (bits,) = struct.unpack("I", struct.pack("f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("f", struct.pack("I", bits))[0]


_ROUND: dict[str, Callable[[float], float]] = {
    "float64": float, "float32": _float32, "float16": _float16, "bfloat16": _bfloat16,
}


def constant(g: Rewriter, arg: Ref) -> Number | None:
    """The number that each element of `arg` is, as its dtype holds it; None if no constant."""
    op = g.definition(arg, "full")
    if op is None or isinstance(op.attr("value"), Scalar):
        return None
    return rounded(op.attr("value"), op.type.dtype)


def full(g: Rewriter, value: Number, type: TensorType) -> int:
    return g.emit("full", (), type, value=value)


def _divide(a: Number, b: Number) -> float:
    """IEEE division, which Python's is not at zero."""
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


# Correctly rounded results follow from float64 arithmetic for these (and float32 operands).
_FOLD: dict[str, Callable] = {
    "neg": operator.neg, "abs": abs, "logical_not": operator.not_,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "logical_and": lambda a, b: a and b, "logical_or": lambda a, b: a or b,
}


def fold(g: Rewriter, op: Op) -> int | None:
    """An elementwise op of constants is a constant."""
    numbers = [constant(g, a) for a in op.args]
    operand = g.type(op.args[0]).dtype
    if None in numbers or operand in ("float16", "bfloat16"):
        return None
    if operand == "bool" and op.name not in COMPARISONS:
        return None
    try:
        value = rounded(_FOLD[op.name](*numbers), op.type.dtype)
    except OverflowError:
        return None
    return None if value is None else full(g, value, op.type)


# ---------------------------------------------------------------------------- identities
def _is(number: Number | None, value: float) -> bool:
    """Whether the constant is `value`, its sign included."""
    return (
        number is not None
        and number == value
        and math.copysign(1.0, number) == math.copysign(1.0, value)
    )


def _is_float(op: Op) -> bool:
    return DTYPES[op.type.dtype].kind == "f"


def times_one(g: Rewriter, op: Op) -> int | None:
    """x * 1 and 1 * x are x."""
    for x, y in (op.args, op.args[::-1]):
        if op.type.dtype != "bool" and _is(constant(g, y), 1):
            return x.id
    return None


def plus_zero(g: Rewriter, op: Op) -> int | None:
    """x + (-0.0) is x for floats, x + 0 for integers."""
    zero = -0.0 if _is_float(op) else 0
    for x, y in (op.args, op.args[::-1]):
        if op.type.dtype != "bool" and _is(constant(g, y), zero):
            return x.id
    return None


def minus_zero(g: Rewriter, op: Op) -> int | None:
    """x - 0.0 is x, also for -0.0."""
    return op.args[0].id if _is(constant(g, op.args[1]), 0.0) else None


def over_power_of_two(g: Rewriter, op: Op) -> int | None:
    """x / 2**k is x * 2**-k: both round the same exact value."""
    number = constant(g, op.args[1])
    if not isinstance(number, float) or not math.isfinite(number) or number == 0:
        return None
    mantissa, exponent = math.frexp(number)
    if abs(mantissa) != 0.5 or abs(exponent) > 100:
        return None
    if number == 1.0:
        return op.args[0].id
    return g.emit("mul", (op.args[0], Ref(full(g, 1.0 / number, g.type(op.args[1])))), op.type)


def inverse_of(*inner: str) -> Callable:
    """A rule: op(inner(x)) is x."""

    def apply(g: Rewriter, op: Op) -> int | None:
        below = g.definition(op.args[0])
        return (
            below.args[0].id
            if below is not None and below.name in inner and len(below.args) == 1
            else None
        )

    return apply


def absolute_of(g: Rewriter, op: Op) -> int | None:
    """|-x| is |x|, ||x|| is |x|."""
    below = g.definition(op.args[0])
    return (
        g.emit("abs", below.args, op.type)
        if below is not None and below.name in ("neg", "abs")
        else None
    )


def double_not(g: Rewriter, op: Op) -> int | None:
    """not not x is x for a bool."""
    below = g.definition(op.args[0], "logical_not")
    return below.args[0].id if below is not None and g.type(below.args[0]).dtype == "bool" else None


def of_itself(g: Rewriter, op: Op) -> int | None:
    """maximum(x, x), x and x, x or x are x."""
    return (
        op.args[0].id
        if op.args[0] == op.args[1] and g.type(op.args[0]).dtype == op.type.dtype
        else None
    )


def known_choice(g: Rewriter, op: Op) -> int | None:
    """where(True, x, y) is x; where(c, x, x) is x."""
    condition, x, y = op.args
    number = constant(g, condition)
    if number is not None:
        return (x if number else y).id
    return x.id if x == y else None


def narrow_choice(g: Rewriter, op: Op) -> int | None:
    """A choice between 16-bit floats that were widened, or one and a number that they have, is made before: if it
    has memory, half as much of it."""
    found = [g.definition(arg) for arg in op.args[1:]]
    widened = {g.type(one.args[0]).dtype for one in found if one is not None and one.name == "cast"}
    if len(widened) != 1 or not widened.issubset(HALVES) or op.type.dtype != "float32":
        return None
    (dtype,) = widened
    narrow, args = replace(op.type, dtype=dtype), [op.args[0]]
    for arg, one in zip(op.args[1:], found):
        if one is not None and one.name == "cast":
            args.append(one.args[0])
            continue
        number = constant(g, arg)
        if number is None or rounded(number, dtype) != number:
            return None
        args.append(Ref(full(g, number, narrow)))
    return g.emit("cast", [Ref(g.emit("where", args, narrow))], op.type, dtype="float32")


def and_constant(g: Rewriter, op: Op) -> int | None:
    """x and True is x, x and False is False."""
    return _absorb(g, op, neutral=True)


def or_constant(g: Rewriter, op: Op) -> int | None:
    """x or False is x, x or True is True."""
    return _absorb(g, op, neutral=False)


def _absorb(g: Rewriter, op: Op, neutral: bool) -> int | None:
    for x, y in (op.args, op.args[::-1]):
        number = constant(g, y)
        if number is not None and g.type(x).dtype == "bool":
            return x.id if bool(number) is neutral else y.id
    return None


# ---------------------------------------------------------------------------- casts
def widens(a: str, b: str) -> bool:
    """Whether every value of dtype `a` is one of dtype `b`."""
    x, y = DTYPES[a], DTYPES[b]
    if x.kind == "b":
        return y.kind in "fiu"
    if x.kind == y.kind:
        return x.itemsize < y.itemsize
    return x.kind == "u" and y.kind == "i" and x.itemsize < y.itemsize


def cast_copy(g: Rewriter, op: Op) -> int | None:
    """A cast to the operand's dtype is a copy; who needs one gets it again (`engine`)."""
    return op.args[0].id if g.type(op.args[0]).dtype == op.type.dtype else None


def cast_constant(g: Rewriter, op: Op) -> int | None:
    number = constant(g, op.args[0])
    value = None if number is None else rounded(number, op.type.dtype)
    return None if value is None else full(g, value, op.type)


def cast_pair(g: Rewriter, op: Op) -> int | None:
    """Two casts are one, or none: after an exact widening, or of what loses nothing when it is rounded. Who reads
    the latter takes what is rounded where that has memory anyway: else both would, and the wider one twice as much."""
    below = g.definition(op.args[0], "cast")
    if below is None:
        return None
    start, middle = g.type(below.args[0]).dtype, below.type.dtype
    is_narrow = below.result in g.stored
    if start == op.type.dtype and (
            widens(start, middle) or not is_narrow and _is_held(g, below.args[0], middle)):
        return below.args[0].id
    if widens(start, middle) and op.type.dtype != "bool":
        return g.emit("cast", below.args, op.type, dtype=op.type.dtype)
    return None


def _is_held(g: Rewriter, value: Ref, dtype: str, depth: int = 4) -> bool:
    """Whether `dtype` has each element of `value`, a wider float: it was widened, and but chosen since."""
    op = g.definition(value)
    if op is None or not depth:
        return False
    if op.name == "cast":
        return g.type(op.args[0]).dtype == dtype
    if op.name == "full":
        number = constant(g, value)
        return number is not None and (rounded(number, dtype) == number or number != number)
    if op.name not in _CHOOSING:
        return False
    return all(_is_held(g, arg, dtype, depth - 1) for arg in op.args[op.name == "where":])


# Ops whose results are elements of their operands, or these with another sign.
_CHOOSING = frozenset("""
    neg abs maximum minimum fmax fmin where max min reshape permute expand slice flip
""".split())


RULES: tuple[Rule, ...] = (
    *(Rule("fold", name, fold) for name in _FOLD),
    Rule("times one", "mul", times_one), Rule("plus zero", "add", plus_zero),
    Rule("minus zero", "sub", minus_zero),
    Rule("over power of two", "div", over_power_of_two),
    Rule("double negation", "neg", inverse_of("neg")),
    Rule("double not", "bitwise_not", inverse_of("bitwise_not")),
    Rule("double not", "logical_not", double_not), Rule("absolute of", "abs", absolute_of),
    *(Rule("of itself", name, of_itself) for name in (
        "maximum", "minimum", "fmax", "fmin", "logical_and", "logical_or", "bitwise_and",
        "bitwise_or",
    )),
    Rule("known choice", "where", known_choice), Rule("narrow choice", "where", narrow_choice),
    Rule("and constant", "logical_and", and_constant),
    Rule("or constant", "logical_or", or_constant),
    Rule("cast copy", "cast", cast_copy), Rule("cast constant", "cast", cast_constant),
    Rule("cast pair", "cast", cast_pair),
)
