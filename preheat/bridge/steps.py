"""Recurrent layers of a CPU as one operator of ours, where the number of their steps changes.

    steps("gru", input, [h], weights, ...)                      ->  [output, last states]
    steps_backward("gru", [gradients], input, [h], weights, ..) ->  [those of the input, the states and the weights]

Of such a layer eager makes ops for each step, which would be a graph for each length. The operator makes them on each
call, by torch itself, and so does its derivative, which computes the layer once more. Layers that drop out between
them are one operator each, and what drops out is ops of the graph: the same numbers are drawn, in the same order.

Source: `apply_layer_stack` of ATen/native/RNN.cpp.
"""

from collections.abc import Sequence
from typing import Any

import torch

from preheat.bridge.cells import is_of_mkldnn
from preheat.bridge.composed import below_autograd, can_come_back, with_autograd
from preheat.bridge.operators import Operator
from preheat.bridge.ops import overload
from preheat.bridge.symint import is_safe
from preheat.ir.scalar import Dim, Scalar

_KINDS = {getattr(torch, kind): kind for kind in ("gru", "rnn_tanh", "rnn_relu", "lstm")}
_Tensor = torch.Tensor


def whole_layer(function: Any, args: tuple, sizes: Sequence[Dim]) -> tuple[Any, tuple] | None:
    """What calls the operator, and its arguments, of a call of a recurrent layer of an input of `sizes`; None where its steps are
    known, of another call, and of one that the operator is not for."""
    kind = _KINDS.get(function) if type(function) is _BUILTIN else None
    if kind is None or len(args) != 9 or type(args[3]) is not bool or len(sizes) != 3:
        return None
    input, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
    states = [states] if isinstance(states, _Tensor) else list(states)
    is_trained = not is_safe(input, states, weights)
    is_projected = kind == "lstm" and states[0].shape[2] != states[1].shape[2]
    is_by_layers = kind == "lstm" and is_of_mkldnn(input) and not is_projected
    moving = [isinstance(n, Scalar) for n in sizes]
    is_asked = any(moving) if is_by_layers else moving[1 if batch_first else 0]
    if not is_asked or not input.is_cpu or torch.is_autocast_enabled("cpu"):
        return None
    if not can_come_back if is_trained else is_by_layers and has_biases:
        return None
    if dropout and train and num_layers > 1:
        per_layer = (2 + 2 * has_biases + is_projected) * (1 + bidirectional)
        return _one_by_one, (
            kind, input, states, list(weights), per_layer, has_biases, num_layers, dropout, bidirectional, batch_first)
    return _as_tuple, (kind, input, states, list(weights), has_biases, num_layers, train, bidirectional, batch_first)


def _as_tuple(*args: Any) -> tuple:
    return tuple(overload("preheat.steps.default")(*args))


def _one_by_one(
    kind: str, input: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor], per_layer: int, has_biases: bool,
    num_layers: int, dropout: float, bidirectional: bool, batch_first: bool,
) -> tuple:
    """The layers with dropout between them, as C has it: [T, B, ...] from the first on."""
    x, last, ways = input.transpose(0, 1) if batch_first else input, [], 1 + bidirectional
    for layer in range(num_layers):
        own = [state.narrow(0, layer * ways, ways) for state in states]
        given = weights[layer * per_layer:(layer + 1) * per_layer]
        x, *ends = _as_tuple(kind, x, own, given, has_biases, 1, True, bidirectional, False)
        last.append(ends)
        if layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(ends) for ends in zip(*last)))


def _known_to_autograd(
    kind: str, input: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor], *rest: Any,
) -> list[_Tensor]:
    tensors = (input, *states, *weights)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_Steps.apply(kind, rest, len(states), *tensors))
    with below_autograd():
        return overload("preheat.steps.default")(kind, input, states, weights, *rest)


class _Steps(torch.autograd.Function):
    """The operator and its derivative, which is differentiable as often as torch's own."""

    @staticmethod
    def forward(ctx: Any, kind: str, rest: tuple, count: int, input: _Tensor, *others: _Tensor) -> tuple:
        ctx.save_for_backward(input, *others)
        ctx.set_materialize_grads(False)
        ctx.call = kind, rest, count
        with torch.set_grad_enabled(any(ctx.needs_input_grad)), below_autograd():
            return tuple(overload("preheat.steps.default")(kind, input, list(others[:count]), list(others[count:]), *rest))

    @staticmethod
    def backward(ctx: Any, *grads: _Tensor | None) -> tuple:
        kind, rest, count = ctx.call
        input, *others = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[3:])
        args = kind, list(grads), input, others[:count], others[count:], *rest, wanted
        made = _differentiated(*args, True) if torch.is_grad_enabled() else overload("preheat.steps_backward.default")(*args)
        found = iter(made)
        return None, None, None, *(next(found) if is_wanted else None for is_wanted in wanted)


def _steps(
    kind: str, input: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor], has_biases: bool,
    num_layers: int, train: bool, bidirectional: bool, batch_first: bool,
) -> list[_Tensor]:
    hidden = states if kind == "lstm" else states[0]
    made = getattr(torch, kind)(
        input, hidden, weights, has_biases, num_layers, 0.0, train, bidirectional, batch_first)
    return list(made)


def _steps_backward(*args: Any) -> list[_Tensor]:
    with with_autograd():
        return _differentiated(*args, False)


def _differentiated(
    kind: str, grads: Sequence[_Tensor | None], input: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor],
    has_biases: bool, num_layers: int, train: bool, bidirectional: bool, batch_first: bool, wanted: Sequence[bool],
    is_kept: bool,
) -> list[_Tensor]:
    """The gradients of the tensors that are `wanted`, those that nothing reaches as zeros."""
    tensors = [input, *states, *weights]
    if not is_kept:
        tensors = [t.detach().requires_grad_(is_wanted) for t, is_wanted in zip(tensors, wanted)]
    count = 1 + len(states)
    made = _steps(
        kind, tensors[0], tensors[1:count], tensors[count:], has_biases, num_layers, train, bidirectional, batch_first)
    given = [k for k, grad in enumerate(grads) if grad is not None]
    leaves = [t for t, is_wanted in zip(tensors, wanted) if is_wanted]
    found = torch.autograd.grad(
        [made[k] for k in given], leaves, [grads[k] for k in given], create_graph=is_kept, allow_unused=True)
    return [torch.zeros_like(t) if grad is None else grad for t, grad in zip(leaves, found)]


_TENSORS = "Tensor input, Tensor[] states, Tensor[] weights"
_FACTS = "bool has_biases, int num_layers, bool train, bool bidirectional, bool batch_first"
OPERATORS = {
    "preheat.steps.default": lambda: Operator(
        f"steps(str kind, {_TENSORS}, {_FACTS}) -> Tensor[]", _steps,
        autograd=_known_to_autograd if can_come_back else None),
    "preheat.steps_backward.default": lambda: Operator(
        f"steps_backward(str kind, Tensor?[] grads, {_TENSORS}, {_FACTS}, bool[] wanted) -> Tensor[]", _steps_backward),
}
_BUILTIN = type(torch.gru)
