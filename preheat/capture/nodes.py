"""Nodes: the run of a call, cut into pieces of tensor ops, each with its guards and its end.

    x = self.a(x)                  node 0   guards, ops of a;  end host print(x, self, x)
    print(x.sum())          ->     node 1   guards, ops of b;  end return %4
    return self.b(x)

`Nodes` assembles what the watcher, the recorder and the effects gathered since the last end. The
recipe of an end does the effects in program order, gives the host call or the result, and the slots
of the point that follows. Whatever that recipe builds for a host call or for an outside object has
escaped: it is a slot, so that it stays the same object.
"""

import functools
import linecache
import logging
import platform
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from preheat.base.callers import Handling
from preheat.base.identity import identity
from preheat.base.later import later
from preheat.base.numbers import copied
from preheat.base.reasons import explain
from preheat.bridge.ambient import ROUNDING, SETTABLE, ambient_now
from preheat.bridge.tensors import Tensor
from preheat.capture import generators, snapshots
from preheat.capture.numbers import TOLD
from preheat.capture.observer import GiveUp
from preheat.capture.recipes import Planner
from preheat.capture.spoiled import lost_edge, own_gradient, why_spoiled, written_histories
from preheat.capture.sizes import finished
from preheat.ir.graph import Graph
from preheat.ir.trace import (
    Break, Captured, Goto, Guard, Host, Node, Point, Recipe, Return, Signature, Trace,
)

rewrites = later("preheat.base.rewrites")
_PYTHON = ".".join(platform.python_version_tuple()[:2])
_MOVING = frozenset((range, type(iter(range(0))), enumerate, zip, int, float))
_OF_LISTS = frozenset(("list_length", "outside_iterator", "changing_loop"))
Outputs: TypeAlias = dict[int, tuple[int, Any]]  # value -> its place and tensor


class Stop(BaseException):
    """Ends the run of the machine, unseen by the program: `point` is known already, or, if None,
    nothing more may be done."""

    def __init__(self, point: Point | None = None, values: tuple = ()):
        self.point, self.values = point, values


