"""Mathematical functions as vector code: own polynomials, no library calls."""

from preheat.generate import coefficients as C
from preheat.generate.llvm import BITS, Builder, Value


def polynomial(b: Builder, x: Value, coefficients) -> Value:
    """Horner's rule, lowest coefficient first."""
    result = b.constant(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = b.fma(result, x, b.constant(c, x))
    return result


def _clamp(b, x, low, high):
    x = b.select(b.compare("ogt", x, b.constant(high, x)), b.constant(high, x), x)
    return b.select(b.compare("olt", x, b.constant(low, x)), b.constant(low, x), x)


def scale(b: Builder, x: Value, n: Value) -> Value:
    """x * 2**n for integral n, right for denormals and overflow (two exact steps)."""
    i = b.convert("fptosi", n, "i32")
    half = b.binary("ashr", i, b.constant(1, i))
    rest = b.binary("sub", i, half)

    def power(e):
        biased = b.binary("shl", b.binary("add", e, b.constant(127, e)), b.constant(23, e))
        return b.from_bits(biased, "float")
    return b.fmul(b.fmul(x, power(half)), power(rest))


def exp(b: Builder, x: Value) -> Value:
    x = _clamp(b, x, -105.0, 89.0)
    n = b.round_even(b.fmul(x, b.constant(1.4426950408889634, x)))
    r = b.fma(n, b.constant(-0.693145751953125, x), x)
    r = b.fma(n, b.constant(-1.428606765330187045e-06, x), r)
    p = b.fma(b.fmul(r, r), polynomial(b, r, C.EXP), r)
    return scale(b, b.fadd(p, b.constant(1.0, x)), n)


def sigmoid(b, x):
    one = b.constant(1.0, x)
    return b.fdiv(one, b.fadd(one, exp(b, b.fneg(x))))


def fmod(b, x, y):
    raise NotImplementedError


FUNCTIONS = {"exp": exp, "sigmoid": sigmoid}
