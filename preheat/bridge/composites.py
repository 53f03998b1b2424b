"""What torch makes of other ops in C code that takes no symbolic sizes, spelled out: norms, Kronecker products,
covariances. (Recurrent layers: `bridge/cells.py`.)

    rms_norm(x, (8,), weight, 1e-5)    aten.pow, aten.mean, aten.add_, aten.rsqrt, aten.mul, aten.mul

Each is called with tensors as C sees them (`bridge/symint.Shown`), and only ever says what the ops of a call that has
really run are made of (`capture/rehearsal.py`): where it would do anything else than C has done, sizes are pinned.

Source: `rms_norm_composite` of ATen/native/layer_norm.cpp, `KronImpl` of LinearAlgebra.cpp, Correlation.cpp.
"""

import operator
import struct
from collections.abc import Callable
from typing import Any

import torch

from preheat.bridge.cells import CELLS
from preheat.bridge.ops import overload, private
from preheat.bridge.composed import unsafe_view
from preheat.bridge.orders import nanquantile, quantile, take_along_dim

_add, _number, _ones = map(overload, ("aten.add_.Scalar", "aten.scalar_tensor.default", "aten.new_ones.default"))
_split, _split_with_sizes = map(overload, ("aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default"))
_singular, _zeros = map(overload, ("aten._linalg_svd.default", "aten.zeros.default"))
_full = overload("aten.full.default")
_fft, _rfft = map(overload, ("aten._fft_c2c.default", "aten._fft_r2c.default"))
_fused = private("ops.aten._fused_rms_norm.default")


def spelled_composite(function: Any, args: tuple, kwargs: dict = {}) -> Callable | None:
    """What does the same as `function` of torch, or a method of a tensor's class, in other ops; None for any other.
    Recurrent layers are spelled out on a CPU only: a GPU has an op for each; of norms those of singular values."""
    made = _COMPOSITES.get(function) if type(function) in _KINDS else None
    if made in (matrix_norm, norm) and kwargs.get("ord", args[1] if len(args) > 1 else None) not in (2, -2):
        return None
    is_elsewhere = made is not None and function in CELLS and args and isinstance(args[0], torch.Tensor) and not args[0].is_cpu
    return None if is_elsewhere else made


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """input: [.., *normalized_shape], weight: [*normalized_shape], eps: that of the type it is computed in."""
    shapes = [tuple(input.shape)[-len(normalized_shape):]] + ([] if weight is None else [tuple(weight.shape)])
    if any(len(s) != len(normalized_shape) or any(map(operator.ne, s, normalized_shape)) for s in shapes):
        raise NotImplementedError("what C refuses")
    if input.device.type == "cuda":  # which has one op for it
        return _fused(input, normalized_shape, weight, eps)[0]
    is_half = input.dtype in (torch.float16, torch.bfloat16)
    x = input.to(torch.float32) if is_half else input
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if x.dtype is not torch.float64:
        (eps,) = struct.unpack("f", struct.pack("f", eps))
    axes = [x.dim() - k - 1 for k in range(len(normalized_shape))]
    made = x.mul(_add(x.pow(2).mean(axes, True), eps).rsqrt())
    made = made if weight is None else made.mul(weight)
    return (made.type_as(input) if is_half else made).contiguous()


def kron(input: Any, other: Any) -> Any:
    """[M.., ] and [N.., ], the one of fewer axes with axes of one element before: [M * N ..]."""
    rank = max(input.dim(), other.dim())
    first, second = ((1,) * (rank - x.dim()) + tuple(x.shape) for x in (input, other))
    spread = unsafe_view(input, [n for size in first for n in (size, 1)])
    made = spread.mul(unsafe_view(other, [n for size in second for n in (1, size)]))
    return unsafe_view(made, [m * n for m, n in zip(first, second)])


