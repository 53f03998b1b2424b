"""Split: a forward and its joints as graphs that run op by op, each by itself.

    forward   %2 = t(%1); %3 = mm(%0, %2)                  forward   the same; return %3
    joint     (%2, %9): %10 = mm(%9, t(%2))        ->      backward  (%1, %9): %2 = t(%1); ...

What torch's formulas had saved is kept, as they do it: views of it are taken again from the memory
that they lie in, which is an input or one saved tensor for all. (`partition` weighs instead what is
saved and what is computed again, for halves that are compiled.)

Requires graphs at level aten as recorded, joints numbered like the forward; sizes may be symbols.
Guarantees: a backward takes all that a formula had saved, so torch's checks for changes see it.
"""

from collections.abc import Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph, Op, Ref
from preheat.ir.training import Exit, Given, Joint
from preheat.transform.whole import saved_values, watched, with_views


@dataclass(frozen=True)
class Split:
    """The backward of one joint: `graph` takes what `takes` names, in order.

    grads    for each argument of the class its gradient, None for none
    watched  where else others may change what is saved
    """

    joint: Joint
    graph: Graph
    takes: tuple[Given, ...]
    grads: tuple[Exit | None, ...]
    watched: tuple[Given, ...]


def split(
    forward: Graph, joints: Sequence[Joint], replaced: Sequence[int],
    commits: Sequence[tuple[int, int]] = (),
) -> tuple[Graph, tuple[Split, ...]]:
    """The forward, which gives its own outputs, then what is saved, then the inputs at the places
    `replaced` as they were at the start; and each backward. `commits`: see `whole.watched`."""
    inputs = {given.id: place for place, given in enumerate(forward.inputs)}
    saved = [saved_values(forward, joint) for joint in joints]
    extra = dict.fromkeys(value for values in saved for value in values if value not in inputs)
    outputs = (*forward.outputs, *(value for value in extra if value not in forward.outputs))
    place_of: dict[int, int] = {}
    for place, value in enumerate(outputs):
        place_of.setdefault(value, place)
    found = {value: Given("value", place) for value, place in place_of.items()}
    found |= {value: Given("input", place) for value, place in inputs.items()}
    ahead = _with_copies(_unused_removed(replace(forward, outputs=outputs)), replaced)
    return ahead, tuple(
        _backward(forward, joint, [found[value] for value in values], commits)
        for joint, values in zip(joints, saved))


def _backward(
    forward: Graph, joint: Joint, saved: list[Given], commits: Sequence[tuple[int, int]],
) -> Split:
    graph = with_views(forward, joint)
    present = [k for k, kind in enumerate(joint.key) if kind is not None]
    takes = (*saved, *(Given("tangent", k) for k in present))
    where = {given.id: taken for given, taken in zip(graph.inputs, takes, strict=True)}
    outputs, grads = list(graph.outputs), []
    for place in joint.grads:
        if place >= -1:
            grads.append(None if place == -1 else Exit(Given("plan", place)))
            continue
        value = joint.graph.inputs[-2 - place].id
        if value in where:
            grads.append(Exit(where[value]))
        else:  # a view of what is saved
            grads.append(Exit(Given("plan", len(outputs))))
            outputs.append(value)
    others = tuple(one for one in watched(forward, joint, commits) if one not in takes)
    return Split(joint, replace(graph, outputs=tuple(outputs)), takes, tuple(grads), others)


def _with_copies(graph: Graph, places: Sequence[int]) -> Graph:
    """`graph` with copies of the inputs at `places`, made first, as its last outputs."""
    given = [graph.inputs[place] for place in places]
    copies = range(graph.next_id(), graph.next_id() + len(given))
    ops = tuple(
        Op("aten.clone.default", (Ref(one.id),), (copy,), (one.type,))
        for one, copy in zip(given, copies))
    return replace(graph, ops=ops + graph.ops, outputs=(*graph.outputs, *copies))


def _unused_removed(graph: Graph) -> Graph:
    """Without detached copies that torch made only to save them."""
    used = {*graph.outputs, *(ref for op in graph.ops for ref in op.refs())}
    return replace(graph, ops=tuple(
        op for op in graph.ops if op.name != "aten.detach.default" or op.results[0] in used))
