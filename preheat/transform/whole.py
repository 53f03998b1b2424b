"""Whole: a forward and its joints as one graph, so that what they share can be weighed.

    forward   (%0): %1 = exp(%0); return %1                whole   (%0, %9): %1 = exp(%0)
    joint     (%1, %2): %3 = mul(%2, %1); return %3   ->           %10 = mul(%9, %1)
                                                                   return %1, %10

What a joint computes again of a region reads the forward through `preheat.kept`, so that no pass takes
it for what the forward has computed; `without_kept` takes these away. Requires graphs at level aten as recorded, joints whose reads are numbered like the forward.
"""

from collections.abc import Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.bridge.ops import draws
from preheat.bridge.regions import KEPT
from preheat.ir.graph import Graph, Input, Op, Ref, map_refs, with_ops
from preheat.ir.scalar import Dim
from preheat.ir.training import Given, Joint
from preheat.transform.views import VIEWS


@dataclass(frozen=True)
class Part:
    """Where a joint is in a `Whole`.

    tangents   the place among the inputs of the whole of each tangent that is there
    grads      as in the joint, but by outputs of the whole; -2 - k for the k-th tangent that is there
    inputs     places of the inputs that the formulas have saved, or views of them
    values     places of the forward's outputs whose memory they have saved
    watched    where others may change what they have saved, see `watched`
    bytes      of what they have saved, inputs apart
    """

    joint: Joint
    tangents: tuple[int, ...]
    grads: tuple[int, ...]
    inputs: frozenset[int]
    values: frozenset[int]
    watched: tuple[Given, ...]
    bytes: Dim


@dataclass(frozen=True)
class Whole:
    """graph: inputs of the forward, then all tangents; outputs of the forward, copies of the inputs
    that are replaced, outputs of all joints."""

    graph: Graph
    values: int  # outputs of the forward
    copies: int
    parts: tuple[Part, ...]


def whole(
    forward: Graph, joints: Sequence[Joint], replaced: Sequence[int],
    commits: Sequence[tuple[int, int]] = (),
) -> Whole:
    """`forward` and `joints` as one graph. `replaced`: places of inputs whose elements at the start
    are wanted, too; `commits`: see `watched`. Raises Unsupported for a formula that draws random
    numbers."""
    fresh = forward.next_id()
    ops: list[Op] = []
    outputs = list(forward.outputs)
    for place in replaced:
        given = forward.inputs[place]
        ops.append(Op("aten.clone.default", (Ref(given.id),), (fresh,), (given.type,)))
        outputs.append(fresh)
        fresh += 1
    ops += forward.ops
    inputs, parts = list(forward.inputs), []
    place_of = {given.id: place for place, given in enumerate(forward.inputs)}
    views, types = _views(forward), forward.types()
    memory = [_memory(value, views) for value in forward.outputs]
    for joint in joints:
        number, reads = {value: value for value in joint.reads}, frozenset(joint.reads)
        tangents = joint.graph.inputs[len(joint.reads):]
        for value in (*(i.id for i in tangents), *(r for op in joint.graph.ops for r in op.results)):
            if value != -1 and value not in number:
                number[value] = fresh
                fresh += 1
        if any(draws(op.name, op.args, op.attrs) for op in joint.graph.ops):
            raise Unsupported("unknown_history", "a derivative that draws random numbers")
        taken = {_memory(value, views) for value in joint.reads}
        grads, count = [], len(joint.reads)
        for place in joint.grads:
            if place == -1 or -2 - place >= count:
                grads.append(place if place == -1 else place + count)
                continue
            grads.append(len(outputs))
            outputs.append(number[
                joint.graph.outputs[place] if place >= 0 else joint.reads[-2 - place]])
        parts.append(Part(
            joint, tuple(range(len(inputs), len(inputs) + len(tangents))), tuple(grads),
            frozenset(place_of[value] for value in taken if value in place_of),
            frozenset(place for place, value in enumerate(memory) if value in taken),
            watched(forward, joint, commits),
            sum(types[value].elems * types[value].itemsize for value in taken - place_of.keys())))
        inputs += [Input(number[i.id], i.type) for i in tangents]
        kept: dict[int, dict[int, int]] = {}  # by region: what it has held, by value
        for op in joint.graph.ops:
            held = kept.setdefault(op.region, {})
            for value in op.refs() if op.region else ():
                if value in reads and value not in held:
                    held[value] = fresh
                    ops.append(Op(KEPT, (Ref(value), op.region), (fresh,), (types[value],)))
                    fresh += 1
            ops.append(_renamed(op, {**number, **held} if held else number))
    ops = [_within_memory(op) for op in ops]
    graph = replace(forward, inputs=tuple(inputs), ops=tuple(ops), outputs=tuple(outputs))
    return Whole(graph, len(forward.outputs), len(replaced), tuple(parts))


