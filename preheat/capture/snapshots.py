"""Snapshots: the open frames of the machine as a recipe, so that a later call can go on from there.

    for layer in self.layers:            frame(forward, pc 14)
        x = layer(x)               ->      locals  (slot 0, slot 1, slot 2)        self, x, layer
        print(x)                           stack   (iter(slot 3) at 2, print, slot 1)

`take` plans the frames as they stand before the innermost instruction. Leaves are *slots*: tensors,
objects from outside, and fresh objects that have escaped; other fresh objects (lists in locals,
closures, cells, iterators over known things) are rebuilt. `rebuild` makes frames again.

Refused (GiveUp "no_snapshot"): frames with native frames of ours in between, an instruction that
has already acted, a handler of an exception, generators under way, class bodies, and whatever has
no recipe.
"""

import types
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from preheat.bridge.tensors import Tensor
from preheat.capture.frames import NULL, Frame
from preheat.capture.guards import has_identity
from preheat.capture.observer import GiveUp
from preheat.capture.recipes import Planner
from preheat.capture.sources import Sources
from preheat.ir.trace import Named, Recipe

_NULL = Named("preheat.capture.frames", "NULL")


class SnapshotPlanner(Planner):
    """Plans frames; `slots` are the objects that a call must bring."""

    def __init__(
        self, sources: Sources, made: Mapping[int, tuple], escaped: Container[int],
    ) -> None:
        super().__init__(sources, lambda tensor: None, made)
        self.escaped = escaped
        self.slots: list[Any] = []
        self.functions: list[int] = []  # steps: (function that the call made, its maker)

    def _place(self, value: Any, kind: type) -> int:
        if value is NULL:
            return self.step("const", _NULL)
        if self._is_slot(value, kind):
            self.slots.append(value)
            return self.step("value", len(self.slots) - 1)
        place = super()._place(value, kind)
        if kind is types.FunctionType and id(value) in self.made:
            maker = self.plan(self.made[id(value)][1])
            self.functions.append(self.step("tuple", place, maker))
        return place

    def _is_slot(self, value: Any, kind: type) -> bool:
        if has_identity(value, kind) and (id(value) in self.made or self.sources.has_name(value)):
            return False
        is_outside = id(value) in self.sources.known
        return is_outside or id(value) in self.escaped or issubclass(kind, Tensor)

    def frame(self, frame: Frame) -> int:
        if frame.function is None or frame.names is not None:
            raise GiveUp("no_snapshot", "the body of a class")
        then = [] if frame.then is None else frame.then
        parts = (
            frame.function, frame.pc, tuple(frame.locals), tuple(frame.stack), frame.deliver,
            frame.drop, tuple(then),
        )
        return self.plan(parts)


def take(
    machine: Any, sources: Sources, made: Mapping[int, tuple], escaped: Container[int],
) -> tuple[Recipe, list[Any]]:
    """The recipe of the machine's frames and the objects of its slots. Raises GiveUp."""
    planner = SnapshotPlanner(sources, made, escaped)
    frames = [planner.frame(frame) for frame in frames_of(machine)]
    result = planner.step(
        "tuple", planner.step("tuple", *frames), planner.step("tuple", *planner.functions))
    return planner.recipe(result), planner.slots


def frames_of(machine: Any) -> list[Frame]:
    """The open frames, outermost first."""
    frames, frame = [], machine.frame
    while frame is not None:
        frames.append(frame)
        frame = frame.back
    return frames[::-1]


def rebuild(decode: Callable, rows: Sequence[tuple]) -> list[Frame]:
    """Frames from what a snapshot's recipe gave, linked, outermost first."""
    frames: list[Frame] = []
    for function, pc, values, stack, deliver, drop, then in rows:
        frame = Frame(decode(function.__code__), function, list(values))
        frame.stack[:] = stack
        frame.pc, frame.deliver, frame.drop = pc, deliver, drop
        frame.then = list(then) or None
        frame.back = frames[-1] if frames else None
        frames.append(frame)
    frames[0].is_base = True
    return frames
