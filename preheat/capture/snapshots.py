"""Snapshots: the open frames of the machine as a recipe, so that a later call can go on from there.

    for layer in self.layers:            frame(forward, pc 14)
        x = layer(x)               ->      locals  (slot 0, slot 1, slot 2)        self, x, layer
        print(x)                           stack   (iter(slot 3) at 2, print, slot 1)

`take` plans the frames as they stand before the innermost instruction. Leaves are *slots*: tensors,
runtime numbers, objects from outside, and fresh objects that have escaped; other fresh objects
(lists in locals, closures, cells, iterators, generators of the machine's) are rebuilt. `rebuild`
makes frames again.

The body of a generator that runs stands among the frames; its row names the generator, which is
made hollow, and filled once the frames are there: the instruction that advances it, executed anew,
leads into it (`generators.py`). The rows of bases, of the run and of each generator, have the
exception that is being handled.

Refused: frames with other native frames of ours in between (a sort key), an instruction that has
already acted, class bodies, and whatever has no recipe.
"""

import types
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.tensors import Tensor
from preheat.capture import generators
from preheat.capture.arithmetic import NUMBERS
from preheat.capture.frames import NULL, Frame, Within
from preheat.capture.identities import has_identity
from preheat.capture.iterators import feeds
from preheat.capture.liveness import live_before
from preheat.capture.machine import DECODE
from preheat.capture.observer import GiveUp
from preheat.capture.recipes import Planner
from preheat.capture.sources import PRIMITIVES, Sources
from preheat.ir.scalar import Scalar
from preheat.ir.trace import Named, Recipe

_LET_GO = PRIMITIVES | {Tensor}
# Made anew wherever they are needed: programs do not ask which of two equal ones they have.
_WITHOUT_IDENTITY = frozenset((
    tuple, slice, range, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType,
))
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
        self.generators: list[int] = []  # steps of generators: they need the new machine
        self.replaced: list[types.GeneratorType] = []  # the generators that stand there now
        self.running: dict[int, int] = {}  # body that is among the frames -> step of its generator

    def _place(self, value: Any, kind: type) -> int:
        if value is NULL:
            return self.step("const", _NULL)
        if self._is_slot(value, kind):
            if generators.is_own(value) and value.gi_running:
                raise GiveUp("no_snapshot", "inside a generator that was given away")
            self.slots.append(value)
            return self.step("value", len(self.slots) - 1)
        if kind is types.GeneratorType:
            return self._generator(value)
        place = super()._place(value, kind)
        if kind is types.FunctionType and identity(value) in self.made:
            maker = self.plan(self.made[identity(value)][1])
            self.functions.append(self.step("tuple", place, maker))
        return place

    def plan(self, value: Any) -> int:
        if type(value) in NUMBERS and identity(value) in self.escaped:
            return self.number(value, None)
        return super().plan(value)

    def number(self, value: Any, scalar: Scalar | None) -> int:
        """A runtime number is a slot: another call brings another. So is one that a loop counts with."""
        place = self.memo.get(identity(value))
        if place is None:
            self.slots.append(value)
            place = self.memo[identity(value)] = self.step("value", len(self.slots) - 1)
        return place

    def _is_slot(self, value: Any, kind: type) -> bool:
        is_given = identity(value) in self.sources.known or identity(value) in self.escaped
        is_made = identity(value) in self.made and not (kind is types.FunctionType and is_given)
        if has_identity(value, kind) and (is_made or self.sources.has_name(value)):
            return False
        if identity(value) in self.sources.known or issubclass(kind, Tensor):
            return True
        return identity(value) in self.escaped and kind not in _WITHOUT_IDENTITY

    def _generator(self, value: types.GeneratorType) -> int:
        if generators.is_own(value) and value.gi_running:
            body = generators.body_of(value)
            place = self.step("call", self.plan(hollow), self.plan(body.function))
            self.running[identity(body)] = place
            self.generators.append(place)
            return place
        if generators.is_ended(value):
            return self.step("call", *self.many((generators.ended, value.__name__, value.__qualname__)))
        found = generators.state(value)
        if found is None or found[0].then:
            raise GiveUp("no_recipe", f"the generator {value.__qualname__}")
        body, is_started, handled = found
        parts = (body.function, body.pc, _live(body), tuple(body.stack), is_started, handled)
        place = self.step("call", self.plan(revived), *self.many(parts))
        self.generators.append(place)
        self.replaced.append(value)
        return place

    def frame(self, frame: Frame, handled: Iterator[BaseException | None]) -> int:
        """The row of a frame. `handled`: what each base handles, outermost first."""
        if frame.function is None or frame.names is not None:
            raise GiveUp("no_snapshot", "the body of a class")
        then = [] if frame.then is None else frame.then
        parts = (
            frame.function, frame.pc, _live(frame), tuple(frame.stack), frame.deliver, frame.drop,
            tuple(then), next(handled) if frame.is_base else None,
        )
        made = self.plan(None)
        if frame.is_base and frame.back is not None:
            made = self.running.get(identity(frame))
            if made is None:
                raise GiveUp("no_snapshot", "a generator that only C holds")
        return self.step("tuple", *self.many(parts), made)


