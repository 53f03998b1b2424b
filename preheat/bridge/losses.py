"""Losses, similarities, norms and attention as C composes them, for numbers that are symbols.

    cross_entropy_loss(x, t, .., label_smoothing=v)    ->   .., mul.Scalar(smooth, v / n), mul.Scalar(nll, 1 - v), add

C takes these numbers as plain floats. Each function here is called with tensors as C sees them (`bridge/symint.Shown`),
and only ever says what the ops of a call that has really run are made of (`capture/rehearsal.py`): where it would do
anything else than C has done, the numbers are pinned.

Source: LossNLL.cpp, Loss.cpp, Distance.cpp, Normalization.cpp, transformers/attention.cpp of ATen/native.
"""

from collections.abc import Callable
from typing import Any

import torch

from preheat.bridge.composed import divide, plus, times
from preheat.bridge.ops import overload, private
from preheat.bridge.orders import nanquantile, quantile

_NONE, _MEAN = 0, 1  # of at::Reduction
_norm, _vector_norm = overload("aten.norm.ScalarOpt_dim"), overload("aten.linalg_vector_norm.default")
_zeros_like, _empty_like = overload("aten.zeros_like.default"), overload("aten.empty_like.default")
_number, _empty = overload("aten.scalar_tensor.default"), overload("aten.empty.memory_format")


def _reduced(loss: Any, reduction: int) -> Any:
    return loss if reduction == _NONE else loss.mean() if reduction == _MEAN else loss.sum()


def _like(like: Any, number: Any) -> Any:
    return _empty_like(like, memory_format=torch.preserve_format).fill_(number)


def cross_entropy(
    input: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignore_index: int = -100,
    label_smoothing: Any = 0.0,
) -> Any:
    """input: [N, C, ..], target: [N, ..] of classes or as input of probabilities, weight: [C]."""
    axis = min(1, input.dim() - 1)
    logs = torch.log_softmax(input, axis, dtype=input.dtype)
    count = input.shape[axis]
    along = None
    if target.is_floating_point():
        wanted = plus(times(target, 1 - label_smoothing), label_smoothing / count)
        if weight is not None:
            along = _along(weight, axis, input.dim())
        parts = logs * wanted if along is None else logs * wanted * along
        if reduction == _NONE:
            return -parts.sum(axis)
        made = -parts.sum()
        return divide(made, input.numel() // count) if reduction == _MEAN else made
    own = _nll(logs, target, weight, reduction, ignore_index)
    if weight is not None:
        along = _along(weight, axis, input.dim())
    smooth = -(logs if along is None else logs * along).sum(axis)
    is_ignored = target.eq(ignore_index)
    smooth.masked_fill_(is_ignored, 0.0)
    if reduction == _MEAN and weight is None:
        counted = is_ignored.bitwise_not().sum()
        smooth = smooth.sum() / counted
    elif reduction == _MEAN:
        taken = weight.gather(0, target.masked_fill(is_ignored, 0).flatten())
        total = taken.masked_fill_(is_ignored.flatten(), 0).sum()
        smooth = smooth.sum() / total
    elif reduction != _NONE:
        smooth = smooth.sum()
    smooth = times(smooth, label_smoothing / count)  # C computes its last argument first
    return times(own, 1 - label_smoothing) + smooth


def _along(weight: Any, axis: int, rank: int) -> Any:
    return weight.view([weight.shape[0] if k == axis else 1 for k in range(rank)])


def margin_ranking(input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = _MEAN) -> Any:
    between = input1 - input2
    return _reduced(plus(-target * between, margin).clamp_min_(0), reduction)


def hinge_embedding(input: Any, target: Any, margin: Any = 1.0, reduction: int = _MEAN) -> Any:
    zeros = _zeros_like(input, memory_format=torch.contiguous_format)
    apart = _like(input, margin).sub_(input).clamp_min_(0)
    first = torch.where(target.ne(1), apart, zeros)
    return _reduced(first + torch.where(target.ne(-1), input, zeros), reduction)


def cosine_embedding(input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = _MEAN) -> Any:
    """input1, input2: [N, D], target: [N]."""
    tiny = 9.999999960041972e-13
    product = (input1 * input2).sum(1)
    first = plus((input1 * input1).sum(1), tiny)
    second = plus((input2 * input2).sum(1), tiny)
    cosine = product / (first * second).sqrt_()
    zeros = _zeros_like(cosine, memory_format=torch.contiguous_format)
    alike = _like(cosine, 1).sub_(cosine)
    apart = overload("aten.sub.Scalar")(cosine, margin).clamp_min_(0)
    first = torch.where(target.eq(1), alike, zeros)
    return _reduced(first + torch.where(target.eq(-1), apart, zeros), reduction)


def triplet_margin(
    anchor: Any, positive: Any, negative: Any, margin: Any = 1.0, p: float = 2.0, eps: Any = 1e-6,
    swap: bool = False, reduction: int = _MEAN,
) -> Any:
    near, far = pairwise(anchor, positive, p, eps), pairwise(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, pairwise(positive, negative, p, eps))
    return _reduced((plus(near, margin) - far).clamp_min(0), reduction)


def poisson_nll(input: Any, target: Any, log_input: bool, full: bool, eps: Any, reduction: int) -> Any:
    loss = input - target * plus(input, eps).log()
    return _reduced(loss, reduction)


def pairwise(x1: Any, x2: Any, p: float = 2.0, eps: Any = 1e-6, keepdim: bool = False) -> Any:
    between = plus(x1 - x2, eps)
    return _norm(between, float(p), [between.dim() - 1], keepdim)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: Any = 1e-8) -> Any:
    """x1, x2: of one shape and dtype."""
    first = _vector_norm(x1, 2, [dim], True).clone()
    second = _vector_norm(x2, 2, [dim], True).clone()
    least = _number(eps, dtype=first.dtype, device=first.device)
    with torch.no_grad():
        first.clamp_min_(least)
        second.clamp_min_(least)
    second = x2 / second  # C computes its last argument first
    return ((x1 / first) * second).sum(dim)


