"""Sized training: a differentiable body whose sizes change, run at the sizes of each call.

    body = SizedTraining(graph, training, lesson, ...)
    body([x, w, 4])             the outputs, each with its history
        nothing known is for these sizes     under autograd, by torch's formulas, learning
        what is known is for them            forward and backward by a template, for many sizes
        no template can be                   both op by op, then by plans of their own

As `Sized`, whose table of sizes this is. `lesson()` gives what is known (`sized_lesson.SizedLesson`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import emit
from preheat.bridge.generators import States
from preheat.bridge.interpret import as_tensor
from preheat.ir.graph import Graph
from preheat.ir.plan import Image, Plan
from preheat.ir.training import Taught, Template, Training
from preheat.run.executable import executable
from preheat.run.interpreted import Interpreted
from preheat.run.learning import Learning
from preheat.run.sized import MOST_TEMPLATES, Instance, Sized, Values
from preheat.run.trained import Trained, callable_of

Tensors = Sequence[torch.Tensor]


class SizedTraining(Sized):
    """See the module docstring.

    state       where the random generator stood when the present call began
    changed     is told what is known, each time that this is more
    may_compile whether plans may be made
    """

    def __init__(
        self, graph: Graph, lesson: Callable[[], Any], state: Callable[[], States | None],
        changed: Callable[[Training], None], may_compile: Callable[[], bool],
        runtime: Image | None, name: str,
    ):
        super().__init__(graph, None)
        self.lesson, self.name = lesson, name
        self._state, self._changed, self._may_compile = state, changed, may_compile
        self._runtime, self._generation = runtime, -1
        self._untemplated: list[tuple] = []  # joints of which there are only plans for single sizes

    def instance(self, values: Values) -> Instance:
        lesson = self.lesson()
        if lesson.generation != self._generation:
            if self._generation >= 0:
                self._changed(lesson.training)
            self._generation = lesson.generation
            for known, one in list(self._instances.items()):
                one.run.is_current = one.run.is_of(lesson.known(self._sizes(known)))
        return super().instance(values)

    def _is_current(self, instance: Instance) -> bool:
        return instance.run.is_current

    def _sizes(self, values: Values) -> dict[str, int]:
        return dict(zip(self.symbols, values))

    def _from_template(self, values: Values) -> "Joined | None":
        """By plans for many sizes, made now if there are none that are for these."""
        lesson, sizes = self.lesson(), self._sizes(values)
        taught = lesson.known(sizes)
        if taught is None:
            return None
        template = next((one for one in taught.templates if one.holds(sizes)), None)
        if template is None:
            template = self._new_template(lesson, taught, sizes)
        if template is None:
            return None
        plan, image, training = lesson.planned(taught, template, sizes)
        return self._compiled(taught, plan, image, training, sizes)

    def _new_template(self, lesson: Any, taught: Taught, sizes: dict[str, int]) -> Template | None:
        is_hopeless = any(joints is taught.joints for joints in self._untemplated)
        if is_hopeless or len(taught.templates) >= MOST_TEMPLATES:
            return None
        if not self._may_compile() or not self._compiling.acquire(blocking=False):
            return None
        try:
            made = lesson.template(taught, sizes, map(self._sizes, self.graph.hints), self.name)
        except Exception as why:  # it gets plans for single sizes
            if is_strict() and not isinstance(why, Unsupported):
                raise
            emit("fallback", what=f"the gradients of {self.name} for all sizes", why=str(why))
            self._untemplated.append(taught.joints)
            return None
        finally:
            self._compiling.release()
        self._changed(lesson.training)
        self._generation = lesson.generation
        return made

    def _op_by_op(self, values: Values) -> "Joined":
        lesson, sizes = self.lesson(), self._sizes(values)
        taught = lesson.known(sizes)
        if taught is None:
            here = lesson.at(sizes)
            return Joined(None, Learning(here.training, lambda: here))
        forward, training = lesson.interpreted(taught, sizes)
        return self._joined(taught, Interpreted(forward), training, sizes)

    def _planned(self, values: Values) -> "Joined | None":
        if (found := self._from_template(values)) is not None:  # another call has made one meanwhile
            return found
        lesson, sizes = self.lesson(), self._sizes(values)
        taught = lesson.known(sizes)
        if taught is None or not self._may_compile():
            return None
        try:
            plan, image, training = lesson.compiled(taught, sizes, self.name)
        except Exception as why:  # ours: it goes on op by op, as before
            if is_strict() and not isinstance(why, Unsupported):
                raise
            emit("fallback", what=f"the gradients of {self.name}", why=str(why))
            return None
        return self._compiled(taught, plan, image, training, sizes)

    def _compiled(
        self, taught: Taught, plan: Plan, image: Image | None, training: Training, sizes: dict[str, int],
    ) -> "Joined":
        call = callable_of(
            executable(plan, image, torch.is_grad_enabled(), is_lean=True), self._runtime)
        return self._joined(
            taught, lambda inputs: call([*map(as_tensor, inputs, plan.inputs)]), training, sizes)

    def _joined(
        self, taught: Taught, forward: Callable[[Tensors], Tensors], training: Training,
        sizes: dict[str, int],
    ) -> "Joined":
        here = functools.cache(lambda: self.lesson().at(sizes))  # only who learns more asks for it
        trained = Trained(training, self._runtime, here, self._state, lambda: None, self.name)

        def run(inputs: Tensors) -> Tensors:
            given = [tensor.data if place in self._unseen else tensor for place, tensor in enumerate(inputs)]
            return trained.join(forward(given), dict(enumerate(inputs)))

        return Joined(taught, run)


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
