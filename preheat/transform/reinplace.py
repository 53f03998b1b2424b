"""Reinplace: which writes to inputs may happen in their memory as soon as the value is made.

    %2: f32[4096, 8] = place(%0, %1, axis=0, start=7, step=1)
    write %0 <- %2
      ->
    write %0 <- %2 in place
        store %1 at 56 {8, 1} makes %2         only row 7 is stored

The values that an input's memory holds one after the other are its states: the input, each `place`
on the state before, or a value computed as a whole. A write qualifies when, as the ops stand, no
state (nor a view of it, nor a value on the way to the next) is read after the op that makes the
next one, nothing after the last one can raise (a call that raises runs again in eager, so nothing
may be written yet), and each state is computed here and not a view. Requires and gives level core;
only `in_place` and `stores` change.
"""

from dataclasses import replace
from typing import NamedTuple

from preheat.ir.graph import Graph, Op, Store
from preheat.ir.ops import CORE
from preheat.ir.scalar import Dim
from preheat.ir.types import TensorType, Type
from preheat.rules.raising import can_raise
from preheat.transform.lowering import view_strides

VIEWS = frozenset(("reshape", "permute", "expand", "slice", "flip"))


def reinplace(graph: Graph) -> Graph:
    """`graph` with `in_place` and `stores` filled in."""
    if not graph.writes:
        return graph
    facts = _Facts(graph)
    last_raise = max((place for place, op in enumerate(graph.ops) if can_raise(op)), default=-1)
    in_place: list[int] = []
    stores: list[Store] = []
    for target, value in graph.writes:
        found = _Stores(facts, target).of(value, last_raise)
        if found:
            in_place.append(target)
            stores += found
    return replace(graph, in_place=tuple(in_place), stores=tuple(stores))


class Memory(NamedTuple):
    """Elements of an input: from `offset` after its first, `strides` apart."""

    offset: Dim
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]

    def type(self, dtype: str) -> TensorType:
        return TensorType(dtype, self.sizes, self.strides)

    def region(self, op: Op, size: Dim) -> "Memory":
        """The part that a slice or place with `size` elements along its axis names."""
        axis, start, step = op.attr("axis"), op.attr("start"), op.attr("step")
        sizes = (*self.sizes[:axis], size, *self.sizes[axis + 1 :])
        strides = (*self.strides[:axis], self.strides[axis] * step, *self.strides[axis + 1 :])
        return Memory(self.offset + start * self.strides[axis], sizes, strides)

    def permuted(self, axes) -> "Memory":
        return Memory(
            self.offset, tuple(self.sizes[a] for a in axes), tuple(self.strides[a] for a in axes)
        )

    def reshaped(self, sizes: tuple[Dim, ...]) -> "Memory | None":
        strides = view_strides(self.type("float32"), sizes)
        return None if strides is None else Memory(self.offset, sizes, strides)


class _Facts:
    """What is looked up about a graph, for all of its writes.

    made, position, readers   of a value: its op, the place of that, the places of those that read it
    kept, written             values that are given out; of each that is written, the inputs it goes to
    """

    def __init__(self, graph: Graph) -> None:
        self.ops = graph.ops
        self.types: dict[int, Type] = graph.types()
        self.made: dict[int, Op] = {r: op for op in graph.ops for r in op.results}
        self.position = {r: place for place, op in enumerate(graph.ops) for r in op.results}
        self.readers: dict[int, list[int]] = {}
        for place, op in enumerate(graph.ops):
            for value in op.refs():
                self.readers.setdefault(value, []).append(place)
        aliases = graph.output_aliases
        self.kept = frozenset(
            o for k, o in enumerate(graph.outputs) if not aliases or aliases[k].kind == "fresh")
        self.written: dict[int, set[int]] = {}
        for target, value in graph.writes:
            self.written.setdefault(value, set()).add(target)


