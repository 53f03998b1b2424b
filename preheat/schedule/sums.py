"""Products of few rows as sums: the BLAS gains nothing there, and a sum takes its epilogue along.

    %3: f32[1, 256] = matmul(%0: f32[1, 128], %2: f32[128, 256]{1, 128}); %4 = add(%3, ..)
      ->
    %6: f32[1, 256, 128]{128, 0, 1} = expand(reshape(%0))        the row, for each column
    %9: f32[1, 256, 128] = times(%6, expand(permute(%2)))        one row of weights a column
    %3: f32[1, 256] = sum(%9, axes=(2,)); %4 = add(%3, ..)       one kernel

Such a product does little with each element of its large operand: what counts is bytes, and a
generated sum reads them as fast as memory gives them (2 MB of weights as 8 matrices, one thread of
a Zen 4: 22 us to read them, 25 us for the sums of one row, 51 us by ?gemm; 256 x 256 by 4 rows: 7
and 12 us; by 8: 12 and 17). Either operand may be the one of few rows. On a GPU a call of the library costs
the host 10 us besides, so a step that decodes one token is bound by them; several sums of one row are one
kernel there, and a row of weights is loaded once for all rows (`forms`: together).

Requires and gives level core. Guarantees: only products whose elements are consecutive along the
sum, or along the many columns; 16-bit floats are multiplied and added in float32, with the addend
that the library's `addmm` has, and rounded once as there.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.ops import MOVEMENT
from preheat.ir.hinted import estimate
from preheat.ir.scalar import Dim, Scalar, product as product_of
from preheat.ir.types import HALVES, TensorType, Type, tensor
from preheat.schedule.views import view_of

MOST_ROWS = 8  # as many rows as are reduced together (forms.MOST_TOGETHER)
MOST_ROWS_BYTES = 80 << 10  # of several rows, which are read for each row of weights: near L1
LEAST_INNER = 16  # shorter rows of weights do not fill a vector
# Columns are walked down in strips, and a strip of a matrix beyond the caches wastes its pages.
MOST_STRIP_BYTES = 16 << 20
# The library multiplies bfloat16 in pairs (avx512_bf16), but has 15 us of its own to do first.
MOST_BFLOAT16 = (2, 1 << 19)  # rows, or products
DTYPES = ("float32", "float64", *HALVES)
# On a GPU more rows, or more work, are better off on the matrix units. H200, bfloat16, weights out of cache,
# us by the sum / by the library: 1 x 2048 x 2048 5.3 / 6.9, 1 x 14336 x 4096 30 / 32, 1 x 4096 x 14336 29 / 32,
# 1 x 2048 x 32000 32 / 35; 2 x 2048 x 5632 9.26 / 9.29, 2 x 4096 x 4096 11.6 / 13.4; 3 x 2048 x 2048 6.0 / 7.0,
# 4 x 2048 x 2048 6.3 / 7.0; but 4 x 2048 x 5632 11.7 / 9.3, 4 x 5632 x 2048 12.4 / 11.4, 8 x 2048 x 2048 9.5 / 6.8.
MOST_GPU_ROWS, MOST_GPU_ELEMS, MOST_GPU_WORK = 4, 8192, 1 << 24
GPU_DTYPES = ("float32", *HALVES)
Steps = tuple[Dim, Dim]  # strides along the rows and along the columns of a matrix


class Sums(NamedTuple):
    """The graph with products as sums; `operands`: the values that these multiply and that must be in
    memory. products: the sums that are wide products, which share a kernel with no other sum. few: the
    sums that are products of few rows, with how many each has: a kernel has no more than MOST_ROWS."""

    graph: Graph
    operands: frozenset[int]
    products: frozenset[int] = frozenset()
    few: Mapping[int, int] = MappingProxyType({})

    def joined(self, later: "Sums") -> "Sums":
        """Both: `later` is made of the graph of these."""
        return Sums(
            later.graph, self.operands | later.operands, self.products | later.products,
            {**self.few, **later.few})


def products_as_sums(graph: Graph, others: Collection[int] = ()) -> Sums:
    """`graph` with each product that a sum computes faster as one, but for those that give `others`."""
    types, by_value = graph.types(), {r: op for op in graph.ops for r in op.results}
    ops: list[Op] = []
    builder = Builder("core", ops=ops, next_id=graph.next_id(), type_of=dict(types))
    operands: set[int] = set()
    few: dict[int, int] = {}
    for op in graph.ops:
        product = product_in(op, types) if len(op.results) == 1 and op.result not in others else None
        rows = 0 if product is None else rows_of_sum(product, types, by_value)
        if rows:
            operands.update((product.a, product.b))
            first = len(ops)
            write_sum(builder, product)
            few |= {made.result: rows for made in ops[first:] if made.name == "sum"}
        else:
            ops.append(op)
    return Sums(replace(graph, ops=tuple(ops)), frozenset(operands), few=few)


class Product(NamedTuple):
    """a @ b, and `addend` where it is one more operand of `op`."""

    op: Op
    a: int
    b: int
    addend: int | None = None


def product_in(op: Op, types: Mapping[int, Type]) -> Product | None:
    """The product of floats that `op` is."""
    if op.name == "matmul":
        product = Product(op, *(arg.id for arg in op.args))
    elif op.name == "library" and op.attr("op") == "aten.addmm.default":
        factors = (*op.args[3:], op.attr("beta", 1), op.attr("alpha", 1))
        if any(isinstance(f, Scalar) or f != 1 for f in factors):
            return None
        addend, a, b = (arg.id for arg in op.args[:3])
        product = Product(op, a, b, addend)
    else:
        return None
    operands = [types[v] for v in product[1:] if v is not None]
    is_one_dtype = {t.dtype for t in operands} == {op.type.dtype}
    return product if is_one_dtype and op.type.dtype in DTYPES else None


# ---------------------------------------------------------------------------- which
def rows_of_sum(product: Product, types: Mapping[int, Type], by_value: Mapping[int, Op]) -> int:
    """The rows of a product that is faster as a sum; 0 for another one."""
    type = product.op.type
    a, b = (_steps(value, types, by_value) for value in (product.a, product.b))
    sizes = type.sizes[-2:]
    inner = types[product.a].sizes[-1]
    if inner == 1 and type.device == "cpu":
        return 1  # nothing to add up
    if estimate(sizes[1]) < estimate(sizes[0]):  # the transposed product: few columns, many rows
        sizes, a, b = sizes[::-1], b[::-1], a[::-1]
    if isinstance(sizes[0], Scalar) or sizes[0] > MOST_ROWS:
        return 0
    rows, columns, inner = map(estimate, (*sizes, inner))
    is_along = b[0] == 1 and a[1] in (0, 1) and inner >= LEAST_INNER
    if type.device != "cpu":
        is_fit = type.dtype in GPU_DTYPES and isinstance(types[product.a].sizes[-1], int)
        is_little = rows <= 2 or rows * columns * inner <= MOST_GPU_WORK
        is_few = rows == 1 or (
            rows <= MOST_GPU_ROWS and rows * inner <= MOST_GPU_ELEMS and is_little)
        return sizes[0] if is_fit and is_along and is_few else 0
    if type.dtype == "bfloat16" and rows > MOST_BFLOAT16[0]:
        if estimate(product_of(type.sizes)) * inner > MOST_BFLOAT16[1]:
            return 0
    is_near = rows == 1 or rows * inner * type.itemsize <= MOST_ROWS_BYTES
    is_strip = b[1] == 1 and inner * columns * type.itemsize <= MOST_STRIP_BYTES
    return sizes[0] if (is_along and is_near) or is_strip else 0


def _steps(value: int, types: Mapping[int, Type], by_value: Mapping[int, Op]) -> Steps:
    """The strides of matrix `value` in the memory that it is a view of."""
    base = value
    while base in by_value and by_value[base].name in MOVEMENT and len(by_value[base].args) == 1:
        base = by_value[base].args[0].id
    view = view_of(value, by_value, types, lambda v: v == base)
    strides = types[value].strides if view is None else view.strides
    return tuple(1 if n == 1 else s for n, s in zip(types[value].sizes, strides))[-2:]


# ---------------------------------------------------------------------------- how
def write_sum(builder: Builder, product: Product, rounds_float32: bool = False) -> None:
    """Appends the sum; it gives the op's own value. rounds_float32: float32 operands are rounded to tf32."""
    op, inner = product.op, builder.type_of[product.a].sizes[-1]
    *batch, rows, columns = op.type.sizes
    sizes = (*batch, rows, columns, inner)
    last = len(sizes) - 1
    left, right = (factor(builder, v, rounds_float32) for v in (product.a, product.b))
    left = repeated(builder, left, last - 1, sizes)
    right = permuted(builder, right, (*range(last - 2), last - 1, last - 2))
    right = repeated(builder, right, last - 2, sizes)
    write_total(builder, op, left, right, (last,), product.addend)


