"""What each elementwise core op is in LLVM, for floats, integers and bools; and every cast.

    apply(b, "maximum", "float32", (x, y))      compare, select, and NaN of either operand wins

Values have these forms: float32, float64 and integers are themselves, bool is i1, and the 16-bit
floats are their bits (i16), computed in float32 and rounded once. Guarantees: results as torch's
on the same CPU (wrapping integers, floor division towards -inf, NaN rules), no traps, no library
calls. An integer divisor must not be zero: the caller replaces it and raises the flag.
"""

import struct
from collections.abc import Callable

from preheat.base.errors import InternalError
from preheat.generate import angles, vecmath
from preheat.generate.llvm import BITS, Builder, Value, round_to_float32
from preheat.ir.types import DTYPES

ELEMENT = {
    "float32": "float", "float64": "double", "bfloat16": "i16", "float16": "i16", "bool": "i1",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64",
}
DIVISIONS = frozenset(("floordiv", "truncdiv", "remainder", "fmod"))
Emit = Callable[..., Value]


def memory_element(dtype: str) -> str:
    """How `dtype` lies in memory: as its value, except that a bool is a byte."""
    return "i8" if dtype == "bool" else ELEMENT[dtype]


def apply(b: Builder, op: str, dtype: str, args: tuple[Value, ...]) -> Value:
    """The elementwise core op `op` on operands of `dtype` (of `where`: of the last two).

    Raises InternalError for a pair of op and dtype that has no native form.
    """
    if op == "where":
        return b.select(*args)
    if op in LOGICAL:
        return LOGICAL[op](b, *(truth(b, x, dtype) for x in args))
    kind = DTYPES[dtype].kind
    if kind == "f" and DTYPES[dtype].itemsize == 2:
        wide = apply(b, op, "float32", tuple(cast(b, x, dtype, "float32") for x in args))
        return wide if wide.element == "i1" else cast(b, wide, "float32", dtype)
    table = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOL}[kind]
    if op not in table:
        raise InternalError(f"no native form of {op} for {dtype}; ops.FUSABLE says what has one")
    return table[op](b, *args)


def number(dtype: str, value: int | float | bool, lanes: int, b: Builder) -> Value:
    """The constant `value` of `dtype` in every lane."""
    if dtype == "bfloat16":
        value = _bfloat16_bits(float(value))
    elif dtype == "float16":
        value = _float16_bits(float(value))
    elif DTYPES[dtype].kind in "iu" and isinstance(value, float):
        value = int(value)
    return b.splat_of(value, ELEMENT[dtype], lanes)


def _bfloat16_bits(value: float) -> int:
    bits, = struct.unpack("<I", struct.pack("<f", round_to_float32(value)))
    if value != value:
        return 0x7FC0
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _float16_bits(value: float) -> int:
    try:
        return struct.unpack("<H", struct.pack("<e", round_to_float32(value)))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


# casts


def cast(b: Builder, x: Value, source: str, target: str) -> Value:
    """`x` of dtype `source` as `target`, as static_cast does it (out of range: as the CPU does)."""
    if source == target:
        return x
    if target == "bool":
        return truth(b, x, source)
    if source in _FROM_HALF:
        return cast(b, _FROM_HALF[source](b, x), "float32", target)
    if target in _TO_HALF:
        return _TO_HALF[target](b, cast(b, x, source, "float32"))
    from_kind, to_kind, element = DTYPES[source].kind, DTYPES[target].kind, ELEMENT[target]
    if from_kind == "f" and to_kind == "f":
        return b.convert("fpext" if element == "double" else "fptrunc", x, element)
    if to_kind == "f":
        return b.convert("sitofp" if from_kind == "i" else "uitofp", x, element)
    if from_kind == "f":
        return _float_to_integer(b, x, target)
    if BITS[x.element] < BITS[element]:
        return b.convert("sext" if from_kind == "i" else "zext", x, element)
    return b.convert("trunc", x, element) if BITS[x.element] > BITS[element] else x


