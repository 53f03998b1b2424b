"""Creation: constants, ranges, identity matrices. The recorded result says sizes and dtype.

    aten.arange.start_step(0, 8, 2, dtype=int64)   ->   iota(axis=0, start=0, step=2): i64[4]

Uninitialised memory (`empty`) is filled with zero: whoever reads it before writing sees zeros.
"""

from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.hinted import as_float
from preheat.ir.scalar import Number
from preheat.transform.lowering import (
    Lowering, Value, as_number, decline_if, is_float, is_known,
)


def filled(value: Number) -> Callable:
    def row(c: Lowering, **_: Arg) -> Value:
        return c.full(value, c.result.sizes, c.result.dtype)

    return row


def full(c: Lowering, fill_value: Number, **_: Arg) -> Value:
    return c.full(fill_value, c.result.sizes, c.result.dtype)


def scalar_tensor(c: Lowering, s: Number, **_: Arg) -> Value:
    return c.full(s, (), c.result.dtype)


def fill_number(c: Lowering, self: Value, value: Number) -> Value:
    return c.full(value, self.sizes, self.dtype)


def fill_tensor(c: Lowering, self: Value, value: Value) -> Value:
    decline_if(value.rank != 0, "value with axes")
    return c.expand(c.cast(value, self.dtype), self.sizes)


def arange(c: Lowering, end: Number, start: Number = 0, step: Number = 1, **_: Arg) -> Value:
    """Floats are computed in float64 and rounded, as eager does on the CPU."""
    decline_if(not all(map(is_known, (start, end, step))), "symbolic bounds")
    decline_if(c.result.rank == 0, "no axis")
    dtype = c.result.dtype
    if is_float(dtype):
        return c.cast(c.iota(0, c.result.sizes, as_float(start), as_float(step), "float64"), dtype)
    start, step = (as_number(value, "int64") for value in (start, step))
    return c.cast(c.iota(0, c.result.sizes, start, step), dtype)


def eye(c: Lowering, **_: Arg) -> Value:
    rows, columns = c.result.sizes
    down = c.expand(c.iota(0, (rows, 1)), (rows, columns))
    across = c.expand(c.iota(1, (1, columns)), (rows, columns))
    return c.cast(c.binary("eq", down, across), c.result.dtype)


def uniform(c: Lowering, seed: Value, like: Value, stream: int) -> Value:
    return c.emit("uniform", [seed], "float32", like.sizes, stream=stream)


_SOURCES = (
    "empty.memory_format",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
    "empty_like.default",
    "new_zeros.default",
    "zeros.default",
    "zeros_like.default",
    "zero.default",
    "_efficientzerotensor.default",  # torch's has no memory at all, which no kernel could read
)

NUMBER_ROWS = frozenset((
    "aten.full.default", "aten.full_like.default", "aten.new_full.default",
    "aten.scalar_tensor.default", "aten.fill.Scalar",
))

ROWS: dict[str, Callable] = {
    **{f"aten.{name}": filled(0) for name in _SOURCES},
    **{f"aten.{name}.default": filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": full for name in ("full", "full_like", "new_full")},
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.fill.Scalar": fill_number, "aten.fill.Tensor": fill_tensor,
    **{f"aten.arange.{v}": arange for v in ("default", "start", "start_step")},
    "aten.eye.default": eye, "aten.eye.m": eye,
    "preheat.uniform.default": uniform,
}
