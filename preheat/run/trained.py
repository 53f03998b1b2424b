"""Trained: the compiled halves of a differentiable node, joined at each call.

    trained = Trained(training, call_of, lesson, ...)
    exits = trained.join(results of the forward plan, {0: x, 2: w})     each with its history

The forward plan gives the division's values and what the known backwards read; a class keeps of it
what its backwards take, with torch's checks for in-place changes. A backward of a kind that is not
known runs the body again under autograd, from the inputs and the random state of the call, and is
learned on the way (`relearn`).
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from preheat.base.events import emit
from preheat.bridge.ambient import is_autocast_on
from preheat.bridge.generators import States
from preheat.bridge.history import require_version
from preheat.bridge.tensors import is_batched, unusual_keys
from preheat.ir.plan import Image
from preheat.ir.training import Backward, Exit, Given, Training
from preheat.run.autograd import Join, Progress, Tangents, view_function
from preheat.run.buffers import device_of
from preheat.run.executable import executable
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault
from preheat.run.lists import callable_of
from preheat.run.recipes import Rebuild

Tensors = Sequence[torch.Tensor | None]


class Trained:
    """See the module docstring.

    lesson    gives the body, for what is not known here
    state     where the random generators stood when the present call began; None if it does not draw
    relearn   is told that another kind of backward has been recorded
    call_of   gives the compiled code of a stage of a backward, as a function of the list of what it takes
    """

    def __init__(
        self, training: Training, call_of: Callable[[Backward], Callable], lesson: Callable[[], Any],
        state: Callable[[], States | None], relearn: Callable[[], None], name: str = "",
    ):
        self.name = name
        self.wiring, self.values, self.replaced = training.wiring, training.values, training.replaced
        self.needed = training.needed
        self.tensors = tuple(place for place in training.needed if place not in training.numbers)
        self.results = [place for _, places in self.wiring.classes for place in places]
        self.committed = {place for place, _ in self.wiring.commits}
        exits = [exit.given.index for exit in self.wiring.exits if exit.given.kind == "value"]
        self.own_values = 1 + max((*self.results, *exits), default=-1)  # the rest is only saved
        self.finds = tuple(map(_finder, self.values))
        given = (
            *(exit.given for exit in (*self.values, *self.wiring.exits)),
            *(given for arguments, _ in self.wiring.classes for given in arguments))
        # of the inputs that autograd has to do with
        self.places = tuple(sorted({
            *self.needed, *self.committed,
            *(one.index for one in given if one.kind in ("input", "before"))}))
        self.lesson, self.state, self.relearn = lesson, state, relearn
        self.halves = {
            (half.number, half.key): _Half(half, call_of) for half in training.backwards}
        taken: list[dict[Given, None]] = [{} for _ in self.wiring.classes]
        for half in training.backwards:
            exits = (exit.given for exit in half.grads if exit is not None)
            taken[half.number].update(dict.fromkeys(
                given for given in (*half.takes, *half.carries, *exits)
                if given.kind in ("input", "value")))
        self.kept = tuple(map(tuple, taken))
        for half in self.halves.values():
            number = half.half.number
            half.find(self.kept[number], self.wiring.classes[number][0])
        self.joins = Join(self.wiring, self._groups())
        # results that formulas had saved and no plan takes; or that those of a kind of backward which is
        # not known may have saved: one of a class never seen, or of other results of a class
        # of what a region has given or read torch sees no change
        self.has_regions = training.has_regions
        is_sure = not self.has_regions and all(
            len(results) == 1 and self.is_known(number)
            for number, (_, results) in enumerate(self.wiring.classes))
        self.watched = sorted({
            given.index for half in training.backwards for given in half.watched
            if given.kind == "value"}) if is_sure else range(self.own_values)
        # torch's formulas had saved something, even if the plans do not need it
        self.is_spent = [
            any(j.reads for j in training.joints if j.number == number)
            for number in range(len(self.wiring.classes))]

    def _groups(self) -> dict[int, list[list[int]]]:
        """Of each class whose backward is in stages, its arguments as their gradients leave: uses of one
        tensor in their order, in which autograd adds them up."""
        found: dict[int, list[list[int]]] = {}
        for (number, _), half in self.halves.items():
            stages = half.stages()
            if len(stages) == 1 or number in found:
                continue
            stage_of = {
                place: at for at, stage in enumerate(stages)
                for place, exit in enumerate(stage.exits) if exit is not None}
            groups: list[list[int]] = [[] for _ in stages]
            last: dict[Given, int] = {}
            for place, given in enumerate(self.wiring.classes[number][0]):
                last[given] = max(stage_of.get(place, 0), last.get(given, 0))
                groups[last[given]].append(place)
            found[number] = [groups[0], *filter(None, groups[1:])]
        return found

    def join(
        self, results: Sequence[torch.Tensor], inputs: Mapping[int, Any],
    ) -> list[torch.Tensor]:
        """The outputs of a call, given the results of the forward plan, and the inputs at `places`."""
        values = [find(inputs, results) for find in self.finds]
        call = Call(self, inputs, values)
        exits = self.joins(call, inputs, values)
        call.begin()
        return exits

    def is_known(self, number: int) -> bool:
        """Whether class `number` has run backward before."""
        return any(known == number for known, _ in self.halves)

    def of_same_results(self, number: int, tangents: Tangents) -> "_Half | None":
        """A known backward of class `number` for tangents of the same results, whatever their layout: its
        formulas have saved the same."""
        return next(self._of_same_results(number, tangents), None)

    def _of_same_results(self, number: int, tangents: Tangents) -> Iterator["_Half"]:
        for (known, key), half in self.halves.items():
            if known == number and all((t is None) == (s is None) for t, s in zip(tangents, key)):
                yield half

    def relaid(self, number: int, tangents: Tangents) -> tuple["_Half | None", Tangents]:
        """A known backward of class `number` for the same results, with `tangents` in the layout that
        it is for; none, and `tangents` as they are, if there is none."""
        for half in self._of_same_results(number, tangents):
            key = half.half.key
            if not any(0 in strides for strides in key if strides is not None):
                return half, [
                    None if t is None else torch.empty_strided(
                        t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)
                    for t, strides in zip(tangents, key)]
        return None, tangents


def joined(trained: Trained, rebuild: Rebuild, values: int, inputs: Sequence[int]) -> Rebuild:
    """`rebuild` after the join: a function of the plan's results, of inputs and its own objects.

    values    how many results the plan has;  inputs: the sources of the node's inputs
    """
    places = trained.places
    end = values + len(places)

    def function(*given: Any) -> Any:
        exits = trained.join(given[:values], dict(zip(places, given[values:end])))
        return rebuild.function(*exits, *given[end:])

    sources = (*(inputs[place] for place in places), *rebuild.sources)
    return Rebuild(function, values, sources, "rebuild", rebuild.text)


# How the code of a backward is bound: it is never run under autocast, in which its forward may have been.
BACKWARD = {"is_autocast_off": False, "is_lean": True, "takes_inputs": True}


def compiled_backward(half: Backward, runtime: Image | None, graphs: Any = None) -> Callable[[list], Tensors]:
    """A stage of a backward, as a function of the list of what it takes. graphs: what may be recorded of it
    as CUDA graphs (`run/replays.py`)."""
    return callable_of(executable(half.plan, half.image, **BACKWARD, graphs=graphs), runtime)


class Call:
    """One call that ran compiled: a source of gradients."""

    __slots__ = ("trained", "inputs", "values", "versions", "results", "old", "watched", "state")

    def __init__(self, trained: Trained, inputs: Mapping[int, Any], values: list):
        self.trained, self.inputs = trained, inputs
        self.values = values  # until the call is over: then the classes hold what they keep of them
        self.versions: dict[int, int] = {}  # of the inputs, once the call has written to them
        self.results: list[weakref.ref] = []  # its own values
        self.old: list[torch.Tensor] = []  # elements of the replaced inputs
        self.watched: dict[int, tuple[torch.Tensor, int]] = {}  # results' versions, without memory
        self.state = trained.state()

    def begin(self) -> None:
        """The call is over: what is changed from now on is changed by others.

        It holds no memory that autograd would not hold: its results are known as long as others hold
        them, of the inputs only those that gradients hang on. What has got a history of this call is
        held without it: else the call would hold itself.
        """
        trained = self.trained
        if trained.places != trained.needed:
            given = self.inputs
            self.inputs = {place: given[place] for place in trained.needed}
        inputs = self.inputs
        for place in trained.committed.intersection(inputs):
            inputs[place] = inputs[place].detach()
        self.versions = {place: inputs[place]._version for place in trained.tensors}
        self.results = [weakref.ref(tensor) for tensor in self.values[:trained.own_values]]
        self.old = self.values[len(self.values) - len(trained.replaced):]
        for place in trained.watched:
            tensor = self.values[place].detach()  # has the version of the result, then not its memory
            self.watched[place] = tensor, tensor._version
            tensor.data = tensor.new_empty(0)
        self.values = []

    def is_repeatable(self, number: int) -> bool:
        """Whether a second backward of class `number` is allowed without a retained graph."""
        return not self.trained.is_spent[number]

    def saved(self, number: int) -> list[torch.Tensor]:
        """What the backwards of class `number` take of the forward."""
        inputs, values = self.inputs, self.values
        return [
            inputs[given.index] if given.kind == "input" else values[given.index]
            for given in self.trained.kept[number]]

    def backward(
        self, number: int, tangents: Tangents, saved: list[torch.Tensor], is_kept: bool,
    ) -> Tensors | Progress:
        """The gradients of the arguments of class `number`. Empties `saved`, and mostly `tangents`."""
        key = tuple([None if t is None else t.stride() for t in tangents])
        half = self.trained.halves.get((number, key))
        if half is None and self._changed():  # to record another, the body would have to run again
            half, tangents = self.trained.relaid(number, tangents)
        # under autocast the operands of the formulas are cast, which no compiled backward does
        if half is not None and all(map(_is_plain, tangents)) and not is_autocast_on():
            for given in half.half.watched:
                self._require_unchanged(given)
            return self.run(number, half, saved, tangents, tangents)
        return self._learned(number, tangents)

    def run(
        self, number: int, half: "_Half", saved: list, given: Tangents, tangents: Tangents,
    ) -> Tensors | Progress:
        """The gradients that a backward has, or a later stage of it, which has been `given` none of the
        `tangents`."""
        try:
            grads, carried = half.run(saved, given)
        except Fault as fault:  # the user's error, if it is one, arises in torch's own formulas
            if not tangents:
                raise
            emit("fallback", what=f"a backward of {self.trained.name}", why=str(fault))
            return self._learned(number, tangents)
        if half.then is None:
            return grads
        return Progress(grads, _Rest(self, number, half.then, carried, tangents))

    def differentiable(
        self, number: int, arguments: Sequence[torch.Tensor], tangents: Tangents,
    ) -> Tensors:
        """The gradients as functions of `arguments`: the class runs again, as plain autograd."""
        known = self.trained.of_same_results(number, tangents)
        if known is None:  # what its formulas have saved is not known, nor changes
            with torch.no_grad():
                self._learned(number, [t if t is None or is_batched(t) else t.detach() for t in tangents])
        for given in known.half.watched if known is not None else ():
            self._require_unchanged(given)
        for value in self.watched.values() if self.trained.has_regions else ():
            require_version(*value)
        for place, version in self.versions.items():
            if place not in self.trained.replaced:
                require_version(self.inputs[place], version)
        lesson = self.trained.lesson()
        return lesson.differentiable(
            self._inputs_then(), self.state, number, arguments, tangents)

    def _learned(self, number: int, tangents: Tangents) -> Tensors:
        """The gradients for tangents of a new kind: the body runs again, and is recorded.

        Inputs may have been changed since. Then what the formulas take must not follow from them, or
        be at hand as it was: else the gradients cannot be had any more, which is an error.
        """
        trained, lesson = self.trained, self.trained.lesson()
        known, changed = lesson.training, self._changed()
        nested = lesson.run_again(self._inputs_then(), self.state, tangents)
        grads, joint = nested.backward(number, tangents, False)
        lesson.learn(nested.forward, joint)
        if not changed and joint is not None:
            lesson.repeat(self._inputs_then(), self.state, number, tangents, grads)
        if lesson.training is not known:
            trained.relearn()
        is_known = nested.forward is not None and joint is not None
        takes = lesson.takes(nested.forward, joint, changed) if is_known else ()
        where = {Given("tangent", k): tangent for k, tangent in enumerate(tangents)}
        is_other = bool(changed) and joint is None
        for given in lesson.watched(nested.forward, joint) if is_known else ():
            self._require_unchanged(given)
        for given, follows in takes:
            if given.kind == "input":
                where[given] = self.inputs[given.index]
                continue
            is_other |= follows
            tensor = self.results[given.index]() if given.index < trained.own_values else None
            if tensor is not None:  # else nobody has held it
                where[given] = tensor.detach()
        if is_other:  # the body that ran again is not the one that ran
            if joint is None or any(given not in where for given, _ in takes):
                for place in changed:
                    require_version(self.inputs[place], self.versions[place])
            grads = lesson.interpreted(nested.forward, joint, where)
        return grads

    def _require_unchanged(self, given: Given) -> None:
        """Raises for what formulas had saved if it was changed."""
        if given.kind == "input":
            require_version(self.inputs[given.index], self.versions[given.index])
        elif given.index in self.watched:  # else torch's own checks have seen it
            require_version(*self.watched[given.index])

    def _changed(self) -> frozenset[int]:
        """The places of inputs that others have written to since the call."""
        return frozenset(
            place for place, version in self.versions.items()
            if self.inputs[place]._version != version and place not in self.trained.replaced)

    def _inputs_then(self) -> dict[int, Any]:
        """The inputs, those that the call itself has written to as they were before."""
        return self.inputs | dict(zip(self.trained.replaced, self.old))


class _Rest:
    """The stages of a backward that have not run yet."""

    __slots__ = ("call", "number", "half", "carried", "tangents")

    def __init__(
        self, call: Call, number: int, half: "_Half", carried: list, tangents: Tangents,
    ):
        self.call, self.number, self.half = call, number, half
        self.carried, self.tangents = carried, tangents

    @property
    def places(self) -> frozenset[int]:
        """The arguments whose gradients are still to come."""
        return self.half.own

    def run(self) -> Tensors | Progress:
        """The next stage."""
        return self.call.run(self.number, self.half, self.carried, [], self.tangents)


class _Half:
    """A compiled backward, or a stage of one and those after it (`then`)."""

    def __init__(self, half: Backward, call_of: Callable[[Backward], Callable]):
        self.half, self.keeps_tangents = half, True
        if half.plan is None:
            self.call: Callable[[list], Tensors] = Interpreted(half.graph)
        else:
            self.call = call_of(half)
            # for the formulas, after a fault
            self.keeps_tangents = half.can_raise or device_of(half.plan) != "cpu"
        self.then = None if half.then is None else _Half(half.then, call_of)
        self.own: frozenset[int] = frozenset()  # arguments whose gradients it has, or `then`
        self.carries: list[tuple[bool, int]] = []  # a result, or as in `places`
        self.places: tuple[int, ...] = ()
        # of each gradient: where it is (a result, or -1 - k for the k-th that is passed on), as which view
        self.exits: list[tuple[int, Callable | None] | None] = []
        self.passed: list[int] = []  # as in `places`
        self.sums: list[list[int]] = []  # arguments that are uses of one tensor, in order

    def find(self, kept: Sequence[Given], arguments: Sequence[Given]) -> None:
        """Learns where the class keeps what this backward takes, and which arguments are one tensor's."""
        def held(given: Given) -> int:
            return -1 - given.index if given.kind == "tangent" else kept.index(given)

        self.places = tuple(map(held, self.half.takes))
        self.exits = []
        for exit in self.half.grads:
            if exit is None:
                self.exits.append(None)
                continue
            kind, index = exit.given.kind, exit.given.index
            if kind != "plan":
                self.passed.append(held(exit.given))
                index = -len(self.passed)
            self.exits.append((index, view_function(exit) if exit.is_view else None))
        uses: dict[Given, list[int]] = {}
        for place, (given, exit) in enumerate(zip(arguments, self.half.grads)):
            if exit is not None:
                uses.setdefault(given, []).append(place)
        shared = Counter(exit[0] for exit in self.exits if exit is not None)
        self.sums = [] if self.half.plan is None else [  # op by op, results may share memory
            places for places in uses.values() if len(places) > 1
            and self.exits[places[0]][0] >= 0 and shared[self.exits[places[0]][0]] == 1]
        self.own = frozenset(k for k, exit in enumerate(self.exits) if exit is not None)
        if self.then is not None:
            self.carries = [
                (True, given.index) if given.kind == "plan" else (False, held(given))
                for given in self.half.carries]
            self.then.find([Given("carried", k) for k in range(len(self.carries))], arguments)
            self.own |= self.then.own

    def stages(self) -> list["_Half"]:
        """It and those after it."""
        return [self] if self.then is None else [self, *self.then.stages()]

    def run(self, saved: list[torch.Tensor], tangents: Tangents) -> tuple[Tensors, list]:
        """The gradients, and what is carried to the next stage. Empties `saved`: each of them is let go
        after its last use."""
        taken = [saved[k] if k >= 0 else tangents[-1 - k] for k in self.places]
        passed = [saved[k].detach() if k >= 0 else tangents[-1 - k] for k in self.passed]
        carried = [
            None if is_result else saved[k] if k >= 0 else tangents[-1 - k]
            for is_result, k in self.carries]
        saved.clear()
        if not self.keeps_tangents:
            tangents.clear()
        results = self.call(taken)
        grads: list[torch.Tensor | None] = []
        for exit in self.exits:
            if exit is None:
                grads.append(None)
                continue
            place, view = exit
            tensor = results[place] if place >= 0 else passed[-1 - place]
            grads.append(tensor if view is None else view(tensor))
        for at, (is_result, place) in enumerate(self.carries):
            if is_result:
                carried[at] = results[place]
        del results
        for first, *others in self.sums:  # as autograd adds them up, but in the memory of the first
            for place in others:
                strides, is_view = grads[first].stride(), self.exits[first][1] is not None
                if strides != grads[place].stride() or 0 in strides:
                    break
                if is_view and not grads[first].is_contiguous():  # its elements may overlap
                    break
                grads[first].add_(grads[place])
                grads[place] = None
        return grads, carried


def _finder(exit: Exit) -> Callable[[Sequence, Sequence], torch.Tensor]:
    """A function of inputs and results of the plan that gives a value, without history."""
    index, is_result = exit.given.index, exit.given.kind == "plan"
    view = view_function(exit) if exit.is_view else None
    if view is None:
        return lambda inputs, results: results[index] if is_result else inputs[index].detach()
    return lambda inputs, results: view((results if is_result else inputs)[index].detach()).detach()


def _is_plain(tangent: torch.Tensor | None) -> bool:
    """Whether a tangent is memory like any other: torch's formulas may give zeros without any."""
    return tangent is None or type(tangent) is torch.Tensor and not (
        tangent.is_conj() or tangent.is_neg() or unusual_keys(tangent))
