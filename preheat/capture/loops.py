"""Loops that turn as often as something from outside says: each turn comes back to the same point.

    n = 0                        before the second turn n is a number of its own: a slot of the
    for x in xs:         ->      point where the next element is asked for, which is then the same
        n += 1                   at every turn

    while i < n:                 where n has been another number in each of three calls, the node ends
        i += 1           ->      at the backward jump: i and n are slots of the point there

What a turn has stored in a local, an int or float, is made an object of its own when the loop goes
round. Where the node ends it becomes a runtime number of the next one (`numbers.py`); for this node it is
a number like any other. Lists of tensors that the turns make are slots, too.
"""

import types
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.base.numbers import copied
from preheat.bridge.tensors import Tensor
from preheat.capture.arithmetic import NUMBERS
from preheat.capture.frames import has_content
from preheat.capture.guards import Guards
from preheat.capture.handlers import HANDLERS
from preheat.capture.liveness import written_between
from preheat.capture.observer import Observer
from preheat.capture.snapshots import frames_of
from preheat.ir.dims import source_of
from preheat.ir.scalar import Scalar, symbols
from preheat.ir.text_trace import source_path, turns_path


class Loops(Observer):
    """The part of the watcher that is told of loops.

    counters   numbers of their own that loops have stored in this node, by id
    decided    the instructions of open frames, as they stood when one decided something by a number that
               says how often a loop turns
    """

    guards: Guards
    numbers: dict[int, Any]
    counters: dict[int, int | float]
    decided: list[tuple[Any, int]]
    machine: Any
    go_on: Callable[[str, str], None]
    _acted: int
    _stands: Callable[[int], bool]

    def loop(self, frame: Any, is_again: bool) -> None:
        target = frame.code.instructions[frame.pc][1]
        turns = is_again and self._turns(frame, target)
        if turns:
            self._keep_turning()
        if not self.guards.moving_lists:
            return
        for place in written_between(frame.code, target, frame.pc):
            value = frame.locals[place]
            if type(value) is not types.CellType:
                frame.locals[place] = self._counted(value)
            elif identity(value) not in self.known and has_content(value):
                value.cell_contents = self._counted(value.cell_contents)
        if turns:
            self.go_on("changing_loop", frame.source.co_name)

    def _counted(self, value: Any) -> Any:
        """`value`, a number as an object of its own."""
        if type(value) not in NUMBERS or identity(value) in self.numbers:
            return value
        own = copied(value)
        self.counters[identity(own)] = own
        return own

    def _turns(self, frame: Any, target: int) -> bool:
        """Whether the loop has decided by such a number whether it goes on, and the node can end here."""
        return frame.code.instructions[target][0] is not HANDLERS["FOR_ITER"] and any(
            decided is frame and target <= place <= frame.pc for decided, place in self.decided
        ) and self._stands(self._acted)

    def _keep_turning(self) -> None:
        """So do the numbers that follow from them, in the nodes to come."""
        self.guards.moving_lists.update(
            (place, value) for place, (value, scalar) in self.numbers.items() if self._says_turns(scalar))

    def note_test(self, scalar: Scalar) -> None:
        """The program, or C, has tested something of numbers that change."""
        frame = self.machine.frame if self.machine is not None else None
        if frame is not None and frame.code.instructions[frame.pc][0] in _DECIDING and self._says_turns(scalar):
            self.decided += [(open_frame, open_frame.pc) for open_frame in frames_of(self.machine)]

    def _says_turns(self, scalar: Scalar) -> bool:
        guards = self.guards
        return any(
            identity(guards.numbers.of(name)) in guards.moving_lists
            or turns_path(source_path(guards.sources, source_of(name))) in guards.dynamic
            for name in symbols(scalar))

    def is_moving(self, container: Any) -> bool:
        return self.guards.is_moving_list(container)

    def is_counted(self, number: Any) -> bool:
        return identity(number) in self.numbers or identity(number) in self.counters

    def growing(self) -> list[list | dict]:
        """Lists and dicts of tensors that the program makes as it goes through one from outside: they are slots, so
        that the loop comes back to where it was whatever their length is."""
        lists = [
            value for frame in frames_of(self.machine) for value in (*frame.locals, *frame.stack)
            if type(value) in (list, dict) and identity(value) not in self.known
            and all(type(part) is Tensor for part in (value.values() if type(value) is dict else value))]
        self.guards.moving_lists.update((identity(value), value) for value in lists)
        return lists


# Instructions that test what they are given.
_DECIDING = frozenset(
    handler for name, handler in HANDLERS.items()
    if name in ("COMPARE_OP", "COMPARE_BOOL", "CONTAINS_OP", "UNARY_NOT") or name.startswith("POP_JUMP_"))