def cov(input: Any, *, correction: int = 1, fweights: None = None, aweights: None = None) -> Any:
    """input: [variables, observations], or of one variable. Without weights."""
    if fweights is not None or aweights is not None:
        raise NotImplementedError("weights")
    x = input.view(1, -1) if input.dim() < 2 else input
    count, like = x.shape[1], {"dtype": torch.int64, "layout": x.layout, "device": x.device}
    total = _number(count, **like)
    average = x.sum(1).div(total)
    freedom = _number(count - correction, **like)
    test = freedom.le(0)
    torch.equal(test, _ones(test, (), **like | {"dtype": torch.bool}))  # C asks the tensor ...
    if count - correction <= 0:  # ... and this is what it asks
        freedom.zero_()
    x = x.sub(average.unsqueeze(1))
    return torch.mm(x, x.t().conj()).true_divide(freedom).squeeze()


def corrcoef(input: Any) -> Any:
    """input: [variables, observations], or of one variable; real."""
    made = cov(input)
    if made.dim() == 0:
        return made / made
    deviation = made.diagonal().sqrt()
    made = made / deviation.view(-1, 1) / deviation.view(1, -1)
    return made.clip(-1, 1)


def unsafe_chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    """Parts of an axis of equal length, the last may be shorter."""
    size = input.shape[dim]
    length = (size + chunks - 1) // chunks
    return _split_with_sizes(input, [0] * chunks, dim) if length == 0 and size == 0 else _split(input, length, dim)


def multi_dot(tensors: Any) -> Any:
    """The product of all, in the order that takes the fewest multiplications: which it is, is asked of sizes."""
    first, *middle, last = tensors
    made = [first.unsqueeze(0) if first.dim() == 1 else first, *middle, last.unsqueeze(-1) if last.dim() == 1 else last]
    result = _chain(made)
    shape = made[0].shape[0], made[-1].shape[1]
    kept = [n for n, own, axes in zip(shape, (first, last), (first.dim(), last.dim())) if axes == 2]
    return result.view(kept)


def _chain(tensors: list) -> Any:
    if len(tensors) == 2:
        return torch.mm(*tensors)
    if len(tensors) == 3:
        a, b, c = tensors
        before = a.shape[0] * b.shape[1] * (a.shape[1] + c.shape[1])
        behind = a.shape[1] * c.shape[1] * (a.shape[0] + b.shape[1])
        return torch.mm(torch.mm(a, b), c) if before <= behind else torch.mm(a, torch.mm(b, c))
    return _product(tensors, _order([*(x.shape[0] for x in tensors), tensors[-1].shape[1]]), 0, len(tensors) - 1)


def _order(sizes: list) -> dict[tuple[int, int], int]:
    """Behind which matrix each run of them is cut in two: that costs the fewest multiplications."""
    count, cost, cut = len(sizes) - 1, {}, {}
    for length in range(count):
        for first in range(count - length):
            last = first + length
            cost[first, last] = 0
            for k in range(first, last):
                found = cost[first, k] + cost[k + 1, last] + sizes[first] * sizes[k + 1] * sizes[last + 1]
                if k == first or found < cost[first, last]:
                    cost[first, last], cut[first, last] = found, k
    return cut


def _product(tensors: list, cut: dict[tuple[int, int], int], first: int, last: int) -> Any:
    if first == last:
        return tensors[first]
    behind = _product(tensors, cut, cut[first, last] + 1, last)  # C computes its last argument first
    return torch.mm(_product(tensors, cut, first, cut[first, last]), behind)


def matrix_norm(A: Any, ord: Any, dim: Any = (-2, -1), keepdim: bool = False, *, dtype: None = None, out: None = None) -> Any:
    """The largest (2) or the smallest (-2) singular value of matrices over two axes of A: [.., M, N]."""
    if dtype is not None or out is not None or type(dim) not in (tuple, list) or len(dim) != 2:
        raise NotImplementedError("a vector, or another dtype")
    rank = A.dim()
    axes = [axis % rank for axis in dim]
    order = [*(k for k in range(rank) if k not in axes), *axes]
    values = _singular(A.permute(order))[1]
    made = values.amax([-1], keepdim) if ord > 0 else values.amin([-1], keepdim)
    return made.unsqueeze(-1).permute([order.index(k) for k in range(rank)]) if keepdim else made


