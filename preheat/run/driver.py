"""Plans to the native driver's tables: what `Executable` does from Python, as records.

    kernel add (b0, b1, b2) over 1000        kernel    address, 3 params, slots, extent, grain
    product b2 = b0 @ b1               ->    product   sgemm_, arguments, slots, offsets
    b3 = aten.topk(b2, 5)                    library   function, slots, results
                                             test      the error flag

Everything that a plan leaves open is decided here, once: which products the BLAS takes, which
stretches run without the GIL, how many extents make a thread worth its start, where views are made,
when memory made by the library is dropped. What the context lacks becomes a library record, so a
missing feature costs time and nothing else.

Requires: `ir/records.py` for every layout. The tables hold addresses, so they never leave the
process; `Program` keeps alive all that they point to.
"""

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from preheat.base.errors import InternalError, Unsupported
from preheat.ir.plan import KernelCall, LibraryCall, Output, ProductCall
from preheat.ir.records import (
    ACCESS, CALL_KINDS, CALLS, ORIGINS, RECORDS, SHAPES, SHIM_DOUBLE_LIMIT, SHIM_WORD_LIMIT,
    SHIM_WORDS, WORD_BYTES, size,
)
from preheat.ir.types import TensorType
from preheat.run.buffers import empty, extent_bytes, known, new_arena, show_bytes
from preheat.run.device import Context, address_of, function_of
from preheat.run.executable import Executable, product
from preheat.run.library import library_function
from preheat.run.products import BlasForm, blas_form
from preheat.run.reach import Origin
from preheat.run.shims import ShimCall, shim_call

# Estimates for decisions only; a modern core, order of magnitude.
_KERNEL_BYTES_PER_NS = 10
_PRODUCT_FLOPS_PER_NS = 50
_PRODUCT_START_NS = 300
_RELEASE_BYTES = 256 << 10  # of a shim's operands, whose time is not known
_RELEASE_NS = 20_000  # shorter stretches keep the GIL: giving it away may cost a thread switch
_TEAM_BYTES = 64 << 10  # what one more thread must have to do; a region costs 1 us
_GROUP_FLOPS = 4 << 20  # matrices smaller than this go to the BLAS as one group


class Program:
    """The tables of one entry. `address` is that of its program record.

    origins    for each input of the plan, where its tensor is
    extras     the same for the objects that the result takes besides the values
    shape      of the result (records.SHAPES); `rebuild` makes it when shape is "rebuild"
    deep       what fetches objects of kind "deep", or None
    slow       slow(reason, detail, arguments, names of keyword arguments) -> the call's result
    """

    def __init__(
        self, executable: Executable, context: Context, origins: Sequence[Origin], extras: Sequence[Origin],
        shape: str, rebuild: Callable | None, deep: Callable | None, slow: Callable,
        positional: int, keywords: tuple[str, ...],
    ):
        self.executable, self.context, self.memory = executable, context, Memory()
        self._rows: Any = None
        lowered = lower(executable, context, self.memory, len(extras))
        self.frames = Frames(executable, lowered.slots, lowered.scratch_words, lowered.pinned)
        inputs = [
            _input_words(self.memory, origin, slot, access, type) for origin, slot, access, type in zip(
                (*origins, *extras), (*lowered.input_slots, *lowered.extra_slots),
                (*lowered.access, *("none" for _ in extras)), (*executable.plan.inputs, *(None for _ in extras)),
                strict=True,
            )
        ]
        results = (*lowered.output_slots, *(lowered.extra_slots if shape == "rebuild" else ()))
        calls = [_call_words(row) for row in with_releases(lowered.rows)]
        self._record = self.memory.record("program", {
            "context": context.address, "slow": self.memory.object(slow),
            "positional": positional, "keywords": len(keywords),
            "keyword_names": self.memory.object(keywords) if keywords else 0,
            "new_frame": self.memory.object(self.frames.add),
            "objects_at": self.frames.objects_at, "scratch_at": self.frames.scratch_at,
            "deep": self.memory.object(deep) if deep else 0,
            "inputs": self.memory.words(_flat(inputs)), "input_count": len(inputs),
            "outputs": self.memory.words(_flat(lowered.outputs)), "output_count": len(lowered.outputs),
            "calls": self.memory.words(_flat(calls)),
            "drops": self.memory.words(lowered.drops), "drop_count": len(lowered.drops),
            "results": self.memory.words(results), "result_count": len(results),
            "shape": SHAPES.index(shape), "rebuild": self.memory.object(rebuild) if rebuild else 0,
        })

    @property
    def address(self) -> int:
        return ctypes.addressof(self._record)

    def set_rows(self, rows: Any) -> None:
        """The guard rows that are checked from now on: `rows.count` of them at `rows.address`."""
        # the GIL is held and no check can be under way: guards run no Python
        self._record[RECORDS["program"].index("rows")] = _signed(rows.address)
        self._record[RECORDS["program"].index("row_count")] = rows.count
        self._rows = rows

    def hold(self, *objects: Any) -> None:
        """Keeps `objects` alive as long as the program."""
        for value in objects:
            self.memory.object(value)


