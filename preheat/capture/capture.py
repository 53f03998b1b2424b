"""Capture: runs a call for real, once, and says what it did, so that it can be done without it.

    capture(model, (x,), {}, limits=None)
        -> Outcome(result, nodes=(Captured, ...))          the nodes replay the call
        -> Outcome(result, nodes, breaks=(Break(...),))    it ran, but from the end of the last node
                                                           on it cannot be replayed
        -> Outcome(error=ValueError(...))                  the program's own exception

The machine interprets the program (`machine.py`), the watcher turns reads into guards and writes
into effects (`watch.py`), the recorder turns tensor ops into graphs (`recorder.py`); where Python
must act on every call a node ends and another begins (`nodes.py`). Whatever happens, the program
runs exactly once and its result is given.

A later call that gets to a point where no node fits goes on from there in the same way: `resume`.
`interpret` goes on without watching.

A branch on a bool that a few ops on inputs decide (`attention_mask.all()`) is a `test` guard; any
other look at a tensor's value is a host call. Some composites of torch ask whether a dispatch mode
is active and then take another, equally exact way than eager (`linalg.eigvalsh`, `svdvals`): their
last bits may differ.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from preheat.base import marks
from preheat.base.callers import Raised
from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.base.signatures import rest_of
from preheat.bridge.ambient import ambient_now, steps_aside
from preheat.capture import machine, updates
from preheat.capture.branches import MAX_TEST_OPS_OF_WHOLE
from preheat.capture.nodes import Stop, break_at
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.reads import is_opaque_member
from preheat.capture.snapshots import rebuild
from preheat.capture.watch import Watcher
from preheat.ir.text_trace import ARGUMENTS, items_path
from preheat.ir.trace import Outcome, Point, Signature


MODEL_FILES = (updates,)  # fills `models.MODELS`


@dataclass(frozen=True)
class Limits:
    """Bounds of one capture; beyond any of them the call goes on for real and is not captured.

    is_whole    the first break ends the run at once (fullgraph)
    random      whose random numbers the call gets: "eager" or "generated" (`bridge/draws.py`)
    has_regions checkpoints may be parts of graphs; hosted: places where they may not, and why, see
                `capture/regions.py`
    """

    max_ops: int = 100_000
    max_bytecodes: int = 50_000_000
    max_guards: int = 1_000_000
    max_nodes: int = 64
    is_whole: bool = False
    random: str = "eager"
    has_regions: bool = True
    hosted: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, given: "Limits | Mapping[str, Any] | None") -> "Limits":
        """`given` itself, or the rows of an options table that are limits, the rest by default."""
        if isinstance(given, Limits):
            return given
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in (given or {}).items() if name in names})


def _never(point: Point, objects: tuple) -> bool:
    return False


def capture(
    target: Any, args: tuple, kwargs: dict[str, Any], *,
    limits: Limits | Mapping[str, Any] | None = None,
    is_known: Callable[[Point, tuple], bool] = _never,
    dynamic: frozenset[str] = frozenset(),
) -> Outcome:
    """The outcome of `target(*args, **kwargs)`, run for real, once.

    `target` is any callable: a function, a bound method, an nn.Module. Where `is_known(point,
    objects)` (what the point's `Live(k)` means) the capture stops: the outcome goes on from there.
    `dynamic` has the paths (`ir.text_trace.source_path`) of numbers that change from call to call:
    they become runtime numbers; with `items_path(ARGUMENTS)`, what the target takes as `*args` is one
    tuple. Raises nothing of its own: the program's exception is
    `Outcome.error`.
    """
    aside = steps_aside()
    if aside:
        return _run_unwatched(target, args, kwargs, ("foreign_state", aside))
    ambient = ambient_now()
    limits = Limits.of(limits)
    signature = _signature(target, args, kwargs, items_path(ARGUMENTS) in dynamic and not limits.is_whole)
    rest = signature.rest
    if rest >= 0:
        dynamic |= {items_path(f"arg{rest}")}
    watcher = Watcher(limits, dict(ambient)["inference_mode"], is_known, dynamic)
    if watcher.limits.is_whole:
        watcher.recorder.max_test_ops = MAX_TEST_OPS_OF_WHOLE
    try:
        watcher.nodes.enter(signature, ambient)
        seen, named = watcher.begin(target, signature.packed(args), kwargs, ambient)
    except GiveUp as given:
        return _run_unwatched(target, args, kwargs, (given.reason, given.detail))
    others = None if rest < 0 else seen[rest]
    seen = seen if rest < 0 else seen[:rest]
    return _watched(
        watcher, lambda: machine.run(target, seen, named, watcher, others), _place_of(target))


def _signature(target: Any, args: tuple, kwargs: dict[str, Any], is_packed: bool) -> Signature:
    """The shape of the call; `is_packed`: what the target takes as `*args` may be any number of arguments."""
    rest = rest_of(target) if is_packed else -1
    if not 0 <= rest <= len(args):
        return Signature(len(args), tuple(kwargs))
    return Signature(rest + 1, tuple(kwargs), rest)


def resume(
    point: Point, opened: list, values: list, *,
    limits: Limits | Mapping[str, Any] | None = None,
    is_known: Callable[[Point, tuple], bool] = _never,
    dynamic: frozenset[str] = frozenset(),
) -> Outcome:
    """The outcome of a call that has got to `point`, gone on with for real.

    opened    what the recipe `point.snapshot` gave for `values`, the slots of the point, in which
              each int and float is a copy of its own (`base.numbers.copied`); both lists are
              emptied: the program alone holds its objects
    """
    frames, made, revived = rebuild(opened)
    place = (frames[-1].source.co_filename, frames[-1].line())

    def unwatched(reason: str, detail: str) -> Outcome:
        answer, raised = _answer_of(point, values), None
        if type(answer) is Raised:
            raised, answer = [answer.error], NOT_DONE
        return _settle(
            Outcome(breaks=(break_at(reason, detail, *place),)),
            lambda: machine.resume(frames, Unwatched(answer), raised, revived))

    aside = steps_aside()
    if aside:
        return unwatched("foreign_state", aside)
    watcher = Watcher(
        Limits.of(limits), dict(ambient_now())["inference_mode"], is_known, dynamic)
    watcher.made.update({identity(function): (function, maker) for function, maker in made})
    try:
        watcher.begin_at(point, values, frames)
    except GiveUp as given:
        return unwatched(given.reason, given.detail)
    values.clear()
    return _watched(watcher, lambda: machine.resume(frames, watcher, None, revived), place)


def interpret(
    point: Point, opened: list, values: list,
) -> Any:
    """The result of a call that has got to `point`, gone on with for real and unwatched. `opened`
    and `values` are emptied."""
    frames, _, revived = rebuild(opened)
    answer, raised = _answer_of(point, values), []
    if type(answer) is Raised:
        raised, answer = [answer.error], NOT_DONE
    return machine.resume(frames, Unwatched(answer), raised, revived)


def _answer_of(point: Point, values: list) -> Any:
    """The answer of the host call before `point`, NOT_DONE if there is none. Empties `values`."""
    answer = values[-1] if point.has_answer else NOT_DONE
    values.clear()
    return answer


class Unwatched(Observer):
    """Gives the answer of a host call to the instruction that makes it; watches nothing."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer, self.machine = answer, None

    def attached(self, machine: Any) -> None:
        self.machine = machine
        if self.answer is NOT_DONE:
            machine.close()

    def is_native(self, function: Any) -> bool:
        """A Python function that was called natively is not entered now."""
        return True

    def is_opaque_member(self, owner: Any, name: str, value: Any) -> bool:
        return is_opaque_member(owner, name, value)

    def has_answer(self) -> bool:
        return self.answer is not NOT_DONE

    def c_call(self, function: Any, args: tuple, kwargs: dict) -> Any:
        return self._taken()

    def operate(self, function: Any, args: tuple) -> Any:
        return self._taken()

    def test_truth(self, value: Any) -> bool:
        return self._taken()

    def _taken(self) -> Any:
        self.machine.close()
        answer, self.answer = self.answer, NOT_DONE
        return answer


def refuse_regions(outcome: Outcome, why: str, limits: Limits | Mapping[str, Any] | None) -> None:
    """What was captured is of no use, since it has regions: the next capture makes their checkpoints host
    calls, for the reason `why`."""
    places = outcome.counts["regions"]
    hosted = dict(outcome.counts.get("hosted", Limits.of(limits).hosted)) | dict.fromkeys(places, why)
    outcome.counts["hosted"] = tuple(hosted.items())
    file, _, line = places[0].rpartition(":")
    outcome.breaks = (break_at("impure_region", why, file, int(line)),)


# ---------------------------------------------------------------------------- the run
def _watched(watcher: Watcher, run: Callable[[], Any], place: tuple[str, int]) -> Outcome:
    """Runs the program under `watcher` and gathers what came of it."""
    outcome, depth, stopped = Outcome(), sys.getrecursionlimit(), None
    watcher.recorder.enter()
    try:
        with marks.capturing():
            outcome.result = run()
    except Stop as stop:
        stopped = stop.with_traceback(None)  # whose frames hold the program's objects
    except BaseException as error:  # the program's own, whatever it is: the caller raises it
        outcome.error = error
    finally:
        watcher.recorder.leave()
    if stopped is not None and stopped.point is not None:
        outcome.goes_on = stopped.point, list(stopped.values)
        stopped.values = stopped.args = ()
    elif stopped is not None:
        outcome.breaks = (watcher.first_break(),)
    elif outcome.error is None:
        outcome.breaks = _end(watcher, outcome.result, depth, place)
    outcome.nodes = tuple(watcher.nodes.list)
    ops = sum(len(n.trace.nodes[0].body.ops) for n in outcome.nodes if n.trace.nodes[0].body)
    outcome.counts = {"ops": ops, "frames": watcher.frames, "nodes": len(outcome.nodes)}
    if len(watcher.regions.hosted) > len(watcher.limits.hosted):
        outcome.counts["hosted"] = tuple(watcher.regions.hosted.items())
    if watcher.regions.places:
        outcome.counts["regions"] = tuple(watcher.regions.places)
    if watcher.pins.rows:
        outcome.counts["numbers"] = watcher.pins.rows
    if watcher.missed:
        outcome.counts["pinned"] = dict(watcher.missed)
    watcher.forget()
    return outcome


def _end(watcher: Watcher, result: Any, depth: int, place: tuple[str, int]) -> tuple:
    """Closes the last node; the break, if there is none to close."""
    if watcher.gave is not None:
        return (break_at(*watcher.gave),)
    if watcher.fixed is not None:
        reason, detail, *where = watcher.fixed
        told = f"; without a size rule: {', '.join(watcher.missed)}" if watcher.missed else ""
        return (break_at(reason, detail + told, *where),)
    why = watcher.unfinished()
    if sys.getrecursionlimit() != depth:
        why = "ambient_change", f"the recursion limit was {depth}, is {sys.getrecursionlimit()}"
    if why is None:
        try:
            watcher.nodes.result(result)
        except GiveUp as given:
            why = given.reason, given.detail
    return () if why is None else (break_at(*why, *place),)


def _run_unwatched(target: Any, args: tuple, kwargs: dict, why: tuple[str, str]) -> Outcome:
    outcome = Outcome(breaks=(break_at(*why, *_place_of(target)),))
    return _settle(outcome, lambda: target(*args, **kwargs))


def _settle(outcome: Outcome, run: Callable[[], Any]) -> Outcome:
    try:
        outcome.result = run()
    except BaseException as error:
        outcome.error = error
    return outcome


def _place_of(target: Any) -> tuple[str, int]:
    """Where the code of `target` begins, for a break that no line alone is to blame for."""
    function = getattr(target, "__func__", target)
    method = getattr(type(target), "forward", None)
    code = getattr(function, "__code__", None) or getattr(method, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
