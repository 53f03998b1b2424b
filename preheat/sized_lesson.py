"""Lessons of bodies whose sizes change: recorded once, for all sizes that torch's formulas treat alike.

    lesson = SizedLesson.of(graph, training)        a differentiable body with symbols
    lesson.at({"n3": 4})                            the lesson of the body at these sizes
    lesson.training.known({"n3": 4})                what was recorded that is for them: a Taught, or None
    lesson.interpreted(taught, {"n3": 4})           forward and backwards op by op
    lesson.template(taught, {"n3": 4}, ..)          both halves as plans, for these sizes and many others
    lesson.compiled(taught, {"n3": 4}, name)        the same for these alone

A backward that nothing known is for is recorded twice: by torch's formulas at its very sizes, whose
gradients are the call's, and again with symbols (`capture/sized_joint.py`). Where the second run does
not give the same gradients, bit by bit, or cannot be recorded, the first one is kept, for these sizes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from preheat.base.errors import Unsupported, is_strict
from preheat.base.events import emit
from preheat.base.identity import identity
from preheat.bridge.generators import States
from preheat.capture.sized_joint import SizedNested
from preheat.differentiate import Aims, Inputs, Lesson, Tensors, once_again
from preheat.ir.graph import Graph, device_of
from preheat.ir.hinted import Book, hints, with_hints
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image, Plan
from preheat.ir.scalar import apply, symbol
from preheat.ir.sized import evaluated, mapped, without_symbols, without_types
from preheat.ir.training import Backward, Division, Exit, Given, Joint, Taught, Template, Training
from preheat.transform.split import Split, split

Sizes = Mapping[str, int]  # of the symbols of a body, by name
_MOST_TAUGHT = 64


class SizedLesson:
    """See the module docstring. `training.taught` grows."""

    def __init__(self, division: Division, training: Training, aims: Aims):
        self.division, self.training, self.aims = division, training, aims
        self._halves: dict[int, tuple[Taught, Graph, tuple[Split, ...]]] = {}  # by id of what is taught

    @classmethod
    def of(
        cls, graph: Graph, known: Training | None = None, aims: Aims = Aims(),
    ) -> "SizedLesson":
        """See `Lesson.of`."""
        try:
            lesson = Lesson.of(without_symbols(graph))
        except (TypeError, NotImplementedError) as why:  # a step that needs the sizes
            if is_strict():
                raise
            raise Unsupported("symbolic_gradient", str(why)) from why
        return cls(lesson.division, known if known is not None else lesson.training, aims)

    def at(self, sizes: Sizes) -> "LessonAt":
        """The body at these sizes."""
        return LessonAt(self, sizes)

    # ------------------------------------------------------------------ learning
    def teach(self, sizes: Sizes, made: Taught) -> None:
        """Keeps what a run has recorded, beside what is known of the same forward."""
        taught = list(self.training.taught)
        old = self.training.known(sizes)
        if old is not None and old.forward == made.forward:
            taught.remove(old)
            kept = [j for j in old.joints if (j.number, j.key) != (made.joints[0].number, made.joints[0].key)]
            conditions = tuple(dict.fromkeys((*old.conditions, *made.conditions)))
            made = Taught(conditions, old.forward, (*kept, *made.joints))
        self.training = replace(self.training, taught=(made, *taught)[:_MOST_TAUGHT])

    def recorded(
        self, sizes: Sizes, inputs: Inputs, state: States | None, number: int,
        tangents: Tensors, grads: Tensors,
    ) -> Taught | None:
        """The same backward with symbols; None, reported, where it is not the same."""
        missed: dict[str, int] = {}
        try:
            with once_again(device_of(self.division.graph), state):
                nested = SizedNested(self.division, sizes, inputs, missed)
                try:
                    found, joint = nested.backward(number, tangents, False)
                    if joint is None or nested.forward is None:
                        raise Unsupported("symbolic_gradient", nested.why_not_recorded)
                    if not all(map(_is_equal, found, grads)):
                        raise Unsupported("symbolic_gradient", "gradients that differ")
                    made = nested.taught(joint)
                finally:
                    nested.forget()
        except Exception as why:  # C++ that refuses symbols raises whatever it likes
            emit("fallback", what="a backward for all sizes", why=f"{type(why).__name__}: {why}")
            return None
        for op in missed:
            emit("fallback", what="a backward for all sizes",
                 why=f"its sizes are pinned by {op}, which has no size rule for them")
        return made

    # ------------------------------------------------------------------ what runs
    def interpreted(self, taught: Taught, sizes: Sizes) -> tuple[Graph, Training]:
        """The forward op by op, and the backwards. The forward gives all values, in order."""
        forward, halves = self._divided(taught)
        values = tuple(Exit(Given("plan", place)) for place in range(len(forward.outputs)))
        backwards = tuple(_op_by_op(half, sizes) for half in halves)
        training = replace(
            self.training.at(sizes), values=values, backwards=backwards,
            joints=tuple(half.joint for half in halves))
        return without_types(forward, sizes), training

    def compiled(
        self, taught: Taught, sizes: Sizes, name: str,
    ) -> tuple[Plan, Image | None, Training]:
        """Both halves. Raises Unsupported for what cannot be lowered."""
        training = replace(
            self.training.at(sizes), forward=evaluated(taught.forward, sizes),
            joints=evaluated(taught.joints, sizes))
        return Lesson(evaluated(self.division, sizes), training, self.aims).compiled(name)

    def template(
        self, taught: Taught, sizes: Sizes, others: Iterable[Sizes], name: str,
    ) -> Template:
        """Both halves for many sizes, these among them; kept with what is taught. `others`: sizes that the
        body may have, too. Raises Unsupported as `compiled`, and where plans hang on each size."""
        if self.aims.bench is not None and device_of(self.division.graph) != "cpu":
            raise Unsupported("symbolic", "the fastest kernels are searched for at each size")
        book = Book()
        calls = [sizes, *(other for other in others if other != sizes and taught.holds(other))]
        known = hints(calls, book)
        division, training = mapped(
            (self.division, replace(
                self.training, taught=(), forward=taught.forward, joints=taught.joints)),
            lambda scalar: with_hints(scalar, known, book))
        plan, image, made = Lesson(division, training, self.aims).compiled(name, is_for_many=True)
        plan = replace(plan, symbols=tuple(sizes), conditions=book.conditions, preferences=book.preferences)
        template = decode(encode(Template(plan, image, made.values, made.backwards)))  # with plain expressions
        self._keep(taught, replace(taught, templates=(*taught.templates, template)))
        return template

    def _keep(self, old: Taught, made: Taught) -> None:
        taught = tuple(made if one is old else one for one in self.training.taught)
        self.training = replace(self.training, taught=taught)

    def _divided(self, taught: Taught) -> tuple[Graph, tuple[Split, ...]]:
        known = self._halves.get(identity(taught))
        if known is None:
            forward, halves = split(
                taught.forward, taught.joints, self.training.replaced, self.training.wiring.commits)
            alive = set(map(identity, self.training.taught))
            self._halves = {key: one for key, one in self._halves.items() if key in alive}
            known = self._halves[identity(taught)] = taught, _without_grad(forward), tuple(
                replace(half, graph=_without_grad(half.graph)) for half in halves)
        return known[1:]


class LessonAt(Lesson):
    """The lesson at some sizes. What it learns, it hands to the one for all."""

    def __init__(self, whole: SizedLesson, sizes: Sizes):
        super().__init__(evaluated(whole.division, sizes), whole.training.at(sizes), whole.aims)
        self.whole, self.sizes = whole, dict(sizes)

    def repeat(
        self, inputs: Inputs, state: States | None, number: int,
        tangents: Tensors, grads: Tensors,
    ) -> None:
        made = self.whole.recorded(self.sizes, inputs, state, number, tangents, grads)
        if made is None:
            key = tuple(None if t is None else tuple(t.stride()) for t in tangents)
            joint = next(
                (j for j in self.training.joints if (j.number, j.key) == (number, key)), None)
            if joint is None:
                return
            made = self._alone(joint)
        self.whole.teach(self.sizes, made)

    def _alone(self, joint: Joint) -> Taught:
        """What was recorded at these very sizes."""
        here = tuple((apply("eq", symbol(name), size), True) for name, size in self.sizes.items())
        return Taught(here, self.training.forward, (joint,))


def _op_by_op(half: Split, sizes: Sizes) -> Backward:
    return Backward(
        half.joint.number, evaluated(half.joint.key, sizes), None, None, half.takes, half.grads,
        half.watched, graph=without_types(half.graph, sizes))


def _without_grad(graph: Graph) -> Graph:
    """`graph`, whose gradients are known: its ops run outside of autograd."""
    return replace(graph, ops=tuple(replace(op, is_grad_enabled=False) for op in graph.ops))


def _is_equal(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    is_alike = found.dtype == expected.dtype and found.shape == expected.shape
    return is_alike and found.stride() == expected.stride() and torch.equal(
        found.nan_to_num(7.0), expected.nan_to_num(7.0))
