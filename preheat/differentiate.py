"""The sentence of training: divide a body, record its backward, compile both halves.

    lesson = Lesson.of(graph)              a differentiable body at level aten
    source = lesson.run(inputs)            it runs under autograd, as eager would
    source.backward(...)                   the first one of its kind is recorded: a joint
    lesson.compiled(name)                  plan and image of the forward; backwards in the Training

Imported only when something is learned: a process that finds everything in the cache does not.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from preheat.base.collector import paused_collector
from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import timed
from preheat.base.later import later
from preheat.bridge import interpret
from preheat.bridge.ambient import no_autocast, outside_of_transforms
from preheat.bridge.generators import States, standing_at, states
from preheat.bridge.history import check_saved, history, require_version
from preheat.bridge.ops import schema
from preheat.bridge.tensors import is_batched
from preheat.capture.joint import Nested
from preheat.ir.bench import Bench
from preheat.ir.graph import CARRY, Graph, Op, copied_into, device_of
from preheat.ir.plan import Image, Plan
from preheat.ir.text import stage
from preheat.ir.training import Backward, Division, Given, Joint, Training
from preheat.ir.types import ScalarType, TensorType
from preheat.schedule.layouts import laid_out
from preheat.schedule.products import products_by_rule
from preheat.schedule.schedule import schedule
from preheat.targets import Meanwhile, begin_image, nothing_to_do, target_of
from preheat.transform.compact import compact
from preheat.transform.divide import divide, refuse_quiet_views, refuse_rebuilt_views, wire
from preheat.transform.functionalize import functionalize
from preheat.transform.halves import Half, halves
from preheat.transform.handover import Stage, stages
from preheat.transform.held import with_held_numbers
from preheat.transform.norms import native_norms
from preheat.transform.partition import partition
from preheat.transform.pipeline import HALF, JOINED, Pass, lower
from preheat.transform.redraw import with_standing
from preheat.transform.whole import saved_values, watched, whole, with_views

tuning = later("preheat.tuning")
Tensors = Sequence[torch.Tensor | None]
Inputs = Mapping[int, Any]  # tensors and numbers of a call that are needed again, by place
Begun = tuple[Plan, Callable[[], Image | None]]


@dataclass(frozen=True)
class Aims:
    """What is asked of the compiled halves.

    budget     the share of what torch's formulas save that may be saved, see `transform/partition.py`
    reads_any  backwards may read all arguments and results, see there
    handover   the bytes of gradients that leave a backward together, 0 for all of them
    bench      what the fastest kernels are searched with; None: no search
    meanwhile  what there is to do for a plan on a device while its kernels are compiled
    """

    budget: float = 1.0
    reads_any: bool = False
    handover: int = 0
    bench: Bench | None = None
    meanwhile: Meanwhile = nothing_to_do


class Lesson:
    """A differentiable body, and what has been recorded of it so far."""

    def __init__(self, division: Division, training: Training, aims: Aims = Aims()):
        self.division, self.training, self.aims = division, training, aims

    @classmethod
    def of(cls, graph: Graph, known: Training | None = None, aims: Aims = Aims()) -> "Lesson":
        """Raises Unsupported for a body whose gradients cannot be divided exactly."""
        refuse_quiet_views(graph)
        refuse_rebuilt_views(graph)
        division = divide(with_standing(with_held_numbers(functionalize(native_norms(graph)))))
        _refuse_numbers(division)
        draws = any(op.name != CARRY and schema(op.name).is_random for op in division.graph.ops)
        tensors = _tensors(division)
        fresh = Training(
            wire(division), replaced=division.replaced, needed=division.needed, draws=draws,
            numbers=tuple(place for place in division.needed if place not in tensors),
            has_regions=any(op.region for op in division.graph.ops))
        return cls(division, known if known is not None else fresh, aims)

    @property
    def device(self) -> str:
        """Where the body runs."""
        return device_of(self.division.graph)

    def run(self, inputs: Sequence) -> "Lived":
        """A call: the body runs, op by op, and writes to its inputs what it writes."""
        return Lived(self, inputs)

    def run_again(
        self, inputs: Inputs, state: States | None, tangents: Tensors,
        connected: tuple[int, Sequence[torch.Tensor]] | None = None,
    ) -> Nested:
        """A call that was made before, for its gradients under `tangents` alone. The `inputs` that are needed
        and the random `state` (of a body that draws) are as they were then; `connected`: see `Nested`."""
        def run() -> Nested:
            with once_again(self.device, state):
                return Nested(self.division, inputs, connected=connected, writes=False)

        return outside_of_transforms(run, tangents)

    def repeat(
        self, inputs: Inputs, state: States | None, number: int,
        tangents: Tensors, grads: Tensors,
    ) -> None:
        """A backward of class `number` has just been learned, from the inputs and the random state of
        its call; its gradients were `grads`. (Who learns for other sizes too, records it again.)"""

    def differentiable(
        self, inputs: Inputs, state: States | None, number: int,
        arguments: Sequence[torch.Tensor], tangents: Tensors,
    ) -> list[torch.Tensor | None]:
        """The gradients of class `number` as functions of its `arguments`: plain autograd."""
        nested = self.run_again(inputs, state, tangents, (number, arguments))
        return nested.differentiable(number, tangents)

    def learn(self, forward: Graph | None, joint: Joint | None) -> None:
        """Keeps what a run has recorded, if it is of the forward that is known."""
        known = self.training
        if forward is None or joint is None:
            return
        if known.forward is None:
            known = replace(known, forward=forward)
        is_new = all((j.number, j.key) != (joint.number, joint.key) for j in known.joints)
        if known.forward == forward and is_new:
            self.training = replace(known, joints=(*known.joints, joint))

    def takes(
        self, forward: Graph, joint: Joint, changed: frozenset[int],
    ) -> tuple[tuple[Given, bool], ...]:
        """What the formulas of `joint` take of the forward, and whether it follows from inputs at the
        places `changed`. A value that is none of the division's has the place after all of them."""
        tainted = {given.id for place, given in enumerate(forward.inputs) if place in changed}
        for op in forward.ops:
            if not tainted.isdisjoint(op.refs()):
                tainted.update(op.results)
        return tuple(
            (given, value in tainted) for value, given in _taken(forward, joint).items())

    def watched(self, forward: Graph, joint: Joint) -> tuple[Given, ...]:
        """Where others may change what the formulas of `joint` have saved."""
        return watched(forward, joint, self.training.wiring.commits)

    def interpreted(
        self, forward: Graph, joint: Joint, where: Mapping[Given, torch.Tensor],
    ) -> Tensors:
        """The gradients by the steps of `joint`, op by op. `where`: all that it takes."""
        tangents = [Given("tangent", k) for k, kind in enumerate(joint.key) if kind is not None]
        taken = [where[given] for given in (*_taken(forward, joint).values(), *tangents)]
        found = [
            joint.graph.outputs[k] if k >= 0 else joint.graph.inputs[-2 - k].id
            for k in joint.grads if k != -1]
        with torch.no_grad():
            made = interpret.run(
                replace(with_views(forward, joint), outputs=tuple(found)), taken)
        grads = iter(made)
        return [None if k == -1 else next(grads) for k in joint.grads]

    def compiled(
        self, name: str, is_for_many: bool = False, is_planned: Callable[[Sequence[Plan]], None] | None = None,
    ) -> tuple[Plan, Image | None, Training]:
        """Both halves, as far as they are known; `is_for_many`: see `lower`. is_planned: is told the plans before
        their kernels are waited for. Raises Unsupported for what cannot be lowered."""
        known = self.training
        with timed("compile", name=name) as event, paused_collector(is_lasting=True):
            forward = known.forward if known.forward is not None else _unrecorded(self.division)
            joined = whole(forward, known.joints, known.replaced, known.wiring.commits)
            core = compact(_lowered(joined.graph, JOINED, is_for_many))
            core = laid_out(core, target_of(core))
            saved = partition(core, joined, self.aims.budget, self.aims.reads_any)
            ahead, backwards = halves(core, joined, saved)
            classes = known.wiring.classes
            asked: dict = {}
            # kernels of one plan are compiled while the next is scheduled; a backward's take longest, but for products
            forward_core = _lowered(ahead.graph, HALF)
            forward_begun = None
            if _has_product(forward_core):
                forward_begun = _begun(forward_core, self.aims.bench, (), asked)
            begun = [
                (half, [
                    (stage, _begun(
                        _lowered(stage.graph, HALF), self.aims.bench, _passed(stage, joined.values), asked))
                    for stage in stages(half, classes[half.joint.number][0], self.aims.handover)])
                for half in backwards]
            plan, forward_image = forward_begun or _begun(forward_core, self.aims.bench, (), asked)
            plans = (plan, *(plan for _, parts in begun for _, (plan, _) in parts))
            for waiting in plans:
                self.aims.meanwhile(waiting, self.device)
            if is_planned is not None:
                is_planned(plans)
            image = forward_image()
            made = tuple(_backward(half, parts) for half, parts in begun)
            event.set(
                kernels=sum(len(p.kernels) for p in plans), calls=sum(len(p.calls) for p in plans))
        return plan, image, replace(known, values=ahead.values, backwards=made)


