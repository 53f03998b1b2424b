"""What each elementwise core op is in Triton, for floats, integers and bools; and every cast.

    apply("sigmoid", "float32", ("v3",))    "tl.div_rn(1.0, 1.0 + libdevice.exp(-v3))", or near it

Functions are libdevice's, the ones that eager's own kernels call, so results are eager's. Division
is the hardware's (2 ulp), corrected by one step of Newton's: exact quotients are exact, and others
the nearest float but for cases within 2**-20 ulp of the middle of two. 16-bit floats are computed
in float32 and rounded once, bools are i1. Integer division by zero gives what the hardware gives,
as in eager.

A float32 value that reaches memory only as 16-bit floats, by way of the ops of `SMOOTH`, is
*coarse*: its division is the hardware's and its exponential ex2's, |x| * 2**-24 + 5 ulp off. An erf
to which 1 is added next is within 1.5e-7 then (Abramowitz and Stegun 7.1.26; eager's sum is rounded
at 1.2e-7). bfloat16 rounds at 2**-9 and float16 at 2**-11. On an H200 (32768 x 4096, bfloat16) that makes a
residual, norm, gelu, sigmoid, softmax chain 257 us, gelu alone 131, and softmax of 8192 x 16384 135, where IEEE's division and
libdevice's functions took 605, 195 and 173.

The hardware's functions give 0 for results below 2**-126 (`ftz`) in one instruction; that they do not takes ptxas four more.
So they are asked where no result is that small, and what is is made of it by a product: exp(x) is the square of exp(x / 2).
"""

import re
from collections.abc import Callable

from preheat.base.errors import InternalError
from preheat.ir.hinted import Hinted
from preheat.ir.scalar import Scalar
from preheat.ir.types import DTYPES, HALVES

Emit = Callable[..., str]
FAR = 1 << 31  # elements: from here on an offset needs 64 bits


def triton_dtype(dtype: str) -> str:
    """Triton's name of a dtype."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


_SIGNATURES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "i1",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}


def signature(dtype: str, is_number: bool) -> str:
    """Triton's type of a parameter, or of what it points to."""
    return "i8" if dtype == "bool" and is_number else _SIGNATURES[dtype]


def size_signature(size: Scalar) -> str:
    """Triton's type of a size: where it has 32 bits now, the plan is for those that do."""
    if size.type == "float":
        return "fp64"
    if not isinstance(size, Hinted):  # part of another one: it is not used
        return "i64"
    return "i32" if size < FAR and size >= -FAR else "i64"


def apply(op: str, dtype: str, args: tuple[str, ...], is_coarse: bool = False) -> str:
    """The expression of core op `op` on operands of `dtype` (of `where`: of the last two).

    is_coarse   see above; of 16-bit operands always so
    Raises InternalError for a pair of op and dtype that has no form.
    """
    if op == "where":
        return f"tl.where({', '.join(args)})"
    if op in LOGICAL:
        return LOGICAL[op].format(*(truth(x, dtype) for x in args))
    if dtype in HALVES:
        is_coarse = op not in _STEPS
        wide = apply(op, "float32", tuple(cast(x, dtype, "float32") for x in args), is_coarse)
        return wide if op in TESTS else cast(f"({wide})", "float32", dtype)
    kind = DTYPES[dtype].kind
    form = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOL}[kind].get(op)
    if is_coarse and dtype == "float32":
        form = COARSE.get(op, form)
    if form is None:
        raise InternalError(f"no form of {op} for {dtype}; ops.FUSABLE says what has one")
    return form.format(
        *args, zero=constant(0, dtype), one=constant(1, dtype), ones=constant(-1, dtype),
        dtype=triton_dtype(dtype), bits=8 * DTYPES[dtype].itemsize)


def constant(value: int | float | bool, dtype: str) -> str:
    """A scalar of `dtype`."""
    kind = DTYPES[dtype].kind
    if kind == "b":
        text = str(bool(value))
    elif kind == "f":
        value = float(value)
        text = repr(value) if value - value == 0 else f'float("{value}")'
    else:
        bits = 8 * DTYPES[dtype].itemsize
        value = int(value) & ((1 << bits) - 1)
        text = str(value - (1 << bits) if kind == "i" and value >> (bits - 1) else value)
    return f"tl.full([], {text}, {triton_dtype(dtype)})"


