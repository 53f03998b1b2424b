"""Quantiles and the elements along an axis, as C makes them of other ops: see `bridge/composites.py`.

    quantile(x, 0.3, 1)      aten.sort, the rank q * (size - 1), aten.gather of the elements around it, aten.lerp_

Source: ATen/native/Sorting.cpp (`quantile_compute`), TensorAdvancedIndexing.cpp (`take_along_dim`).
"""

from typing import Any

import torch

from preheat.bridge.ops import overload

_number, _copied, _full, _times, _minus = map(overload, (
    "aten.scalar_tensor.default", "aten._to_copy.default", "aten.full_like.default", "aten.mul.Scalar", "aten.sub.Scalar"))
_ones = overload("aten.new_ones.default")
_ASKS_RANGE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)  # whether q is within 0 and 1: older ones do
_ROUNDED = {"lower": "floor_", "higher": "ceil_", "nearest": "round_"}


def quantile(input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """input: [.., N, ..], q: [] or [Q] to [Q, ..]; where one of N is NaN, so is the result."""
    return _quantile(input, q, dim, keepdim, interpolation, False)


def nanquantile(input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """As `quantile`, of what is no NaN."""
    return _quantile(input, q, dim, keepdim, interpolation, True)


def _quantile(input: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, is_without: bool) -> Any:
    if not isinstance(q, torch.Tensor):
        if not (q >= 0 and q <= 1):  # which is asked of a symbol, too
            raise NotImplementedError("what C refuses")
        q = _number(q, dtype=input.dtype, layout=torch.strided, device=input.device)
    if _ASKS_RANGE and input.is_cpu:
        inside = q.ge(0).logical_and_(q.le(1)).all()
        torch.equal(inside, _ones(inside, (), dtype=torch.bool, layout=q.layout, device=q.device))
    ordered = _ordered(input, dim, keepdim)
    ranks = _ranks(ordered, q, is_without)
    if interpolation in _ROUNDED:
        ranks = getattr(ranks, _ROUNDED[interpolation])()
    below = _as_index(ranks)
    made = ordered.gather(-1, below)
    if interpolation in ("linear", "midpoint"):
        weights = ranks - below if interpolation == "linear" else _full(ranks, 0.5)
        made = made.lerp_(ordered.gather(-1, _as_index(ranks.ceil_())), weights)
    if q.dim() == 0:
        return made.squeeze(-1)
    return made.unsqueeze(0).transpose(0, -1).squeeze(-1)


def _ordered(input: Any, dim: int | None, keepdim: bool) -> Any:
    """The elements in order along a last axis, behind the axes of the result."""
    if dim is None:
        made, kept = input.flatten(), [1] * input.dim() * keepdim
    else:
        axis = dim % input.dim()
        made = input if axis == input.dim() - 1 else input.unsqueeze(-1).transpose(dim, -1)
        kept = [1 if k == axis else n for k, n in enumerate(input.shape) if keepdim or k != axis]
    return made.sort()[0].view([*kept, made.shape[-1]])


def _ranks(ordered: Any, q: Any, is_without: bool) -> Any:
    if is_without:
        ranks = q * _minus(ordered.isnan().logical_not_().sum([-1], True), 1)
        return ranks.masked_fill_(ranks < 0, 0)
    last = ordered.shape[-1] - 1
    ranks, missing = _times(q, last), ordered.isnan().any(-1, True)
    count = q.shape[0] if q.dim() else 1
    shape = [*missing.shape[:-1], count]
    ranks = ranks.expand(shape) if q.dim() != missing.dim() else ranks
    return ranks.masked_fill(missing.expand(shape) if q.dim() and count != 1 else missing, last)


def _as_index(ranks: Any) -> Any:
    return _copied(ranks, dtype=torch.int64, layout=torch.strided, device=ranks.device)


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """input, indices: of one rank, broadcast but for axis `dim`."""
    if dim is None:
        return input.view(-1).gather(0, indices.view(-1))
    size, own = input.shape[dim], indices.shape[dim]
    axis = dim % input.dim()
    shape = [_common(*pair) for pair in zip(input.shape, indices.shape)]
    indices = indices.expand([own if k == axis else n for k, n in enumerate(shape)])
    input = input.expand([size if k == axis else n for k, n in enumerate(shape)])
    return input.gather(dim, indices.remainder(size))


def _common(first: Any, second: Any) -> Any:
    return first if first is second or first == second or second == 1 else second