class Memory:
    """Arrays and objects that tables point to, kept alive together."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def words(self, values: Iterable[int]) -> int:
        """The address of an array of 8-byte words."""
        values = [_signed(v) for v in values] or [0]
        array = (ctypes.c_int64 * len(values))(*values)
        self._kept.append(array)
        return ctypes.addressof(array)

    def record(self, name: str, fields: dict[str, int]):
        """A record of `ir/records.py`; fields that are not given are 0."""
        words = [_signed(fields.get(field, 0)) for field in RECORDS[name]]
        array = (ctypes.c_int64 * len(words))(*words)
        self._kept.append(array)
        return array

    def object(self, value: Any) -> int:
        """The address of a Python object."""
        self._kept.append(value)
        return id(value)


class Frames:
    """The frames of a program, each with an arena: made when a call finds no free one, kept for good.

    There are as many as calls were ever under way at once (threads and recursion).
    pinned   arena buffers that library calls see as tensors
    """

    def __init__(self, executable: Executable, slots: int, scratch_words: int, pinned: frozenset[int]):
        self._arena_bytes, self._pinned = executable.arena_bytes, pinned
        self._arena = [
            (number, place.offset_bytes, buffer.type)
            for number, (place, buffer) in enumerate(zip(executable.places, executable.plan.buffers))
            if place.kind == "arena"
        ]
        self.objects_at = size("frame") + slots * WORD_BYTES
        self.scratch_at = self.objects_at + slots * WORD_BYTES
        self._words = self.scratch_at // WORD_BYTES + scratch_words
        self._made: list[Any] = []

    def add(self) -> int:
        """The address of another frame."""
        words = (ctypes.c_int64 * self._words)()
        arena = new_arena(self._arena_bytes)
        tensors = {n: show_bytes(arena, at, type) for n, at, type in self._arena if n in self._pinned}
        for number, at, _ in self._arena:
            words[size("frame") // WORD_BYTES + number] = arena.data_ptr() + at
        for number, tensor in tensors.items():
            words[self.objects_at // WORD_BYTES + number] = id(tensor)
        self._made.append((words, arena, tensors))
        return ctypes.addressof(words)


# ---------------------------------------------------------------------------- lowering
@dataclass(frozen=True, slots=True)
class Row:
    """A call record before it has an address. `nanoseconds` estimates native work, -1 marks Python's."""

    kind: str
    words: tuple[int, ...] = ()
    nanoseconds: int = -1


@dataclass(frozen=True)
class Lowered:
    """Tables of a plan. Slots: its buffers, then unused inputs, extra objects and alias outputs."""

    slots: int
    scratch_words: int
    rows: tuple[Row, ...]
    outputs: tuple[tuple[int, ...], ...]  # output records
    drops: tuple[int, ...]
    pinned: frozenset[int]
    input_slots: tuple[int, ...]
    access: tuple[str, ...]  # one an input
    extra_slots: tuple[int, ...]
    output_slots: tuple[int, ...]


def lower(executable: Executable, context: Context, memory: Memory, extras: int) -> Lowered:
    """The records of `executable`'s plan. Raises Unsupported for sizes that are not known."""
    writer = _Writer(executable, context, memory)
    extra_slots = tuple(writer.new_slot() for _ in range(extras))
    writer.make_outputs()
    for number, call in enumerate(executable.plan.calls):
        if number == executable.first_write:
            writer.test()
            writer.rows.append(Row("write", (), 0))
        _LOWER[type(call)](writer, call)
        writer.free(executable.free_after[number])
    writer.test()
    if executable.written:
        writer.library(_increment_versions, executable.written, ())
    output_slots: list[int] = []
    for output in executable.plan.outputs:
        output_slots.append(writer.output_slot(output, output_slots))
    writer.rows.append(Row("end"))
    return Lowered(
        writer.slots, writer.scratch_words, tuple(writer.rows), tuple(writer.outputs), tuple(writer.drops),
        frozenset(writer.pinned), writer.input_slots, writer.access, extra_slots, tuple(output_slots),
    )


