"""Where every value of a plan lives: buffers, views, the arena, and who takes a dead one's place.

    mm -> %5 (dead after k1);  k1: %5 -> %6      b3 arena 0 f32[8, 64]    k1 (b3 inout)

Outputs are fresh tensors with the strides of their types, results of library calls own their
memory, everything else is placed in the arena: largest first, at the lowest 64-byte aligned offset
that no value living at the same time holds. Where sizes are expressions the arena is a row of shelves,
each as long as the longest of the values that are on it in turns. A kernel that reads a dying value only at the places
where it stores a new one of the same length stores in place: also in the result of a product or convolution, which
nobody else can see. On a GPU threads are in no order, so there it is a large value of a kernel without walks
that loads each element once: whoever stores it has loaded it.

Source: the greedy-by-size planner of TFLite (Pisarchyk and Lee, 2020).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from preheat.base.dataclass import dataclass, field
from preheat.base.identity import identity
from preheat.ir.graph import Graph, device_of
from preheat.ir.hinted import estimate, holds, longest
from preheat.ir.loop import Kernel, LoopOp, Param, Stage
from preheat.ir.plan import Buffer
from preheat.ir.scalar import Dim, Scalar
from preheat.ir.types import TensorType
from preheat.schedule.fuse import Unit
from preheat.schedule.groups import Group
from preheat.schedule.library import FRESH
from preheat.schedule.problem import CallUnit, Problem
from preheat.schedule.views import View

ALIGN_BYTES = 64
LARGE_BYTES = 16 << 10  # of a buffer that a lean plan makes and frees instead of placing it
# Of a value of a GPU whose place another takes: a program has more elements of it than threads.
GPU_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """A kernel and the memory of each parameter."""

    kernel: Kernel
    memories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """buffers; the buffer of each memory (a value id) and view; the kernel of each group by its
    place in the order, with the memories of its parameters."""

    buffers: tuple[Buffer, ...]
    number: Mapping[int, int]
    views: Mapping[View, int]
    kernels: Mapping[int, Bound]
    arena_bytes: Dim


def plan_memory(
    graph: Graph, problem: Problem, units: Sequence[Unit], is_lean: bool = False
) -> Layout:
    """Buffers for everything that `units`, in this order, read and write. `is_lean`: what is large is
    no part of the arena, which outlives the call."""
    return _Planner(graph, problem, units, is_lean).plan()


def span_bytes(type: TensorType) -> Dim:
    """Bytes from the first to past the last element of a tensor of `type`."""
    if type.elems == 0:
        return 0
    reach = sum((n - 1) * abs(s) for n, s in zip(type.sizes, type.strides))
    return (reach + 1) * type.itemsize


@dataclass
class _Life:
    """Units from the one that makes a memory to the last that uses it."""

    first: int
    last: int
    bytes: Dim
    members: list[int] = field(default_factory=list)


class _Planner:
    def __init__(self, graph: Graph, problem: Problem, units: Sequence[Unit], is_lean: bool):
        self.graph, self.problem, self.units, self.is_lean = graph, problem, units, is_lean
        self.is_gpu = device_of(graph) != "cpu"
        self.last_use: dict[int, int] = {}
        for place, unit in enumerate(units):
            for memory in (*read(unit, problem), *made(unit, problem)):
                self.last_use[memory] = place
        self.outputs = {v: k for k, v in enumerate(problem.outputs) if v >= 0}
        self.inputs = {i.id: k for k, i in enumerate(graph.inputs)}
        library = [u for u in units if isinstance(u, CallUnit) and u.overload]
        self.owned = {r for u in library for r in u.makes}
        self.shown = {problem.memory.get(v, v) for u in library for v in u.reads}
        others = {v for u in library if u.overload not in FRESH for v in (*u.reads, *u.makes)}
        self.fresh = {v for v in self.owned if v not in others and v not in self.outputs}
        self.shared: dict[int, int] = {}  # memory -> the dead memory whose place it takes
        self.kernels: dict[int, Bound] = {}
        # by the identity of a kernel, which is held here so that no other takes its place
        self.joined: dict[tuple[int, int, int], tuple[Kernel, Kernel | None]] = {}

    def plan(self) -> Layout:
        for place, unit in enumerate(self.units):
            if isinstance(unit, Group):
                self.kernels[place] = self._reuse(place, unit)
        offsets, arena_bytes = self._place()
        buffers = [Buffer("input", k, i.type) for k, i in enumerate(self.graph.inputs)]
        number = {i.id: k for k, i in enumerate(self.graph.inputs)}
        for memory in self._memories():
            kind, index = self._kind(memory, offsets)
            root = self._root(memory)
            if root != memory:
                number[memory] = number[root]
                continue
            number[memory] = len(buffers)
            buffers.append(Buffer(kind, index, self.problem.types[memory]))
        for piece, (whole, offset) in self.problem.within.items():
            number[piece] = len(buffers)
            buffers.append(Buffer("view", offset, self.problem.types[piece], number[whole]))
        views: dict[View, int] = {}
        for unit in self.units:
            if isinstance(unit, CallUnit):
                for view in (*(view for _, view in unit.operands), *(v for piece in unit.products for v in piece)):
                    if view not in views:
                        views[view] = self._view(view, number, buffers)
        return Layout(tuple(buffers), number, views, self.kernels, arena_bytes)

    def _memories(self) -> list[int]:
        """Every memory that is not an input's, in order of making; zero-size ones last."""
        found = [m for unit in self.units for m in made(unit, self.problem)]
        found += [self.problem.memory.get(view.base, view.base) for _, view in self._operands()]
        found += list(self.outputs)
        return [m for m in dict.fromkeys(found) if m not in self.inputs]

    def _operands(self) -> Iterable[tuple[int, View]]:
        return (
            operand
            for unit in self.units
            if isinstance(unit, CallUnit)
            for operand in unit.operands
        )

    def _kind(self, memory: int, offsets: Mapping[int, Dim]) -> tuple[str, Dim]:
        if memory in self.outputs:
            return "output", self.outputs[memory]
        if memory in self.owned or self._comes_and_goes(memory):
            return "owned", 0
        return "arena", offsets.get(self._root(memory), 0)

    def _view(self, view: View, number: Mapping[int, int], buffers: list[Buffer]) -> int:
        base = number[self.problem.memory.get(view.base, view.base)]
        whole = buffers[base].type
        if (view.offset, view.sizes, view.strides) == (0, whole.sizes, whole.strides):
            return base
        buffers.append(
            Buffer(
                "view", view.offset, replace(whole, sizes=view.sizes, strides=view.strides), base
            )
        )
        return len(buffers) - 1

    # ------------------------------------------------------------------ the arena
    def _root(self, memory: int) -> int:
        while memory in self.shared:
            memory = self.shared[memory]
        return memory

    def _in_arena(self, memory: int) -> bool:
        elsewhere = (self.inputs, self.outputs, self.owned, self.problem.written)
        return not any(memory in kind for kind in elsewhere)

    def _comes_and_goes(self, memory: int) -> bool:
        """Whether it has memory of its own: in a lean plan what is large, and what a library call of a
        CPU sees as a tensor; in a plan for a GPU what is in the host's memory."""
        type = self.problem.types[memory]
        if self.is_gpu and type.device == "cpu":
            return True
        is_shown = memory in self.shown and type.device == "cpu"
        return self.is_lean and (is_shown or span_bytes(type) >= LARGE_BYTES)

    def _place(self) -> tuple[dict[int, Dim], Dim]:
        lives: dict[int, _Life] = {}
        for place, unit in enumerate(self.units):
            for memory in made(unit, self.problem):
                root, last = self._root(memory), self.last_use[memory]
                if self._in_arena(root) and not self._comes_and_goes(root):
                    size = span_bytes(self.problem.types[memory])
                    life = lives.setdefault(root, _Life(place, last, size))
                    life.last = max(life.last, last)
        order = sorted(lives, key=lambda r: (-estimate(lives[r].bytes), lives[r].first))
        if any(isinstance(life.bytes, Scalar) for life in lives.values()):
            return _shelved([(root, lives[root]) for root in order])
        offsets: dict[int, int] = {}
        for root in order:
            life = lives[root]
            busy = sorted(
                (offsets[o], offsets[o] + lives[o].bytes)
                for o in offsets
                if lives[o].first <= life.last and life.first <= lives[o].last
            )
            offsets[root] = _gap(busy, life.bytes)
        return offsets, _aligned(max((offsets[r] + lives[r].bytes for r in offsets), default=0))

    # ------------------------------------------------------------------ in place
    def _reuse(self, place: int, group: Group) -> Bound:
        """The group's kernel, storing into dying values where it may."""
        bound = Bound(group.shape.kernel, group.memories)
        for memory in dict.fromkeys(made(group, self.problem)):
            for dead in sorted(group.reads):
                if self._may_replace(memory, dead, place) and dead in bound.memories:
                    joined = self._join(bound, dead, memory)
                    if joined is not None:
                        self.shared[memory] = dead
                        bound = joined
                        break
        return bound

    def _join(self, bound: Bound, dead: int, memory: int) -> Bound | None:
        """`bound` storing `memory` in the place of `dead`, or None when it may not. Groups of one
        shape share the result, as they share the kernel."""
        old, new = bound.memories.index(dead), bound.memories.index(memory)
        key = (identity(bound.kernel), old, new)
        if key not in self.joined:
            is_ordered = self.problem.types[memory].device == "cpu" or is_pointwise(bound.kernel, old, new)
            self.joined[key] = (
                bound.kernel, join_parameters(bound.kernel, old, new) if is_ordered else None)
        _, kernel = self.joined[key]
        if kernel is None:
            return None
        memories = tuple(memory if m == dead else m for m in bound.memories if m != memory)
        return Bound(kernel, memories)

    def _may_replace(self, memory: int, dead: int, place: int) -> bool:
        """`dead` is a memory of its own, not used after unit `place`, not yet replaced, and as long as `memory`."""
        if not self._in_arena(memory) or dead in self.shared.values() or self.last_use.get(dead) != place:
            return False
        if memory in self.problem.pieces:
            return False
        if memory in self.problem.parts:  # its other parts may be stored while `dead` is in use
            return False
        if dead not in self.fresh and not (
                self._in_arena(dead) and self._comes_and_goes(memory) == self._comes_and_goes(dead)):
            return False  # of someone else, or one of them is the arena's
        type, old = self.problem.types[memory], self.problem.types[dead]
        if type.device != "cpu" and estimate(span_bytes(type)) < GPU_LARGE_BYTES:
            return False
        return type == old or _has_room(type, old)


