"""Sized: a body whose sizes change from call to call, run at the sizes of each call.

    Sized(graph, specialise)([x, weight, 4])     f32[n3, 8] with n3 = 4
        a size that is new       op by op, through torch
        one that comes again     a plan of its own, made by `specialise(graph at these sizes)`

The graph was captured once, for all sizes that its guards accept; a plan has no guards of its own.
So many sizes have plans, and the ones that came last are kept ready, whatever number of sizes there
are.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph
from preheat.ir.plan import Image, Plan
from preheat.ir.sized import at, without_types
from preheat.run.executable import Executable
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault
from preheat.run.load import load

Values = tuple[int, ...]  # of the symbols of a graph, in its order
# Calls at the same sizes after which they get a plan; a few runs of a plan pay for making it.
CALLS_BEFORE_PLAN = 3
MOST_PLANS = 32  # each holds machine code
MOST_SIZES = 256


@dataclass
class Instance:
    """The body at some sizes."""

    run: Executable | Interpreted
    calls: int = 0
    is_settled: bool = False  # it has a plan, or cannot have one


class Sized:
    """`graph` (level aten, with symbols). Call it with the list of its inputs.

    specialise(graph)   the plan and the image of a graph without symbols, None if it has none
    """

    def __init__(
        self, graph: Graph, specialise: Callable[[Graph], tuple[Plan, Image] | None] | None,
    ):
        self.graph, self.specialise = graph, specialise
        self.patience = CALLS_BEFORE_PLAN
        self.symbols = tuple(name for name, _ in graph.symbols)
        place_of = {given.id: place for place, given in enumerate(graph.inputs)}
        self.places = tuple(place_of[value] for _, value in graph.symbols)
        self.bodies = tuple(k for k in range(len(graph.inputs)) if k not in set(self.places))
        self._instances: OrderedDict[Values, Instance] = OrderedDict()
        self._plans = 0
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence) -> list:
        values = tuple([inputs[place] for place in self.places])
        return self.instance(values).run([inputs[place] for place in self.bodies])

    def instance(self, values: Values) -> Instance:
        """The body at these sizes."""
        found = self._instances.get(values)
        if found is None:
            found = self._made(values)
        if not found.is_settled:
            found.calls += 1
            if found.calls > self.patience and self._lock.acquire(blocking=False):
                try:
                    self._settle(found, values)
                finally:
                    self._lock.release()
        return found

    def _made(self, values: Values) -> Instance:
        try:
            graph = without_types(self.graph, dict(zip(self.symbols, values)))
        except ArithmeticError as error:
            raise Fault(f"a size has no value: {error}") from error
        made = self._instances[values] = Instance(Interpreted(graph))
        if len(self._instances) > MOST_SIZES:
            oldest, gone = next(iter(self._instances.items()))
            self._instances.pop(oldest, None)
            self._plans -= isinstance(gone.run, Executable)
        return made

    def _settle(self, instance: Instance, values: Values) -> None:
        """Gives the instance a plan, if there may be another one."""
        instance.is_settled = True
        if self.specialise is None or self._plans >= MOST_PLANS:
            return
        found = self.specialise(at(self.graph, dict(zip(self.symbols, values))))
        if found is not None:
            plan, image = found
            instance.run = Executable(plan, load(image) if image.code else None)
            self._plans += 1
