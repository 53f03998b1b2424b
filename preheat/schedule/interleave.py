"""A product of 16-bit floats on a GPU whose rows begin anywhere, stored where it belongs by products whose rows
begin at 16 bytes.

    %2: bf16[4096, 50257] = matmul(%0: bf16[4096, 768], %1: bf16[768, 50257]{1, 768})
      ->
    product [2, 4096, 768]{0, 768, 1} of %0               what rows have before and behind the middle
          @ [2, 768, 49]{38559744, 1, 768} of %1
         -> [2, 4096, 49]{50208, 50257, 1} of %2
    product [8, 512, 768]{768, 6144, 1} of %0             rows 0, 8, 16, .. then rows 1, 9, 17, ..
          @ [8, 768, 50208]{5376, 1, 768} of %1           columns from 0, from 7, from 14, ..
         -> [8, 512, 50208]{50264, 402056, 1} of %2

The tensor cores' loads and stores want rows that begin at 16 bytes. Every eighth row of the result begins at the
same place between two multiples of 16 bytes. The rows that share it are a matrix whose leading dimension is a multiple
of 8 elements, aligned once some columns are left out: `step` for each row down. Eight such matrices are one product
in a batch. Nothing is copied: 4096 x 768 x 50257 takes 499 us so (H200, bfloat16), 427 to 491
where rows are padded to 50264, 790 by parts that are copied (`alignment`), 3357 by the library alone. Where a GPU has an engine
that copies tiles, one kernel does it by the same rows, and adds a bias (`interleaved_products`, `generate/interleaved.py`).

Requires two matrices, each consecutive along the sum. Guarantees: `pieces` store each element of the result; one
that two of them store is last stored by the batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import gcd

from preheat.ir.devices import device_of
from preheat.ir.graph import Graph, Op
from preheat.ir.interleaved import DEPTH, PERIOD, excess
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Scalar
from preheat.ir.types import HALVES, TensorType, Type
from preheat.schedule.sums import product_in
from preheat.schedule.views import View

ALIGN_ELEMS = PERIOD  # of 16 bits
LEAST_ROWS = 64  # of each matrix of the batch
LEAST_COLUMNS = 1024
# Multiplications: the library alone takes 34 us for so many where it takes 9 for aligned rows; the ends of rows take 12.
LEAST_WORK = 1 << 31
MOST_INNER, MOST_ROWS = 1024, 4096  # of a product to which nothing is added, by a kernel
MOST_EXCESS, MOST_EXCESS_ADDED = 1.05, 1.4
Piece = tuple[View, View, View]  # a, b and where their product goes


def given_values(graph: Graph) -> set[int]:
    """The values that are results of the graph, whatever their shape there, and that no op reads."""
    read = {ref for op in graph.ops if op.name != "reshape" for ref in op.refs()}
    given = {value for value in graph.outputs if value not in read}
    for op in reversed(graph.ops):
        if op.name == "reshape" and op.result in given:
            given.update(ref for ref in op.refs() if ref not in read)
    return given


def is_interleaved(op: Op, types: Mapping[int, Type], given: Collection[int]) -> bool:
    """Whether `op` is a product that is stored by pieces; `given`: the graph's `given_values`."""
    if op.name != "matmul" or op.result not in given or op.type.rank != 2 or op.type.device == "cpu":
        return False
    known = all(isinstance(n, int) for n in op.type.sizes)
    return known and _is_spread(op.type, *(types[arg.id] for arg in op.args))


