"""Products and convolutions that kernels of a GPU compute, each with what is done to its result.

    %3: bf16[128, 256] = library(%b, %x, %w, op='aten.addmm.default'); %4 = relu of %3
      ->
    %9: f32[128, 256] = sum(times(expand(x), expand(w)))    one kernel of products, bias and relu in it
    %3 = cast(add(%9, expand(b))); %4 = relu of %3

The form is that of `sums`, so fusion treats a product as any other reduction; `generate/products`
finds it again in the kernel and gives it to the matrix units. Which products are worth it is
measured, not guessed: by the search, or, of small ones, once and for all (`small_products`).

Operands lie in memory, but for a left one that is little work on what does: that is computed where it
is loaded, and rounded as it would be in memory.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from preheat.ir.graph import Builder, Graph, Op
from preheat.ir.hinted import estimate
from preheat.ir.ops import CORE
from preheat.ir.pack import digest
from preheat.ir.plan import Rounding, Target
from preheat.ir.types import TensorType, Type
from preheat.schedule import cost
from preheat.schedule.convolutions import convolution_in, write_convolution
from preheat.schedule.interleave import interleaved_products
from preheat.schedule.split import Matrix, split_in_two
from preheat.schedule.sums import Product, Sums, product_in, rows_of_sum, write_sum

DTYPES = ("float32", "bfloat16", "float16")  # that matrix units or float32 arithmetic multiply
MOST_PROLOGUE_CYCLES = 24.0  # of a vector: a sigmoid or two
MOST_PROLOGUE_READS = 3
PARTS, LEAST_PART = (2, 4, 8), 256  # of a long sum; the least that is worth a part
# The longest sum and the most work of a product that a kernel does no slower than the library, besides what
# calling that costs. H200, with bias and relu, us by the kernel / by the library: bfloat16 128 x 256 x 256 3.2 / 3.6,
# 128 x 512 x 512 3.7 / 4.4, 512 x 256 x 256 3.2 / 3.8, but 64 x 1024 x 512 5.7 / 5.2; float32 64 x 256 x 64 7.2 / 17,
# 128 x 256 x 256 7.5 / 9.1, but 256 x 256 x 256 8.7 / 7.7. SUMMED: of those in float32 that lie along the sum, which
# are added up as rows are (generate/products), and the most results, us in a graph: 128 x 256 x 256 3.7 / 7.3,
# 64 x 256 x 64 2.0 / 15, 16 x 256 x 256 2.2 / 3.0, 1024 x 64 x 64 2.7 / 3.5, 256 x 256 x 256 6.0 / 6.9, 128 x 512 x 512
# 10.2 / 20, 64 x 1024 x 512 10.7 / 12.9, 16 x 1024 x 1024 7.1 / 7.7; the library takes 7.0 for 512 x 256 x 256.
# tf32 128 x 256 x 256 3.8 / 5.1, 128 x 512 x 512 5.0 / 5.5, but 512 x 512 x 512 6.9 / 5.4.
SMALL = {
    "float32": (256, 1 << 23), "tf32": (512, 1 << 25), "bfloat16": (512, 1 << 25), "float16": (512, 1 << 25)}
SUMMED, MOST_RESULTS = (1024, 1 << 25), 1 << 16
BLOCK_ELEMS = 32 * 64  # results of one block of a product, about


def products_of(graph: Graph) -> dict[int, str]:
    """The results of the products of `graph` that a kernel could compute, each with the digest of
    what it multiplies: products of one digest are as fast as each other, epilogues apart."""
    types = graph.types()
    kinds: dict[int, str] = {}
    for op in graph.ops:
        product = product_in(op, types) if len(op.results) == 1 else None
        if product is not None and _is_fit(product, types):
            kinds[op.result] = digest(tuple(types[v] for v in (product.a, product.b, op.result)))
        found = convolution_in(op, types)
        if found is not None and _is_known(op.type, types[found.x].sizes + types[found.weight].sizes):
            operands = tuple(types[v] for v in (found.x, found.weight, op.result))
            kinds[op.result] = digest((*operands, *found[3:]))
    return kinds


def products_by_rule(graph: Graph, target: Target, rounding: Rounding = Rounding()) -> frozenset[int]:
    """The products of `graph` that are worth a kernel of `target` without a search."""
    if not target.is_gpu:
        return frozenset()
    return small_products(graph, rounding) | interleaved_products(graph, target)


def small_products(graph: Graph, rounding: Rounding = Rounding()) -> frozenset[int]:
    """The products of `graph` that are worth a kernel without a search: it takes no longer than the
    library, and the host less to launch it (4 us, not 10)."""
    types, by_value = graph.types(), {r: op for op in graph.ops for r in op.results}
    found: set[int] = set()
    for op in graph.ops:
        product = product_in(op, types) if len(op.results) == 1 else None
        if product is not None and _is_fit(product, types) and not rows_of_sum(product, types, by_value):
            is_rounded = op.type.dtype == "float32" and rounding.products
            inner, (longest, work) = types[product.a].sizes[-1], SMALL["tf32" if is_rounded else op.type.dtype]
            is_along = (types[product.a].strides[-1], types[product.b].strides[-2]) == (1, 1)
            is_summed = op.type.dtype == "float32" and not is_rounded and is_along
            if is_summed and op.type.elems <= MOST_RESULTS:
                longest, work = SUMMED
            if inner <= longest and op.type.elems * inner <= work:
                found.add(op.result)
    return frozenset(found)


def products_as_kernels(
    graph: Graph, fused: Collection[int], parts: Mapping[int, int] = MappingProxyType({}),
    rounding: Rounding = Rounding(), whole: Collection[int] = (),
) -> Sums:
    """`graph` with the products that give `fused` as sums, those of `parts` as sums of so many sums. whole: those
    whose operands are in memory as they are."""
    types, by_value = graph.types(), {r: op for op in graph.ops for r in op.results}
    readers: dict[int, int] = {}
    for op in graph.ops:
        for ref in op.refs():
            readers[ref] = readers.get(ref, 0) + 1
    for value in (*graph.outputs, *(v for pair in graph.writes for v in pair)):
        readers[value] = readers.get(value, 0) + 1
    ops: list[Op] = []
    builder = Builder("core", ops=ops, next_id=graph.next_id(), type_of=dict(types))
    operands: set[int] = set()
    products: set[int] = set()
    for op in graph.ops:
        is_asked = len(op.results) == 1 and op.result in fused
        product = product_in(op, types) if is_asked else None
        found = convolution_in(op, types) if is_asked else None
        first = len(ops)
        if product is not None and (op.result in whole or _is_fit(product, types)):
            operands.add(product.b)
            if op.result in whole or not _is_prologue(product.a, by_value, types, readers, fused):
                operands.add(product.a)
            write_sum(builder, product, rounds_float32=rounding.products)
        elif found is not None:
            operands.add(found.weight)
            is_one = found.is_pointwise(types)  # else each tap would compute the prologue anew
            if not is_one or not _is_prologue(found.x, by_value, types, readers, fused):
                operands.add(found.x)
            write_convolution(builder, found, rounding.convolutions)
        else:
            ops.append(op)
            continue
        if op.results[0] in parts:
            _cut(builder, _sum_after(ops, first), parts[op.results[0]])
        products.add(ops[_sum_after(ops, first)].results[0])
    return Sums(replace(graph, ops=tuple(ops)), frozenset(operands), frozenset(products))


def parts_of(graph: Graph, units: int) -> dict[int, tuple[int, ...]]:
    """For the products of `graph` that are long and give a device of so many `units` too few blocks to
    do: into how many sums each might be cut."""
    types, found = graph.types(), {}
    for op in graph.ops:
        product = product_in(op, types) if len(op.results) == 1 else None
        if product is not None and _is_fit(product, types):
            inner = types[product.a].sizes[-1]
            blocks = -(-estimate(op.type.elems) // BLOCK_ELEMS)
            choices = tuple(
                k for k in PARTS if inner % k == 0 and inner // k >= LEAST_PART and k * blocks <= 4 * units)
            if choices and blocks < units:
                found[op.result] = choices
    return found


def _cut(builder: Builder, place: int, parts: int) -> None:
    """The sum at `place` in two."""
    rest = builder.ops[place:]
    del builder.ops[place:]
    total = rest[0]
    type, axes = builder.type_of[total.args[0].id], total.attr("axes")
    split_in_two(builder, total, Matrix(type, axes), axes[0], parts, type.sizes[axes[0]] // parts)
    builder.ops.extend(rest[1:])


def _sum_after(ops: list[Op], first: int) -> int:
    """The place of the first sum from `first` on."""
    return next(k for k in range(first, len(ops)) if ops[k].name == "sum")


def _is_fit(product: Product, types: Mapping[int, Type]) -> bool:
    type = product.op.type
    return type.rank >= 2 and _is_known(type, (*type.sizes, types[product.a].sizes[-1]))


def _is_known(type: TensorType, sizes: tuple) -> bool:
    """A result of `type`, of operands of `sizes`, is one that kernels of a GPU compute."""
    return type.dtype in DTYPES and type.device != "cpu" and all(isinstance(n, int) and n for n in sizes)


def _is_prologue(
    value: int, by_value: Mapping[int, Op], types: Mapping[int, Type], readers: Mapping[int, int],
    fused: Collection[int],
) -> bool:
    """`value` is little elementwise work on given memory, for this product alone; not on the result of
    another of the products `fused`, which does that work when it is done."""
    cycles, reads, pending = 0.0, 0, [value]
    while pending:
        number = pending.pop()
        op = by_value.get(number)
        if number in fused:
            return False
        if op is None or op.name == "library":
            reads += 1
            continue
        kind = CORE[op.name].kind
        if kind not in ("elementwise", "movement", "creation") or op.name in ("cat", "pad", "place"):
            return False
        if readers.get(number, 0) > 1 and kind == "elementwise":
            return False
        type = types[number]
        if not isinstance(type, TensorType) or estimate(type.elems) > estimate(types[value].elems):
            return False
        cycles += cost.op_cycles(op.name) if kind == "elementwise" else 0.0
        pending += op.refs()
    return cycles <= MOST_PROLOGUE_CYCLES and reads <= MOST_PROLOGUE_READS
