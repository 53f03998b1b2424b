"""Rows of matrices at the alignment that a GPU's library needs for its fast products.

    %3: bf16[4096, 50257] = matmul(%0, %2)                row i at byte 100514 * i
    %4: f32[4096, 50257] = cast(%3)
      ->
    %3: bf16[4096, 50257]{50264, 1} = matmul(%0, %2)      row i at byte 100528 * i, 16 of which divide it

The library's kernels of 16-bit floats load 16 bytes at once, and where a row begins elsewhere it
falls back on kernels that are several times slower. Memory that the plan makes for itself has
what strides the plan likes; a product that is a result of the plan is made padded and copied, where
it is long enough that the product takes longer than the copy.

Requires and gives level core. Guarantees: only types of values change that products and kernels
read, and nobody outside sees.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.ir.graph import Graph, Op, Ref
from preheat.ir.plan import Target
from preheat.ir.types import TensorType, contiguous_strides
from preheat.schedule.affine import elems
from preheat.schedule.views import view_of

ROW_BYTES = 16
LEAST_BYTES = 1 << 20  # of a matrix that is worth it
LEAST_INNER = 256  # terms of a sum, from which on a product is worth a copy
HALVES = ("bfloat16", "float16")
_VIEWS = ("reshape", "permute")


def pad_rows(graph: Graph, target: Target) -> Graph:
    """`graph` with rows of products' operands and results aligned for the library of `target`."""
    if not target.is_gpu:
        return graph
    ops = {r: op for op in graph.ops for r in op.results}
    types, fixed = graph.types(), _fixed(graph, ops)
    wanted: dict[int, TensorType] = {}
    copied: dict[int, TensorType] = {}
    for op in graph.ops:
        if op.name != "matmul":
            continue
        result = _padded(op.type)
        if result is not None and op.result not in fixed:
            wanted[op.result] = result
        elif result is not None and op.result in graph.outputs and _inner(op, types) >= LEAST_INNER:
            copied[op.result] = result
        for arg in op.args:
            base = _base(arg.id, ops, fixed)
            padded = _padded(types[base]) if base in ops and base not in fixed else None
            if padded is not None and _is_matrix(arg.id, base, ops, {**types, base: padded}):
                wanted[base] = padded
    return _retyped(graph, wanted, copied) if wanted or copied else graph


def _fixed(graph: Graph, ops: Mapping[int, Op]) -> set[int]:
    """Values whose strides others count on: what leaves, is written, or a library call reads."""
    found = {*graph.outputs, *(v for _, v in graph.writes), *(s.state for s in graph.stores),
             *(s.value for s in graph.stores)}
    for op in graph.ops:
        if op.name == "library":
            pending = [*op.refs(), *op.results]
            while pending:
                value = pending.pop()
                found.add(value)
                made = ops.get(value)
                if made is not None and made.name in (*_VIEWS, "expand", "slice"):
                    pending += made.refs()
    return found


def _padded(type: TensorType) -> TensorType | None:
    """`type` with padded rows; None if its rows are aligned, or it is no large matrix."""
    if not isinstance(type, TensorType) or type.dtype not in HALVES or type.rank < 2:
        return None
    sizes, each = type.sizes, ROW_BYTES // type.itemsize
    is_known = all(isinstance(size, int) for size in sizes)
    if not is_known or sizes[-1] % each == 0 or type.strides != contiguous_strides(sizes):
        return None
    if sizes[-1] < each or elems(sizes) * type.itemsize < LEAST_BYTES:
        return None
    long = (*sizes[:-1], -(-sizes[-1] // each) * each)
    return replace(type, strides=contiguous_strides(long))


def _inner(op: Op, types: Mapping[int, TensorType]) -> int:
    return types[op.args[0].id].sizes[-1]


def _base(value: int, ops: Mapping[int, Op], fixed: set[int]) -> int:
    """The value whose memory an operand is a view of."""
    while value in ops and ops[value].name in _VIEWS and value not in fixed:
        value = ops[value].args[0].id
    return value


def _is_matrix(
    value: int, base: int, ops: Mapping[int, Op], types: Mapping[int, TensorType],
) -> bool:
    """Whether `value`, a view of `base`, is a matrix whose rows or columns are those of `base`."""
    view = view_of(value, ops, types, lambda v: v == base)
    return view is not None and 1 in view.strides[-2:] and types[base].strides[-2] in view.strides[-2:]


def _retyped(
    graph: Graph, wanted: Mapping[int, TensorType], copied: Mapping[int, TensorType],
) -> Graph:
    ops, fresh = [], graph.next_id()
    for op in graph.ops:
        if len(op.results) == 1 and op.results[0] in wanted:
            op = replace(op, types=(wanted[op.results[0]],))
        if len(op.results) == 1 and op.results[0] in copied:
            ops.append(replace(op, results=(fresh,), types=(copied[op.results[0]],)))
            op, fresh = Op("reshape", (Ref(fresh),), op.results, op.types), fresh + 1
        ops.append(op)
    return replace(graph, ops=tuple(ops))
