"""Training: how a differentiable body is divided among autograd nodes, and what each needs.

    h = f(x); return h, g(h)       class 0   x -> h        reaches both results
                                   class 1   h -> g(h)     reaches the second one

A *gradient class* is the ops that reach the same results through edges of gradients. Each becomes
one node of autograd, so that `grad(g(h), h)`, hooks and undefined tangents are as in eager. A
*joint* is what the backward of a class does for one kind of tangents: recorded from torch's own
derivative formulas. A class has one argument for each use of a value, the last use first: in this
order eager sums the gradients.

Source: research/training.md.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph, Op
from preheat.ir.plan import Image, Plan
from preheat.ir.scalar import Dim, Number, Scalar, evaluate
from preheat.ir.sized import evaluated
from preheat.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class GradClass:
    """results: the values it gives to others; args: the values it takes, one entry a use; uses: the
    op of each use. Values and ops are those of the divided graph."""

    results: tuple[int, ...]
    args: tuple[int, ...]
    uses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """A functional graph whose every op is of a class, or of none (-1: its gradient never counts).

    classes   each after those whose results it takes
    values    what the body makes for its caller and for autograd: fresh outputs, results of classes
    views     outputs of the graph that require grad and lie in memory of inputs or of other outputs
    commits   (input place, value): writes that autograd sees, made by `copy_` on the input itself
    replaced  places of inputs that are written and whose old elements a later run would need
    apart     positions of the ops that no gradient hangs on: a run for gradients alone leaves them out
    needed    places of the inputs that such a run takes, or that hold what it computes
    """

    graph: Graph
    class_of: tuple[int, ...]
    classes: tuple[GradClass, ...]
    values: tuple[int, ...]
    views: tuple[int, ...]
    commits: tuple[tuple[int, int], ...]
    replaced: tuple[int, ...] = ()
    apart: frozenset[int] = frozenset()
    needed: tuple[int, ...] = ()

    @property
    def plain_writes(self) -> tuple[tuple[int, int], ...]:
        """(input place, value): the other writes, which the body itself makes outside of autograd."""
        committed = {place for place, _ in self.commits}
        place_of = {given.id: place for place, given in enumerate(self.graph.inputs)}
        return tuple(
            (place_of[target], value) for target, value in self.graph.writes
            if place_of[target] not in committed)


@dataclass(frozen=True, slots=True)
class Given:
    """Where a tensor of a call is found.

    kind "input"    the `index`-th input of the node; once a commit has written to it, as it is then
    kind "before"   the same input with the history that it had before a commit
    kind "value"    the `index`-th of the values of the forward
    kind "exit"     the `index`-th output of the call
    kind "tangent"  that of the `index`-th result of the class
    kind "plan"     the `index`-th result of the plan
    kind "carried"  the `index`-th of what the stage before has carried
    """

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Exit:
    """A tensor that leaves: `given` itself, or a view of it: by `steps`, each of the one before it,
    or, if there are none, with this type and offset (in elements from the first one of `given`)."""

    given: Given
    is_view: bool = False
    needs_grad: bool = False
    type: TensorType | None = None
    offset: Dim = 0
    steps: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the tensors of a call are joined to autograd.

    classes   for each class: its arguments, and which values are its results
    commits   (input, the value that is copied to it), each when the class that makes it is done
    exits     one an output, in order; `extra` exits past the recorded ones are memory of others
    """

    classes: tuple[tuple[tuple[Given, ...], tuple[int, ...]], ...]
    commits: tuple[tuple[int, int], ...]
    exits: tuple[Exit, ...]

    @property
    def is_joined(self) -> bool:
        """Whether autograd has anything to do with what leaves the body."""
        return bool(self.classes) or any(exit.is_view for exit in self.exits)


