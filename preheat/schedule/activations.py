"""The library's own epilogues: a relu that follows a sum and a product on a GPU is part of their call.

    %3 = library(%b, %x, %w, op='aten.addmm.default')      %5 = library(%b, %x, %w,
    %4 = full(value=0.0); %5 = maximum(%3, %4)        ->            op='aten._addmm_activation.default')

Only where nothing but calls and the caller reads the result, so that no kernel would have taken the
relu along anyway. Eight layers of 256 with bias and relu, batch 128, take 87 us so, and 101 with a
kernel for each relu (research/gpu.md, G4). NaN stays NaN (tests/gpu/test_products.py).

Requires and gives level core. Guarantees: the value is the relu of what `addmm` gives.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.ir.graph import Graph, Op, Ref
from preheat.ir.ops import CORE
from preheat.ir.plan import Target
from preheat.ir.types import HALVES, TensorType, Type

ADDMM, ACTIVATED = "aten.addmm.default", "aten._addmm_activation.default"


def with_activations(graph: Graph, target: Target) -> Graph:
    """`graph` with the relu of each such product in its call."""
    if not target.is_gpu:
        return graph
    types, readers = graph.types(), _readers(graph)
    kept = {*graph.outputs, *(v for pair in graph.writes for v in pair)}
    by_value = {r: op for op in graph.ops for r in op.results}
    joined: dict[int, Op] = {}  # the result of an addmm -> the call that takes its place
    gone: set[int] = set()
    for op in graph.ops:
        steps = _relu_of(op, types, readers, by_value, kept) if _is_plain(op, types) else ()
        if steps and all(map(_is_call, readers.get(steps[-1].result, ()))):
            last, attrs = steps[-1], (("op", ACTIVATED),)
            joined[op.result] = replace(op, results=last.results, types=last.types, attrs=attrs)
            gone |= {step.result for step in steps}
    if not joined:
        return graph
    ops = (
        joined.get(op.results[0], op) if op.results else op for op in graph.ops
        if not op.results or op.results[0] not in gone)
    return replace(graph, ops=tuple(ops))


def _readers(graph: Graph) -> dict[int, list[Op]]:
    found: dict[int, list[Op]] = {}
    for op in graph.ops:
        for ref in dict.fromkeys(op.refs()):
            found.setdefault(ref, []).append(op)
    return found


def _is_plain(op: Op, types: Mapping[int, Type]) -> bool:
    """bias + a @ b of a vector bias on a GPU, without factors."""
    if op.name != "library" or op.attrs != (("op", ADDMM),) or len(op.args) != 3:
        return False
    bias, type = types[op.args[0].id], op.type
    return isinstance(bias, TensorType) and bias.rank == 1 and type.device != "cpu" and (
        type.dtype in (*HALVES, "float32"))


def _relu_of(
    op: Op, types: Mapping[int, Type], readers: Mapping[int, list[Op]],
    by_value: Mapping[int, Op], kept: set[int],
) -> tuple[Op, ...]:
    """The ops from the result of `op` to its relu, of the same type; () if something else reads what is
    between."""
    steps: list[Op] = []
    value = op.result
    for step in ("cast", "maximum", "cast") if op.type.dtype in HALVES else ("maximum",):
        reader = readers.get(value, ())
        if value in kept or len(reader) != 1 or reader[0].name != step:
            return ()
        (found,) = reader
        if step == "maximum" and not _is_zero(found, value, by_value):
            return ()
        steps.append(found)
        value = found.result
    return tuple(steps) if types[value] == op.type else ()


def _is_zero(op: Op, value: int, by_value: Mapping[int, Op]) -> bool:
    others = [arg.id for arg in op.args if arg != Ref(value)]
    made = by_value.get(others[0]) if len(others) == 1 else None
    while made is not None and made.name == "expand":
        made = by_value.get(made.args[0].id)
    return made is not None and made.name == "full" and made.attr("value") == 0


def _is_call(op: Op) -> bool:
    """A library call, or a view on the way to one."""
    return op.name == "library" or CORE[op.name].kind in ("product", "movement")
