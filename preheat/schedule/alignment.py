"""Products of 16-bit floats on a GPU whose columns do not fill 16 bytes: cut where they do.

    %2: bf16[4096, 50257] = matmul(%0: bf16[4096, 768], %1: bf16[768, 50257]{1, 768})
      ->
    %3: bf16[4096, 50256] = matmul(%0, slice(%1, axis=1, start=0))      its rows begin at 16 bytes
    %4: bf16[4096, 1] = sum(%0 * slice(%1, axis=1, start=50256))        a kernel (schedule/sums)
    %2: bf16[4096, 50257] = cat(%3, %4, axis=1)

The tensor cores' loads and stores want rows that begin at 16 bytes. Where those of the result do
not, the library takes a path that is several times slower: GPT-2's logits for 8 x 512 tokens cost
more than all its layers (docs/performance-gpu.md). Joining the parts costs a pass over the result, or
nothing where a kernel reads them; no weight is copied, as it would be to pad it. What nobody reads, a result of
the graph, would be there twice while it is joined: it is stored at once by pieces that are aligned (`interleave`), or,
where a bias is added, %3 is made of some rows after others, each joined before the next.

Requires level core. Guarantees: the same sums in float32, rounded once.
"""

from preheat.ir.graph import Arg, Builder, Graph, Op, Ref, with_replaced
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import HALVES, TensorType, Type, tensor
from preheat.schedule.interleave import ALIGN_ELEMS, given_values, is_interleaved
from preheat.schedule.sums import Product, product_in, write_sum

LEAST_COLUMNS = 64
# Estimates for the decision (H200): the aligned product, what the other path adds to it, a copy.
FLOPS_PER_US = 500_000_000
EXTRA = 3
BYTES_PER_US = 4_000_000
LAUNCHES_US = 10
MOST_BLOCKS = 8  # of rows of a result of the graph
BLOCK_US = 40  # of the product of a block of rows, which then still fills the device


def aligned_products(graph: Graph, target: Target) -> Graph:
    """`graph` with each large product of unaligned columns in two parts."""
    if not target.is_gpu:
        return graph
    types, given = graph.types(), given_values(graph)
    return with_replaced(
        graph, lambda op: not is_interleaved(op, types, given) and _gains(product_in(op, types), types),
        lambda builder, op: _append(builder, product_in(op, types), op.result in given))


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


def _append(builder: Builder, product: Product, is_given: bool) -> None:
    """Appends the two parts, and their join, which gives the op's own value."""
    op, columns = product.op, product.op.type.sizes[-1]
    cut = columns // ALIGN_ELEMS * ALIGN_ELEMS
    main = _columns(builder, product, 0, cut)
    blocks = _blocks(builder, main) if is_given else 1
    made = [_rows(builder, main, k, blocks) for k in range(blocks)]
    for part in made:
        builder.append(part.op)
    joined = made[0].op.result if blocks == 1 else builder.add(
        "cat", [part.op.result for part in made], main.op.type, axis=0)
    rest = _columns(builder, product, cut, columns - cut)
    write_sum(builder, rest)
    parts = (Ref(joined), Ref(rest.op.result))
    builder.append(Op("cat", parts, op.results, op.types, (("axis", op.type.rank - 1),)))


def _blocks(builder: Builder, product: Product) -> int:
    """Into how many blocks of rows the product of two matrices is cut."""
    type = product.op.type
    needed_us = 2 * type.elems * builder.type_of[product.a].sizes[-1] // FLOPS_PER_US
    return max(1, min(MOST_BLOCKS, needed_us // BLOCK_US)) if type.rank == 2 else 1


def _columns(builder: Builder, product: Product, start: int, size: int) -> Product:
    """The product of `size` columns from `start`."""
    b = _slice(builder, product.b, -1, start, size)
    addend = product.addend
    if addend is not None and builder.type_of[addend].sizes[-1] != 1:
        addend = _slice(builder, addend, -1, start, size)
    return _part(builder, product, (*product.op.type.sizes[:-1], size), product.a, b, addend)


def _rows(builder: Builder, product: Product, number: int, count: int) -> Product:
    """Block `number` of `count` of the rows of a product of matrices."""
    if count == 1:
        return product
    rows, columns = product.op.type.sizes
    start, end = (rows * k // count for k in (number, number + 1))
    a, addend = _slice(builder, product.a, 0, start, end - start), product.addend
    if addend is not None and builder.type_of[addend].rank == 2 and builder.type_of[addend].sizes[0] != 1:
        addend = _slice(builder, addend, 0, start, end - start)
    return _part(builder, product, (end - start, columns), a, product.b, addend)


def _part(
    builder: Builder, product: Product, sizes: tuple[int, ...], a: int, b: int, addend: int | None,
) -> Product:
    """The product of `a` and `b`, of `sizes`, as `product` is one."""
    op = product.op
    args: tuple[Arg, ...] = (Ref(a), Ref(b))
    args = args if addend is None else (Ref(addend), *args, *op.args[3:])
    made = tensor(op.type.dtype, sizes, device=op.type.device)
    part = Op(op.name, args, (builder.fresh(),), (made,), op.attrs)
    return Product(part, a, b, addend)


def _slice(builder: Builder, value: int, axis: int, start: int, size: int) -> int:
    """`size` elements of an axis of `value`, from `start`."""
    type = builder.type_of[value]
    axis %= type.rank
    sizes = (*type.sizes[:axis], size, *type.sizes[axis + 1:])
    part = TensorType(type.dtype, sizes, type.strides, type.device)
    return builder.add("slice", [value], part, axis=axis, start=start, step=1)
