"""Rounding: a 16-bit value that several ops read is one value for all of them.

    %3: bf16[8, 4] = cast(%2, dtype='bfloat16', free=True)      %3: bf16[8, 4] = cast(%2, dtype='bfloat16')
    %4: bf16[8, 1] = max(%3, axes=(1,))                     ->
    %5: f32[8, 4] = cast(%3, dtype='float32', free=True)
    .. = sub(%5, ..)

A `free` rounding may be left out where its reader wants float32, and is where the value has memory. If
one reader saw it rounded and another did not, `x - x.amax()` could be above zero, and its root NaN. So
only what a single op of the program reads stays free. Requires a graph at level core in which each op
of the program widens for itself (before `cleanup`); guarantees the same, with fewer free casts.
"""

from collections.abc import Mapping

from preheat.ir.graph import Graph, Op, with_ops
from preheat.ir.ops import CORE
from preheat.ir.types import HALVES, Type


def round_shared(graph: Graph) -> Graph:
    """`graph`, in which what several ops read is rounded as its dtype says."""
    types = graph.types()
    readers: dict[int, int] = {}
    for value in (*graph.outputs, *(made for _, made in graph.writes)):
        readers[value] = readers.get(value, 0) + 1
    ops: list[Op] = []
    for op in reversed(graph.ops):
        count = sum(readers.get(value, 0) for value in op.results) if _moves(op, types) else 1
        for value in {*op.refs()}:
            readers[value] = readers.get(value, 0) + count
        is_rounded = op.name == "cast" and op.attr("free") and op.type.dtype in HALVES
        ops.append(_fixed(op) if is_rounded and readers.get(op.result, 0) > 1 else op)
    return with_ops(graph, reversed(ops))


def _moves(op: Op, types: Mapping[int, Type]) -> bool:
    """The elements of the result are those of the operands."""
    return CORE[op.name].kind == "movement" or (
        op.name == "cast" and types[op.args[0].id].dtype == op.type.dtype)


def _fixed(op: Op) -> Op:
    return Op(op.name, op.args, op.results, op.types, tuple(a for a in op.attrs if a[0] != "free"))
