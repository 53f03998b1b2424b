"""Lowering: what the decompositions are written in. It appends core ops and works out their types.

    x * c.unary("sigmoid", x)       ->      %7: f32[8, 128] = sigmoid(%0)
                                            %8: f32[8, 128] = mul(%0, %7)

`Lowering` works for one ATen op at a time; a `Value` is a value with Python's operators. A result's
strides are those of the recorded result when the sizes agree (an elementwise chain keeps the layout
that eager gave it) and contiguous otherwise; movement gets the strides that eager's view would
have. Guarantees: operands are broadcast and cast explicitly, as the conventions of `ir/ops.py` ask.
"""

from collections.abc import Sequence

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Arg, Builder, Item, Op, Ref, Token, tensor_type
from preheat.ir.ops import COMPARISONS
from preheat.ir.hinted import Hinted, as_float, estimate
from preheat.ir.scalar import Dim, Number, Scalar, product, symbol, type_of
from preheat.ir.types import DTYPES, HALVES, TensorType, contiguous_strides

SUPPORTED = frozenset("float64 float32 bfloat16 float16 int64 int32 int16 int8 uint8 bool".split())


class Declined(Exception):
    """A row does not cover these arguments; the op stays a library call."""


# Operations on numbers that ops on elements of 64 bits do as Python does.
_EXACT = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}


def decline_if(condition: bool, why: str) -> None:
    """Raises Declined with `why` if `condition` holds."""
    if condition:
        raise Declined(why)