def _has_room(type: TensorType, old: TensorType) -> bool:
    """Whether memory of type `old` is that of one of type `type`, in another shape."""
    is_alike = (type.dtype, type.device) == (old.dtype, old.device)
    return is_alike and holds("eq", span_bytes(type), span_bytes(old))


def is_pointwise(kernel: Kernel, old: int, new: int) -> bool:
    """Each element of parameters `old` and `new` is touched once, by who has the same position of all axes."""
    touched = [
        op for stage in kernel.stages for op in stage.body
        if op.op in ("load", "store") and op.param in (old, new)]
    if len(touched) != 2 or any(stage.axes for stage in kernel.stages):
        return False
    axes = {axis.name for axis in kernel.axes if axis.extent != 1}
    return all(axes.issubset(name for name, stride in op.index.terms if stride != 0) for op in touched)


def join_parameters(kernel: Kernel, old: int, new: int) -> Kernel | None:
    """`kernel` with parameter `new` made one with parameter `old`, read and then written.

    None when the kernel reads `old` elsewhere than where it stores `new`, or after it stored.
    """
    if kernel.params[old].role != "in" or kernel.params[new].role != "out":
        return None
    loads = [
        (k, op)
        for k, s in enumerate(kernel.stages)
        for op in s.body
        if op.op == "load" and op.param == old
    ]
    stores = [
        (k, op)
        for k, s in enumerate(kernel.stages)
        for op in s.body
        if op.op == "store" and op.param == new
    ]
    if any(op.how for _, op in stores):
        return None
    if len({op.index for _, op in (*loads, *stores)}) != 1 or any(
        op.mask is not None for _, op in loads
    ):
        return None
    if max(k for k, _ in loads) > min(k for k, _ in stores):
        return None
    params = tuple(
        replace(p, role="inout") if k == old else p for k, p in enumerate(kernel.params) if k != new
    )
    kept = [k for k in range(len(kernel.params)) if k != new]
    number = {k: kept.index(old if k == new else k) for k in range(len(kernel.params))}
    return _renumbered(kernel, params, number)


