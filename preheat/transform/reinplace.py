"""Reinplace: which writes to inputs may happen in the input's memory as soon as their value is made.

    %3: f32[4096, 8] = place(%0, %2, axis=0, start=7, step=1)
    write %0 <- %3
      ->
    write %0 <- %3 in place           only row 7 is stored

A write qualifies when, as the ops stand, nothing after the op that makes its value reads the input's
old memory (the input or any view of it), nothing after it can raise (an error leaves the arguments
as eager's would be only if nothing was written yet), and the value is computed, not a view of
another value. A `place` chain on the input stores its regions only; with `place` the value's later
readers read the input's memory. Requires and gives level core, otherwise unchanged.
"""

from dataclasses import replace

from preheat.ir.graph import Graph
from preheat.ir.ops import CORE
from preheat.ir.types import TensorType
from preheat.transform.cleanup import can_raise

VIEWS = frozenset(("reshape", "permute", "expand", "slice", "flip"))


def reinplace(graph: Graph) -> Graph:
    """`graph` with `in_place` filled in."""
    if not graph.writes:
        return graph
    place_of = {result: place for place, op in enumerate(graph.ops) for result in op.results}
    last_raise = max((place for place, op in enumerate(graph.ops) if can_raise(op)), default=-1)
    found = []
    for target, value in graph.writes:
        made = place_of.get(value)
        if made is None or not _is_computed(graph, made) or made < last_raise:
            continue
        if _last_read(graph, target, made) <= made and not _is_returned_before(graph, target):
            found.append(target)
    return replace(graph, in_place=tuple(found))


def _is_computed(graph: Graph, place: int) -> bool:
    op = graph.ops[place]
    return op.name not in VIEWS and op.name != "library" and CORE[op.name].kind != "creation"


def _last_read(graph: Graph, target: int, made: int) -> int:
    """The position of the last op that reads the old memory of input `target`, through views too.

    The chain of `place` ops that makes the new value is the new memory, not a view of the old one.
    """
    old = {target}
    last = -1
    for position, op in enumerate(graph.ops):
        if old.isdisjoint(op.refs()):
            continue
        if op.name in VIEWS:
            old.add(op.result)  # a view reads nothing itself; its readers do
        else:
            last = position
    return last


def _is_returned_before(graph: Graph, target: int) -> bool:
    """Whether another write, or a fresh output, takes the old memory (a view of it) at the end."""
    old = {target}
    for op in graph.ops:
        if op.name in VIEWS and not old.isdisjoint(op.refs()):
            old.add(op.result)
    aliases = graph.output_aliases
    fresh = [o for k, o in enumerate(graph.outputs) if not aliases or aliases[k].kind == "fresh"]
    return not old.isdisjoint((*fresh, *(v for t, v in graph.writes if t != target)))
