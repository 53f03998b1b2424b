"""Capture: runs a call for real, once, and says what it did, so that it can be done without it.

    capture(model, (x,), {}, limits=None)
        -> Outcome(result, captured=Captured(trace))      the trace replays the call
        -> Outcome(result, breaks=(Break(...),))           it ran, but cannot be replayed
        -> Outcome(error=ValueError(...))                  the program's own exception

The machine interprets the program (`machine.py`), the watcher turns reads into guards (`watch.py`),
the recorder turns tensor ops into a graph (`recorder.py`), and the result becomes a recipe
(`recipes.py`). Whatever happens, the program runs exactly once and its result is given.

In this version a trace is one node: entry guards, one body, a return. It speaks of memory as it was
before the call; a call that writes to an object from outside is not captured. A branch on a bool
that a few ops on inputs decide (`attention_mask.all()`) is a `test` guard; any other look at a
tensor's value is a break. Some composites of torch ask whether a dispatch mode is active and then
take another, equally exact way than eager (`linalg.eigvalsh`, `svdvals`): their last bits may
differ.
"""

import linecache
import platform
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from preheat.base import marks
from preheat.base.dataclass import dataclass
from preheat.base.reasons import explain
from preheat.base.rewrites import hint_for
from preheat.bridge.ambient import ambient_now, steps_aside
from preheat.bridge.tensors import extent
from preheat.capture import recipes
from preheat.capture.machine import run
from preheat.capture.observer import GiveUp
from preheat.capture.watch import Watcher
from preheat.ir.trace import Break, Captured, Guard, Node, Outcome, Return, Signature, Trace

_PYTHON = ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True)
class Limits:
    """Bounds of one capture; beyond any of them the call goes on for real and is not captured."""

    max_ops: int = 100_000
    max_bytecodes: int = 50_000_000
    max_guards: int = 1_000_000

    @classmethod
    def of(cls, given: "Limits | Mapping[str, Any] | None") -> "Limits":
        """`given` itself, or the rows of an options table that are limits, the rest by default."""
        if isinstance(given, Limits):
            return given
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in (given or {}).items() if name in names})


def capture(
    target: Any, args: tuple, kwargs: dict[str, Any], *,
    limits: Limits | Mapping[str, Any] | None = None,
) -> Outcome:
    """The outcome of `target(*args, **kwargs)`, run for real, once.

    `target` is any callable: a function, a bound method, an nn.Module. Raises nothing of its own:
    the program's exception is `Outcome.error`.
    """
    aside = steps_aside()
    if aside:
        return _run_unwatched(target, args, kwargs, ("foreign_state", aside))
    ambient, depth = ambient_now(), sys.getrecursionlimit()
    watcher = Watcher(Limits.of(limits), dict(ambient)["inference_mode"])
    try:
        watcher.begin(target, args, kwargs, ambient)
    except GiveUp as given:
        return _run_unwatched(target, args, kwargs, (given.reason, given.detail))
    outcome = _run_watched(watcher, target, args, kwargs)
    if outcome.error is not None:
        return outcome
    if watcher.gave is None and (why := watcher.unfinished() or _changed(ambient, depth)):
        outcome.breaks = (_break(*why, *_place_of(target)),)
    elif watcher.gave is not None:
        outcome.breaks = (_break(*watcher.gave),)
    else:
        _assemble(outcome, watcher, target, args, kwargs)
    return outcome


# ---------------------------------------------------------------------------- the run
def _run_watched(watcher: Watcher, target: Any, args: tuple, kwargs: dict) -> Outcome:
    outcome = Outcome()
    watcher.recorder.enter()
    try:
        with marks.capturing():
            outcome.result = run(target, args, kwargs, watcher)
    except BaseException as error:  # the program's own, whatever it is: the caller raises it
        outcome.error = error
    finally:
        watcher.recorder.leave()
    outcome.counts = {"ops": len(watcher.recorder.builder.ops), "frames": watcher.frames}
    return outcome


def _run_unwatched(target: Any, args: tuple, kwargs: dict, why: tuple[str, str]) -> Outcome:
    outcome = Outcome(breaks=(_break(*why, *_place_of(target)),))
    try:
        outcome.result = target(*args, **kwargs)
    except BaseException as error:
        outcome.error = error
    return outcome