def _float_to_integer(b: Builder, x: Value, target: str) -> Value:
    """Truncation. Narrow results are the low bits of a wider one, as C++ compilers have it."""
    if target == "uint64":
        # values from 2**63 on are converted below it; negative ones wrap like int64
        top = b.constant(2.0 ** 63, x)
        is_large = b.compare("oge", x, top)
        low = b.convert("fptosi", b.select(is_large, b.fsub(x, top), x), "i64")
        flipped = b.binary("xor", low, b.constant(-(1 << 63), low))
        return b.select(is_large, flipped, low)
    via = _CONVERT_VIA.get(target, ELEMENT[target])
    result = b.convert("fptosi", x, via)
    return result if via == ELEMENT[target] else b.convert("trunc", result, ELEMENT[target])


_CONVERT_VIA = {"int8": "i32", "int16": "i32", "uint16": "i32", "uint8": "i64", "uint32": "i64"}


def truth(b: Builder, x: Value, dtype: str) -> Value:
    """x != 0 (NaN is true)."""
    if dtype == "bool":
        return x
    if dtype in _FROM_HALF:  # all bits but the sign
        x = b.binary("and", x, b.constant(0x7FFF, x))
    return b.compare("une" if x.is_float else "ne", x, b.constant(0, x))


def _from_bfloat16(b: Builder, x: Value) -> Value:
    wide = b.convert("zext", x, "i32")
    return b.from_bits(b.binary("shl", wide, b.constant(16, wide)), "float")


def _to_bfloat16(b: Builder, x: Value) -> Value:
    """Nearest, ties to even, in integers: vcvtneps2bf16 would flush denormals, torch does not."""
    bits = b.bits(x)
    odd = b.binary("and", b.binary("lshr", bits, b.constant(16, bits)), b.constant(1, bits))
    rounded = b.binary("add", b.binary("add", bits, b.constant(0x7FFF, bits)), odd)
    quiet = b.binary("or", bits, b.constant(0x400000, bits))
    chosen = b.select(b.compare("uno", x, x), quiet, rounded)
    return b.convert("trunc", b.binary("lshr", chosen, b.constant(16, chosen)), "i16")


def _from_float16(b: Builder, x: Value) -> Value:
    if b.has_half:
        return b.convert("fpext", b.convert("bitcast", x, "half"), "float")
    wide = b.convert("zext", x, "i32")
    magnitude = b.binary("and", wide, b.constant(0x7FFF, wide))
    sign = b.binary("shl", b.binary("xor", wide, magnitude), b.constant(16, wide))
    shifted = b.binary("shl", magnitude, b.constant(13, wide))
    normal = b.binary("add", shifted, b.constant((127 - 15) << 23, wide))
    special = b.binary("or", shifted, b.constant(0x7F800000, wide))
    small = b.convert("uitofp", magnitude, "float")
    small = b.fmul(small, b.constant(2.0 ** -24, small))
    is_special = b.compare("uge", magnitude, b.constant(0x7C00, wide))
    is_small = b.compare("ult", magnitude, b.constant(0x400, wide))
    bits = b.select(is_small, b.bits(small), b.select(is_special, special, normal))
    return b.from_bits(b.binary("or", bits, sign), "float")


