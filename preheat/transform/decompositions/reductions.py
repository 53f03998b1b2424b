"""Reductions: sum, mean, variance, norms, extrema, any and all, softmax.

    aten._softmax.default(x: [B, T], -1)  ->  m = max(x, 1); e = exp(x - m); e / sum(e, 1)

16-bit floats are summed in float32 and rounded once at the end. Variances take two passes over
the data, as eager's Welford does in accuracy; on a CPU in float64, as there. Extrema never round.
"""

import math
from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number
from preheat.transform.lowering import Lowering, Value, compute_dtype, count, decline_if, is_float


def total(c: Lowering, self: Value, dim: Arg = None, keepdim: bool = False, **_: Arg) -> Value:
    axes = c.axes(dim, self)
    wide = compute_dtype(c.result.dtype)
    return c.down(c.reduce("sum", c.up(self, c.result.dtype), axes, keepdim, wide))


def mean(c: Lowering, self: Value, dim: Arg = None, keepdim: bool = False, **_: Arg) -> Value:
    decline_if(not is_float(c.result.dtype), "mean of integers")
    return c.down(c.mean(c.up(self, c.result.dtype), c.axes(dim, self), keepdim))


def prod(c: Lowering, self: Value, dim: Arg = None, keepdim: bool = False, **_: Arg) -> Value:
    decline_if(c.result.dtype == "bool", "product of bools")
    x = c.up(self, c.result.dtype)
    return c.down(c.reduce("prod", x, c.axes(dim, self), keepdim))


def _variance(
    c: Lowering, self: Value, dim: Arg, correction: Arg, keepdim: bool
) -> tuple[Value, Value]:
    decline_if(not is_float(c.result.dtype), "variance of integers")
    axes = c.axes(dim, self)
    # eager's root on a CPU is that of a float64: the square of 1e30, or of 1e-30, is no float32
    x = c.cast(self, "float64") if self.type.device == "cpu" else c.up(self)
    mean = c.mean(x, axes, True)
    centred = x - mean
    squares = c.reduce("sum", centred * centred, axes, keepdim)
    degrees = max(count(x, axes) - (1 if correction is None else correction), 0.0)
    spread = squares / degrees  # 0 / 0 is NaN, x / 0 is inf: as eager
    kept = [1 if i in axes else s for i, s in enumerate(x.sizes)]
    small = kept if keepdim else [s for i, s in enumerate(x.sizes) if i not in axes]
    return spread, c.reshape(mean, small)


def variance(
    c: Lowering, self: Value, dim: Arg = None, correction: Arg = None, keepdim: bool = False
) -> Value:
    return c.down(_variance(c, self, dim, correction, keepdim)[0])


def deviation(
    c: Lowering, self: Value, dim: Arg = None, correction: Arg = None, keepdim: bool = False
) -> Value:
    return c.down(c.unary("sqrt", _variance(c, self, dim, correction, keepdim)[0]))


def variance_mean(
    c: Lowering, self: Value, dim: Arg = None, correction: Arg = None, keepdim: bool = False
) -> tuple:
    spread, mean = _variance(c, self, dim, correction, keepdim)
    return c.down(spread), c.down(mean)


def deviation_mean(
    c: Lowering, self: Value, dim: Arg = None, correction: Arg = None, keepdim: bool = False
) -> tuple:
    spread, mean = _variance(c, self, dim, correction, keepdim)
    return c.down(c.unary("sqrt", spread)), c.down(mean)


def vector_norm(
    c: Lowering, self: Value, ord: Number = 2, dim: Arg = None, keepdim: bool = False, **_: Arg
) -> Value:
    decline_if(not is_float(self.dtype), "norm of integers")
    x, axes = c.up(self, c.result.dtype), c.axes(dim, self)
    magnitude = c.unary("abs", x)
    if ord == 2:
        return c.down(c.unary("sqrt", c.reduce("sum", x * x, axes, keepdim)))
    if ord == 1:
        return c.down(c.reduce("sum", magnitude, axes, keepdim))
    if ord in (math.inf, -math.inf):
        decline_if(0 in self.sizes, "norm of nothing")
        return c.down(c.reduce("max" if ord > 0 else "min", magnitude, axes, keepdim))
    decline_if(True, f"norm {ord}")


def norm(
    c: Lowering, self: Value, p: Arg = None, dim: Arg = None, keepdim: bool = False, **_: Arg
) -> Value:
    return vector_norm(c, self, 2 if p is None else p, dim, keepdim)


