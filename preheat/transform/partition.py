"""Partition: what the forward keeps for the backward, and what the backward computes again.

    forward   %2 = t(%1); %3 = mm(%0, %2)                  forward   %3 = mm(%0, t(%1)); return %3
    joint     (%2, %9): %10 = mm(%9, t(%2))        ->      backward  (%1, %9): %2 = t(%1); ...

A joint reads what torch's formulas had saved. Views of it cost nothing, so they are taken again from
the memory that they lie in: an input, which the caller has anyway, or one saved tensor for all.

Requires graphs at level aten as recorded, joints numbered like the forward. Guarantees: an input
is read by a backward only if a formula had saved it, or a view of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph, Input, Op
from preheat.ir.training import Given, Joint
from preheat.transform.views import VIEWS


@dataclass(frozen=True)
class Half:
    """The backward of one joint: `graph` takes what `takes` names, in order."""

    joint: Joint
    graph: Graph
    takes: tuple[Given, ...]


def partition(forward: Graph, joints: Sequence[Joint]) -> tuple[Graph, tuple[Half, ...]]:
    """The forward with what it saves among its outputs, after its own, and each backward."""
    inputs = {given.id: place for place, given in enumerate(forward.inputs)}
    views = _views(forward)
    trimmed = [_with_views(joint, forward, views) for joint in joints]
    values = dict.fromkeys(forward.outputs)
    for graph, joint in zip(trimmed, joints):
        count = len(graph.inputs) - (len(joint.graph.inputs) - len(joint.reads))
        values.update(dict.fromkeys(i.id for i in graph.inputs[:count] if i.id not in inputs))
    place_of = {value: place for place, value in enumerate(values)}
    halves = []
    for graph, joint in zip(trimmed, joints):
        present = [k for k, kind in enumerate(joint.key) if kind is not None]
        count = len(graph.inputs) - len(present)
        takes = [
            Given("input", inputs[i.id]) if i.id in inputs else Given("value", place_of[i.id])
            for i in graph.inputs[:count]]
        halves.append(Half(joint, graph, (*takes, *(Given("tangent", k) for k in present))))
    kept = _unused_removed(replace(forward, outputs=(*forward.outputs, *(
        value for value in values if value not in forward.outputs))))
    return kept, tuple(halves)


def _views(forward: Graph) -> dict[int, Op]:
    """The op of each value that is a view of memory which nothing writes to."""
    root: dict[int, int] = {}
    for op in forward.ops:
        for result, alias in zip(op.results, op.aliases):
            if alias != -1:
                root[result] = root.get(alias, alias)
    written = {root.get(value, value) for op in forward.ops for value in op.writes}
    return {
        op.results[0]: op for op in forward.ops
        # `as_strided` counts from the start of a storage, which a saved tensor may not begin
        if op.name in VIEWS and op.name != "aten.as_strided.default" and len(op.results) == len(op.aliases) == 1
        and op.aliases[0] not in (-1, op.results[0])
        and root[op.results[0]] not in written}


def _with_views(joint: Joint, forward: Graph, views: dict[int, Op]) -> Graph:
    """The joint's graph with the views that it reads taken inside, from what they are views of."""
    types = forward.types()
    read = list(joint.reads)
    inside: dict[int, Op] = {}
    for value in read:  # which grows meanwhile
        if value in views and value not in inside:
            inside[value] = views[value]
            read.append(views[value].args[0].id)
    order = [op for op in forward.ops if inside.get(op.results[0] if op.results else -1) is op]
    kept = [value for value in dict.fromkeys(read) if value not in inside]
    of_joint = {given.id: given for given in joint.graph.inputs}
    reads = tuple(of_joint.get(value) or Input(value, types[value]) for value in kept)
    tangents = joint.graph.inputs[len(joint.reads):]
    return replace(joint.graph, inputs=reads + tangents, ops=(*order, *joint.graph.ops))


def _unused_removed(graph: Graph) -> Graph:
    """Detached copies that torch made only to save them."""
    used = {*graph.outputs, *(ref for op in graph.ops for ref in op.refs())}
    return replace(graph, ops=tuple(
        op for op in graph.ops if op.name != "aten.detach.default" or op.results[0] in used))
