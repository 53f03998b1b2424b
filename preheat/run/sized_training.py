"""Sized training: a differentiable body whose sizes change, run at the sizes of each call.

    body = SizedTraining(graph, training, lesson, ...)
    body([x, w, 4])             the outputs, each with its history
        nothing known is for these sizes     under autograd, by torch's formulas, learning
        what is known is for them            forward and backward by a template, for many sizes and good at these
        no template can be                   both op by op, then by plans of their own

As `Sized`, whose table of sizes this is. What is known stands in the `Training`; `lesson()`
(`sized_lesson.SizedLesson`) is asked for what is not, and has a compiler.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import emit
from preheat.base.identity import identity
from preheat.bridge.generators import States
from preheat.bridge.interpret import as_tensor
from preheat.ir.graph import Graph
from preheat.ir.plan import Image
from preheat.ir.sized import evaluated
from preheat.ir.training import Backward, Taught, Template, Training
from preheat.run.executable import executable
from preheat.run.interpreted import Interpreted
from preheat.run.learning import Learning
from preheat.run.lists import callable_of
from preheat.run.sized import MOST_TEMPLATES, Instance, Sized
from preheat.run.stencils import SizedPlan, Values
from preheat.run.trained import BACKWARD, Trained, compiled_backward

Tensors = Sequence[torch.Tensor]
Sizes = dict[str, int]


class SizedTraining(Sized):
    """See the module docstring.

    state       where the random generator stood when the present call began
    changed     is told what is known, each time that this is more
    may_compile whether plans may be made
    """

    def __init__(
        self, graph: Graph, training: Training, lesson: Callable[[], Any],
        state: Callable[[], States | None], changed: Callable[[Training], None],
        may_compile: Callable[[], bool], runtime: Image | None, name: str,
    ):
        super().__init__(graph, None)
        self.training, self.lesson, self.name = training, lesson, name
        self._state, self._changed, self._may_compile = state, changed, may_compile
        self._runtime, self._is_taught = runtime, False
        self._loaded: dict[int, tuple[Template, SizedTemplate]] = {}  # by id
        self._untemplated: list[tuple] = []  # joints of which there are only plans for single sizes

    def instance(self, values: Values) -> Instance:
        self._look()
        return super().instance(values)

    def _look(self) -> None:
        """Notes what the lesson has learned."""
        if not self._is_taught or (training := self.lesson().training) is self.training:
            return
        self.training = training
        for known, one in list(self._instances.items()):
            one.run.is_current = one.run.is_of(training.known(self._sizes(known)))
        self._changed(training)

    def _teacher(self) -> Any:
        self._is_taught = True
        return self.lesson()

    def _is_current(self, instance: Instance) -> bool:
        return instance.run.is_current

    def _sizes(self, values: Values) -> Sizes:
        return dict(zip(self.symbols, values))

    # ------------------------------------------------------------------ plans for many sizes
    def _from_template(self, values: Values) -> "Joined | None":
        """By plans for many sizes, made now if there are none that are for these."""
        sizes = self._sizes(values)
        taught = self.training.known(sizes)
        if taught is None:
            return None
        fitting = [one for one in taught.templates if one.holds(sizes)]
        template = next((one for one in fitting if one.is_good_for(sizes)), None)
        template = template or self._new_template(taught, sizes) or next(iter(fitting), None)
        if template is None:
            return None
        known = self._loaded.get(identity(template))
        if known is None:
            known = self._loaded[identity(template)] = template, SizedTemplate(
                template, self.graph.hints, self._runtime)
        code = known[1]
        training = replace(
            self.training.at(sizes), values=evaluated(template.values, sizes),
            backwards=tuple(_at(half, sizes) for half in template.backwards), joints=taught.joints)
        return self._joined(
            taught, code.forward(values), training, sizes, lambda half: code.backward(half, values))

    def _new_template(self, taught: Taught, sizes: Sizes) -> Template | None:
        is_hopeless = any(joints is taught.joints for joints in self._untemplated)
        if is_hopeless or len(taught.templates) >= MOST_TEMPLATES:
            return None
        if not self._may_compile() or not self._compiling.acquire(blocking=False):
            return None
        try:
            made = self._teacher().template(
                taught, sizes, map(self._sizes, self.graph.hints), self.name)
        except Exception as why:  # it gets plans for single sizes
            if is_strict() and not isinstance(why, Unsupported):
                raise
            emit("fallback", what=f"the gradients of {self.name} for all sizes", why=str(why))
            self._untemplated.append(taught.joints)
            return None
        finally:
            self._compiling.release()
        self._look()
        return made

    # ------------------------------------------------------------------ and for none or single ones
    def _op_by_op(self, values: Values) -> "Joined":
        lesson, sizes = self._teacher(), self._sizes(values)
        taught = self.training.known(sizes)
        if taught is None:
            here = lesson.at(sizes)
            return Joined(None, Learning(here.training, lambda: here))
        forward, training = lesson.interpreted(taught, sizes)
        return self._joined(taught, Interpreted(forward), training, sizes)

    def _planned(self, values: Values) -> "Joined | None":
        if (found := self._from_template(values)) is not None:  # another call has made one meanwhile
            return found
        lesson, sizes = self._teacher(), self._sizes(values)
        taught = self.training.known(sizes)
        if taught is None or not self._may_compile():
            return None
        try:
            plan, image, training = lesson.compiled(taught, sizes, self.name)
        except Exception as why:  # ours: it goes on op by op, as before
            if is_strict() and not isinstance(why, Unsupported):
                raise
            emit("fallback", what=f"the gradients of {self.name}", why=str(why))
            return None
        call = callable_of(
            executable(plan, image, torch.is_grad_enabled(), is_lean=True), self._runtime)
        return self._joined(
            taught, lambda inputs: call([*map(as_tensor, inputs, plan.inputs)]), training, sizes)

    def _joined(
        self, taught: Taught, forward: Callable[[Tensors], Tensors], training: Training, sizes: Sizes,
        call_of: Callable[[Backward], Callable] | None = None,
    ) -> "Joined":
        here = functools.cache(lambda: self._teacher().at(sizes))  # only who learns more asks for it
        call_of = call_of or functools.partial(compiled_backward, runtime=self._runtime)
        trained = Trained(training, call_of, here, self._state, lambda: None, self.name)

        def run(inputs: Tensors) -> Tensors:
            given = [tensor.data if place in self._unseen else tensor for place, tensor in enumerate(inputs)]
            return trained.join(forward(given), dict(enumerate(inputs)))

        return Joined(taught, run)


class SizedTemplate:
    """The code of a template, at any sizes."""

    def __init__(self, template: Template, hints: Sequence[Values], runtime: Image | None):
        symbols = template.plan.symbols
        self._inputs = template.plan.inputs
        self._forward = SizedPlan(
            template.plan, template.image, symbols, hints, runtime,
            is_grad_off=torch.is_grad_enabled(), is_lean=True)
        self._backwards = {
            identity(stage.plan): SizedPlan(stage.plan, stage.image, symbols, hints, runtime, **BACKWARD)
            for half in template.backwards for stage in half.stages}

    def forward(self, values: Values) -> Callable[[Tensors], Tensors]:
        call, types = self._forward.at(values), self._inputs
        return lambda inputs: call([*map(as_tensor, inputs, types)])

    def backward(self, half: Backward, values: Values) -> Callable[[list], Tensors]:
        """`half`: a stage of a backward, whose plan is the template's."""
        return self._backwards[identity(half.plan)].at(values)


def _at(half: Backward, sizes: Sizes) -> Backward:
    """A stage of a template, and those after it, at some sizes: but for the plan."""
    return replace(
        half, key=evaluated(half.key, sizes), grads=evaluated(half.grads, sizes),
        then=None if half.then is None else _at(half.then, sizes))


class Joined:
    """A function from the inputs to the outputs, each with its history. `taught`: what it rests on."""

    def __init__(self, taught: Taught | None, run: Callable[[Tensors], Tensors]):
        self.taught, self.run, self.is_current = taught, run, True

    def is_of(self, known: Taught | None) -> bool:
        """Whether `known` has nothing more to say of its sizes."""
        if known is None or self.taught is None:
            return known is self.taught
        return known.joints is self.taught.joints

    def __call__(self, inputs: Tensors) -> Tensors:
        return self.run(inputs)