def wide(how: str, dtype: str) -> str:
    """The dtype in which values of `dtype` are reduced: no fewer than 32 bits."""
    if dtype in HALVES:
        return "float32"
    if how in ("any", "all") or DTYPES[dtype].itemsize < 4:
        return "int32"
    return dtype


def least(how: str, dtype: str) -> str:
    """What changes no result of a reduction; of argmax and argmin, what never wins first."""
    dtype = wide(how, dtype)
    kind, bits = DTYPES[dtype].kind, 8 * DTYPES[dtype].itemsize
    if how in ("prod", "all"):
        return constant(1, dtype)
    if how not in ("max", "argmax", "min", "argmin"):  # sums, of exponentials too, and any
        return constant(0, dtype)
    is_max = how in ("max", "argmax")
    if kind == "f":
        return constant(float("-inf" if is_max else "inf"), dtype)
    half = 1 << (bits - 1)
    low, high = (-half, half - 1) if kind == "i" else (0, 2 * half - 1)
    return constant(low if is_max else high, dtype)


def cast(x: str, source: str, target: str) -> str:
    """`x` of dtype `source` as `target`, by the steps that eager takes."""
    if source == target:
        return x
    if target == "bool":
        return truth(x, source)
    kinds = DTYPES[source].kind, DTYPES[target].kind
    if source in HALVES and target != "float32":
        return cast(cast(x, source, "float32"), "float32", target)
    if target in HALVES and source != "float32":
        return cast(cast(x, source, "float32"), "float32", target)
    if kinds == ("f", "u") and target != "uint64":
        x = f"{x}.to(tl.int64)"
    elif kinds == ("f", "i") and DTYPES[target].itemsize < 4:
        x = f"{x}.to(tl.int32)"
    return f"{x}.to({triton_dtype(target)})"


def bitcast(x: str, target: str) -> str:
    """The same bits as another dtype of equal size."""
    return f"{x}.to({triton_dtype(target)}, bitcast=True)"


def truth(x: str, dtype: str) -> str:
    """x != 0 (NaN is true)."""
    if dtype == "bool":
        return x
    x = cast(x, dtype, "float32") if dtype in HALVES else x
    return f"({x} != {constant(0, 'float32' if dtype in HALVES else dtype)})"


def _calls(names: str) -> dict[str, str]:
    """Functions of one argument that libdevice has under their own names."""
    return {name: f"libdevice.{name}({{0}})" for name in names.split()}


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TESTS = frozenset((*_COMPARISONS, "isnan", "isinf"))
_ARITHMETIC = {
    **{op: f"({{0}} {sign} {{1}})" for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))},
    **{op: f"({{0}} {sign} {{1}})" for op, sign in _COMPARISONS.items()},
}
_NAN = "propagate_nan=tl.PropagateNan"
FLOAT: dict[str, str] = {
    **_ARITHMETIC,
    **_calls("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
             "acosh atanh erf erfc"),
    "times": "({0} * {1})", "mul_rn": "libdevice.mul_rn({0}, {1})", "div": "divided({0}, {1})", "sqrt": "rooted({0})", "rsqrt": "inverse_root({0})",
    "reciprocal": "divided({one}, {0})", "neg": "({0} * (-{one}))",
    "sigmoid": "divided({one}, {one} + libdevice.exp(-{0}))",
    "abs": "tl.abs({0})", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
    "trunc": "libdevice.trunc({0})", "round": "libdevice.rint({0})",
    "sign": "(({0} > {zero}).to({dtype}) - ({0} < {zero}).to({dtype}))",
    "isnan": "({0} != {0})", "isinf": '(tl.abs({0}) == float("inf"))',
    "truncdiv": "libdevice.trunc(divided({0}, {1}))",
    "pow": "libdevice.pow({0}, {1})", "atan2": "libdevice.atan2({0}, {1})",
    "copysign": "libdevice.copysign({0}, {1})", "tf32": "rounded_tf32({0})",
    "maximum": f"tl.maximum({{0}}, {{1}}, {_NAN}.ALL)",
    "minimum": f"tl.minimum({{0}}, {{1}}, {_NAN}.ALL)",
    "fmax": f"tl.maximum({{0}}, {{1}}, {_NAN}.NONE)",
    "fmin": f"tl.minimum({{0}}, {{1}}, {_NAN}.NONE)",
}
# The coarse forms, and the ops through which a coarse result may pass on its way to memory.
COARSE: dict[str, str] = {
    "exp": "near_exp({0})", "div": "({0} / {1})", "reciprocal": "({one} / {0})",
    "sigmoid": "near_sigmoid({0})", "erf": "near_erf({0})",
}
SMOOTH = frozenset(
    "add sub mul times div neg abs exp sigmoid tanh erf reciprocal rsqrt sqrt where maximum minimum"
    .split())
