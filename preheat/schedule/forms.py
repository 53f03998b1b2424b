"""Forms: which axis of a nest is the vector, which are rows, which are walked inside a row.

    i0:8 i1:128 (walked), all loads i0*128 + i1     ->   rows i0, walked i1, the vector
    i0:8 (walked) i1:128, all loads i0*128 + i1     ->   rows i1, the vector (lane form), walked i0

Axes that every access walks as one become one. The vector axis is the one along which the accesses
are cheapest: a walked axis gives row form, an outer one lane form. Nests that read along one axis
and store along another are cut in squares, and rows that load the same elements are joined.

Guarantees: the form visits each position of the nest's frame once. Source: research/cpu.md, K2.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir.hinted import estimate
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar, product
from preheat.ir.types import TensorType
from preheat.schedule import cost
from preheat.schedule.affine import Affine, affine
from preheat.schedule.nests import Frame, FrameAxis, Nest

FEW_ROWS = 16  # below this, rows alone do not feed the threads
FAR_ELEMS = 64  # steps through memory that share no cache line, whatever the dtype
MOST_TOGETHER = 8  # rows that are reduced side by side
MOST_GPU_TOGETHER = 4  # more are better off on the matrix units (schedule/sums)
MOST_RESULTS = 24, 12  # and their results, of 32 registers and of 16
LONG_ROW = 16384  # elements that are worth sharing between threads


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


def form_of(nest: Nest, target: Target) -> tuple[Nest, Form]:
    """`nest` with its axes joined and cut, and the form in which it is computed."""
    nest = collapse(nest)
    if target.is_gpu:
        return nest, gpu_form(nest, target)
    nest, form = squared(nest, choose_form(nest, target), target)
    if not form.rows:  # a kernel has at least one outer axis
        form = replace(form, rows=(FrameAxis("unit", 1),))
    return joined_rows(nest, form, target)


def gpu_form(nest: Nest, target: Target) -> Form:
    """The form for a GPU, whose programs take tiles of rows and walked positions (generate/tiles):
    only the order of the axes is decided here, and which one is consecutive. A nest without
    reductions has outer axes alone."""
    rows, walked = nest.frame.part(False), nest.frame.part(True)
    results = sum(node.op == "reduce" for node in nest.nodes)
    most = min(MOST_GPU_TOGETHER, MOST_TOGETHER // results) if results else 0
    few = _few_together(nest, Form(rows, walked, None), most) if results else None
    form = choose_form(nest, target, few)
    if not walked:
        rows = tuple(a for a in _by_stride(nest, rows) if a.name != form.vector) + tuple(
            a for a in rows if a.name == form.vector)
        rows = rows or (FrameAxis("unit", 1),)
        return Form(rows, (), rows[-1].name)
    if few is not None:
        form = replace(form, rows=tuple(a for a in form.rows if a != few), together=(few,))
    return form if form.rows else replace(form, rows=(FrameAxis("unit", 1),))


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


def choose_form(nest: Nest, target: Target, few: FrameAxis | None = None) -> Form:
    """The form in which the accesses are cheapest. `few`: an axis that is not the vector."""
    rows, walked = nest.frame.part(False), nest.frame.part(True)
    is_ordered = any(node.how in ("argmax", "argmin") for node in nest.nodes)
    candidates = [a for a in (*rows, *(walked[-1:] if is_ordered else walked)) if a != few]
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
        estimate(product(a.extent for a in rows)) < FEW_ROWS and estimate(vector.extent) >= LONG_ROW
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
    if _remainder(other, side) or _remainder(vector, side):
        return nest, form
    nest = _cut(_cut(nest, other, side), vector, side)
    blocks = [FrameAxis(a.name + "a", a.extent // side) for a in (other, vector)]
    walked = tuple(FrameAxis(a.name + "b", side) for a in (other, vector))
    rest = tuple(a for a in rows if a != other)
    return nest, Form((*rest, *blocks), walked, None)


def _remainder(axis: FrameAxis, divisor: int) -> int:
    """What is left of an axis in parts of `divisor`; 1 where only the running program knows it."""
    return 1 if isinstance(axis.extent, Scalar) else axis.extent % divisor


def _is_turned(nest: Nest, axis: FrameAxis, vector: FrameAxis) -> bool:
    """Some access has its consecutive elements along `axis`, far apart along `vector`."""
    strides = (dict(node.index.terms) for node in nest.nodes if node.index is not None)
    return any(
        s.get(axis.name) == 1 and abs(estimate(s.get(vector.name, 0))) >= FAR_ELEMS for s in strides
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
            bytes_ = estimate(product(others)) * TensorType(node.dtype, (), ()).itemsize
            total += bytes_ * cost.access_penalty(dict(node.index.terms).get(vector.name, 0))
    return total * cost.padding(vector.extent, lanes)


def _by_stride(nest: Nest, axes: tuple[FrameAxis, ...]) -> tuple[FrameAxis, ...]:
    """`axes`, the longest steps through memory outermost; stores decide before loads."""
    indices = [nest.nodes[s].index for s in nest.stores]
    indices += [node.index for node in nest.nodes if node.op == "load"]

    def steps(axis: FrameAxis) -> int:
        found = (abs(estimate(dict(i.terms).get(axis.name, 0))) for i in indices)
        return next((step for step in found if step), 0)

    return tuple(sorted(axes, key=steps, reverse=True))


def joined_rows(nest: Nest, form: Form, target: Target) -> tuple[Nest, Form]:
    """Rows whose only walk loads the same elements are reduced together: one load for all.

    i0:2 i1:256 parallel, stage j:512 vector    ->    i1:64 parallel, i0:2 i1b:4, stage j:512 vector
    """
    results = sum(node.op == "reduce" for node in nest.nodes)
    if not results or not _is_one_walk(nest, {a.name for a in form.walked}):
        return nest, form
    has_few_registers = target.arch == "x86_64" and target.vector_bytes < 64
    most = min(MOST_TOGETHER, MOST_RESULTS[has_few_registers] // results)
    axis = _few_together(nest, form, most)
    if axis is not None:
        rest = tuple(a for a in form.rows if a != axis)
        form, most = replace(form, rows=rest, together=(axis,)), most // axis.extent
    # Where memory is the limit, one row after the other is the better stream: 25 us for 2 MB of
    # weights in float32, 28 us by four rows at a time; in bfloat16, half of them, 36 and 26 us.
    is_busy = form.together or any(node.op == "cast" for node in nest.nodes)
    return _in_blocks(nest, form, most) if is_busy and form.lane is None else (nest, form)


def _few_together(nest: Nest, form: Form, most: int) -> FrameAxis | None:
    """The axis of at most `most` rows whose only walk loads the same elements."""
    if not _is_one_walk(nest, {a.name for a in form.walked}):
        return None
    for axis in form.rows:
        rest = tuple(a for a in form.rows if a != axis)
        is_few = not isinstance(axis.extent, Scalar) and 1 < axis.extent <= most
        if is_few and _is_shared(nest, form, axis, rest):
            return axis
    return None


def _in_blocks(nest: Nest, form: Form, most: int) -> tuple[Nest, Form]:
    """The last rows in blocks of `most` at most, where a load of the walk is the same for them."""
    rest, axis = form.rows[:-1], form.rows[-1]
    by = next((k for k in (8, 4, 2) if k <= most and not _remainder(axis, k)), 1)
    blocks = FrameAxis(axis.name + "a", axis.extent // by)
    is_fixed = any(node.op == "axis" and node.axis == axis.name for node in nest.nodes)
    has_rows = estimate(product(a.extent for a in (*rest, blocks))) >= FEW_ROWS
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
    names, many = {a.name for a in rest}, estimate(product(a.extent for a in rest))
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
