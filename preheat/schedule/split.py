"""Long reductions in two steps, so that threads and caches have parts to work on.

    %1: f32[] = sum(%0: f32[65536], axes=(0,))
      ->
    %1: f32[64, 1024] = reshape(%0)
    %2: f32[64] = sum(%1, axes=(1,))            64 rows for the threads
    %3: f32[] = sum(%2, axes=(0,))

Two cases: too few rows to feed the threads; and a reduction across so many rows of memory that
walking one vector of columns down all of them leaves every page and cache line for the next vector
to fetch again. A sum of exponentials below a largest value that was cut, and one of squares about a mean, are
cut with it (`partial`).
Sums become more exact: partial sums are shorter. On a GPU an axis that no fitting number of parts divides,
or whose size is not known, is padded by what changes no result, and what is one in memory is cut as one.
Requires and gives level core.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.hinted import estimate, least, longest
from preheat.ir.ops import CORE
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import DTYPES, TensorType, contiguous_strides, tensor
from preheat.schedule import cost
from preheat.schedule.abreast import reduce_abreast, rows_abreast
from preheat.schedule.open_parts import GPU_COLUMNS, MOST_ROWS_OF_PARTS, ceiling, parts_across, parts_along
from preheat.schedule.partial import Cut, exponentials, squares, write_parts, write_squares

SPLITTABLE = frozenset("sum prod max min any all".split())
FEW_ROWS = 4  # more rows than this are spread over threads as they are, and stay fused
LONG_ELEMS = 1 << 16  # below this one thread is done before another has started
TALL_ROWS = 4096  # rows under one column vector that do not stay cached
PARTS = (16, 64, 512)  # least, best and most parts of a reduction for the threads
CHUNK = (32, 64, 256)  # rows of a part of a tall reduction
ALIGNED = 8  # elements that threads load at once
# For a GPU: the least that a part of a reduction has to do.
GPU_PART_ROWS, GPU_PART_ELEMS = 256, 8192
# The same of images with channels last: rows of a part, the least and those that a program has in its registers, and
# the most parts.
IMAGE_ROWS, MOST_IMAGE_PARTS = (128, 224), 512
GPU_STEPS = (64, 4096)  # what the elements of a padded part are a multiple of, across and along
# How often all multiprocessors are filled, and where what is reduced across is stored, too (`tiles.STORED_COLUMNS`).
WAVES, STORED_WAVES = 4, 8
# What the second step walks of rows abreast where there are few columns: rows, and elements of those that are one.
ROWS_OF_FEW, ELEMS_OF_PARTS = 1024, 16384
FOLD_ROWS, FOLD_COLUMNS = 8, 4096  # the fewest rows that a program walks; a row for four warps


def split_reductions(
    graph: Graph, target: Target, whole: Collection[int] = frozenset(),
) -> Graph:
    """`graph` with each long reduction in two, but for those that give the values `whole`."""
    types = dict(graph.types())
    ops: list[Op] = []
    builder = Builder("core", ops=ops, next_id=graph.next_id(), type_of=types)
    rows = _row_shapes(graph, types) if target.is_gpu else frozenset()
    largest_of = exponentials(graph, types) if target.is_gpu else {}
    mean_of = squares(graph, types) if target.is_gpu else {}
    cuts: dict[int, Cut] = {}  # by the value that was cut
    plain, stored = _Plain(graph, types), _stored(graph) if target.is_gpu else frozenset()
    pending = list(reversed(graph.ops))
    while pending:
        op = pending.pop()
        first = op.results[0] if op.results else -1  # a library call may give nothing
        largest = largest_of.get(first)
        if largest in cuts:
            write_parts(builder, op, cuts[largest], largest)
            continue
        total, mean = mean_of.get(first, (-1, -1))
        if total in cuts:
            write_squares(builder, op, cuts[total], mean)
            continue
        is_whole = op.results[0] in whole
        flat = _flattened(op, types, plain) if target.is_gpu else None
        if flat is None and target.is_gpu and not is_whole and _is_open(op, types):
            pending += reversed(_in_turn(builder, op, types))
            continue
        folded = None if is_whole else _fold_parts(flat, rows)
        abreast = 1 if is_whole or folded else _abreast(op, flat, plain)
        if abreast > 1:
            cuts[op.result] = reduce_abreast(
                builder, op, flat.type, abreast, *_parts_abreast(flat.type, abreast), _wide(op), _padded)
            continue
        parts = None if is_whole else folded or _parts(op, types, target, flat, stored)
        if parts is None:
            ops.append(op)
        else:
            matrix = flat or Matrix(types[op.args[0].id], op.attr("axes"))
            cuts[op.result] = split_in_two(builder, op, matrix, *parts)
    return replace(graph, ops=tuple(ops))


class Matrix(NamedTuple):
    """What the operand of a reduction is taken for, and the axes of that which are reduced."""

    type: TensorType
    axes: tuple[int, ...]


class _Plain:
    """Which values are, element by element, made of memory that lies as they do."""

    def __init__(self, graph: Graph, types: Mapping):
        self.types, self.by_value = types, {r: op for op in graph.ops for r in op.results}
        self.inputs = {given.id for given in graph.inputs}
        self.found: dict[int, bool] = {}

    def __call__(self, value: int) -> bool:
        if value not in self.found:
            self.found[value] = self._look(value)
        return self.found[value]

    def narrowest(self, value: int) -> int:
        """Bytes of the narrowest elements of memory that a plain value is made of."""
        op = self.by_value.get(value)
        if op is None or op.name in ("library", "full"):
            return DTYPES[self.types[value].dtype].itemsize
        return min(self.narrowest(ref) for ref in op.refs())

    def _look(self, value: int) -> bool:
        type, op = self.types[value], self.by_value.get(value)
        if not isinstance(type, TensorType) or type.strides != contiguous_strides(type.sizes):
            return False
        if op is None or op.name == "library":
            return op is not None or value in self.inputs
        if op.name == "full":
            return True
        return CORE[op.name].kind == "elementwise" and all(
            self.types[ref].sizes == type.sizes and (self(ref) or self._is_one(ref)) for ref in op.refs())

    def _is_one(self, value: int) -> bool:
        """Whether it is one number everywhere."""
        op = self.by_value.get(value)
        return op is not None and op.name == "expand" and self.types[op.args[0].id].elems == 1


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


def _flattened(op: Op, types, plain: _Plain) -> Matrix | None:
    """The matrix whose columns `op` reduces, or whose rows: all axes of its operand but the last, or all the last
    ones, which are one in memory. None for other reductions."""
    if op.name not in SPLITTABLE:
        return None
    value, axes = op.args[0].id, tuple(op.attr("axes"))
    type: TensorType = types[value]
    is_plain = type.elems != 0 and type.strides == contiguous_strides(type.sizes)
    if type.rank < 2 or not is_plain or not axes:
        return None
    if axes == tuple(range(type.rank - 1)):
        sizes = product(type.sizes[:-1]), type.sizes[-1]
        return Matrix(tensor(type.dtype, sizes, device=type.device), (0,))
    kept = type.rank - len(axes)
    if len(axes) < 2 or axes != tuple(range(kept, type.rank)) or not plain(value):
        return None
    rows, length = (type.sizes[:kept] and (product(type.sizes[:kept]),)), product(type.sizes[kept:])
    return Matrix(tensor(type.dtype, (*rows, length), device=type.device), (len(rows),))


def _fold_parts(flat: Matrix | None, rows: frozenset[tuple[int, int]]) -> tuple[int, Dim, Dim] | None:
    """(axis, parts, elements of each) of a sum down rows that are reduced themselves: one kernel may do both,
    a part of the rows a program."""
    if flat is None or flat.axes != (0,) or any(isinstance(size, Scalar) for size in flat.type.sizes):
        return None
    if flat.type.sizes not in rows or flat.type.sizes[1] > cost.FOLDED_ELEMS:
        return None
    count, columns = flat.type.sizes
    best = cost.GPU_FEW_PROGRAMS * max(1, min(4, FOLD_COLUMNS // columns))  # short rows take few warps
    parts = _divisor(count, cost.LEAST_FOLDING, best, count // FOLD_ROWS)
    return None if parts is None else (0, parts, count // parts)


def _stored(graph: Graph) -> frozenset[int]:
    """The values that are results, or of which only a cast is one: whoever reduces them stores them, too."""
    found = set(graph.outputs)
    for op in reversed(graph.ops):
        if op.name == "cast" and op.result in found:
            found.add(op.args[0].id)
    for op in graph.ops:
        if op.name == "cast" and op.args[0].id in found:
            found.add(op.result)
    return frozenset(found)


def _parts(
    op: Op, types, target: Target, flat: Matrix | None, stored: Collection[int] = (),
) -> tuple | None:
    """(axis, parts, elements of each) to cut, of the operand or of what it is taken for (`_flattened`), or None
    to leave the reduction whole. The parts may have more elements than the axis. A fourth are axes of which each
    position is a part, too."""
    if op.name not in SPLITTABLE:
        return None
    type, axes = flat or Matrix(types[op.args[0].id], op.attr("axes"))
    if not axes or type.elems == 0:
        return None
    axis = max(axes, key=lambda a: estimate(type.sizes[a]))
    if len(axes) > 1 and target.is_gpu:  # whole rows to each part, if there are enough
        axis = next((a for a in axes if estimate(type.sizes[a]) >= cost.GPU_FEW_PROGRAMS), axis)
    count = estimate(product(type.sizes[a] for a in axes))
    rows = estimate(type.elems) // count
    is_across = _is_across(type, axes)
    if target.is_gpu and is_across and len(axes) > 1 and not any(isinstance(n, Scalar) for n in type.sizes):
        return _image_parts(type, axes, count, rows)
    step = 1 if len(axes) > 1 else GPU_STEPS[not is_across]
    if isinstance(type.sizes[axis], Scalar):
        open_parts = parts_across if is_across else parts_along
        found = open_parts(type, axes, axis, step) if target.is_gpu else None
    else:
        by = _gpu_parts if target.is_gpu else _cpu_parts
        found = by(type.sizes[axis], count, rows, is_across, step, *((STORED_WAVES,) if is_across and op.args[0].id in stored else ()))
    return (axis, *found) if found and estimate(found[0]) < count else None


def _abreast(op: Op, flat: Matrix | None, plain: _Plain) -> int:
    """How many rows of a matrix whose columns are reduced are taken as one."""
    if flat is None or flat.type.rank != 2 or flat.axes != (0,) or not plain(op.args[0].id):
        return 1
    return rows_abreast(flat.type, plain.narrowest(op.args[0].id))


def _parts_abreast(type: TensorType, abreast: int) -> tuple[Dim, Dim]:
    """The parts of a reduction whose rows are taken so many at a time, and the elements of each."""
    rows, columns = ceiling(type.sizes[0], abreast), type.sizes[1] * abreast
    wide = tensor(type.dtype, (rows, columns), device=type.device)
    most, step = MOST_ROWS_OF_PARTS // abreast, GPU_STEPS[0]
    if isinstance(rows, Scalar):
        found = parts_across(wide, (0,), 0, step, longest((most, least((ROWS_OF_FEW // abreast, ELEMS_OF_PARTS // columns)))))
    else:
        found = _gpu_parts(rows, rows, estimate(columns), True, step, most=most)
    return found or (1, rows)


def _cpu_parts(
    size: int, count: int, rows: int, is_across: bool, step: int, waves: int = 0,
) -> tuple[int, int] | None:
    """Parts of an axis of `size` and the elements of each, when `count` elements are reduced for each of `rows`
    results. step: what is best a divisor of these elements."""
    parts = None
    if rows < FEW_ROWS and count >= LONG_ELEMS:
        parts = _divisor(size, *PARTS)
    elif count >= TALL_ROWS and is_across:
        each = _divisor(size, *CHUNK)
        parts = each and size // each
    return parts and (parts, size // parts)


def _gpu_parts(
    size: int, count: int, rows: int, is_across: bool, step: int, waves: int = WAVES, most: int = MOST_ROWS_OF_PARTS,
) -> tuple[int, int] | None:
    """As `_cpu_parts`: enough programs, and enough for each of them to do."""
    programs = rows // (GPU_COLUMNS if is_across else 1)
    least = GPU_PART_ROWS if is_across else GPU_PART_ELEMS
    if programs >= cost.GPU_FEW_PROGRAMS // 2 or count < 2 * least:
        return None
    if not is_across and count <= cost.GPU_ROW_ELEMS:
        return None  # one program has the row in its registers, for what else is done with it
    best = min(-(-waves * cost.GPU_FEW_PROGRAMS // max(programs, 1)), count // least)
    best = min(best, most) if is_across else best
    parts = _divisor(size, 2, best, 2 * best)
    if parts is not None and 2 * parts >= best and (is_across or size // parts % ALIGNED == 0):
        return parts, size // parts
    each = -(-size // (best * step)) * step
    parts = -(-size // each)
    return (parts, each) if parts > 1 else None


def _image_parts(
    type: TensorType, axes: tuple[int, ...], count: int, rows: int,
) -> tuple[int, int, int, tuple[int, ...]] | None:
    """As `_gpu_parts`, of images with channels last: parts of images, or some images each."""
    programs, (least, held) = max(1, rows // GPU_COLUMNS), IMAGE_ROWS
    best = min(max(-(-2 * cost.GPU_FEW_PROGRAMS // programs), count // held), count // least, MOST_IMAGE_PARTS)
    if programs >= cost.GPU_FEW_PROGRAMS // 2 or best < 2:
        return None
    kept, parts = [], 1
    for axis in sorted(axes, key=lambda a: type.strides[a], reverse=True):
        size, wanted = type.sizes[axis], best / parts
        divisor = min(
            (k for k in range(1, size + 1) if size % k == 0), key=lambda k: max(k / wanted, wanted / k))
        if divisor < size:
            break
        kept.append(axis)
        parts *= size
    if not kept or divisor not in (1, size):
        return axis, divisor, size // divisor, tuple(kept)
    return kept[-1], type.sizes[kept[-1]], 1, tuple(kept[:-1])


def _is_across(type: TensorType, axes: tuple[int, ...]) -> bool:
    """The axis along which memory is consecutive is kept."""
    return any(
        k not in axes and s == 1 and n != 1
        for k, (n, s) in enumerate(zip(type.sizes, type.strides))
    )


def _divisor(size: int, least: int, best: int, most: int) -> int | None:
    """The divisor of `size` between `least` and `most` that is nearest to `best`."""
    found = [k for k in range(least, min(most, size) + 1) if size % k == 0]
    return min(found, key=lambda k: abs(k - best), default=None)


def split_in_two(
    builder: Builder, op: Op, matrix: Matrix, axis: int, parts: Dim, cut: Dim, kept: tuple[int, ...] = (),
) -> Cut:
    """Appends the two reductions; the second gives `op`'s own value. matrix: what the operand is taken for;
    its `axis` becomes so many parts of `cut` elements, and the axes `kept` are left to the second reduction."""
    value, (type, axes) = op.args[0].id, matrix
    if type.sizes != builder.type_of[value].sizes:
        value = builder.add("reshape", [value], type)
    dtype = _wide(op)
    if dtype != op.type.dtype:
        wide = replace(type, dtype=dtype)
        value = builder.add("cast", [value], wide, dtype=dtype)
    is_padded = isinstance(type.sizes[axis], Scalar) or parts * cut != type.sizes[axis]
    if is_padded:
        value = _padded(builder, op.name, value, axis, parts * cut)
    sizes = (*type.sizes[:axis], parts, cut, *type.sizes[axis + 1 :])
    given = builder.type_of[value]
    strides = (
        *given.strides[:axis],
        given.strides[axis] * cut,
        given.strides[axis],
        *given.strides[axis + 1 :],
    )
    value = builder.add("reshape", [value], TensorType(given.dtype, sizes, strides, type.device))
    first = tuple(a if a < axis else a + 1 for a in axes if a not in kept)
    made = _as_laid(builder.type_of[value], tuple(1 if a in first else n for a, n in enumerate(sizes)), dtype)
    found = builder.add(op.name, [value], made, axes=first, keepdim=True)
    second = tuple(sorted((axis, *(a if a < axis else a + 1 for a in kept))))
    done = Cut(value, found, first, second, product(sizes[a] for a in first), type.sizes[axis] if is_padded else None)
    total = tuple(1 if a in first or a in second else n for a, n in enumerate(sizes))
    value = builder.add(op.name, [done.parts], tensor(dtype, total, device=type.device), axes=second, keepdim=True)
    if dtype != op.type.dtype:
        result = tensor(op.type.dtype, total, device=type.device)
        value = builder.add("cast", [value], result, dtype=op.type.dtype)
    builder.append(Op("reshape", (Ref(value),), op.results, op.types))
    return done


def _as_laid(type: TensorType, sizes: tuple[Dim, ...], dtype: str) -> TensorType:
    """A tensor of `sizes` with its axes in memory as `type` has them, where it is known which come first."""
    strides, step = [0] * len(sizes), 1
    if any(isinstance(n, Scalar) for n in (*type.sizes, *type.strides, *sizes)):
        return tensor(dtype, sizes, device=type.device)
    for axis in sorted(range(len(sizes)), key=lambda a: (type.strides[a], -a)):
        strides[axis], step = step, step * sizes[axis]
    return TensorType(dtype, sizes, tuple(strides), type.device)


def _padded(builder: Builder, how: str, value: int, axis: int, length: Dim) -> int:
    """`value` with its axis padded to `length`."""
    type = builder.type_of[value]
    sizes = tuple(length if k == axis else n for k, n in enumerate(type.sizes))
    ends = tuple(length - n if k == axis else 0 for k, n in enumerate(type.sizes))
    made = tensor(type.dtype, sizes, device=type.device)
    return builder.add(
        "pad", [value], made, low=(0,) * type.rank, high=ends, value=_neutral(how, type.dtype))


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
