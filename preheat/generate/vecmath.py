"""Exponentials, logarithms, powers and the error function as vector code: no library calls.

    exp(x):  n = round(x / ln 2);  r = x - n ln 2;  (1 + r + r^2 P(r)) * 2^n

Each function takes float32 or float64 lanes. The frequent ones have float32 forms of their own
(exp, exp2, expm1, sigmoid, log*, tanh, erf); the rare ones compute float32 in float64 and
round once. Accuracy, measured against 60-digit references by tests/generate/test_vecmath.py:
float32 within 1.5 ulp (rare ones 0.51; sigmoid 2.3), float64 within 2 ulp (sigmoid 2.3). Signed
zeros, infinities, NaN and denormals come out as in C99 annex F. Sources: fdlibm (log), Cody and
Waite (range reduction), N. Juffa (erfcx). Sines and their kin are in angles.py.
"""

import math
from collections.abc import Callable, Sequence

from preheat.generate import coefficients as C
from preheat.generate.llvm import EXPONENT_BIAS, MANTISSA, Builder, Value, round_to_float32

INF, NAN = float("inf"), float("nan")
LOG2E = 1.4426950408889634
LN2 = {  # high part (exact times any exponent), the rest
    "float": (0.693145751953125, 1.4286068203094173e-06),
    "double": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
# 1/ln(b) in two parts, and log_b(2) in two parts, by element
LOG_BASE: dict[tuple[str, int], tuple[float, float, float, float]] = {
    ("float", 2): (1.4426950216293335, 1.9259629911266175e-08, 1.0, 0.0),
    ("double", 2): (1.4426950408889634, 2.0355273740931033e-17, 1.0, 0.0),
    ("float", 10): (
        0.4342944920063019, -1.0103050052231683e-08, 0.301025390625, 4.605038981195214e-06
    ),
    ("double", 10): (
        0.4342944819032518, 1.098319650216765e-17, 0.30102999566383914, 1.42050232272661e-13
    ),
}
EXP_RANGE = {"float": (-105.0, 90.0), "double": (-746.0, 712.0)}
EXP2_RANGE = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}
EXP = {"float": C.EXP32, "double": C.EXP64}


# building blocks


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, lowest coefficient first."""
    result = b.constant(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, b.constant(coefficient, x))
    return result


def odd(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """x + x^3 P(x^2)."""
    square = b.fmul(x, x)
    return b.fma(b.fmul(square, x), polynomial(b, square, coefficients), x)


def clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    """x within [low, high]; NaN stays."""
    least, most = b.constant(low, x), b.constant(high, x)
    x = b.select(b.compare("ogt", x, most), most, x)
    return b.select(b.compare("olt", x, least), least, x)


def where_equal(b: Builder, x: Value, number: float, value: Value, otherwise: Value) -> Value:
    return b.select(b.compare("oeq", x, b.constant(number, x)), value, otherwise)


def _power_of_two(b: Builder, exponent: Value, element: str) -> Value:
    """2**exponent (i32) as a float, for exponents of normal numbers."""
    if element == "double":
        exponent = b.convert("sext", exponent, "i64")
    biased = b.binary("add", exponent, b.constant(EXPONENT_BIAS[element], exponent))
    return b.from_bits(b.binary("shl", biased, b.constant(MANTISSA[element], biased)), element)


def _scale(b: Builder, x: Value, n: Value) -> Value:
    """x * 2**n for integral n; denormal results are rounded once, large ones overflow."""
    scaled = b.scaled(x, n)
    if scaled is not None:
        return scaled
    exponent = b.convert("fptosi", n, "i32")
    half = b.binary("ashr", exponent, b.constant(1, exponent))
    rest = b.binary("sub", exponent, half)
    first = b.fmul(x, _power_of_two(b, half, x.element))
    return b.fmul(first, _power_of_two(b, rest, x.element))


def in_double(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function` with float32 operands computed in float64 and rounded."""
    def emit(b: Builder, *args: Value) -> Value:
        if args[0].element == "double":
            return function(b, *args)
        wide = function(b, *(b.convert("fpext", x, "double") for x in args))
        return b.convert("fptrunc", wide, "float")
    return emit


# exponentials


def _exp_parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """n and s with e**x = 2**n * (1 + s), |s| < 0.42."""
    high, low = LN2[x.element]
    n = b.round_even(b.fmul(x, b.constant(LOG2E, x)))
    r = b.fma(n, b.constant(-low, x), b.fma(n, b.constant(-high, x), x))
    return n, b.fma(b.fmul(r, r), polynomial(b, r, EXP[x.element]), r)


def exp(b: Builder, x: Value) -> Value:
    return _exp_over(b, x, 0)


