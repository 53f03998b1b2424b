"""Arithmetic: sums, products, powers, comparisons, logic, bits, casts, and the unary functions.

    aten.add.Tensor(x: bf16, y: f32, alpha=2)  ->  cast(x) + y * 2   in float32, the recorded dtype

The dtype of the result is the recorded one, which torch chose; only comparisons promote here.
Floats of 16 bits are computed in float32 and rounded once. Float floor division and remainders stay
with the library: eager computes them through fmod, not as floor(x / y).
"""

import math
from collections.abc import Callable, Collection, Sequence

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number, Scalar
from preheat.ir.types import DTYPES, HALVES
from preheat.transform.lowering import (
    Lowering, Operand, Value, compute_dtype, decline_if, is_float, token_name,
)
from preheat.transform.promotion import promote


def _computed(c: Lowering, *operands: Operand) -> list[Value]:
    """`operands` in the dtype in which the result is computed, numbers as constants."""
    sizes = _sizes(operands)
    return [c.up(x, c.result.dtype, sizes) for x in operands]


def _compared(c: Lowering, *operands: Operand) -> list[Value]:
    """`operands` in their common dtype, exactly as eager has them."""
    dtype = promote([x.type if isinstance(x, Value) else x for x in operands])
    sizes = _sizes(operands)
    found = []
    for x in operands:
        x = x if isinstance(x, Value) else c.cast(c.full(x, sizes, compute_dtype(dtype)), dtype)
        found.append(c.cast(c.cast(x, dtype), compute_dtype(dtype)))
    return found


def _sizes(operands: tuple[Operand, ...]) -> tuple:
    """Of the first tensor, which numbers take; `torch.add(0, 1)` has none: one element."""
    return next((x.sizes for x in operands if isinstance(x, Value)), ())


# ---------------------------------------------------------------------------- unary
def unary(name: str) -> Callable:
    """A row that applies the core op `name` in the result's dtype."""

    def row(c: Lowering, self: Value, **_: Arg) -> Value:
        return c.down(c.unary(name, c.up(self, c.result.dtype)))

    return row


def rounding(name: str) -> Callable:
    """A row of a discontinuous function: it sees the rounded value; integers pass unchanged."""

    def row(c: Lowering, self: Value, **_: Arg) -> Value:
        if not is_float(self.dtype):
            return self
        return c.down(c.unary(name, c.cast(self, compute_dtype(self.dtype))))

    return row


def neg(c: Lowering, self: Value) -> Value:
    return c.down(-c.up(self))


def sign(c: Lowering, self: Value) -> Value:
    decline_if(self.dtype == "bool", "sign of bool")
    x = c.cast(self, compute_dtype(self.dtype))
    positive, negative = c.cast(x > 0, x.dtype), c.cast(x < 0, x.dtype)
    return c.down(positive - negative)


def absolute(c: Lowering, self: Value) -> Value:
    return self if self.dtype in ("bool", "uint8") else c.down(c.unary("abs", c.up(self)))


def is_nan(c: Lowering, self: Value) -> Value:
    if not is_float(self.dtype):
        return c.full(False, self.sizes, "bool")
    return c.unary("isnan", c.cast(self, compute_dtype(self.dtype)))


def is_inf(c: Lowering, self: Value) -> Value:
    if not is_float(self.dtype):
        return c.full(False, self.sizes, "bool")
    return c.unary("isinf", c.cast(self, compute_dtype(self.dtype)))


def frac(c: Lowering, self: Value) -> Value:
    x = c.cast(self, compute_dtype(self.dtype))
    return c.down(x - c.unary("trunc", x))