def _renumbered(kernel: Kernel, params: tuple[Param, ...], number: Mapping[int, int]) -> Kernel:
    def op(given: LoopOp) -> LoopOp:
        return replace(given, param=number[given.param]) if given.param >= 0 else given

    stages = tuple(Stage(s.axes, tuple(op(o) for o in s.body)) for s in kernel.stages)
    return replace(kernel, params=params, stages=stages)


def _shelved(lives: Sequence[tuple[int, _Life]]) -> tuple[dict[int, Dim], Dim]:
    """Offsets of lives of any lengths, and the bytes of the whole."""
    shelves: list[list[tuple[int, _Life]]] = []
    for root, life in lives:
        free = (
            shelf for shelf in shelves
            if all(o.last < life.first or life.last < o.first for _, o in shelf))
        shelf = next(free, None)
        if shelf is None:
            shelves.append(shelf := [])
        shelf.append((root, life))
    offsets: dict[int, Dim] = {}
    offset: Dim = 0
    for shelf in shelves:
        offsets.update(dict.fromkeys((root for root, _ in shelf), offset))
        offset = offset + _aligned(longest(life.bytes for _, life in shelf))
    return offsets, offset


def _gap(busy: list[tuple[int, int]], size: int) -> int:
    """The lowest aligned offset with `size` free bytes."""
    offset = 0
    for start, stop in busy:
        if offset + size <= start:
            break
        offset = max(offset, _aligned(stop))
    return offset


def _aligned(bytes_: Dim) -> Dim:
    return (bytes_ + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES


def read(unit: Unit, problem: Problem) -> list[int]:
    """The memories that `unit` reads."""
    return [problem.memory.get(v, v) for v in sorted(unit.reads)]


def made(unit: Unit, problem: Problem) -> list[int]:
    """The memories that `unit` fills, inputs that it writes excepted."""
    if isinstance(unit, Group):
        stored = [problem.memory.get(r, r) for r in unit.stored if r not in problem.written]
        return [problem.within[m][0] if m in problem.within else m for m in stored]
    return list(unit.makes)
