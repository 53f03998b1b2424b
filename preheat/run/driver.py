"""The driver's tables: a plan, where its inputs are, and how its result is built, as one program.

    program = Program(executable, context, origins, ...)
    builtin with self = the bytes of program.address      (run/entry.py)
    ProgramStencil(hinted executable, ...).at({"n3": 4})  a program for some sizes

The call records come from `lowering`; here they get addresses, frames and everything around them:
inputs, outputs, result, guards. `ir/records.py` has every layout. Tables hold addresses, so they
never leave the process; a `Program` keeps alive all that its tables point to.
"""

import copy
import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from preheat.ir.hinted import Book, longest
from preheat.ir.records import ACCESS, ORIGINS, SHAPES, WORD_BYTES, offset, size
from preheat.ir.sized import builder
from preheat.ir.trace import Signature
from preheat.ir.types import TensorType
from preheat.run.buffers import extent_bytes, new_arena, show_bytes
from preheat.run.call_rows import call_words, with_releases
from preheat.run.device import Context
from preheat.run.executable import Executable
from preheat.run.lowering import lower
from preheat.run.memory import Memory, Sizes, Stencil, compiled_expressions, flat
from preheat.run.reach import Origin
from preheat.run.replays import replays_of

_SPENT = 2  # `single` of a frame that has served its one call


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
        memory: Memory | None = None,
    ):
        self.executable, self.context = executable, context
        self.memory = Memory() if memory is None else memory
        self.memory.object(rows)
        bound = frozenset(k for k, origin in enumerate(origins) if origin.kind == "object")
        numbers = frozenset(k for k, origin in enumerate(origins) if origin.kind == "word")
        self.replays = replays_of(executable, context, len(extras), bound, numbers)
        lowered = lower(
            executable, context, self.memory, len(extras),
            (self.replays.notice, ctypes.addressof(self.replays.left), numbers)
            if self.replays else None)
        given = list(zip(
            (*origins, *extras),
            (*lowered.input_slots, *lowered.extra_slots),
            (*lowered.access, *("none" for _ in extras)),
            (*executable.plan.inputs, *(None for _ in extras)),
            strict=True,
        ))
        inputs = [_input_words(self.memory, *row) for row in given if row[0].kind != "word"]
        words = [(origin.value, slot) for origin, slot, *_ in given if origin.kind == "word"]
        # what an attribute gives is the call's own
        drops = (*lowered.drops, *(slot for origin, slot, *_ in given if origin.kind == "member"))
        results = (*lowered.output_slots, *(lowered.extra_slots if shape == "rebuild" else ()))
        # `rebuild` gets its arguments in the scratch
        scratch_words = longest((lowered.scratch_words, len(results)))
        self.frames = Frames(
            executable, lowered.slots, scratch_words, lowered.pinned, lowered.constants,
            lowered.kept, lowered.lenses)
        calls = call_words(with_releases(lowered.rows))
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
            "new_frame": self._new_frame(),
            "objects_at": self.frames.objects_at,
            "scratch_at": self.frames.scratch_at,
            "deep": self.memory.object(deep) if deep else 0,
            "inputs": self.memory.words(flat(inputs)),
            "input_count": len(inputs),
            "outputs": self.memory.words(flat(lowered.outputs)),
            "output_count": len(lowered.outputs),
            "calls": self.memory.words(flat(calls)),
            "words": self.memory.words(flat(words)),
            "word_count": len(words),
            "drops": self.memory.words(drops),
            "drop_count": len(drops),
            "results": self.memory.words(results),
            "result_count": len(results),
            "shape": SHAPES.index(shape),
            "rebuild": self.memory.object(rebuild) if rebuild else 0,
            "is_grad_off": int(executable.is_grad_off),
            "takes_inputs": int(executable.takes_inputs),
            "is_streamed": int(self.frames.is_streamed),
            "replays": ctypes.addressof(self.replays.cell) if self.replays else 0,
            "device_index": executable.kernels_index,
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
        return self._record

    def _new_frame(self) -> int:
        return self.memory.object(self.frames.add)

    def hold(self, *objects: Any) -> None:
        """Keeps `objects` alive as long as the program."""
        for value in objects:
            self.memory.object(value)


class ProgramStencil(Program):
    """The tables of a plan whose sizes are hinted (`ir/hinted.py`); `at` gives a program for some.

    symbols   of the plan;  book: what its sizes were taken for, once the tables were made
    """

    def __init__(self, symbols: Sequence[str], book: Book, executable: Executable, *given: Any):
        self._stencil = Stencil()
        super().__init__(executable, *given, self._stencil)
        self.symbols = symbols
        self.frames.take_holes(self._stencil)
        self._evaluate = self._stencil.evaluator(symbols)
        self._allows = compiled_expressions(symbols, book.conditions)

    def at(self, sizes: Sizes) -> "FilledProgram | None":
        """The program at these sizes; None for sizes that the tables are not for."""
        values = [sizes[symbol] for symbol in self.symbols]
        if not all(self._allows(*values)):
            return None
        filled = self._stencil.at(self._evaluate(*values))
        return FilledProgram(filled.address(int(self._record)), [self, *filled.kept])

    def _new_frame(self) -> int:
        def frames_at(words: Sequence[int], kept: list) -> tuple[int]:
            kept.append(self.frames.at(words).add)
            return id(kept[-1]),

        return self.memory.made(frames_at)[0]


