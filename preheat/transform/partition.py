"""Partition: what the forward keeps for the backward, and what the backward computes again.

    %3 = mul(%0, %1); %4 = exp(%3); %5 = matmul(%4, %2)       forward (%0, %1, %2): return %5, %3
    %7 = matmul(%6, ..); %8 = mul(%7, %4)    %6 the tangent   backward (%3, %6): %7 = ..; %4 = exp(%3)
    %9 = matmul(permute(%4), %6)                         ->             %8 = mul(%7, %4); %9 = ..

A minimum cut through the values between forward and backward, by bytes. With a budget of 1 only what
costs about as much as reading it is computed again: elementwise ops, movement and constants, in
chains that read no more than `MOST_READ` times what they give. A smaller budget bounds the bytes
that are saved, as a share of those that torch's formulas save: then reductions, gathers, products and
library calls are computed again too, first those that cost least for what they save. Random numbers
are drawn once.

Of a region (a checkpoint of the program) nothing is saved: what the formulas read of it they have
computed again, from what the region had held, which is saved if it cannot be had otherwise.

Requires a `Whole` and its graph at level core; bytes of sizes that change are those of the call that they were seen in.
Guarantees: a backward reads an input, or a result
that the caller has, only if a formula had saved it or a view of it, so that changes in place are
noticed where eager notices them; of others it gets copies, unless it may read any (then changes of
these are errors, too). What is computed again is computed by the
same ops in the same dtypes.

Source: AOTAutograd's min-cut partition (Horace He, 2022), here on core ops.
"""

from collections.abc import Collection, Iterable, Sequence

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.base.identity import identity
from preheat.ir.graph import Graph, Op, OutputAlias
from preheat.ir.hinted import estimate
from preheat.ir.ops import CORE
from preheat.ir.types import ScalarType, TensorType
from preheat.rules.raising import can_raise
from preheat.transform.cleanup import has_effect
from preheat.transform.mincut import NEVER, Network
from preheat.transform.whole import Part, Whole, is_kept

MOST_READ = 4  # times the bytes of a value that is computed again, for what its chain reads
_SMALL_BYTES = 64 << 10  # what a chain may read in any case
_CHEAP = frozenset(("elementwise", "movement", "creation"))


class Facts:
    """What is asked of a whole at level core, again and again.

    inputs     places of the forward's inputs: those before are inputs, the others tangents
    backward   values that follow from a tangent;  forward   values that the forward computes anyway
    again      values that are computed again, with their regions
    """

    def __init__(self, core: Graph, whole: Whole):
        self.core, self.whole, self.types = core, whole, core.types()
        self.maker: dict[int, Op] = {r: op for op in core.ops for r in op.results if r != -1}
        self.input_count = min(
            (t for part in whole.parts for t in part.tangents), default=len(core.inputs))
        self.input_place = {i.id: k for k, i in enumerate(core.inputs[:self.input_count])}
        self.tangents = {i.id for i in core.inputs[self.input_count:]}
        self.numbers = {  # no tensors: nothing can keep them
            i.id for i in whole.graph.inputs if isinstance(i.type, ScalarType)}
        self.aliases = core.output_aliases or (OutputAlias(),) * len(core.outputs)
        self.backward = set(self.tangents)
        for op in core.ops:
            if not self.backward.isdisjoint(op.refs()):
                self.backward.update(op.results)
        self.again = _again(core, self.backward)
        self.own_count = whole.values + whole.copies
        ends = [self.memory_of(place) for place in range(self.own_count)]
        ends += [value for _, value in core.writes]
        ends += [r for op in core.ops if self.stays(op) for r in op.results if r != -1]
        made = self.needed(value for value in ends if value is not None)
        self.forward = made | {
            r for op in core.ops if not made.isdisjoint(op.results) for r in op.results if r != -1}
        # memory that the caller has: the places of the results that lie in it
        self.lent: dict[int, list[int]] = {}
        for place in range(whole.values):
            value = self.memory_of(place)
            if value is not None:
                self.lent.setdefault(value, []).append(place)

    def stays(self, op: Op) -> bool:
        """Whether the forward runs `op` though nothing may read what it gives."""
        is_early = self.backward.isdisjoint(op.results) and self.again.keys().isdisjoint(op.results)
        return is_early and (has_effect(op) or can_raise(op))

    def memory_of(self, place: int) -> int | None:
        """The value that is the memory of output `place`; None if it lies in an input."""
        alias = self.aliases[place]
        if alias.kind == "input":
            return None
        return self.core.outputs[alias.base if alias.kind == "output" else place]

    def ends(self, part: Part) -> list[int]:
        """The values whose memory the gradients of a joint are, those apart that lie in inputs."""
        found = [self.memory_of(place) for place in part.grads if place >= 0]
        return [*dict.fromkeys(value for value in found if value is not None)]

    def needed(self, ends: Iterable[int], within: Collection[int] | None = None) -> set[int]:
        """`ends` and what they are computed from; `within`: only values of this set lead on."""
        found: set[int] = set()
        stack = [*ends]
        while stack:
            value = stack.pop()
            if value not in found:
                found.add(value)
                if value in self.maker and (within is None or value in within):
                    stack += self.maker[value].refs()
        return found

    def bytes(self, value: int) -> int:
        type = self.types.get(value)
        return estimate(type.elems * type.itemsize) if isinstance(type, TensorType) else 0