def _live(frame: Frame) -> tuple:
    """The locals, without tensors and numbers that the rest of the function cannot read. Other
    objects stay: a file that nobody reads any more is open as long as its name is bound."""
    live = live_before(frame.code, frame.pc)
    return tuple([
        NULL if not live >> place & 1 and type(value) in _LET_GO else value
        for place, value in enumerate(frame.locals)
    ])


def take(
    machine: Any, sources: Sources, made: Mapping[int, tuple], escaped: Container[int],
) -> tuple[Recipe, list[Any], list[types.GeneratorType]]:
    """The recipe of the machine's frames, the objects of its slots, and the generators that it
    makes again. Raises GiveUp.
    """
    planner = SnapshotPlanner(sources, made, escaped)
    handled = iter(machine.handled_errors())
    frames = [planner.frame(frame, handled) for frame in frames_of(machine)]
    result = planner.step(
        "list",
        *[planner.step("tuple", *parts) for parts in (frames, planner.functions, planner.generators)])
    return planner.recipe(result), planner.slots, planner.replaced


def frames_of(machine: Any) -> list[Frame]:
    """The open frames, outermost first."""
    frames, frame = [], machine.frame
    while frame is not None:
        frames.append(frame)
        frame = frame.back
    return frames[::-1]


def with_bodies(frames: Iterable[Frame]) -> Iterator[Frame]:
    """`frames`, and the bodies of the generators that wait in them."""
    for frame in frames:
        yield frame
        for value in (*frame.locals, *frame.stack):
            for feed in feeds(value):
                if type(feed) is types.GeneratorType and (found := generators.state(feed)):
                    yield from with_bodies((found[0],))


def rebuild(opened: list) -> tuple[list[Frame], Sequence[tuple], list[types.GeneratorType]]:
    """Frames from what a snapshot's recipe gave, linked, outermost first; the functions that the
    call made, each with its maker; the generators made again.

    Takes them out of `opened`: what the program lets go of must not live on there.
    """
    rows, made, revived = opened
    opened.clear()
    return _linked(rows), made, list(revived)


def _linked(rows: Sequence[tuple]) -> list[Frame]:
    frames: list[Frame] = []
    for function, pc, values, stack, deliver, drop, then, handled, made in rows:
        frame = Frame(DECODE(function.__code__), function, []) if made is None else (
            generators.body_of(made))
        frame.locals, frame.stack[:], frame.pc = list(values), stack, pc
        frame.deliver, frame.drop = deliver, drop
        frame.then = list(then) or None
        frame.back = frames[-1] if frames else None
        if not frames or made is not None:
            base, base.within = frame, Within(frame, handled)
        base.within.innermost = frame
        frames.append(frame)
    frames[0].is_base = True
    return frames


def hollow(function: types.FunctionType) -> types.GeneratorType:
    """A generator whose body is among the frames: what its step calls."""
    return generators.hollow(function, DECODE(function.__code__))


def revived(
    function: types.FunctionType, pc: int, values: tuple, stack: tuple, is_started: bool,
    handled: BaseException | None,
) -> types.GeneratorType:
    """A generator as `_generator` found it: what its step calls."""
    return generators.revive(_frame(function, pc, values, stack), is_started, handled)


def _frame(function: types.FunctionType, pc: int, values: tuple, stack: tuple) -> Frame:
    frame = Frame(DECODE(function.__code__), function, list(values))
    frame.stack[:] = stack
    frame.pc = pc
    return frame
