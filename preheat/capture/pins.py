"""Who pins a number: the line of the program and the function of C under way when it was looked at.

    pins.during(torch.pixel_shuffle)      a call that is given runtime numbers begins
    numbers.pin_scalar(n)                 Pin("arg1", "3", "torch.pixel_shuffle", "f.py", 12, ..)
"""

import linecache
import opcode
from typing import Any

from preheat.base.pins import KEY, TEST, Pin
from preheat.capture.frames import Frame
from preheat.capture.native import describe
from preheat.ir.dims import source_of
from preheat.ir.scalar import Number, Scalar, python, symbol, symbols
from preheat.ir.text_trace import source_path

_MOST = 64
_KEYED = frozenset(("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "CONTAINS_OP"))
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
        watcher = self._watcher
        numbers, sources = watcher.guards.numbers, watcher.sources
        if len(self._rows) >= _MOST or watcher.machine is None or not isinstance(scalar, Scalar) or (
                numbers.is_of_sizes(scalar)):
            return
        frame = watcher.machine.blamed_frame()
        by = TEST if test is scalar else self._name(frame)
        file, line = ("", 0) if frame is None else (frame.source.co_filename, frame.line())
        single = [symbol(name) for name in symbols(scalar) if name not in numbers.sizes]
        for what in single if test is None else (scalar,):
            guard = _text(what if test is None else test, sources)
            if guard not in self._rows and len(self._rows) < _MOST:
                self._rows[guard] = Pin(
                    _text(what, sources), guard, repr(numbers.value(what)), by, file, line,
                    linecache.getline(file, line).strip())

    def _name(self, frame: Frame | None) -> str:
        """What the present instruction does with a number."""
        instant, function = self._by
        if instant == self._watcher.machine.instant():
            return describe(function).replace(_HIDDEN, "")
        if frame is None or not 0 <= frame.pc < len(frame.code.offsets):
            return ""
        name = opcode.opname[frame.source.co_code[frame.code.offsets[frame.pc]]]
        return KEY if name in _KEYED else ""


def _text(scalar: Number, sources: Any) -> str:
    """A number as a user would write it, and as guards are told."""
    return python(scalar, lambda name: source_path(sources, source_of(name)))