def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """input: [N, L] or [L] to spectra [.., F, T] of windows that begin each `hop_length`."""
    hop = n_fft // 4 if hop_length is None else hop_length
    x = input.unsqueeze(0) if input.dim() == 1 else input
    if align_to_window or x.shape[1] < n_fft:
        raise NotImplementedError("what C refuses, or aligns otherwise")
    length = n_fft if win_length is None else win_length
    if length != n_fft:
        window = _widened(window, n_fft, length, x)
    count, steps = 1 + (x.shape[1] - n_fft) // hop, x.stride()
    x = x.as_strided((x.shape[0], count, n_fft), (steps[0], hop * steps[1], steps[1]))
    x = x if window is None else x.mul(window)
    if x.is_complex():
        made = _fft(x, [2], int(normalized), True)
    else:
        made = _rfft(x, [2], int(normalized), True if onesided is None else onesided)
    made = made.transpose(1, 2)
    made = made.squeeze(0) if input.dim() == 1 else made
    return made if return_complex else torch.view_as_real(made)


def norm(A: Any, ord: Any, dim: Any = None, keepdim: bool = False, *, dtype: None = None, out: None = None) -> Any:
    """As `matrix_norm`, of one matrix or over two axes."""
    return matrix_norm(A, ord, (0, 1) if dim is None and A.dim() == 2 else dim, keepdim, dtype=dtype, out=out)


def _widened(window: Any, size: int, length: int, like: Any) -> Any:
    """A window, or ones, in the middle of zeros."""
    dtype = like.dtype if window is None else window.dtype
    made, before = _zeros([size], dtype=dtype, layout=like.layout, device=like.device), (size - length) // 2
    part = made.narrow(0, before, length)
    part.fill_(1) if window is None else part.copy_(window)
    return made


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right",
) -> Any:
    """Each [L, ...] in a row, or a column, of the longest one's length. Source: PackedSequence.cpp."""
    longest = sequences[0].shape[0]
    for sequence in sequences[1:]:
        longest = max(longest, sequence.shape[0])
    count, rest = len(sequences), tuple(sequences[0].shape)[1:]
    sizes = (count, longest, *rest) if batch_first else (longest, count, *rest)
    types = {"dtype": sequences[0].dtype, "layout": torch.strided, "device": sequences[0].device}
    made = _full(sizes, padding_value, **types)
    for place, sequence in enumerate(sequences):
        length = sequence.shape[0]
        start = longest - length if padding_side == "left" else 0
        if batch_first:
            made.select(0, place).narrow(0, start, length).copy_(sequence)
        else:
            made.narrow(0, start, length).select(1, place).copy_(sequence)
    return made


def fill_diagonal_(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    """x: [M, N], whose first element is the first of its storage. Source: TensorAdvancedIndexing.cpp."""
    if x.dim() != 2 or wrap:
        raise NotImplementedError("more than one diagonal, or more than two axes")
    rows, columns = x.shape
    x.as_strided([rows if rows <= columns else columns], [sum(x.stride())], 0).fill_(fill_value)
    return x


_COMPOSITES: dict[Any, Callable] = CELLS | {
    private("_C._nn.pad_sequence"): pad_sequence,
    **dict.fromkeys((torch.quantile, torch.Tensor.quantile), quantile),
    **dict.fromkeys((torch.nanquantile, torch.Tensor.nanquantile), nanquantile),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), take_along_dim),
    torch.linalg.matrix_norm: matrix_norm, torch.linalg.norm: norm,
    torch.unsafe_chunk: unsafe_chunk, torch.Tensor.unsafe_chunk: unsafe_chunk,
    torch.linalg.multi_dot: multi_dot,
    torch._VF.stft: stft,
    torch.Tensor.fill_diagonal_: fill_diagonal_,
    torch.rms_norm: rms_norm,
    **dict.fromkeys((torch.kron, torch.Tensor.kron), kron),
    **dict.fromkeys((torch.cov, torch.Tensor.cov), cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), corrcoef),
}
_KINDS = frozenset(map(type, _COMPOSITES))
