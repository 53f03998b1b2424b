"""From a nest to a kernel: which axis is the vector, which loops are stages, what is kept.

    i0:8 i1:128 (walked)           kernel over i0:8 parallel
    n1 = reduce sum n0        ->     stage j:128   v0 = load ..; r0 = sum v0
    n3 = div n0, n1                  stage j:128   v1 = load ..; v2 = div v1, r0; store

Axes that every access walks as one become one. The vector axis is the one along which the accesses
are cheapest: a walked axis gives row form, an outer one lane form. A node that depends on `k`
layers of reductions can be computed from walk `k` on; it is computed there and, where a later walk
needs it, kept or computed again, whichever is cheaper. What depends on no walked axis is computed
once a row, in a stage without axes.

Guarantees: stores come last in their stage; memory that is read and written is read at the same
position, before it is written. Source: research/cpu.md, K2; Halide's compute_at.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir import loop
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType
from preheat.schedule import cost
from preheat.schedule.affine import Affine, affine, known
from preheat.schedule.loops import Frame, FrameAxis, Nest, Node, NoFit

FEW_ROWS = 16  # below this, rows alone do not feed the threads
FAR_ELEMS = 64  # steps through memory that share no cache line, whatever the dtype
MOST_TOGETHER = 8  # rows that are reduced side by side
MOST_RESULTS = 24  # and their results, which stay in registers
LONG_ROW = 16384  # elements that are worth sharing between threads


@dataclass(frozen=True, slots=True)
class Tiled:
    """A nest with its loops chosen and its stages filled; `kernel_of` writes it as a kernel.

    memories   of the parameters, in order; `roles` are as in `Param`
    extent     of the parallel range
    bytes      moved by one run
    waste      `bytes` weighed by how badly the vector axis suits the accesses: for comparisons
    """

    form: "Form"
    stages: tuple["Walk", ...]
    memories: tuple[int, ...]
    roles: tuple[str, ...]
    extent: Dim
    bytes: int
    waste: float


@dataclass(frozen=True, slots=True)
class Form:
    """rows: outer axes, outermost first; walked: axes of the stages; lane: as in `Kernel.lane`;
    together: outer axes inside the rows that are not shared."""

    rows: tuple[FrameAxis, ...]
    walked: tuple[FrameAxis, ...]
    lane: str | None
    together: tuple[FrameAxis, ...] = ()

    @property
    def vector(self) -> str:
        return self.lane if self.lane is not None else self.walked[-1].name


def tile(nest: Nest, types: Mapping[int, TensorType], target: Target) -> Tiled:
    """The form of `nest` and its stages. Raises NoFit when it would read memory after having
    overwritten it."""
    nest = collapse(nest)
    nest, form = squared(nest, choose_form(nest, target), target)
    if not form.rows:  # a kernel has at least one outer axis
        form = replace(form, rows=(FrameAxis("unit", 1),))
    nest, form = joined_rows(nest, form)
    stages = _Stages(nest, form).build()
    roles = _parameters(stages)
    moved, waste = traffic(nest, form, stages, types)
    extent = product(a.extent for a in form.rows)
    return Tiled(form, tuple(stages), tuple(roles), tuple(roles.values()), extent, moved, waste)


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

    params = tuple(loop.Param(dtypes[m], role) for m, role in zip(tiled.memories, tiled.roles))
    stages = tuple(
        loop.Stage(axes(s.axes), tuple(_loop_op(op, number, names) for op in s.ops))
        for s in tiled.stages
    )
    lane = None if form.lane is None else names[form.lane]
    return loop.Kernel("", params, axes(outer), stages, len(form.rows), lane)


# ---------------------------------------------------------------------------- axes
def collapse(nest: Nest) -> Nest:
    """The nest with axes joined that every access walks as one."""
    fixed = {node.axis for node in nest.nodes if node.op == "axis"}
    is_ordered = any(node.how in ("argmax", "argmin") for node in nest.nodes)
    joined = True
    while joined:
        joined = False
        for outer, inner in _pairs(nest.frame, fixed, is_ordered):
            if all(
                _is_joint(node.index, outer, inner) for node in nest.nodes if node.index is not None
            ):
                nest, joined = _join(nest, outer, inner), True
                break
    return nest


def _pairs(
    frame: Frame, fixed: Collection[str], is_ordered: bool
) -> Iterator[tuple[FrameAxis, FrameAxis]]:
    for a, outer in enumerate(frame.axes):
        for b, inner in enumerate(frame.axes):
            is_free = outer.name not in fixed and inner.name not in fixed
            in_order = b == a + 1 or not (is_ordered and outer.is_walked)
            if a != b and is_free and in_order and outer.is_walked is inner.is_walked:
                yield outer, inner


def _is_joint(index: Affine, outer: FrameAxis, inner: FrameAxis) -> bool:
    strides = dict(index.terms)
    return strides.get(outer.name, 0) == strides.get(inner.name, 0) * inner.extent


def _join(nest: Nest, outer: FrameAxis, inner: FrameAxis) -> Nest:
    whole = FrameAxis(inner.name, outer.extent * inner.extent, inner.is_walked)
    axes = tuple(whole if a == inner else a for a in nest.frame.axes if a != outer)
    nodes = tuple(
        node if node.index is None else replace(node, index=_without(node.index, outer.name))
        for node in nest.nodes
    )
    return replace(nest, frame=Frame(axes), nodes=nodes)


def _without(index: Affine, name: str) -> Affine:
    return affine(index.base, {key: stride for key, stride in index.terms if key != name})


def choose_form(nest: Nest, target: Target) -> Form:
    """The form in which the accesses are cheapest."""
    rows, walked = nest.frame.part(False), nest.frame.part(True)
    is_ordered = any(node.how in ("argmax", "argmin") for node in nest.nodes)
    candidates = [*rows, *(walked[-1:] if is_ordered else walked)]
    if not candidates:
        return Form((), (FrameAxis("j", 1, True),), None)
    lanes = target.elems(4)
    vector = min(candidates, key=lambda a: (vector_cost(nest, a, lanes), not a.is_walked))
    rows = tuple(a for a in _by_stride(nest, rows) if a != vector)
    if vector.is_walked:
        inner = (
            walked
            if is_ordered
            else tuple(a for a in _by_stride(nest, walked) if a != vector) + (vector,)
        )
        return Form(rows, inner, None)
    if walked:
        return Form(
            (*rows, vector), walked if is_ordered else _by_stride(nest, walked), vector.name
        )
    is_short = (
        known(product(a.extent for a in rows)) < FEW_ROWS and known(vector.extent) >= LONG_ROW
    )
    if not rows or is_short:
        return Form((*rows, vector), (), vector.name)
    return Form(rows, (vector,), None)


def squared(nest: Nest, form: Form, target: Target) -> tuple[Nest, Form]:
    """A nest without reductions that reads along one axis and stores along another, cut in squares.

        i0:1024, stage j:512 vector    ->    i0:32 i1:64, stage j0:16 j1:16 vector

    Each cache line that is touched is used whole before it is evicted.
    """
    rows, vector = form.rows, form.walked[-1] if len(form.walked) == 1 else None
    if vector is None or nest.frame.part(True):
        return nest, form
    other = next((a for a in rows if _is_turned(nest, a, vector)), None)
    fixed = {node.axis for node in nest.nodes if node.op == "axis"}
    if other is None or fixed & {other.name, vector.name}:
        return nest, form
    side = target.elems(4)
    if known(other.extent) % side or known(vector.extent) % side:
        return nest, form
    nest = _cut(_cut(nest, other, side), vector, side)
    blocks = [FrameAxis(a.name + "a", known(a.extent) // side) for a in (other, vector)]
    walked = tuple(FrameAxis(a.name + "b", side) for a in (other, vector))
    rest = tuple(a for a in rows if a != other)
    return nest, Form((*rest, *blocks), walked, None)


def _is_turned(nest: Nest, axis: FrameAxis, vector: FrameAxis) -> bool:
    """Some access has its consecutive elements along `axis`, far apart along `vector`."""
    strides = (dict(node.index.terms) for node in nest.nodes if node.index is not None)
    return any(
        s.get(axis.name) == 1 and abs(known(s.get(vector.name, 0))) >= FAR_ELEMS for s in strides
    )


def _cut(nest: Nest, axis: FrameAxis, inner: int) -> Nest:
    """The nest with `axis` as two: NAMEa over blocks, NAMEb of extent `inner`."""
    frame = nest.frame.split(axis.name, inner)
    nodes = []
    for node in nest.nodes:
        if node.index is not None and axis.name in node.index.keys():
            terms = dict(node.index.terms)
            stride = terms.pop(axis.name)
            index = affine(
                node.index.base, {**terms, axis.name + "a": stride * inner, axis.name + "b": stride}
            )
            node = replace(node, index=index)
        nodes.append(node)
    return replace(nest, frame=frame, nodes=tuple(nodes))


def vector_cost(nest: Nest, vector: FrameAxis, lanes: int) -> float:
    """How costly the accesses of `nest` are when `vector` is the vector axis."""
    total = 0.0
    for node in nest.nodes:
        if node.index is not None:
            others = [
                a.extent
                for a in nest.frame.axes
                if a == vector or dict(node.index.terms).get(a.name)
            ]
            bytes_ = known(product(others)) * TensorType(node.dtype, (), ()).itemsize
            total += bytes_ * cost.access_penalty(dict(node.index.terms).get(vector.name, 0))
    return total * cost.padding(vector.extent, lanes)


def _by_stride(nest: Nest, axes: tuple[FrameAxis, ...]) -> tuple[FrameAxis, ...]:
    """`axes`, the longest steps through memory outermost; stores decide before loads."""
    indices = [nest.nodes[s].index for s in nest.stores]
    indices += [node.index for node in nest.nodes if node.op == "load"]

    def steps(axis: FrameAxis) -> int:
        found = (abs(known(dict(i.terms).get(axis.name, 0))) for i in indices)
        return next((step for step in found if step), 0)

    return tuple(sorted(axes, key=steps, reverse=True))


def joined_rows(nest: Nest, form: Form) -> tuple[Nest, Form]:
    """Rows whose only walk loads the same elements are reduced together: one load for all.

    i0:2 i1:256 parallel, stage j:512 vector    ->    i1:64 parallel, i0:2 i1b:4, stage j:512 vector
    """
    results = sum(node.op == "reduce" for node in nest.nodes)
    if not results or not _is_one_walk(nest, {a.name for a in form.walked}):
        return nest, form
    most = min(MOST_TOGETHER, MOST_RESULTS // results)
    for axis in form.rows:
        rest = tuple(a for a in form.rows if a != axis)
        if 1 < known(axis.extent) <= most and _is_shared(nest, form, axis, rest):
            form, most = replace(form, rows=rest, together=(axis,)), most // known(axis.extent)
            break
    # Where memory is the limit, one row after the other is the better stream: 25 us for 2 MB of
    # weights in float32, 28 us by four rows at a time; in bfloat16, half of them, 36 and 26 us.
    is_busy = form.together or any(node.op == "cast" for node in nest.nodes)
    return _in_blocks(nest, form, most) if is_busy and form.lane is None else (nest, form)


def _in_blocks(nest: Nest, form: Form, most: int) -> tuple[Nest, Form]:
    """The last rows in blocks of `most` at most, where a load of the walk is the same for them."""
    rest, axis = form.rows[:-1], form.rows[-1]
    by = next((k for k in (8, 4, 2) if k <= most and known(axis.extent) % k == 0), 1)
    blocks = FrameAxis(axis.name + "a", known(axis.extent) // by)
    is_fixed = any(node.op == "axis" and node.axis == axis.name for node in nest.nodes)
    has_rows = known(product(a.extent for a in (*rest, blocks))) >= FEW_ROWS
    if by == 1 or is_fixed or not has_rows or not any(True for _ in _same_loads(nest, form, axis)):
        return nest, form
    inner = FrameAxis(axis.name + "b", by)
    together = (*form.together, inner)
    return _cut(nest, axis, by), replace(form, rows=(*rest, blocks), together=together)


def _is_one_walk(nest: Nest, walked: Collection[str]) -> bool:
    """Every reduction is over given values, and nothing else is done for each walked position."""
    after: set[int] = set()
    for number, node in enumerate(nest.nodes):
        if node.op == "reduce" and not after.isdisjoint(node.operands()):
            return False
        if node.op == "reduce" or not after.isdisjoint(node.operands()):
            after.add(number)
    stores = [nest.nodes[s] for s in nest.stores]
    return not nest.checks and not any(
        key in walked for node in stores for key in node.index.keys()
    )


def _is_shared(nest: Nest, form: Form, axis: FrameAxis, rest: Collection[FrameAxis]) -> bool:
    """Some load of the walk is the same along `axis` and another for each of many rows `rest`."""
    names, many = {a.name for a in rest}, known(product(a.extent for a in rest))
    return (
        axis.name != form.lane
        and many >= FEW_ROWS
        and any(not names.isdisjoint(keys) for keys in _same_loads(nest, form, axis))
    )


def _same_loads(nest: Nest, form: Form, axis: FrameAxis) -> Iterator[tuple]:
    """The keys of the walk's loads that are the same along `axis`."""
    walked = {a.name for a in form.walked}
    for node in nest.nodes:
        keys = node.index.keys() if node.op == "load" else ()
        if not walked.isdisjoint(keys) and axis.name not in keys:
            yield keys


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

    def __init__(self, nest: Nest, form: Form):
        self.nest, self.form = nest, form
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
        if number not in self.first or self.form.lane is not None:
            return False
        node = self.nest.nodes[number]
        size = (
            known(product(a.extent for a in self.form.walked))
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
    nest: Nest, form: Form, stages: list[Walk], types: Mapping[int, TensorType]
) -> tuple[int, float]:
    """Bytes to and from memory in one run, and the same weighed by the cost of the accesses.

    Rows that fit the cache are loaded once, however many stages walk them.
    """
    extents = {a.name: a.extent for a in (*form.rows, *form.together, *form.walked)}
    row_bytes = known(product(a.extent for a in form.walked)) * (4 if form.lane is None else 64)
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
                where = stage.level if row_bytes > cost.CACHE_BYTES else 0
                names = set()
                for key in op.node.index.keys():
                    names |= {key} if isinstance(key, str) else axes_of[key]
                count = (
                    known(product(extents[n] for n in names))
                    * TensorType(op.dtype, (), ()).itemsize
                )
                seen[op.memory, op.node.op == "store", op.node.index, where] = count
    total: dict[tuple, int] = {}
    waste = 0.0
    for (memory, is_store, index, where), count in seen.items():
        kind = types[memory] if memory in types else None
        most = known(kind.elems) * kind.itemsize if kind is not None else count
        key = (memory, is_store, where)
        total[key] = min(total.get(key, 0) + count, max(most, 1))
        waste += count * max(cost.access_penalty(dict(index.terms).get(form.vector, 0)), 1.0)
    return sum(total.values()), waste + _lone_work(form, stages)


def _lone_work(form: Form, stages: list[Walk]) -> float:
    """What work on one value a row costs, in bytes, where a kernel of its own would do it in vectors:
    after the only walk of a row."""
    if form.lane is not None or sum(bool(stage.axes) for stage in stages) != 1:
        return 0.0
    lone = (op.node.op for stage in stages if not stage.axes for op in stage.ops)
    cycles = sum(cost.op_cycles(name) for name in lone if name not in ("load", "store"))
    rows = known(product(a.extent for a in (*form.rows, *form.together)))
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
        node.how if node.op in ("reduce", "check") else "",
        op.is_kept,
    )


def _index(index: Affine, values: Mapping[int, int], names: Mapping[str, str]) -> loop.Index:
    """Axes by their names in the kernel, in order, then values by their SSA numbers."""
    terms = [
        (values[key] if isinstance(key, int) else names[key], stride) for key, stride in index.terms
    ]
    return loop.Index(index.base, tuple(sorted(terms, key=lambda t: (isinstance(t[0], int), t[0]))))
