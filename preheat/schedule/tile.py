"""From a nest to a kernel: which loops are stages, what is computed where, what is kept.

    i0:8 i1:128 (walked)           kernel over i0:8 parallel
    n1 = reduce sum n0        ->     stage j:128   v0 = load ..; r0 = sum v0
    n3 = div n0, n1                  stage j:128   v1 = load ..; v2 = div v1, r0; store

`forms` says which axes are rows, which are walked, and which is the vector. A node that depends on
`k` layers of reductions can be computed from walk `k` on; it is computed there and, where a later
walk needs it, kept or computed again, whichever is cheaper. What depends on no walked axis is
computed once a row, in a stage without axes.

Guarantees: stores come last in their stage; memory that is read and written is read at the same
position, before it is written. Source: research/cpu.md, K2; Halide's compute_at.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir import loop
from preheat.ir.hinted import estimate
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType
from preheat.schedule import cost
from preheat.schedule.affine import Affine
from preheat.schedule.forms import Form, form_of
from preheat.schedule.nests import FrameAxis, Nest, Node, NoFit


@dataclass(frozen=True, slots=True)
class Tiled:
    """A nest with its loops chosen and its stages filled; `kernel_of` writes it as a kernel.

    memories   of the parameters, in order; `roles` are as in `Param`
    extent     of the parallel range
    bytes      moved by one run
    waste      `bytes` weighed by how badly the vector axis suits the accesses, and what starting
               the kernel costs: for comparisons
    numbers    parameters that the host passes by value (0-d, in its memory, for a GPU)
    """

    form: Form
    stages: tuple["Walk", ...]
    memories: tuple[int, ...]
    roles: tuple[str, ...]
    extent: Dim
    bytes: int
    waste: float
    numbers: frozenset[int] = frozenset()


def tile(nest: Nest, types: Mapping[int, TensorType], target: Target) -> Tiled:
    """The form of `nest` and its stages. Raises NoFit when it would read memory after having
    overwritten it."""
    nest, form = form_of(nest, target)
    _check_folds(nest, form)
    stages = _Stages(nest, form, target).build()
    roles = _parameters(stages)
    moved, waste = traffic(nest, form, stages, types, target)
    extent = product(a.extent for a in form.rows)
    numbers = frozenset(m for m in roles if target.is_gpu and types[m].device == "cpu")
    if any(roles[m] != "in" or types[m].rank for m in numbers):
        raise NoFit("a kernel of a GPU that works in the host's memory")
    start = cost.launch_bytes(target)
    return Tiled(
        form, tuple(stages), tuple(roles), tuple(roles.values()), extent, moved, waste + start,
        numbers)


def _check_folds(nest: Nest, form: Form) -> None:
    """Raises NoFit unless a program can hold the sums of whole rows, and there are enough programs."""
    for number in nest.stores:
        node = nest.nodes[number]
        if node.how == "sum":
            moves = [a.name in node.index.keys() for a in form.rows]
            programs = estimate(product(a.extent for a, m in zip(form.rows, moves) if m))
            if form.lane is not None or form.together or moves != sorted(moves, reverse=True):
                raise NoFit("a sum over rows that are not walked one after another")
            if programs < cost.LEAST_FOLDING or estimate(
                product(a.extent for a in form.walked)
            ) > cost.FOLDED_ELEMS:
                raise NoFit("a sum over rows that one program does not hold")


def kernel_of(tiled: Tiled) -> loop.Kernel:
    """The kernel, without a name: outer axes i0, i1, ..; walked axes j or j0, j1, ... so that equal
    loops are equal kernels."""
    form = tiled.form
    outer = (*form.rows, *form.together)
    names = {a.name: f"i{k}" for k, a in enumerate(outer)}
    many = len(form.walked) > 1
    names |= {a.name: f"j{k}" if many else "j" for k, a in enumerate(form.walked)}
    number = {memory: k for k, memory in enumerate(tiled.memories)}
    dtypes = {op.memory: op.dtype for stage in tiled.stages for op in stage.ops if op.memory >= 0}

    def axes(given: tuple[FrameAxis, ...]) -> tuple[loop.Axis, ...]:
        return tuple(loop.Axis(names[a.name], a.extent) for a in given)

    params = tuple(
        loop.Param(dtypes[m], role, loop.NUMBER if m in tiled.numbers else "")
        for m, role in zip(tiled.memories, tiled.roles)
    )
    stages = tuple(
        loop.Stage(axes(s.axes), tuple(_loop_op(op, number, names) for op in s.ops))
        for s in tiled.stages
    )
    lane = None if form.lane is None else names[form.lane]
    return loop.Kernel("", params, axes(outer), stages, len(form.rows), lane)


# ---------------------------------------------------------------------------- stages
@dataclass(frozen=True, slots=True)
class _Op:
    """A node where it is computed: its SSA number there, and those of its operands."""

    node: Node
    id: int
    names: Mapping[int, int]
    is_kept: bool = False

    @property
    def memory(self) -> int:
        return self.node.memory

    @property
    def dtype(self) -> str:
        return self.node.dtype


@dataclass(frozen=True, slots=True)
class Walk:
    """A stage under construction: walked axes (none: once a row) and ops in order."""

    axes: tuple[FrameAxis, ...]
    ops: list[_Op]
    level: int


class _Stages:
    """Places every node in a stage; `level` is the number of reduction layers below a node."""

    def __init__(self, nest: Nest, form: Form, target: Target):
        self.nest, self.form = nest, form
        # A program of a GPU has its row in registers, or is better off to load it again.
        self.has_scratch = form.lane is None and not target.is_gpu
        self.walked = {a.name for a in form.walked}
        self.level: list[int] = []
        self.is_walked: list[bool] = []
        for node in nest.nodes:
            self._classify(node)
        self.names: dict[
            int, int
        ] = {}  # what later stages may use: scalars, reductions, kept values
        self.first: dict[int, tuple[list[_Op], int]] = {}  # where a walked node was computed first
        self.kept_bytes = 0
        self.next_id = 0

    def _classify(self, node: Node) -> None:
        operands = node.operands()
        level = max((self.level[k] for k in operands), default=0)
        keys = node.index.keys() if node.index is not None else ()
        self.level.append(level + (node.op == "reduce"))
        by_axis = node.axis in self.walked or any(key in self.walked for key in keys)
        self.is_walked.append(
            node.op != "reduce" and (by_axis or any(self.is_walked[k] for k in operands))
        )

    def build(self) -> list[Walk]:
        """The stages in order: for each level what is done once a row, then the walk."""
        nodes, needed = self.nest.nodes, self._needed()
        effects = [*self.nest.checks, *self.nest.stores]
        reductions = [k for k in needed if nodes[k].op == "reduce"]
        stages: list[Walk] = []
        for level in range(max((self.level[k] for k in needed), default=0) + 1):
            row = Walk((), [], level)
            for k in needed:
                is_plain = nodes[k].op not in ("reduce", "const") and not self.is_walked[k]
                if is_plain and self.level[k] == level and not self._is_effect(k):
                    self._emit(k, row, self.names)
            walk = Walk(self.form.walked, [], level)
            local = {k: name for k, name in self.names.items() if nodes[k].op != "const"}
            for k in reductions:
                if self.level[k] == level + 1:
                    self._emit(k, walk, local)
                    self.names[k] = local[k]
            for k in effects:
                if self.level[k] == level:
                    self._emit(
                        k,
                        walk if self.is_walked[k] else row,
                        local if self.is_walked[k] else self.names,
                    )
            stages += [stage for stage in (row, walk) if stage.ops]
            for k in [k for k in self.names if nodes[k].op == "const"]:
                del self.names[k]  # each stage has its own constants
        for stage in stages:
            stage.ops.sort(key=lambda op: op.node.op == "store")  # stable: stores last
        return stages

    def _is_effect(self, number: int) -> bool:
        return self.nest.nodes[number].op in ("store", "check")

    def _needed(self) -> list[int]:
        """The nodes that an effect depends on, in order."""
        needed: set[int] = set()
        pending = [*self.nest.checks, *self.nest.stores]
        while pending:
            number = pending.pop()
            if number not in needed:
                needed.add(number)
                pending += self.nest.nodes[number].operands()
        return sorted(needed)

    def _emit(self, number: int, stage: Walk, local: dict[int, int]) -> int:
        """The SSA number of node `number` in `stage`, computed there unless it is known."""
        for k in self._missing(number, local, stage):
            node = self.nest.nodes[k]
            names = {operand: local[operand] for operand in node.operands()}
            has_result = node.op not in ("store", "check")
            local[k] = self._fresh() if has_result else -1
            if has_result and stage.axes and node.op != "reduce":
                self.first.setdefault(k, (stage.ops, len(stage.ops)))
            stage.ops.append(_Op(node, local[k], names))
        return local[number]

    def _missing(self, number: int, local: dict[int, int], stage: Walk) -> list[int]:
        """The nodes to compute before and with `number`, in order; keeps what is cheaper kept."""
        missing: set[int] = set()
        pending = [number]
        while pending:
            k = pending.pop()
            if k in local or k in missing:
                continue
            if stage.axes and self._keep(k, local):
                continue
            missing.add(k)
            pending += self.nest.nodes[k].operands()
        return sorted(missing)

    def _keep(self, number: int, local: dict[int, int]) -> bool:
        """Marks the earlier computation of a node as kept, if there is one and it pays."""
        if number not in self.first or not self.has_scratch:
            return False
        node = self.nest.nodes[number]
        size = (
            product(a.extent for a in self.form.walked)
            * TensorType(node.dtype, (), ()).itemsize
        )
        is_small = self.kept_bytes + size <= cost.KEEP_BYTES
        if node.dtype == "bool" or not is_small or self._again(number, local) <= cost.KEEP_CYCLES:
            return False
        ops, place = self.first[number]
        ops[place] = replace(ops[place], is_kept=True)
        self.kept_bytes += size
        self.names[number] = local[number] = ops[place].id
        return True

    def _again(self, number: int, local: Mapping[int, int]) -> float:
        """Cycles to compute a node once more from what `local` has."""
        total, pending, seen = 0.0, [number], set()
        while pending:
            k = pending.pop()
            if k in local or k in seen:
                continue
            seen.add(k)
            node = self.nest.nodes[k]
            if node.op == "load":
                total += cost.load_cycles(dict(node.index.terms).get(self.form.vector, 0))
            else:
                total += cost.op_cycles(node.op)
            pending += node.operands()
        return total

    def _fresh(self) -> int:
        self.next_id += 1
        return self.next_id - 1


# ---------------------------------------------------------------------------- parameters
def _parameters(stages: list[Walk]) -> dict[int, str]:
    """The role of each memory, in order of appearance, loads first."""
    loads: dict[int, set[Affine]] = {}
    stores: dict[int, set[Affine]] = {}
    is_stored: set[int] = set()
    for stage in stages:
        for op in stage.ops:
            if op.node.op == "load":
                loads.setdefault(op.memory, set()).add(op.node.index)
                if op.memory in is_stored:
                    raise NoFit("memory is read after it was overwritten")
            elif op.node.op == "store":
                stores.setdefault(op.memory, set()).add(op.node.index)
                is_stored.add(op.memory)
    roles = {m: "in" for m in loads}
    for memory, places in stores.items():
        if memory in loads and loads[memory] != places:
            raise NoFit("memory is read at other places than it is written")
        roles[memory] = "inout" if memory in loads else "out"
    return roles


def traffic(
    nest: Nest, form: Form, stages: list[Walk], types: Mapping[int, TensorType], target: Target
) -> tuple[int, float]:
    """Bytes to and from memory in one run, and the same weighed by the cost of the accesses.

    Rows that fit the cache are loaded once, however many stages walk them.
    """
    extents = {a.name: a.extent for a in (*form.rows, *form.together, *form.walked)}
    row_elems = estimate(product(a.extent for a in form.walked))
    is_near = row_elems * (4 if form.lane is None else 64) <= cost.CACHE_BYTES
    if target.is_gpu:
        is_near = row_elems <= cost.GPU_ROW_ELEMS
    axes_of: list[frozenset[str]] = []
    for node in nest.nodes:
        found = {node.axis} - {""}
        for key in node.index.keys() if node.index is not None else ():
            found |= {key} if isinstance(key, str) else axes_of[key]
        for k in node.args:
            found |= axes_of[k]
        axes_of.append(
            frozenset(found)
            if node.op != "reduce"
            else frozenset(found) - {a.name for a in form.walked}
        )
    seen: dict[tuple, int] = {}
    for stage in stages:
        for op in stage.ops:
            if op.memory >= 0:
                where = 0 if is_near else stage.level
                names = set()
                for key in op.node.index.keys():
                    names |= {key} if isinstance(key, str) else axes_of[key]
                count = (
                    estimate(product(extents[n] for n in names))
                    * TensorType(op.dtype, (), ()).itemsize
                )
                seen[op.memory, op.node.op == "store", op.node.index, where] = count
    total: dict[tuple, int] = {}
    waste = 0.0
    for (memory, is_store, index, where), count in seen.items():
        kind = types[memory] if memory in types else None
        most = estimate(kind.elems) * kind.itemsize if kind is not None else count
        key = (memory, is_store, where)
        total[key] = min(total.get(key, 0) + count, max(most, 1))
        waste += count * max(cost.access_penalty(dict(index.terms).get(form.vector, 0)), 1.0)
    lone = 0.0 if target.is_gpu else _lone_work(form, stages)
    return sum(total.values()), waste + lone


def _lone_work(form: Form, stages: list[Walk]) -> float:
    """What work on one value a row costs, in bytes, where a kernel of its own would do it in
    vectors: around the only walk of a row."""
    if form.lane is not None or sum(bool(stage.axes) for stage in stages) != 1:
        return 0.0
    lone = (op.node.op for stage in stages if not stage.axes for op in stage.ops)
    cycles = sum(cost.op_cycles(name) for name in lone if name not in ("load", "store"))
    rows = estimate(product(a.extent for a in (*form.rows, *form.together)))
    return rows * cycles * cost.LONE_CYCLE_BYTES


# ---------------------------------------------------------------------------- the nouns of ir.loop
def _loop_op(op: _Op, number: Mapping[int, int], names: Mapping[str, str]) -> loop.LoopOp:
    node = op.node
    return loop.LoopOp(
        node.op,
        op.id,
        node.dtype,
        tuple(op.names[k] for k in node.args),
        number[node.memory] if node.memory >= 0 else -1,
        None if node.index is None else _index(node.index, op.names, names),
        None if node.mask is None else op.names[node.mask],
        node.other,
        names.get(node.axis, ""),
        node.how if node.op in ("reduce", "check", "store") else "",
        op.is_kept,
    )


def _index(index: Affine, values: Mapping[int, int], names: Mapping[str, str]) -> loop.Index:
    """Axes by their names in the kernel, in order, then values by their SSA numbers."""
    terms = [
        (values[key] if isinstance(key, int) else names[key], stride) for key, stride in index.terms
    ]
    return loop.Index(index.base, tuple(sorted(terms, key=lambda t: (isinstance(t[0], int), t[0]))))