def _changed(ambient: tuple, depth: int) -> tuple[str, str] | None:
    if sys.getrecursionlimit() != depth:
        return "ambient_change", f"the recursion limit was {depth}, is {sys.getrecursionlimit()}"
    for (name, before), (_, after) in zip(ambient, ambient_now()):
        if before != after:
            return "ambient_change", f"{name} was {before}, is {after}"
    return None


# ---------------------------------------------------------------------------- the trace
def _assemble(outcome: Outcome, watcher: Watcher, target: Any, args: tuple, kwargs: dict) -> None:
    """Puts the trace into `outcome`, or a break if the result has no recipe."""
    recorder, sources = watcher.recorder, watcher.sources
    outputs: dict[int, int] = {}

    def output(tensor: Any) -> int | None:
        value = recorder.value_of(tensor)
        return None if value is None else outputs.setdefault(value, len(outputs))

    try:
        recipe = recipes.plan(outcome.result, sources, output, watcher.is_made)
    except GiveUp as given:
        outcome.breaks = (_break(given.reason, given.detail, *_place_of(target)),)
        return
    inputs = tuple(recorder.input_sources)
    alias_sets = _alias_sets(recorder.input_tensors())
    names = [_input_name(sources.table, source) for source in inputs]
    body = recorder.finish(list(outputs), names, alias_sets)
    guards = (*watcher.guards.finish(), *_alias_guards(inputs, alias_sets, recorder.written_inputs))
    node = Node(guards, inputs if body else (), body, Return(recipe))
    trace = Trace(
        Signature(len(args), tuple(kwargs)), tuple(sources.table), (node,),
        tuple(watcher.guards.codes), _PYTHON,
    )
    outcome.nodes = (Captured(trace, tuple(sources.objects), sources.why_not_stored),)


def _alias_sets(tensors: list) -> list[int]:
    """A number for each input: equal where memory overlaps, -1 where it is the input's own."""
    order = sorted((extent(tensor), place) for place, tensor in enumerate(tensors))
    sets = [-1] * len(tensors)
    end, last, group = -1, -1, -1
    for (start, stop), place in order:
        if start < end and start < stop:
            if sets[last] < 0:
                group += 1
                sets[last] = group
            sets[place] = sets[last]
        if stop > end:
            end, last = stop, place
    return sets


def _alias_guards(
    inputs: tuple[int, ...], alias_sets: list[int], written: dict[int, int],
) -> list[Guard]:
    """Which inputs overlap matters only if the body writes to one."""
    if not written:
        return []
    groups: dict[int, list[int]] = {}
    for place, source in enumerate(inputs):
        group = alias_sets[place] if alias_sets[place] >= 0 else -2 - place
        groups.setdefault(group, []).append(source)
    return [Guard(-1, "alias", tuple(tuple(group) for group in groups.values()))]


def _input_name(table: list, source: int) -> str:
    """How people would write the source: "self.layers[0].weight" without the dicts between."""
    parts = []
    while source >= 0:
        step = table[source]
        if step.kind == "item" and step.parent >= 0 and table[step.parent].kind == "dict":
            parts.append(str(step.key))
        elif step.kind in ("item", "attr", "arg", "kwarg", "class"):
            parts.append(str(step.key))
        source = step.parent
    between = ("_modules", "_parameters", "_buffers")
    return ".".join(part for part in reversed(parts) if part not in between)


# ---------------------------------------------------------------------------- breaks
def _break(reason: str, detail: str, file: str, line: int) -> Break:
    sentence, hint = explain(reason, detail)
    code = linecache.getline(file, line).strip()
    hint = hint_for("".join(linecache.getlines(file)), line, reason, hint)
    return Break(reason, detail or sentence, file, line, code, hint)


def _place_of(target: Any) -> tuple[str, int]:
    """Where the code of `target` begins, for a break that no line alone is to blame for."""
    function = getattr(target, "__func__", target)
    method = getattr(type(target), "forward", None)
    code = getattr(function, "__code__", None) or getattr(method, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