def compute_dtype(dtype: str) -> str:
    """The dtype in which values of `dtype` are computed: float32 for 16-bit floats."""
    return "float32" if dtype in HALVES else dtype


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "f"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the graph under construction, with operators that append ops."""

    c: "Lowering"
    id: int

    @property
    def type(self) -> TensorType:
        return tensor_type(self.c.builder.type_of[self.id])

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def sizes(self) -> tuple[Dim, ...]:
        return self.type.sizes

    @property
    def rank(self) -> int:
        return self.type.rank

    def __add__(self, other: "Operand") -> "Value":
        return self.c.binary("add", self, other)

    def __radd__(self, other: Number) -> "Value":
        return self.c.binary("add", self, other)

    def __sub__(self, other: "Operand") -> "Value":
        return self.c.binary("sub", self, other)

    def __rsub__(self, other: Number) -> "Value":
        return self.c.binary("sub", other, self)

    def __mul__(self, other: "Operand") -> "Value":
        return self.c.binary("mul", self, other)

    def __rmul__(self, other: Number) -> "Value":
        return self.c.binary("mul", self, other)

    def __truediv__(self, other: "Operand") -> "Value":
        return self.c.binary("div", self, other)

    def __rtruediv__(self, other: Number) -> "Value":
        return self.c.binary("div", other, self)

    def __neg__(self) -> "Value":
        return self.c.unary("neg", self)

    def __lt__(self, other: "Operand") -> "Value":
        return self.c.binary("lt", self, other)

    def __le__(self, other: "Operand") -> "Value":
        return self.c.binary("le", self, other)

    def __gt__(self, other: "Operand") -> "Value":
        return self.c.binary("gt", self, other)

    def __ge__(self, other: "Operand") -> "Value":
        return self.c.binary("ge", self, other)


Operand = Value | Number


class Lowering:
    """Appends core ops to `builder` on behalf of the ATen op `op`.

    read   the values that anything reads; None where that is not known
    """

    def __init__(self, builder: Builder, op: Op, read: frozenset[int] | None = None) -> None:
        self.builder, self.op, self.read = builder, op, read

    def is_read(self, place: int) -> bool:
        """Whether anything reads the op's result number `place`."""
        return self.read is None or self.op.results[place] in self.read

    @property
    def result(self) -> TensorType:
        """The recorded type of the op's first result."""
        return tensor_type(self.op.types[0])

    def axis(self, axis: int, value: Value) -> int:
        """`axis` counted from the front. Declines for a value without axes."""
        decline_if(value.rank == 0, "0-d operand")
        return axis % value.rank

    def axes(self, axes: Arg, value: Value) -> tuple[int, ...]:
        """`axes` (None, a number or several) counted from the front; none means every axis."""
        if axes is None or axes == ():
            return tuple(range(value.rank))
        axes = axes if isinstance(axes, tuple) else (axes,)
        return tuple(sorted(self.axis(a, value) for a in axes)) if value.rank else ()

    def emit(
        self, name: str, operands: Sequence[Value], dtype: str, sizes: Sequence[Dim],
        strides: Sequence[Dim] | None = None, **attrs: Arg,
    ) -> Value:
        """Appends the core op `name`. Default strides: the recorded result's, or contiguous."""
        sizes = tuple(sizes)
        if strides is None:
            recorded = self.op.types[0]
            fits = (
                isinstance(recorded, TensorType)
                and recorded.sizes == sizes
                and 0 not in recorded.strides
            )
            strides = recorded.strides if fits else contiguous_strides(sizes)
        device = next((t.device for t in self.op.types if isinstance(t, TensorType)), "cpu")
        type = TensorType(dtype, sizes, tuple(strides), device)
        if name in ("cast", "bitcast"):
            attrs["dtype"] = dtype
        return Value(self, self.builder.add(name, [v.id for v in operands], type, **attrs))

    # -------------------------------------------------------------------- elementwise
    def unary(self, name: str, x: Value) -> Value:
        return self.emit(name, [x], "bool" if name in COMPARISONS else x.dtype, x.sizes)

    def binary(self, name: str, x: Operand, y: Operand) -> Value:
        """`name(x, y)`: a number becomes a constant of the other's dtype, sizes are broadcast."""
        like = x if isinstance(x, Value) else y
        x, y = self.broadcast(self._operand(x, like), self._operand(y, like))
        return self.emit(name, [x, y], "bool" if name in COMPARISONS else x.dtype, x.sizes)

    def where(self, condition: Value, x: Operand, y: Operand) -> Value:
        like = x if isinstance(x, Value) else y
        condition, x, y = self.broadcast(
            condition, self._operand(x, like), self._operand(y, like)
        )
        return self.emit("where", [condition, x, y], x.dtype, x.sizes)

    def _operand(self, x: Operand, like: Value) -> Value:
        """x beside `like`. Declines for a number beside bools that is none itself."""
        if isinstance(x, Value):
            return x
        is_bool = like.dtype == "bool" and is_known(x)
        decline_if(is_bool and x not in (0, 1), f"{x} as bool")
        return self.full(x, like.sizes, like.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        """x in `dtype`; x itself if it has it."""
        if x.dtype == dtype:
            return x
        return self.emit("cast", [x], dtype, x.sizes)

    def copy(self, x: Value, strides: Sequence[Dim] | None = None) -> Value:
        """x in memory of its own."""
        return self.emit("cast", [x], x.dtype, x.sizes, strides)

    def up(self, x: Operand, dtype: str = "", sizes: Sequence[Dim] = ()) -> Value:
        """The operand in the dtype in which results of `dtype` (default: its own) are computed.

        A number becomes a constant of `sizes`. 16-bit floats are widened.
        """
        if not isinstance(x, Value):
            return self.full(x, sizes, compute_dtype(dtype))
        return self.cast(x, compute_dtype(dtype or x.dtype))

    def down(self, x: Value, dtype: str = "") -> Value:
        """x rounded to `dtype` (default: the result's): the end of what `up` began."""
        return self.cast(x, dtype or self.result.dtype)

    def full(self, value: Number, sizes: Sequence[Dim], dtype: str) -> Value:
        """The constant `value`, or the number that an input gives: then its one element, repeated.

        Declines for an integer that might not fit into `dtype`.
        """
        if is_known(value):
            return self.emit("full", [], dtype, sizes, value=as_number(value, dtype))
        fits = is_float(dtype) or (dtype == "int64" and value.type == "int")
        decline_if(not fits, f"a number known only at run time as {dtype}")
        number = self._number(value)
        # torch makes a 16-bit float of a number by way of float32
        return self.expand(self.cast(self.cast(number, compute_dtype(dtype)), dtype), sizes)

    def _number(self, value: Number) -> Value:
        """A number that is known only at run time as a value without axes; of floats also a sum or a product."""
        if not isinstance(value, Scalar):
            return self.emit("full", [], "float64", (), value=as_float(value))
        if value.op == "sym":
            return Value(self, int(value.args[0].removeprefix("%")))
        is_exact = value.op in _EXACT and "float" in map(type_of, value.args)
        decline_if(not is_exact, "a number that is computed at run time")
        args = [self.cast(self._number(arg), "float64") for arg in value.args]
        return self.emit(_EXACT[value.op], args, "float64", ())

    def iota(
        self,
        axis: int,
        sizes: Sequence[Dim],
        start: Number = 0,
        step: Number = 1,
        dtype: str = "int64",
    ) -> Value:
        return self.emit("iota", [], dtype, sizes, axis=axis, start=start, step=step)

    # -------------------------------------------------------------------- movement
    def broadcast(self, *values: Value) -> list[Value]:
        """`values` expanded to their common sizes."""
        sizes = broadcast_sizes([v.sizes for v in values])
        return [self.expand(v, sizes) for v in values]

    def expand(self, x: Value, sizes: Sequence[Dim]) -> Value:
        sizes = tuple(sizes)
        if x.sizes == sizes:
            return x
        lead = len(sizes) - x.rank
        kept = tuple(0 if a != b else s for a, b, s in zip(x.sizes, sizes[lead:], x.type.strides))
        return self.emit("expand", [x], x.dtype, sizes, (0,) * lead + kept)

    def reshape(self, x: Value, sizes: Sequence[Dim]) -> Value:
        sizes = tuple(sizes)
        if x.sizes == sizes:
            return x
        strides = view_strides(x.type, sizes) or contiguous_strides(sizes)
        return self.emit("reshape", [x], x.dtype, sizes, strides)

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        axes = tuple(axes)
        if axes == tuple(range(x.rank)):
            return x
        sizes, strides = ([part[a] for a in axes] for part in (x.sizes, x.type.strides))
        return self.emit("permute", [x], x.dtype, sizes, strides, axes=axes)

    def transpose(self, x: Value, a: int, b: int) -> Value:
        axes = list(range(x.rank))
        axes[a], axes[b] = axes[b], axes[a]
        return self.permute(x, axes)

    def first(self, x: Value, axis: int) -> Value:
        """The first part of an axis that has any, as an axis of one element; nothing is asked about its size."""
        sizes = (*x.sizes[:axis], 1, *x.sizes[axis + 1 :])
        return self.emit("slice", [x], x.dtype, sizes, x.type.strides, axis=axis, start=0, step=1)

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
        if step == 1 and size == x.sizes[axis]:
            return x
        self._within(x.sizes[axis], start, size, step)
        sizes = (*x.sizes[:axis], size, *x.sizes[axis + 1 :])
        strides = (*x.type.strides[:axis], x.type.strides[axis] * step, *x.type.strides[axis + 1 :])
        return self.emit("slice", [x], x.dtype, sizes, strides, axis=axis, start=start, step=step)

    def cat(self, values: Sequence[Value], axis: int) -> Value:
        if len(values) == 1:
            return values[0]
        total: Dim = 0
        for value in values:
            total = total + value.sizes[axis]
        sizes = (*values[0].sizes[:axis], total, *values[0].sizes[axis + 1 :])
        return self.emit("cat", values, values[0].dtype, sizes, axis=axis)

    def place(self, x: Value, part: Value, axis: int, start: Dim, step: int = 1) -> Value:
        part = self.expand(part, (*x.sizes[:axis], part.sizes[axis], *x.sizes[axis + 1 :]))
        self._within(x.sizes[axis], start, part.sizes[axis], step)
        return self.emit("place", [x, part], x.dtype, x.sizes, axis=axis, start=start, step=step)

    def _within(self, whole: Dim, start: Dim, size: Dim, step: int) -> None:
        """Declines, for torch to raise, a part that is not within an axis of `whole` elements."""
        is_inside = size == 0 or (start >= 0 and start + (size - 1) * step < whole)
        decline_if(not is_inside, "torch will raise")

    # -------------------------------------------------------------------- reductions
    def reduce(
        self, name: str, x: Value, axes: Sequence[int], keepdim: bool = True, dtype: str = ""
    ) -> Value:
        """The reduction `name` of x over `axes`; x itself over none."""
        axes = tuple(axes)
        if not axes:
            return self.cast(x, dtype or x.dtype)
        if keepdim:
            sizes = [1 if i in axes else s for i, s in enumerate(x.sizes)]
        else:
            sizes = [s for i, s in enumerate(x.sizes) if i not in axes]
        return self.emit(name, [x], dtype or x.dtype, sizes, axes=axes, keepdim=keepdim)

    def mean(self, x: Value, axes: Sequence[int], keepdim: bool = True) -> Value:
        return self.reduce("sum", x, axes, keepdim) / count(x, axes)


def count(x: Value, axes: Sequence[int]) -> Number:
    """How many elements are reduced over `axes`. Declines when that is not known."""
    number = product(x.sizes[a] for a in axes)
    decline_if(not is_known(number), "a symbolic count")
    return as_float(number)


def is_known(value: Arg) -> bool:
    """Whether `value` can be computed with: a number, or one made of sizes (`ir/hinted.py`)."""
    return not isinstance(value, Scalar) or isinstance(value, Hinted)


def as_number(value: Number, dtype: str) -> Number:
    """`value` as a constant of `dtype` holds it. Declines when an integer does not fit."""
    kind = DTYPES[dtype].kind
    if kind == "b":
        return bool(value)
    if kind == "f":
        return as_float(value)
    if isinstance(value, Hinted):
        decline_if(type_of(value) != "int" or dtype != "int64", f"{value} as {dtype}")
        return value
    decline_if(isinstance(value, float) and not value.is_integer(), f"{value} as {dtype}")
    bits = DTYPES[dtype].itemsize * 8
    low, high = (0, 2**bits) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    decline_if(not low <= value < high, f"{value} as {dtype}")
    return int(value)


def broadcast_sizes(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common sizes of `shapes` under torch's broadcasting."""
    rank = max(map(len, shapes))
    sizes: list[Dim] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, start=rank - len(shape)):
            if sizes[place] == 1:
                sizes[place] = size
    return tuple(sizes)


def view_strides(type: TensorType, sizes: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The strides of a view of `type` with `sizes`, or None when only a copy has them.

    Source: computeStride in aten/src/ATen/TensorUtils.cpp.
    """
    known = (*type.sizes, *type.strides, *sizes)
    if not all(map(is_known, known)) or 0 in type.sizes:
        return None
    if not type.sizes:
        return (1,) * len(sizes)
    strides = [0] * len(sizes)
    place = len(sizes) - 1
    chunk, base = 1, type.strides[-1]
    for axis in reversed(range(type.rank)):
        chunk *= type.sizes[axis]
        is_end = axis == 0 or (type.sizes[axis - 1] != 1 and type.strides[axis - 1] != chunk * base)
        if is_end:
            view = 1
            while place >= 0 and (estimate(view) < estimate(chunk) or sizes[place] == 1):
                strides[place] = view * base
                view *= sizes[place]
                place -= 1
            if view != chunk:
                return None
            if axis > 0:
                chunk, base = 1, type.strides[axis - 1]
    return tuple(strides) if place == -1 else None


def token_name(arg: Arg) -> str:
    """The name of a token argument; "" for None."""
    return arg.name if isinstance(arg, Token) else ""


def values_of(c: Lowering, arg: Arg, known: dict[int, int | Scalar]) -> object:
    """`arg` with each `Ref` replaced by the `Value` it has at level core, or its symbol."""
    if isinstance(arg, Ref):
        value = known[arg.id]
        return value if isinstance(value, Scalar) else Value(c, value)
    if isinstance(arg, Item):
        value = known[arg.id]
        return value if isinstance(value, Scalar) else symbol(
            f"%{value}", "float" if is_float(tensor_type(c.builder.type_of[value]).dtype) else "int")
    if isinstance(arg, tuple):
        return tuple(values_of(c, part, known) for part in arg)
    return arg