def _to_float16(b: Builder, x: Value) -> Value:
    """Nearest, ties to even. Source of the integer form: Dukhan's FP16 library (MIT)."""
    if b.has_half:
        return b.convert("bitcast", b.convert("fptrunc", x, "half"), "i16")
    bits = b.bits(x)
    doubled = b.binary("shl", bits, b.constant(1, bits))
    scaled = b.fmul(b.fmul(b.fabs(x), b.constant(2.0 ** 112, x)), b.constant(2.0 ** -110, x))
    bias = b.binary("and", doubled, b.constant(0xFF000000, bits))
    least = b.constant(0x71000000, bits)
    bias = b.select(b.compare("ult", bias, least), least, bias)
    offset = b.binary("lshr", bias, b.constant(1, bits))
    offset = b.binary("add", offset, b.constant(0x07800000, bits))
    rounded = b.bits(b.fadd(b.from_bits(offset, "float"), scaled))
    exponent = b.binary("lshr", rounded, b.constant(13, bits))
    exponent = b.binary("and", exponent, b.constant(0x7C00, bits))
    finite = b.binary("add", exponent, b.binary("and", rounded, b.constant(0xFFF, bits)))
    is_nan = b.compare("ugt", doubled, b.constant(0xFF000000, bits))
    magnitude = b.select(is_nan, b.constant(0x7E00, bits), finite)
    sign = b.binary("and", b.binary("lshr", bits, b.constant(16, bits)), b.constant(0x8000, bits))
    return b.convert("trunc", b.binary("or", sign, magnitude), "i16")


_FROM_HALF = {"bfloat16": _from_bfloat16, "float16": _from_float16}
_TO_HALF = {"bfloat16": _to_bfloat16, "float16": _to_float16}


def bitcast(b: Builder, x: Value, target: str) -> Value:
    """The same bits as another dtype of equal size."""
    return x if x.element == ELEMENT[target] else b.convert("bitcast", x, ELEMENT[target])


# operations, by kind of operand


def _instruction(name: str) -> Emit:
    return lambda b, x, y: b.binary(name, x, y)


def _comparison(predicate: str) -> Emit:
    return lambda b, x, y: b.compare(predicate, x, y)


def _chosen(predicate: str) -> Emit:
    """x where `predicate` holds, else y."""
    return lambda b, x, y: b.select(b.compare(predicate, x, y), x, y)


def _same(b: Builder, x: Value) -> Value:
    return x


def _never(b: Builder, x: Value) -> Value:
    return b.splat_of(False, "i1", x.lanes)


def _not(b: Builder, x: Value) -> Value:
    return b.binary("xor", x, b.constant(-1 if x.element != "i1" else True, x))


def _extremum(predicate: str) -> Emit:
    """maximum and minimum of floats: the chosen one, but NaN of either operand wins."""
    def emit(b: Builder, x: Value, y: Value) -> Value:
        if y.is_constant and not y.is_nan:
            return b.select(b.compare(predicate, y, x), y, x)  # x when unordered: one instruction
        chosen = b.select(b.compare(predicate, x, y), x, y)  # y when unordered
        return b.select(b.compare("uno", x, x), x, chosen)
    return emit


def _numeric_extremum(predicate: str) -> Emit:
    """fmax and fmin: NaN loses."""
    def emit(b: Builder, x: Value, y: Value) -> Value:
        chosen = b.select(b.compare(predicate, x, y), x, y)  # x when equal, y when unordered
        return b.select(b.compare("uno", y, y), x, chosen)
    return emit


def _sign_of_float(b: Builder, x: Value) -> Value:
    zero = b.constant(0.0, x)
    one = b.select(b.compare("ogt", x, zero), b.constant(1.0, x), zero)
    return b.select(b.compare("olt", x, zero), b.constant(-1.0, x), one)


def _sign_of_integer(b: Builder, x: Value) -> Value:
    zero = b.constant(0, x)
    one = b.select(b.compare("sgt", x, zero), b.constant(1, x), zero)
    return b.select(b.compare("slt", x, zero), b.constant(-1, x), one)


def _sign_of_unsigned(b: Builder, x: Value) -> Value:
    return b.convert("zext", b.compare("ne", x, b.constant(0, x)), x.element)


def _float_truncdiv(b: Builder, x: Value, y: Value) -> Value:
    return b.trunc(b.fdiv(x, y))


def _isinf(b: Builder, x: Value) -> Value:
    return b.compare("oeq", b.fabs(x), b.constant(float("inf"), x))


