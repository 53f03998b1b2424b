"""Halves: a whole taken apart into the forward and the backwards, once it is said what is saved.

Requires level core. Guarantees: results of both halves are memory of their own; views are left to
be made outside, from the memory that they lie in. The ops of a backward that the forward had made
stand right before their first reader, so that what they make lives no longer than needed; where a
checkpoint is computed again a zone begins (`Op.region`), and no kernel reaches over it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.ir.graph import Graph, Input, Op, Ref
from preheat.ir.training import Exit, Given, Joint
from preheat.rules.raising import can_raise
from preheat.transform.partition import Facts, Saved
from preheat.transform.whole import Part, Whole, without_kept


@dataclass(frozen=True)
class Forward:
    """values   where each value is found: those of the division, what is saved, the copies"""

    graph: Graph
    values: tuple[Exit, ...]


@dataclass(frozen=True)
class Half:
    """The backward of one joint: `graph` takes what `takes` names, in order.

    grads    for each argument of the class its gradient, None for none
    watched  what the formulas had saved that others may change, as far as `takes` lacks it
    """

    joint: Joint
    graph: Graph
    takes: tuple[Given, ...]
    grads: tuple[Exit | None, ...]
    watched: tuple[Given, ...]

    @property
    def can_raise(self) -> bool:
        """For some values of what it takes."""
        return any(map(can_raise, self.graph.ops))


def halves(core: Graph, whole: Whole, saved: Saved) -> tuple[Forward, tuple[Half, ...]]:
    """The forward that gives what is saved beside its own values, and the backward of each joint."""
    facts = Facts(core, whole)
    place_of = {
        facts.memory_of(place): place for place in range(whole.values)
        if facts.aliases[place].kind == "fresh" and facts.memory_of(place) not in saved.copied}
    extra = [value for value in saved.values if value not in place_of]
    place_of |= {value: whole.values + number for number, value in enumerate(extra)}
    found = {value: Given("value", place_of[value]) for value in saved.values}
    forward = _forward(facts, extra, saved.copied)
    return forward, tuple(_half(facts, part, found) for part in whole.parts)


def _forward(facts: Facts, extra: Sequence[int], copied: frozenset[int]) -> Forward:
    core, whole = facts.core, facts.whole
    ops, made, exits = list(core.ops), _Made(core.next_id()), []

    def leave(place: int) -> None:
        alias, value = facts.aliases[place], facts.memory_of(place)
        if alias.kind == "fresh":
            exits.append(Exit(made.give(value)))
            return
        # memory of other outputs is given once
        given = Given("input", alias.base) if value is None else made.place(value)
        type = facts.types[core.outputs[place]]
        exits.append(Exit(given, True, False, type, alias.offset))

    for place in range(whole.values):
        leave(place)
    for value in extra:
        if value in copied:
            ops.append(copy := made.copy(value, facts))
            value = copy.result
        exits.append(Exit(made.place(value)))
    for place in range(whole.values, facts.own_count):
        leave(place)
    live = {*made.values, *(value for _, value in core.writes)}
    kept: list[Op] = []
    for op in reversed(ops):
        if not live.isdisjoint(op.results) or facts.stays(op):
            live.update(op.refs())
            kept.append(op)
    graph = replace(
        core, inputs=core.inputs[:facts.input_count], ops=tuple(kept[::-1]),
        outputs=tuple(made.values), output_aliases=())
    return Forward(graph, tuple(exits))


def _half(facts: Facts, part: Part, found: Mapping[int, Given]) -> Half:
    core = facts.core
    present = [k for k, kind in enumerate(part.joint.key) if kind is not None]
    given = dict(found)
    given |= {value: Given("input", place) for value, place in facts.input_place.items()
              if value not in found}
    given |= {core.inputs[place].id: Given("tangent", k)
              for place, k in zip(part.tangents, present)}
    order, made, grads = _Order(facts, given), _Made(core.next_id()), []
    needed = facts.needed(facts.ends(part), facts.backward)
    for op in core.ops:  # as the formulas do it
        if not needed.isdisjoint(op.results) and not facts.backward.isdisjoint(op.results):
            order.append(op)
    for place in part.grads:
        if place < 0:
            tangent = part.tangents[-2 - place] if place != -1 else -1
            grads.append(None if place == -1 else Exit(given[core.inputs[tangent].id]))
            continue
        alias, value = facts.aliases[place], facts.memory_of(place)
        if value is None:
            where = given[core.inputs[alias.base].id]
        elif value not in given:
            order.reach(value)
            where = made.place(value)
        elif alias.kind == "fresh":  # what is given, in memory of its own
            order.reach(value)
            order.ops.append(copy := made.copy(value, facts))
            where = made.give(copy.result)
        else:
            where = given[value]
        type = facts.types[core.outputs[place]]
        is_view = alias.kind != "fresh"
        grads.append(Exit(where, True, False, type, alias.offset) if is_view else Exit(where))
    inputs = tuple(Input(value, facts.types[value]) for value in order.taken)
    ops = tuple(_zoned(order.ops, facts.again)) if facts.again else tuple(order.ops)
    graph = without_kept(Graph("core", inputs, ops, tuple(made.values)))
    takes = tuple(given[value] for value in order.taken)
    watched = tuple(one for one in part.watched if one not in takes)
    return Half(part.joint, graph, takes, tuple(grads), watched)


def _zoned(ops: Sequence[Op], again: Mapping[int, int]) -> Iterator[Op]:
    """`ops` in zones, each of which begins where a region is computed again: as numbers of regions."""
    zones: dict[int, int] = {}
    for op in ops:
        region = next((again[result] for result in op.results if result in again), 0)
        if region:
            zones.setdefault(region, len(zones) + 2)
        yield replace(op, region=zones.get(region, len(zones) + 1))


class _Made:
    """The results of a half, each once."""

    def __init__(self, next_id: int):
        self.values: list[int] = []
        self.places: dict[int, int] = {}
        self.next_id = next_id

    def give(self, value: int) -> Given:
        """`value` is one more result."""
        self.places.setdefault(value, len(self.values))
        self.values.append(value)
        return Given("plan", len(self.values) - 1)

    def place(self, value: int) -> Given:
        """`value` is a result, if it was none before."""
        return Given("plan", self.places[value]) if value in self.places else self.give(value)

    def copy(self, value: int, facts: Facts) -> Op:
        """What copies `value`."""
        self.next_id += 1
        type = facts.types[value]
        return Op(
            "cast", (Ref(value),), (self.next_id - 1,), (type,), (("dtype", type.dtype),))


class _Order:
    """Ops, each after those that it needs, which come as late as may be."""

    def __init__(self, facts: Facts, given: Mapping[int, Given]):
        self.facts, self.given = facts, given
        self.ops: list[Op] = []
        self.taken: dict[int, None] = {}
        self._done: set[int] = set()  # ids of ops

    def reach(self, value: int) -> None:
        """Appends what makes `value` and is not there yet."""
        if value in self.given:
            self.taken[value] = None
        else:
            self.append(self.facts.maker[value])

    def append(self, op: Op) -> None:
        """Appends `op`, behind what it needs, if it is not there yet."""
        stack = [(op, False)]
        while stack:
            op, is_ready = stack.pop()
            if identity(op) in self._done:
                continue
            if is_ready:
                self._done.add(identity(op))
                made = tuple(-1 if result in self.given else result for result in op.results)
                self.ops.append(replace(op, results=made))
                continue
            stack.append((op, True))
            for ref in reversed([*op.refs()]):
                if ref in self.given:
                    self.taken[ref] = None
                else:
                    stack.append((self.facts.maker[ref], False))
