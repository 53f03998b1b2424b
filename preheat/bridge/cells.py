"""Recurrent cells and layers of a CPU, as C makes them of ops where it takes no symbolic sizes.

    gru_cell(x, h, w_ih, w_hh, ...)    two linear layers, aten.unsafe_split of each, elementwise ops
    lstm(x, (h, c), weights, ...)      aten.mkldnn_rnn_layer for each layer and direction, or a cell a step

See `bridge/composites.py` for what these functions are for. Where a layer is a cell a step its length is pinned, for
its steps are ops of the graph.

Source: ATen/native/RNN.cpp, `mkldnn_rnn` of ATen/native/mkldnn/RNN.cpp.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from preheat.bridge.ops import overload, private

_linear, _lstm_of_mkldnn = torch.nn.functional.linear, 2
_split = overload("aten.unsafe_split.Tensor")
_layer = private("ops.aten.mkldnn_rnn_layer.default")


def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """input: [B, I], hx: [B, H], w_ih: [3 * H, I], w_hh: [3 * H, H] to [B, H]."""
    return _gru_step(_linear(input, w_ih, b_ih), hx, (w_hh, b_hh))


def _gru_step(gates: Any, hidden: Any, weights: Sequence[Any]) -> Any:
    w_hh, b_hh = weights
    inputs = _gates(gates, 3)
    reset, update, new = _gates(_linear(hidden, w_hh, b_hh), 3)
    reset = reset.add_(inputs[0]).sigmoid_()
    update = update.add_(inputs[1]).sigmoid_()
    new = inputs[2].add(new.mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new)


def lstm_cell(input: Any, hx: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """input: [B, I], hx: two of [B, H], w_ih: [4 * H, I], w_hh: [4 * H, H] to two of [B, H]."""
    gates = _linear(hx[0], w_hh, b_hh)
    return _lstm_outputs(gates.add_(_linear(input, w_ih, b_ih)), hx[1], None)


def _lstm_step(gates: Any, state: Sequence[Any], weights: Sequence[Any]) -> tuple:
    w_hh, b_hh, *projection = weights
    return _lstm_outputs(_linear(state[0], w_hh, b_hh).add_(gates), state[1], *(projection or [None]))


def _lstm_outputs(gates: Any, cell: Any, projection: Any) -> tuple:
    enter, forget, new, leave = _gates(gates, 4)
    enter, forget, new, leave = enter.sigmoid_(), forget.sigmoid_(), new.tanh_(), leave.sigmoid_()
    cell = forget.mul(cell).add_(enter.mul(new))
    hidden = leave.mul(cell.tanh())
    return (hidden if projection is None else torch.matmul(hidden, projection.t())), cell


def _gates(tensor: Any, count: int) -> Sequence[Any]:
    return _split(tensor, tensor.shape[1] // count, 1)


# ---------------------------------------------------------------------------- layers
def gru(
    input: Any, hx: Any, params: Sequence[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple:
    """input: [T, B, I], hx: [layers * directions, B, H] to [T, B, H * directions] and the last hidden states."""
    if batch_first:
        input = input.transpose(0, 1)
    made, states = _stacked(
        _gru_step, lambda state: state, input, hx.unbind(0), _by_layer(params, 4 if has_biases else 2), num_layers,
        dropout if train else 0, bidirectional)
    last = torch.stack(states, 0)
    return made.transpose(0, 1) if batch_first else made, last


def lstm(
    input: Any, hx: Sequence[Any], params: Sequence[Any], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple:
    """As `gru`; hx: hidden states and cells."""
    is_projected = len(params) % 5 == 0 and has_biases or len(params) % 3 == 0 and not has_biases
    count = (4 if has_biases else 2) + is_projected
    if not is_projected and has_biases and is_of_mkldnn(input):
        return _lstm_by_layers(
            input, hx, _by_layer(params, count), num_layers, dropout, train, bidirectional, batch_first)
    if batch_first:
        input = input.transpose(0, 1)
    made, states = _stacked(
        _lstm_step, lambda state: state[0], input, list(zip(hx[0].unbind(0), hx[1].unbind(0))),
        _by_layer(params, count), num_layers, dropout if train else 0, bidirectional)
    cells = torch.stack([cell for _, cell in states], 0)  # C puts the cells together first
    hidden = torch.stack([state for state, _ in states], 0)
    return made.transpose(0, 1) if batch_first else made, hidden, cells


def _by_layer(params: Sequence[Any], count: int) -> list[Sequence[Any]]:
    return [params[k:k + count] for k in range(0, len(params), count)]


def _stacked(
    step: Callable, output_of: Callable, input: Any, states: Sequence[Any], weights: Sequence[Sequence[Any]],
    num_layers: int, dropout: float, bidirectional: bool,
) -> tuple[Any, list[Any]]:
    """A cell a step, layer by layer: the outputs of the last one, and the last states of all."""
    last, directions = [], 2 if bidirectional else 1
    for layer in range(num_layers):
        outputs = []
        for turn in range(directions):
            place = layer * directions + turn
            made, state = _one_way(step, output_of, input, states[place], weights[place], turn == 1)
            outputs.append(made)
            last.append(state)
        input = torch.cat(outputs, outputs[0].dim() - 1) if bidirectional else outputs[0]
        if dropout and layer < num_layers - 1:
            input = torch.dropout(input, dropout, True)
    return input, last


def _one_way(
    step: Callable, output_of: Callable, input: Any, state: Any, weights: Sequence[Any], is_reverse: bool,
) -> tuple[Any, Any]:
    w_ih, w_hh, *others = weights
    b_ih, b_hh, *projection = others if len(others) > 1 else (None, None, *others)
    gates, made = list(_linear(input, w_ih, b_ih).unbind(0)), []
    for one in reversed(gates) if is_reverse else gates:
        state = step(one, state, (w_hh, b_hh, *projection))
        made.append(output_of(state))
    return torch.stack(made[::-1] if is_reverse else made, 0), state


def is_of_mkldnn(input: Any) -> bool:
    """Whether C has one op for a layer."""
    is_wanted = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return is_wanted and _layer is not None and input.dtype is torch.float32


def _lstm_by_layers(
    input: Any, hx: Sequence[Any], weights: Sequence[Sequence[Any]], num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple:
    input = (input.transpose(0, 1) if batch_first else input).contiguous()
    hidden, cells = (state.contiguous() for state in hx)
    width, directions, hy, cy = hidden.shape[2], 2 if bidirectional else 1, [], []
    for layer in range(num_layers):
        outputs = []
        for turn in range(directions):
            place = layer * directions + turn
            made = _layer(
                input, *weights[place], hidden[place], cells[place], turn == 1, [], _lstm_of_mkldnn, width,
                num_layers, True, bidirectional, batch_first, train)
            for kept, part in zip((outputs, hy, cy), made):
                kept.append(part)
        input = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            input = torch.dropout(input, dropout, True)
    last = torch.stack(hy, 0), torch.stack(cy, 0)
    return input.transpose(0, 1) if batch_first else input, *last


CELLS: dict[Any, Callable] = {
    torch.gru_cell: gru_cell, torch.lstm_cell: lstm_cell, torch.gru: gru, torch.lstm: lstm,
}
"""What does the same as a function of torch that makes recurrent layers."""
