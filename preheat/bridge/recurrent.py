"""Recurrent networks of cuDNN as two operators of ours, without the buffer that eager lays weights into.

    recurrent(input, weights, 4, hx, cx, mode, ...)                   -> output, hy, cy, reserve
    recurrent_backward(input, weights, 4, hx, cx, output, ...)        -> [dx, dhx, dcx, *gradients of the weights]

On each call eager asks cuDNN how weights lie in its buffer, looks whether they do (`flatten_parameters` has
laid them out), and gives it their storage as one tensor, by `Tensor.set_`. That is no op of a graph: what it gives
hangs on the addresses of the weights. Here each call asks and looks, too; how cuDNN lays out weights of these sizes
is asked once a process, with weights that are thrown away.

The forward is a composite, so autograd goes through torch's own operator. The backward is what autograd's formula
calls; it copies the reserve, which cuDNN overwrites. Source: aten/src/ATen/native/cudnn/RNN.cpp, torch 2.11.
"""

import functools
from collections.abc import Sequence

import torch

from preheat.bridge.operators import Operator

_TAIL = (
    "int mode, SymInt hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, "
    "bool bidirectional, SymInt[] batch_sizes")
_Tensor = torch.Tensor
_aten = torch.ops.aten


def _recurrent(
    input: _Tensor, weight: Sequence[_Tensor], weight_stride0: int, hx: _Tensor, cx: _Tensor | None, mode: int,
    hidden_size: int, proj_size: int, num_layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: Sequence[int],
) -> tuple[_Tensor, ...]:
    buffer = _storage(weight, _layout(
        weight, weight_stride0, mode, hidden_size, proj_size, num_layers, batch_first, bidirectional))
    return _aten._cudnn_rnn.default(
        input, weight, weight_stride0, buffer, hx, cx, mode, hidden_size, proj_size, num_layers, batch_first,
        dropout, train, bidirectional, batch_sizes, None)[:4]


def _recurrent_backward(
    input: _Tensor, weight: Sequence[_Tensor], weight_stride0: int, hx: _Tensor, cx: _Tensor | None,
    output: _Tensor, grad_output: _Tensor | None, grad_hy: _Tensor | None, grad_cy: _Tensor | None, mode: int,
    hidden_size: int, proj_size: int, num_layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: Sequence[int], reserve: _Tensor, output_mask: Sequence[bool],
) -> list[_Tensor]:
    layout = _layout(
        weight, weight_stride0, mode, hidden_size, proj_size, num_layers, batch_first, bidirectional)
    buffer = _storage(weight, layout)
    made = _aten._cudnn_rnn_backward.default(
        input, weight, weight_stride0, _compact(weight, layout) if buffer is None else buffer, hx, cx, output,
        grad_output, grad_hy, grad_cy, mode, hidden_size, proj_size, num_layers, batch_first, dropout, train,
        bidirectional, batch_sizes, None, reserve.clone(), output_mask)
    return [input.new_empty(0) if one is None else one for one in (*made[:3], *made[3])]


OPERATORS = {
    "preheat.recurrent.default": lambda: Operator(
        f"recurrent(Tensor input, Tensor[] weight, int weight_stride0, Tensor hx, Tensor? cx, {_TAIL}) "
        "-> (Tensor, Tensor, Tensor, Tensor)", _recurrent, "CompositeImplicitAutograd"),
    "preheat.recurrent_backward.default": lambda: Operator(
        "recurrent_backward(Tensor input, Tensor[] weight, int weight_stride0, Tensor hx, Tensor? cx, Tensor output, "
        f"Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, {_TAIL}, Tensor reserve, bool[4] output_mask) "
        "-> Tensor[]", _recurrent_backward),
}


# ---------------------------------------------------------------------------- where weights lie
def _layout(
    weight: Sequence[_Tensor], stride0: int, mode: int, hidden: int, proj: int, layers: int, first: bool,
    both: bool,
) -> tuple[int, tuple[int, ...]]:
    """The elements of cuDNN's buffer, and where in it each of the weights lies."""
    like = weight[0]
    return _asked(
        tuple(tuple(w.shape) for w in weight), like.dtype, like.device, stride0, mode, hidden, proj, layers, first,
        both)


@functools.cache
def _asked(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, device: torch.device, stride0: int, mode: int,
    hidden: int, proj: int, layers: int, first: bool, both: bool,
) -> tuple[int, tuple[int, ...]]:
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        weights = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        buffer = _aten._cudnn_rnn_flatten_weight.default(
            weights, stride0, shapes[0][1], mode, hidden, proj, layers, first, both)
        begin = buffer.data_ptr()
        return buffer.numel(), tuple(
            (weight.data_ptr() - begin) // weight.element_size() for weight in weights)


def _storage(weight: Sequence[_Tensor], layout: tuple[int, tuple[int, ...]]) -> _Tensor | None:
    """The storage of the weights, if they lie in it as cuDNN wants, as eager gives it to cuDNN."""
    count, places = layout
    first = weight[0].detach()
    storage = first.untyped_storage()
    size, begin = first.element_size(), storage.data_ptr()
    if storage.nbytes() < count * size or any(
            w.data_ptr() != begin + place * size for w, place in zip(weight, places)):
        return None
    buffer = torch.empty(0, dtype=first.dtype, device=first.device).set_(storage)
    return buffer if buffer.numel() == count else buffer.narrow(0, 0, count)


def _compact(weight: Sequence[_Tensor], layout: tuple[int, tuple[int, ...]]) -> _Tensor:
    """The weights, laid out as cuDNN wants."""
    count, places = layout
    buffer = weight[0].new_zeros(count)
    for one, place in zip(weight, places):
        buffer[place:place + one.numel()].copy_(one.reshape(-1))
    return buffer
