"""Long reductions in two steps, so that threads and caches have parts to work on.

    %1: f32[] = sum(%0: f32[65536], axes=(0,))
      ->
    %1: f32[64, 1024] = reshape(%0)
    %2: f32[64] = sum(%1, axes=(1,))            64 rows for the threads
    %3: f32[] = sum(%2, axes=(0,))

Two cases: too few rows to feed the threads; and a reduction across so many rows of memory that
walking one vector of columns down all of them leaves every page and cache line for the next vector
to fetch again. A sum of exponentials below a largest value that was cut is cut with it (`partial`).
Sums become more exact: partial sums are shorter. Sizes that are not known are padded to a number of
parts, by what changes no result. Requires and gives level core.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.hinted import estimate
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import DTYPES, TensorType, contiguous_strides, tensor
from preheat.schedule import cost
from preheat.schedule.partial import Cut, exponentials, write_parts

SPLITTABLE = frozenset("sum prod max min any all".split())
FEW_ROWS = 4  # more rows than this are spread over threads as they are, and stay fused
LONG_ELEMS = 1 << 16  # below this one thread is done before another has started
TALL_ROWS = 4096  # rows under one column vector that do not stay cached
PARTS = (16, 64, 512)  # least, best and most parts of a reduction for the threads
CHUNK = (32, 64, 256)  # rows of a part of a tall reduction
# For a GPU: columns that one program takes; the least that a part of a reduction has to do.
GPU_COLUMNS, GPU_PART_ROWS, GPU_PART_ELEMS = 64, 256, 8192
OPEN_ROWS, OPEN_ELEMS = 256, 2048  # of a part of an axis whose size is not known, across and along
FOLD_ROWS, FOLD_COLUMNS = 8, 4096  # the fewest rows that a program walks; a row for four warps


def split_reductions(
    graph: Graph, target: Target, whole: Collection[int] = frozenset(),
) -> Graph:
    """`graph` with each long reduction in two, but for those that give the values `whole`."""
    count_parts = _gpu_parts if target.is_gpu else _cpu_parts
    types = dict(graph.types())
    ops: list[Op] = []
    builder = Builder("core", ops=ops, next_id=graph.next_id(), type_of=types)
    rows = _row_shapes(graph, types) if target.is_gpu else frozenset()
    largest_of = exponentials(graph, types) if target.is_gpu else {}
    cuts: dict[int, Cut] = {}  # by the value that was cut
    pending = list(reversed(graph.ops))
    while pending:
        op = pending.pop()
        largest = largest_of.get(op.results[0])
        if largest in cuts:
            write_parts(builder, op, cuts[largest], largest)
            continue
        if target.is_gpu and op.results[0] not in whole and _is_open(op, types):
            pending += reversed(_in_turn(builder, op, types))
            continue
        flat = _flattened(op, types) if target.is_gpu else None
        is_whole = op.results[0] in whole
        parts = None if is_whole else _fold_parts(flat, rows) or _parts(op, types, count_parts, flat)
        if parts is None:
            ops.append(op)
        else:
            type = types[op.args[0].id] if flat is None else flat
            cuts[op.result] = split_in_two(builder, op, type, *parts)
    return replace(graph, ops=tuple(ops))


def _is_open(op: Op, types) -> bool:
    """Whether a reduction is over several axes with sizes that are not known: as one they would have to be
    taken apart at each position."""
    if op.name not in SPLITTABLE or len(op.attr("axes")) < 2:
        return False
    type: TensorType = types[op.args[0].id]
    is_all = len(op.attr("axes")) == type.rank
    return is_all and any(isinstance(type.sizes[a], Scalar) for a in op.attr("axes")[1:])


def _in_turn(builder: Builder, op: Op, types) -> list[Op]:
    """The ops that reduce the last axis, then the others."""
    made: list[Op] = []
    into = Builder("core", ops=made, next_id=builder.next_id, type_of=builder.type_of)
    value, type, dtype = op.args[0].id, types[op.args[0].id], _wide(op)
    if dtype != type.dtype and op.name in ("sum", "prod"):
        value = into.add("cast", [value], tensor(dtype, type.sizes, device=type.device), dtype=dtype)
    last = type.rank - 1
    row = tensor(dtype, (*type.sizes[:-1], 1), device=type.device)
    value = into.add(op.name, [value], row, axes=(last,), keepdim=True)
    total = tensor(dtype, (1,) * type.rank, device=type.device)
    value = into.add(op.name, [value], total, axes=tuple(range(last)), keepdim=True)
    if dtype != op.type.dtype:
        value = into.add("cast", [value], replace(total, dtype=op.type.dtype), dtype=op.type.dtype)
    into.append(Op("reshape", (Ref(value),), op.results, op.types))
    builder.next_id = into.next_id
    return made


def _wide(op: Op) -> str:
    """The dtype of partial results."""
    is_sum = op.name in ("sum", "prod") and op.type.dtype in ("bfloat16", "float16")
    return "float32" if is_sum else op.type.dtype


def _row_shapes(graph: Graph, types) -> frozenset[tuple[int, int]]:
    """Rows and columns of what is reduced along its last axis alone."""
    operands = [
        types[op.args[0].id] for op in graph.ops
        if op.name in SPLITTABLE and op.attr("axes") == (types[op.args[0].id].rank - 1,)]
    return frozenset(
        (product(t.sizes[:-1]), t.sizes[-1]) for t in operands if t.rank > 1 and t.elems != 0)


def _flattened(op: Op, types) -> TensorType | None:
    """The matrix whose rows `op` reduces: all axes of its operand but the last, which are one in
    memory. None for other reductions."""
    if op.name not in SPLITTABLE:
        return None
    type: TensorType = types[op.args[0].id]
    is_plain = type.elems != 0 and type.strides == contiguous_strides(type.sizes)
    if type.rank < 2 or not is_plain or tuple(op.attr("axes")) != tuple(range(type.rank - 1)):
        return None
    return tensor(type.dtype, (product(type.sizes[:-1]), type.sizes[-1]), device=type.device)


def _fold_parts(flat: TensorType | None, rows: frozenset[tuple[int, int]]) -> tuple[int, int] | None:
    """(axis, parts) of a sum down rows that are reduced themselves: one kernel may do both, a part
    of the rows a program."""
    if flat is None or any(isinstance(size, Scalar) for size in flat.sizes):
        return None
    if flat.sizes not in rows or flat.sizes[1] > cost.FOLDED_ELEMS:
        return None
    count, columns = flat.sizes
    best = cost.GPU_FEW_PROGRAMS * max(1, min(4, FOLD_COLUMNS // columns))  # short rows take few warps
    parts = _divisor(count, cost.LEAST_FOLDING, best, count // FOLD_ROWS)
    return None if parts is None else (0, parts)


def _parts(
    op: Op, types, count_parts: Callable, flat: TensorType | None,
) -> tuple[int, int] | None:
    """(axis, parts) to cut, of the operand or of what it is taken for (`_flattened`), or None to leave the
    reduction whole. Of a size that is not known: (axis, elements of a part)."""
    if op.name not in SPLITTABLE:
        return None
    type: TensorType = types[op.args[0].id]
    axes = op.attr("axes")
    if flat is not None:
        type, axes = flat, (0,)
    if not axes or type.elems == 0:
        return None
    axis = max(axes, key=lambda a: estimate(type.sizes[a]))
    if isinstance(type.sizes[axis], Scalar):
        count_parts = _open_part if count_parts is _gpu_parts else _no_parts
    count = estimate(product(type.sizes[a] for a in axes))
    rows = estimate(type.elems) // count
    parts = count_parts(type.sizes[axis], count, rows, _is_across(type, axes))
    return (axis, parts) if parts and parts < count else None


def _cpu_parts(size: int, count: int, rows: int, is_across: bool) -> int | None:
    """Parts of an axis of `size`, when `count` elements are reduced for each of `rows` results."""
    if rows < FEW_ROWS and count >= LONG_ELEMS:
        return _divisor(size, *PARTS)
    if count >= TALL_ROWS and is_across:
        each = _divisor(size, *CHUNK)
        return each and size // each
    return None


def _gpu_parts(size: int, count: int, rows: int, is_across: bool) -> int | None:
    """As `_cpu_parts`: enough programs, and enough for each of them to do."""
    programs = rows // (GPU_COLUMNS if is_across else 1)
    least = GPU_PART_ROWS if is_across else GPU_PART_ELEMS
    if programs >= cost.GPU_FEW_PROGRAMS // 2 or count < 2 * least:
        return None
    if not is_across and count <= cost.GPU_ROW_ELEMS:
        return None  # one program has the row in its registers, for what else is done with it
    best = min(-(-4 * cost.GPU_FEW_PROGRAMS // max(programs, 1)), count // least)
    return _divisor(size, 2, best, 2 * best)


def _is_across(type: TensorType, axes: tuple[int, ...]) -> bool:
    """The axis along which memory is consecutive is kept."""
    return any(
        k not in axes and s == 1 and n != 1
        for k, (n, s) in enumerate(zip(type.sizes, type.strides))
    )


def _open_part(size: Dim, count: int, rows: int, is_across: bool) -> int | None:
    """As `_gpu_parts`, of an axis whose size is not known: elements of a part, to which it is padded, since
    no number of parts divides it."""
    programs, each = rows // (GPU_COLUMNS if is_across else 1), OPEN_ROWS if is_across else OPEN_ELEMS
    least = each if is_across or rows == 1 else cost.GPU_ROW_ELEMS
    return each if programs < cost.GPU_FEW_PROGRAMS // 2 and count > least else None


def _no_parts(size: Dim, count: int, rows: int, is_across: bool) -> int | None:
    """No number of parts divides a size that is not known."""
    return None


def _divisor(size: int, least: int, best: int, most: int) -> int | None:
    """The divisor of `size` between `least` and `most` that is nearest to `best`."""
    found = [k for k in range(least, min(most, size) + 1) if size % k == 0]
    return min(found, key=lambda k: abs(k - best), default=None)


def split_in_two(builder: Builder, op: Op, type: TensorType, axis: int, parts: Dim) -> Cut:
    """Appends the two reductions; the second gives `op`'s own value. `type`: of the operand, or of
    the matrix that it is. parts: see `_parts`."""
    value, axes = op.args[0].id, op.attr("axes")
    if type.sizes != builder.type_of[value].sizes:
        value, axes = builder.add("reshape", [value], type), (0,)
    dtype = _wide(op)
    if dtype != op.type.dtype:
        wide = tensor(dtype, type.sizes, device=type.device)
        value = builder.add("cast", [value], wide, dtype=dtype)
    cut = type.sizes[axis] // parts
    if isinstance(type.sizes[axis], Scalar):
        cut = parts
        value, parts = _padded(builder, op.name, value, axis, cut)
    sizes = (*type.sizes[:axis], parts, cut, *type.sizes[axis + 1 :])
    given = builder.type_of[value]
    strides = (
        *given.strides[:axis],
        given.strides[axis] * cut,
        given.strides[axis],
        *given.strides[axis + 1 :],
    )
    value = builder.add("reshape", [value], TensorType(given.dtype, sizes, strides, type.device))
    first = tuple(a if a < axis else a + 1 for a in axes)
    kept = tuple(1 if a in first else n for a, n in enumerate(sizes))
    made = tensor(dtype, kept, device=type.device)
    done = Cut(value, builder.add(op.name, [value], made, axes=first, keepdim=True), axis)
    total = tuple(1 if a in first or a == axis else n for a, n in enumerate(sizes))
    made = tensor(dtype, total, device=type.device)
    value = builder.add(op.name, [done.parts], made, axes=(axis,), keepdim=True)
    if dtype != op.type.dtype:
        result = tensor(op.type.dtype, total, device=type.device)
        value = builder.add("cast", [value], result, dtype=op.type.dtype)
    builder.append(Op("reshape", (Ref(value),), op.results, op.types))
    return done


def _padded(builder: Builder, how: str, value: int, axis: int, each: int) -> tuple[int, Dim]:
    """`value` with its axis padded to a multiple of `each`, and how often that is."""
    type = builder.type_of[value]
    size = type.sizes[axis]
    parts = (size + (each - 1)) // each
    sizes = tuple(parts * each if k == axis else n for k, n in enumerate(type.sizes))
    ends = tuple(parts * each - size if k == axis else 0 for k in range(type.rank))
    made = tensor(type.dtype, sizes, device=type.device)
    return builder.add(
        "pad", [value], made, low=(0,) * type.rank, high=ends, value=_neutral(how, type.dtype)), parts


def _neutral(how: str, dtype: str) -> int | float | bool:
    """What changes no result of a reduction."""
    kind, bits = DTYPES[dtype].kind, 8 * DTYPES[dtype].itemsize
    if how in ("sum", "prod", "any", "all") or kind == "b":
        one = how in ("prod", "all", "min")
        return one if kind == "b" else float(one) if kind == "f" else int(one)
    if kind == "f":
        return float("-inf" if how == "max" else "inf")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "i" else (0, (1 << bits) - 1)
    return low if how == "max" else high
