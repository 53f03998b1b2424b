"""Undo: puts back what a call has changed when it must start over as plain Python.

    draws(artifact)                 whether the body moves the random generators
    undo = Undo("cuda:0"); call = undo.around(entry.call)
    call(x)                         as entry.call(x); while it runs, undo.restore() puts the
    generator back

    with kept(tensors): ...         an exception that leaves the block puts the values of `tensors`
    back

A kernel may find an index out of range after random numbers were drawn, or an op may raise after an
input was written. The error must arise in the user's own frames, so the program runs again from its
start, and must find everything as it was. Effects that an operator of the user's hides from its
schema cannot be put back.

Guarantees: threads and recursions each restore their own state. Costs 2 us a call that draws.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from preheat.bridge.generators import States, set_states, states
from preheat.bridge.ops import schema
from preheat.ir.artifact import Artifact
from preheat.ir.plan import LibraryCall


def draws(artifact: Artifact) -> bool:
    """Whether the body may draw random numbers: by torch's tags, or in an operator of the
    user's."""
    if artifact.plan is not None:
        names = [call.op for call in artifact.plan.calls if isinstance(call, LibraryCall)]
    else:
        graph = artifact.graph()
        names = [op.name for op in graph.ops] if graph is not None else []
    return any(not name.startswith("aten.") or schema(name).is_random for name in names)


class Undo:
    """The generators' states before the calls that are under way, the innermost last.

    device   of the compiled body: its generator may draw, besides the CPU's
    """

    def __init__(self, device: str = "cpu") -> None:
        self._here, self._device = threading.local(), device

    def around(self, call: Callable) -> Callable:
        """`call`, during which `restore` knows where the generator stood."""

        def undoable(*args: Any, **kwargs: Any) -> Any:
            begun = self._begun()
            begun.append(states(self._device))
            try:
                return call(*args, **kwargs)
            finally:
                begun.pop()

        return undoable

    def restore(self) -> None:
        """Puts the generators where they stood when the present call began."""
        set_states(self._device, self.state())

    def state(self) -> States:
        """Where the generators stood when the present call began."""
        return self._begun()[-1]

    def _begun(self) -> list[States]:
        try:
            return self._here.begun
        except AttributeError:
            self._here.begun = []
            return self._here.begun


@contextlib.contextmanager
def kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Puts the values of `tensors` back if the block raises. They may overlap."""
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    except Exception:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved):
                tensor.detach().copy_(value)
        raise