class Lived:
    """A call that ran under autograd. A source of gradients (`run/autograd.Source`)."""

    def __init__(self, lesson: Lesson, inputs: Sequence):
        self.lesson, division = lesson, lesson.division
        given = dict(enumerate(inputs))
        for place, _ in division.commits:  # it gets a history that leads here
            given[place] = inputs[place].detach()
        self.inputs = {place: given[place] for place in division.needed}
        for place in division.replaced:
            self.inputs[place] = inputs[place].detach().clone()
        self._state = states(lesson.device) if lesson.training.draws else None
        self.nested = Nested(division, given)
        self._given = {place: given[place] for place in _tensors(division)}
        self.begin()

    @property
    def values(self) -> list[torch.Tensor]:
        """The division's values, without history: tensors of the caller's own, which shall get one (one
        that led back to this object would keep it alive)."""
        return [value.detach() for value in self.nested.values]

    def begin(self) -> None:
        """The call is over, its results joined: what is changed from now on is changed by others."""
        self._versions = {place: tensor._version for place, tensor in self._given.items()}
        # of what a region has given or read torch sees no change at all
        self._values = [(value, value._version) for value in self.nested.values]

    def is_repeatable(self, number: int) -> bool:
        """True: torch refuses a second backward of the nested graph itself."""
        return True

    def saved(self, number: int) -> tuple:
        """Nothing: the nested graph has saved what it needs, with its own checks."""
        return ()

    def backward(
        self, number: int, tangents: Tensors, saved: list, is_kept: bool,
    ) -> list[torch.Tensor | None]:
        """The gradients of a class's arguments; a new kind of backward is learned."""
        grads, joint = self.nested.backward(number, tangents, is_kept)
        forward, versions = self.nested.forward, self._versions
        self.lesson.learn(forward, joint)
        if joint is None:
            return grads
        for given in self.lesson.watched(forward, joint):
            # in eager what was saved may lie where the program has written it: here it is apart
            is_input = given.kind == "input"
            require_version(*(
                (self._given[given.index], versions[given.index]) if is_input else self._values[given.index]))
        if all(tensor._version == versions[place] for place, tensor in self._given.items()):
            self.lesson.repeat(self.inputs, self._state, number, tangents, grads)
        return grads

    def differentiable(
        self, number: int, arguments: Sequence[torch.Tensor], tangents: Tensors,
    ) -> list[torch.Tensor | None]:
        """The same as functions of `arguments`: the class runs again, as plain autograd."""
        results, leaves = self.nested.ends(number)
        check_saved(results, map(history, leaves))
        if any(value._version != version for value, version in self._values):
            with torch.no_grad():  # which refuses where the program has written what was saved
                self.backward(
                    number, [t if t is None or is_batched(t) else t.detach() for t in tangents], [], True)
        for value in self._values if self.lesson.training.has_regions else ():
            require_version(*value)
        for place, tensor in self._given.items():  # from which it runs again
            if place not in self.lesson.division.replaced:
                require_version(tensor, self._versions[place])
        return self.lesson.differentiable(self.inputs, self._state, number, arguments, tangents)