def _tf32(b: Builder, x: Value) -> Value:
    bits = b.bits(x)
    up = b.binary("add", bits, b.constant(1 << 12, bits))
    near = b.from_bits(b.binary("and", up, b.constant(-1 << 13, bits)), x.element)
    return b.select(b.compare("uno", x, x), x, near)


def _signed_division(b: Builder, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Quotient and rest towards zero, and where the floor is one less. The least integer by -1
    wraps (the instruction would trap), so -1 divides by negation."""
    minus_one = b.compare("eq", y, b.constant(-1, y))
    is_safe = y.is_constant and not y.text.endswith(" -1)")
    safe = y if is_safe else b.select(minus_one, b.constant(1, y), y)
    quotient = _signed_quotient(b, x, safe)
    rest = b.binary("sub", x, b.binary("mul", quotient, safe))
    negated = b.binary("sub", b.constant(0, x), quotient)
    quotient = b.select(minus_one, negated, quotient)
    opposite = b.compare("slt", b.binary("xor", rest, y), b.constant(0, x))
    is_less = b.binary("and", b.compare("ne", rest, b.constant(0, x)), opposite)
    return quotient, rest, is_less


def _integer_quotient(kind: str) -> Emit:
    """Towards zero. No CPU divides vectors of integers, but a float quotient of narrower ones is
    off by less than the distance to the next integer."""
    def emit(b: Builder, x: Value, y: Value) -> Value:
        if x.element == "i64" or y.is_constant:  # LLVM multiplies instead of dividing by a constant
            return b.binary(f"{kind[0]}div", x, y)
        wide, narrow = ("double", "i32") if x.element == "i32" else ("float", "i32")
        quotient = b.fdiv(*(b.convert(f"{kind[0]}itofp", v, wide) for v in (x, y)))
        result = b.convert("fptosi" if kind == "signed" else "fptoui", quotient, narrow)
        return result if x.element == narrow else b.convert("trunc", result, x.element)
    return emit


_signed_quotient, _unsigned_quotient = _integer_quotient("signed"), _integer_quotient("unsigned")


def _unsigned_rest(b: Builder, x: Value, y: Value) -> Value:
    return b.binary("sub", x, b.binary("mul", _unsigned_quotient(b, x, y), y))


def _signed_truncdiv(b: Builder, x: Value, y: Value) -> Value:
    return _signed_division(b, x, y)[0]


def _signed_fmod(b: Builder, x: Value, y: Value) -> Value:
    return _signed_division(b, x, y)[1]


def _signed_floordiv(b: Builder, x: Value, y: Value) -> Value:
    quotient, _, is_less = _signed_division(b, x, y)
    return b.binary("add", quotient, b.convert("sext", is_less, x.element))


def _signed_remainder(b: Builder, x: Value, y: Value) -> Value:
    _, rest, is_less = _signed_division(b, x, y)
    return b.select(is_less, b.binary("add", rest, y), rest)


def _shift(name: str) -> Emit:
    """A shift by a count outside the type gives what shifting one by one would."""
    def emit(b: Builder, x: Value, y: Value) -> Value:
        bits = BITS[x.element]
        within = b.compare("ult", y, b.constant(bits, y))
        if name == "ashr":  # bits - 1 leaves only the sign
            return b.binary(name, x, b.select(within, y, b.constant(bits - 1, y)))
        shifted = b.binary(name, x, b.select(within, y, b.constant(0, y)))
        return b.select(within, shifted, b.constant(0, x))
    return emit


FLOAT: dict[str, Emit] = {
    # a sum takes what `times` gives unrounded; what a program multiplies is rounded, as eager rounds it:
    # x*x - y*y is 0 where x is y
    "add": _instruction("fadd contract"), "times": _instruction("fmul contract"),
    "sub": _instruction("fsub"), "mul": _instruction("fmul"), "div": _instruction("fdiv"),
    "neg": lambda b, x: b.fneg(x), "abs": lambda b, x: b.fabs(x), "sign": _sign_of_float,
    "sqrt": lambda b, x: b.intrinsic("sqrt", x),
    "rsqrt": lambda b, x: b.fdiv(b.constant(1.0, x), b.intrinsic("sqrt", x)),
    "reciprocal": lambda b, x: b.fdiv(b.constant(1.0, x), x),
    "floor": lambda b, x: b.floor(x), "ceil": lambda b, x: b.ceil(x),
    "trunc": lambda b, x: b.trunc(x), "round": lambda b, x: b.round_even(x),
    "isnan": lambda b, x: b.compare("uno", x, x), "isinf": _isinf,
    "maximum": _extremum("ogt"), "minimum": _extremum("olt"),
    "fmax": _numeric_extremum("oge"), "fmin": _numeric_extremum("ole"),
    "copysign": lambda b, x, y: b.copysign(x, y), "truncdiv": _float_truncdiv, "tf32": _tf32,
    "eq": _comparison("oeq"), "ne": _comparison("une"), "lt": _comparison("olt"),
    "le": _comparison("ole"), "gt": _comparison("ogt"), "ge": _comparison("oge"),
    **vecmath.FUNCTIONS, **angles.FUNCTIONS,
}
_INTEGER: dict[str, Emit] = {
    "add": _instruction("add"), "sub": _instruction("sub"), "mul": _instruction("mul"),
    "neg": lambda b, x: b.binary("sub", b.constant(0, x), x), "bitwise_not": _not,
    "bitwise_and": _instruction("and"), "bitwise_or": _instruction("or"),
    "bitwise_xor": _instruction("xor"), "shl": _shift("shl"),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _same),
    **dict.fromkeys(("isnan", "isinf"), _never),
    "eq": _comparison("eq"), "ne": _comparison("ne"),
}
SIGNED: dict[str, Emit] = {
    **_INTEGER, "sign": _sign_of_integer, "shr": _shift("ashr"),
    "abs": lambda b, x: b.select(
        b.compare("slt", x, b.constant(0, x)), b.binary("sub", b.constant(0, x), x), x
    ),
    "floordiv": _signed_floordiv, "truncdiv": _signed_truncdiv,
    "remainder": _signed_remainder, "fmod": _signed_fmod,
    **{op: _comparison("s" + op) for op in ("lt", "le", "gt", "ge")},
    **dict.fromkeys(("maximum", "fmax"), _chosen("sgt")),
    **dict.fromkeys(("minimum", "fmin"), _chosen("slt")),
}
UNSIGNED: dict[str, Emit] = {
    **_INTEGER, "sign": _sign_of_unsigned, "abs": _same, "shr": _shift("lshr"),
    **dict.fromkeys(("floordiv", "truncdiv"), _unsigned_quotient),
    **dict.fromkeys(("remainder", "fmod"), _unsigned_rest),
    **{op: _comparison("u" + op) for op in ("lt", "le", "gt", "ge")},
    **dict.fromkeys(("maximum", "fmax"), _chosen("ugt")),
    **dict.fromkeys(("minimum", "fmin"), _chosen("ult")),
}
BOOL: dict[str, Emit] = {
    **dict.fromkeys(("add", "bitwise_or", "maximum", "fmax"), _instruction("or")),
    **dict.fromkeys(("mul", "bitwise_and", "minimum", "fmin"), _instruction("and")),
    **dict.fromkeys(("bitwise_xor", "ne"), _instruction("xor")),
    **dict.fromkeys(("abs", "sign", "floor", "ceil", "trunc", "round"), _same),
    **dict.fromkeys(("isnan", "isinf"), _never),
    "bitwise_not": _not, "eq": _comparison("eq"),
    **{op: _comparison("u" + op) for op in ("lt", "le", "gt", "ge")},
}
LOGICAL: dict[str, Emit] = {
    "logical_and": _instruction("and"), "logical_or": _instruction("or"),
    "logical_xor": _instruction("xor"), "logical_not": _not,
}
