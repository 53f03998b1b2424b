"""Tiles: what one program of a GPU does of a kernel, and with how many threads.

    softmax over i0:32768, stages j:4096     a program a row: down (i0), 1 at once; along (j), 4096
    add over i0:1000000                      along (i0), 1024 at once, 977 programs
    copy p0[i0 + i1*64] -> p1[i0*512 + i1]   a square: down (i0), 32; along (i1), 32

A tile has two dimensions. A kernel with reductions has its outer axes `down` and the walked ones
`along`: whole rows while they fit the registers of a program ("persistent"), else block by block
(`is_looped`). A kernel without reductions has all axes along one dimension, or, where it reads
along one axis and stores along another, those two in a square that turns in shared memory, or,
where it computes with positions, one of each axis but the last.

The numbers are from measurements on an H200 (research/gpu.md: schedule rules 1 to 3): rows of
16 to 64 elements a thread, 1k to 4k elements a program where rows are short, 4 warps at 4096.
"""

from collections.abc import Iterator
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.generate.moments import IN_ONE_WALK, in_one_walk
from preheat.generate.online import walks
from preheat.generate.triton_ops import FAR
from preheat.ir.devices import Device, device_of
from preheat.ir.hinted import estimate
from preheat.ir.loop import NUMBER, Axis, Index, Kernel, LoopOp
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import DTYPES

ROW_BYTES = 65536  # the longest row that one program has in its registers; 32768 floats would spill
PROGRAM_ELEMS = 2048  # of a program whose rows are short
# The longest row of two walks that one program has: a softmax of 4096 x 32768 in 16 bits takes 175 us so, 143 if
# each row is walked twice, back and forth.
HELD_BYTES = 32768
BLOCK_ELEMS = 4096  # of a row that is walked block by block
# Elements a thread of a program that has whole rows, up to so many threads. As fast as with 32 (softmax and layer norm of 256
# to 8192 columns within 2 %; with 8 a softmax takes 1.2 times as long), in half the text, so compiled in two thirds of the time.
ROW_ELEMS, WIDE_PROGRAM = 16, 512
# Rows up to which a program has 32: with 16, those of 67 floats, which begin anywhere, lie across warps (93 us for 262141, not 71).
NARROW_ROW = 256
FEW_ROWS = 2  # multiprocessors a row, and it gets four times the warps: 8.4 us for 8192 values, not 12
MANY_ROWS = 32  # programs for each multiprocessor: a block twice as long then is as fast as a copy
BUSY = ("erf",)  # computes long enough that few warps hide the memory: an exact gelu took 157 us so, not 179
FLAT_BYTES = 4096  # of the widest values that a program without reductions takes at once
COLUMN_BYTES = 128  # of a row of memory that programs reducing columns take at once
DEEP = 64  # rows of memory that they take at once, of 16 bits half as many
HELD_COLUMNS = 16384  # elements that a program has of columns that it would walk twice; of loads of short parts twice as many
LEAST_COLUMNS = 32
SHORT_ROWS = 256  # of a part, as those of images are
# Steps whose memory is on its way, of 64 columns of 16 bits by 32 rows: 65 us for a sum of 32768 x 4096, 68 with
# two, 66 with four or five; 128 columns, 64 rows, 8 warps or more parts take 66 to 76.
COLUMNS_AHEAD = 3
# Of a row of 16 bits where each program stores along its walk, too: 210 us for the gradient of bias and gelu, 32768 x
# 4096, in 32 parts by 8 warps; 64 columns by 4 warps in 16 parts take 238, and 219 in 32.
STORED_COLUMNS = 128
LEAST_TAKEN = 0.75  # of the columns that programs take of a row of memory
FOLD_ELEMS = 1024  # of the rows that a program with sums down the rows has at once
FOLD_AHEAD = 3  # steps whose memory is on its way: 210 us with 3, 351 with 1 (backward of a layer norm)
# Rows that a thread of it has its part of, loaded or summed, from which on these are 16 elements, not 32: two layer norms
# in turn of 32768 x 1024 take 105 us backward, where 32 would spill, not 193; compiled in half the time. Of fewer 32 are up to
# an eighth faster (13.4 us for one of 4096 x 768, not 15.3), since one warp waits for no other.
MANY_ROWS_HELD = 7
# And from which on they are 8 of rows of at most 1024: GPT-2's longest kernel (14 rows) is compiled in two thirds of the time, its step
# takes 10.4 ms either way. Of fewer 16 are faster: those two norms, of 32768 x 768 (9 rows), take 149 us, not 156.
MOST_ROWS_HELD = 12
VECTOR_BYTES = 16  # of memory that a thread loads at once
SQUARE = 32
# Of programs that have rows of memory below each other: columns, all elements, and loads that these rows share.
CHANNELS, CHANNEL_ELEMS, LEAST_SHARED = (256, 128, 64, 32), 4096, 3
SPREAD_BYTES = 64  # of what rows share, between the same bytes of neighbouring threads
SPREAD_ROWS, SPREAD_COLUMNS = 4, 256  # of programs for rows that are spread so, and the least that they fill
LEAST_SPREAD = 3 * SPREAD_COLUMNS
LINE_ELEMS = 4096  # of a line that a program has part of
LEAST_FULL = 0.9  # of the positions of programs that have parts of a line
INDEXING = ("floordiv", "remainder", "axis")  # arithmetic of positions
MOST_ELEMS = 1 << 17  # of a program, and more
FAR_ELEMS = 8  # steps through memory that share no transaction


