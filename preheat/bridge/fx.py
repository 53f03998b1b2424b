"""Graphs for backends from outside: a recorded graph as a `torch.fx.GraphModule`, and torch.compile's backends by name.

    graph aten (%0: f32[4] "x", %1: f32[4] "self.weight"):      def forward(self, x_0, self_weight_1):
        %2: f32[4] = aten.mul.Tensor(%0, %1)            ->          mul = torch.ops.aten.mul.Tensor(x_0, self_weight_1)
        return %2                                                   return (mul,)

Ops are ATen overloads as recorded, writes and views among them, composites decomposed by torch; they
run under autograd. Nothing here imports torch's compiler; torch does, where a program asks `registered` for a
backend by a name that is not Preheat's.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from preheat.base.errors import Unsupported, UserError, nearest
from preheat.base.options import BACKENDS
from preheat.bridge.ops import constant, overload, private
from preheat.ir.graph import Arg, Graph, Op, Ref, Token
from preheat.ir.types import TensorType

# What Dynamo's graphs have where grad mode changes; passes know it as an effect.
_SET_GRAD = private("_C._set_grad_enabled") or torch.set_grad_enabled
# What torch.compile makes of a backend's name: it has the backend as `compiler_fn`.
_NAMED = private("_TorchCompileWrapper")


def registered(name: str) -> Callable:
    """The backend that torch.compile knows by `name`. Torch imports its compiler for it, which takes seconds.

    Raises UserError for an unknown one, naming the nearest, and where torch gives none by its name.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise UserError(f"unknown backend {name!r}: {nearest(name, (*BACKENDS, *known))}")
    backend = getattr(_NAMED and _NAMED(name, None, None, None), "compiler_fn", None)
    if not callable(backend):
        raise UserError(
            f"torch {torch.__version__} gives no backend by its name: pass the one that {name!r} names, "
            "a function of (gm, example_inputs)")
    return backend


def graph_module(
    graph: Graph, numbers: Mapping[int, int | float | bool], is_grad_enabled: bool,
) -> torch.fx.GraphModule:
    """`graph` (level aten, without symbols) as a module of its tensor inputs, in order, that gives
    the tuple of its outputs.

    numbers          its inputs that are numbers, by value, as constants
    is_grad_enabled  grad mode around the call; where ops ran in the other mode, the graph switches it
    Raises Unsupported for ops with regions, and for those that give several lists of tensors.
    """
    made = torch.fx.Graph()
    values: dict[int, Any] = dict(numbers)
    for place, given in enumerate(graph.inputs):
        if given.id not in values:
            name = re.sub(r"^[\W\d]+|\W+$", "", given.name) or "arg"
            values[given.id] = made.placeholder(re.sub(r"\W+", "_", f"{name}_{place}"))
    mode = is_grad_enabled
    for op in graph.ops:
        if op.is_grad_enabled is not mode:
            mode = op.is_grad_enabled
            made.call_function(_SET_GRAD, (mode,))
        _add(made, op, values)
    if mode is not is_grad_enabled:
        made.call_function(_SET_GRAD, (is_grad_enabled,))
    made.output(tuple(values[value] for value in graph.outputs))
    module = torch.fx.GraphModule(torch.nn.Module(), made)
    made.lint()
    return module


def _add(made: torch.fx.Graph, op: Op, values: dict[int, Any]) -> None:
    if op.regions:
        raise Unsupported("higher_order_op", op.name)
    function = overload(op.name)
    node = made.call_function(
        function, tuple(_argument(arg, values) for arg in op.args),
        {name: _argument(arg, values) for name, arg in op.attrs})
    for result, path in zip(op.results, _paths(op, function), strict=True):
        if result == -1:
            continue
        found = node
        for key in path:
            found = made.call_function(operator.getitem, (found, key))
        values[result] = found


def _paths(op: Op, function: Any) -> list[tuple[int, ...]]:
    """Where each of the op's results, lists flattened, is in what the call gives."""
    returns = function._schema.returns
    lists = [isinstance(each.type, torch.ListType) for each in returns]
    if sum(lists) > 1:
        raise Unsupported("no_kernel", f"{op.name} gives several lists of tensors")
    if not returns:
        return []
    inside = len(op.results) - (len(returns) - 1)
    paths: list[tuple[int, ...]] = []
    for place, is_list in enumerate(lists):
        outer = (place,) if len(returns) > 1 else ()
        paths += [(*outer, k) for k in range(inside)] if is_list else [outer]
    return paths


def _argument(arg: Arg, values: Mapping[int, Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.id]
    if isinstance(arg, Token):
        return constant(arg)
    if isinstance(arg, tuple):
        return [_argument(part, values) for part in arg]
    return arg


def tensor_places(graph: Graph) -> tuple[int, ...]:
    """The places of the inputs that are tensors: the arguments of the module."""
    return tuple(k for k, given in enumerate(graph.inputs) if isinstance(given.type, TensorType))
