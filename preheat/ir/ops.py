"""The core ops: what each is called, what it takes, what it means.

A row of `CORE` is the whole definition that passes, schedule and generators share; the meaning is
executable in `bridge/interpret.py`, the oracle of every rewrite and kernel.

Conventions of level core:
* Elementwise ops take operands of exactly the result's sizes and of one dtype (`where`: the first
  is bool; comparisons and logical ops yield bool). Broadcasting is an explicit `expand`, promotion
  an explicit `cast`. 16-bit floats are computed in float32: decompose writes cast, op, cast.
  A cast to 16 bits rounds, also where nothing is stored: who reads a value sees what eager's readers see. A cast to the
  operand's own dtype is a copy: it stands only where the strides of its type are wanted.
* Integer ops wrap. Float ops follow IEEE; maximum, minimum, max and min propagate NaN.
* Axes are non-negative. Movement ops never compute; their result types carry the strides that
  eager's view has. A value that is materialised has exactly the strides of its type.
* `library` is an ATen overload kept whole: `Op.args` and `attrs` are as at level aten, except that
  it never writes. attr `op` names the overload. Of one that gives a view only the elements are
  meant: whether it shares memory is the schedule's choice.
"""

from typing import NamedTuple

from preheat.ir.types import HALVES


class OpSpec(NamedTuple):
    """kind: elementwise, creation, reduce, movement, gather, product, library."""

    kind: str
    arity: int  # number of tensor operands; -1 for any
    attrs: tuple[str, ...]
    meaning: str


def _rows(kind: str, arity: int, attrs: str, **meanings: str) -> dict[str, OpSpec]:
    return {name: OpSpec(kind, arity, tuple(attrs.split()), text) for name, text in meanings.items()}


CORE: dict[str, OpSpec] = {
    **_rows(
        "elementwise", 1, "",
        neg="-x", abs="|x|", sign="-1, 0 or 1; 0 for NaN", exp="e**x", exp2="2**x", expm1="e**x - 1",
        log="natural logarithm", log2="base 2", log10="base 10", log1p="log(1 + x)", sqrt="square root",
        rsqrt="1 / sqrt(x)", reciprocal="1 / x", sin="sine", cos="cosine", tan="tangent",
        asin="arcsine", acos="arccosine", atan="arctangent", sinh="hyperbolic sine",
        cosh="hyperbolic cosine", tanh="hyperbolic tangent", asinh="inverse of sinh",
        acosh="inverse of cosh", atanh="inverse of tanh", erf="error function", erfc="1 - erf(x)",
        sigmoid="1 / (1 + e**-x)", floor="towards -inf", ceil="towards +inf", trunc="towards 0",
        round="to nearest, ties to even", logical_not="x == 0, as bool", bitwise_not="~x",
        isnan="as bool", isinf="as bool",
        tf32="rounded to 10 bits of mantissa, ties away from 0; NaN as it is",
    ),
    **_rows("elementwise", 1, "dtype", cast="x in another dtype; float to int truncates; to bool is x != 0"),
    **_rows("elementwise", 1, "dtype", bitcast="the same bits in a dtype of equal size"),
    **_rows(
        "elementwise", 2, "",
        add="x + y (bool: or)", sub="x - y", mul="x * y (bool: and)",
        times="x * y, which a sum may take unrounded: of a product of matrices, never one that a program writes",
        div="x / y, floats only",
        floordiv="floor(x / y); integers raise the zero-division flag", truncdiv="x / y towards zero",
        remainder="x - floor(x / y) * y, sign of y", fmod="x - trunc(x / y) * y, sign of x",
        pow="x ** y", atan2="angle of (y, x)", copysign="|x| with the sign of y",
        maximum="larger, NaN wins", minimum="smaller, NaN wins", fmax="larger, NaN loses",
        fmin="smaller, NaN loses", eq="x == y", ne="x != y", lt="x < y", le="x <= y", gt="x > y",
        ge="x >= y", logical_and="as bool", logical_or="as bool", logical_xor="as bool",
        bitwise_and="x & y", bitwise_or="x | y", bitwise_xor="x ^ y", shl="x << y", shr="x >> y",
    ),
    **_rows("elementwise", 3, "", where="y where x, else z"),
    **_rows("creation", 0, "value", full="every element is `value` (a number), cast to the result's dtype"),
    **_rows("creation", 0, "axis start step", iota="start + step * (index along `axis`)"),
    **_rows(
        "creation", 1, "stream",
        uniform="random float32 in [0, 1): the upper 24 bits of word k % 4 of Philox4x32-10 at counter (k // 4, stream), "
        "k the row-major position, with the operand, a 0-d int64, as key",
    ),
    **_rows(
        "reduce", 1, "axes keepdim",
        sum="in the result's dtype (16-bit floats accumulate in float32)", prod="product",
        max="largest, NaN wins", min="smallest, NaN wins", any="as bool", all="as bool",
    ),
    **_rows(
        "reduce", 1, "axis keepdim",
        argmax="int64 index of the first largest along `axis` (NaN is largest)",
        argmin="int64 index of the first smallest along `axis` (NaN is smallest)",
    ),
    **_rows("movement", 1, "", reshape="same elements in row-major order, the result's sizes"),
    **_rows("movement", 1, "axes", permute="result axis i is operand axis axes[i]", flip="reversed along `axes`"),
    **_rows("movement", 1, "", expand="axes of size 1 repeat; new axes in front; the result's sizes"),
    **_rows("movement", 1, "axis start step", slice="every `step`-th from `start`, result size along `axis` many"),
    **_rows(
        "movement", 1, "axis step dilation",
        window="x[.., i * step + j * dilation, ..] as [.., i, .., j]: i along `axis`, j along a new last axis, as many as "
        "the result's sizes say"),
    **_rows("movement", 1, "low high value", pad="`value` around: low[i] before and high[i] after axis i (>= 0)"),
    **_rows("movement", -1, "axis", cat="operands one after the other along `axis`"),
    **_rows("movement", 2, "axis start step", place="the first operand with `slice(axis, start, step)` replaced by the second"),
    **_rows("gather", 2, "axis wrap", take="result[.., i.., ..] = x[.., index[i..], ..]: index_select, embedding; "
            "index of any rank stands in place of `axis`; out of range raises the index flag; negative "
            "indices count from the end with attr wrap=True and are out of range without it"),
    **_rows("gather", 2, "axis", gather="torch.gather along `axis`; no negative indices"),
    **_rows("gather", -1, "axes", index="x[.., i0, .., i1, ..] with index tensors (of one broadcast shape, given as operands "
            "1..) at `axes`, adjacent or not, as torch indexing places them"),
    **_rows("product", 2, "", matmul="[*B, M, K] @ [*B, K, N], equal batch axes"),
    **_rows("library", -1, "op", library="the ATen overload `op`, called as it is"),
}