def _exp_over(b: Builder, x: Value, halvings: int) -> Value:
    """e**x / 2**halvings, which does not overflow before it must."""
    n, s = _exp_parts(b, clamp(b, x, *EXP_RANGE[x.element]))
    if halvings:
        n = b.fsub(n, b.constant(float(halvings), n))
    return _scale(b, b.fadd(s, b.constant(1.0, s)), n)


def exp2(b: Builder, x: Value) -> Value:
    x = clamp(b, x, *EXP2_RANGE[x.element])
    n = b.round_even(x)
    high, low = _two_parts(math.log(2), x.element, 2.3190468138462996e-17)
    fraction = b.fsub(x, n)
    r = b.fmul(fraction, b.constant(high, x))
    lost = b.fma(fraction, b.constant(low, x), b.fma(fraction, b.constant(high, x), b.fneg(r)))
    s = b.fadd(r, b.fma(b.fmul(r, r), polynomial(b, r, EXP[x.element]), lost))
    return _scale(b, b.fadd(s, b.constant(1.0, s)), n)


def _two_parts(number: float, element: str, beyond_double: float) -> tuple[float, float]:
    """`number` as the nearest value of `element` and what is left."""
    if element == "double":
        return number, beyond_double
    return (high := round_to_float32(number)), number - high


def expm1(b: Builder, x: Value) -> Value:
    """2**n * (1 + s) - 1, from halves so that 2**128 never occurs."""
    bounds = (-26.0, 89.0) if x.element == "float" else (-56.0, 710.0)
    n, s = _exp_parts(b, clamp(b, x, *bounds))
    exponent = b.convert("fptosi", b.fsub(n, b.constant(1.0, n)), "i32")
    half = _power_of_two(b, exponent, x.element)
    result = b.fma(half, s, b.fsub(half, b.constant(0.5, x)))
    result = b.fadd(result, result)
    return b.copysign(b.select(_is_zero(b, n), s, result), x)


def _is_zero(b: Builder, x: Value) -> Value:
    return b.compare("oeq", x, b.constant(0.0, x))


def sigmoid(b: Builder, x: Value) -> Value:
    """e / (1 + e) or 1 / (1 + e) of e = exp(-|x|), so that small results keep their digits.

    Within 2.3 ulp, as eager's. To put back what e and 1 + e lose by rounding gives 0.97, and costs
    1.5 times as much (bfloat16 silu * z, 1M elements, one Zen 4 core: 735 us for 510).
    """
    one = b.constant(1.0, x)
    e = exp(b, b.fneg(b.fabs(x)))
    top = b.select(b.compare("olt", x, b.constant(0.0, x)), e, one)
    return b.fdiv(top, b.fadd(one, e))


def tanh(b: Builder, x: Value) -> Value:
    limit, saturated = (0.625, 10.0) if x.element == "float" else (0.6, 20.0)
    magnitude = b.fabs(x)
    small = odd(b, magnitude, C.TANH32 if x.element == "float" else C.TANH64)
    bounded = clamp(b, magnitude, 0.0, saturated)
    e = exp(b, b.fadd(bounded, bounded))
    one = b.constant(1.0, x)
    large = b.fsub(one, b.fdiv(b.constant(2.0, x), b.fadd(e, one)))
    result = b.select(b.compare("ogt", magnitude, b.constant(limit, x)), large, small)
    return b.copysign(result, x)


@in_double
def sinh(b: Builder, x: Value) -> Value:
    magnitude = b.fabs(x)
    half = _exp_over(b, magnitude, 1)
    large = b.fsub(half, b.fdiv(b.constant(0.25, x), half))
    is_small = b.compare("olt", magnitude, b.constant(1.0, x))
    return b.copysign(b.select(is_small, odd(b, magnitude, C.SINH64), large), x)


@in_double
def cosh(b: Builder, x: Value) -> Value:
    half = _exp_over(b, b.fabs(x), 1)
    return b.fadd(half, b.fdiv(b.constant(0.25, x), half))


# logarithms


def _log_parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """k and f with x = 2**k * (1 + f), 1 + f about 1, for positive finite x, denormal or not."""
    element = x.element
    lift = 23.0 if element == "float" else 54.0
    smallest = 2.0 ** (1 - EXPONENT_BIAS[element])
    is_denormal = b.compare("olt", x, b.constant(smallest, x))
    bits = b.bits(b.select(is_denormal, b.fmul(x, b.constant(2.0 ** lift, x)), x))
    # 1 + f is in [2/3, 4/3) or [sqrt(1/2), sqrt(2))
    start = b.constant(0x3F2AAAAB if element == "float" else 0x3FE6A09E667F3BCD, bits)
    width = b.constant(MANTISSA[element], bits)
    k = b.binary("ashr", b.binary("sub", bits, start), width)
    m = b.from_bits(b.binary("sub", bits, b.binary("shl", k, width)), element)
    if element == "double":
        k = b.convert("trunc", k, "i32")
    power = b.convert("sitofp", k, element)
    power = b.select(is_denormal, b.fsub(power, b.constant(lift, power)), power)
    return power, b.fsub(m, b.constant(1.0, m))