def write_total(
    builder: Builder, op: Op, left: int, right: int, axes: tuple[int, ...], addend: int | None = None,
) -> None:
    """Appends the sum of `left` times `right` over `axes`, and of `addend`, as the value of `op`, which is
    rounded once."""
    made = builder.add("times", [left, right], _fresh(builder, left, builder.type_of[left].sizes))
    if op.type.dtype not in HALVES and addend is None:
        builder.append(_reduced(made, axes, op.results, op.types))
        return
    accumulated, total = replace(op.type, dtype=builder.type_of[left].dtype), builder.fresh()
    builder.append(_reduced(made, axes, (total,), (accumulated,)))
    if addend is not None:
        other = _expanded(builder, wide(builder, addend), op.type.sizes)
        total = builder.add("add", [total, other], accumulated)
    builder.append(Op("cast", (Ref(total),), op.results, op.types, (("dtype", op.type.dtype),)))


def _fresh(builder: Builder, like: int, sizes: tuple) -> TensorType:
    """The type of a fresh value with the dtype and the device of `like`."""
    type = builder.type_of[like]
    return tensor(type.dtype, sizes, device=type.device)


def _reduced(
    value: int, axes: tuple[int, ...], results: tuple[int, ...], types: tuple[Type, ...],
) -> Op:
    return Op("sum", (Ref(value),), results, types, (("axes", axes), ("keepdim", False)))


