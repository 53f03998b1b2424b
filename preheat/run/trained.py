"""Trained: the compiled halves of a differentiable node, joined at each call.

    trained = Trained(artifact, runtime, relearn)
    exits = trained.join(results of the forward plan, inputs)       each with its history

The forward plan gives the division's values and what the known backwards read; a class keeps of it
what its backwards take, with torch's checks for in-place changes. A backward of a kind that is not
known runs the body again under autograd, from the inputs and the random state of the call, and is
learned on the way (`relearn`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.base.events import emit
from preheat.bridge.ambient import is_autocast_on
from preheat.bridge.generators import States
from preheat.bridge.tensors import unusual_keys
from preheat.ir.plan import Image
from preheat.ir.trace import Signature
from preheat.ir.training import Backward, Exit, Given, Training, Wiring
from preheat.run.autograd import Join, Tangents, view_function
from preheat.run.device import context
from preheat.run.driver import Program
from preheat.run.entry import builtin
from preheat.run.executable import Executable, executable
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault
from preheat.run.reach import Origin
from preheat.run.recipes import Rebuild

Tensors = Sequence[torch.Tensor | None]


class Trained:
    """See the module docstring.

    lesson    gives the body, for what is not known here
    state     where the random generators stood when the present call began; None if it does not draw
    relearn   is told that another kind of backward has been recorded
    """

    def __init__(
        self, training: Training, runtime: Image | None, lesson: Callable[[], Any],
        state: Callable[[], States | None], relearn: Callable[[], None], name: str = "",
    ):
        self.name = name
        self.wiring, self.values, self.replaced = training.wiring, training.values, training.replaced
        self.results = [place for _, places in self.wiring.classes for place in places]
        self.committed = {place for place, _ in self.wiring.commits}
        exits = [exit.given.index for exit in self.wiring.exits if exit.given.kind == "value"]
        self.own_values = 1 + max((*self.results, *exits), default=-1)  # the rest is only saved
        self.finds = tuple(map(_finder, self.values))
        self.joins = Join(self.wiring)
        self.lesson, self.state, self.relearn = lesson, state, relearn
        self.halves = {
            (half.number, half.key): _Half(half, runtime) for half in training.backwards}
        taken: list[dict[Given, None]] = [{} for _ in self.wiring.classes]
        for half in training.backwards:
            taken[half.number].update(dict.fromkeys(
                given for given in half.takes if given.kind != "tangent"))
        self.kept = tuple(map(tuple, taken))
        for half in self.halves.values():
            half.find(self.kept[half.half.number])
        # torch's formulas had saved something, even if the plans do not need it
        self.is_spent = [
            any(j.reads for j in training.joints if j.number == number)
            for number in range(len(self.wiring.classes))]

    def join(
        self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The outputs of a call, given the results of the forward plan."""
        values = [find(inputs, results) for find in self.finds]
        call = Call(self, inputs, values)
        exits = self.joins(call, inputs, values)
        call.begin()
        return exits


    def is_known(self, number: int) -> bool:
        """Whether class `number` has run backward before."""
        return any(known == number for known, _ in self.halves)

    def relaid(self, number: int, tangents: Tangents) -> tuple["_Half | None", Tangents]:
        """A known backward of class `number` for the same results, with `tangents` in the layout that
        it is for; none, and `tangents` as they are, if there is none."""
        for (known, key), half in self.halves.items():
            if known == number and all(
                (t is None) == (strides is None) for t, strides in zip(tangents, key)
            ) and not any(0 in strides for strides in key if strides is not None):
                return half, [
                    None if t is None else torch.empty_strided(
                        t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)
                    for t, strides in zip(tangents, key)]
        return None, tangents


def joined(trained: Trained, rebuild: Rebuild, values: int, inputs: Sequence[int]) -> Rebuild:
    """`rebuild` after the join: a function of the plan's results, the inputs and its own objects.

    values    how many results the plan has;  inputs: the sources of the node's inputs
    """
    end = values + len(inputs)

    def function(*given: Any) -> Any:
        exits = trained.join(given[:values], given[values:end])
        return rebuild.function(*exits, *given[end:])

    return Rebuild(function, values, (*inputs, *rebuild.sources), "rebuild", rebuild.text)


