"""A body that a backend from outside has compiled: another one that torch.compile knows, or the user's.

    run = Outside(graph, backend, "f", inputs, lambda: True)
        backend(gm, example_inputs)   once, and once more for each other set of its numbers
    run([x, weight, 4])         ->    what the function that it gave makes of (x, weight)

`gm` is the recorded ATen graph (`bridge/fx.py`), forward only: its ops run under autograd, so
gradients are those of what the backend gives. Guards, breaks and the chain of nodes are Preheat's own.
Sizes and other numbers that change are constants of each graph: a backend is shown no symbols.

Guarantees: the examples that the graph writes to are copies; another count of results than the
graph's, or another dtype, device or shape of one, is an error that names the backend (elements, strides and
what requires a gradient are as it gives them); a call that raises changes no input, and runs again as
plain Python, where the program's own errors arise.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.base.callers import warn
from preheat.base.errors import BackendError, Unsupported
from preheat.base.events import emit, timed
from preheat.bridge.fx import graph_module, tensor_places
from preheat.bridge.ops import dtype
from preheat.ir.graph import Graph, device_of
from preheat.ir.sized import at, without_types
from preheat.ir.types import TensorType
from preheat.run.interpreted import Interpreted, outside_autocast, written_inputs
from preheat.run.library import Fault
from preheat.run.undo import kept

# Sets of numbers for which one body is given to the backend; others run op by op.
MOST_GRAPHS = 8


class BackendFault(Fault):
    """The function of a backend raised: as the program will do, or else `tell` says so."""

    def __init__(self, message: str, tell: Callable[[str], None]):
        super().__init__(message)
        self._tell = tell

    def tell(self) -> None:
        self._tell(str(self))


class Outside:
    """`graph` (level aten) by `backend`. Call it with the list of its inputs; it gives its outputs.

    name         of the program, for people
    inputs       those of the first call, for which the backend compiles at once
    may_compile  whether it may be asked for other numbers: not after `preheat.seal`
    Raises BackendError where the backend raises, or gives nothing that can be called.
    """

    is_grad_off = False  # each op has the grad mode that it was recorded in

    def __init__(
        self, graph: Graph, backend: Callable, name: str, inputs: Sequence,
        may_compile: Callable[[], bool],
    ):
        self.graph, self.backend, self.name, self._may_compile = graph, backend, name, may_compile
        self.device = device_of(graph)
        self._tensors = tensor_places(graph)
        self._numbers = tuple(k for k in range(len(graph.inputs)) if k not in self._tensors)
        self._written = written_inputs(graph)
        types, symbols = graph.types(), {given for _, given in graph.symbols}
        self._types = tuple(types[value] for value in graph.outputs)
        self._is_sized = symbols.issuperset(graph.inputs[k].id for k in self._numbers)
        self._context, self._op_by_op = outside_autocast(), Interpreted(graph)
        self._functions: dict[tuple[str, ...], tuple[Callable, tuple] | None] = {}
        self._lock = threading.Lock()
        self._has_warned = False
        self._known(inputs)

    def __call__(self, inputs: Sequence) -> list:
        known = self._known(inputs)
        if known is None:
            return self._op_by_op(inputs)
        function, types = known
        try:
            # the graph may leave grad mode switched where it raises
            with self._context(), torch.set_grad_enabled(torch.is_grad_enabled()), kept(
                    [inputs[k] for k in self._written]):
                results = function(*[inputs[k] for k in self._tensors])
        except Exception as error:
            raise BackendFault(f"the function of {self._title} raised {error!r}", self._warn) from error
        return self._checked(results, types)

    def _known(self, inputs: Sequence) -> tuple[Callable, tuple] | None:
        """The function for the numbers of this call, and the types of its results; None where they run
        op by op."""
        key = tuple([_text(inputs[k]) for k in self._numbers])
        if key not in self._functions:
            with self._lock:
                if key not in self._functions:
                    if len(self._functions) >= MOST_GRAPHS or not self._may_compile():
                        emit("fallback", what=self.name, why=(
                            f"{self._title} is given no more graphs for other numbers"))
                        return None
                    self._functions[key] = self._compiled(inputs)
        return self._functions[key]

    def _compiled(self, inputs: Sequence) -> tuple[Callable, tuple] | None:
        graph, types = self.graph, self._types
        numbers = {graph.inputs[k].id: inputs[k] for k in self._numbers}
        if graph.symbols:
            values = {name: numbers[given] for name, given in graph.symbols}
            graph, types = without_types(graph, values), at(types, values)
        with timed("compile", name=self.name, kernels=0), self._context():
            try:
                module = graph_module(graph, numbers, torch.is_grad_enabled())
            except Unsupported as why:
                emit("fallback", what=f"the graph of {self.name}", why=str(why))
                return None
            examples = [_example(inputs[k], k in self._written) for k in self._tensors]
            try:
                function = self.backend(module, examples)
            except Exception as error:
                raise BackendError(
                    f"{self._title} raised {type(error).__name__} for the graph of {self.name}: {error}"
                ) from error
        if not callable(function):
            raise BackendError(
                f"{self._title} gave {function!r} for the graph of {self.name}: it has to give a "
                f"function of the graph's {len(self._tensors)} inputs, such as gm.forward")
        return function, types

    def _checked(self, results: Any, types: tuple) -> list:
        """The results as a list. Raises BackendError where they are not those of the graph."""
        if not isinstance(results, (tuple, list)) or len(results) != len(types):
            count = f"{len(results)} results" if isinstance(results, (tuple, list)) else (
                f"a {type(results).__name__}")
            raise BackendError(
                f"the function of {self._title} gave {count} for the graph of {self.name}, which has "
                f"{len(types)}: it has to give them as a tuple, as gm.forward does")
        for place, (result, said) in enumerate(zip(results, types)):
            if isinstance(said, TensorType) and not _fits(result, said, self._is_sized):
                what = f"a {type(result).__name__}"
                if isinstance(result, torch.Tensor):
                    dense = "" if result.layout is torch.strided else f"{result.layout} "
                    what = f"{dense}{result.dtype} {list(result.shape)} on {result.device}"
                raise BackendError(
                    f"the function of {self._title} gave {what} as result {place} of the graph of "
                    f"{self.name}, which is {said}")
        return list(results)

    @property
    def _title(self) -> str:
        return f"backend {name_of(self.backend)}"

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"{self.name}: {text}, where the program does not: such calls run as plain Python")


def name_of(backend: Callable) -> str:
    """What people call a backend from outside."""
    return getattr(backend, "__name__", type(backend).__name__)


def _fits(result: Any, type: TensorType, is_sized: bool) -> bool:
    """Whether a result has the dtype, the device and, if `is_sized`, the shape that the graph says. (Of
    a graph with numbers that are no sizes the axes are those of the first ones.)"""
    if not isinstance(result, torch.Tensor) or result.dtype is not dtype(type.dtype):
        return False
    if result.layout is not torch.strided or str(result.device) != type.device:
        return False
    return tuple(result.shape) == type.sizes if is_sized else result.dim() == len(type.sizes)


def _example(tensor: torch.Tensor, is_written: bool) -> torch.Tensor:
    """What a backend is shown of an input: a copy of what it could write to."""
    if not is_written:
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _text(number: int | float | bool) -> str:
    """Tells numbers apart that compare as equal: 0.0 and -0.0, 1 and True; and NaN is one."""
    return number.hex() if isinstance(number, float) else repr(number)
