"""Recurrent layers of a CPU as one operator of ours, where the number of their steps changes.

    steps("gru", input, [h], weights, ...)  ->  [output, last states]

Of such a layer eager makes ops for each step, which would be a graph for each length. The operator makes them on each
call, by torch itself. It has no derivative: it stands only where nothing asks for one, and for no layer that drops out.
"""

from collections.abc import Sequence
from typing import Any

import torch

from preheat.bridge.cells import is_of_mkldnn
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
    is_known = not isinstance(sizes[1 if batch_first else 0], Scalar)
    if is_known or not input.is_cpu or dropout and train or not is_safe(input, states, weights):
        return None
    is_projected = kind == "lstm" and states[0].shape[2] != states[1].shape[2]
    if kind == "lstm" and is_of_mkldnn(input) and not is_projected or torch.is_autocast_enabled("cpu"):
        return None
    return _as_tuple, (kind, input, states, list(weights), has_biases, num_layers, bidirectional, batch_first)


def _as_tuple(*args: Any) -> tuple:
    return tuple(overload("preheat.steps.default")(*args))


def _steps(
    kind: str, input: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor], has_biases: bool,
    num_layers: int, bidirectional: bool, batch_first: bool,
) -> list[_Tensor]:
    hidden = states if kind == "lstm" else states[0]
    made = getattr(torch, kind)(
        input, hidden, weights, has_biases, num_layers, 0.0, False, bidirectional, batch_first)
    return list(made)


OPERATORS = {
    "preheat.steps.default": lambda: Operator(
        "steps(str kind, Tensor input, Tensor[] states, Tensor[] weights, bool has_biases, int num_layers, "
        "bool bidirectional, bool batch_first) -> Tensor[]", _steps),
}
_BUILTIN = type(torch.gru)
