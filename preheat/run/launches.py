"""Launches: calls of a GPU's kernels as records for the native driver.

    kernel add (b0, b1, b2) over 1000         launch    function, 3 params, slots, shape
    kernel add (b0, b1, b2) over n2           launch    function and shape as they are for n2, 4 params

A kernel that takes sizes has several functions (`ir.plan.Sizing`): which one is launched, and of how many
programs, is looked up when tables are filled for some sizes, so a call costs what one of a static plan does.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from preheat.base.errors import Unsupported
from preheat.ir.plan import KernelCall
from preheat.ir.records import RECORDS
from preheat.ir.sized import has_sizes
from preheat.run.buffers import is_number, sizes_at, word_of
from preheat.run.gpu import Launch

_SHAPE_WORDS = len(RECORDS["launch_shape"])


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
    row = (function, len(slots), words(slots), shape)
    writer.append("launch", row, -1, len(slots) + kernels.words(name))


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
    return programs, launch.threads, launch.shared_bytes, launch.index, launch.words