def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: None, running_var: None, use_input_stats: bool, momentum: Any,
    eps: Any, cudnn_enabled: bool,
) -> Any:
    """Without running statistics: a batch norm of one image with all channels."""
    batch, channels, *rest = input.shape
    weight, bias = (None if line is None else line.repeat(batch) for line in (weight, bias))
    made = batch_norm(
        input.contiguous().view([1, batch * channels, *rest]), weight, bias, None, None, True, momentum, eps, cudnn_enabled)
    return made.view(input.shape)


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any,
    cudnn_enabled: bool,
) -> Any:
    _empty([0], dtype=torch.uint8, layout=torch.strided, device=input.device)  # what cuDNN would reserve
    return overload("preheat.given_native_batch_norm.default")(
        input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:
    """The one op that C takes on a CPU for four axes, without dropout."""
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        least = _number(-float("inf"), dtype=query.dtype, device=attn_mask.device)
        none = _number(0.0, dtype=query.dtype, layout=torch.strided, device=attn_mask.device)
        attn_mask = torch.where(attn_mask, none, least)
    return overload("preheat.given__scaled_dot_product_flash_attention_for_cpu.default")(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def float_power(self: Any, exponent: Any) -> Any:
    return overload("aten.pow.Tensor_Scalar")(self.to(torch.float64), exponent)


def pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return overload("aten.constant_pad_nd.default")(input, pad, value)


_nll = private("_C._nn.nll_loss_nd")
# Of each function: what says what C does, which numbers may be symbols, and between what these have to be.
COMPOSED: dict[Any, tuple[Callable, tuple[str, ...], float | None, float | None]] = {
    private("_C._nn.cross_entropy_loss"): (cross_entropy, ("label_smoothing",), 0.0, 1.0),
    torch.margin_ranking_loss: (margin_ranking, ("margin",), None, None),
    torch.hinge_embedding_loss: (hinge_embedding, ("margin",), None, None),
    torch.cosine_embedding_loss: (cosine_embedding, ("margin",), None, None),
    torch.triplet_margin_loss: (triplet_margin, ("margin", "eps"), 0.0, None),
    torch.poisson_nll_loss: (poisson_nll, ("eps",), None, None),
    torch.pairwise_distance: (pairwise, ("eps",), None, None),
    torch.cosine_similarity: (cosine_similarity, ("eps",), None, None),
    torch.instance_norm: (instance_norm, ("momentum", "eps"), 0.0, None),
    private("_C._nn.scaled_dot_product_attention"): (attention, ("scale",), 0.0, None),
    torch.float_power: (float_power, ("exponent",), None, None),
    torch.quantile: (quantile, ("q",), None, None),
    torch.nanquantile: (nanquantile, ("q",), None, None),
    private("_C._nn.pad"): (pad, ("value",), None, None),
}
