"""Groups: roots that one kernel computes. Equal groups are lowered once, wherever they stand.

    %9 = add(%7, %8); %10 = tanh(%9)          Group(shape A, members (%10, %9, %7, %8))
    %19 = add(%17, %18); %20 = tanh(%19)      Group(shape A, members (%20, %19, %17, %18))

What `lower` and `tile` make of a group depends on the ops between its memory and its stores, on
their types, and on nothing else. So the values that they look at are numbered from the stores down,
and those numbers with what each value is are the key of the result: a `Shape`, in which values and
memories are places in `Group.members`. The trials of fusion, refusals included, are made for the
first of a model's equal layers only.

Elementwise groups over contiguous memory can be *flat*: equal whatever their sizes, one loop over all
elements, as many as the call says. So the updates of hundreds of parameters are one kernel, called
for each of them. On a CPU all such groups are; on a GPU, whose kernels gain by knowing their sizes, those
that `batches` launches together.

Requires level core. Guarantees: groups of one shape are one kernel.
Source: incremental compilation by normalised functions (Cranelift's incremental_cache.rs).
"""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass, field
from preheat.ir.hinted import estimate
from preheat.ir.loop import ANY, HOST, Kernel
from preheat.ir.ops import ELEMENTWISE, REDUCE
from preheat.ir.plan import Target
from preheat.ir.scalar import product
from preheat.schedule.loops import lower
from preheat.schedule.nests import Frame, Nest, NoFit, frame_of
from preheat.schedule.problem import Problem
from preheat.schedule.tile import Tiled, kernel_of, resized, tile
from preheat.schedule.views import Store, placed_region, store_through

_FLAT_OPS = frozenset((*ELEMENTWISE, "cast", "full", "expand"))
ON_HOST = Target("cpu", "")  # what is 0-d hangs on nothing of a CPU
MOST_FRAMES = 4  # loops that are tried for a group


@dataclass(frozen=True)
class Shape:
    """A group as lowered, apart from which values it is about: those are places in its members."""

    nest: Nest
    tiled: Tiled
    is_for_any: bool = False  # for any number of elements, whatever those of its groups are
    is_on_host: bool = False  # of a plan for a GPU

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel, without a name. The same object for all groups of this shape."""
        made = kernel_of(self.tiled)
        if self.is_on_host:
            made = replace(made, params=tuple(replace(p, name=HOST) for p in made.params))
        return replace(made, axes=(replace(made.axes[0], extent=ANY),)) if self.is_for_any else made


@dataclass(frozen=True, slots=True)
class Group:
    """Roots that one kernel computes. `reads` are values with memory outside."""

    roots: tuple[int, ...]
    stored: tuple[int, ...]
    shape: Shape
    members: tuple[int, ...]
    reads: frozenset[int]
    tiled: Tiled  # that of the shape, at the sizes of this group

    @property
    def values(self) -> tuple[int, ...]:
        """The values that are computed, for the kernel's name."""
        return tuple(self.members[place] for place in self.shape.nest.values)

    @property
    def memories(self) -> tuple[int, ...]:
        """The memory of each parameter of the kernel."""
        return tuple(self.members[place] for place in self.shape.tiled.memories)

    @property
    def has_check(self) -> bool:
        return bool(self.shape.nest.checks)

    @property
    def cost(self) -> float:
        return self.tiled.waste


@dataclass(frozen=True, slots=True)
class Shapes:
    """What was lowered so far for one target, None for what fits no common loops.

    kinds   a number for each fact about a value, so that keys are short and quick to compare
    """

    target: Target
    known: dict[tuple, Shape | None] = field(default_factory=dict)
    kinds: dict[tuple, int] = field(default_factory=dict)

    def kind(self, *facts: object) -> int:
        return self.kinds.setdefault(facts, len(self.kinds))


