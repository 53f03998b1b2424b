"""Loops over lists whose length changes from call to call: each turn comes back to the same point.

    n = 0                        before the second turn n is a number of its own: a slot of the
    for x in xs:         ->      point where the next element is asked for, which is then the same
        n += 1                   at every turn

What a turn has stored in a local, an int or float, is made an object of its own when the loop goes
round. Where the node ends it becomes a runtime number of the next one (`numbers.py`); for this node it is
a number like any other. Lists of tensors that the turns make are slots, too.
"""

from typing import Any

from preheat.base.numbers import copied
from preheat.bridge.tensors import Tensor
from preheat.capture.guards import Guards
from preheat.capture.handlers import HANDLERS
from preheat.capture.liveness import written_between
from preheat.capture.numbers import NUMBERS
from preheat.capture.observer import Observer
from preheat.capture.snapshots import frames_of


class Loops(Observer):
    """The part of the watcher that is told of loops.

    counters   numbers of their own that loops have stored in this node, by id
    """

    guards: Guards
    numbers: dict[int, Any]
    counters: dict[int, int | float]
    machine: Any

    def loop(self, frame: Any) -> None:
        if not self.guards.moving_lists:
            return
        target = frame.code.instructions[frame.pc][1]
        for place in written_between(frame.code, target, frame.pc):
            value = frame.locals[place]
            if type(value) in NUMBERS and id(value) not in self.numbers:
                own = frame.locals[place] = copied(value)
                self.counters[id(own)] = own

    def is_moving(self, container: Any) -> bool:
        return self.guards.is_moving_list(container)

    def is_looped(self) -> bool:
        """Whether what the present instruction makes is iterated at once, and that may be done by host
        calls."""
        frame = self.machine.frame
        follows = frame.code.instructions[frame.pc + 1][0]
        return self.guards.can_end() and follows is HANDLERS["GET_ITER"]

    def is_counted(self, number: Any) -> bool:
        return id(number) in self.numbers or id(number) in self.counters

    def growing(self) -> list[list]:
        """Lists of tensors that the program makes as it goes through one from outside: they are slots, so
        that the loop comes back to where it was whatever their length is."""
        lists = [
            value for frame in frames_of(self.machine) for value in (*frame.locals, *frame.stack)
            if type(value) is list and id(value) not in self.known
            and all(type(part) is Tensor for part in value)]
        self.guards.moving_lists.update((id(value), value) for value in lists)
        return lists