class Nodes:
    """The nodes of one call so far, and where the one under way starts.

    is_known(point, objects)   whether the caller goes on from there without this capture; `objects`
                               are those that the point names
    """

    def __init__(self, watcher: Any, is_known: Callable[[Point, tuple], bool]) -> None:
        self.watcher, self.is_known = watcher, is_known
        self.list: list[Captured] = []
        self.start: Point | None = None
        self.signature = Signature(0)
        self.ambient: tuple = ()
        self.replaced = weakref.WeakSet()  # generators that the last point makes again

    # ------------------------------------------------------------------ starts
    def enter(self, signature: Signature, ambient: tuple) -> None:
        """The first node starts at the entry."""
        self.signature, self.ambient = signature, ambient

    def begin(self, point: Point) -> None:
        """The first node starts at `point`, where a call has got to without us."""
        self.start, self.signature = point, Signature(point.slots)

    def arrive(self, point: Point, values: tuple) -> None:
        """The next node starts at `point`, unless one that does is there: a loop is closed."""
        if self.is_known(point, self.list[-1].objects):
            generators.let_go(self.replaced)
            self.watcher.machine.fault = Stop(point, values)
            raise self.watcher.machine.fault
        self.begin(point)

    def start_ambient(self) -> tuple:
        """The ambient state as the node starts; the recorder's own mode is not the program's."""
        self.ambient = self.ambient_now()
        return self.ambient

    def ambient_now(self) -> tuple:
        """The state of torch as the program sees it."""
        ours = self.watcher.recorder.is_entered
        return tuple([
            (name, value - 1 if ours and name == "dispatch_modes" else value)
            for name, value in ambient_now()
        ])

    # ------------------------------------------------------------------ ends
    def result(self, value: Any) -> None:
        """The last node: the call gives `value`. Raises GiveUp if that has no recipe."""
        outputs: Outputs = {}
        planner = self._planner(outputs)
        self._finish(outputs, Return(planner.recipe(planner.plan(value))), None)

    def host(
        self, function: Any, args: tuple, kwargs: dict, why: GiveUp,
    ) -> tuple[Point, list[Any]]:
        """Ends the node with a host call: the point behind it and the objects of its slots."""
        outputs: Outputs = {}
        planner = self._planner(outputs)
        call, where = planner.many((function, args, kwargs)), self.where()
        handled = [e for e in self.watcher.machine.handled_errors() if e is not None]
        if handled:
            parts = planner.many((Handling, handled[-1]))
            call[0] = planner.step("call", *parts, call[0], *planner.many(where))
        growing = self.watcher.growing() if why.reason in _OF_LISTS else ()
        recipe, snapshot, slots = self._cut(planner, call, growing)
        moving = self._moving(slots)
        if why.reason in _OF_LISTS and function is not next:  # which gives a part of one
            moving = (*moving, len(slots))
        point = Point(snapshot, len(slots) + 1, has_answer=True, moving=moving, keys=self._keys(slots))
        self._finish(outputs, Host(recipe, point, where), self.broken(why))
        return point, slots

    def goto(self, why: GiveUp) -> tuple[Point, list[Any]]:
        """Ends the node before the present instruction."""
        outputs: Outputs = {}
        growing = self.watcher.growing() if why.reason in _OF_LISTS else ()
        recipe, snapshot, slots = self._cut(self._planner(outputs), [], growing)
        point = Point(snapshot, len(slots), moving=self._moving(slots), keys=self._keys(slots))
        self._finish(outputs, Goto(recipe, point), self.broken(why))
        return point, slots

    def _moving(self, slots: Sequence[Any]) -> tuple[int, ...]:
        lists = self.watcher.guards.moving_lists
        return tuple(place for place, slot in enumerate(slots) if identity(slot) in lists)

    def _keys(self, slots: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            place for place, slot in enumerate(slots)
            if type(slot) in TOLD and self.watcher.is_changing_key(slot))

    def _planner(self, outputs: Outputs) -> Planner:
        """A recipe that has done the node's effects; `outputs` collects the values it takes."""
        watcher = self.watcher
        recorder = watcher.recorder

        def output(tensor: Any) -> int | None:
            value = recorder.value_of(tensor)
            if value is None:
                return None
            return outputs.setdefault(value, (len(outputs), tensor))[0]

        planner = Planner(watcher.sources, output, watcher.made)
        for effect in watcher.effects.list:
            planner.effect(effect)
        watcher.plan_risen(planner)
        for variable, value, token in watcher.contexts.values():
            planner.memo[identity(token)] = planner.call((getattr, variable, "set"), value)
        for (name, before), (_, now) in zip(self.ambient, self.ambient_now(), strict=True):
            if before != now:
                if name not in SETTABLE:
                    raise GiveUp("ambient_change", f"{name} was {before}, is {now}")
                planner.step("ambient", name, now)
        return planner

    def _cut(
        self, planner: Planner, first: list[int], growing: Sequence[list] = (),
    ) -> tuple[Recipe, Recipe, list[Any]]:
        """The recipe of an end whose tuple begins with the steps `first`, the snapshot, the slots.
        """
        watcher = self.watcher
        if len(self.list) + 1 >= watcher.limits.max_nodes:
            raise GiveUp("limit_nodes", f"{watcher.limits.max_nodes} nodes")
        snapshot, slots, replaced = snapshots.take(
            watcher.machine, watcher.sources, watcher.made,
            frozenset((*planner.memo, *map(identity, growing), *watcher.counters)))
        self.replaced = weakref.WeakSet(replaced)
        result = planner.step("tuple", *first, *planner.many(slots))
        return planner.recipe(result), snapshot, slots

    def _finish(self, outputs: Outputs, end: Any, why: Break | None) -> None:
        watcher = self.watcher
        recorder, sources = watcher.recorder, watcher.sources
        inputs = tuple(recorder.input_sources)
        alias_sets = _alias_sets(recorder.input_extents)
        names = [_input_name(sources.table, source) for source in inputs]
        grad_outputs = tuple(p for p, tensor in outputs.values() if tensor.requires_grad)
        spoiled = why_spoiled(recorder, [tensor for _, tensor in outputs.values()])
        if spoiled:
            raise GiveUp("modified_saved", spoiled)
        body = recorder.finish(list(outputs), names, alias_sets, grad_outputs)
        if body is not None and (hidden := own_gradient(body, grad_outputs)):
            raise GiveUp("own_gradient", hidden)
        if grad_outputs and body is not None and (
                lost := lost_edge(body, [t for _, t in outputs.values()], recorder.live_inputs())):
            raise GiveUp("own_gradient", lost)
        for source in written_histories(body, recorder.source_of_value) if body is not None else ():
            watcher.guards.claim(sources.step(source, "attr", "is_leaf"), "is", False)
        numbers = watcher.guards.numbers
        if body is not None and recorder.rules is not None:
            body, inputs = finished(body, numbers, inputs)
        watcher.guards.apart(watcher.effects.targets.values())
        overlaps = _alias_guards(
            [(s, group) for s, group, memory in zip(
                recorder.input_sources, alias_sets, recorder.input_extents)
             if memory is not None],
            recorder.written_inputs)
        guards = (*watcher.guards.finish(), *overlaps)
        if not _multiplies_float32(body):
            guards = tuple(g for g in guards if g.kind != "ambient" or g.expected[0] != ROUNDING)
        node = Node(guards, inputs if body else (), body, end)
        trace = Trace(
            self.signature, tuple(sources.table), (node,), tuple(watcher.guards.codes), _PYTHON)
        self.list.append(Captured(
            trace, tuple(sources.objects), sources.why_not_stored, self.start, why))

    def where(self) -> tuple[str, int, str]:
        """The line that makes the present call; the lines of `logging` act for their callers."""
        frame = self.watcher.machine.user_frame()
        if frame is None:  # the arguments are sorted before the program begins
            return "", 0, ""
        while frame.back is not None and frame.source.co_filename == logging._srcfile:
            frame = frame.back
        return frame.source.co_filename, frame.line(), frame.source.co_name

    def broken(self, given: GiveUp) -> Break:
        """The break at the program's present line."""
        frame = self.watcher.machine.blamed_frame()
        place = ("", 0)
        if frame is not None:
            place = frame.source.co_filename, frame.line(), frame.column()
        return break_at(given.reason, given.detail, *place)


