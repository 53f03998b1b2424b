"""Alike: independent parts of a graph that are equal, of which few have to be lowered and scheduled.

    %0 = aten.sub_(%0, %1, alpha=0.1)                 %0 = aten.sub_(%0, %1, alpha=0.1)
    %2 = aten.sub_(%2, %3, alpha=0.1)         ->
    %4 = aten.sub_(%4, %5, alpha=0.1)                 %0 %1: as %2 %3, as %4 %5

An optimizer does to hundreds of parameters what it does to one. Two ops are of one *part* if one reads,
writes or views what the other makes, memory that one of them writes, or an input that few read; but for single numbers that many
read, and what these come from: that reads what parts write before they do. Parts are equal when their ops are,
up to the numbers of values; those of pointwise ops over contiguous tensors of one size are equal for any
size, since the loops over them are (`schedule/groups.py`). Left as it is: what is given out, memory that may overlap,
what draws random numbers or is a region.

Requires level aten as recorded. Guarantees: no part reads what another one writes; in each part the inputs
of a copy are met where those of its model are.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from preheat.base.dataclass import dataclass, field
from preheat.base.identity import identity
from preheat.bridge.ops import is_pointwise, schema
from preheat.ir.alike import Alike, Copies
from preheat.ir.graph import Graph, Item, Op, Ref
from preheat.ir.types import TensorType, Type

MANY = 16  # readers of a number, or of an input, that does not make one part of them
MOST_ELEMS = 1 << 31  # of what a flat kernel walks
_MOVES = frozenset((  # what is done to each element alone, though torch does not say so
    "aten.copy_.default", "aten.zero_.default", "aten.fill_.Scalar", "aten._to_copy.default",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.masked_fill_.Scalar", "aten.detach.default",
    "aten.index_put_.default"))


def alike(graph: Graph, kept: int) -> Alike | None:
    """`graph` with `kept` of each kind of equal parts; None where there are no more than those."""
    parts = _parts(graph)
    kinds: dict[tuple, list[_Part]] = {}
    facts = _Facts(graph)
    for part in parts:
        key = facts.key(part)
        if key is not None:
            kinds.setdefault(key, []).append(part)
    left_out: set[int] = set()
    chosen: list[tuple[_Part, list[_Part]]] = []
    for same in kinds.values():
        if len(same) > kept:
            # large ones stand for small ones: what is decided for them counts
            largest = sorted(same, key=lambda part: -part.elems)[:kept]
            others = [part for part in same if part not in largest]
            chosen.append((max(largest, key=lambda part: part.number), others))
            left_out.update(part.number for part in others)
    return _alike(graph, parts, left_out, chosen) if chosen else None


@dataclass(eq=False)
class _Part:
    """Ops that hang together, in program order; inputs in the order in which they are met."""

    number: int
    ops: list[Op] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)  # each, and which of the part's it is
    elems: int = 0  # see `Copies`


def _parts(graph: Graph) -> list[_Part]:
    """The parts of `graph` that can stand for others; none where nothing is written to inputs."""
    roots, inputs = graph.roots(), {given.id: given for given in graph.inputs}
    written = {roots.get(value, value) for op in graph.ops for value in op.writes}.intersection(inputs)
    if len(written) < 2:
        return []
    sets = Counter(given.alias_set for given in graph.inputs if given.alias_set >= 0)
    shared = _Shared(graph, roots, inputs)
    readers = Counter(value for op in graph.ops for value in set(op.refs()))
    loose = shared.values | {
        given.id for given in graph.inputs
        if given.id not in written and sets[given.alias_set] < 2 and readers[given.id] >= MANY}
    above: dict[int, int] = {}  # of each value one that hangs together with it, or itself

    def top(value: int) -> int:
        while (found := above[value]) != value:
            above[value] = above[found]
            value = found
        return value

    first: list[int] = []  # of each op a value, -1 if it has none
    for place, op in enumerate(graph.ops):
        one = -1
        if place not in shared.ops:
            for value in (*op.refs(), *op.results):
                if value < 0 or value in loose:
                    continue
                found = top(above.setdefault(value, value))
                if one < 0:
                    one = found
                elif found != one:
                    above[found] = one
        first.append(one)
    parts: dict[int, _Part] = {}
    for op, value in zip(graph.ops, first):
        if value >= 0:
            parts.setdefault(top(value), _Part(len(parts))).ops.append(op)
    fixed = {*graph.outputs, *shared.inner, *(
        given.id for given in graph.inputs if sets[given.alias_set] > 1)}
    kept = {top(value) for value in fixed if value in above}
    return [part for one, part in parts.items() if one not in kept]


class _Shared:
    """Single numbers that many ops read, such as the coefficient that gradients are multiplied by.

    values   these: fresh, and never written
    ops      places of the ops that they come from, which write to no input
    inner    what else these ops make, and inputs that they read after others have written there: parts
             that have such a value are none
    """

    def __init__(self, graph: Graph, roots: Mapping[int, int], inputs: Collection[int]) -> None:
        makers: dict[int, int] = {}
        readers: Counter[int] = Counter()
        for place, op in enumerate(graph.ops):
            readers.update(op.refs())
            if len(op.results) == 1 and not op.writes:
                makers[op.results[0]] = place
        changed = {roots.get(value, value) for op in graph.ops for value in op.writes}
        types = {op.results[0]: op.types[0] for op in graph.ops if len(op.results) == 1}
        self.values = {
            value for value, count in readers.items()
            if count >= MANY and value in makers and value not in changed and value not in roots
            and isinstance(types[value], TensorType) and not types[value].sizes}
        self.ops: set[int] = set()
        self.inner: set[int] = set()
        if self.values and not self._follow(graph, roots, inputs):
            self.values, self.ops, self.inner = set(), set(), set()

    def _follow(self, graph: Graph, roots: Mapping[int, int], inputs: Collection[int]) -> bool:
        """Finds the ops; False where one of them writes to an input."""
        first: dict[int, int] = {}  # of each input the place of the first write to it
        for place, op in enumerate(graph.ops):
            for value in op.writes:
                first.setdefault(roots.get(value, value), place)
        wanted = set(self.values)
        for place in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[place]
            made = {roots.get(value, value) for value in op.results if value >= 0}
            if wanted.isdisjoint(made):
                continue
            if any(roots.get(value, value) in inputs for value in op.writes):
                return False
            self.ops.add(place)
            self.inner.update(op.results)
            for value in op.refs():
                root = roots.get(value, value)
                if root not in inputs:
                    wanted.add(root)
                    self.inner.add(value)
                elif first.get(root, place) < place:
                    self.inner.add(root)
        self.inner -= self.values
        return True


class _Facts:
    """What parts are compared by. Numbers stand for types, so that keys are short."""

    def __init__(self, graph: Graph) -> None:
        self.types = graph.types()
        self.inputs = frozenset(given.id for given in graph.inputs)
        self.kinds: dict[object, int] = {}
        self.seen: dict[int, tuple[int, int, tuple | None]] = {}  # by identity of a type

    def key(self, part: _Part) -> tuple | None:
        """What equal parts share; None for a part that is left as it is."""
        key: list[object] = []
        local = part.values
        types: list[Type] = []
        is_flat = True
        for op in part.ops:
            if op.regions or op.region or schema(op.name).has_effect:
                return None
            is_flat = is_flat and (is_pointwise(op.name) or op.name in _MOVES or self._is_single(op))
            for value in op.refs():
                if value not in local:
                    local[value] = len(local)
                    types.append(self.types[value])
                    if value not in self.inputs:  # a number that others share
                        key.append(value)
            for value in op.results:
                local.setdefault(value, len(local))
            key += (
                op.name, self._args(op.args, local), op.is_grad_enabled,
                tuple([local[value] for value in op.results]),
                tuple([local.get(value, -1) for value in op.aliases]))
            if op.attrs:
                key.append(tuple([(name, self._arg(arg, local)) for name, arg in op.attrs]))
            if op.writes:
                key.append(tuple([local[value] for value in op.writes]))
            types += op.types
        facts = [self._type(type) for type in types]
        flat = self._flat(facts) if is_flat else None
        if flat is None:
            return (*key, -1, *[exact for exact, _, _ in facts])
        part.elems, pattern = flat
        return (*key, pattern, *[kind for _, kind, _ in facts])

    def _is_single(self, op: Op) -> bool:
        """Whether an op is of single numbers alone."""
        types = (*op.types, *[self.types[value] for value in op.refs()])
        return all(isinstance(type, TensorType) and not type.sizes for type in types)

    def _args(self, args: tuple, local: dict[int, int]) -> tuple:
        return tuple([self._arg(arg, local) for arg in args])

    def _arg(self, arg: object, local: dict[int, int]) -> object:
        """An argument by what it is: 1 is not 1.0, nor 0.0 -0.0."""
        if arg.__class__ is Ref:
            return local[arg.id]
        if arg.__class__ is Item:
            return "item", local[arg.id]
        if arg.__class__ is tuple:
            return "tuple", self._args(arg, local)
        return arg.__class__, repr(arg)

    def _type(self, type: Type) -> tuple[int, int, tuple | None]:
        """A number for a type, one for it apart from its sizes, and its sizes: () for a single number, None
        where others than contiguous ones count."""
        found = self.seen.get(identity(type))
        if found is None:
            number = self.kinds.setdefault
            exact = number(type, len(self.kinds))
            sizes = () if not isinstance(type, TensorType) else type.sizes if type.is_contiguous else None
            kind = number((type.dtype, type.device), len(self.kinds)) if sizes else exact
            found = self.seen[identity(type)] = exact, kind, sizes
        return found

    def _flat(self, facts: Sequence[tuple[int, int, tuple | None]]) -> tuple[int, tuple] | None:
        """How many elements each tensor with axes has, where all have the same sizes and are contiguous; and
        what else counts of the sizes."""
        sizes = {sizes for _, _, sizes in facts} - {()}
        if len(sizes) != 1 or None in sizes:
            return None
        (one,) = sizes
        elems = 1
        for size in one:
            if type(size) is not int:
                return None
            elems *= size
        return (elems, tuple([size == 1 for size in one])) if 1 < elems < MOST_ELEMS else None


def _alike(
    graph: Graph, parts: Sequence[_Part], left_out: set[int],
    chosen: Iterable[tuple[_Part, list[_Part]]],
) -> Alike:
    place = {given.id: k for k, given in enumerate(graph.inputs)}
    owners: dict[int, set[int]] = {}
    gone: set[int] = set()
    for part in parts:
        if part.number in left_out:
            gone.update(map(identity, part.ops))
        for value in part.values:
            if value in place:
                owners.setdefault(value, set()).add(part.number)
    ops = tuple([op for op in graph.ops if identity(op) not in gone])
    read = {value for op in ops for value in op.refs()}
    kept = [
        given for given in graph.inputs
        if given.id in read or owners.get(given.id, set()).isdisjoint(left_out)]
    there = {given.id: k for k, given in enumerate(kept)}
    few = Graph("aten", tuple(kept), ops, graph.outputs)

    def inputs(part: _Part) -> list[int]:
        return [value for value in part.values if value in place]

    copies = []
    for model, others in chosen:
        copies.append(Copies(
            tuple([there[value] for value in inputs(model)]),
            tuple([tuple([place[value] for value in inputs(part)]) for part in others]),
            tuple([part.elems for part in others])))
    return Alike(
        graph, few, tuple([place[given.id] for given in kept]),
        {there[value]: min(numbers) for value, numbers in owners.items()
         if len(numbers) == 1 and value in there},
        tuple(copies))