def is_kept(op: Op) -> bool:
    """Whether `op` of level core gives what a region that is computed again has held."""
    return op.name == "library" and op.attr("op") == KEPT


def without_kept(core: Graph) -> Graph:
    """A half at level core: what a region has held is the value itself."""
    held = {op.result: op.args[0].id for op in core.ops if is_kept(op)}
    if not held:
        return core
    number = {value: value for value in core.types()} | held
    ops = [_renamed(op, number) for op in core.ops if not is_kept(op)]
    return replace(with_ops(core, ops), outputs=tuple(number[value] for value in core.outputs))


def saved_values(forward: Graph, joint: Joint) -> tuple[int, ...]:
    """What the formulas of `joint` have saved of `forward`: of a view the memory that it lies in, if
    nothing writes to that later."""
    views = _views(forward)
    return tuple(dict.fromkeys(_memory(value, views) for value in joint.reads))


def watched(
    forward: Graph, joint: Joint, commits: Sequence[tuple[int, int]],
) -> tuple[Given, ...]:
    """Where others may change what the formulas of `joint` have saved: inputs, those among them into
    which the call has written it (in eager it lies there), and outputs of `forward` in whose memory it
    lies. `commits`: (input, the output that is copied to it when the call is over)."""
    taken, views, roots = set(saved_values(forward, joint)), _views(forward), forward.roots()
    place_of = {given.id: place for place, given in enumerate(forward.inputs)}

    def is_taken(value: int) -> bool:
        return _memory(value, views) in taken or roots.get(value, value) in joint.holders

    are_taken = [*map(is_taken, forward.outputs)]
    inputs = {place_of[value] for value in taken if value in place_of}
    inputs |= {place for place, output in commits if are_taken[output]}
    inputs |= {
        place_of[op.args[0].id] for op in forward.ops
        if op.name == "aten.copy_.default" and op.args[0].id in place_of and is_taken(op.args[1].id)}
    return (
        *(Given("input", place) for place in sorted(inputs)),
        *(Given("value", place) for place, taken_there in enumerate(are_taken) if taken_there))


def with_views(forward: Graph, joint: Joint) -> Graph:
    """The joint's graph with `saved_values` as its first inputs: views of them are taken inside."""
    types, views = forward.types(), _views(forward)
    read, inside = list(joint.reads), {}
    for value in read:  # which grows meanwhile
        if value in views and value not in inside:
            inside[value] = views[value]
            read.append(views[value].args[0].id)
    order = [op for op in forward.ops if inside.get(op.results[0] if op.results else -1) is op]
    of_joint = {given.id: given for given in joint.graph.inputs}
    reads = tuple(
        of_joint.get(value) or Input(value, types[value]) for value in saved_values(forward, joint))
    tangents = joint.graph.inputs[len(joint.reads):]
    return replace(joint.graph, inputs=reads + tangents, ops=(*order, *joint.graph.ops))


def _memory(value: int, views: dict[int, Op]) -> int:
    while value in views:
        value = views[value].args[0].id
    return value


def _views(forward: Graph) -> dict[int, Op]:
    """The op of each value that is a view of memory which nothing writes to from then on."""
    roots = forward.roots()
    written = {  # memory: the last op that writes to it
        roots.get(value, value): place for place, op in enumerate(forward.ops) for value in op.writes}
    return {
        op.results[0]: op for place, op in enumerate(forward.ops)
        # `as_strided` counts from the start of a storage, which a saved tensor may not begin
        if op.name in VIEWS and op.name != "aten.as_strided.default"
        and len(op.results) == len(op.aliases) == 1
        and op.aliases[0] not in (-1, op.results[0])
        and written.get(roots[op.results[0]], -1) < place}


def _within_memory(op: Op) -> Op:
    """`op`, if it detaches a tensor: as a view like any other, histories are made outside."""
    return replace(op, name="aten.alias.default") if op.name == "aten.detach.default" else op


def _renamed(op: Op, number: dict[int, int]) -> Op:
    def renamed(arg):
        return map_refs(arg, lambda ref: Ref(number[ref]))

    def all_of(values):
        return tuple(number.get(value, -1) for value in values)

    return replace(
        op, args=tuple(map(renamed, op.args)), results=all_of(op.results), writes=all_of(op.writes),
        attrs=tuple((key, renamed(arg)) for key, arg in op.attrs), aliases=all_of(op.aliases))