@contextlib.contextmanager
def once_again(device: str, state: States | None) -> Iterator[None]:
    """A block that runs what has run before: from this random state, if it draws; its casts are ops."""
    with standing_at(device, state), no_autocast()():
        yield


def _tensors(division: Division) -> tuple[int, ...]:
    """The places of the tensors among the inputs that gradients hang on."""
    inputs = division.graph.inputs
    return tuple(place for place in division.needed if isinstance(inputs[place].type, TensorType))


def _refuse_numbers(division: Division) -> None:
    graph = division.graph
    numbers = {given.id for given in graph.inputs if isinstance(given.type, ScalarType)}
    for op, number in zip(graph.ops, division.class_of) if numbers else ():
        if number >= 0 and not numbers.isdisjoint(op.refs()):
            raise Unsupported("number_with_gradient", f"{op.name} of a number that changes")


# ---------------------------------------------------------------------------- compilation
def _unrecorded(division: Division) -> Graph:
    """The forward alone: no backward has been seen."""
    graph = division.graph
    ops = [
        Op("aten.clone.default", op.args[:1], op.results, op.types) if op.name == CARRY else op
        for op in graph.ops]
    ops += [copied_into(graph.inputs[place], value) for place, value in division.plain_writes]
    return Graph("aten", graph.inputs, tuple(ops), division.values)