def factor(builder: Builder, value: int, rounds_float32: bool) -> int:
    """What is multiplied of `value`; see `write_sum`."""
    type = builder.type_of[value]
    if rounds_float32 and type.dtype == "float32":
        return builder.add("tf32", [value], type)
    return wide(builder, value)


def wide(builder: Builder, value: int) -> int:
    """16-bit floats as float32."""
    type = builder.type_of[value]
    if type.dtype not in HALVES:
        return value
    made = tensor("float32", type.sizes, device=type.device)
    return builder.add("cast", [value], made, dtype="float32")


def windows(
    builder: Builder, value: int, axis: int, positions: int, step: int, taps: int, dilation: int,
) -> int:
    """`value` with a last axis of the `taps` elements that each of `positions` along `axis` sees."""
    type = builder.type_of[value]
    sizes, strides = list(type.sizes), list(type.strides)
    sizes[axis], strides[axis] = positions, strides[axis] * step
    made = replace(type, sizes=(*sizes, taps), strides=(*strides, type.strides[axis] * dilation))
    return builder.add("window", [value], made, axis=axis, step=step, dilation=dilation)


def permuted(builder: Builder, value: int, axes: tuple[int, ...]) -> int:
    """`value` with its axes in the order `axes`."""
    type = builder.type_of[value]
    sizes, strides = (tuple(given[k] for k in axes) for given in (type.sizes, type.strides))
    return builder.add("permute", [value], replace(type, sizes=sizes, strides=strides), axes=axes)


def repeated(builder: Builder, value: int, axis: int, sizes: tuple) -> int:
    """`value` with a new axis, along which it repeats to `sizes`."""
    type = builder.type_of[value]
    strides = (*type.strides[:axis], 0, *type.strides[axis:])
    apart = replace(type, sizes=(*type.sizes[:axis], 1, *type.sizes[axis:]), strides=strides)
    value = builder.add("reshape", [value], apart)
    if apart.sizes == sizes:
        return value
    return builder.add("expand", [value], replace(type, sizes=sizes, strides=strides))


def _expanded(builder: Builder, value: int, sizes: tuple) -> int:
    """`value` broadcast to `sizes`."""
    type = builder.type_of[value]
    new = len(sizes) - type.rank
    kept = zip(type.sizes, type.strides, sizes[new:])
    strides = (*(0,) * new, *(step if n == size else 0 for n, step, size in kept))
    if type.sizes == sizes:
        return value
    return builder.add("expand", [value], replace(type, sizes=sizes, strides=strides))