SHARED_WARPS, SHARED_AHEAD = 4, 3  # of a program that shares rows; rows whose memory is on its way
# Threads of a multiprocessor, about, whose programs store rows behind the next one's words, two at the least; warps of one at the
# most: a layer norm of 256 x 262144 in 16 bits takes 81 us with 2 x 256 threads of 128 registers, 88 with 4 x 128 and half the part.
BEHIND_THREADS, BEHIND_WARPS = 384, 8


@dataclass(frozen=True, slots=True)
class Tile:
    """grid: axes of which a program has one position. down, along: axes of the two dimensions, of
    which it has `rows` and `columns` positions at once, powers of two. A program walks `steps` times
    `rows` positions down, one after another (of a kernel that folds; else 1), with the memory of so
    many of them on its way as `ahead` says. depth: positions of a product's walk that are multiplied at
    once (`products`), loaded `stages` blocks ahead; is_sum: they are added up as rows are, not by matrix units;
    is_interleaved: programs have one block after another, of every eighth row (`interleaved`).
    parts: programs that share each row, and wait for each other (`sharing`); of a launch run as many rows as find room.
    is_behind: they store a row when they have told of the next one (`behind`). registers: the most that a thread has, 0 for as
    many as the compiler likes."""

    grid: tuple[Axis, ...]
    down: tuple[Axis, ...]
    along: tuple[Axis, ...]
    rows: int
    columns: int
    is_looped: bool
    warps: int
    steps: int = 1
    ahead: int = 1
    depth: int = 0
    stages: int = 0
    is_sum: bool = False
    is_interleaved: bool = False
    parts: int = 0
    is_behind: bool = False
    registers: int = 0

    @property
    def programs(self) -> int:
        """How many programs a launch has."""
        blocks = -(-extent_of(self.down) // (self.rows * self.steps))
        if not self.is_looped:
            blocks *= -(-extent_of(self.along) // self.columns)
        return extent_of(self.grid) * blocks


def is_far_tile(tile: Tile) -> bool:
    """Whether positions need 64 bits."""
    count = extent_of((*tile.grid, *tile.down, *tile.along))
    if isinstance(count, Scalar):  # the same question for all tiles of a kernel
        return count >= FAR - MOST_ELEMS
    return tile.programs * max(tile.rows, tile.columns) >= FAR


def extent_of(axes: tuple[Axis, ...]) -> int:
    """The number of positions of `axes`."""
    count = 1
    for axis in axes:
        count *= axis.extent
    return count


def tile_of(kernel: Kernel, target: Target) -> Tile:
    """The tile of `kernel`, whose sizes are known."""
    device = device_of(target.arch)
    walked = next((stage.axes for stage in kernel.stages if stage.axes), ())
    if not walked:
        return square(kernel) or _lines(kernel) or _channels(kernel, device) or _flat(kernel, device)
    if kernel.shared:
        columns = power_of_two(-(-extent_of(walked) // kernel.shared))
        tile = Tile((), kernel.axes, walked, 1, columns, False, SHARED_WARPS, ahead=SHARED_AHEAD, parts=kernel.shared)
        return _behind(tile, device) if kernel.is_behind else tile
    if any(op.how for op in accesses(kernel)):
        return _folding(kernel, walked, device)
    if kernel.lane is not None:
        return _columns(kernel, walked, device)
    return _rows(kernel, walked, device)


def _behind(tile: Tile, device: Device) -> Tile:
    warps = min(BEHIND_WARPS, warps_of(tile.columns, 32, device))
    programs = max(2, BEHIND_THREADS // (warps * device.warp))
    return replace(tile, warps=warps, is_behind=True, registers=device.registers // (programs * warps * device.warp) // 8 * 8)


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()


def _rows(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> Tile:
    rows, length = extent_of(kernel.axes), power_of_two(extent_of(walked))
    joined, factors = in_one_walk(kernel), _shared_loads(kernel, walked)
    is_alone = rows * FEW_ROWS <= device.units  # what counts is how soon a program is done
    is_once = walks(joined) == 1 and not is_alone  # then nothing is gained by holding the row
    if factors > 1:
        columns = min(length, PROGRAM_ELEMS)
        warps = min(4, warps_of(2 * columns, 16, device))
        return Tile((), kernel.axes, walked, 2, columns, columns < length, warps)
    if length > (BLOCK_ELEMS if is_once else longest_held(kernel, walks(joined))):
        columns, warps = BLOCK_ELEMS, 8
        if factors:
            columns, warps = BLOCK_ELEMS // 4, 4
        elif walks(joined) > 1:  # one program a multiprocessor: the row is still in L2 when it comes again
            columns, warps = 4 * BLOCK_ELEMS, 32
        elif rows >= MANY_ROWS * device.units and _is_online(joined):
            columns = 2 * BLOCK_ELEMS
        return Tile((), kernel.axes, walked, 1, columns, True, warps)
    at_once = max(1, PROGRAM_ELEMS // length)
    while at_once > 1 and -(-rows // at_once) < 4 * device.units:
        at_once //= 2
    each = 8 if is_alone else row_elems(at_once, length)
    return Tile((), kernel.axes, walked, at_once, length, False, warps_of(at_once * length, each, device))


def row_elems(rows: int, length: int) -> int:
    """How many of the elements of a program that has so many whole rows a thread has."""
    return ROW_ELEMS if NARROW_ROW < length and rows * length <= ROW_ELEMS * WIDE_PROGRAM else 2 * ROW_ELEMS


def longest_held(kernel: Kernel, count: int) -> int:
    """The elements of the longest row that one program has, of a kernel that would walk it `count` times."""
    most = ROW_BYTES // loaded_bytes(kernel)[1]
    return HELD_BYTES // loaded_bytes(kernel)[1] if count == 2 else most


def _is_online(kernel: Kernel) -> bool:
    """Whether two reductions are in one walk of a kernel (`in_one_walk`)."""
    return any(op.how in IN_ONE_WALK for stage in kernel.stages for op in stage.body)


def _shared_loads(kernel: Kernel, walked: tuple[Axis, ...]) -> int:
    """The rows of memory that every row of a product is multiplied with: what is loaded along the only
    walk, the same for all rows. 0 where the walk stores something."""
    (walk, *others) = [stage for stage in kernel.stages if stage.axes]
    names, rows = ({axis.name for axis in axes} for axes in (walked, kernel.axes))
    terms = [
        {term for term, _ in op.index.terms} for op in walk.body
        if op.op == "load" and op.mask is None]
    has_rows = any(found & rows and found & names for found in terms)
    is_product = has_rows and not others and all(op.op != "store" for op in walk.body)
    return sum(bool(found) and found <= names for found in terms) if is_product else 0


def _folding(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> Tile:
    """Whole rows, one or a few after another, while the sums over them stay in registers."""
    fold = next(op for op in accesses(kernel) if op.how)
    names = {term for term, _ in fold.index.terms}
    count = extent_of(tuple(axis for axis in kernel.axes if axis.name not in names))
    length, at_once = power_of_two(extent_of(walked)), 1
    while at_once * length < FOLD_ELEMS and count % (2 * at_once) == 0:
        at_once *= 2
    inner = {axis.name for axis in walked}
    loads = {
        (op.param, op.index): DTYPES[op.dtype].itemsize for op in accesses(kernel)
        if op.op == "load" and not inner.isdisjoint(term for term, _ in op.index.terms)}
    held = len(loads) + sum(bool(op.how) for op in accesses(kernel))
    each = row_elems(at_once, length) if held >= MANY_ROWS_HELD else 2 * ROW_ELEMS
    if held >= MOST_ROWS_HELD and at_once * length <= FOLD_ELEMS:
        each = ROW_ELEMS // 2
    warps = warps_of(at_once * length, each, device)
    own = [size for (_, index), size in loads.items() if not inner.issuperset(term for term, _ in index.terms)]
    row_bytes = at_once * length * sum(own)
    ahead = min(FOLD_AHEAD, 1 + device.shared_bytes // 3 // max(row_bytes, 1))
    return Tile((), kernel.axes, walked, at_once, length, False, warps, count // at_once, ahead)


def _columns(kernel: Kernel, walked: tuple[Axis, ...], device: Device) -> Tile:
    columns, length = extent_of(kernel.axes), power_of_two(extent_of(walked))
    at_once = max(16, COLUMN_BYTES // loaded_bytes(kernel)[0])
    while at_once > 16 and -(-columns // at_once) < 2 * device.units:
        at_once //= 2
    at_once = min(at_once, power_of_two(columns))
    is_half = at_once * 2 == COLUMN_BYTES
    if is_half and _stores_along(kernel, walked) and columns >= 4 * device.units * STORED_COLUMNS:
        at_once = STORED_COLUMNS
    is_alone = -(-columns // at_once) <= device.units  # what counts is how soon a program is done
    deep = min(length, DEEP // 2 if is_half else 4 * DEEP if is_alone else DEEP)
    grid, down = parts_apart(kernel, at_once)
    held = _held(kernel, at_once, length) if deep < length and (walks(in_one_walk(kernel)) > 1 or grid) else 0
    if held:
        return Tile(grid, down, walked, held, length, False, warps_of(held * length, 32, device))
    is_ahead = deep < length and (is_half or _is_online(in_one_walk(kernel)))
    warps, ahead = warps_of(at_once * deep, 16, device), COLUMNS_AHEAD if is_ahead else 1
    return Tile(grid, down, walked, at_once, deep, deep < length, warps, 1, ahead)


def _stores_along(kernel: Kernel, walked: tuple[Axis, ...]) -> bool:
    names = {axis.name for axis in walked}
    return any(
        op.op == "store" and not names.isdisjoint(term for term, _ in op.index.terms) for op in accesses(kernel))


def _held(kernel: Kernel, at_once: int, length: int) -> int:
    """The columns, `at_once` at the most, of which a program has all that it reduces, each element loaded once; 0 for
    none: of what is walked twice, or of short parts of them, whose loads are all on their way at the same time."""
    if walks(in_one_walk(kernel)) > 1:
        return at_once if at_once * length <= HELD_COLUMNS else 0
    if length > SHORT_ROWS:
        return 0
    loads = sum(op.op == "load" for stage in kernel.stages if stage.axes for op in stage.body)
    fitting = min(at_once, 2 * HELD_COLUMNS // (length * loads))
    return 1 << fitting.bit_length() - 1 if fitting >= LEAST_COLUMNS else 0


def parts_apart(kernel: Kernel, at_once: int) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The axes of a kernel that reduces columns, those apart of which a program has one position: where there are
    columns enough its columns are neighbours in memory then, whatever their number."""
    *others, lane = kernel.axes
    extent = estimate(lane.extent)
    is_full = extent / (-(-extent // at_once) * at_once) >= LEAST_TAKEN if extent else False
    is_long = lane.name == kernel.lane and extent >= at_once and (is_full or isinstance(lane.extent, Scalar))
    return (tuple(others), (lane,)) if is_long else ((), kernel.axes)


def _flat(kernel: Kernel, device: Device) -> Tile:
    count = extent_of(kernel.axes)
    at_once, each = flat_elems(kernel)
    length = kernel.axes[1].extent if len(kernel.axes) == 2 else 0
    if length >= LEAST_SPREAD and length % _vector(kernel) and is_spread(kernel):
        return Tile((), kernel.axes[:1], kernel.axes[1:], SPREAD_ROWS, SPREAD_COLUMNS, False, 4)
    while at_once > 128 and -(-count // at_once) < 2 * device.units:
        at_once //= 2
    return Tile((), (), kernel.axes, 1, at_once, False, warps_of(at_once, each, device))


def is_spread(kernel: Kernel) -> bool:
    """Whether rows that begin anywhere are better loaded one element a thread: of what all rows share, which no thread loads
    several elements of at once then, those of a warp lie in many lines of a cache, for each element of a thread. (A softmax of
    32767 x 1021 columns in 16 bits took 102 us so on an H200, 62 of 32768 x 1024.)"""
    (*_, first, last), found = kernel.axes, {}
    for op in accesses(kernel):
        terms = dict(op.index.terms)
        if op.op == "load" and terms.get(last.name) == 1 and first.name not in terms:
            found[op.param, op.index] = DTYPES[op.dtype].itemsize
    return _vector(kernel) * sum(found.values()) >= SPREAD_BYTES


def _vector(kernel: Kernel) -> int:
    """The elements that a thread loads at once, of the narrowest."""
    return VECTOR_BYTES // min(DTYPES[op.dtype].itemsize for op in accesses(kernel))


def flat_elems(kernel: Kernel) -> tuple[int, int]:
    """The most elements that a program without reductions takes at once, and how many a thread."""
    is_busy = any(op.op in BUSY for stage in kernel.stages for op in stage.body)
    return max(256, FLAT_BYTES * (2 if is_busy else 1) // itemsize(kernel)), 32 if is_busy else 8


def _lines(kernel: Kernel) -> Tile | None:
    """Parts of lines along the last axis, where much is computed of the other axes' positions: it is
    the same for a program."""
    body = [op for stage in kernel.stages for op in stage.body]
    if len(kernel.axes) < 2 or not any(op.op in INDEXING for op in body):
        return None
    *grid, last = kernel.axes
    at_once = LINE_ELEMS
    while at_once > 512 and last.extent / (-(-last.extent // at_once) * at_once) < LEAST_FULL:
        at_once //= 2
    if last.extent / (-(-last.extent // at_once) * at_once) < LEAST_FULL:
        return None
    return Tile(tuple(grid), (), (last,), 1, at_once, False, at_once // 512)


def _channels(kernel: Kernel, device: Device) -> Tile | None:
    """Rows of memory below each other, where much is loaded that is the same for all of them: once for a program."""
    *down, lane = kernel.axes
    loads = [op.index for op in accesses(kernel) if op.op == "load"]
    are_known = not any(isinstance(axis.extent, Scalar) for axis in kernel.axes)
    if not down or not are_known or any(index.stride(lane.name) != 1 for index in loads):
        return None
    shared = {(op.param, op.index) for op in accesses(kernel) if op.op == "load" and len(op.index.terms) == 1}
    columns = next((k for k in CHANNELS if lane.extent % k == 0), 0)
    if not columns or len(shared) < LEAST_SHARED:
        return None
    count = extent_of(tuple(down))
    rows = min(CHANNEL_ELEMS // columns, power_of_two(count))
    while rows > 4 and -(-count // rows) * (lane.extent // columns) < 2 * device.units:
        rows //= 2
    return Tile((), tuple(down), (lane,), rows, columns, False, warps_of(rows * columns, 32, device))


def square(kernel: Kernel) -> Tile | None:
    """A square of the axes along which is stored and others along which memory is consecutive."""
    stores = [op.index for op in accesses(kernel) if op.op == "store"]
    others = [op.index for op in accesses(kernel) if op.op == "load"] + stores[1:]
    along = _consecutive(kernel, stores[0]) if stores else None
    if along is None:
        return None
    for index in others:
        down = _consecutive(kernel, index)
        if down is not None and down != along and abs(estimate(index.stride(along.name))) >= FAR_ELEMS:
            columns = _chain(kernel, stores[0], along, (down,))
            rows = _chain(kernel, index, down, columns)
            if min(estimate(extent_of(rows)), estimate(extent_of(columns))) < SQUARE // 2:
                return None
            grid = tuple(axis for axis in kernel.axes if axis not in (*rows, *columns))
            return Tile(grid, rows, columns, SQUARE, SQUARE, False, 4)
    return None


def _chain(kernel: Kernel, index: Index, last: Axis, taken: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """`last`, and where it is short those before it that go on in memory where it ends: channels in groups."""
    chain, extent = [last], last.extent
    known = [axis for axis in kernel.axes if axis not in taken and isinstance(axis.extent, int) and axis.extent != 1]
    while last in known and extent < SQUARE:
        free = (axis for axis in known if axis not in chain)
        before = next((axis for axis in free if index.stride(axis.name) == extent), None)
        if before is None:
            break
        chain.insert(0, before)
        extent = extent * before.extent
    return tuple(chain)


def _consecutive(kernel: Kernel, index: Index) -> Axis | None:
    """The axis whose neighbours are neighbours in memory."""
    return next((axis for axis in kernel.axes if index.stride(axis.name) == 1), None)


def warps_of(elems: int, each: int, device: Device) -> int:
    """Warps for `elems` elements, about `each` a thread."""
    return max(1, min(device.most_warps, power_of_two(elems // (device.warp * each))))


def accesses(kernel: Kernel) -> Iterator[LoopOp]:
    return (op for stage in kernel.stages for op in stage.body if op.op in ("load", "store"))


def loaded_bytes(kernel: Kernel) -> tuple[int, int]:
    """The sizes of the narrowest and of the widest element that is loaded along the walk."""
    walked = {axis.name for stage in kernel.stages for axis in stage.axes}
    loads = [op for op in accesses(kernel) if op.op == "load"]
    sizes = [
        DTYPES[op.dtype].itemsize for op in loads if walked & {term for term, _ in op.index.terms}]
    return min(sizes, default=4), max(sizes, default=4)


def itemsize(kernel: Kernel) -> int:
    """The size of the widest element in memory."""
    in_memory = [param for param in kernel.params if param.name != NUMBER] or kernel.params
    return max(DTYPES[param.dtype].itemsize for param in in_memory)
