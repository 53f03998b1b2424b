"""Sine, cosine, tangent and their inverses as vector code: no library calls, one table (2/pi).

    sin(x):  x = q pi/2 + r;  q even: r + r^3 P(r^2), odd: 1 - r^2/2 + r^4 P(r^2);  sign by q

Accuracy as in vecmath.py: float32 sin and cos within 1.5 ulp, float64 within 2, at any argument;
the others compute float32 in float64. Signed zeros, infinities and NaN as in C99 annex F. Sources:
Cody and Waite (reduction of ordinary angles), Payne and Hanek (of large ones), fdlibm (atan, asin).
"""

import math
from collections.abc import Callable

from preheat.generate import coefficients as C
from preheat.generate.llvm import Builder, Value
from preheat.generate.vecmath import clamp, in_double, odd, polynomial, where_equal

INF = float("inf")
PI_2 = {
    "float": (1.57079601287841796875, 3.1391647326017846e-07, 5.390302858158119e-15),
    "double": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# above it, three parts of pi/2 are too few
ANGLE_LIMIT = {"float": 30000.0, "double": 1048576.0}
SIN = {"float": C.SIN32, "double": C.SIN64}
COS = {"float": C.COS32, "double": C.COS64}


def _reduce_angle(b: Builder, x: Value) -> tuple[Value, Value]:
    """q (i32, modulo 4) and r with x = q pi/2 + r, |r| <= pi/4; NaN for infinite x."""
    n = b.round_even(b.fmul(x, b.constant(2 / math.pi, x)))
    r = x
    for part in PI_2[x.element]:
        r = b.fma(n, b.constant(-part, x), r)
    q = b.convert("fptosi", n, "i32")
    is_large = b.compare("oge", b.fabs(x), b.constant(ANGLE_LIMIT[x.element], x))
    return tuple(b.when(b.any(is_large), lambda: _far_angle(b, x, is_large, q, r), (q, r)))


def _far_angle(b: Builder, x: Value, is_large: Value, q: Value, r: Value) -> list[Value]:
    """Payne and Hanek's reduction in the lanes that need it."""
    b.helpers.add(_payne_hanek(b.has_fma))
    wide = x if x.element == "double" else b.convert("fpext", x, "double")
    angles, quadrants = b.scratch("double", x.lanes), b.scratch("i32", x.lanes)
    b.store(wide, angles)
    operands = f"{angles.operand}, {quadrants.operand}, i64 {x.lanes}"
    b.emit(f"call void @preheat_reduce_angles({operands})")
    far_q, far_r = b.load(quadrants, "i32", x.lanes), b.load(angles, "double", x.lanes)
    if x.element == "float":
        far_r = b.convert("fptrunc", far_r, "float")
    # x * 0 is NaN for infinite x
    far_r = b.fadd(far_r, b.fmul(x, b.constant(0.0, x)))
    return [b.select(is_large, far_q, q), b.select(is_large, far_r, r)]


def _sine_cosine(b: Builder, r: Value) -> tuple[Value, Value]:
    square = b.fmul(r, r)
    sine = b.fma(b.fmul(square, r), polynomial(b, square, SIN[r.element]), r)
    tail = b.fmul(b.fmul(square, square), polynomial(b, square, COS[r.element]))
    half = b.fmul(square, b.constant(0.5, r))
    main = b.fsub(b.constant(1.0, r), half)
    lost = b.fsub(b.fsub(b.constant(1.0, r), main), half)
    return sine, b.fadd(main, b.fadd(lost, tail))


def _with_sign_bit(b: Builder, x: Value, q: Value) -> Value:
    """x negated where bit 1 of q (i32) is set."""
    bits = b.bits(x)
    if x.element == "double":
        q = b.convert("zext", q, "i64")
    sign = b.binary("and", q, b.constant(2, q))
    sign = b.binary("shl", sign, b.constant(30 if x.element == "float" else 62, sign))
    return b.from_bits(b.binary("xor", bits, sign), x.element)


def sin(b: Builder, x: Value) -> Value:
    q, r = _reduce_angle(b, x)
    sine, cosine = _sine_cosine(b, r)
    is_odd = b.convert("trunc", q, "i1")
    return where_equal(b, x, 0.0, x, _with_sign_bit(b, b.select(is_odd, cosine, sine), q))


def cos(b: Builder, x: Value) -> Value:
    q, r = _reduce_angle(b, x)
    sine, cosine = _sine_cosine(b, r)
    is_odd = b.convert("trunc", q, "i1")
    following = b.binary("add", q, b.constant(1, q))
    return _with_sign_bit(b, b.select(is_odd, sine, cosine), following)


@in_double
def tan(b: Builder, x: Value) -> Value:
    q, r = _reduce_angle(b, x)
    sine, cosine = _sine_cosine(b, r)
    is_odd = b.convert("trunc", q, "i1")
    top = b.select(is_odd, b.fneg(cosine), sine)
    return where_equal(b, x, 0.0, x, b.fdiv(top, b.select(is_odd, sine, cosine)))


def _atan_of_ratio(b: Builder, y: Value, x: Value) -> Value:
    """atan(y / x) for y, x >= 0, not both zero or infinite; one division.

    Above tan(pi/8) the angle is taken from pi/4, above its inverse from pi/2.
    """
    middle = b.compare("ogt", y, b.fmul(x, b.constant(math.tan(math.pi / 8), x)))
    upper = b.compare("ogt", y, b.fmul(x, b.constant(1 / math.tan(math.pi / 8), x)))
    top = b.select(upper, b.fneg(x), b.select(middle, b.fsub(y, x), y))
    bottom = b.select(upper, y, b.select(middle, b.fadd(y, x), x))
    zero = b.constant(0.0, x)

    def of_quarters(half_pi: float) -> Value:
        near = b.select(middle, b.constant(half_pi / 2, x), zero)
        return b.select(upper, b.constant(half_pi, x), near)

    rest = b.fadd(odd(b, b.fdiv(top, bottom), C.ATAN64), of_quarters(PI_2["double"][1]))
    return b.fadd(of_quarters(PI_2["double"][0]), rest)


@in_double
def atan(b: Builder, x: Value) -> Value:
    # beyond 2**60 the angle is pi/2, and infinity would give NaN
    magnitude = clamp(b, b.fabs(x), 0.0, 2.0 ** 60)
    return b.copysign(_atan_of_ratio(b, magnitude, b.constant(1.0, x)), x)


@in_double
def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of (x, y) in [-pi, pi], zeros and infinities as quadrants have them."""
    zero, one, infinity = b.constant(0.0, x), b.constant(1.0, x), b.constant(INF, x)
    up, along = b.fabs(y), b.fabs(x)
    # two zeros count as (0, 1), two infinities as (1, 1)
    is_origin = b.binary("and", b.compare("oeq", up, zero), b.compare("oeq", along, zero))
    is_corner = b.binary("and", b.compare("oeq", up, infinity), b.compare("oeq", along, infinity))
    up = b.select(is_corner, one, up)
    along = b.select(b.binary("or", is_corner, is_origin), one, along)
    angle = _atan_of_ratio(b, up, along)
    bits = b.bits(x)
    is_left = b.compare("slt", bits, b.constant(0, bits))
    turned = b.fadd(b.fsub(b.constant(math.pi, x), angle), b.constant(1.2246467991473532e-16, x))
    result = b.copysign(b.select(is_left, turned, angle), y)
    return b.select(b.compare("uno", x, y), b.fadd(x, y), result)


def _asin_root(b: Builder, z: Value) -> Value:
    """asin(sqrt(z)) for 0 <= z <= 1/4, the root corrected by its remainder."""
    root = b.intrinsic("sqrt", z)
    rest = b.fdiv(b.fma(b.fneg(root), root, z), b.fadd(root, root))
    rest = b.select(b.compare("ogt", root, b.constant(0.0, root)), rest, b.constant(0.0, root))
    cube = b.fmul(z, root)
    return b.fadd(root, b.fma(cube, polynomial(b, z, C.ASIN64), rest))


@in_double
def asin(b: Builder, x: Value) -> Value:
    one, half, a = b.constant(1.0, x), b.constant(0.5, x), b.fabs(x)
    root = _asin_root(b, b.fmul(b.fsub(one, a), half))
    large = b.fsub(b.constant(math.pi / 2, x), b.fadd(root, root))
    large = b.fadd(large, b.constant(6.123233995736766e-17, x))
    return b.copysign(b.select(b.compare("ogt", a, half), large, odd(b, a, C.ASIN64)), x)


@in_double
def acos(b: Builder, x: Value) -> Value:
    one, half, a = b.constant(1.0, x), b.constant(0.5, x), b.fabs(x)
    root = _asin_root(b, b.fmul(b.fsub(one, a), half))
    double = b.fadd(root, root)
    left = b.fadd(b.fsub(b.constant(math.pi, x), double), b.constant(1.2246467991473532e-16, x))
    outer = b.select(b.compare("olt", x, b.constant(0.0, x)), left, double)
    inner = b.fsub(b.constant(6.123233995736766e-17, x), odd(b, x, C.ASIN64))
    inner = b.fadd(b.constant(math.pi / 2, x), inner)
    return b.select(b.compare("ogt", a, half), outer, inner)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2,
}


def _payne_hanek(has_fma: bool) -> str:
    """A function that reduces `n` doubles in place and writes their quadrants.

    x = M 2^E with an integer M; of the bits of 2/pi only those matter whose product with M lies
    below 2 (higher ones are whole turns) and above 2^-126. Three words of them times M, modulo
    2^192, hold the quadrant in the top two bits and the fraction of a quarter turn below.
    """
    table = ", ".join(f"i64 {word - (1 << 64) if word >> 63 else word}" for word in C.TWO_OVER_PI)
    product = _FMA_PRODUCT if has_fma else _PLAIN_PRODUCT
    fma = "declare double @llvm.fma.f64(double, double, double)\n" if has_fma else ""
    text = _PAYNE_HANEK.replace("TABLE", f"[{len(C.TWO_OVER_PI)} x i64] [{table}]")
    return text.replace("PRODUCT", product) + fma


_FMA_PRODUCT = """%r0 = fmul double %f, 0x3FF921FB54442D18
  %r0n = fneg double %r0
  %r1 = call double @llvm.fma.f64(double %f, double 0x3FF921FB54442D18, double %r0n)"""
_PLAIN_PRODUCT = """%r0 = fmul double %f, 0x3FF921FB54442D18
  %r1 = fadd double 0.0, 0.0"""
_PAYNE_HANEK = """
@preheat_two_over_pi = private unnamed_addr constant TABLE, align 8
declare i64 @llvm.fshl.i64(i64, i64, i64)
define internal void @preheat_reduce_angles(ptr %angles, ptr %quadrants, i64 %n) noinline nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %following, %loop ]
  %place = getelementptr double, ptr %angles, i64 %i
  %x = load double, ptr %place, align 8
  %bits = bitcast double %x to i64
  %magnitude = and i64 %bits, 9223372036854775807
  %exponent = lshr i64 %magnitude, 52
  %low52 = and i64 %magnitude, 4503599627370495
  %m = or i64 %low52, 4503599627370496
  ; the bit of weight 2^(1 - E), counted in a table that starts with 64 zeros
  %bit0 = sub i64 %exponent, 1013
  %small = icmp slt i64 %bit0, 0
  %bit = select i1 %small, i64 0, i64 %bit0
  %word = lshr i64 %bit, 6
  %shift = and i64 %bit, 63
  %p0 = getelementptr i64, ptr @preheat_two_over_pi, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %t0 = load i64, ptr %p0, align 8
  %t1 = load i64, ptr %p1, align 8
  %t2 = load i64, ptr %p2, align 8
  %t3 = load i64, ptr %p3, align 8
  %w0 = call i64 @llvm.fshl.i64(i64 %t0, i64 %t1, i64 %shift)
  %w1 = call i64 @llvm.fshl.i64(i64 %t1, i64 %t2, i64 %shift)
  %w2 = call i64 @llvm.fshl.i64(i64 %t2, i64 %t3, i64 %shift)
  %M = zext i64 %m to i128
  %W1 = zext i64 %w1 to i128
  %W2 = zext i64 %w2 to i128
  %M2 = mul i128 %M, %W2
  %carry = lshr i128 %M2, 64
  %M1 = mul i128 %M, %W1
  %middle = add i128 %M1, %carry
  %above128 = lshr i128 %middle, 64
  %above = trunc i128 %above128 to i64
  %M0 = mul i64 %m, %w0
  %high = add i64 %M0, %above
  %low = trunc i128 %middle to i64
  %nearest = add i64 %high, 2305843009213693952
  %quadrant = lshr i64 %nearest, 62
  %whole = shl i64 %quadrant, 62
  %part = sub i64 %high, %whole
  %f0 = sitofp i64 %part to double
  %back = fptosi double %f0 to i64
  %left = sub i64 %part, %back
  %left64 = sitofp i64 %left to double
  %low64 = uitofp i64 %low to double
  %low0 = fmul double %low64, 0x3BF0000000000000
  %left0 = fadd double %left64, %low0
  ; quarter turns are in units of 2^-62
  %f = fmul double %f0, 0x3C10000000000000
  %g = fmul double %left0, 0x3C10000000000000
  PRODUCT
  %r2 = fmul double %f, 0x3C91A62633145C07
  %r3 = fmul double %g, 0x3FF921FB54442D18
  %r4 = fadd double %r2, %r3
  %r5 = fadd double %r1, %r4
  %r = fadd double %r0, %r5
  %minus = fneg double %r
  %is_negative = icmp slt i64 %bits, 0
  %signed = select i1 %is_negative, double %minus, double %r
  store double %signed, ptr %place, align 8
  %q = trunc i64 %quadrant to i32
  %qn = sub i32 0, %q
  %turned = select i1 %is_negative, i32 %qn, i32 %q
  %slot = getelementptr i32, ptr %quadrants, i64 %i
  store i32 %turned, ptr %slot, align 4
  %following = add i64 %i, 1
  %again = icmp slt i64 %following, %n
  br i1 %again, label %loop, label %exit
exit:
  ret void
}
"""
