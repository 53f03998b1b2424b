"""Launches: calls of kernels as records for the native driver.

    kernel add (b0, b1, b2) over 1000         kernel    on a CPU: address, 3 params, slots, extent, grain
    kernel add (b0, b1, b2) over 1000         launch    function, 3 params, slots, shape
    kernel add (b0, b1, b2) over n2           launch    function and shape as they are for n2, 4 params

    the last of a batch                       launch    sqrt_0_table: a table in the frame, addresses
                                              launch    sqrt_0: the table, and what stays

A kernel that takes sizes has several functions (`ir.plan.Sizing`): which one is launched, and of how many
programs, is looked up when tables are filled for some sizes, so a call costs what one of a static plan does.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from preheat.base.errors import Unsupported
from preheat.ir.hinted import longest
from preheat.ir.plan import KernelCall
from preheat.ir.records import RECORDS
from preheat.ir.sized import has_sizes
from preheat.ir.types import TensorType
from preheat.run.buffers import extent_bytes, is_number, known, runs_on_host, sizes_at, word_of
from preheat.run.gpu import MEMORY_ALIGN_BYTES, Launch

# Estimates for decisions only; a modern core, order of magnitude.
_KERNEL_BYTES_PER_NS = 10
_TEAM_BYTES = 64 << 10  # what one more thread must have to do; a region costs 1 us
_SHAPE_WORDS = len(RECORDS["launch_shape"])


def lower_kernel(writer: Any, call: KernelCall) -> None:
    """Appends the record of a call (`writer`: of `lowering`)."""
    extent = known(call.extent)
    if extent <= 0:
        return
    plan = writer.plan
    if writer.executable.is_gpu and not runs_on_host(plan, call):
        lower_launch(writer, call)
        return
    address = writer.executable.kernels.address(plan.kernels[call.kernel].name)
    moved = known(call.bytes) or sum(extent_bytes(plan.buffers[b].type) for b in call.buffers)
    some = longest((moved, 1))
    grain = (_TEAM_BYTES * extent + some - 1) // some
    slots = (*call.buffers, *(writer.constant(word_of(size)) for size in call.sizes))
    words = (address, len(slots), writer.memory.words(slots), extent, grain)
    writer.append("kernel", words, moved // _KERNEL_BYTES_PER_NS, len(slots) + 1)


def lower_host(writer: Any) -> None:
    """Appends the calls of the host behind those of a recorded graph, which takes no number of theirs
    (`replays.why_direct`)."""
    for number, call in enumerate(writer.plan.calls):
        if runs_on_host(writer.plan, call):
            for root in writer.executable.made_before[number]:
                if root not in writer.objects:
                    writer.make(root)
            lower_kernel(writer, call)


def lower_launch(writer: Any, call: KernelCall) -> None:
    """Appends the record of a launch (`writer`: of `lowering`). Raises Unsupported where the driver's
    functions are not known to native code."""
    plan, words = writer.plan, writer.memory.words
    kernels, name = writer.executable.kernels, plan.kernels[call.kernel].name
    if "get_stream" not in writer.context.words:
        raise Unsupported("no_kernel", "torch gives no stream to native code")
    slots = [-1 - b if is_number(plan, call, k) else b for k, b in enumerate(call.buffers)]
    slots += [writer.constant(word_of(size)) for size in call.sizes]
    if has_sizes(call.sizes):
        function, shape = _chosen(writer, call)
    else:
        launch = kernels.launch(name, sizes_at(plan, call))
        function, shape = launch.function, words(_shape(launch, launch.programs))
        slots += map(writer.constant, launch.numbers)
    if kernels.memory_bytes(name):
        slots.append(writer.new_slot())
        own = TensorType("uint8", (kernels.memory_bytes(name),), (1,), writer.executable.device)
        writer.place(slots[-1], own, MEMORY_ALIGN_BYTES)
    row = (function, len(slots), words(slots), shape)
    writer.append("launch", row, -1, len(slots) + kernels.words(name))


def lower_batch(writer: Any, number: int) -> None:
    """Appends the records of the batch whose last call is `number` (`run/batches.py`)."""
    executable, words = writer.executable, writer.memory.words
    batches = executable.batches
    buffers = len(writer.plan.buffers)
    slots_of: dict[tuple[int, int], int] = {}  # of places in tables

    def slot(kind: str, value: int, further: int) -> int:
        if kind != "buffer":
            return writer.constant(value) if kind == "word" else -1 - value
        if value < buffers:
            return value
        if (value, further) not in slots_of:
            slots_of[value, further] = _place_in_table(writer, value - buffers, further)
        return slots_of[value, further]

    writer.memory.object(batches.kept)
    for launch, parameters in batches.launches[number]:
        slots = [slot(*parameter) for parameter in parameters]
        row = launch.function, len(slots), words(slots), words(_shape(launch, launch.programs))
        writer.append("launch", row, -1, len(slots) + launch.words)


def _place_in_table(writer: Any, table: int, further: int) -> int:
    """The slot of a place in a table of batches, which lies in the frame."""
    device = writer.executable.device
    if table not in writer.tables:
        writer.tables[table] = writer.new_slot()
        size_bytes = writer.executable.batches.table_bytes[table]
        writer.place(writer.tables[table], TensorType("uint8", (size_bytes,), (1,), device), MEMORY_ALIGN_BYTES)
    if not further:
        return writer.tables[table]
    start, type = writer.kept[writer.tables[table]]
    part = writer.new_slot()
    writer.kept[part] = start + further, TensorType("uint8", (type.elems - further,), (1,), device)
    return part


def _chosen(writer: Any, call: KernelCall) -> tuple[int, int]:
    """The words of the function and of the shape of a launch, which hang on sizes."""
    key = call.kernel, call.sizes
    if key not in writer.choices:
        plan, memory = writer.plan, writer.memory
        kernels, name = writer.executable.kernels, plan.kernels[call.kernel].name
        sizes, value = sizes_at(plan, call), memory.value
        choose = kernels.chooser(name, {
            part: value(size) if has_sizes(size) else size for part, size in sizes.items()})

        def launch_at(words: Sequence[int], kept: list) -> tuple[int, int]:
            launch, programs = choose(words)
            shape = (ctypes.c_int64 * _SHAPE_WORDS)(*_shape(launch, programs))
            kept.append(shape)
            return launch.function, ctypes.addressof(shape)

        writer.choices[key] = memory.made(launch_at, 2)
    return writer.choices[key]


def _shape(launch: Launch, programs: int) -> tuple[int, ...]:
    return programs, launch.threads, launch.shared_bytes, launch.index, launch.words, int(launch.is_cooperative)