def moving_lists(point: Point, values: Sequence[Any]) -> dict[int, Any]:
    """The lists of tensors among the slots of `point`, by id, whose length changes from call to call, and ranges; the
    numbers that say how often a loop turns."""
    slots = [values[place] for place in point.moving]
    return {identity(slot): slot for slot in slots
            if type(slot) in _MOVING or type(slot) in (list, tuple) and all(type(part) is Tensor for part in slot)}


def changing_keys(point: Point, values: Sequence[Any]) -> dict[int, Any]:
    """The numbers among the slots of `point`, by id, that are another key in each call."""
    return {identity(values[place]): values[place] for place in point.keys}


def own_float(answer: Any) -> Any:
    """What a host call has given; a float, another one each time, as an object that is no other's."""
    return copied(answer) if type(answer) is float else answer


def break_at(reason: str, detail: str, file: str, line: int, column: int = -1) -> Break:
    """A row of `reasons.py` with its place."""
    sentence, hint = explain(reason, detail)
    code = linecache.getline(file, line).strip()
    return Break(
        reason, detail or sentence, file, line, code, _hint_at(reason, file, line, column, hint))


@functools.lru_cache(maxsize=256)
def _hint_at(reason: str, file: str, line: int, column: int, general: str) -> str:
    """A loop breaks at the same lines again and again: their source is parsed once."""
    return rewrites.hint_for("".join(linecache.getlines(file)), line, reason, general, column)


# ---------------------------------------------------------------------------- inputs of a body
_PRODUCTS = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"))


def _multiplies_float32(body: Graph | None) -> bool:
    """Products of `body` are such as a GPU may round: kernels made for it hang on what is allowed."""
    return body is not None and any(
        op.name in _PRODUCTS and op.type.dtype == "float32" and op.type.device != "cpu" for op in body.ops)


def _alias_sets(extents: list[tuple[int, int] | None]) -> list[int]:
    """A number for each input: equal where memory overlaps, -1 where it is the input's own."""
    order = sorted((memory, place) for place, memory in enumerate(extents) if memory is not None)
    sets = [-1] * len(extents)
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


def _alias_guards(inputs: list[tuple[int, int]], written: dict[int, int]) -> list[Guard]:
    """Which inputs, each a source and its alias set, overlap matters only if the body writes to
    one."""
    if not written:
        return []
    groups: dict[int, list[int]] = {}
    for place, (source, group) in enumerate(inputs):
        groups.setdefault(group if group >= 0 else -2 - place, []).append(source)
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
