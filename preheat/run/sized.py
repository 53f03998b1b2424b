"""Sized: a body whose sizes change from call to call, run at the sizes of each call.

    Sized(graph, specialise)([x, weight, 4])     f32[n3, 8] with n3 = 4
        a size that is new       op by op, through torch
        one that comes again     a plan of its own, made by `specialise(graph at these sizes)`

The graph was captured once, for all sizes that its guards accept; a plan has no guards of its own.
So many sizes have plans, those that came last, whatever number of sizes there are.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph, device_of
from preheat.ir.plan import Image, Plan
from preheat.ir.sized import at, without_types
from preheat.run.executable import executable
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault

Values = tuple[int, ...]  # of the symbols of a graph, in its order
# Calls at the same sizes after which they get a plan; a few runs of a plan pay for making it.
CALLS_BEFORE_PLAN = 3
MOST_PLANS = 32  # each holds machine code
MOST_SIZES = 256
_MOST_PATIENCE = 1 << 16


@dataclass
class Instance:
    """The body at some sizes. `entry`: who calls it natively, and how."""

    run: Any
    calls: int = 0
    is_settled: bool = False  # it has a plan, or cannot have one
    has_plan: bool = False
    entry: tuple[Any, Any] | None = None


class Sized:
    """`graph` (level aten, with symbols). Call it with the list of its inputs.

    specialise(graph)   the plan and the image of a graph without symbols, None if it has none
    is_quiet            grad mode is on, inputs require grad, and yet no gradient leaves the body
    patience            the calls at the same sizes before they get a plan
    """

    is_grad_off = False  # op by op each op has its own grad mode

    def __init__(
        self, graph: Graph, specialise: Callable[[Graph], tuple[Plan, Image] | None] | None,
        is_quiet: bool = False,
    ):
        self.graph, self.specialise, self._is_quiet = graph, specialise, is_quiet
        self.patience = CALLS_BEFORE_PLAN
        self.device = device_of(graph)
        self.symbols = tuple(name for name, _ in graph.symbols)
        place_of = {given.id: place for place, given in enumerate(graph.inputs)}
        self.places = tuple(place_of[value] for _, value in graph.symbols)
        self.bodies = tuple(k for k in range(len(graph.inputs)) if k not in set(self.places))
        self._instances: OrderedDict[Values, Instance] = OrderedDict()  # the last used one last
        self._table, self._compiling = threading.Lock(), threading.Lock()

    def __call__(self, inputs: Sequence) -> list:
        values = tuple([inputs[place] for place in self.places])
        return self.instance(values).run([inputs[place] for place in self.bodies])

    def instance(self, values: Values) -> Instance:
        """The body at these sizes. Raises Fault for sizes that the graph has no meaning at."""
        with self._table:
            found = self._instances.get(values)
            if found is None or not self._is_current(found):
                found = self._instances[values] = Instance(self._op_by_op(values))
                if len(self._instances) > MOST_SIZES:
                    self._instances.popitem(last=False)
            self._instances.move_to_end(values)
        if not found.is_settled:
            found.calls += 1
            if found.calls > self.patience and self._compiling.acquire(blocking=False):
                try:
                    self._settle(found, values)
                finally:
                    self._compiling.release()
        return found

    def _is_current(self, instance: Instance) -> bool:
        """Whether nothing better is known for its sizes."""
        return True

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
            self._make_room()
            instance.run, instance.has_plan = made, True

    def _planned(self, values: Values) -> Any:
        """What runs at these sizes by a plan, None if they cannot have one."""
        if self.specialise is None:
            return None
        found = self.specialise(at(self.graph, dict(zip(self.symbols, values))))
        return None if found is None else executable(*found, self._is_quiet)

    def _make_room(self) -> None:
        """Where as many sizes have plans as may be, the one that was used longest ago loses its own,
        and from then on plans are made more seldom."""
        with self._table:
            planned = [(key, one) for key, one in self._instances.items() if one.has_plan]
        if len(planned) >= MOST_PLANS:
            values, oldest = planned[0]
            oldest.run, oldest.entry = self._op_by_op(values), None
            oldest.calls, oldest.is_settled, oldest.has_plan = 0, False, False
            self.patience = min(2 * self.patience, _MOST_PATIENCE)