def _taken(forward: Graph, joint: Joint) -> dict[int, Given]:
    """The values that the formulas of `joint` have saved, and where a call has them."""
    inputs = {given.id: place for place, given in enumerate(forward.inputs)}
    values = {value: place for place, value in enumerate(forward.outputs)}
    found: dict[int, Given] = {}
    for value in saved_values(forward, joint):
        if value in inputs:
            found[value] = Given("input", inputs[value])
        else:
            found[value] = Given("value", values.get(value, len(forward.outputs) + len(found)))
    return found


def _lowered(graph: Graph, passes: tuple[Pass, ...], is_for_many: bool = False) -> Graph:
    return lower(
        graph, passes=passes, is_checked=is_strict(), is_for_many=is_for_many,
        observe=lambda step, made: stage(step.name, made))


def _backward(half: Half, parts: Sequence[tuple[Stage, Begun]]) -> Backward:
    """The compiled stages of `half`, the first of which leads to the others."""
    joint, made = half.joint, None
    for stage, (plan, image) in reversed(parts):
        made = Backward(
            joint.number, joint.key, plan, image(), stage.takes, stage.grads, half.watched,
            half.can_raise, then=made, carries=stage.carries)
    return made


def _passed(stage: Stage, own_values: int) -> list[int]:
    """The places of what a stage takes and lets go: others hold inputs and the division's own values."""
    return [
        place for place, given in enumerate(stage.takes)
        if given.kind != "input" and not (given.kind == "value" and given.index < own_values)]


def _has_product(core: Graph) -> bool:
    """Whether a half on a GPU has products that are kernels."""
    target = target_of(core)
    return target.is_gpu and bool(products_by_rule(core, target))


def _begun(core: Graph, bench: Bench | None, passed: Sequence[int], asked: dict) -> Begun:
    """Plan of a half, which lets go of the inputs at the places `passed`, and what waits for its image. asked: see
    `begin_image`."""
    target = target_of(core)
    if target.is_gpu and bench is not None:
        plan, image = tuning.tuned(core, None, target, bench, passed)
        stage("plan", plan)
        return plan, lambda: image if plan.kernels else None
    plan = schedule(core, target, products_by_rule(core, target), passed=passed)
    stage("plan", plan)
    return plan, begin_image(plan.kernels, target, asked) if plan.kernels else lambda: None