def _again(core: Graph, backward: Collection[int]) -> dict[int, int]:
    """What follows from values that regions have held, and from no tangent: by value its region."""
    found = {op.result: op.args[1] for op in core.ops if is_kept(op)}
    for op in core.ops if found else ():
        region = next((found[ref] for ref in op.refs() if ref in found), 0)
        if region and backward.isdisjoint(op.results):
            found.update((result, region) for result in op.results if result != -1)
    return found


@dataclass(frozen=True)
class Saved:
    """What is saved beside inputs: values in order. Those of `copied` lie in inputs or results, which
    others may change unnoticed."""

    values: tuple[int, ...]
    copied: frozenset[int]


def partition(
    core: Graph, whole: Whole, budget: float = 1.0, reads_any: bool = False,
) -> Saved:
    """What the backwards take of the forward. `core`: the graph of `whole`, lowered.

    budget      the share of what torch's formulas save that may be saved; 1: no limit but theirs
    reads_any   inputs and results may be read that no formula had saved
    """
    facts = Facts(core, whole)
    if any(target in facts.tangents for target, _ in core.writes):
        raise Unsupported("unknown_history", "a formula writes to its tangent")
    saved: dict[int, None] = {}
    copied: set[int] = set()
    for number in dict.fromkeys(part.joint.number for part in whole.parts):
        parts = [part for part in whole.parts if part.joint.number == number]
        choice = _Choice(facts, parts, saved, reads_any)
        for value in choice.within(budget):
            if value in facts.input_place or value in facts.lent:
                if value not in choice.safe:
                    copied.add(value)
                elif value in facts.input_place:
                    continue
            saved[value] = None
    return Saved(tuple(saved), frozenset(copied))


