"""The driver's tables: a plan, where its inputs are, and how its result is built, as one program.

    program = Program(executable, context, origins, ...)
    builtin with self = the bytes of program.address      (run/entry.py)

The call records come from `lowering`; here they get addresses, frames and everything around them:
inputs, outputs, result, guards. `ir/records.py` has every layout. Tables hold addresses, so they
never leave the process; a `Program` keeps alive all that its tables point to.
"""

import copy
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from preheat.base.errors import InternalError
from preheat.ir.records import ACCESS, CALL_KINDS, CALLS, ORIGINS, RECORDS, SHAPES, WORD_BYTES, size
from preheat.ir.trace import Signature
from preheat.ir.types import TensorType
from preheat.run.buffers import new_arena, show_bytes
from preheat.run.device import Context
from preheat.run.executable import Executable
from preheat.run.lowering import Row, lower, with_releases
from preheat.run.memory import Memory, flat
from preheat.run.reach import Origin


class Program:
    """The tables of one entry. `address` is that of its program record.

    origins    for each input of the plan, where its tensor is
    extras     the same for the objects that the result takes besides the values
    shape      of the result (records.SHAPES); `rebuild` makes it when shape is "rebuild"
    deep       what fetches objects of kind "deep", or None
    rows       guard rows, with `address` and `count`
    slow       slow(reason, detail, arguments, names of keyword arguments) -> the call's result
    miss       what a call gives that is not the program's beyond doubt
    """

    def __init__(
        self,
        executable: Executable,
        context: Context,
        origins: Sequence[Origin],
        extras: Sequence[Origin],
        shape: str,
        rebuild: Callable | None,
        deep: Callable | None,
        slow: Callable,
        rows: Any,
        signature: Signature,
        miss: Any,
    ):
        self.executable, self.context, self.memory = executable, context, Memory()
        self.memory.object(rows)
        lowered = lower(executable, context, self.memory, len(extras))
        inputs = [
            _input_words(self.memory, origin, slot, access, type)
            for origin, slot, access, type in zip(
                (*origins, *extras),
                (*lowered.input_slots, *lowered.extra_slots),
                (*lowered.access, *("none" for _ in extras)),
                (*executable.plan.inputs, *(None for _ in extras)),
                strict=True,
            )
        ]
        results = (*lowered.output_slots, *(lowered.extra_slots if shape == "rebuild" else ()))
        scratch_words = max(lowered.scratch_words, len(results))  # `rebuild` gets them there
        self.frames = Frames(executable, lowered.slots, scratch_words, lowered.pinned)
        calls = [_call_words(row) for row in with_releases(lowered.rows)]
        self._fields = {
            "context": context.address,
            "slow": self.memory.object(slow),
            "miss": self.memory.object(miss),
            "positional": signature.positional,
            "keywords": len(signature.keywords),
            "keyword_names": (
                self.memory.object(signature.keywords) if signature.keywords else 0
            ),
            "rows": rows.address,
            "row_count": rows.count,
            "new_frame": self.memory.object(self.frames.add),
            "objects_at": self.frames.objects_at,
            "scratch_at": self.frames.scratch_at,
            "deep": self.memory.object(deep) if deep else 0,
            "inputs": self.memory.words(flat(inputs)),
            "input_count": len(inputs),
            "outputs": self.memory.words(flat(lowered.outputs)),
            "output_count": len(lowered.outputs),
            "calls": self.memory.words(flat(calls)),
            "drops": self.memory.words(lowered.drops),
            "drop_count": len(lowered.drops),
            "results": self.memory.words(results),
            "result_count": len(results),
            "shape": SHAPES.index(shape),
            "rebuild": self.memory.object(rebuild) if rebuild else 0,
            "is_grad_off": int(executable.is_grad_off),
        }
        self._record = self.memory.record("program", self._fields)

    def beside(self, rows: Any) -> "Program":
        """The same program behind other guard rows; the two share tables, memory and frames."""
        twin = copy.copy(self)
        twin.memory.object(rows)
        twin._fields = {**self._fields, "rows": rows.address, "row_count": rows.count}
        twin._record = twin.memory.record("program", twin._fields)
        return twin

    @property
    def address(self) -> int:
        return ctypes.addressof(self._record)

    def hold(self, *objects: Any) -> None:
        """Keeps `objects` alive as long as the program."""
        for value in objects:
            self.memory.object(value)


class Frames:
    """The frames of a program, each with an arena: made when none is free, and then kept.

    There are as many as calls were ever under way at once (threads and recursion).
    pinned   arena buffers that library calls see as tensors
    """

    def __init__(
        self, executable: Executable, slots: int, scratch_words: int, pinned: frozenset[int]
    ):
        self._arena_bytes = 0 if executable.is_gpu else executable.arena_bytes
        self._pinned = pinned
        self._arena = [
            (number, place.offset_bytes, buffer.type)
            for number, (place, buffer) in enumerate(
                zip(executable.places, executable.plan.buffers)
            )
            if place.kind == "arena" and not executable.is_gpu  # there they are made by each call
        ]
        self.objects_at = size("frame") + slots * WORD_BYTES
        self.scratch_at = self.objects_at + slots * WORD_BYTES
        self._words = self.scratch_at // WORD_BYTES + scratch_words
        self._made: list[Any] = []

    def add(self) -> int:
        """The address of another frame."""
        words = (ctypes.c_int64 * self._words)()
        arena = new_arena(self._arena_bytes)
        tensors = {
            n: show_bytes(arena, at, type) for n, at, type in self._arena if n in self._pinned
        }
        for number, at, _ in self._arena:
            words[size("frame") // WORD_BYTES + number] = arena.data_ptr() + at
        for number, tensor in tensors.items():
            words[self.objects_at // WORD_BYTES + number] = id(tensor)
        self._made.append((words, arena, tensors))
        return ctypes.addressof(words)


def _input_words(
    memory: Memory, origin: Origin, slot: int, access: str, type: TensorType | None
) -> tuple[int, ...]:
    value = memory.object(origin.value) if origin.kind == "object" else origin.value
    return (
        ORIGINS.index(origin.kind),
        value,
        slot,
        ACCESS.index(access),
        type.itemsize if type else 0,
    )


def _call_words(row: Row) -> tuple[int, ...]:
    expected = len(CALLS[row.kind])
    if len(row.words) != expected:
        raise InternalError(f"a {row.kind} record has {expected} words, not {len(row.words)}")
    padding = len(RECORDS["call"]) - 1 - expected
    return (CALL_KINDS.index(row.kind), *row.words, *(0 for _ in range(padding)))
