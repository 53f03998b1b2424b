"""Lowering: the calls of a plan as records for the native driver, and what they need around them.

    kernel add (b0, b1, b2) over 1000        kernel    address, 3 params, slots, extent, grain
    product b2 = b0 @ b1               ->    product   sgemm_, arguments, slots, offsets
    b3 = aten.topk(b2, 5)                    library   function, slots, results
                                             test      the error flag

Everything that a plan leaves open is decided here, once: which products the BLAS takes, which
library calls a C shim makes, how many extents make a thread worth its start, where the GIL is
released, where views are made and when memory of the library is dropped. What the context lacks
becomes a library record, so a missing feature costs time and nothing else.

Slots are numbered: the plan's buffers first, then inputs without a buffer, alias outputs, objects that
only the result needs, and, as they come, numbers that kernels take and what frames remember.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch.autograd.graph import increment_version

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.ir.hinted import estimate, longest
from preheat.ir.plan import KernelCall, LibraryCall, Output, ProductCall
from preheat.ir.records import LAUNCH_ALIGN_BYTES, RECORDS
from preheat.ir.sized import builder, has_sizes
from preheat.ir.types import TensorType
from preheat.run.buffers import (
    aligned_copy, detached_maker, empty, extent_bytes, known, read_buffers,
    seen_view_maker, show_bytes, used_buffers, view_maker,
)
from preheat.run.call_rows import Row
from preheat.run.device import Context, address_of, function_of
from preheat.run.executable import KEPT_BYTES, Executable, product
from preheat.run.launches import lower_batch, lower_host, lower_kernel
from preheat.run.library_rows import lower_library, lower_stored
from preheat.run.memory import Memory
from preheat.run.products import blas_form, gemm_words, offsets_of
from preheat.run.shims import SHIMS

# Estimates for decisions only; a modern core, order of magnitude.
_PRODUCT_FLOPS_PER_NS = 50
_PRODUCT_START_NS = 300
_CUDA = 1  # torch's number of the device type
_GROUP_FLOPS = 4 << 20  # matrices smaller than this go to the BLAS as one group


@dataclass(frozen=True)
class Lowered:
    """Tables of a plan. Slots: its buffers, then unused inputs, alias outputs, extra objects, memos.

    pinned   arena buffers that library calls see as tensors
    kept     results of library calls, and tables of batches, that lie behind the arena, at which byte
    lenses   views of inputs that the frame keeps
    """

    slots: int
    scratch_words: int
    rows: tuple[Row, ...]
    outputs: tuple[tuple[int, ...], ...]  # output records
    drops: tuple[int, ...]
    pinned: frozenset[int]
    kept: Mapping[int, tuple[int, TensorType]]
    lenses: tuple[int, ...]
    input_slots: tuple[int, ...]
    access: tuple[str, ...]  # one an input
    extra_slots: tuple[int, ...]
    output_slots: tuple[int, ...]
    constants: tuple[tuple[int, int], ...]  # slots, and the words that kernels find there


def lower(
    executable: Executable, context: Context, memory: Memory, extras: int,
    notice: tuple[Callable, int, frozenset[int]] | None = None,
) -> Lowered:
    """The records of `executable`'s plan. Raises Unsupported for sizes that are not known.

    notice   a function that is told the inputs of a call, but for those that are words alone, when
             the number at the address has been counted down to 0
    """
    writer = _Writer(executable, context, memory)
    extra_slots = tuple(writer.new_slot() for _ in range(extras))
    writer.make_outputs()
    writer.begin_calls()
    if notice is not None:
        writer.notice(*notice)
    writer.make_whole_arena()
    dead: list[int] = []
    for number, call in enumerate(executable.plan.calls):
        writer.make_buffers(number)
        if number == executable.first_write:
            writer.test()
            writer.rows.append(Row("write", (), 0))
        elif number in executable.foreign:
            writer.test()
        dead += executable.free_after[number]
        if number in executable.batches.inside:
            continue
        if number in executable.batches.launches:
            lower_batch(writer, number)
        else:
            _LOWER[type(call)](writer, call)
        writer.free(dead)
        dead = []
    writer.test()
    if executable.counted:
        writer.library(lambda: _increment_versions, (), executable.counted, ())
    output_slots = writer.output_slots(executable.plan.outputs)
    # What is kept was chosen by the first sizes: tables for many are for those whose frame is not much larger.
    if writer.kept and writer.kept_bytes > 2 * KEPT_BYTES:
        raise InternalError(f"a frame of {writer.kept_bytes} bytes")
    writer.choose_device(-1)
    writer.rows.append(Row("end"))
    return Lowered(
        writer.slots,
        writer.scratch_words,
        tuple(writer.rows),
        tuple(writer.outputs),
        tuple(writer.drops),
        frozenset(writer.pinned),
        writer.kept,
        tuple(writer.lenses),
        writer.input_slots,
        writer.access,
        extra_slots,
        tuple(output_slots),
        tuple((slot, word) for word, slot in writer.constants.items()),
    )


def lower_replay(
    executable: Executable, context: Context, memory: Memory, extras: int, replay: int,
) -> tuple[Sequence[tuple[int, ...]], Sequence[Row]]:
    """The output records, and the rows, of a call that the graph at `replay` does: its slots are those
    of `lower`, and every result of the plan is there, to be filled, before it starts."""
    writer = _Writer(executable, context, memory)
    for _ in range(extras):
        writer.new_slot()
    outputs = executable.plan.outputs
    writer.make_fresh(dict.fromkeys(
        executable.places[output.buffer].root for output in outputs if not output.alias))
    writer.begin_calls()
    writer.append("graph", (replay,))
    lower_host(writer)
    if executable.counted:
        writer.library(lambda: _increment_versions, (), executable.counted, ())
    writer.output_slots(outputs)
    writer.choose_device(-1)
    writer.rows.append(Row("end"))
    return writer.outputs, writer.rows


class _Writer:
    """The tables under construction, and which slots hold objects by now."""

    def __init__(self, executable: Executable, context: Context, memory: Memory):
        self.executable, self.context, self.memory = executable, context, memory
        self.plan, self.places = executable.plan, executable.places
        self.written = frozenset(executable.written)
        self.slots = len(self.plan.buffers)
        self.scratch_words = 1
        self.rows: list[Row] = []
        self.outputs: list[tuple[int, ...]] = []
        self.drops: dict[int, None] = {}
        self.block = -1  # the slot of a tensor that is the arena of this call alone
        self.pinned: set[int] = set()
        self.constants: dict[int, int] = {}
        self.choices: dict[tuple, tuple[int, int]] = {}  # which kernel is launched, by sizes
        self.input_slots = self._slots_of_inputs()
        self.access = tuple(map(self._access, self.input_slots))
        self.objects = set(self.input_slots)
        if executable.takes_inputs:
            self.drops = dict.fromkeys(self.input_slots)
        self.kept: dict[int, tuple[int, TensorType]] = {}  # slots of what lies in the frame, and where
        self.kept_bytes = executable.arena_bytes if executable.keeps_arena else 0
        self.tables: dict[int, int] = {}  # the slot of each
        self.lenses: dict[int, None] = {}  # slots of views of inputs that the frame keeps
        self.looked_at = _looked_at(executable)
        self.given = {self.places[o.buffer].root for o in self.plan.outputs if not o.alias}
        self.views = [self.new_slot() if output.alias else -1 for output in self.plan.outputs]
        self.devices = {"cpu": (0, 0)}
        if executable.is_gpu and context.add_gpu():
            self.devices[executable.device] = (_CUDA, executable.kernels_index)

    def _slots_of_inputs(self) -> tuple[int, ...]:
        slot_of: dict[int, int] = {}
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "input" and slot_of.setdefault(buffer.index, number) != number:
                raise InternalError(
                    f"input {buffer.index} has two buffers, {slot_of[buffer.index]} and {number}"
                )
        return tuple(
            slot_of[k] if k in slot_of else self.new_slot() for k in range(len(self.plan.inputs))
        )

    def _access(self, slot: int) -> str:
        if slot >= len(self.plan.buffers):
            return "none"
        return "write" if slot in self.written else "read"

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def constant(self, word: int) -> int:
        """A slot that holds `word` in every call."""
        if word not in self.constants:
            self.constants[word] = self.new_slot()
        return self.constants[word]

    def make_outputs(self) -> None:
        """Records of the fresh outputs, then the pointers of views on inputs."""
        fresh = [
            number
            for number, buffer in enumerate(self.plan.buffers)
            if buffer.kind == "output" and number not in self.executable.library_results
            and not self.executable.is_lean
        ]
        self.make_fresh(fresh)
        for number, place in enumerate(self.places):
            if place.kind == "input" and place.root != number:
                self.rows.append(Row("offset", (number, place.root, place.offset_bytes), 0))

    def make_fresh(self, buffers: Iterable[int]) -> None:
        """Records of fresh tensors for `buffers`."""
        for number in buffers:
            type = self.plan.buffers[number].type
            words = self.output_words(number, type)
            if words is None:
                self.library(_maker, (type,), (), (number,))
            else:
                self.outputs.append(words)
                self.made((number,))

    def begin_calls(self) -> None:
        """The plan's device is current from here on, and pointers are as its kernels expect."""
        self.choose_device(self.executable.kernels_index)
        if self.executable.pointed:
            self.align(self.executable.pointed)

    def notice(self, function: Callable, left: int, numbers: frozenset[int]) -> None:
        """The inputs' objects, without those of `numbers`, go to `function` when `left` is 0."""
        words, address = self.memory.words, self.memory.object(function)
        slots = [slot for place, slot in enumerate(self.input_slots) if place not in numbers]
        row = (address, len(slots), words(slots), 0, words(()), left)
        self.append("notice", row, scratch_words=len(slots))

    def output_words(self, slot: int, type: TensorType | None) -> tuple[int, ...] | None:
        """The words of an output record; slot -1 takes any type. None if it cannot be native."""
        if type is None:
            return -1, *(0 for _ in RECORDS["output"][1:])
        if (
            "wrap" not in self.context.have
            or type.dtype not in self.context.dtype_codes
            or type.device not in self.devices
        ):
            return None
        code = self.context.dtype_codes[type.dtype]
        device, buffers = self.devices[type.device], self.plan.buffers
        is_inner = slot >= len(buffers) or buffers[slot].kind == "owned"  # a slot of the driver's own
        return slot, *self.layout(type), code, type.itemsize, *device, int(is_inner)

    def layout(self, type: TensorType) -> tuple[int, int, int]:
        """Rank, and the addresses of sizes and strides, as torch's shims take them."""
        words = self.memory.words
        return type.rank, words(map(known, type.sizes)), words(map(known, type.strides))

    def choose_device(self, index: int) -> None:
        """GPU `index` is current from here on, -1: the one outside. Where there is one GPU it is."""
        if self.executable.is_gpu and self.context.words.get("create_guard"):
            self.append("device", (index,))

    def align(self, pointed: Sequence[int]) -> None:
        """Copies for the inputs `pointed` that are not aligned; none where inputs are written."""
        copies = tuple(self.new_slot() for _ in pointed)
        self.drops |= dict.fromkeys(copies)
        function = 0 if self.executable.written else self.memory.object(aligned_copy)
        words = self.memory.words
        self.append("aligned", (len(pointed), words(pointed), words(copies), function))

    def library(
        self, make: Callable, nouns: tuple, slots: Sequence[int], results: Sequence[int]
    ) -> None:
        """A call of the Python function `make(*nouns)` with the objects in `slots`, whose results go to
        the slots `results`."""
        for slot in slots:
            self.object(slot)
        words, address = self.memory.words, self.function(make, nouns)
        row = (address, len(slots), words(slots), len(results), words(results))
        self.append("library", row, scratch_words=len(slots))
        self.made(results)

    def function(self, make: Callable, nouns: tuple) -> int:
        """The address of `make(*nouns)`: where nouns hang on sizes, of one for each of them."""
        if not has_sizes(nouns):
            return self.memory.object(make(*nouns))

        build = builder(nouns, self.memory.value)

        def at_sizes(words: Sequence[int], kept: list) -> tuple[int]:
            kept.append(make(*build(words)))
            return id(kept[-1]),

        return self.memory.made(at_sizes)[0]

    def made(self, results: Sequence[int]) -> None:
        """The slots `results` hold objects of the call from here on; views get their pointers."""
        for slot in results:
            self.objects.add(slot)
            self.drops[slot] = None
        self.point_views(results)

    def point_views(self, results: Sequence[int]) -> None:
        """The pointers of views on what is in the slots `results`."""
        for number, place in enumerate(self.places):
            if place.root in results and place.root != number:
                self.rows.append(Row("offset", (number, place.root, self.offset_bytes(number)), 0))

    def keep(self, slot: int) -> bool:
        """Whether the result of a library call lies in the frame, behind the arena, and so need not be
        made on each call: on a GPU, as far as there is room."""
        if not self.executable.is_gpu or not self.executable.keeps_arena:
            return False
        type = self.plan.buffers[slot].type
        is_inner = self.places[slot].kind == "owned" and slot not in self.given
        if not is_inner or estimate(self.kept_bytes + extent_bytes(type)) > KEPT_BYTES:
            return False
        self.place(slot, type)
        self.point_views((slot,))
        return True

    def place(self, slot: int, type: TensorType, align_bytes: int = LAUNCH_ALIGN_BYTES) -> None:
        """Memory for `slot` in the frame, behind what is there."""
        start = -(-self.kept_bytes // align_bytes) * align_bytes
        self.kept[slot], self.kept_bytes = (start, type), start + extent_bytes(type)

    def offset_bytes(self, number: int) -> int:
        """From the first byte of a view's root."""
        place = self.places[number]
        start = known(self.plan.buffers[place.root].index) if place.kind == "arena" else 0
        return place.offset_bytes - start

    def make_buffers(self, number: int) -> None:
        """Tensors for the buffers that call `number` is the first to use. Where the arena is not kept,
        its own are among them: torch's allocator gives them in turns, per stream, and takes them back."""
        call = self.plan.calls[number]
        for root in self.executable.made_before[number]:
            self.make(root)
        if self.executable.keeps_arena or self.block >= 0:
            return
        for root in dict.fromkeys(self.places[b].root for b in used_buffers(self.plan, call)):
            if self.places[root].kind == "arena" and root not in self.objects:
                self.make(root)

    def make_whole_arena(self) -> None:
        """The allocation that an arena is that is not kept, if it is one."""
        if not self.executable.has_block:
            return
        self.block = self.new_slot()
        sizes = (self.executable.arena_bytes,)
        self.make(self.block, TensorType("uint8", sizes, (1,), self.executable.device))
        for number, place in enumerate(self.places):
            if place.kind == "arena":
                self.rows.append(Row("offset", (number, self.block, place.offset_bytes), 0))

    def make(self, slot: int, type: TensorType | None = None) -> None:
        """A fresh tensor for `slot`, at this point of the calls: of the type of its buffer, or `type`."""
        type = self.plan.buffers[slot].type if type is None else type
        words = self.output_words(slot, type)
        if words is None:
            self.library(_maker, (type,), (), (slot,))
        else:
            self.append("make", (self.memory.words(words),))
            self.made((slot,))

    def object(self, slot: int) -> None:
        """Makes sure that `slot` holds a tensor object: views are made when first asked for."""
        if slot in self.objects or slot in self.kept or slot in self.lenses:
            return
        is_arena = slot < len(self.places) and self.places[slot].kind == "arena"
        if is_arena and self.executable.keeps_arena:
            self.pinned.add(slot)
            return
        if is_arena and self.block >= 0:
            nouns = self.places[slot].offset_bytes, self.plan.buffers[slot].type
            self.library(_shown, nouns, (self.block,), (slot,))
            return
        if slot >= len(self.places) or self.plan.buffers[slot].kind != "view":
            raise InternalError(f"slot {slot} is used before anything is in it")
        place, type = self.places[slot], self.plan.buffers[slot].type
        if place.kind == "input" and self.look(slot, type):
            return
        base = self.plan.buffers[place.root].type
        if "shims" not in self.context.have or base.dtype != type.dtype:
            nouns = base, type, self.offset_bytes(slot)
            self.library(view_maker, nouns, (place.root,), (slot,))
            return
        self.object(place.root)
        elems = self.offset_bytes(slot) // type.itemsize
        self.rows.append(Row("view", (slot, place.root, *self.layout(type), elems)))
        self.made((slot,))

    def look(self, slot: int, type: TensorType) -> bool:
        """Whether the view of an input in `slot` is a tensor of the frame's that is used again as long
        as the input lies where it did: on a GPU, whose library calls cost as much as such a view."""
        words = self.output_words(slot, type)
        if slot not in self.looked_at or "shims" not in self.context.have or words is None:
            return False
        if 0 in type.sizes:  # without an address torch gives it a device of its own choice
            return False
        self.lenses[slot] = None
        self.append("lens", (self.memory.words(words), self.new_slot()))
        return True

    def append(
        self, kind: str, words: Sequence[int], nanoseconds: int = -1, scratch_words: int = 0
    ) -> None:
        """A record that needs `scratch_words` of the frame while it runs."""
        self.scratch_words = longest((self.scratch_words, scratch_words))
        self.rows.append(Row(kind, tuple(words), estimate(nanoseconds)))

    def test(self) -> None:
        """A look at the error flag, if a kernel may have set it."""
        if any(row.kind == "kernel" for row in self.rows):
            self.rows.append(Row("test", (), 0))

    def free(self, buffers: Sequence[int]) -> None:
        for slot in buffers:
            if slot in self.objects:
                self.objects.discard(slot)
                self.rows.append(Row("free", (slot,)))

    def output_slots(self, outputs: Sequence[Output]) -> list[int]:
        """The slots of the results. Views come last: their base may stand further on."""
        for output in outputs:
            if output.alias:
                continue
            is_made = self.plan.buffers[output.buffer].kind != "output" or output.buffer in self.objects
            if self.executable.is_lean and not is_made:
                self.make(output.buffer)  # without elements: no call has filled it
            self.object(output.buffer)
        slots = [
            slot if output.alias else output.buffer for output, slot in zip(outputs, self.views)]
        for is_detached in (True, False):  # others may be views of the detached ones
            for output, slot in zip(outputs, self.views):
                if output.alias and output.is_detached is is_detached:
                    self.leave(output, slot, slots)
        return slots

    def leave(self, output: Output, slot: int, slots: Sequence[int]) -> None:
        """Puts to `slot` a result that lies in memory of an input or of another result."""
        if output.alias == "input":
            base, base_type = self.input_slots[output.base], self.plan.inputs[output.base]
        else:
            base, base_type = slots[output.base], self.plan.outputs[output.base].type
        nouns = base_type, output.type, known(output.offset) * output.type.itemsize
        if output.is_detached:
            self.library(detached_maker, nouns, (base,), (slot,))
        else:
            make = seen_view_maker if self.executable.is_grad_off else view_maker
            self.library(make, nouns, (base,), (slot,))


def _shown(offset_bytes: int, type: TensorType) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from an arena to the tensor at `offset_bytes` of it."""
    return lambda arena: show_bytes(arena, offset_bytes, type)


def _maker(type: TensorType) -> Callable[[], torch.Tensor]:
    return partial(empty, type)


def _looked_at(executable: Executable) -> frozenset[int]:
    """Buffers that are operands of known library calls alone, none of which keeps or gives back an
    operand, as an operator of the program's may do."""
    if not executable.is_gpu:
        return frozenset()
    known_ops = SHIMS.get(executable.device.partition(":")[0], {})
    calls = [call for call in executable.plan.calls if isinstance(call, LibraryCall)]
    of_others = {b for c in calls if c.op not in known_ops for b in read_buffers(executable.plan, c)}
    of_known = {b for c in calls if c.op in known_ops for b in read_buffers(executable.plan, c)}
    return frozenset(of_known - of_others)


def _increment_versions(*tensors: torch.Tensor) -> None:
    increment_version(tensors)


# ---------------------------------------------------------------------------- one function a call
def _lower_product(writer: _Writer, call: ProductCall) -> None:
    if writer.executable.is_gpu:
        lower_stored(writer, call)
        return
    types = [writer.plan.buffers[b].type for b in (call.a, call.b, call.out)]
    form = blas_form(*types) if "blas" in writer.context.have else None
    if form is None:
        writer.library(partial, (product, call.beta), (call.a, call.b, call.out), ())
        return
    if form.batch * form.m * form.n == 0:
        return
    is_grouped = (
        estimate(form.batch) > 1
        and "batch" in writer.context.have
        and estimate(form.flops) // estimate(form.batch) <= _GROUP_FLOPS
    )
    name = form.routine.replace("gemm_", "gemm_batch_") if is_grouped else form.routine
    left, right = (call.a, call.b) if form.left == 0 else (call.b, call.a)
    words = (
        address_of(function_of(name)),
        writer.memory.words(gemm_words(form, call.beta)),
        left,
        right,
        call.out,
        form.batch,
        offsets_of(writer.memory, form, types[2].itemsize),
    )
    nanoseconds = form.flops // _PRODUCT_FLOPS_PER_NS + form.batch * _PRODUCT_START_NS
    writer.append("products" if is_grouped else "product", words, nanoseconds, 3 * form.batch)


_LOWER: dict[type, Callable] = {
    KernelCall: lower_kernel,
    ProductCall: _lower_product,
    LibraryCall: lower_library,
}