class _Stores:
    """What the write to one input stores: its states taken apart along `place` ops."""

    def __init__(self, facts: _Facts, target: int) -> None:
        self.facts, self.target = facts, target
        self.types, self.made, self.position = facts.types, facts.made, facts.position
        self.whole = Memory(0, self.types[target].sizes, self.types[target].strides)

    def of(self, value: int, last_raise: int) -> list[Store]:
        """The stores of the write of `value`; none when it has to wait for the end."""
        if self.position.get(value, -1) <= last_raise:
            return []
        states = self.states(value)
        found: list[Store] = []
        for before, state in zip((self.target, *states), states):
            passed: set[int] = set()
            parts = self.parts(state, state, before, self.whole, passed)
            if [part.value for part in parts] == [state] and not _is_computed(self.made[state]):
                return []
            if self.is_read_after(self.position[state], {before, *passed} - {state}):
                return []
            found += parts
        return found

    def states(self, value: int) -> list[int]:
        """The states that end in `value`, first to last, without the input itself."""
        found: list[int] = []
        while value != self.target:
            found.append(value)
            below = self._state_below(value)
            if below is None:
                break
            value = below
        return found[::-1]

    def _state_below(self, value: int) -> int | None:
        """The state that `value` replaces parts of; None for one that is computed as a whole."""
        memory: Memory | None = self.whole
        while memory is not None and value in self.made:
            op = self.made[value]
            if op.name not in ("place", "reshape", "permute"):
                return None
            (value, memory), *_ = self._through(op, memory) or [(value, None)]
            if memory == self.whole:
                return value
        return None

    def parts(
        self, value: int, state: int, before: int, memory: Memory, passed: set[int]
    ) -> list[Store]:
        """The stores that turn `memory`, which holds its part of the state `before`, into `value`.

        `passed` collects the values that need not exist: they are only steps to the new memory.
        """
        if self.where(value, before) == memory:
            passed.add(value)
            return []
        op = self.made.get(value)
        inner = self._through(op, memory) if op is not None else None
        if inner is None:
            return [Store(self.target, state, value, memory.offset, memory.strides)]
        found = [s for part, place in inner for s in self.parts(part, state, before, place, passed)]
        if any(part in passed for part, _ in inner):
            passed.add(value)  # it has old elements in it, unlike a view of what is stored
        return found

    def _through(self, op: Op, memory: Memory) -> list[tuple[int, Memory]] | None:
        """The values `op` puts together, each with its part of `memory`; None if it computes."""
        if op.name not in ("place", "reshape", "permute"):
            return None
        operand = op.args[0].id
        if op.name == "place":
            part = op.args[1].id
            return [
                (operand, memory),
                (part, memory.region(op, self.types[part].sizes[op.attr("axis")])),
            ]
        if op.name == "reshape":
            below = memory.reshaped(self.types[operand].sizes)
            return None if below is None else [(operand, below)]
        axes = op.attr("axes")
        return [(operand, memory.permuted([axes.index(i) for i in range(len(axes))]))]

    def where(self, value: int, state: int) -> Memory | None:
        """The part of the memory of `state` that `value` is a view of; None if it is none."""
        if value == state:
            return self.whole
        op = self.made.get(value)
        if op is None or op.name not in ("slice", "reshape", "permute"):
            return None
        below = self.where(op.args[0].id, state)
        if below is None:
            return None
        if op.name == "slice":
            return below.region(op, op.type.sizes[op.attr("axis")])
        return (
            below.permuted(op.attr("axes"))
            if op.name == "permute"
            else below.reshaped(op.type.sizes)
        )

    def is_read_after(self, made: int, old: set[int]) -> bool:
        """Whether a value of `old` or a view of one is read after position `made`, or given out."""
        facts, seen, pending = self.facts, set(old), list(old)
        for value in pending:  # grows by views, which read nothing themselves: their readers do
            if value in facts.kept or facts.written.get(value, set()) - {self.target}:
                return True
            for place in facts.readers.get(value, ()):
                op = facts.ops[place]
                if op.name not in VIEWS:
                    if place > made:
                        return True
                elif op.result not in seen and place != made:
                    seen.add(op.result)
                    pending.append(op.result)
        return False


def _is_computed(op: Op) -> bool:
    """Whether `op` makes its result by storing elements, and could store them anywhere."""
    return op.name not in VIEWS and CORE[op.name].kind not in ("library", "creation")