def nan_to_num(
    c: Lowering, self: Value, nan: Number | None, posinf: Number | None, neginf: Number | None
) -> Value:
    if not is_float(self.dtype):
        return self
    largest = {
        "float16": 65504.0,
        "bfloat16": float.fromhex("0x1.fep127"),
        "float32": float.fromhex("0x1.fffffep127"),
        "float64": float.fromhex("0x1.fffffffffffffp1023"),
    }
    x = c.cast(self, compute_dtype(self.dtype))
    high = largest[self.dtype] if posinf is None else posinf
    low = -largest[self.dtype] if neginf is None else neginf
    finite = c.where(c.binary("eq", x, math.inf), high, x)
    finite = c.where(c.binary("eq", x, -math.inf), low, finite)
    return c.down(c.where(c.unary("isnan", x), 0.0 if nan is None else nan, finite))


# ---------------------------------------------------------------------------- binary
def add(c: Lowering, self: Operand, other: Operand, alpha: Number = 1, **_: Arg) -> Value:
    x, y = _summed(c, self, other, alpha)
    return c.down(x + y)


def sub(c: Lowering, self: Operand, other: Operand, alpha: Number = 1, **_: Arg) -> Value:
    decline_if(c.result.dtype == "bool", "subtraction of bools")
    x, y = _summed(c, self, other, alpha)
    return c.down(x - y)


def rsub(c: Lowering, self: Value, other: Operand, alpha: Number = 1) -> Value:
    return sub(c, other, self, alpha)


def _summed(c: Lowering, self: Operand, other: Operand, alpha: Number) -> tuple[Value, Value]:
    """The operands of a sum, the other one times alpha."""
    x, y = _rounded(c, *_computed(c, *_handed(c, self, other)))
    return x, y if _is_one(alpha) else y * _rounded(c, c.up(alpha, c.result.dtype, y.sizes))[0]


def _rounded(c: Lowering, *operands: Value) -> Sequence[Value]:
    """For sums and powers, and no other ops, a CPU rounds numbers and tensors without axes to 16 bits first: `x + 1e5` is
    infinite in float16."""
    if c.result.device != "cpu" or c.result.dtype not in HALVES:
        return operands
    return [c.cast(c.down(x), x.dtype) for x in operands]


def _handed(c: Lowering, *operands: Operand, places: Collection[int] = (0, 1)) -> Sequence[Operand]:
    """Tensors without axes are rounded to the 16 bits of the other operand, but where torch hands their one element to
    the op: that of the second on a CPU, on a GPU that of the host's, if the op takes them at these `places`."""
    if c.result.dtype not in HALVES:
        return operands
    made = []
    for place, x in enumerate(operands):
        is_wider = isinstance(x, Value) and x.dtype != c.result.dtype
        is_handed = is_wider and place in places and (place == 1 if c.result.device == "cpu" else x.type.device == "cpu")
        made.append(c.down(c.up(x, c.result.dtype)) if is_wider and not is_handed else x)
    return made


def _is_one(alpha: Number) -> bool:
    return not isinstance(alpha, Scalar) and alpha == 1


def arithmetic(name: str, places: Collection[int] = (0, 1)) -> Callable:
    """A row that applies the binary core op `name` in the result's dtype. places: see `_handed`."""

    def row(c: Lowering, self: Operand, other: Operand, **_: Arg) -> Value:
        x, y = _computed(c, *_handed(c, self, other, places=places))
        return c.down(c.binary(name, x, y))

    return row


def div(c: Lowering, self: Value, other: Operand) -> Value:
    x, y = _computed(c, *_handed(c, self, other, places=(1,)))
    return c.down(x / y)