# Never coarse for 16-bit operands: of an inexact quotient another integer; near 0 no digit is right.
_STEPS = frozenset(("truncdiv", "erf"))
_INTEGER: dict[str, str] = {
    **_ARITHMETIC,
    "neg": "({zero} - {0})", "bitwise_not": "({0} ^ {ones})", "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})",
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), "{0}"),
    **dict.fromkeys(("isnan", "isinf"), "({0} != {0})"),
    "truncdiv": "({0} // {1})", "fmod": "({0} % {1})",
    # by a count outside of the type: what shifting one by one would give
    "shl": "tl.where(({1} >= {zero}) & ({1} < {bits}), {0} << {1}, {zero})",
    **{op: f"tl.where({{0}} {sign} {{1}}, {{0}}, {{1}})"
       for op, sign in (("maximum", ">"), ("fmax", ">"), ("minimum", "<"), ("fmin", "<"))},
}
SIGNED: dict[str, str] = {
    **_INTEGER,
    "abs": "tl.where({0} < {zero}, {zero} - {0}, {0})",
    "sign": "(({0} > {zero}).to({dtype}) - ({0} < {zero}).to({dtype}))",
    "floordiv": "floored({0}, {1})", "remainder": "floored_rest({0}, {1})",
    "shr": "({0} >> tl.where(({1} >= {zero}) & ({1} < {bits}), {1}, {bits} - {one}))",
}
UNSIGNED: dict[str, str] = {
    **_INTEGER,
    "abs": "{0}", "sign": "({0} != {zero}).to({dtype})",
    "floordiv": "({0} // {1})", "remainder": "({0} % {1})",
    "shl": "tl.where({1} < {bits}, {0} << {1}, {zero})",
    "shr": "tl.where({1} < {bits}, {0} >> {1}, {zero})",
}
BOOL: dict[str, str] = {
    **dict.fromkeys(("add", "bitwise_or", "maximum", "fmax"), "({0} | {1})"),
    **dict.fromkeys(("mul", "bitwise_and", "minimum", "fmin"), "({0} & {1})"),
    **dict.fromkeys(("bitwise_xor", "ne"), "({0} ^ {1})"),
    **dict.fromkeys(("abs", "sign", "floor", "ceil", "trunc", "round"), "{0}"),
    **dict.fromkeys(("isnan", "isinf"), "({0} ^ {0})"),
    "bitwise_not": "({0} == {zero})", "eq": "({0} == {1})",
    "lt": "(({0} == {zero}) & {1})", "le": "(({0} == {zero}) | {1})",
    "gt": "({0} & ({1} == {zero}))", "ge": "({0} | ({1} == {zero}))",
}
LOGICAL: dict[str, str] = {
    "logical_and": "({0} & {1})", "logical_or": "({0} | {1})", "logical_xor": "({0} ^ {1})",
    "logical_not": "({0} == tl.full([], False, tl.int1))",
}
# How the elements of a reduction are joined at the end, and two by two as a walk goes on.
COMBINED = {
    "sum": "tl.sum", "prod": "multiplied", "max": "larger", "min": "smaller", "any": "larger",
    "all": "smaller",
}
SUMS = {2: "added_2", 3: "added_3", 4: "added_4"}  # by how many
JOINED = {
    "sum": "{0} + {1}", "prod": "{0} * {1}",
    "max": "larger({0}, {1})", "min": "smaller({0}, {1})",
    "any": "larger({0}, {1})", "all": "smaller({0}, {1})",
}


