"""Records of library calls: through a C shim where it gives the same, else a Python function.

    b4 = aten.mm.default(b0, b1)          make b4; shim aoti_torch_cuda_mm_out, words (b4, b0, b1)
    product b2 @ b3 -> view of b5   ->    view; shim aoti_torch_cuda_bmm_out, words (view, b2, b3)

Requires the writer of a plan's records (`run/lowering.py`), whose slots are the plan's buffers.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from preheat.ir.graph import Ref
from preheat.ir.hinted import estimate
from preheat.ir.plan import LibraryCall, ProductCall
from preheat.ir.records import NUMBER_SLOT, RECORDS, SHIM_DOUBLE_LIMIT, SHIM_WORD_LIMIT, SHIM_WORDS
from preheat.run.buffers import extent_bytes, library_refs
from preheat.run.executable import product
from preheat.run.library import called
from preheat.run.memory import Memory, flat
from preheat.run.shims import ShimCall, shim_call

_RELEASE_BYTES = 256 << 10  # of a shim's operands, whose time is not known
_NUMBER = (NUMBER_SLOT, *(0 for _ in RECORDS["output"][1:]))  # an output record


def lower_stored(writer: Any, call: ProductCall) -> None:
    """A product that the library of a GPU stores to memory that is there."""
    rank = writer.plan.buffers[call.out].type.rank
    made = LibraryCall(
        "aten.mm.default" if rank == 2 else "aten.bmm.default", (Ref(call.a), Ref(call.b)), (), (call.out,))
    shim = shim_call(made, writer.context, writer.executable.device)
    if shim is None or call.beta:
        writer.library(partial, (product, call.beta), (call.a, call.b, call.out), ())
    else:
        _append_shim(writer, shim, [("tensor", call.out), *shim.words], [])


def lower_library(writer: Any, call: LibraryCall) -> None:
    is_off, device = writer.executable.is_autocast_off, writer.executable.device
    shim = None if is_off else shim_call(call, writer.context, device)
    if shim is None or not _lower_shim(writer, call, shim):
        buffers = writer.plan.buffers
        types = tuple(buffers[b].type if b >= 0 else None for b in call.results)
        writer.library(
            called, (call, types, is_off), library_refs(call),
            tuple(b for b in call.results if b >= 0))


def _lower_shim(writer: Any, call: LibraryCall, shim: ShimCall) -> bool:
    """The records of a call by C shim; False, and no record, if a result cannot be native."""
    types = [writer.plan.buffers[b].type if b >= 0 else None for b in call.results]
    records = [
        _NUMBER if place in shim.numbers else writer.output_words(b, type)
        for place, (b, type) in enumerate(zip(call.results, types))
    ]
    if None in records or (shim.takes_out and call.results[0] < 0):
        return False
    words = list(shim.words)
    if shim.takes_out:
        record = records.pop()
        if not writer.keep(call.results[0]):
            writer.append("make", (writer.memory.words(record),))
            writer.made(call.results)
        words.insert(0, ("tensor", call.results[0]))
    _append_shim(writer, shim, words, records)
    if not shim.takes_out:
        writer.made(tuple(b for b in call.results if b >= 0))
    return True


def _append_shim(
    writer: Any, shim: ShimCall, words: list[tuple[str, Any]], records: Sequence[Sequence[int]],
) -> None:
    """The record of a call by C shim with `words`; `records`: of the results that it makes."""
    tensors = [value for kind, value in words if kind in ("tensor", "optional")]
    for slot in tensors:
        writer.object(slot)
    pairs = [_shim_word(writer.memory, *word) for word in words]
    pairs += [(SHIM_WORDS.index("result"), k) for k in range(len(records))]
    doubles = (ctypes.c_double * SHIM_DOUBLE_LIMIT)(*shim.doubles)
    writer.memory.object(doubles)
    moved = sum(extent_bytes(writer.plan.buffers[slot].type) for slot in tensors)
    address_words = writer.memory.words
    row = (
        shim.address, address_words(flat(pairs)), len(pairs), ctypes.addressof(doubles),
        address_words(flat(records)), len(records), int(estimate(moved) >= _RELEASE_BYTES and not writer.executable.is_gpu),  # a launch is short
    )
    writer.append("shim", row, scratch_words=2 * SHIM_WORD_LIMIT)


def _shim_word(memory: Memory, kind: str, value: Any) -> tuple[int, int]:
    if kind == "array":
        return SHIM_WORDS.index("word"), memory.words(value)
    return SHIM_WORDS.index(kind), value