@dataclass(frozen=True, slots=True)
class Joint:
    """The backward of class `number` for tangents of this kind, at level aten.

    key       for each result of the class: the strides of its tangent, or None where it has none
    reads     values of the forward graph that it takes, in the order of the graph's first inputs;
              the tangents that are there follow
    grads     for each argument of the class: the output of the graph that is its gradient, -1 for
              none, or -2 - k for the k-th of the reads and tangents
    holders   values of the forward graph that began the memory into which the program has written what
              is read: in eager it lies there
    """

    number: int
    key: tuple[tuple[int, ...] | None, ...]
    graph: Graph
    reads: tuple[int, ...]
    grads: tuple[int, ...]
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Backward:
    """The joint of class `number` for tangents of kind `key`, compiled.

    takes      where each input of the plan is found: an input, a value, or a tangent
    grads      for each argument of the class its gradient, None for none
    watched    inputs and values that the formulas have saved and the plan does not take: a change in
               place is an error, as in eager
    can_raise  for some values of what it takes
    graph      what runs op by op where there is no plan
    then       the next stage, if this is only the first one of the backward: it has the gradients that are
               ready later (`transform/handover.py`)
    carries    what it is given: results of this plan, or what this stage has been given itself
    """

    number: int
    key: tuple[tuple[int, ...] | None, ...]
    plan: Plan | None
    image: Image | None
    takes: tuple[Given, ...]
    grads: tuple[Exit | None, ...]
    watched: tuple[Given, ...] = ()
    can_raise: bool = True
    graph: Graph | None = None
    then: "Backward | None" = None
    carries: tuple[Given, ...] = ()

    @property
    def stages(self) -> "tuple[Backward, ...]":
        """It and what follows, in the order in which they run."""
        found, stage = [], self
        while stage is not None:
            found.append(stage)
            stage = stage.then
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Template:
    """Both halves of a body, compiled for many sizes: those at which the conditions of `plan` hold.

    plan, image         of the forward
    values, backwards   as in `Training`, with expressions of sizes in them
    """

    plan: Plan
    image: Image | None
    values: tuple[Exit, ...]
    backwards: tuple[Backward, ...]

    def holds(self, sizes: Mapping[str, Number]) -> bool:
        """Whether it is for these sizes."""
        try:
            return all(bool(evaluate(condition, sizes)) for condition in self.plan.conditions)
        except ArithmeticError:
            return False

    def is_good_for(self, sizes: Mapping[str, Number]) -> bool:
        """Of sizes that it is for: whether its choices are good ones there."""
        return all(bool(evaluate(preference, sizes)) for preference in self.plan.preferences)


@dataclass(frozen=True, slots=True)
class Taught:
    """What is known of the backward of a body whose sizes change, for some of its sizes.

    conditions   (test, answer): all sizes that give these answers
    forward, joints   as in `Training`, with expressions of sizes in them
    templates    what has been compiled of them
    """

    conditions: tuple[tuple[Scalar, bool], ...]
    forward: Graph
    joints: tuple[Joint, ...]
    templates: tuple[Template, ...] = ()

    def holds(self, values: Mapping[str, Number]) -> bool:
        """Whether it is for these sizes."""
        return all(bool(evaluate(test, values)) is answer for test, answer in self.conditions)


@dataclass(frozen=True, slots=True)
class Training:
    """What is known of a differentiable body.

    values      once it is compiled: where each value of the division is found (in an input or in a
                result of the artifact's plan), each that the backwards take, and the old elements
                of the `replaced` inputs
    forward     what the joints' values are numbered by; None before a backward was recorded
    replaced, needed   see `Division`;  numbers: places of the needed inputs that are none of tensors
    draws       whether the body draws random numbers
    has_regions whether parts of it are checkpoints
    taught      of a body whose sizes change: what is known, by sizes. Then there are no `forward` and
                no `joints`, and the wiring has expressions in it
    """

    wiring: Wiring
    values: tuple[Exit, ...] = ()
    backwards: tuple[Backward, ...] = ()
    forward: Graph | None = None
    joints: tuple[Joint, ...] = ()
    replaced: tuple[int, ...] = ()
    needed: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    has_regions: bool = False
    draws: bool = False
    taught: tuple[Taught, ...] = ()

    def known(self, sizes: Mapping[str, Number]) -> Taught | None:
        """What is known that is for these sizes."""
        return next((one for one in self.taught if one.holds(sizes)), None)

    def at(self, sizes: Mapping[str, Number]) -> "Training":
        """The same at these sizes, without what was taught of others."""
        return evaluated(replace(self, taught=()), sizes)
