"""Exceptions from outside: those that host calls raise, and those that the program raises again.

    try: n = int(text)             node 0     host int(text)          -> point 1
    except ValueError: n = 0       point 1, answer an int             -> node of the usual way
                                   point 1, answer Raised(ValueError) -> node of the handler

A host call that raises has answered with `base.callers.Raised`: the nodes behind it guard the type
of its error, and the machine raises the error where the call stands. What raising does to an object
that others may hold, its traceback and its context, is written at the end of the node.
"""

import types
from typing import Any

from preheat.base import stubs
from preheat.base.callers import Raised, caller
from preheat.base.identity import identity
from preheat.capture.guards import Guards
from preheat.capture.native import describe
from preheat.capture.nodes import Nodes
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.recorder import Recorder
from preheat.capture.sources import Sources
from preheat.capture.tracebacks import is_own, raise_as_is

_MOST_CONTEXTS = 32  # of a chain that is looked at


class Raises(Observer):
    """The part of the watcher that knows exceptions from outside."""

    guards: Guards
    sources: Sources
    machine: Any
    nodes: Nodes
    answer: Any
    answered: int
    recorder: Recorder

    def __init__(self) -> None:
        super().__init__()
        # exceptions from outside that the node raises or handles, with traceback and context as
        # they were when it began, by id
        self.risen: dict[int, tuple[BaseException, Any, Any]] = {}

    def raised(self, error: BaseException) -> None:
        """An op failed by what its tensors held; or an exception from outside is raised again."""
        self.check()
        self._note(error)
        handled = self.machine.handled.current()
        for _ in range(_MOST_CONTEXTS):  # the new context; a cycle through it is cut further on
            if handled is None:
                break
            self._note(handled)
            handled = handled.__context__

    def _note(self, error: BaseException) -> None:
        if identity(error) in self.known and identity(error) not in self.risen:
            self.risen[identity(error)] = error, _shown(error.__traceback__), error.__context__

    def call_host(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Makes the host call that has just ended a node: its answer."""
        call = caller(*self.nodes.list[-1].trace.nodes[0].end.where)
        try:
            with self.recorder.away():
                return call(function, args, kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next.tb_next  # without ours and the caller's
            if isinstance(error, Exception):
                return Raised(error)
            self.machine.give_up("host_raised", f"{describe(function)}: {type(error).__name__}")
            raise

    def has_answer(self) -> bool:
        return self.answer is not NOT_DONE

    def take_answer(self) -> Any:
        """What the host call gives to the instruction that makes it."""
        answer, self.answer = self.answer, NOT_DONE
        self.answered = self.machine.instant()
        if type(answer) is Raised:
            raise_as_is(self.error_of(answer))
        return answer

    def error_of(self, answer: Raised) -> BaseException:
        """The exception with which a host call has answered, known from now on."""
        error = answer.error
        source = self.sources.step(self.known[identity(answer)], "attr", "error")
        try:
            self.guards.meet(source, error)
        except GiveUp as given:
            raise GiveUp(given.reason, given.detail, answer) from given
        self._note(error)
        return error

    def plan_risen(self, planner: Any) -> None:
        """The steps that give exceptions from outside what raising has given them."""
        for error, traceback, context in self.risen.values():
            if _shown(error.__traceback__) is not traceback:
                self._plan_traceback(planner, error, traceback)
            if error.__context__ is not context:
                planner.step(
                    "write", planner.plan(error), "__context__", planner.plan(error.__context__))

    def _plan_traceback(self, planner: Any, error: BaseException, before: Any) -> None:
        """The entries of our frames, in front of those that it had when the node began."""
        entries, entry = [], _shown(error.__traceback__)
        while entry is not before:
            function = None if entry is None else stubs.function_of(entry)
            if function is None:
                raise GiveUp("no_recipe", "a traceback through native frames")
            entries.append((function, entry.tb_lasti, entry.tb_lineno))
            entry = entry.tb_next
        place = self.sources.step(self.known[identity(error)], "attr", "__traceback__")
        following = planner.step("source", place)
        for shown in reversed(entries):
            make, *where = planner.many((stubs.entry, *shown))
            following = planner.step("call", make, following, *where)
        planner.step("write", planner.plan(error), "__traceback__", following)


def _shown(entry: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without our own entries on its top."""
    while entry is not None and is_own(entry):
        entry = entry.tb_next
    return entry