def helpers_of(body: str) -> str:
    """The functions that `body` calls, and those that these call."""
    texts: dict[str, str] = {}
    pending = [body]
    while pending:
        called = set(_CALLS.findall(pending.pop())) & (HELPERS.keys() - texts.keys())
        texts |= {name: HELPERS[name] for name in called}
        pending += [HELPERS[name] for name in called]
    return "\n".join(text for name, text in HELPERS.items() if name in texts)


_CALLS = re.compile(r"(?<![\w.])(\w+)(?=\(|, |\))")  # a name that is called, or given to what calls it
# Functions that generated text may call; those that it does are written before the kernel.
HELPERS: dict[str, str] = {
    "divided": '''
@triton.jit
def divided(x, y):
    quotient = x / y
    if x.dtype == tl.float32:
        step = tl.fma(-quotient, y, x) * (1.0 / y)
        # not where one of them is 0, infinite, NaN, or too small to have an inverse
        is_near = tl.abs(step) < tl.abs(quotient) * 1e-6
        quotient = tl.where(is_near, quotient + step, quotient)
    return quotient
''',
    # of the exponentials that add up to `total`, which is 1 at the least
    "share": '''
@triton.jit
def share(x, total):
    return x * inverse(total)
''',
    "near_exp": '''
@triton.jit
def near_exp(x):
    root = power(x * 0.72134752044448170368)
    return root * root
''',
    # the root of exp(x - largest), but for what the product is rounded by; what its square is multiplied by for that
    "root_below": '''
@triton.jit
def root_below(x, largest):
    return power(tl.fma(x, 0.72134752044448170368, -(largest * 0.72134752044448170368)))
''',
    "rounded_by": '''
@triton.jit
def rounded_by(largest):
    return power(tl.fma(largest, 0.72134752044448170368, -(largest * 0.72134752044448170368)) * -2.0)
''',
    # a quarter of the sum, whose inverse is no smaller than 2**-126 if it is not 0
    "near_sigmoid": '''
@triton.jit
def near_sigmoid(x):
    return inverse(tl.fma(power(x * -1.4426950408889634074), 0.25, 0.25)) * 0.25
''',
    "near_erf": '''
@triton.jit
def near_erf(x):
    size = tl.abs(x)
    t = inverse(tl.fma(size, 0.3275911, 1.0))
    tail = tl.fma(tl.fma(t, 1.061405429, -1.453152027), t, 1.421413741)
    tail = tl.fma(tl.fma(tail, t, -0.284496736), t, 0.254829592)
    value = tl.fma(-tail * t, power(x * x * -1.4426950408889634074), 1.0)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
''',
    # exp(x), or 0 where that is below 2**-126: of what is added to 1
    "added_exp": '''
@triton.jit
def added_exp(x):
    return power(x * 1.4426950408889634074)
''',
    "power": '''
@triton.jit
def power(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
''',
    "inverse": '''
@triton.jit
def inverse(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
''',
    "rounded_tf32": '''
@triton.jit
def rounded_tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
''',
    "rooted": '''
@triton.jit
def rooted(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    return libdevice.sqrt(x)
''',
    # libdevice's own is this instruction; without libdevice a kernel is compiled in 0.75 of the time
    "inverse_root": '''
@triton.jit
def inverse_root(x):
    if x.dtype == tl.float32:
        return tl.inline_asm_elementwise("rsqrt.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return libdevice.rsqrt(x)
''',
    "floored": '''
@triton.jit
def floored(x, y):
    quotient, left = x // y, x % y
    return tl.where((left != 0) & ((left < 0) != (y < 0)), quotient - 1, quotient)
''',
    "floored_rest": '''
@triton.jit
def floored_rest(x, y):
    left = x % y
    return tl.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)
''',
    # By programs that share a row (`sharing`): one word each, whose upper half is not 0
    "publish": '''
@triton.jit
def publish(place, value):
    low = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(place, low | 0x100000000, sem="relaxed")
''',
    "publish_pair": '''
@triton.jit
def publish_pair(place, first, second):
    low = first.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    high = second.to(tl.int32, bitcast=True).to(tl.int64) << 32
    tl.atomic_xchg(place, high | low, sem="relaxed")
''',
    # each thread waits by itself: beside a loop of Triton's nothing would be loaded ahead
    "told_by": '''
@triton.jit
def told_by(places):
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; again: ld.relaxed.gpu.global.b64 $0, [$1]; setp.eq.s64 p, $0, 0; @p bra again; }",
        "=l,l", [places], dtype=tl.int64, is_pure=False, pack=1)
''',
    # the largest of words of two halves each
    "largest_bfloat16": '''
@triton.jit
def largest_bfloat16(words):
    word = tl.reduce(words, 0, larger_bfloat16)
    return larger((word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True))
''',
    "larger_bfloat16": '''
@triton.jit
def larger_bfloat16(x, y):
    return tl.inline_asm_elementwise("max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], tl.int32, True, 1)
''',
    "largest_float16": '''
@triton.jit
def largest_float16(words):
    word = tl.reduce(words, 0, larger_float16)
    return larger(word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),
                  (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32))
''',
    "larger_float16": '''
@triton.jit
def larger_float16(x, y):
    return tl.inline_asm_elementwise("max.NaN.f16x2 $0, $1, $2;", "=r,r,r", [x, y], tl.int32, True, 1)
''',
    # two halves of a word each; nothing is 0
    "widened_bfloat16": '''
@triton.jit
def widened_bfloat16(words, nothing):
    low = tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x1044;", "=f,r,r", [words, nothing], tl.float32, True, 1)
    high = tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x3244;", "=f,r,r", [words, nothing], tl.float32, True, 1)
    return tl.reshape(tl.join(low, high), [2 * words.shape[0]])
''',
    "widened_float16": '''
@triton.jit
def widened_float16(words, nothing):
    words = words ^ nothing
    low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.reshape(tl.join(low, high), [2 * words.shape[0]])
''',
    # what is not negative, as no word of zeros
    "marked": '''
@triton.jit
def marked(x):
    return (x.to(tl.int32, bitcast=True) | -2147483648).to(tl.float32, bitcast=True)
''',
    "unmarked": '''
@triton.jit
def unmarked(x):
    return (x.to(tl.int32) & 0x7FFFFFFF).to(tl.float32, bitcast=True)
''',
    "added_2": '''
@triton.jit
def added_2(a, b, x, y):
    return a + x, b + y
''',
    "added_3": '''
@triton.jit
def added_3(a, b, c, x, y, z):
    return a + x, b + y, c + z
''',
    "added_4": '''
@triton.jit
def added_4(a, b, c, d, x, y, z, w):
    return a + x, b + y, c + z, d + w
''',
    "multiplied": '''
@triton.jit
def multiplied(x, y):
    return x * y
''',
    "larger": '''
@triton.jit
def larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "smaller": '''
@triton.jit
def smaller(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "drawn": '''
@triton.jit
def drawn(seed, place, stream):
    place = place.to(tl.int64)
    group = place >> 2
    low = group.to(tl.uint32)
    none = low * 0
    first, second, third, fourth = tl.philox(
        seed, low, (group >> 32).to(tl.uint32), none + stream, none)
    word = tl.where(
        (place & 2) == 0, tl.where((place & 1) == 0, first, second),
        tl.where((place & 1) == 0, third, fourth))
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08
''',
    "first_largest": '''
@triton.jit
def first_largest(x, i, y, j):
    wins = (x > y) | ((x != x) & (y == y))
    ties = (x == y) | ((x != x) & (y != y))
    wins = wins | (ties & (i < j))
    return tl.where(wins, x, y), tl.where(wins, i, j)
''',
    "first_smallest": '''
@triton.jit
def first_smallest(x, i, y, j):
    wins = (x < y) | ((x != x) & (y == y))
    ties = (x == y) | ((x != x) & (y != y))
    wins = wins | (ties & (i < j))
    return tl.where(wins, x, y), tl.where(wins, i, j)
''',
}