ELEMENTWISE = frozenset(n for n, s in CORE.items() if s.kind == "elementwise")
REDUCE = frozenset(n for n, s in CORE.items() if s.kind == "reduce")
MOVEMENT = frozenset(n for n, s in CORE.items() if s.kind == "movement")
COMPARISONS = frozenset("eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf".split())

# For which operand dtypes (of `where`: the last two's) generated kernels can compute an elementwise
# op as exactly as eager does; what is absent stays a library call. `cast` is between any two.
_FLOATS = ("float32", "float64", *HALVES)
_SIGNED = ("int8", "int16", "int32", "int64")
_INTEGERS = (*_SIGNED, "uint8", "uint16", "uint32", "uint64")
_ANY = (*_FLOATS, *_INTEGERS, "bool")
FUSABLE: dict[str, frozenset[str]] = {
    name: frozenset(dtypes)
    for names, dtypes in {
        "where cast bitcast eq ne lt le gt ge logical_not logical_and logical_or logical_xor isnan "
        "isinf abs sign floor ceil trunc round add mul maximum minimum fmax fmin": _ANY,
        "neg sub": (*_FLOATS, *_INTEGERS),
        "times div sqrt rsqrt reciprocal copysign": _FLOATS,
        "exp exp2 expm1 log log1p log2 log10 sin cos asin acos sinh cosh tanh asinh acosh atanh erf "
        "sigmoid": _FLOATS,
        # float64 of these is off by more than two units in the last place
        "tan atan atan2 erfc pow": ("float32", *HALVES),
        "truncdiv": ("float32", "float64", *_INTEGERS),  # eager rounds 16-bit quotients first
        "floordiv remainder fmod shl shr": _INTEGERS,
        "bitwise_and bitwise_or bitwise_xor bitwise_not": (*_INTEGERS, "bool"),
        "tf32": ("float32",),
    }.items()
    for name in names.split()
}
