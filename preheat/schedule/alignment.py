"""Products of 16-bit floats on a GPU whose columns do not fill 16 bytes: cut where they do.

    %2: bf16[4096, 50257] = matmul(%0: bf16[4096, 768], %1: bf16[768, 50257]{1, 768})
      ->
    %3: bf16[4096, 50256] = matmul(%0, slice(%1, axis=1, start=0))      its rows begin at 16 bytes
    %4: bf16[4096, 1] = sum(%0 * slice(%1, axis=1, start=50256))        a kernel (schedule/sums)
    %2: bf16[4096, 50257] = cat(%3, %4, axis=1)

The tensor cores' loads and stores want rows that begin at 16 bytes. Where those of the result do
not, the library takes a path that is several times slower: GPT-2's logits for 8 x 512 tokens cost
more than all its layers (docs/performance.md). Joining the parts costs a pass over the result, or
nothing where a kernel reads them; no weight is copied, as it would be to pad it.

Requires level core. Guarantees: the same sums in float32, rounded once.
"""

from preheat.ir.graph import Arg, Builder, Graph, Op, Ref, with_replaced
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import HALVES, TensorType, Type, tensor
from preheat.schedule.sums import Product, product_in, write_sum

ALIGN_ELEMS = 8  # of 16 bits
LEAST_COLUMNS = 64
# Estimates for the decision (H200): the aligned product, what the other path adds to it, a copy.
FLOPS_PER_US = 500_000_000
EXTRA = 3
BYTES_PER_US = 4_000_000
LAUNCHES_US = 10


def aligned_products(graph: Graph, target: Target) -> Graph:
    """`graph` with each large product of unaligned columns in two parts."""
    if not target.is_gpu:
        return graph
    types = graph.types()
    return with_replaced(
        graph, lambda op: _gains(product_in(op, types), types),
        lambda builder, op: _append(builder, product_in(op, types)))


def _gains(product: Product | None, types: dict[int, Type]) -> bool:
    if product is None:
        return False
    type, a, b = product.op.type, types[product.a], types[product.b]
    known = (*type.sizes, *a.sizes, *b.sizes, *a.strides, *b.strides)
    if type.dtype not in HALVES or any(isinstance(n, Scalar) for n in known):
        return False
    inner, columns = a.sizes[-1], type.sizes[-1]
    are_others_aligned = a.strides[-1] == 1 and b.strides[-2] == 1 and inner % ALIGN_ELEMS == 0
    if columns % ALIGN_ELEMS == 0 or columns < LEAST_COLUMNS or not are_others_aligned:
        return False
    saved_us = EXTRA * 2 * type.elems * inner / FLOPS_PER_US
    return saved_us > 2 * (LAUNCHES_US + 2 * type.elems * type.itemsize / BYTES_PER_US)


def _append(builder: Builder, product: Product) -> None:
    """Appends the two parts, and their join, which gives the op's own value."""
    op, columns = product.op, product.op.type.sizes[-1]
    cut = columns // ALIGN_ELEMS * ALIGN_ELEMS
    main = _part(builder, product, 0, cut)
    builder.append(main.op)
    rest = _part(builder, product, cut, columns - cut)
    write_sum(builder, rest)
    parts = (Ref(main.op.result), Ref(rest.op.result))
    builder.append(Op("cat", parts, op.results, op.types, (("axis", op.type.rank - 1),)))


def _part(builder: Builder, product: Product, start: int, size: int) -> Product:
    """The product of `size` columns from `start`."""
    op, type = product.op, product.op.type
    b = _columns(builder, product.b, start, size)
    addend = product.addend
    if addend is not None and builder.type_of[addend].sizes[-1] != 1:
        addend = _columns(builder, addend, start, size)
    args: tuple[Arg, ...] = (Ref(product.a), Ref(b))
    args = args if addend is None else (Ref(addend), *args, *op.args[3:])
    made = tensor(type.dtype, (*type.sizes[:-1], size), device=type.device)
    part = Op(op.name, args, (builder.fresh(),), (made,), op.attrs)
    return Product(part, product.a, b, addend)


def _columns(builder: Builder, value: int, start: int, size: int) -> int:
    """`size` elements of the last axis of `value`, from `start`."""
    type = builder.type_of[value]
    part = TensorType(type.dtype, (*type.sizes[:-1], size), type.strides, type.device)
    return builder.add("slice", [value], part, axis=type.rank - 1, start=start, step=1)