def _log_tail(b: Builder, f: Value) -> tuple[Value, Value]:
    """h = f^2/2 and t with log(1 + f) = f - h + t."""
    half = b.fmul(b.fmul(f, f), b.constant(0.5, f))
    if f.element == "float":
        cube = b.fmul(b.fmul(f, f), f)
        return half, b.fmul(cube, polynomial(b, f, C.LOG32))
    s = b.fdiv(f, b.fadd(f, b.constant(2.0, f)))
    z = b.fmul(s, s)
    return half, b.fmul(s, b.fadd(half, b.fmul(z, polynomial(b, z, C.LOG64))))


def _log_special(b: Builder, x: Value, result: Value) -> Value:
    """The logarithm of zero, infinity, negative numbers and NaN."""
    result = where_equal(b, x, 0.0, b.constant(-INF, x), result)
    result = where_equal(b, x, INF, x, result)
    return b.select(b.compare("ult", x, b.constant(0.0, x)), b.constant(NAN, x), result)


def _natural(b: Builder, k: Value, f: Value) -> Value:
    """k ln 2 + log(1 + f)."""
    high, low = LN2[f.element]
    half, tail = _log_tail(b, f)
    small = b.fsub(b.fma(k, b.constant(low, k), tail), half)
    return b.fma(k, b.constant(high, k), b.fadd(f, small))


def log(b: Builder, x: Value) -> Value:
    return _log_special(b, x, _natural(b, *_log_parts(b, x)))


def log1p(b: Builder, x: Value) -> Value:
    """With 1 + x = 2**k * (1 + f), f = x / 2**k + (1 / 2**k - 1) is rounded only once."""
    one = b.constant(1.0, x)
    total = b.fadd(x, one)
    k, plain = _log_parts(b, total)
    power = _power_of_two(b, b.convert("fptosi", b.fneg(k), "i32"), x.element)
    exact = b.fma(x, power, b.fsub(power, one))
    is_large = b.compare("ogt", x, b.constant(2.0 ** (MANTISSA[x.element] + 2), x))
    result = _log_special(b, total, _natural(b, k, b.select(is_large, plain, exact)))
    return b.copysign(result, x)


def _log_base(base: int) -> Callable[[Builder, Value], Value]:
    def emit(b: Builder, x: Value) -> Value:
        scale, scale_low, unit, unit_low = (b.constant(c, x) for c in LOG_BASE[x.element, base])
        k, f = _log_parts(b, x)
        half, tail = _log_tail(b, f)
        high = b.fsub(f, half)
        low = b.fadd(b.fsub(b.fsub(f, high), half), tail)
        product = b.fmul(high, scale)
        rest = b.fma(high, scale, b.fneg(product))
        rest = b.fma(low, scale, b.fma(high, scale_low, rest))
        whole = b.fmul(k, unit)
        total = b.fadd(whole, product)
        rest = b.fadd(b.fma(k, unit_low, b.fadd(b.fsub(whole, total), product)), rest)
        return _log_special(b, x, b.fadd(total, rest))
    return emit


log2, log10 = _log_base(2), _log_base(10)


@in_double
def asinh(b: Builder, x: Value) -> Value:
    one, a = b.constant(1.0, x), b.fabs(x)
    square = b.fmul(a, a)
    root = b.intrinsic("sqrt", b.fadd(square, one))
    medium = log1p(b, b.fadd(a, b.fdiv(square, b.fadd(root, one))))
    large = b.fadd(log(b, a), b.constant(math.log(2), x))
    result = b.select(b.compare("ogt", a, b.constant(2.0 ** 28, x)), large, medium)
    result = b.select(b.compare("olt", a, b.constant(0.5, x)), odd(b, a, C.ASINH64), result)
    return b.copysign(result, x)


@in_double
def acosh(b: Builder, x: Value) -> Value:
    one = b.constant(1.0, x)
    t = b.fsub(x, one)
    root = b.intrinsic("sqrt", b.fma(t, t, b.fadd(t, t)))
    large = b.fadd(log(b, x), b.constant(math.log(2), x))
    is_large = b.compare("ogt", x, b.constant(2.0 ** 28, x))
    result = b.select(is_large, large, log1p(b, b.fadd(t, root)))
    return b.select(b.compare("ult", x, one), b.constant(NAN, x), result)