class FilledProgram:
    """Tables at some sizes, as `Program`."""

    def __init__(self, address: int, kept: list[Any]):
        self.address, self._kept = address, kept

    def hold(self, *objects: Any) -> None:
        self._kept += objects


class Frames:
    """The frames of a program, each with an arena: made when none is free, and then kept.

    There are as many as calls were ever under way at once (threads and recursion); on a GPU, for each
    stream. One for a call that the program captures into a graph of its own is let go when another
    is made.

    pinned     arena buffers that library calls see as tensors
    constants  slots with numbers in place of a pointer
    kept       what else lies behind the arena, and at which byte
    lenses     slots of views of inputs, which native code makes and a frame keeps
    """

    def __init__(
        self, executable: Executable, slots: int, scratch_words: int, pinned: frozenset[int],
        constants: Sequence[tuple[int, int]] = (),
        kept: Mapping[int, tuple[int, TensorType]] = MappingProxyType({}), lenses: Sequence[int] = (),
    ):
        plan, self._device = executable.plan, executable.device
        self._constants = constants
        self._pinned = pinned | kept.keys()
        self._arena = [
            (number, place.offset_bytes, buffer.type)
            for number, (place, buffer) in enumerate(zip(executable.places, plan.buffers))
            if place.kind == "arena" and executable.keeps_arena  # else each call makes them
        ]
        self._arena_bytes = executable.arena_bytes if executable.keeps_arena else 0
        for slot, (start, type) in kept.items():
            self._arena.append((slot, start, type))
            self._arena_bytes = max(self._arena_bytes, start + extent_bytes(type))
        self.is_streamed = executable.is_gpu and bool(self._arena_bytes)
        self.objects_at = size("frame") + slots * WORD_BYTES
        self.scratch_at = self.objects_at + slots * WORD_BYTES
        self._words = self.scratch_at // WORD_BYTES + scratch_words
        self._lenses = tuple(self.objects_at // WORD_BYTES + slot for slot in lenses)
        self._made: list[tuple[Any, Any, Any]] = []
        if lenses:
            weakref.finalize(self, _release, self._made, self._lenses).atexit = False

    def take_holes(self, stencil: Stencil) -> None:
        """Notes which numbers hang on sizes, and where `stencil` evaluates them."""
        numbers = (
            self._arena_bytes, self._words, *(offset for _, offset, _ in self._arena),
            *(word for _, word in self._constants))
        self._holes = [(number, stencil.number(number)) for number in numbers]
        self._types = [
            builder(type, stencil.value) if slot in self._pinned else None for slot, _, type in self._arena]

    def at(self, words: Sequence[int]) -> "Frames":
        """Frames for some sizes, none so far. `words`: what the stencil has evaluated."""
        made = copy.copy(self)
        made._made = []
        numbers = iter([given if place < 0 else words[place] for given, place in self._holes])
        made._arena_bytes, made._words = next(numbers), next(numbers)
        made._arena = [
            (slot, next(numbers), type if build is None else build(words))
            for (slot, _, type), build in zip(self._arena, self._types)]
        made._constants = [(slot, next(numbers)) for slot, _ in self._constants]
        return made

    def add(self) -> int:
        """The address of another frame."""
        single = offset("frame", "single") // WORD_BYTES
        spent = [frame for frame in self._made if frame[0][single] == _SPENT]
        self._made[:] = [frame for frame in self._made if frame[0][single] != _SPENT]
        _release(spent, self._lenses)
        words = (ctypes.c_int64 * self._words)()
        is_seen = self.is_streamed or self._pinned  # an empty arena, too, is where its tensors are
        arena = None
        if self._arena or self._arena_bytes:
            arena = new_arena(self._arena_bytes, self._device if is_seen else "cpu")
        tensors = {
            n: show_bytes(arena, at, type) for n, at, type in self._arena if n in self._pinned
        }
        for number, at, _ in self._arena:
            words[size("frame") // WORD_BYTES + number] = arena.data_ptr() + at
        for slot, word in self._constants:
            words[size("frame") // WORD_BYTES + slot] = word
        for number, tensor in tensors.items():
            words[self.objects_at // WORD_BYTES + number] = id(tensor)
        self._made.append((words, arena, tensors))
        return ctypes.addressof(words)


def _release(frames: Sequence[tuple[Any, Any, Any]], places: Sequence[int]) -> None:
    """Lets go of the objects that native code has left in `frames`."""
    for words, _, _ in frames:
        for place in places:
            if words[place]:
                ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(words[place]))


def _input_words(
    memory: Memory, origin: Origin, slot: int, access: str, type: TensorType | None
) -> tuple[int, ...]:
    value = origin.value
    if origin.kind == "object":
        value = memory.object(value)
    elif origin.kind == "member":
        value = memory.words(map(memory.object, value))
    return (
        ORIGINS.index(origin.kind),
        value,
        slot,
        ACCESS.index(access),
        type.itemsize if type else 0,
    )