def div_mode(c: Lowering, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(c, self, other)
    if is_float(c.result.dtype):
        decline_if(rounding_mode == "floor", "float floor division")
        quotient = div(c, self, other)  # which eager rounds before it truncates
        return c.down(c.unary("trunc", c.up(quotient)))
    x, y = _computed(c, self, other)
    return c.binary("floordiv" if rounding_mode == "floor" else "truncdiv", x, y)


def integer(name: str) -> Callable:
    """A row of an integer division; floats stay with the library."""

    def row(c: Lowering, self: Operand, other: Operand, **_: Arg) -> Value:
        decline_if(
            is_float(c.result.dtype) or c.result.dtype == "bool", f"{name} of {c.result.dtype}"
        )
        x, y = _computed(c, self, other)
        return c.binary(name, x, y)

    return row


def extremum(name: str) -> Callable:
    """A row of maximum, minimum, fmax or fmin: exact, so rounding changes nothing."""

    def row(c: Lowering, self: Operand, other: Operand, **_: Arg) -> Value:
        x, y = _computed(c, self, other)
        if c.result.dtype == "bool":
            return c.binary("logical_or" if "max" in name else "logical_and", x, y)
        return c.down(c.binary(name, x, y))

    return row


def clamp(
    c: Lowering, self: Value, min: Operand | None = None, max: Operand | None = None
) -> Value:
    decline_if(c.result.dtype == "bool", "clamp of bools")
    x = c.cast(self, compute_dtype(c.result.dtype))
    for name, bound in (("maximum", min), ("minimum", max)):
        if isinstance(bound, Value):
            bound = c.cast(bound, x.dtype)
        if bound is not None:
            x = c.binary(name, x, bound)
    return c.down(x)


def power_number(c: Lowering, self: Value, exponent: Number) -> Value:
    decline_if(isinstance(exponent, Scalar), "an exponent known only at run time")
    if exponent == 0:
        return c.full(1, self.sizes, c.result.dtype)
    if exponent == 1:
        return c.cast(self, c.result.dtype)
    (x,) = _computed(c, self)
    if not is_float(x.dtype):
        decline_if(x.dtype == "bool" or exponent not in (2, 3), f"integer power {exponent}")
        return x * x if exponent == 2 else x * x * x
    # eager's own special cases: aten/src/ATen/native/cpu/PowKernel.cpp (roots not in float16)
    if self.dtype == "float16" and abs(exponent) == 0.5:
        return c.down(c.binary("pow", x, exponent))
    special = {
        2: lambda: x * x, 3: lambda: x * x * x, 0.5: lambda: c.unary("sqrt", x),
        -0.5: lambda: c.unary("rsqrt", x), -1: lambda: c.unary("reciprocal", x),
        -2: lambda: c.unary("reciprocal", x * x),
    }
    made = special[exponent]() if exponent in special else c.binary(
        "pow", x, *_rounded(c, c.up(exponent, c.result.dtype, x.sizes)))
    return c.down(made)


def power(c: Lowering, self: Operand, exponent: Operand) -> Value:
    decline_if(not is_float(c.result.dtype), "integer power")
    x, y = _rounded(c, *_computed(c, *_handed(c, self, exponent, places=())))
    return c.down(c.binary("pow", x, y))


def comparison(name: str) -> Callable:
    """A row of eq, ne, lt, le, gt or ge."""

    def row(c: Lowering, self: Operand, other: Operand) -> Value:
        x, y = _compared(c, self, other)
        if x.dtype == "bool" and name not in ("eq", "ne"):
            x, y = c.cast(x, "uint8"), c.cast(y, "uint8")
        return c.binary(name, x, y)

    return row


def logical(name: str) -> Callable:
    def row(c: Lowering, self: Value, other: Value) -> Value:
        return c.binary(name, c.cast(self, "bool"), c.cast(other, "bool"))

    return row


def logical_not(c: Lowering, self: Value) -> Value:
    return c.unary("logical_not", c.cast(self, "bool"))


def bitwise(name: str) -> Callable:
    def row(c: Lowering, self: Operand, other: Operand) -> Value:
        decline_if(is_float(c.result.dtype), "bits of floats")
        x, y = _computed(c, self, other)
        return c.binary(name, x, y)

    return row


def shift(name: str) -> Callable:
    """A row of a shift by a constant inside the width; eager defines the others by itself."""

    def row(c: Lowering, self: Value, other: Operand) -> Value:
        decline_if(is_float(c.result.dtype) or c.result.dtype == "bool", "shift of floats")
        inside = type(other) is int and 0 <= other < DTYPES[c.result.dtype].itemsize * 8
        decline_if(not inside, "shift by a value or out of the width")
        x, y = _computed(c, self, other)
        return c.binary(name, x, y)

    return row


# ---------------------------------------------------------------------------- ternary
def addcmul(c: Lowering, self: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    x, a, b = _computed(c, self, tensor1, tensor2)
    return c.down(x + (a * b if _is_one(value) else a * value * b))


def addcdiv(c: Lowering, self: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    x, a, b = _computed(c, self, tensor1, tensor2)
    return c.down(x + (a if _is_one(value) else a * value) / b)


def lerp(c: Lowering, self: Value, end: Value, weight: Operand) -> Value:
    """eager takes the nearer end as the base: aten/src/ATen/native/Lerp.h."""
    x, y = _computed(c, self, end)
    if isinstance(weight, Scalar):
        weight = c.full(weight, (), x.dtype)
    if not isinstance(weight, Value):
        return c.down(x + (y - x) * weight if abs(weight) < 0.5 else y - (y - x) * (1 - weight))
    w = c.up(weight, c.result.dtype)
    near = c.unary("abs", w) < 0.5
    return c.down(c.where(near, x + w * (y - x), y - (y - x) * (1 - w)))


def where(c: Lowering, condition: Value, self: Value, other: Value) -> Value:
    x, y = (c.cast(v, c.result.dtype) for v in (self, other))
    return c.where(c.cast(condition, "bool"), x, y)


def masked_fill(c: Lowering, self: Value, mask: Value, value: Operand) -> Value:
    decline_if(mask.dtype != "bool", "mask of bytes")
    decline_if(isinstance(value, Value) and value.rank != 0, "value with axes")
    fill = c.cast(value, self.dtype) if isinstance(value, Value) else c.full(value, (), self.dtype)
    return c.where(mask, fill, self)


# ---------------------------------------------------------------------------- casts and copies
def to_copy(c: Lowering, self: Value, device: Arg = None, layout: Arg = None, **_: Arg) -> Value:
    decline_if(token_name(layout) not in ("", "strided"), "layout")
    decline_if(self.type.device != c.result.device, "to another device")
    if self.dtype == c.result.dtype:
        return c.copy(self)
    return c.cast(self, c.result.dtype)


def clone(c: Lowering, self: Value, **_: Arg) -> Value:
    return c.copy(self)


def copy(c: Lowering, self: Value, src: Value, **_: Arg) -> Value:
    """What `self` holds after `self.copy_(src)`."""
    is_number = src.rank == 0 and src.type.device == "cpu"
    decline_if(self.type.device != src.type.device and not is_number, "from another device")
    return c.expand(c.cast(src, self.dtype), self.sizes)


def same(c: Lowering, self: Value, **_: Arg) -> Value:
    return self


def bitcast(c: Lowering, self: Value, dtype: Arg) -> Value:
    to = token_name(dtype)
    decline_if(
        DTYPES[self.dtype].itemsize != DTYPES[to].itemsize, "view in a dtype of another size"
    )
    decline_if("bool" in (self.dtype, to), "bits of bools")
    return (
        self if self.dtype == to else c.emit("bitcast", [self], to, self.sizes, self.type.strides)
    )


# ---------------------------------------------------------------------------- the table
_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh "
    "cosh tanh asinh acosh atanh erf erfc sigmoid"
).split()
_SPECIAL = ("expm1", "exp2", "erf", "erfc", "log1p")
_TENSOR_AND_SCALAR = ("Tensor", "Scalar")
_COPIES = "alias detach lift lift_fresh contiguous alias_copy detach_copy lift_fresh_copy".split()

# Rows that may be given a number that is only known at run time: a Scalar, for `Lowering.full`.
NUMBER_ROWS = frozenset((
    *(f"aten.{name}.{v}" for name in "add sub rsub mul div eq ne lt le gt ge".split()
      for v in _TENSOR_AND_SCALAR),
    "aten.pow.Scalar", "aten.addcmul.default", "aten.addcdiv.default", "aten.lerp.Scalar",
    "aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default",
    "aten.masked_fill.Scalar",
))

ROWS: dict[str, Callable] = {
    **{f"aten.{name}.default": unary(name) for name in _UNARY},
    **{f"aten.special_{name}.default": unary(name) for name in _SPECIAL},
    **{f"aten.{name}.default": rounding(name) for name in ("floor", "ceil", "trunc", "round")},
    "aten.neg.default": neg, "aten.abs.default": absolute, "aten.sign.default": sign,
    "aten.sgn.default": sign,
    "aten.isnan.default": is_nan, "aten.isinf.default": is_inf, "aten.frac.default": frac,
    "aten.nan_to_num.default": nan_to_num,
    **{f"aten.add.{v}": add for v in _TENSOR_AND_SCALAR},
    **{f"aten.sub.{v}": sub for v in _TENSOR_AND_SCALAR},
    **{f"aten.rsub.{v}": rsub for v in _TENSOR_AND_SCALAR},
    **{f"aten.mul.{v}": arithmetic("mul") for v in _TENSOR_AND_SCALAR},
    **{f"aten.div.{v}": div for v in _TENSOR_AND_SCALAR},
    **{f"aten.div.{v}_mode": div_mode for v in _TENSOR_AND_SCALAR},
    **{f"aten.remainder.{v}": integer("remainder") for v in (*_TENSOR_AND_SCALAR, "Scalar_Tensor")},
    **{f"aten.fmod.{v}": integer("fmod") for v in _TENSOR_AND_SCALAR},
    "aten.floor_divide.default": integer("floordiv"),
    "aten.floor_divide.Scalar": integer("floordiv"),
    "aten.atan2.default": arithmetic("atan2", places=()),
    **{f"aten.copysign.{v}": arithmetic("copysign") for v in _TENSOR_AND_SCALAR},
    **{f"aten.{name}.default": extremum(name) for name in ("maximum", "minimum", "fmax", "fmin")},
    **{f"aten.clamp.{v}": clamp for v in ("default", "Tensor")},
    **{f"aten.clamp_min.{v}": clamp for v in ("default", "Tensor")},
    **{f"aten.clamp_max.{v}": clamp for v in ("default", "Tensor")},
    "aten.pow.Tensor_Scalar": power_number, "aten.pow.Tensor_Tensor": power,
    "aten.pow.Scalar": power,
    **{f"aten.{name}.{v}": comparison(name)
       for name in "eq ne lt le gt ge".split() for v in _TENSOR_AND_SCALAR},
    **{f"aten.logical_{name}.default": logical(f"logical_{name}") for name in ("and", "or", "xor")},
    "aten.logical_not.default": logical_not,
    **{f"aten.bitwise_{name}.{v}": bitwise(f"bitwise_{name}")
       for name in ("and", "or", "xor") for v in (*_TENSOR_AND_SCALAR, "Scalar_Tensor")},
    **{f"aten.__{name}__.{v}": bitwise(f"bitwise_{name}")
       for name in ("and", "or", "xor") for v in _TENSOR_AND_SCALAR},
    "aten.bitwise_not.default": lambda c,
    self: c.unary("logical_not" if self.dtype == "bool" else "bitwise_not", self),
    **{f"aten.{name}.{v}": shift("shl") for name in ("bitwise_left_shift", "__lshift__")
       for v in ("Tensor_Scalar", "Tensor", "Scalar")},
    **{f"aten.{name}.{v}": shift("shr") for name in ("bitwise_right_shift", "__rshift__")
       for v in ("Tensor_Scalar", "Tensor", "Scalar")},
    "aten.addcmul.default": addcmul, "aten.addcdiv.default": addcdiv,
    "aten.lerp.Scalar": lerp, "aten.lerp.Tensor": lerp,
    "aten.where.self": where, "aten.masked_fill.Scalar": masked_fill,
    "aten.masked_fill.Tensor": masked_fill,
    "aten._to_copy.default": to_copy, "aten.clone.default": clone, "aten.copy.default": copy,
    **{f"aten.{name}.default": same for name in _COPIES},
    "aten.view.dtype": bitcast,
}
