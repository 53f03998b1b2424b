"""Walks and programs that need no mask: most of them, whether sizes divide or not.

    for start in range(0, s1, 4096):             full = s1 // 4096 * 4096
        x = start + tl.arange(0, 4096)           for start in range(0, full, 4096):          no mask
        is_x = x < s1                              ..
        .. mask=is_x ..                    ->    for start in range(full, s1, 4096):         the last block
                                                   .. mask=is_x ..

Masked memory is loaded element by element where the mask may end anywhere, and each masked element takes
instructions and registers of its own. So what is walked block by block is walked without masks as far as
all of a block is there. Elements one after the other, and parts of a padded axis that programs have, are
asked once a program. A walk that is not the first goes back over the row: what came last is in L2 still
(softmax of 4096 x 32768 in 16 bits: 143 us on an H200, 1024 x 131072 171; forward again 179).

Guarantees: the values of masked walks, the order of sums in walks that go back apart.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from preheat.generate.moments import MOMENTS, begin_masked
from preheat.generate.nest import operands
from preheat.generate.online import are_aligned, lanes_of, walks
from preheat.generate.quotients import is_parted, row_of
from preheat.generate.tiles import BLOCK_ELEMS, COLUMNS_AHEAD, VECTOR_BYTES, Tile, accesses, extent_of, flat_elems
from preheat.ir.hinted import estimate, holds
from preheat.ir.loop import Index, Kernel, LoopOp, Stage
from preheat.ir.scalar import Dim, Scalar
from preheat.ir.types import DTYPES

UNROLLED = 4  # blocks of a walk of any length whose memory is on its way at once
WORD_BYTES = 4
LIGHT_ELEMS = 8  # a thread of those behind a mask
FIRSTS = ("argmax", "argmin")  # reductions that look where a walk begins


class Bound(NamedTuple):
    """A mask: base + the positions along some axes times their strides < limit."""

    mask: int
    base: Dim
    strides: Mapping[str, Dim]
    limit: Dim

    @property
    def index(self) -> Index:
        """What is below the limit, as a place in memory."""
        return Index(self.base, tuple(self.strides.items()))


def bounds_of(kernel: Kernel) -> tuple[Bound, ...]:
    """The masks of loads of `kernel` that say where padded memory ends."""
    made = {op.id: op for stage in kernel.stages for op in stage.body if op.id >= 0}
    joined = {  # with more than memory and what stands in for it
        value for op in made.values() for place, value in enumerate(op.args) if op.op != "where" or place}
    found, known = [], {}
    for number in dict.fromkeys(op.mask for op in accesses(kernel) if op.mask is not None):
        op = made[number]
        if number in joined:
            continue
        parts = [_affine(arg, made, known) for arg in op.args] if op.op == "lt" else []
        if parts and None not in parts and not parts[1][1]:
            found.append(Bound(number, *parts[0], parts[1][0]))
    return tuple(found)


def _affine(value: int, made: Mapping[int, LoopOp], known: dict[int, Any]) -> tuple[Dim, dict[str, Dim]] | None:
    """A value as base and strides, None where it is no sum of multiples of positions."""
    if value not in known:
        known[value] = _terms(made[value], made, known)
    return known[value]


def _terms(op: LoopOp, made: Mapping[int, LoopOp], known: dict[int, Any]) -> tuple[Dim, dict[str, Dim]] | None:
    if op.op == "axis":
        return 0, {op.axis: 1}
    if op.op == "const":
        is_whole = isinstance(op.other, int) or isinstance(op.other, Scalar) and op.other.type == "int"
        return (op.other, {}) if is_whole else None
    if op.op not in ("add", "mul"):
        return None
    parts = [_affine(arg, made, known) for arg in op.args]
    if None in parts:
        return None
    (base, strides), (other, more) = parts
    if op.op == "add":
        is_apart = strides.keys().isdisjoint(more)
        return (base + other, {**strides, **more}) if is_apart else None
    if strides and more:
        return None
    (base, strides), factor = (parts[0], other) if not more else (parts[1], base)
    return base * factor, {axis: stride * factor for axis, stride in strides.items()}


def idle_ops(kernel: Kernel, known: Collection[int]) -> frozenset[int]:
    """The values that nothing needs where the masks `known` hold: these, and what only they are made of."""
    found = set(known)
    if known:
        users: dict[int, list[int]] = {}
        ops = [op for stage in kernel.stages for op in stage.body]
        for op in ops:
            for value in operands(op):
                users.setdefault(value, []).append(op.id)
        for op in reversed(ops):
            if op.id >= 0 and op.id in users and found.issuperset(users[op.id]):
                found.add(op.id)
    return frozenset(found)


def are_along(kernel: Kernel, tile: Tile) -> bool:
    """Rows of memory lie along the walk, so any position down will do: those that are not there are the last
    one, which is loaded again and not stored. Masks for each element of a row would take a third more
    registers (layer norm over 67 floats, 16 rows at once: 96 of a thread, not 72)."""
    along = {axis.name for axis in tile.along}
    walked = [op.index for op in accesses(kernel) if not along.isdisjoint(term for term, _ in op.index.terms)]
    return not any(holds("eq", index.stride(tile.down[-1].name), 1) for index in walked)


# ---------------------------------------------------------------------------- walks
def write_walk(writer: Any, stage: Stage) -> None:
    """Writes (by `writer`, of `triton`) the walk of `stage`, block by block."""
    tile = writer.tile
    total, columns = extent_of(tile.along), tile.columns
    rooms = _rooms(writer)
    is_even, is_back = holds("eq", total % columns, 0), _goes_back(writer, stage)
    count = writer.count(tile.along)
    if is_even and not rooms and not _are_rows_there(writer):
        _loop(writer, stage, "0", count, is_back, (), isinstance(total, Scalar))
        return
    full = count
    for room in rooms.values():
        full = f"tl.minimum({full}, {room})"
    if rooms:
        full = f"tl.maximum({full}, 0)"
    is_known, rows = not rooms and not isinstance(total, Scalar), _are_rows_there(writer)
    full = str(total // columns * columns) if is_known else f"{full} // {columns} * {columns}"
    if rows:
        full = f"tl.where({rows}, {full}, 0)"
    writer.emit(f"full = {full}")
    parts = [("0", "full", tuple(rooms)), ("full", count, None)]
    for first, last, known in reversed(parts) if is_back else parts:
        _loop(writer, stage, first, last, is_back and known is not None, known, not is_known)


def _goes_back(writer: Any, stage: Stage) -> bool:
    walks = [each for each in writer.kernel.stages if each.axes]
    is_plain = not any(op.op == "reduce" and op.how in (*FIRSTS, *MOMENTS) for op in stage.body)
    return bool(walks.index(stage) % 2) and is_plain and writer.is_flat


def _loop(
    writer: Any, stage: Stage, first: str, last: str, is_back: bool, known: Collection[int] | None,
    is_open: bool,
) -> None:
    """A walk from `first` to `last`, without masks where `known` says which of the kernel's own hold. is_open: how
    many blocks these are, only the program knows."""
    tile, outside, masks = writer.tile, dict(writer.same), dict(writer.masks)
    sums = [op for op in stage.body if op.how in MOMENTS]
    if known is None and sums:
        for op in sums:
            begin_masked(writer, op)
        if all(op.how in MOMENTS for op in stage.body if op.op == "reduce"):  # others have an element for each of a whole block
            writer.tile, writer.is_light = replace(tile, columns=lanes_of(writer).so_far[-1]), True
    loop = f"range({first}, {last}, {writer.tile.columns})"
    if known is not None and _is_ahead(writer):
        loop = f"tl.{loop[:-1]}, num_stages={tile.ahead})"
    elif known is not None and is_open and sums and _is_narrow(writer) and are_aligned(writer):
        loop = f"tl.{loop[:-1]}, num_stages={COLUMNS_AHEAD})"
    elif known is not None and (is_open or sums) and (writer.is_flat or writer.kernel.lane) and walks(writer.kernel) == 1:
        loop = f"tl.{loop[:-1]}, loop_unroll_factor={UNROLLED})"
    writer.emit(f"for {'back' if is_back else 'start'} in {loop}:")
    writer.depth += 1
    if is_back:
        writer.emit(f"start = {last} - {tile.columns} - back")
    writer.along("start", is_masked=known is None)
    if known is not None:
        writer.masks.pop("x", None)
        if _are_rows_there(writer):
            writer.masks.pop("y")
        writer.set_known(known)
    for op in stage.body:
        writer.operation(op, True)
    writer.depth -= 1
    writer.same, writer.masks, writer.tile, writer.is_light = outside, masks, tile, False
    writer.set_known(())


def _is_narrow(writer: Any) -> bool:
    """Blocks of 16 bits of a row, of which loads of several in a turn come one after the other."""
    widths = {DTYPES[op.dtype].itemsize for op in accesses(writer.kernel) if op.op == "load"}
    return writer.is_flat and writer.tile.columns <= BLOCK_ELEMS and min(widths) < WORD_BYTES


def _rooms(writer: Any) -> dict[int, str]:
    """For each bound that is one of the walk: how much of it is within it for all rows of the program."""
    found = {}
    for bound in writer.bounds:
        room = _room(writer, bound)
        if room is not None:
            found[bound.mask] = room
    return found


def _room(writer: Any, bound: Bound) -> str | None:
    tile = writer.tile
    names = [axis.name for axis in tile.along]
    each = bound.strides.get(names[0], 0) if len(names) == 1 else 0
    if not holds("ge", each, 1):
        return None
    parts = [writer.number(bound.limit)]
    if isinstance(bound.base, Scalar) or bound.base:
        parts.append(writer.number(bound.base))
    for name, stride in bound.strides.items():
        if name == names[0]:
            continue
        at = _last(writer, name)
        if at is None or not holds("ge", stride, 0):
            return None
        parts.append(at if _is_one(stride) else f"{at} * {writer.number(stride)}")
    if not _is_one(each):
        return f"({' - '.join(parts)} + {writer.number(each)} - 1) // {writer.number(each)}"
    return " - ".join(parts)


def _last(writer: Any, name: str) -> str | None:
    """The greatest position along an axis that a program has."""
    tile = writer.tile
    if writer.is_flat or any(axis.name == name for axis in tile.grid):
        return writer.axis(name)
    if not tile.down or tile.down[0].name != name:
        return None
    last = f"({writer.block} * {tile.rows} + {tile.rows - 1})"
    if not holds("eq", extent_of(tile.down) % tile.rows, 0):
        last = f"tl.minimum{last[:-1]}, {writer.count(tile.down)} - 1)"
    divisor = writer.count(tile.down[1:])
    return last if divisor == "1" else f"{last} // {divisor}"


def _is_ahead(writer: Any) -> bool:
    """Whether blocks of a walk are loaded ahead. Values of 32 bits are where a thread copies several of them at once: one
    by one a sum of columns takes four times as long (the variance of 32767 x 1021 353 us, not 85)."""
    tile, down = writer.tile, extent_of(writer.tile.down)
    if tile.ahead == 1 or writer.multiples or not isinstance(down, Scalar):
        return tile.ahead > 1
    widths = {DTYPES[op.dtype].itemsize for op in accesses(writer.kernel) if op.op == "load"}
    return min(widths) < WORD_BYTES or holds("eq", down % (VECTOR_BYTES // WORD_BYTES), 0)


def _are_rows_there(writer: Any) -> str:
    """The text of the question whether all rows of a program are there, where masks for them would be in the way:
    of several elements at once that are loaded ahead. "" where it is not asked."""
    tile = writer.tile
    if "y" not in writer.masks or writer.is_clamped or not _is_ahead(writer):
        return ""
    if not writer.multiples and not holds("eq", extent_of(tile.down) % VECTOR_BYTES, 0):
        return ""
    return f"{writer.block} * {tile.rows} + {tile.rows} <= {writer.count(tile.down)}"


# ---------------------------------------------------------------------------- programs
def write_stages(writer: Any) -> None:
    """Writes all stages; where only few programs need masks, once for them and once for all others."""
    whole, known, tile = _is_whole(writer), dict(writer.same), writer.tile
    if whole:
        condition, is_masked, rooms = whole
        masks = dict(writer.masks)
        other = "" if is_masked else _write_row(writer, condition)
        writer.emit(f"{other}if {condition}:")
        writer.depth += 1
        if not is_masked:
            writer.masks = {}
        writer.set_known(rooms)
        for stage in writer.kernel.stages:
            writer.stage(stage)
        writer.masks, writer.same, writer.values = masks, dict(known), {}
        writer.set_known(())
        writer.depth -= 1
        writer.emit("else:")
        writer.depth += 1
        if not is_masked:
            _in_pieces(writer)
    for stage in writer.kernel.stages:
        writer.stage(stage)
    writer.depth, writer.tile = 1, tile


def _write_row(writer: Any, condition: str) -> str:
    """Writes all stages once more for programs all of which are in one long row, what is the same for which they load once.
    "el" where it did: before what is for others."""
    tile = writer.tile
    if not is_parted(tile) or estimate(tile.along[1].extent) < tile.columns:
        return ""
    known, masks = dict(writer.same), dict(writer.masks)
    within = row_of(writer)
    writer.emit(f"if {condition} and {within}:")
    writer.depth += 1
    writer.masks, start = {}, len(writer.lines)
    for stage in writer.kernel.stages:
        writer.stage(stage)
    # a name is of one type in all branches
    writer.lines[start:] = [re.sub(r"\bv(?=\d)", "u", line) for line in writer.lines[start:]]
    writer.masks, writer.same, writer.values = masks, known, {}
    writer.depth -= 1
    return "el"


def _in_pieces(writer: Any) -> None:
    """Begins a walk of the last program through its elements, a few a thread at once: masks for many would take more
    registers than all that the others do."""
    columns = writer.tile.columns
    most = columns * LIGHT_ELEMS // flat_elems(writer.kernel)[1]
    if columns <= most:
        return
    writer.emit(f"for piece in range(0, {columns}, {most}):")
    writer.depth += 1
    writer.tile, writer.names = replace(writer.tile, columns=most), {**writer.names, "x": "part"}
    writer.along(f"program * {columns} + piece")


def _is_whole(writer: Any) -> tuple[str, bool, Collection[int]] | None:
    """The question whether a program needs fewer masks, whether it still needs those of its positions, and
    which of the kernel's own it does not need. None where it is not asked."""
    tile = writer.tile
    if tile.is_looped:
        return None
    count = writer.count(tile.along)
    has_walk = any(stage.axes for stage in writer.kernel.stages)
    if has_walk:
        rooms = _rooms(writer)
        condition = " and ".join(f"({count} <= {room})" for room in rooms.values())
        return (condition, True, tuple(rooms)) if rooms else None
    is_plain = not tile.down and not tile.grid and "x" in writer.masks
    if not is_plain or _is_aligned(writer, extent_of(tile.along)):
        return None
    return f"program * {tile.columns} + {tile.columns} <= {count}", False, ()


def _is_aligned(writer: Any, count: Dim) -> bool:
    """A mask that ends after `count` elements ends between what threads load at once."""
    if writer.arguments:
        return str(count) in writer.multiples
    least = min((DTYPES[op.dtype].itemsize for op in accesses(writer.kernel)), default=VECTOR_BYTES)
    return count % (VECTOR_BYTES // least) == 0


def _is_one(stride: Dim) -> bool:
    return not isinstance(stride, Scalar) and stride == 1