class _Choice:
    """What the backwards of one class, `parts`, may take.

    safe   inputs, and results that the caller has, that the formulas have saved too; or any
    """

    def __init__(
        self, facts: Facts, parts: Sequence[Part], saved: Collection[int], reads_any: bool,
    ):
        self.facts, self.parts, self.saved = facts, parts, frozenset(saved)
        written = {target for target, _ in facts.core.writes}
        self.safe = {
            given.id for given, place in zip(facts.core.inputs, range(facts.input_count))
            if (reads_any or any(place in part.inputs for part in parts))
            and given.id not in written and given.id not in facts.numbers}
        self.safe |= {
            value for value, places in facts.lent.items()
            if reads_any or any(not part.values.isdisjoint(places) for part in parts)}
        self.wanted = self._wanted()
        self.held = {  # what regions are computed again from
            op.args[0].id for value in facts.needed(self.wanted & facts.again.keys(), facts.again)
            if value in facts.maker and is_kept(op := facts.maker[value])}
        self.pinned: set[int] = set()  # what is not computed again: its chain would be too long

    def within(self, budget: float) -> set[int]:
        """The values to save. Unlocks as many dear ops as the budget asks for."""
        found = self._bounded_cut(frozenset())
        limit = budget * sum(estimate(part.bytes) for part in self.parts)
        if budget >= 1 or self._bytes(found) <= limit:
            return found
        ops = self._dear()
        low, high = 1, len(ops)
        while low < high:
            middle = (low + high) // 2
            is_enough = self._bytes(self._cut(_results(ops[:middle]))) <= limit
            low, high = (low, middle) if is_enough else (middle + 1, high)
        return self._cut(_results(ops[:low]))

    # ------------------------------------------------------------------ cuts
    def _bounded_cut(self, unlocked: frozenset[int]) -> set[int]:
        """A cut of which no chain reads too much."""
        while True:
            found = self._cut(unlocked)
            long = self._long_chains(found)
            if not long:
                return found
            self.pinned |= long

    def _cut(self, unlocked: frozenset[int]) -> set[int]:
        """The cheapest values to save if the results `unlocked` may be computed again."""
        facts, network = self.facts, Network()
        node: dict[int, int] = {}
        stack = [*self.wanted]
        while stack:  # the values that count
            value = stack.pop()
            if value in node or self._is_free(value):
                continue
            node[value] = network.node(self._price(value))
            if self._may_recompute(value, unlocked):
                stack += facts.maker[value].refs()
            else:
                network.give(node[value])
        for value in node:
            if value in self.wanted:
                network.want(node[value])
            if self._may_recompute(value, unlocked):
                for ref in dict.fromkeys(facts.maker[value].refs()):
                    if ref in node:
                        network.edge(node[ref], node[value])
        cut = network.solve()
        return {value for value, number in node.items() if number in cut}

    def _is_free(self, value: int) -> bool:
        """Whether a backward has `value` at no cost: a safe input, or a constant."""
        if value in self.facts.input_place:
            return value in self.safe
        op = self.facts.maker[value]
        return CORE[op.name].kind == "creation" and not [*op.refs()]

    def _may_recompute(self, value: int, unlocked: frozenset[int]) -> bool:
        facts = self.facts
        if value not in facts.maker or value in self.pinned:
            return False
        op = facts.maker[value]
        if not facts.numbers.isdisjoint(op.refs()):
            return is_kept(op)  # of the number, which is kept in a tensor
        if value not in facts.forward:
            return not has_effect(op)  # the formulas compute it in the backward, too
        return CORE[op.name].kind in _CHEAP or value in unlocked

    def _price(self, value: int) -> int:
        """What it costs to save `value`, in eighths of a byte."""
        facts = self.facts
        if value in facts.again:
            return NEVER
        if value in self.saved:
            return 1  # for another class
        count = 8 * facts.bytes(value) + 8
        if value in facts.lent and value in self.safe:
            return count // 2  # the caller has it, for some time
        if value not in facts.forward:
            return count + count // 8  # the forward would have to compute it
        if value not in facts.maker or CORE[facts.maker[value].name].kind == "movement":
            return count + count // 4  # it would have to be copied
        return count

    def _long_chains(self, cut: set[int]) -> set[int]:
        """Values that are computed again from far more than they are."""
        facts, found = self.facts, set()
        for value in self.wanted | self.held:
            if value in cut or self._is_free(value) or value not in facts.forward:
                continue
            read, seen, stack = 0, set(), [value]
            limit = max(MOST_READ * facts.bytes(value), _SMALL_BYTES)
            while stack and read <= limit:
                one = stack.pop()
                if one in seen:
                    continue
                seen.add(one)
                if one in cut or one in facts.input_place:
                    read += facts.bytes(one)
                else:
                    stack += facts.maker[one].refs()
            if read > limit:
                found.add(value)
        return found

    # ------------------------------------------------------------------ budget
    def _dear(self) -> list[Op]:
        """The ops that a budget may ask for, those first that cost least for what they save."""
        facts = self.facts
        ops = {identity(op): op for value in facts.needed(self.wanted) if value in facts.maker
               for op in [facts.maker[value]]}
        found = [
            op for op in ops.values()
            if not has_effect(op) and CORE[op.name].kind not in _CHEAP
            and (op.name != "library" or op.attr("op").startswith("aten."))]
        return sorted(found, key=lambda op: self._work(op) / max(self._bytes(op.results), 1))

    def _work(self, op: Op) -> int:
        """How dear `op` is, in bytes moved; of a product, as if each multiplication moved 1/16."""
        facts = self.facts
        moved = sum(map(facts.bytes, (*op.refs(), *op.results)))
        if CORE[op.name].kind == "product":
            return moved + facts.bytes(op.result) * estimate(facts.types[op.args[0].id].sizes[-1]) // 16
        return moved * (16 if op.name == "library" else 1)

    def _bytes(self, values: Iterable[int]) -> int:
        inputs = self.facts.input_place
        return sum(self.facts.bytes(v) for v in values if v not in self.safe or v not in inputs)

    def _wanted(self) -> set[int]:
        """The values without tangents that the backwards read or give."""
        facts, found = self.facts, set()
        for part in self.parts:
            needed = facts.needed(facts.ends(part), facts.backward)
            found |= {value for value in needed if value not in facts.backward}
        return found


def _results(ops: Sequence[Op]) -> frozenset[int]:
    return frozenset(r for op in ops for r in op.results)
