"""Rows that no program holds, shared by programs that wait for each other, so that each row is read once.

    kernel softmax_0(b0, b1) over 64              kernel words_1(b2) over 16384
                                           ->     kernel softmax_0(b0, b1, b2) over 64
      .. over i0:64 parallel                        .. over i0:64 parallel by 128

Each program keeps its part of a row where it computes. What the parts of a row give where it is reduced, they tell
each other by words of memory (`loop.WORDS`), which are 0 before: a kernel sees to that on each call. All programs of a
launch run at once (`plan.Binary.waiting`), so that nobody waits for one that has not begun.

The rule: the row is longer than a program holds, is reduced so that programs wait once, and is then stored along its
walk; what would be walked at the same time exceeds half of the cache, so a second walk would find it gone; three rows
and more are under way at once, and there are parts enough that each program has eight of them one after the other. With
fewer rows under way all wait at once. With two waits a layer norm of 256 x 262144 in 16 bits took 146 us, where two walks take 118.

Where what is stored is cheap to compute again, and for softmax of 16-bit rows, a row is stored when the next one has been
told of (`generate/behind.py`); one row under way is enough then: softmax of 16 x 4194304 takes 87 us, by three kernels 105, and
waiting for each row 113 to 130 (bfloat16, H200).

Requires sizes that are known. Guarantees: the plan computes what it did.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from preheat.ir.devices import Device, device_of
from preheat.ir.graph import Graph
from preheat.ir.loop import WORDS, Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.plan import Buffer, Call, KernelCall, Plan, Target
from preheat.ir.scalar import Scalar, product
from preheat.ir.types import DTYPES, TensorType, tensor
from preheat.schedule import cost
from preheat.schedule.memory import ALIGN_BYTES
from preheat.schedule.split import ALIGNED, SPLITTABLE

Rows = tuple[int, int]  # how many, and the elements of each


class Way(NamedTuple):
    """each: elements of a part; room: programs that a multiprocessor has registers for; is_behind: a row is stored when the
    next one has been told of."""

    each: int
    room: int
    is_behind: bool = False


# By light kernels that load rows alone; where at most one more row is loaded that all have in common; where there is more.
LIGHT, PLAIN, SMALL = Way(8192, 3), Way(8192, 2), Way(4096, 2)
# Behind, by 8 warps, and by 4 of small parts; behind of 16-bit softmax alone, 64 elements a thread: 87 us for 16 x 4194304.
BEHIND, BEHIND_SMALL, BEHIND_EXP = Way(8192, 2, True), Way(4096, 3, True), Way(16384, 2, True)
MOST_LOADS = 3  # of parts of rows, and of what all rows have in common
RESIDENT, LEAST_TURNS = 4, 8  # programs a multiprocessor, about; rows that each has a part of
LEAST_ROWS = (3, 1)  # under way at once, and where they are stored behind the next one's words
LIGHT_OPS = 24
AHEAD = 2  # parts of rows whose memory is on its way
LEAST_TAKEN = 0.85  # of the elements of parts
WORD_BYTES = 8
HOW = ("sum", "prod", "max", "min", "any", "all")
MOST_PARTIAL_BYTES = 4  # of what a part gives: the other half of the word says that it is there


def rows_to_share(graph: Graph, target: Target) -> dict[int, Rows]:
    """The reductions of `graph` that are best left whole, since their rows may be shared, and these."""
    if not target.is_gpu:
        return {}
    types, found = graph.types(), {}
    for op in graph.ops:
        rows = _rows_of(types[op.args[0].id], op.attr("axes")) if op.name in SPLITTABLE else None
        if rows is not None and any(_are_many(*rows, way, device_of(target.arch)) for way in (LIGHT, BEHIND, BEHIND_EXP)):
            found[op.result] = rows
    return _stored(graph, found) if found else {}


def _rows_of(type: TensorType, axes: tuple[int, ...]) -> Rows | None:
    """The rows that are reduced along all of the axes `axes`, the last ones."""
    kept = type.rank - len(axes)
    is_known = not any(isinstance(size, Scalar) for size in type.sizes)
    if not axes or not is_known or tuple(axes) != tuple(range(kept, type.rank)):
        return None
    return product(type.sizes[:kept]), product(type.sizes[kept:])


def _stored(graph: Graph, found: dict[int, Rows]) -> dict[int, Rows]:
    """Those of which rows are made that are no more than read: results, or operands of what is no kernel."""
    of: dict[int, frozenset[Rows]] = {}  # the rows that a value hangs on
    read = {*graph.outputs, *(value for _, value in graph.writes)}
    for op in graph.ops:
        before = frozenset().union(*(of.get(value, frozenset()) for value in op.refs()))
        for result in op.results:
            made = before | {found[result]} if result in found else before
            if made:
                of[result] = made
        if op.name in ("library", "matmul"):
            read.update(op.refs())
    types = graph.types()
    wanted = {
        rows for value, all_rows in of.items() if value in read
        for rows in all_rows if getattr(types[value], "elems", 0) == product(rows)}
    return {value: rows for value, rows in found.items() if rows in wanted}


# ---------------------------------------------------------------------------- kernels
def with_shared_rows(plan: Plan, target: Target, wanted: Collection[Rows]) -> Plan | None:
    """`plan` with the rows of its kernels shared; None if there are `wanted` ones that cannot be: then they should
    not be whole."""
    device = device_of(target.arch)
    kernels = [_shared(kernel, device) for kernel in plan.kernels]
    for kernel in kernels:
        if not kernel.shared and not wanted.isdisjoint(_rows_reduced(kernel)):
            return None
    return _with_words(plan, kernels)


def _rows_reduced(kernel: Kernel) -> Iterator[Rows]:
    for stage in kernel.stages:
        extents = [axis.extent for axis in (*kernel.axes, *stage.axes)]
        if any(op.op == "reduce" for op in stage.body) and not any(isinstance(n, Scalar) for n in extents):
            yield product(axis.extent for axis in kernel.axes), product(axis.extent for axis in stage.axes)


def _shared(kernel: Kernel, device: Device) -> Kernel:
    """`kernel` with its rows shared where that is right and worth it."""
    walked = next((stage.axes for stage in kernel.stages if stage.axes), ())
    extents = [axis.extent for axis in (*kernel.axes, *walked)]
    is_plain = walked and kernel.lane is None and kernel.parallel == len(kernel.axes) and not any(
        isinstance(extent, Scalar) for extent in extents)
    if not is_plain or not all(map(_is_sharable, _ops(kernel))) or not _is_stored_after(kernel, walked):
        return kernel
    if not _waits_once(kernel):
        return kernel
    if any(stage.axes not in ((), walked) for stage in kernel.stages):
        return kernel
    accesses = [op for op in _ops(kernel) if op.op in ("load", "store") and _is_along(op, walked)]
    if not all(_is_consecutive(op.index, walked) for op in accesses):
        return kernel
    names = {axis.name for axis in kernel.axes}
    loads = {(op.param, op.index) for op in accesses if op.op == "load"}
    own = [param for param, index in loads if not names.isdisjoint(term for term, _ in index.terms)]
    rows, length = (product(axis.extent for axis in axes) for axes in (kernel.axes, walked))
    elem_bytes = sum(DTYPES[kernel.params[param].dtype].itemsize for param in own)
    is_gone = 2 * min(rows, device.units) * length * elem_bytes > device.cache_bytes
    is_light = len(loads) == 1 and sum(len(stage.body) for stage in kernel.stages) <= LIGHT_OPS
    if not own or len(loads) > MOST_LOADS or not is_gone:
        return kernel
    for way in _ways(kernel, loads, len(own), is_light, device):
        room = min(way.room, device.shared_bytes // (AHEAD * way.each * elem_bytes))
        if _are_many(rows, length, way._replace(room=room), device):
            params = (*kernel.params, Param("int64", "inout", WORDS))
            return replace(kernel, params=params, shared=-(-length // way.each), is_behind=way.is_behind)
    return kernel


def _ways(
    kernel: Kernel, loads: Collection[tuple[int, Index]], own: int, is_light: bool, device: Device,
) -> Iterator[Way]:
    """How the rows of a kernel may be shared, the best way first."""
    are_halves = all(DTYPES[kernel.params[param].dtype].itemsize == 2 for param, _ in loads)
    is_small = own > 1 or len(loads) > 2
    if _is_cheap(kernel):
        yield BEHIND_SMALL if is_small and (own > 1 or not are_halves) else BEHIND
        return
    if are_halves and is_light and device.tiles_ahead and _divides_once(kernel):  # on sm_80 168 bytes of it spill
        yield BEHIND_EXP
    yield SMALL if is_small else LIGHT if is_light else PLAIN


def _are_many(rows: int, length: int, way: Way, device: Device) -> bool:
    """Whether rows and parts of them are of the right number."""
    parts = -(-length // way.each)
    is_right = length > cost.GPU_ROW_ELEMS and length % ALIGNED == 0
    is_full = length >= LEAST_TAKEN * parts * way.each
    has_room = LEAST_ROWS[way.is_behind] * parts <= way.room * device.units
    resident = way.room if way.is_behind else RESIDENT
    return is_right and is_full and has_room and rows * parts >= LEAST_TURNS * resident * device.units


def _is_cheap(kernel: Kernel) -> bool:
    """Whether nothing is computed of a row that costs as much as an exponential, so that what is stored is best computed
    again when the next one has been told of."""
    walked = [op for stage in kernel.stages if stage.axes for op in stage.body]
    return all(cost.op_cycles(op.op) < cost.EXPENSIVE_CYCLES for op in walked)


def _divides_once(kernel: Kernel) -> bool:
    """Whether an exponential and a division are all that is costly of a row: those of a softmax."""
    costly = {op.op for op in _ops(kernel) if cost.op_cycles(op.op) >= cost.EXPENSIVE_CYCLES}
    return costly <= {"exp", "div", "log"} and any(op.op == "exp" for op in _ops(kernel))


def _ops(kernel: Kernel) -> Iterator[LoopOp]:
    return (op for stage in kernel.stages for op in stage.body)


def _is_sharable(op: LoopOp) -> bool:
    if op.op == "reduce":
        return op.how in HOW and DTYPES[op.dtype].itemsize <= MOST_PARTIAL_BYTES
    return op.op != "check" and (op.op != "store" or not op.how)


def _is_along(op: LoopOp, walked: tuple[Axis, ...]) -> bool:
    return not {axis.name for axis in walked}.isdisjoint(term for term, _ in op.index.terms)


def _is_consecutive(index: Index, walked: tuple[Axis, ...]) -> bool:
    """Whether memory goes on along the walk, with rows that begin where threads load several elements at once."""
    step = 1
    for axis in reversed(walked):
        if axis.extent != 1 and index.stride(axis.name) != step:
            return False
        step *= axis.extent
    names = {axis.name for axis in walked}
    others = [stride for term, stride in index.terms if term not in names]
    return all(type(stride) is int and stride % ALIGNED == 0 for stride in (*others, index.base))


def _waits_once(kernel: Kernel) -> bool:
    """Whether all reductions can be told at once: those of one walk; a largest value and the sum of exponentials below it;
    a sum and one of squares about a number made of it."""
    reducing = [stage for stage in kernel.stages if any(op.op == "reduce" for op in stage.body)]
    if len(reducing) != 2:
        return len(reducing) == 1
    made = {op.id: op for op in reducing[1].body}
    (*others, total) = [op for op in reducing[1].body if op.op == "reduce"]
    inner = made.get(total.args[0])
    below = made.get(inner.args[0]) if inner is not None and inner.op in ("exp", "mul") else None
    if others or total.how != "sum" or below is None or below.op != "sub" or below.args[1] in made:
        return False
    return inner.op == "exp" or inner.args[0] == inner.args[1]


def _is_stored_after(kernel: Kernel, walked: tuple[Axis, ...]) -> bool:
    """Whether a row is stored once it has been reduced."""
    is_reduced = False
    for stage in kernel.stages:
        if is_reduced and any(op.op == "store" and _is_along(op, walked) for op in stage.body):
            return True
        is_reduced = is_reduced or any(op.op == "reduce" for op in stage.body)
    return False


# ---------------------------------------------------------------------------- words
def _with_words(plan: Plan, kernels: list[Kernel]) -> Plan:
    """`plan` with these kernels, each call of a shared one behind one of a kernel that zeroes its words."""
    made, buffers, calls = list(kernels), list(plan.buffers), list[Call]()
    arena_bytes = plan.arena_bytes
    zeroed: dict[int, tuple[int, int]] = {}  # by the number of words: a buffer, and the kernel
    for call in plan.calls:
        kernel = kernels[call.kernel] if isinstance(call, KernelCall) else None
        if kernel is None or not kernel.shared:
            calls.append(call)
            continue
        rows, reductions = product(axis.extent for axis in kernel.axes), sum(op.op == "reduce" for op in _ops(kernel))
        count = rows * kernel.shared * reductions
        if count not in zeroed:
            start = -(-arena_bytes // ALIGN_BYTES) * ALIGN_BYTES
            arena_bytes = start + count * WORD_BYTES
            zeroed[count] = len(buffers), len(made)
            device = plan.buffers[call.buffers[0]].type.device
            buffers.append(Buffer("arena", start, tensor("int64", (count,), device=device)))
            made.append(_zeros(f"{WORDS}_{len(made)}", count))
        buffer, number = zeroed[count]
        calls.append(KernelCall(number, (buffer,), count, count * WORD_BYTES))
        calls.append(replace(call, buffers=(*call.buffers, buffer)))
    return replace(
        plan, buffers=tuple(buffers), kernels=tuple(made), calls=tuple(calls), arena_bytes=arena_bytes)


def _zeros(name: str, count: int) -> Kernel:
    """The kernel that stores `count` words of 0."""
    body = (LoopOp("const", 0, "int64", other=0), LoopOp("store", -1, "int64", (0,), 0, Index(0, (("i0", 1),))))
    return Kernel(name, (Param("int64", "out"),), (Axis("i0", count),), (Stage((), body),), 1, "i0")