class Call:
    """One call that ran compiled: a source of gradients."""

    __slots__ = ("trained", "inputs", "values", "versions", "made", "state")

    def __init__(self, trained: Trained, inputs: Sequence[torch.Tensor], values: list):
        self.trained, self.inputs, self.values = trained, inputs, values
        self.versions: list[int] = []  # of the inputs, once the call has written to them
        self.made: list[int] = []  # of the values
        self.state = trained.state()

    def begin(self) -> None:
        """The call is over: what is changed from now on is changed by others.

        What has got a history of this call is held without it: else the call would hold itself.
        """
        trained = self.trained
        for place in trained.results:
            self.values[place] = self.values[place].detach()
        if trained.committed:
            self.inputs = [
                tensor.detach() if place in trained.committed else tensor
                for place, tensor in enumerate(self.inputs)]
        self.versions = [tensor._version for tensor in self.inputs]
        self.made = [tensor._version for tensor in self.values]

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
        self, number: int, tangents: Tangents, saved: Sequence[torch.Tensor], is_kept: bool,
    ) -> Tensors:
        """The gradients of the arguments of class `number`."""
        key = tuple([None if t is None else t.stride() for t in tangents])
        half = self.trained.halves.get((number, key))
        if half is None and self._changed():  # to record another, the body would have to run again
            half, tangents = self.trained.relaid(number, tangents)
        # under autocast the operands of the formulas are cast, which no compiled backward does
        if half is not None and all(map(_is_plain, tangents)) and not is_autocast_on():
            try:
                return half.run(saved, tangents)
            except Fault as fault:  # the user's error, if it is one, arises in torch's own formulas
                emit("fallback", what=f"a backward of {self.trained.name}", why=str(fault))
        return self._learned(number, tangents)

    def differentiable(
        self, number: int, arguments: Sequence[torch.Tensor], tangents: Tangents,
    ) -> Tensors:
        """The gradients as functions of `arguments`: the class runs again, as plain autograd."""
        if not self.trained.is_known(number):  # what its formulas have saved is not known, nor changes
            with torch.no_grad():
                self._learned(number, [None if t is None else t.detach() for t in tangents])
        for place, (tensor, version) in enumerate(zip(self.inputs, self.versions)):
            if place not in self.trained.replaced:
                _require_version(tensor, version)
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
        nested = lesson.run_again(self._inputs_then(), self.state)
        grads, joint = nested.backward(number, tangents, False)
        takes = lesson.learn(nested.forward, joint, changed)
        if not changed:
            lesson.repeat(self._inputs_then(), self.state, number, tangents, grads)
        if lesson.training is not known:
            trained.relearn()
        where = {Given("tangent", k): tangent for k, tangent in enumerate(tangents)}
        is_other = bool(changed) and joint is None
        for given, follows in takes:
            if given.kind == "input":
                _require_version(self.inputs[given.index], self.versions[given.index])
                where[given] = self.inputs[given.index]
            elif given.index < trained.own_values:
                _require_version(self.values[given.index], self.made[given.index])
                where[given] = self.values[given.index]
                is_other |= follows
            else:
                is_other |= follows  # it was not kept
        if is_other:  # the body that ran again is not the one that ran
            if joint is None or any(given not in where for given, _ in takes):
                for place in changed:
                    _require_version(self.inputs[place], self.versions[place])
            grads = lesson.interpreted(nested.forward, joint, where)
        return grads

    def _changed(self) -> frozenset[int]:
        """The places of inputs that others have written to since the call."""
        return frozenset(
            place for place, (tensor, version) in enumerate(zip(self.inputs, self.versions))
            if tensor._version != version and place not in self.trained.replaced)

    def _inputs_then(self) -> Sequence[torch.Tensor]:
        """The inputs, those that the call itself has written to as they were before."""
        inputs, replaced = list(self.inputs), self.trained.replaced
        for place, old in zip(replaced, self.values[len(self.values) - len(replaced):]):
            inputs[place] = old
        return inputs


class _Half:
    """A compiled backward."""

    def __init__(self, half: Backward, runtime: Image | None):
        self.half, self.kept, self.views = half, (), []
        if half.plan is None:
            made = Interpreted(half.graph)
            self.call = lambda *given: made(given)
        else:  # it is never run under autocast, in which its forward may have been bound
            made = executable(half.plan, half.image, is_autocast_off=False)
            self.call = callable_of(made, runtime)
        self.places: tuple[int, ...] = ()

    def find(self, kept: Sequence[Given]) -> None:
        """Learns where the class keeps what this backward takes."""
        self.places = tuple(
            -1 - given.index if given.kind == "tangent" else kept.index(given)
            for given in self.half.takes)
        self.kept = kept
        self.views = [
            view_function(exit) if exit is not None and exit.is_view else None
            for exit in self.half.grads]

    def run(self, saved: Sequence[torch.Tensor], tangents: Tangents) -> Tensors:
        taken = [saved[k] if k >= 0 else tangents[-1 - k] for k in self.places]
        results = self.call(*taken)
        return [
            None if exit is None else self._grad(exit.given, view, saved, tangents, results)
            for exit, view in zip(self.half.grads, self.views)]

    def _grad(
        self, given: Given, view: Callable | None, saved: Sequence[torch.Tensor],
        tangents: Tangents, results: Tensors,
    ) -> torch.Tensor:
        if given.kind == "plan":
            tensor = results[given.index]
        elif given.kind == "tangent":
            tensor = tangents[given.index]
        else:
            tensor = saved[self.kept.index(given)].detach()
        return tensor if view is None else view(tensor)


def _finder(exit: Exit) -> Callable[[Sequence, Sequence], torch.Tensor]:
    """A function of inputs and results of the plan that gives a value, without history."""
    index, is_result = exit.given.index, exit.given.kind == "plan"
    view = view_function(exit) if exit.is_view else None
    if view is None:
        return lambda inputs, results: results[index] if is_result else inputs[index].detach()
    return lambda inputs, results: view((results if is_result else inputs)[index].detach()).detach()


def _require_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} is at version {tensor._version}; "
            f"expected version {version} instead.")


def _is_plain(tangent: torch.Tensor | None) -> bool:
    """Whether a tangent is memory like any other: torch's formulas may give zeros without any."""
    return tangent is None or type(tangent) is torch.Tensor and not (
        tangent.is_conj() or tangent.is_neg() or unusual_keys(tangent))


class _NoRows:
    """Nothing is checked: what a backward takes was made by its own forward."""

    address = count = 0


def callable_of(executable: Executable, runtime: Image | None) -> Callable:
    """`executable` as a function of its inputs: a builtin where the process allows one."""
    present = context()
    needed = {"native", "grad_mode"} if executable.is_grad_off else {"native"}
    if runtime is None or present is None or not needed <= present.have:
        return lambda *given: executable(given)
    count = len(executable.plan.inputs)
    program = Program(
        executable, present, [Origin("argument", k) for k in range(count)], (), "tuple", None, None,
        _failed, _NoRows, Signature(count), None)
    return builtin(program, runtime)


def _failed(reason: int, detail: int, arguments: tuple, names: tuple) -> None:
    raise Fault("a kernel found an index out of range or a division by zero", detail)
