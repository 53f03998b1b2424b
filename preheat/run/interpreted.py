"""A recorded graph run op by op through torch: backend "eager", and what has no plan.

Same call as `Executable`: a list of input tensors in, the list of the graph's outputs out. An op
that raises is a `Fault`, with written inputs put back as they were: the call then runs as plain
Python, so that the error arises (or is caught) in the user's own frames.
"""

import contextlib
from collections.abc import Callable, Sequence

import torch

from preheat.bridge import interpret
from preheat.bridge.ambient import is_autocast_on, no_autocast
from preheat.bridge.ops import writes_unseen
from preheat.ir.graph import Graph, device_of
from preheat.run.library import Fault
from preheat.run.undo import kept


class Interpreted:
    """`graph` (level aten, or None for a body without tensor ops) on torch's own operators."""

    is_grad_off = False  # each op has the grad mode that it was recorded in

    def __init__(self, graph: Graph | None):
        self.graph = graph
        self.device = device_of(graph) if graph is not None else "cpu"
        self._written = written_inputs(graph) if graph is not None else ()
        self._context = outside_autocast()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.graph is None:
            return []
        try:
            with self._context(), kept([inputs[k] for k in self._written]):
                return interpret.run(self.graph, inputs)
        except Exception as error:
            raise Fault(f"the graph raised {error!r}") from error


class Waiting(Interpreted):
    """A graph whose plan is made when it has come `patience` times: who made it does not expect it."""

    def __init__(self, graph: Graph, patience: int = 1):
        super().__init__(graph)
        self.patience, self._runs = patience, 0

    @property
    def is_ready(self) -> bool:
        """Whether a plan is due."""
        return self._runs >= self.patience

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._runs += 1
        return super().__call__(inputs)


def outside_autocast() -> Callable:
    """A context manager class in which autocast is off: where it is on now, the recorded ops have
    its casts already."""
    return no_autocast() if is_autocast_on() else contextlib.nullcontext


def written_inputs(graph: Graph) -> tuple[int, ...]:
    """The places of the inputs whose storage an op writes."""
    roots = graph.roots()
    values = (value for op in graph.ops for value in (*op.writes, *writes_unseen(op)))
    written = {roots.get(value, value) for value in values}
    return tuple(place for place, given in enumerate(graph.inputs) if given.id in written)
