"""Frames are left at calls of C and gone on with in another machine: nothing is lost or done twice."""

import ctypes
import gc
from contextlib import _GeneratorContextManager

import pytest

from preheat.capture.generators import is_own, let_go
from preheat.capture.machine import resume, run
from preheat.capture.nodes import Stop
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.snapshots import rebuild, take
from preheat.capture.sources import Sources
from preheat.run.recipes import compile_recipe
from machine_programs import PROGRAMS
from test_machine_language import outcome


class Everything:
    """A set that has every id but those of generators that run, and of what they are part of:
    whatever else stands in a frame is carried as it is.
    """

    def __contains__(self, number: int) -> bool:
        address = (number << 4 | number >> 60 & 15) & (1 << 64) - 1  # what `identity` has turned by four bits
        return not holds_running(ctypes.cast(address, ctypes.py_object).value, 3)


def holds_running(value, depth: int) -> bool:
    """Whether `value` is a generator that runs, or has one among its parts."""
    if is_own(value):
        return value.gi_running
    if depth == 0 or type(value) not in (list, tuple, dict, _GeneratorContextManager):
        return False
    return any(holds_running(part, depth - 1) for part in gc.get_referents(value))


class Leaver(Observer):
    """Leaves the run at a call of C that it makes, if the frames can be resumed there."""

    def __init__(self, skips: int, answer=NOT_DONE):
        super().__init__()
        self.skips, self.answer, self.made = skips, answer, NOT_DONE

    def attached(self, machine) -> None:
        self.machine = machine

    def c_call(self, function, args: tuple, kwargs: dict):
        if self.answer is not NOT_DONE:
            answer, self.answer = self.answer, NOT_DONE
            return answer
        self.skips -= 1
        stands = self.skips < 0 and self.machine.stands_before()
        self.made = function(*args, **kwargs)
        if stands:
            sources = Sources()
            try:
                *left, replaced = take(self.machine, sources, {}, Everything())
            except GiveUp:
                return self.made
            self.left = *left, sources.objects
            let_go(replaced)
            self.machine.fault = Stop()
            raise self.machine.fault
        return self.made


def run_with_leaves(function, args, kwargs, observer: Leaver):
    """Runs `function` and, behind every few calls of C, goes on in a new machine."""
    every = observer.skips
    start = lambda: run(function, args, kwargs, observer)  # noqa: E731
    while True:
        try:
            return start()
        except Stop:
            recipe, slots, objects = observer.left
            opened = compile_recipe(recipe, len(slots), objects).function(*slots)
            frames, _, revived = rebuild(opened)
            observer = Leaver(every, observer.made)
            start = lambda: resume(frames, observer, None, revived)  # noqa: B023, E731


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_goes_on_in_another_machine(name, every):
    left = outcome(PROGRAMS[name], Leaver(every), run_with_leaves)
    assert left == outcome(PROGRAMS[name], None)