@in_double
def atanh(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    ratio = b.fdiv(b.fadd(a, a), b.fsub(b.constant(1.0, x), a))
    large = b.fmul(log1p(b, ratio), b.constant(0.5, x))
    is_small = b.compare("olt", a, b.constant(0.3, x))
    return b.copysign(b.select(is_small, odd(b, a, C.ATANH64), large), x)


# powers


@in_double
def pow(b: Builder, x: Value, y: Value) -> Value:
    """2**(y log2|x|), with the signs and special values of C99; accurate for float32 only."""
    one, zero = b.constant(1.0, x), b.constant(0.0, x)
    magnitude = exp2(b, b.fmul(y, log2(b, b.fabs(x))))
    whole = b.compare("oeq", b.trunc(y), y)
    half = b.fmul(y, b.constant(0.5, y))
    is_odd = b.binary("and", whole, b.compare("one", b.trunc(half), half))
    signed = b.select(is_odd, b.copysign(magnitude, x), magnitude)
    is_finite = b.compare("ogt", x, b.constant(-INF, x))
    is_root = b.binary("and", is_finite, b.compare("one", b.trunc(y), y))
    undefined = b.binary("and", b.compare("olt", x, zero), is_root)
    result = b.select(undefined, b.constant(NAN, x), signed)
    # |x| = 1 with an infinite y gives 0 * inf above
    is_infinite = b.compare("oeq", b.fabs(y), b.constant(INF, y))
    result = b.select(b.binary("and", b.compare("oeq", b.fabs(x), one), is_infinite), one, result)
    result = where_equal(b, x, 1.0, one, result)
    return where_equal(b, y, 0.0, one, result)


# error function


def erf(b: Builder, x: Value) -> Value:
    t = b.fabs(x)
    square = b.fmul(x, x)
    if x.element == "double":
        small = b.fma(polynomial(b, square, C.ERF64), x, x)
        large = b.fsub(b.constant(1.0, x), _erfc_of_positive(b, t))
        limit = 1.0
    else:
        small = b.fma(polynomial(b, square, C.ERF_SMALL32), x, x)
        bounded = clamp(b, t, 0.0, 3.95)
        n, s = _exp_parts(b, b.fma(polynomial(b, bounded, C.ERF_LARGE32), bounded, b.fneg(bounded)))
        # here exp is at least 2**-25, so its scale is a normal number
        power = _power_of_two(b, b.convert("fptosi", n, "i32"), x.element)
        large = b.fsub(b.constant(1.0, x), b.fma(power, s, power))
        limit = 0.9277344
    is_large = b.compare("ogt", t, b.constant(limit, x))
    return b.select(is_large, b.copysign(large, x), small)


@in_double
def erfc(b: Builder, x: Value) -> Value:
    square, t = b.fmul(x, x), b.fabs(x)
    small = b.fsub(b.constant(1.0, x), b.fma(polynomial(b, square, C.ERF64), x, x))
    large = _erfc_of_positive(b, t)
    is_negative = b.compare("olt", x, b.constant(0.0, x))
    large = b.select(is_negative, b.fsub(b.constant(2.0, x), large), large)
    return b.select(b.compare("olt", t, b.constant(0.5, x)), small, large)


def _erfc_of_positive(b: Builder, x: Value) -> Value:
    """exp(-x^2) P(u) / (1 + 2x), u = (x - 4)/(x + 4); every quotient corrected by its remainder."""
    a = clamp(b, x, 0.0, 28.0)
    one, four, two = (b.constant(c, x) for c in (1.0, 4.0, 2.0))
    inverse = b.fdiv(one, b.fadd(a, four))
    u = b.fmul(b.fsub(a, four), inverse)
    rest = b.fma(b.fneg(a), u, b.fma(b.fadd(u, one), b.fneg(four), a))
    p = polynomial(b, b.fma(inverse, rest, u), C.ERFCX64)
    below = b.fdiv(one, b.fma(a, two, one))
    q = b.fmul(p, below)
    rest = b.fma(b.fmul(q, b.fneg(two)), a, b.fsub(p, q))
    q = b.fma(rest, below, q)
    square = b.fmul(a, a)
    lost = b.fma(a, a, b.fneg(square))
    scaled = b.fmul(exp(b, b.fneg(square)), q)
    return b.fma(scaled, b.fneg(lost), scaled)

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "sigmoid": sigmoid, "tanh": tanh, "sinh": sinh,
    "cosh": cosh, "log": log, "log2": log2, "log10": log10, "log1p": log1p, "asinh": asinh,
    "acosh": acosh, "atanh": atanh, "pow": pow, "erf": erf, "erfc": erfc,
}