class Groups:
    """Makes the groups of a problem whose `roots` have memory for each other."""

    def __init__(self, problem: Problem, roots: frozenset[int], shapes: Shapes):
        self.problem, self.roots, self.shapes = problem, roots, shapes
        self.args: dict[int, tuple[int, ...]] = {}
        self.op_kinds: dict[int, int] = {}
        self.type_kinds: dict[int, int] = {}
        self.flat_op_kinds: dict[int, int] = {}
        self.flat_type_kinds: dict[int, int] = {}

    def group(
        self, roots: tuple[int, ...], stored: tuple[int, ...], stores: Sequence[Store]
    ) -> Group | None:
        """The group that computes `roots` and does `stores` for the `stored` ones, or None when
        they fit no common loops."""
        walked = self._walked(roots, stores)
        count = 0 if self.shapes.target.is_gpu else self._flat_elems(stores, walked)
        return self._found(roots, stored, stores, walked, count)

    def flat(self, group: Group) -> Group | None:
        """`group` by a kernel that is the same for any number of elements; None where it has none."""
        inside = frozenset(group.roots)
        stores = [self.store(root, inside) for root in group.stored]
        walked = self._walked(group.roots, stores)
        count = self._flat_elems(stores, walked)
        return self._found(group.roots, group.stored, stores, walked, count) if count else None

    def _found(
        self, roots: tuple[int, ...], stored: tuple[int, ...], stores: Sequence[Store],
        walked: Sequence[tuple[int, int | None]], count: int,
    ) -> Group | None:
        """The group, whose shape may be known. count: of the elements, where it is flat, else 0."""
        key, place = self._normal_form(roots, stores, walked, count > 0)
        known = self.shapes.known
        if key not in known:
            known[key] = self._lowered(roots, stores, place, count > 0)
        shape = known[key]
        if shape is None:
            return None
        members = tuple(place)
        reads = frozenset(members[k] for k in shape.nest.reads)
        tiled = shape.tiled
        if count and tiled.extent != count:
            types = [self.problem.types[members[k]] for k in tiled.memories]
            tiled = resized(tiled, count, types, self.shapes.target)
        return Group(roots, stored, shape, members, reads, tiled)

    def is_on_host(self, value: int) -> bool:
        """Whether `value`, of a graph for a GPU, is in the host's memory: a kernel of the host stores it."""
        return self.shapes.target.is_gpu and self.problem.types[value].device == "cpu"

    def memory(self, value: int, inside: Collection[int]) -> int | None:
        """Where a group of the roots `inside` loads `value`; None if it computes it."""
        if self.problem.is_given(value) or (value in self.roots and value not in inside):
            return self.problem.memory.get(value, value)
        return None

    def store(self, root: int, inside: Collection[int]) -> Store:
        """The store of `root` by the loops of the value that it moves; only the region that a
        `place` on the written input changes."""
        ops, types = self.problem.ops, self.problem.types

        def is_given(value: int) -> bool:
            return self.memory(value, inside) is not None

        store = store_through(self.problem.store(root), ops, types, is_given)
        while root in self.problem.written:
            part = placed_region(store, ops, types)
            if part is None:
                break
            store = store_through(part, ops, types, is_given)
        return store

    # ------------------------------------------------------------------ lowering
    def _lowered(
        self, roots: tuple[int, ...], stores: Sequence[Store], place: dict[int, int], is_flat: bool,
    ) -> Shape | None:
        """The shape of a group that was never seen. `place`: of its values and memories."""
        problem, is_for_any = self.problem, is_flat and self.shapes.target.is_gpu
        is_on_host = any(self.is_on_host(store.memory) for store in stores)
        target = ON_HOST if is_on_host else self.shapes.target

        def memory_of(value: int) -> int | None:
            memory = self.memory(value, roots)
            return None if memory is None else place[memory]

        placed = [replace(store, memory=place[store.memory]) for store in stores]
        types = {k: problem.types[memory] for memory, k in place.items()}
        for frame in self._frames(roots, stores):
            try:
                nest = lower(
                    placed, frame, problem.ops, problem.types, memory_of, target.is_gpu)
                values = tuple(place[v] for v in nest.values)
                reads = frozenset(place[v] for v in nest.reads)
                nest = replace(nest, values=values, reads=reads)
                made = Shape(nest, tile(nest, types, target), is_for_any, is_on_host)
                if is_on_host and any(types[k].device != "cpu" for k in made.tiled.memories):
                    return None  # the host sees no memory of a GPU
                return made if not is_for_any or len(made.tiled.form.rows) == 1 else None
            except NoFit:
                continue
        return None

    def _frames(self, roots: tuple[int, ...], stores: Sequence[Store]) -> list[Frame]:
        """The loops to try: those of the reductions, or those of the largest stored value."""
        types, frames = self.problem.types, {}
        for root in roots:
            op = self.problem.ops[root]
            if op.name in REDUCE:
                axes = (op.attr("axis"),) if op.name in ("argmax", "argmin") else op.attr("axes")
                operand = types[op.args[0].id]
                if operand.elems != 0:
                    frames.setdefault(frame_of(operand.sizes, axes), estimate(operand.elems))
        if not frames:
            for store in stores:
                sizes = types[store.value].sizes
                frames.setdefault(frame_of(sizes), estimate(product(sizes)))
        return sorted(frames, key=frames.__getitem__, reverse=True)[:MOST_FRAMES]

    # ------------------------------------------------------------------ normal form
    def _walked(
        self, roots: tuple[int, ...], stores: Sequence[Store]
    ) -> list[tuple[int, int | None]]:
        """The values of a group as a walk from the stores meets them, each with the memory that it is
        loaded from; None for those that are computed."""
        inside, args_of = frozenset(roots), self._args
        pending = list(dict.fromkeys(store.value for store in stores))
        seen = set(pending)
        walked: list[tuple[int, int | None]] = []
        for value in pending:  # grows as operands are met
            memory = self.memory(value, inside)
            walked.append((value, memory))
            if memory is None:
                for arg in args_of(value):
                    if arg not in seen:
                        seen.add(arg)
                        pending.append(arg)
        return walked

    def _flat_elems(
        self, stores: Sequence[Store], walked: Sequence[tuple[int, int | None]]
    ) -> int:
        """How many elements the group walks, if it is elementwise over memory of one size and one dense order,
        and single numbers; else 0."""
        types, ops = self.problem.types, self.problem.ops
        whole = types[stores[0].value] if stores else None
        is_gpu = self.shapes.target.is_gpu
        least = 1 if is_gpu else 2
        if whole is None or type(whole.elems) is not int or whole.elems < least:
            return 0
        if not (whole.is_contiguous or is_gpu and whole.is_dense):
            return 0
        sizes, strides = whole.sizes, whole.strides

        def is_flat(value: int) -> bool:
            found = types[value]
            return not found.sizes or found.sizes == sizes and (
                found.strides == strides or found.is_contiguous and whole.is_contiguous)

        for s in stores:
            if s.offset != 0 or s.strides != strides or types[s.value].sizes != sizes:
                return 0
            if types[s.memory].sizes != sizes or not is_flat(s.memory):
                return 0
        for value, memory in walked:
            if memory is not None:
                if not (is_flat(value) and (memory == value or is_flat(memory))):
                    return 0
                continue
            op = ops[value]
            if types[value].sizes and types[value].sizes != sizes:
                return 0
            if op.name not in _FLAT_OPS or op.name == "expand" and types[op.args[0].id].rank:
                return 0
        return whole.elems

    def _normal_form(
        self, roots: tuple[int, ...], stores: Sequence[Store],
        walked: Sequence[tuple[int, int | None]], is_flat: bool,
    ) -> tuple[tuple, dict[int, int]]:
        """All that `_lowered` looks at, with the values and memories named by their places; and
        the places, in the order in which a walk from the stores meets them. Sizes are left out if
        the group `is_flat`."""
        place: dict[int, int] = {}
        at, args_of = place.setdefault, self._args
        kind_of, op_kind = self._kinds(is_flat)
        key: list = [len(stores), len(roots), is_flat]
        for store in stores:
            value, memory = store.value, store.memory
            key += (at(value, len(place)), at(memory, len(place)), kind_of(memory))
            key += () if is_flat else (store.offset, store.strides)
        for root in roots:
            key += (at(root, len(place)), op_kind(root), *map(kind_of, args_of(root)[:1]))
        for value, memory in walked:
            if memory is not None:
                key += (
                    at(value, len(place)), kind_of(value), at(memory, len(place)), kind_of(memory))
                continue
            key += (at(value, len(place)), op_kind(value), -1)
            for arg in args_of(value):
                key.append(at(arg, len(place)))
        return tuple(key), place

    def _args(self, value: int) -> tuple[int, ...]:
        found = self.args.get(value)
        if found is None:
            found = self.args[value] = tuple(self.problem.ops[value].refs())
        return found

    def _kinds(self, is_flat: bool) -> tuple[Callable[[int], int], Callable[[int], int]]:
        """What loading and what computing a value is."""
        if is_flat:
            return self._flat_type_kind, self._flat_op_kind
        return self._type_kind, self._op_kind

    def _flat_type_kind(self, value: int) -> int:
        found = self.flat_type_kinds.get(value)
        if found is None:
            type = self.problem.types[value]
            found = self.shapes.kind("flat", type.dtype, type.elems == 1, type.device)
            self.flat_type_kinds[value] = found
        return found

    def _flat_op_kind(self, value: int) -> int:
        found = self.flat_op_kinds.get(value)
        if found is None:
            op = self.problem.ops[value]
            facts = self.shapes.kind("flat op", op.name, repr(op.attrs), len(self._args(value)))
            found = self.shapes.kind("flat value", facts, self._flat_type_kind(value))
            self.flat_op_kinds[value] = found
        return found

    def _op_kind(self, value: int) -> int:
        """What computing `value` is. Constants by their text: 0.0 is not -0.0, 1 is not True."""
        found = self.op_kinds.get(value)
        if found is None:
            op, type = self.problem.ops[value], self.problem.types[value]
            arity = len(self._args(value))
            found = self.shapes.kind(op.name, repr(op.attrs), op.types, type, arity)
            self.op_kinds[value] = found
        return found

    def _type_kind(self, value: int) -> int:
        """What loading `value` is."""
        found = self.type_kinds.get(value)
        if found is None:
            op = self.problem.ops.get(value)
            is_reduction = op is not None and op.name in REDUCE
            found = self.shapes.kind(self.problem.types[value], is_reduction)
            self.type_kinds[value] = found
        return found
