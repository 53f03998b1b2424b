"""The sentence of training: divide a body, record its backward, compile both halves.

    lesson = Lesson.of(graph)              a differentiable body at level aten
    source = lesson.run(inputs)            it runs under autograd, as eager would
    source.backward(...)                   the first one of its kind is recorded: a joint
    lesson.compiled(name)                  plan and image of the forward; backwards in the Training

Imported only when something is learned: a process that finds everything in the cache does not.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from preheat.base.collector import paused_collector
from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import emit, timed, wants
from preheat.bridge import interpret
from preheat.bridge.ambient import no_autocast
from preheat.bridge.generators import States, standing_at, states
from preheat.bridge.history import check_saved, history
from preheat.bridge.ops import schema
from preheat.capture.joint import Nested
from preheat.ir.graph import CARRY, Graph, Op, OutputAlias, Ref, device_of
from preheat.ir.plan import Image, Plan
from preheat.ir.text import show
from preheat.ir.training import Backward, Division, Exit, Given, Joint, Training
from preheat.ir.types import TensorType
from preheat.schedule.schedule import schedule
from preheat.targets import image_of, target_of
from preheat.transform.divide import divide, refuse_quiet_views, refuse_rebuilt_views, wire
from preheat.transform.functionalize import functionalize
from preheat.transform.partition import Half, partition
from preheat.transform.pipeline import lower

Tensors = Sequence[torch.Tensor | None]


class Lesson:
    """A differentiable body, and what has been recorded of it so far."""

    def __init__(self, division: Division, training: Training):
        self.division, self.training = division, training

    @classmethod
    def of(cls, graph: Graph, known: Training | None = None) -> "Lesson":
        """Raises Unsupported for a body whose gradients cannot be divided exactly."""
        if not all(isinstance(given.type, TensorType) for given in graph.inputs):
            raise Unsupported("number_with_gradient", "a number that changes from call to call")
        refuse_quiet_views(graph)
        refuse_rebuilt_views(graph)
        division = divide(functionalize(graph))
        draws = any(op.name != CARRY and schema(op.name).is_random for op in division.graph.ops)
        fresh = Training(wire(division), replaced=division.replaced, draws=draws)
        return cls(division, known if known is not None else fresh)

    @property
    def device(self) -> str:
        """Where the body runs."""
        return device_of(self.division.graph)

    def run(self, inputs: Sequence[torch.Tensor]) -> "Lived":
        """A call: the body runs, op by op, and writes to its inputs what it writes."""
        return Lived(self, inputs)

    def run_again(
        self, inputs: Sequence[torch.Tensor], state: States | None,
        connected: tuple[int, Sequence[torch.Tensor]] | None = None,
    ) -> Nested:
        """A call that was made before, for its gradients alone. `inputs` and the random `state` (of
        a body that draws) are as they were then; `connected`: see `Nested`."""
        with once_again(self.device, state):
            return Nested(self.division, inputs, connected=connected, writes=False)

    def repeat(
        self, inputs: Sequence[torch.Tensor], state: States | None, number: int,
        tangents: Tensors, grads: Tensors,
    ) -> None:
        """A backward of class `number` has just been learned, from the inputs and the random state of
        its call; its gradients were `grads`. (Who learns for other sizes too, records it again.)"""

    def differentiable(
        self, inputs: Sequence[torch.Tensor], state: States | None, number: int,
        arguments: Sequence[torch.Tensor], tangents: Tensors,
    ) -> list[torch.Tensor | None]:
        """The gradients of class `number` as functions of its `arguments`: plain autograd."""
        nested = self.run_again(inputs, state, (number, arguments))
        return nested.differentiable(number, tangents)

    def learn(
        self, forward: Graph | None, joint: Joint | None, changed: frozenset[int] = frozenset(),
    ) -> tuple[tuple[Given, bool], ...]:
        """Keeps what a run has recorded, if it is of the forward that is known. What the joint takes
        of the forward, and whether it follows from inputs at the places `changed`."""
        known = self.training
        if forward is None or joint is None:
            return ()
        if known.forward is None:
            known = replace(known, forward=forward)
        is_new = all((j.number, j.key) != (joint.number, joint.key) for j in known.joints)
        if known.forward == forward and is_new:
            self.training = replace(known, joints=(*known.joints, joint))
        (half,) = partition(forward, (joint,))[1]
        tainted = {given.id for place, given in enumerate(forward.inputs) if place in changed}
        for op in forward.ops:
            if not tainted.isdisjoint(op.refs()):
                tainted.update(op.results)
        return tuple(
            (given, value.id in tainted) for given, value in zip(half.takes, half.graph.inputs)
            if given.kind != "tangent")

    def interpreted(
        self, forward: Graph, joint: Joint, where: Mapping[Given, torch.Tensor],
    ) -> Tensors:
        """The gradients by the steps of `joint`, op by op. `where`: all that it takes."""
        (half,) = partition(forward, (joint,))[1]
        taken = [where[given] for given in half.takes]
        with torch.no_grad():
            made = interpret.run(half.graph, taken)
        alias = {given.id: tensor for given, tensor in zip(half.graph.inputs, taken)}
        return [
            None if k == -1 else made[k] if k >= 0 else alias[joint.graph.inputs[-2 - k].id]
            for k in joint.grads]

    def compiled(self, name: str) -> tuple[Plan, Image | None, Training]:
        """Both halves, as far as they are known. Raises Unsupported for what cannot be lowered."""
        known = self.training
        with timed("compile", name=name) as event, paused_collector():
            forward = known.forward if known.forward is not None else _unrecorded(self.division)
            graph, halves = partition(forward, known.joints)
            graph = with_copies(graph, known.replaced)
            plan, image, values = _compiled(graph)
            backwards = tuple(map(_backward, halves))
            plans = (plan, *(backward.plan for backward in backwards))
            event.set(
                kernels=sum(len(p.kernels) for p in plans), calls=sum(len(p.calls) for p in plans))
        return plan, image, replace(known, values=values, backwards=backwards)


class Lived:
    """A call that ran under autograd. A source of gradients (`run/autograd.Source`)."""

    def __init__(self, lesson: Lesson, inputs: Sequence[torch.Tensor]):
        self.lesson, self.inputs = lesson, list(inputs)
        for place in lesson.division.replaced:
            self.inputs[place] = inputs[place].detach().clone()
        self._state = states(lesson.device) if lesson.training.draws else None
        self.nested = Nested(lesson.division, inputs)
        self._versions = [tensor._version for tensor in self.inputs]

    @property
    def values(self) -> list[torch.Tensor]:
        """The division's values, without history."""
        return self.nested.values

    def is_repeatable(self, number: int) -> bool:
        """True: torch refuses a second backward of the nested graph itself."""
        return True

    def saved(self, number: int) -> tuple:
        """Nothing: the nested graph has saved what it needs, with its own checks."""
        return ()

    def backward(
        self, number: int, tangents: Tensors, saved: Sequence, is_kept: bool,
    ) -> list[torch.Tensor | None]:
        """The gradients of a class's arguments; a new kind of backward is learned."""
        grads, joint = self.nested.backward(number, tangents, is_kept)
        self.lesson.learn(self.nested.forward, joint)
        committed = {place for place, _ in self.lesson.division.commits}
        if joint is not None and all(
                tensor._version == version or place in committed
                for place, (tensor, version) in enumerate(zip(self.inputs, self._versions))):
            self.lesson.repeat(self.inputs, self._state, number, tangents, grads)
        return grads

    def differentiable(
        self, number: int, arguments: Sequence[torch.Tensor], tangents: Tensors,
    ) -> list[torch.Tensor | None]:
        """The same as functions of `arguments`: the class runs again, as plain autograd."""
        results, leaves = self.nested.ends(number)
        check_saved(results, map(history, leaves))
        return self.lesson.differentiable(self.inputs, self._state, number, arguments, tangents)