def with_releases(rows: Sequence[Row]) -> list[Row]:
    """`rows` with the GIL released around every stretch of native work that is long enough."""
    done: list[Row] = []
    stretch: list[Row] = []
    for row in (*rows, Row("")):
        if row.nanoseconds >= 0:
            stretch.append(row)
            continue
        is_long = sum(r.nanoseconds for r in stretch) >= _RELEASE_NS
        done += [Row("release"), *stretch, Row("acquire")] if is_long else stretch
        stretch = []
        done.append(row)
    return done[:-1]


class _Writer:
    """The tables under construction, and which slots hold objects by now."""

    def __init__(self, executable: Executable, context: Context, memory: Memory):
        self.executable, self.context, self.memory = executable, context, memory
        self.plan, self.places = executable.plan, executable.places
        self.slots = len(self.plan.buffers)
        self.scratch_words = 1
        self.rows: list[Row] = []
        self.outputs: list[tuple[int, ...]] = []
        self.drops: dict[int, None] = {}
        self.pinned: set[int] = set()
        self.input_slots = self._slots_of_inputs()
        self.access = tuple(
            "none" if slot >= len(self.plan.buffers) else "write" if slot in executable.written else "read"
            for slot in self.input_slots
        )
        self.objects = set(self.input_slots)

    def _slots_of_inputs(self) -> tuple[int, ...]:
        slot_of: dict[int, int] = {}
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "input" and slot_of.setdefault(buffer.index, number) != number:
                raise InternalError(f"input {buffer.index} has two buffers, {slot_of[buffer.index]} and {number}")
        return tuple(slot_of[k] if k in slot_of else self.new_slot() for k in range(len(self.plan.inputs)))

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def make_outputs(self) -> None:
        """Records of the fresh outputs, then the pointers of views on what exists from the start."""
        fresh = [
            number for number, buffer in enumerate(self.plan.buffers)
            if buffer.kind == "output" and number not in self.executable.library_results
        ]
        for number in fresh:
            type = self.plan.buffers[number].type
            words = self.output_words(number, type)
            if words is None:
                self.library(partial(empty, type), (), (number,))
            else:
                self.outputs.append(words)
                self.made((number,))
        for number, place in enumerate(self.places):
            if place.kind == "input" and place.root != number:
                self.rows.append(Row("offset", (number, place.root, place.offset_bytes), 0))

    def output_words(self, slot: int, type: TensorType | None) -> tuple[int, ...] | None:
        """The words of an output record; slot -1 takes any type. None if it cannot be made natively."""
        if type is None:
            return -1, 0, 0, 0, 0, 0
        if "wrap" not in self.context.have or type.dtype not in self.context.dtype_codes or type.device != "cpu":
            return None
        sizes, strides = self.memory.words(map(known, type.sizes)), self.memory.words(map(known, type.strides))
        return slot, type.rank, sizes, strides, self.context.dtype_codes[type.dtype], type.itemsize

    def library(self, function: Callable, slots: Sequence[int], results: Sequence[int]) -> None:
        """A Python call with the objects in `slots`, whose results go to the slots `results`."""
        for slot in slots:
            self.object(slot)
        self.scratch_words = max(self.scratch_words, len(slots))
        self.rows.append(Row("library", (
            self.memory.object(function), len(slots), self.memory.words(slots), len(results),
            self.memory.words(results),
        )))
        self.made(results)

    def made(self, results: Sequence[int]) -> None:
        """The slots `results` hold objects of the call from here on; views get their pointers."""
        for slot in results:
            self.objects.add(slot)
            self.drops[slot] = None
        for number, place in enumerate(self.places):
            if place.root in results and place.root != number:
                self.rows.append(Row("offset", (number, place.root, place.offset_bytes), 0))

    def object(self, slot: int) -> None:
        """Makes sure that `slot` holds a tensor object: views are made when first asked for."""
        if slot in self.objects:
            return
        if slot < len(self.places) and self.places[slot].kind == "arena":
            self.pinned.add(slot)
            return
        if slot >= len(self.places) or self.plan.buffers[slot].kind != "view":
            raise InternalError(f"slot {slot} is used before anything is in it")
        place, type = self.places[slot], self.plan.buffers[slot].type
        base = self.plan.buffers[place.root].type
        if "shims" not in self.context.have or base.dtype != type.dtype:
            self.library(view_maker(base, type, place.offset_bytes), (place.root,), (slot,))
            return
        self.object(place.root)
        sizes, strides = self.memory.words(map(known, type.sizes)), self.memory.words(map(known, type.strides))
        words = (slot, place.root, type.rank, sizes, strides, place.offset_bytes // type.itemsize)
        self.rows.append(Row("view", words))
        self.made((slot,))

    def native(self, kind: str, words: Sequence[int], nanoseconds: int, scratch_words: int) -> None:
        self.scratch_words = max(self.scratch_words, scratch_words)
        self.rows.append(Row(kind, tuple(words), nanoseconds))

    def test(self) -> None:
        """A look at the error flag, if a kernel may have set it."""
        if any(row.kind == "kernel" for row in self.rows):
            self.rows.append(Row("test", (), 0))

    def free(self, buffers: Sequence[int]) -> None:
        for slot in buffers:
            if slot in self.objects:
                self.objects.discard(slot)
                self.rows.append(Row("free", (slot,)))

    def output_slot(self, output: Output, before: Sequence[int]) -> int:
        """The slot that holds a result of the plan in the end."""
        if output.alias:
            base = self.input_slots[output.base] if output.alias == "input" else before[output.base]
            base_type = (self.plan.inputs if output.alias == "input" else [o.type for o in self.plan.outputs])[output.base]
            slot = self.new_slot()
            offset_bytes = known(output.offset) * output.type.itemsize
            self.library(view_maker(base_type, output.type, offset_bytes), (base,), (slot,))
            return slot
        self.object(output.buffer)
        return output.buffer


def view_maker(base: TensorType, type: TensorType, offset_bytes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a tensor of type `base` to its view of `type`, `offset_bytes` further."""
    if base.dtype != type.dtype:
        raise Unsupported("alias", f"a view of {base.dtype} memory as {type.dtype}")
    sizes, strides, elems = tuple(map(known, type.sizes)), tuple(map(known, type.strides)), offset_bytes // type.itemsize

    def view(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(sizes, strides, tensor.storage_offset() + elems)

    return view


def _increment_versions(*tensors: torch.Tensor) -> None:
    increment_version(tensors)


# ---------------------------------------------------------------------------- one function a call
def _lower_kernel(writer: _Writer, call: KernelCall) -> None:
    extent = known(call.extent)
    if extent <= 0:
        return
    plan = writer.plan
    address = writer.executable.kernels.address(plan.kernels[call.kernel].name)
    moved = known(call.bytes) or sum(extent_bytes(plan.buffers[b].type) for b in call.buffers)
    grain = -(-_TEAM_BYTES * extent // max(moved, 1))
    words = (address, len(call.buffers), writer.memory.words(call.buffers), extent, grain)
    writer.native("kernel", words, moved // _KERNEL_BYTES_PER_NS, len(call.buffers) + 1)


def _lower_product(writer: _Writer, call: ProductCall) -> None:
    types = [writer.plan.buffers[b].type for b in (call.a, call.b, call.out)]
    form = blas_form(*types) if "blas" in writer.context.have else None
    if form is None:
        writer.library(partial(product, call.beta), (call.a, call.b, call.out), ())
        return
    if form.batch * form.m * form.n == 0:
        return
    is_grouped = (
        form.batch > 1 and "batch" in writer.context.have and form.flops // form.batch <= _GROUP_FLOPS
    )
    name = form.routine.replace("gemm_", "gemm_batch_") if is_grouped else form.routine
    left, right = (call.a, call.b) if form.left == 0 else (call.b, call.a)
    words = (
        address_of(function_of(name)), writer.memory.words(_gemm_words(form, call.beta)), left, right, call.out, form.batch,
        writer.memory.words(_byte_offsets(form, types[2].itemsize)),
    )
    nanoseconds = form.flops // _PRODUCT_FLOPS_PER_NS + form.batch * _PRODUCT_START_NS
    writer.native("products" if is_grouped else "product", words, nanoseconds, 3 * form.batch)


def _lower_library(writer: _Writer, call: LibraryCall) -> None:
    shim = None if writer.executable.is_autocast_off else shim_call(call, writer.context)
    if shim is None or not _lower_shim(writer, call, shim):
        function, refs = library_function(writer.plan, call, writer.executable.is_autocast_off)
        writer.library(function, refs, tuple(b for b in call.results if b >= 0))


def _lower_shim(writer: _Writer, call: LibraryCall, shim: ShimCall) -> bool:
    """The records of a call by C shim; False, and no record, if a result cannot be made natively."""
    types = [writer.plan.buffers[b].type if b >= 0 else None for b in call.results]
    records = [writer.output_words(b, type) for b, type in zip(call.results, types)]
    if None in records or (shim.takes_out and call.results[0] < 0):
        return False
    words = list(shim.words)
    if shim.takes_out:
        writer.rows.append(Row("make", (writer.memory.words(records[0]),)))
        writer.made(call.results)
        words.insert(0, ("tensor", call.results[0]))
        records = []
    moved = 0
    for kind, value in words:
        if kind in ("tensor", "optional"):
            writer.object(value)
            moved += extent_bytes(writer.plan.buffers[value].type)
    words = [("word", writer.memory.words(value)) if kind == "array" else (kind, value) for kind, value in words]
    words += [("result", k) for k in range(len(records))]
    pairs = [number for kind, value in words for number in (SHIM_WORDS.index(kind), value)]
    doubles = (ctypes.c_double * SHIM_DOUBLE_LIMIT)(*shim.doubles)
    writer.memory.object(doubles)
    writer.scratch_words = max(writer.scratch_words, 2 * SHIM_WORD_LIMIT)
    writer.rows.append(Row("shim", (
        shim.address, writer.memory.words(pairs), len(words), ctypes.addressof(doubles),
        writer.memory.words(_flat(records)), len(records), int(moved >= _RELEASE_BYTES),
    )))
    if not shim.takes_out:
        writer.made(tuple(b for b in call.results if b >= 0))
    return True


_LOWER: dict[type, Callable] = {
    KernelCall: _lower_kernel, ProductCall: _lower_product, LibraryCall: _lower_library,
}


# ---------------------------------------------------------------------------- words
def _gemm_words(form: BlasForm, beta: int) -> list[int]:
    number = struct.Struct("<fxxxx" if form.routine == "sgemm_" else "<d")
    alpha, beta = (int.from_bytes(number.pack(float(x)), "little") for x in (1, beta))
    fields = {
        "left_flag": ord(form.left_flag), "right_flag": ord(form.right_flag), "m": form.m, "n": form.n,
        "k": form.k, "alpha": alpha, "left_leading": form.left_leading, "right_leading": form.right_leading,
        "beta": beta, "out_leading": form.out_leading, "group_count": 1, "group_size": form.batch,
    }
    return [fields[name] for name in RECORDS["gemm"]]


def _byte_offsets(form: BlasForm, itemsize: int) -> list[int]:
    order = (0, 1, 2) if form.left == 0 else (1, 0, 2)
    return [triple[k] * itemsize for triple in form.offsets for k in order]


def _input_words(memory: Memory, origin: Origin, slot: int, access: str, type: TensorType | None) -> tuple[int, ...]:
    value = memory.object(origin.value) if origin.kind == "object" else origin.value
    return ORIGINS.index(origin.kind), value, slot, ACCESS.index(access), type.itemsize if type else 0


def _call_words(row: Row) -> tuple[int, ...]:
    expected = len(CALLS[row.kind])
    if len(row.words) != expected:
        raise InternalError(f"a {row.kind} record has {expected} words, not {len(row.words)}")
    padding = len(RECORDS["call"]) - 1 - expected
    return (CALL_KINDS.index(row.kind), *row.words, *(0 for _ in range(padding)))


def _flat(records: Iterable[Sequence[int]]) -> list[int]:
    return [word for record in records for word in record]


def _signed(value: int) -> int:
    """An address or number as a signed 8-byte word."""
    return value - (1 << 64) if value >= 1 << 63 else value