def _is_spread(type: TensorType, a: TensorType, b: TensorType) -> bool:
    """Whether the rows of a @ b begin anywhere, those of `a` and columns of `b` at 16 bytes, and it is large. How many
    rows there are may change: it is asked last, for the answer is what a plan for all of them rests on."""
    (rows, columns), inner = type.sizes, a.sizes[1]
    if type.dtype not in HALVES or any(isinstance(n, Scalar) for n in (columns, inner, *a.strides, *b.strides)):
        return False
    are_along = a.strides[1] == 1 and b.strides[0] == 1 and type.strides == (columns, 1)
    are_aligned = not any(n % ALIGN_ELEMS for n in (inner, a.strides[0], b.strides[1]))
    is_wide = columns >= LEAST_COLUMNS and columns % ALIGN_ELEMS != 0
    least = max(ALIGN_ELEMS * LEAST_ROWS, -(-LEAST_WORK // max(columns * inner, 1)))
    return are_along and are_aligned and is_wide and rows >= least


def interleaved_products(graph: Graph, target: Target) -> frozenset[int]:
    """The results of the products of `graph` that a kernel of `target` stores where they belong (`generate/interleaved.py`),
    with what is added to them."""
    ahead = device_of(target.arch).tiles_ahead if target.is_gpu else 0
    if not ahead:
        return frozenset()
    types, given, found = graph.types(), given_values(graph), set()
    for op in graph.ops:
        product = product_in(op, types) if len(op.results) == 1 and op.result in given else None
        if product is None or op.type.rank != 2 or op.type.device == "cpu":
            continue
        a, b = types[product.a], types[product.b]
        numbers = inner, *steps = a.sizes[1], a.strides[0], b.strides[1]
        are_rows = all(isinstance(n, int) for n in numbers) and inner % DEPTH == 0 and min(steps) >= inner
        is_added = product.addend is not None
        if are_rows and _is_spread(op.type, a, b) and _is_worth_a_kernel(op.type.sizes, inner, is_added, ahead):
            found.add(op.result)
    return frozenset(found)


def _is_worth_a_kernel(sizes: Sequence[Dim], inner: int, is_added: bool, ahead: int) -> bool:
    """Whether the kernel is faster than what is done else (H200, rows x sum x columns, us by the kernel / else). Rows whose number changes:
    the library as it is, which takes several times as long. Something is added: a product that is cut and joined (2048 x 768 x 30522
    165 / 247, 512 x 1024 x 50257 101 / 125). Else `pieces`: 1024 x 768 x 50257 134 / 200, 4096 482 / 499, where loads are ahead of a block's
    end (else 570), but 16384 1919 / 1837, 4096 x 2048 x 32003 850 / 775, and with pieces of every second row 4096 x 768 x 50260 490 / 463."""
    rows, columns = sizes
    if isinstance(rows, Scalar):
        return True
    if is_added:
        return excess(rows) <= MOST_EXCESS_ADDED
    is_small = inner <= MOST_INNER and rows <= MOST_ROWS and _period(columns) > 2
    return ahead > 1 and is_small and excess(rows) <= MOST_EXCESS


def _period(columns: int) -> int:
    """How many rows further one begins at the same place between two multiples of 16 bytes."""
    return ALIGN_ELEMS // gcd(columns, ALIGN_ELEMS)


def pieces(a: View, b: View, out: View) -> Iterator[Piece]:
    """The products that make `out` = a @ b, in order."""
    (rows, columns), inner = out.sizes, a.sizes[1]
    period, step = _period(columns), -columns % ALIGN_ELEMS
    edge = step * (period - 1)
    middle, down, across = columns - edge, a.strides[0], b.strides[1]
    yield (
        View(a.base, a.offset, (2, rows, inner), (0, down, 1)),
        View(b.base, b.offset, (2, inner, edge), (middle * across, 1, across)),
        View(out.base, out.offset, (2, rows, edge), (middle, columns, 1)))
    whole, left = divmod(rows, period)
    for first, count, height in ((0, left, whole + 1), (left, period - left, whole)):
        if count:
            yield (
                View(a.base, a.offset + first * down, (count, height, inner), (down, period * down, 1)),
                View(
                    b.base, b.offset + first * step * across, (count, inner, middle),
                    (step * across, 1, across)),
                View(
                    out.base, out.offset + first * (columns + step), (count, height, middle),
                    (columns + step, period * columns, 1)))
