"""Fusion: which values share a kernel. By bytes moved, not by pattern.

    h = x + y; m = mean(h); v = mean((h - m)**2); out = (h - m) * rsqrt(v + eps) * w + b
      roots h, m, v, rsqrt, out      each a kernel: 13 passes over memory
      groups {h, m, v, rsqrt, out}   one kernel: x, y read; h (if used elsewhere) and out stored

A *root* is a value that is computed by a kernel of its own to begin with: what must have memory,
every reduction, and what several roots use unless computing it again moves no more bytes. All
else is inlined. Groups of roots then merge, producers with consumers and readers of the same
memory, while the merged kernel can be lowered and costs less than the two. A root that nobody
outside its group reads is never stored.

Guarantees: the groups are acyclic with the calls; no group that checks also writes an input, and
all checks, and all calls that may raise, come before all writes; an input is read before it is
written.
Source: TorchInductor's scheduler (score by shared bytes), tinygrad (fusion as inlining).
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from preheat.base.errors import InternalError, Unsupported
from preheat.ir.graph import Graph
from preheat.ir.hinted import estimate
from preheat.ir.ops import REDUCE
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar, product
from preheat.ir.types import TensorType
from preheat.rules.raising import can_raise
from preheat.schedule import cost
from preheat.schedule.cost import GPU_FEW_PROGRAMS
from preheat.schedule.forms import FEW_ROWS
from preheat.schedule.groups import Group, Groups, Shapes
from preheat.schedule.library import is_blas
from preheat.schedule.links import Links
from preheat.schedule.problem import CallUnit, Problem, state
from preheat.schedule.roots import computed, memory_bytes, roots_of
from preheat.schedule.sums import MOST_ROWS, Sums
from preheat.schedule.views import View, store_through

MOST_ROOTS = 48
MOST_TRIALS = 200  # each gives memory to more values or delays one more write
SHARING_BYTES = 4096  # memory that is worth one kernel for those who read it
SHARED_BYTES = 1 << 20  # work that is worth spreading over threads
TINY_BYTES = 1 << 20  # of a kernel of a GPU that is over before the next is launched

Unit = Group | CallUnit


def fuse(
    graph: Graph, target: Target, sums: Sums, shared: Collection[tuple[int, int]] = (),
) -> tuple[Groups, list[Unit], list[frozenset[int]]]:
    """The groups of the problem that `graph` is, which has the sums of `sums`; its kernels and calls in
    program order, and for each of them the places of those that it waits for. shared: how many and how long rows are
    that several programs will share."""
    factors = sums.operands
    late: frozenset[int] = frozenset()
    problem, extra = state(graph, late, factors), frozenset()
    shapes = Shapes(target)
    for _ in range(MOST_TRIALS):
        fusion = _Fusion(problem, roots_of(problem, extra), shapes, sums, shared)
        missing, knotted = fusion.conflicts()
        if missing:
            extra |= missing
            continue
        if knotted is None:
            fusion.merge()
            fusion.merge_tiny()
            fusion.prefill()
            knotted = fusion.knot()
        if knotted is None:
            return fusion.groups, *fusion.order()
        written = problem.written[knotted]
        if written in graph.in_place and written not in late:
            late |= {written}
            problem, extra = state(graph, late, factors), frozenset()
        else:
            problem = problem.buffered(knotted)
    raise InternalError("the writes of the graph find no order")


# ---------------------------------------------------------------------------- groups
class _Fusion:
    """Groups under merging. `home` says where a root is computed."""

    def __init__(
        self, problem: Problem, roots: tuple[int, ...], shapes: Shapes, sums: Sums,
        shared: Collection[tuple[int, int]],
    ):
        self.shared = shared
        self.problem, self.products, self.few = problem, sums.products, sums.few
        self.is_gpu = shapes.target.is_gpu
        live = [r for r in roots if problem.types[r].elems != 0]
        self.roots = frozenset(live)
        self.groups = Groups(problem, self.roots, shapes)
        self.home: dict[int, int] = {}
        self.units: dict[int, Unit] = {}
        self.position: dict[int, float] = {}  # of each unit in the program
        self.readers: dict[int, set[int]] = {}
        self.checks: set[int] = set()
        self.fillers: dict[int, int] = {}  # product -> the group that fills what it adds to
        self.failed: set[int] = set()
        self.apart: set[frozenset[int]] = set()  # units that can never be one
        for root in live:
            group = self._group((root,), is_alone=True)
            if group is None and self.groups.is_on_host(root):
                raise Unsupported("no_kernel", f"%{root} is computed in the host's memory")
            if group is None:
                self.failed.add(root)
            else:
                self._put(group)
        # Library calls may draw random numbers or have state of their own: they keep their order.
        self.previous: dict[int, int] = {}
        last = None
        for call in problem.calls:
            number = self._put(call)
            if call.op.name == "library":
                if last is not None:
                    self.previous[number] = last
                last = number

    def _put(self, unit: Unit) -> int:
        number = len(self.position)
        self.units[number], self.position[number] = unit, self._position(unit)
        for value in unit.roots if isinstance(unit, Group) else unit.makes:
            self.home[value] = number
        for value in unit.reads:
            self.readers.setdefault(value, set()).add(number)
        if unit.has_check if isinstance(unit, Group) else can_raise(unit.op):
            self.checks.add(number)
        return number

    def _remove(self, number: int) -> None:
        for value in self.units.pop(number).reads:
            self.readers[value].discard(number)
        self.checks.discard(number)

    # ------------------------------------------------------------------ lowering
    def _group(self, roots: tuple[int, ...], is_alone: bool = False) -> Group | None:
        """The group that computes `roots`, or None when they fit no common loops."""
        inside = frozenset(roots)
        stored = roots if is_alone else tuple(r for r in roots if self._is_stored(r, inside))
        stores = [self.groups.store(r, inside) for r in stored]
        return self.groups.group(roots, stored, stores)

    def _is_stored(self, root: int, inside: frozenset[int]) -> bool:
        if root in self.problem.required:
            return True
        readers = (self.units[k] for k in self.readers.get(root, ()))
        return any(
            isinstance(unit, CallUnit) or not inside.issuperset(unit.roots) for unit in readers
        )

    # ------------------------------------------------------------------ conflicts
    def conflicts(self) -> tuple[frozenset[int], int | None]:
        """Values that must get memory of their own before anything can be merged; else a written
        value that cannot be made in place."""
        missing: set[int] = set()
        knotted: list[int] = []
        for root in (*self.failed, *(r for r in self.problem.written if self._checks(r))):
            found = self._operands_to_store(root)
            missing.update(found)
            if not found and root not in self.problem.written:
                op = self.problem.ops[root]
                if any(isinstance(value, Scalar) for _, value in op.attrs):  # a step that changes
                    raise Unsupported("symbolic", f"{op.name} in steps of a number that changes")
                raise InternalError(f"value {root} = {op.name} fits no loop nest")
            if not found:
                knotted.append(root)
        return frozenset(missing), min(knotted, default=None)

    def _checks(self, root: int) -> bool:
        unit = self.units.get(self.home.get(root, -1))
        return isinstance(unit, Group) and unit.has_check

    def _operands_to_store(self, root: int) -> list[int]:
        """What a root that could not be lowered should load: the part that it stores to a written
        input, or its computed operands."""
        problem = self.problem
        part = self.groups.store(root, (root,)).value
        if root in problem.written and part != root and self.groups.memory(part, ()) is None:
            return [part]
        return [
            a for a in problem.operands(root) if not problem.is_given(a) and a not in self.roots
        ]

    # ------------------------------------------------------------------ merging
    def merge(self) -> None:
        """Merges groups while that saves bytes."""
        self.links = Links({k: self._before(k) for k in self.units}, self.position.__getitem__)
        changed = True
        while changed:
            changed = False
            for number in sorted(self.units, key=self.position.__getitem__, reverse=True):
                while number in self.units and isinstance(self.units[number], Group):
                    merged = self._merge_one(number)
                    if merged is None:
                        break
                    number, changed = merged, True

    def _position(self, unit: Unit) -> float:
        """Where `unit` stands in the program; a call for its errors alone, after what it reads."""
        values = unit.roots if isinstance(unit, Group) else unit.makes or unit.reads
        return max((self.problem.order.get(v, 0) for v in values), default=0)

    def _merge_one(self, number: int) -> int | None:
        """Merges unit `number` with partners; the new number, or None when nothing pays."""
        for numbers in self._candidates(number):
            merged = self._join(numbers)
            if merged is not None:
                return merged
        return None

    def _join(self, numbers: frozenset[int]) -> int | None:
        """Makes of the units `numbers` one, if that pays."""
        group = self._merged(numbers)
        if group is None:
            return None
        for k in numbers:
            self._remove(k)
        merged = self._put(group)
        self.links.join(numbers, merged)
        return merged

    def _candidates(self, number: int) -> Iterator[frozenset[int]]:
        """Sets of groups to try: all that make what this one reads at once (a normalisation is one
        trial), each of them, nearest first, then those that read the same memory."""
        group = self.units[number]
        makers = {self.home[v] for v in group.reads if v in self.home and v in self.roots}
        if len(makers) > 1:
            yield from self._closure(frozenset((number, *makers)))
        for other in sorted(makers, key=self.position.__getitem__, reverse=True):
            yield frozenset((number, other))
        sharing = {
            k
            for value in group.reads
            if memory_bytes(self.problem.types[value]) >= SHARING_BYTES
            or (self.is_gpu and value in self.problem.factors)
            for k in self.readers[value]
            if isinstance(self.units[k], Group)
        }
        for other in sorted(sharing - makers - {number}, key=self.position.__getitem__):
            yield frozenset((number, other))

    def _closure(self, numbers: frozenset[int]) -> Iterator[frozenset[int]]:
        """`numbers` with the groups on paths between them; nothing when a call is on one."""
        inside = set(numbers)
        for k in self.links.above(numbers):
            if not self.links.before[k].isdisjoint(inside):
                inside.add(k)
        if all(isinstance(self.units[k], Group) for k in inside):
            yield frozenset(inside)

    def _merged(self, numbers: frozenset[int]) -> Group | None:
        """The group of all roots of `numbers`, if it is legal and costs less than they do apart."""
        if numbers in self.apart:
            return None
        parts = [self.units[k] for k in sorted(numbers)]
        roots = sorted(
            (r for part in parts for r in part.roots), key=self.problem.order.__getitem__
        )
        if not self._may_be_one(numbers, parts, roots):
            self.apart.add(numbers)
            return None
        read = set().union(*(part.reads for part in parts)).difference(roots)
        if len({self.problem.memory.get(v, v) for v in read}) > cost.MOST_PARAMS:  # hundreds that are stacked
            return None
        group = self._group(tuple(roots))
        is_fit = group is not None and len(group.memories) <= cost.MOST_PARAMS
        if not is_fit or self._cost(group) >= sum(map(self._cost, parts)) or self._starves(group, parts):
            self.apart.add(numbers)
            return None
        return group

    def merge_tiny(self) -> None:
        """One launch for units of a GPU that are over before the next is launched: of one extent, in program order,
        while none waits for another."""
        alike: dict[int, list[int]] = {}
        for number in sorted(self.units, key=self.position.__getitem__) if self.is_gpu else ():
            unit = self.units[number]
            is_tiny = isinstance(unit, Group) and unit.tiled.bytes <= TINY_BYTES and isinstance(unit.tiled.extent, int)
            if is_tiny and self.groups.flat(unit) is None:  # others are of any size, and launched at once (`batches`)
                alike.setdefault(unit.tiled.extent, []).append(number)
        for numbers in alike.values():
            batch: list[int] = []
            for number in numbers:
                if batch and not self._may_join(batch, number):
                    self._join_all(batch)
                    batch = []
                batch.append(number)
            self._join_all(batch)

    def _may_join(self, batch: list[int], number: int) -> bool:
        memories = {m for k in (*batch, number) for m in self.units[k].memories}
        return (
            len(memories) <= cost.MOST_PARAMS and self.links.before[number].isdisjoint(batch)
            and not self.links.is_between(frozenset((*batch, number))))

    def _join_all(self, batch: list[int]) -> None:
        """Makes one unit of all, or of each half."""
        if len(batch) > 1 and self._join(frozenset(batch)) is None and len(batch) > 2:
            self._join_all(batch[: len(batch) // 2])
            self._join_all(batch[len(batch) // 2 :])

    def _may_be_one(
        self, numbers: frozenset[int], parts: Iterable[Group], roots: Collection[int],
    ) -> bool:
        """False for what no other merge changes: what stands between two units stays there."""
        if len(roots) > MOST_ROOTS:
            return False
        is_writer = any(r in self.problem.written for r in roots)
        if is_writer and any(part.has_check for part in parts):
            return False
        if len({self.problem.ops[r].region for r in roots} - {0}) > 1:
            return False
        if self.is_gpu and len({part.shape.is_on_host for part in parts}) > 1:
            return False
        within = self.problem.within
        if within and any(r in within and within[r][0] in part.reads for r in roots for part in parts):
            return False  # who reads packed numbers waits for all of them
        reductions = [r for r in roots if self.problem.ops[r].name in REDUCE]
        if len(reductions) > 1 and not self.products.isdisjoint(reductions):
            return False
        if self.is_gpu and sum(self.few.get(r, 0) for r in reductions) > MOST_ROWS:
            return False
        if any(self._is_factor(v, numbers) for v in roots):
            return False
        return not self.links.is_between(numbers)

    def _cost(self, group: Group) -> float:
        """What counts of a product on matrix units, which take blocks, is bytes: no axis is its vector."""
        if self.products.isdisjoint(group.roots):
            return group.cost
        return group.tiled.bytes + cost.launch_bytes(self.groups.shapes.target)

    def _is_factor(self, value: int, numbers: frozenset[int]) -> bool:
        """A sum among the units `numbers` would compute `value` again for each of its rows."""
        return value in self.problem.factors and any(
            self.problem.ops[r].name in REDUCE
            for k in numbers & self.readers.get(value, set())
            for r in self.units[k].roots
        )

    def _starves(self, group: Group, parts: Iterable[Group]) -> bool:
        """The merged kernel would leave threads idle that one of its parts could use."""
        if self.is_gpu:
            return self._idles(group, parts)
        rows = estimate(group.tiled.extent)
        most = max(estimate(part.tiled.extent) for part in parts)
        return rows < FEW_ROWS and most > rows and group.tiled.bytes > SHARED_BYTES

    def _idles(self, group: Group, parts: Iterable[Group]) -> bool:
        """A GPU would do in few long rows what one of the parts does all over it."""
        if not group.tiled.form.walked or group.tiled.bytes <= SHARED_BYTES:
            return False
        rows, length = estimate(group.tiled.extent), product(axis.extent for axis in group.tiled.form.walked)
        return rows < GPU_FEW_PROGRAMS // 4 and (rows, length) not in self.shared and any(
            not part.tiled.form.walked or estimate(part.tiled.extent) >= 4 * rows for part in parts
        )

    # ------------------------------------------------------------------ bias
    def prefill(self) -> None:
        """Where a kernel only adds a broadcast value to a product: that value is stored first, and
        the product adds to it. Moves as many bytes, rounds as eager's `addmm` does."""
        for number in list(self.units):
            unit = self.units.get(number)
            if isinstance(unit, Group) and len(unit.roots) == 1 and self._is_plain(unit.roots[0]):
                self._prefill_one(number, unit.roots[0])

    def _is_plain(self, root: int) -> bool:
        return root not in self.problem.memory and root not in self.problem.parts

    def _prefill_one(self, number: int, root: int) -> None:
        store = self.groups.store(root, (root,))
        op = self.problem.ops.get(store.value)
        if op is None or op.name != "add" or self.groups.memory(store.value, (root,)) is not None:
            return
        for product, other in (op.args, op.args[::-1]):
            call = self._sole_product(product.id)
            smaller = self._work_bytes(other.id)
            if call is None or smaller * 2 > memory_bytes(self.problem.types[root]):
                continue
            unit = self.units[call]
            through = replace(store, value=product.id)
            through = store_through(
                through, self.problem.ops, self.problem.types, unit.makes.__contains__
            )
            out = View(root, through.offset, unit.op.type.sizes, through.strides)
            if (through.value,) != unit.makes or not is_blas(*self._product_types(unit, out)):
                continue
            filler = self.groups.group((root,), (root,), [replace(store, value=other.id)])
            if filler is not None and not unit.makes[0] in filler.reads:
                self._remove(number)
                self._remove(call)
                place = self._put(filler)
                self.fillers[self._put(replace(unit, makes=(root,), out=out, beta=1))] = place
                return

    def _sole_product(self, value: int) -> int | None:
        """The product unit whose result `value` is, moved or not, if nobody else reads it."""
        made = computed(self.problem, value)
        number = self.home.get(made, -1)
        unit = self.units.get(number)
        is_product = isinstance(unit, CallUnit) and not unit.overload and unit.beta == 0
        if not is_product or made in self.problem.required or len(self.readers.get(made, ())) != 1:
            return None
        is_whole = self.problem.types[made].elems == self.problem.types[value].elems
        return number if is_whole else None

    def _work_bytes(self, value: int) -> int:
        """The memory behind a moved value."""
        return memory_bytes(self.problem.types[computed(self.problem, value)])

    def _product_types(
        self, unit: CallUnit, out: View
    ) -> tuple[TensorType, TensorType, TensorType]:
        views = dict(unit.operands)
        shown = [views[a.id] for a in unit.op.args] + [out]
        return tuple(
            replace(self.problem.types[v.base], sizes=v.sizes, strides=v.strides) for v in shown
        )

    # ------------------------------------------------------------------ order
    def _before(self, number: int) -> set[int]:
        """The units that must come before unit `number`."""
        unit = self.units[number]
        before = {self.home[v] for v in unit.reads if v in self.home}
        for value in self.problem.pieces.keys() & unit.reads:
            before.update(self.home[piece] for piece in self.problem.pieces[value])
        before |= {order[number] for order in (self.fillers, self.previous) if number in order}
        if isinstance(unit, Group):
            for root in unit.roots:
                if root in self.problem.replaces:
                    before |= self._before_store(root)
        before.discard(number)
        return before

    def _before_store(self, root: int) -> set[int]:
        """The units that still need what a store replaces, or that may refuse a writing call."""
        replaced = self.problem.replaces[root]
        makers = {self.home[replaced]} if replaced in self.home else set()
        checks = self.checks if root in self.problem.written else set()
        return makers | self.readers.get(replaced, set()) | checks

    def knot(self) -> int | None:
        """A written value whose unit waits for itself; None when there is an order."""
        done = self._sequence()
        knotted = [
            r for r in self.problem.written if self.home.get(r, done[0] if done else -1) not in done
        ]
        if len(done) < len(self.units) and not knotted:
            raise InternalError("the kernels of a plan wait for each other")
        return min(knotted, default=None)

    def order(self) -> tuple[list[Unit], list[frozenset[int]]]:
        """The units so that each comes after what it waits for, else in program order, writes last; and
        the places of what each waits for."""
        order = self._sequence()
        place = {number: k for k, number in enumerate(order)}
        before = [frozenset(place[k] for k in self._before(number)) for number in order]
        return [self.units[k] for k in order], before

    def _sequence(self) -> list[int]:
        before = {k: self._before(k) for k in self.units}
        after: dict[int, list[int]] = {k: [] for k in before}
        for number, needs in before.items():
            for k in needs:
                after[k].append(number)
        waits = {k: len(needs) for k, needs in before.items()}
        place = self._wanted(before)
        ready = [(self._writes(k), place[k], k) for k, count in waits.items() if count == 0]
        heapq.heapify(ready)
        result: list[int] = []
        while ready:
            *_, number = heapq.heappop(ready)
            result.append(number)
            for k in after[number]:
                waits[k] -= 1
                if waits[k] == 0:
                    heapq.heappush(ready, (self._writes(k), place[k], k))
        return result

    def _wanted(self, before: Mapping[int, Collection[int]]) -> dict[int, float]:
        """Where each unit comes in the program: no later than those that wait for it. (What a kernel also gives at
        the end of a backward would keep all that is computed behind it waiting.)"""
        place = {k: self.position[k] for k in before}
        pending = sorted(before, key=place.__getitem__, reverse=True)  # the earliest first: few are lowered twice
        while pending:
            number = pending.pop()
            for k in before[number]:
                if place[k] > place[number]:
                    place[k] = place[number]
                    pending.append(k)
        return place

    def _writes(self, number: int) -> bool:
        unit = self.units[number]
        return isinstance(unit, Group) and any(r in self.problem.written for r in unit.roots)