@contextlib.contextmanager
def once_again(device: str, state: States | None) -> Iterator[None]:
    """A block that runs what has run before: from this random state, if it draws; its casts are ops."""
    with standing_at(device, state), no_autocast()():
        yield


# ---------------------------------------------------------------------------- compilation
def _unrecorded(division: Division) -> Graph:
    """The forward alone: no backward has been seen."""
    graph = division.graph
    committed = {graph.inputs[place].id for place, _ in division.commits}
    types = graph.types()
    ops = [
        Op("aten.clone.default", op.args[:1], op.results, op.types) if op.name == CARRY else op
        for op in graph.ops]
    ops += [
        Op("aten.copy_.default", (Ref(target), Ref(value)), (target,), (types[target],),
           writes=(target,), aliases=(target,))
        for target, value in graph.writes if target not in committed]
    return Graph("aten", graph.inputs, tuple(ops), division.values)


def with_copies(graph: Graph, places: Sequence[int]) -> Graph:
    """`graph` with copies of the inputs at `places`, made first, as its last outputs."""
    given = [graph.inputs[place] for place in places]
    copies = range(graph.next_id(), graph.next_id() + len(given))
    ops = tuple(
        Op("aten.clone.default", (Ref(one.id),), (copy,), (one.type,))
        for one, copy in zip(given, copies))
    return replace(graph, ops=ops + graph.ops, outputs=(*graph.outputs, *copies))


