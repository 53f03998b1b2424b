"""Who pins a number: the line of the program and the function of C under way when it was looked at.

    pins.during(torch.pixel_shuffle)      a call that is given runtime numbers begins
    numbers.pin_scalar(n)                 Pin("arg1", "3", "torch.pixel_shuffle", "f.py", 12, ..)
"""

import linecache
import opcode
from typing import Any

from preheat.base.pins import KEY, TEST, Pin
from preheat.capture.arithmetic import TESTS
from preheat.capture.frames import Frame
from preheat.capture.native import describe
from preheat.ir.dims import source_of
from preheat.ir.scalar import Number, Scalar, python, symbol, symbols
from preheat.ir.text_trace import source_path

_MOST = 64
_KEYED = frozenset(("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "CONTAINS_OP"))
_DECIDING = frozenset((
    "COMPARE_OP", "UNARY_NOT", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE", "JUMP_IF_TRUE_OR_POP",
    "JUMP_IF_FALSE_OR_POP", "TO_BOOL",
))
_HIDDEN = "_VariableFunctionsClass."  # where torch keeps its functions


class Pins:
    """The pins of one run of `watcher`."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self._by: tuple[int, Any] = (-1, None)  # an instant of the machine, and what is called then
        self._rows: dict[str, Pin] = {}  # by guard

    @property
    def rows(self) -> tuple[Pin, ...]:
        return tuple(self._rows.values())

    def during(self, function: Any) -> None:
        """The present instruction calls `function` with runtime numbers."""
        self._by = self._watcher.machine.instant(), function

    def note(self, scalar: Number, test: Number | None) -> None:
        """`scalar` is looked at: each number in it is pinned, or `test` is; where that is `scalar` itself, it decides which
        way the program goes."""
        numbers = self._watcher.guards.numbers
        if not self._may_note(scalar):
            return
        frame = self._watcher.machine.blamed_frame()
        by = TEST if test is scalar else self._name(frame)
        if test is not None and numbers.is_of_sizes(scalar) and not self._decides(frame):
            return  # what rules and torch ask of sizes goes one way for nearly all of them
        for what in map(symbol, symbols(scalar)) if test is None else (scalar,):
            self._add(frame, what, what if test is None else test, by)

    def note_equal(self, scalar: Number) -> None:
        """A size is what a guard says, a number that is never another one."""
        if self._may_note(scalar):
            frame = self._watcher.machine.blamed_frame()
            by = TEST if self._decides(frame) else self._name(frame)
            self._add(frame, scalar, scalar, by, must=True)

    def _may_note(self, scalar: Number) -> bool:
        return len(self._rows) < _MOST and self._watcher.machine is not None and isinstance(scalar, Scalar)

    def _add(self, frame: Frame | None, what: Number, guarded: Number, by: str, must: bool = False) -> None:
        sources, numbers = self._watcher.sources, self._watcher.guards.numbers
        guard = _text(guarded, sources)
        if guard in self._rows or len(self._rows) >= _MOST:
            return
        file, line = ("", 0) if frame is None else (frame.source.co_filename, frame.line())
        self._rows[guard] = Pin(
            _text(what, sources), guard, repr(numbers.value(what)), by, file, line,
            linecache.getline(file, line).strip(), numbers.is_of_sizes(what), must)

    def _decides(self, frame: Frame | None) -> bool:
        """Whether the present instruction is a comparison or a branch of the program's own."""
        numbers = self._watcher.guards.numbers
        is_called = self._by[0] == self._watcher.machine.instant() and self._by[1] not in TESTS
        return not numbers.rule and not is_called and _opcode(frame) in _DECIDING

    def _name(self, frame: Frame | None) -> str:
        """What the present instruction does with a number."""
        if self._watcher.guards.numbers.rule:
            return self._watcher.guards.numbers.rule
        instant, function = self._by
        if instant == self._watcher.machine.instant():
            return describe(function).replace(_HIDDEN, "")
        return KEY if _opcode(frame) in _KEYED else ""


def _opcode(frame: Frame | None) -> str:
    """The name of the present instruction."""
    if frame is None or not 0 <= frame.pc < len(frame.code.offsets):
        return ""
    return opcode.opname[frame.source.co_code[frame.code.offsets[frame.pc]]]


def _text(scalar: Number, sources: Any) -> str:
    """A number as a user would write it, and as guards are told."""
    return python(scalar, lambda name: source_path(sources, source_of(name)))
