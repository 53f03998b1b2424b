"""Sized: a body whose sizes change from call to call, run at the sizes of each call.

    Sized(graph, specialise, template)([x, weight, 4])     f32[n3, 8] with n3 = 4
        a size that the template is for      its code, with a plan made of it: no compiler
        one that it is for, but slow at      another template, while there are few; else that one
        any other that is new                op by op, through torch
        one of these that comes again        a plan of its own, made by `specialise`

The graph was captured once, for all sizes that its guards accept. A *template* (`ir.plan.Plan` with
symbols) is a plan for many sizes, those for which its conditions hold: where they do not, another one
is made, from these sizes. What no template serves gets plans for single sizes, the ones that came
last, whatever number of sizes there are.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.bridge.ops import unseen_inputs
from preheat.ir.graph import Graph, device_of
from preheat.ir.hinted import Book
from preheat.ir.plan import Image, Plan
from preheat.ir.sized import at, with_hinted_sizes, without_types
from preheat.run.executable import Executable, executable, loaded
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault
from preheat.run.memory import compiled_expressions
from preheat.run.stencils import Values

# Calls at the same sizes after which they get a plan; a few runs of a plan pay for making it.
CALLS_BEFORE_PLAN = 3
MOST_PLANS = 32  # each holds machine code, or an arena
MOST_SIZES = 256
MOST_TEMPLATES = 4
_MOST_PATIENCE = 1 << 16


class Template:
    """A plan for many sizes, with its code. `is_quiet`: see `Sized`; `unseen`: see `Executable`."""

    def __init__(self, plan: Plan, image: Image, is_quiet: bool = False, unseen: Collection[int] = ()):
        self.plan, self.is_quiet, self.unseen = plan, is_quiet, unseen
        self.kernels = loaded(plan, image)
        self._allows = compiled_expressions(plan.symbols, plan.conditions)
        self._prefers = compiled_expressions(plan.symbols, plan.preferences)

    def is_for(self, values: Values) -> bool:
        """Whether its conditions hold at these sizes."""
        try:
            return all(self._allows(*values))
        except ArithmeticError:
            return False

    def is_good_for(self, values: Values) -> bool:
        """Whether it is for these sizes, and its choices are good ones there."""
        return self.is_for(values) and all(self._prefers(*values))

    def hinted(self, calls: Sequence[Values]) -> tuple[Executable, Book]:
        """The plan with hinted sizes, for tables that are made once for many sizes; and what these
        are taken for. `calls`: see `with_hinted_sizes`."""
        book = Book()
        plan = with_hinted_sizes(self.plan, self.plan.symbols, calls, book)
        return Executable(plan, self.kernels, self.is_quiet, unseen=self.unseen), book


class Planned:
    """A template at some sizes. Call it with the list of inputs of the plan. graphs: see `Sized`."""

    def __init__(self, template: Template, values: Values, graphs: Any = None):
        self.template, self.values, self.graphs = template, values, graphs
        self.sizes = dict(zip(template.plan.symbols, values))

    @functools.cached_property
    def executable(self) -> Executable:
        """What runs from Python; calls that find their entry need none."""
        made = Executable(
            at(self.template.plan, self.sizes), self.template.kernels, self.template.is_quiet,
            unseen=self.template.unseen)
        made.graphs = self.graphs
        return made

    def __call__(self, inputs: Sequence) -> list:
        return self.executable(inputs)


@dataclass
class Instance:
    """The body at some sizes. `entry`: who calls it natively, and how. calls: before it was settled; where
    plans become graphs, of its plan."""

    run: Any
    calls: int = 0
    is_settled: bool = False  # it has a plan, or cannot have one
    has_plan: bool = False
    entry: tuple[Any, Callable] | None = None


class Sized:
    """`graph` (level aten, with symbols). Call it with the list of its inputs.

    specialise(graph)   the plan and the image of a graph without symbols, or a template for one with
                        symbols; None if it has none
    template            the first one
    graphs              what may be recorded of the plans (`run/replays.py`)
    is_quiet            grad mode is on, inputs require grad, and yet no gradient leaves the body
    patience            the calls at the same sizes before they get a plan
    """

    is_grad_off = False  # op by op each op has its own grad mode

    def __init__(
        self, graph: Graph, specialise: Callable[[Graph], tuple[Plan, Image] | None] | None,
        template: tuple[Plan, Image] | None = None, graphs: Any = None, is_quiet: bool = False,
    ):
        self.graph, self.specialise, self.graphs = graph, specialise, graphs
        self._is_quiet = is_quiet
        self.patience = CALLS_BEFORE_PLAN
        self.device = device_of(graph)
        self.symbols = tuple(name for name, _ in graph.symbols)
        place_of = {given.id: place for place, given in enumerate(graph.inputs)}
        self.places = tuple(place_of[value] for _, value in graph.symbols)
        self.bodies = tuple(k for k in range(len(graph.inputs)) if k not in set(self.places))
        # of bodies: their versions do not count what is written to them
        self._unseen = frozenset(map(self.bodies.index, unseen_inputs(graph)))
        self.templates = [] if template is None else [Template(*template, is_quiet, self._unseen)]
        self._instances: OrderedDict[Values, Instance] = OrderedDict()  # the last used one last
        self._has_all = False  # another template could not be made
        self._table, self._compiling = threading.Lock(), threading.Lock()

    def __call__(self, inputs: Sequence) -> list:
        values = tuple([inputs[place] for place in self.places])
        return self.instance(values).run([inputs[place] for place in self.bodies])

    def instance(self, values: Values) -> Instance:
        """The body at these sizes. Raises Fault for sizes that the graph has no meaning at."""
        with self._table:
            found = self._instances.get(values)
            if found is not None:
                self._instances.move_to_end(values)
        if found is None or not self._is_current(found):
            found = self._new(values)
        if not found.is_settled:
            found.calls += 1
            if found.calls > self.patience and self._compiling.acquire(blocking=False):
                try:
                    self._settle(found, values)
                finally:
                    self._compiling.release()
        return found

    def _new(self, values: Values) -> Instance:
        run = self._from_good_template(values) or self._from_template(values)
        found = Instance(
            run or self._op_by_op(values), is_settled=run is not None, has_plan=run is not None)
        if run is not None:
            self._make_room()
        with self._table:
            known = self._instances.get(values)
            if known is None or not self._is_current(known):
                self._instances[values] = found
            found = self._instances[values]
            if len(self._instances) > MOST_SIZES:
                self._instances.popitem(last=False)
        return found

    def _is_current(self, instance: Instance) -> bool:
        """Whether nothing better is known for its sizes."""
        return True

    def _from_template(self, values: Values) -> Planned | None:
        found = (template for template in self.templates if template.is_for(values))
        template = next(found, None)
        return None if template is None else Planned(template, values, self.graphs)

    def _from_good_template(self, values: Values) -> Planned | None:
        """By one whose choices are good at these sizes, made now if there is none."""
        found = next((template for template in self.templates if template.is_good_for(values)), None)
        if found is not None:
            return Planned(found, values, self.graphs)
        if not self.templates or self._has_all or len(self.templates) >= MOST_TEMPLATES:
            return None
        return self._from_another(values)

    def _from_another(self, values: Values) -> Planned | None:
        """By a template that is made from these sizes, which the others are not for."""
        if self.specialise is None or not self._compiling.acquire(blocking=False):
            return None
        try:
            hints = (values, *(hint for hint in self.graph.hints if hint != values))
            made = self.specialise(replace(self.graph, hints=hints))
        finally:
            self._compiling.release()
        if made is None:
            self._has_all = any(template.is_for(values) for template in self.templates)
            return None
        template = Template(*made, self._is_quiet, self._unseen)
        self.templates.append(template)
        return Planned(template, values, self.graphs) if template.is_for(values) else None

    def _op_by_op(self, values: Values) -> Any:
        try:
            return Interpreted(without_types(self.graph, dict(zip(self.symbols, values))))
        except ArithmeticError as error:
            raise Fault(f"a size has no value: {error}") from error

    def _settle(self, instance: Instance, values: Values) -> None:
        """Gives the instance a plan, if it can have one."""
        instance.is_settled = True
        made = self._planned(values)
        if made is not None:
            if self._make_room():
                self.patience = min(2 * self.patience, _MOST_PATIENCE)
            instance.run, instance.has_plan = made, True

    def _planned(self, values: Values) -> Any:
        """What runs at these sizes by a plan, None if they cannot have one."""
        if self.specialise is None:
            return None
        found = self.specialise(at(self.graph, dict(zip(self.symbols, values))))
        return None if found is None else executable(
            *found, self._is_quiet, graphs=self.graphs, unseen=self._unseen)

    def _make_room(self) -> bool:
        """Where as many sizes have plans as may be, the one that was used longest ago loses its own,
        and plans of a compiler should be made more seldom."""
        with self._table:
            planned = [key for key, one in self._instances.items() if one.has_plan]
            if len(planned) < MOST_PLANS:
                return False
            del self._instances[planned[0]]
        return True