def _compiled(graph: Graph) -> tuple[Plan, Image | None, tuple[Exit, ...]]:
    """Plan and image of `graph`, and where each of its outputs is found: views are made outside."""
    core = lower(graph, is_checked=is_strict(), observe=lambda step, made: _stage(step.name, made))
    aliases = core.output_aliases or (OutputAlias(),) * len(core.outputs)
    fresh = [place for place, alias in enumerate(aliases) if alias.kind == "fresh"]
    place_of = {place: number for number, place in enumerate(fresh)}
    types = core.types()
    exits = []
    for place, alias in enumerate(aliases[:len(graph.outputs)]):
        if alias.kind == "fresh":
            exits.append(Exit(Given("plan", place_of[place])))
        else:
            is_input = alias.kind == "input"
            given = Given("input", alias.base) if is_input else Given("plan", place_of[alias.base])
            exits.append(Exit(given, True, False, types[core.outputs[place]], alias.offset))
    plain = replace(core, outputs=tuple(core.outputs[place] for place in fresh), output_aliases=())
    target = target_of(plain)
    plan = schedule(plain, target)
    _stage("plan", plan)
    return plan, image_of(plan.kernels, target) if plan.kernels else None, tuple(exits)


def _stage(name: str, noun: Graph | Plan) -> None:
    if wants("stage"):
        emit("stage", name=name, text=show(noun))


def _backward(half: Half) -> Backward:
    graph = half.graph
    used = {*graph.outputs, *(ref for op in graph.ops for ref in op.refs())}
    kept = [k for k, given in enumerate(graph.inputs) if given.id in used]
    takes = tuple(half.takes[k] for k in kept)
    plan, image, exits = _compiled(
        replace(graph, inputs=tuple(graph.inputs[k] for k in kept)))

    def from_takes(exit: Exit) -> Exit:
        is_input = exit.given.kind == "input"
        return replace(exit, given=takes[exit.given.index]) if is_input else exit

    identical = {given.id: half.takes[k] for k, given in enumerate(graph.inputs)}
    grads = []
    for place in half.joint.grads:
        if place == -1:
            grads.append(None)
        elif place < 0:
            value = half.joint.graph.inputs[-2 - place].id
            grads.append(Exit(identical[value]))
        else:
            grads.append(from_takes(exits[place]))
    return Backward(half.joint.number, half.joint.key, plan, image, takes, tuple(grads))