# ---------------------------------------------------------------------------- extrema
def _widened(c: Lowering, x: Value) -> Value:
    """x in a dtype that extrema are taken in; exact."""
    return c.cast(
        x, {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(x.dtype, x.dtype)
    )


def extremum(name: str) -> Callable:
    """A row of amax, amin, max or min over axes or all."""

    def row(c: Lowering, self: Value, dim: Arg = None, keepdim: bool = False) -> Value:
        decline_if(0 in self.sizes, "extremum of nothing")
        return c.down(c.reduce(name, _widened(c, self), c.axes(dim, self), keepdim), self.dtype)

    return row


def extremum_and_place(name: str) -> Callable:
    """A row of max.dim or min.dim: values and indices."""

    def row(c: Lowering, self: Value, dim: int, keepdim: bool = False) -> tuple:
        decline_if(0 in self.sizes, "extremum of nothing")
        axis, x = c.axis(dim, self), _widened(c, self)
        values = c.down(c.reduce(name, x, (axis,), keepdim), self.dtype)
        return values, _place(c, f"arg{name}", x, axis, keepdim)

    return row


def _place(c: Lowering, name: str, x: Value, axis: int, keepdim: bool) -> Value:
    kept = [1 if i == axis else s for i, s in enumerate(x.sizes)]
    sizes = kept if keepdim else [s for i, s in enumerate(x.sizes) if i != axis]
    return c.emit(name, [x], "int64", sizes, axis=axis, keepdim=keepdim)


def place(name: str) -> Callable:
    """A row of argmax or argmin, over one axis or the flattened operand."""

    def row(c: Lowering, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        decline_if(0 in self.sizes or self.rank == 0, "place in nothing")
        x = _widened(c, self)
        if dim is not None:
            return _place(c, name, x, c.axis(dim, self), keepdim)
        total = 1
        for size in x.sizes:
            total = total * size
        return c.reshape(_place(c, name, c.reshape(x, (total,)), 0, False), c.result.sizes)

    return row


def truth(name: str) -> Callable:
    """A row of any or all. A uint8 operand gives uint8."""

    def row(c: Lowering, self: Value, dim: Arg = None, keepdim: bool = False) -> Value:
        decline_if(dim == (), "no axes at all")
        found = c.reduce(name, c.cast(self, "bool"), c.axes(dim, self), keepdim)
        return c.cast(found, c.result.dtype)

    return row


# ---------------------------------------------------------------------------- softmax
def softmax(c: Lowering, self: Value, dim: int, half_to_float: bool = False) -> Value:
    if 0 in self.sizes:
        return c.full(0, c.result.sizes, c.result.dtype)
    if self.rank == 0:
        return c.down(c.unary("exp", c.up(self) - c.up(self)))
    x, axes = c.up(self), (c.axis(dim, self),)
    powers = c.unary("exp", x - c.reduce("max", x, axes))
    return c.down(powers / c.reduce("sum", powers, axes))


def safe_softmax(c: Lowering, self: Value, dim: int, dtype: Arg = None) -> Value:
    """Softmax in which a row that is masked whole (every element -inf) gives zeros, not NaN."""
    decline_if(dtype is not None or not is_float(self.dtype) or self.rank == 0 or 0 in self.sizes, "operand")
    x, axes = c.up(self), (c.axis(dim, self),)
    largest = c.reduce("max", x, axes)
    powers = c.unary("exp", x - largest)
    shares = powers / c.reduce("sum", powers, axes)
    return c.down(c.where(c.binary("eq", largest, -math.inf), 0.0, shares))


def log_softmax(c: Lowering, self: Value, dim: int, half_to_float: bool = False) -> Value:
    if 0 in self.sizes:
        return c.full(0, c.result.sizes, c.result.dtype)
    if self.rank == 0:
        return c.down(c.up(self) - c.up(self))
    x, axes = c.up(self), (c.axis(dim, self),)
    shifted = x - c.reduce("max", x, axes)
    return c.down(shifted - c.unary("log", c.reduce("sum", c.unary("exp", shifted), axes)))


def logsumexp(c: Lowering, self: Value, dim: Arg, keepdim: bool = False) -> Value:
    decline_if(not is_float(self.dtype) or 0 in self.sizes or self.rank == 0, "operand")
    x, axes = c.up(self), c.axes(dim, self)
    largest = c.reduce("max", x, axes)
    infinite = c.binary("eq", c.unary("abs", largest), math.inf)
    shift = c.where(infinite, 0.0, largest)
    found = c.unary("log", c.reduce("sum", c.unary("exp", x - shift), axes)) + shift
    return c.down(c.reshape(found, c.result.sizes))


def nll_loss(
    c: Lowering, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The negative of one column a row, summed or averaged over the rows that are not ignored; and
    how many those are."""
    decline_if(weight is not None or reduction == 0, "weights, or a loss a row")
    decline_if(self.rank != 2 or target.rank != 1 or 0 in self.sizes, "one row, or none")
    decline_if(not is_float(self.dtype) or target.dtype not in ("int64", "int32"), "dtypes")
    rows = self.sizes[0]
    is_kept = c.binary("ne", target, ignore_index)
    column = c.reshape(c.where(is_kept, target, 0), (rows, 1))
    picked = c.up(c.emit("gather", [self, column], self.dtype, (rows, 1), axis=1))
    loss = c.where(is_kept, -c.reshape(picked, (rows,)), 0)
    count = c.reduce("sum", c.cast(is_kept, picked.dtype), (0,), keepdim=False)
    total = c.reduce("sum", loss, (0,), keepdim=False)
    total = total / count if reduction == 1 else total
    return c.down(total, self.dtype), c.down(count, self.dtype)


ROWS: dict[str, Callable] = {
    "aten.nll_loss_forward.default": nll_loss,
    "aten.sum.default": total, "aten.sum.dim_IntList": total,
    "aten.mean.default": mean, "aten.mean.dim": mean,
    "aten.prod.default": prod, "aten.prod.dim_int": prod,
    "aten.var.correction": variance, "aten.std.correction": deviation,
    "aten.var_mean.correction": variance_mean, "aten.std_mean.correction": deviation_mean,
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.norm.ScalarOpt_dim": norm, "aten.norm.Scalar": norm,
    "aten.norm.ScalarOpt_dim_dtype": norm,
    "aten.amax.default": extremum("max"), "aten.amin.default": extremum("min"),
    "aten.max.default": extremum("max"), "aten.min.default": extremum("min"),
    "aten.max.dim": extremum_and_place("max"), "aten.min.dim": extremum_and_place("min"),
    "aten.argmax.default": place("argmax"), "aten.argmin.default": place("argmin"),
    **{f"aten.{name}.{v}": truth(name)
       for name in ("any", "all") for v in ("default", "dim", "dims")},
    "aten._softmax.default": softmax, "aten._log_softmax.default": log_softmax,
    "aten.softmax.int": softmax, "aten.log_softmax.int": log_softmax,
    "aten._safe_softmax.default": safe_softmax, "aten.logsumexp.default": logsumexp,
}
