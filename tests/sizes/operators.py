"""Operators at sizes that change: a program of each, its arguments at a batch b and a length n, and how many captures
serve all sizes.

    ROWS["rfft"]      Row(lambda x: torch.fft.rfft(x), lambda b, n: (randn(b, n),), captures=2)

Two captures are the rule: one with numbers, one with symbols. Where more are asked for, the program goes another way
at some sizes, which `why` says.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ((2, 3), (4, 5), (6, 7), (3, 9), (2, 2), (7, 7), (9, 4), (5, 2), (3, 9), (1, 4), (4, 1), (1, 1), (8, 6))
NOTHING = ((0, 3), (5, 0), (0, 0))  # each is a way of its own
BY_COLUMNS = "what is computed of one number a matrix is row-major"
WIDE_OR_TALL = "as many rows as columns, or fewer: each is a way of its own"


@dataclass(frozen=True)
class Row:
    """`program` takes the tensors of `arguments(b, n)`; `captures` serve `SIZES`."""

    program: Callable
    arguments: Callable
    captures: int = 2
    why: str = ""
    has_gradient: bool = True
    is_exact: bool = True  # the same bits op by op


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


def positive(*sizes: int) -> torch.Tensor:
    """Positive definite matrices whose eigenvalues lie apart."""
    x = torch.randn(*sizes, sizes[-1])
    return x @ x.mT + torch.diag_embed(torch.arange(2.0, sizes[-1] + 2).expand(*sizes))


def both(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x + 1)


def parts(x: torch.Tensor) -> tuple:
    z = torch.fft.fft(x)
    return z.real, z.imag, z.real[:, ::2].t()


FOURIER = {
    "rfft": Row(lambda x: torch.fft.rfft(x), lambda b, n: (randn(b, n),)),
    "rfft over the first axis": Row(lambda x: torch.fft.rfft(x, dim=0), lambda b, n: (randn(b, n),)),
    "rfft of a turned tensor": Row(
        lambda x: torch.fft.rfft(x.transpose(0, 1), dim=2), lambda b, n: (randn(b, n, 6),), 3,
        "an axis of one element has no place among the strides"),
    "rfft over the middle": Row(lambda x: torch.fft.rfft(x, dim=1), lambda b, n: (randn(b, n, 3),)),
    "rfft, orthogonal": Row(lambda x: torch.fft.rfft(x, norm="ortho").abs(), lambda b, n: (randn(b, n),)),
    "rfft of twice the length": Row(lambda x: torch.fft.rfft(x, n=2 * x.shape[-1]), lambda b, n: (randn(b, n),)),
    "rfft2": Row(lambda x: torch.fft.rfft2(x), lambda b, n: (randn(3, b, n),)),
    "irfft": Row(lambda x: torch.fft.irfft(both(x)), lambda b, n: (randn(b, n + 1),)),
    "irfft to an odd length": Row(
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]), lambda b, n: (randn(b, n),)),
    "irfft2": Row(
        lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]), lambda b, n: (randn(3, b, n),)),
    "fft": Row(lambda x: torch.fft.fft(both(x)), lambda b, n: (randn(b, n),)),
    "fft of real numbers": Row(lambda x: torch.fft.fft(x), lambda b, n: (randn(b, n),)),
    "ifft": Row(lambda x: torch.fft.ifft(both(x)), lambda b, n: (randn(b, n),)),
    "fft2": Row(lambda x: torch.fft.fft2(both(x)), lambda b, n: (randn(3, b, n),)),
    "fftn over the outer axes": Row(lambda x: torch.fft.fftn(both(x), dim=(0, 1)), lambda b, n: (randn(b, n, 3),)),
    "fftn over the outer axes, turned": Row(
        lambda x: torch.fft.fftn(both(x), dim=(2, 0)), lambda b, n: (randn(b, 3, n),)),
    "parts of a spectrum": Row(parts, lambda b, n: (randn(b, n),)),
    "hfft, of conjugates": Row(
        lambda x: torch.fft.hfft(both(x)), lambda b, n: (randn(b, n + 1),), has_gradient=False),
    "ihfft": Row(lambda x: torch.fft.ihfft(x).resolve_conj(), lambda b, n: (randn(b, n),), has_gradient=False),
    "convolution by transforms": Row(
        lambda x, k: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(k, n=x.shape[-1]), n=x.shape[-1]),
        lambda b, n: (randn(b, n + 3), randn(3))),
}
LINEAR_ALGEBRA = {
    "qr": Row(lambda x: torch.linalg.qr(x), lambda b, n: (randn(b, n, 3),), 3, WIDE_OR_TALL, has_gradient=False),
    "qr of tall matrices": Row(lambda x: torch.linalg.qr(x), lambda b, n: (randn(b, n + 3, 3),)),
    "qr, complete": Row(
        lambda x: torch.linalg.qr(x, mode="complete"), lambda b, n: (randn(2, b, n),), 3, WIDE_OR_TALL,
        has_gradient=False),
    "qr, R alone": Row(
        lambda x: torch.linalg.qr(x, mode="r")[1], lambda b, n: (randn(b, n, 3),), 3, WIDE_OR_TALL,
        has_gradient=False),
    "singular values": Row(
        lambda x: torch.linalg.svdvals(x), lambda b, n: (randn(b, n + 3, 3),), is_exact=False),
    "svd": Row(
        lambda x: torch.linalg.svd(x, full_matrices=False)[1], lambda b, n: (randn(b, n, 3),), 3, WIDE_OR_TALL),
    "eigenvalues": Row(lambda x: torch.linalg.eigvals(x).abs(), lambda b, n: (positive(b, n),)),
    "eigenvectors": Row(
        lambda x: torch.linalg.eig(x)[1].abs(), lambda b, n: (positive(b, n),), 3, BY_COLUMNS),
    "eigenvalues of symmetric matrices": Row(
        lambda x: torch.linalg.eigvalsh(x), lambda b, n: (positive(b, n),), is_exact=False),
    "eigenvectors of symmetric matrices": Row(
        lambda x: torch.linalg.eigh(x)[1].abs(), lambda b, n: (positive(b, n),), 3, BY_COLUMNS),
    "a root": Row(lambda x: torch.linalg.cholesky(x), lambda b, n: (positive(b, n),)),
    "a root's inverse": Row(
        lambda x: torch.cholesky_inverse(torch.linalg.cholesky(x)), lambda b, n: (positive(b, n),)),
    "solutions by a root": Row(
        lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(x)),
        lambda b, n: (positive(b, n), randn(b, n, 2))),
    "solutions": Row(lambda x, y: torch.linalg.solve(x, y), lambda b, n: (positive(b, n), randn(b, n, 2))),
    "solutions for vectors": Row(
        lambda x, y: torch.linalg.solve(x, y), lambda b, n: (positive(b, n), randn(b, n))),
    "solutions for one matrix": Row(
        lambda x, y: torch.linalg.solve(x, y), lambda b, n: (positive(b, n), randn(1, n, 2))),
    "solutions on the left": Row(
        lambda x, y: torch.linalg.solve(x, y, left=False), lambda b, n: (positive(b, n), randn(b, 2, n))),
    "solutions of a triangle": Row(
        lambda x, y: torch.linalg.solve_triangular(x, y, upper=True),
        lambda b, n: (positive(b, n), randn(b, n, 2))),
    "solutions of a triangle for all": Row(
        lambda x, y: torch.linalg.solve_triangular(x.mT, y, upper=False),
        lambda b, n: (positive(n), randn(b, n, 2))),
    "factors": Row(
        lambda x: torch.linalg.lu_factor(x)[0], lambda b, n: (randn(b, n, 3),), 3, WIDE_OR_TALL,
        has_gradient=False),
    "factors apart": Row(
        lambda x: torch.linalg.lu(x), lambda b, n: (randn(b, n, 3),), 3, WIDE_OR_TALL, has_gradient=False),
    "factors unpacked": Row(
        lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x))[1:], lambda b, n: (randn(b, n + 3, 3),)),
    "solutions from factors": Row(
        lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y),
        lambda b, n: (positive(b, n), randn(b, n, 2))),
    "symmetric factors": Row(
        lambda x: torch.linalg.ldl_factor(x)[0], lambda b, n: (positive(b, n),), has_gradient=False),
    "reflections": Row(
        lambda x: torch.linalg.householder_product(x, x[..., 0, :]), lambda b, n: (randn(b, n + 3, 3),)),
    "an inverse": Row(lambda x: torch.linalg.inv(x), lambda b, n: (positive(b, n),)),
    "a pseudo-inverse": Row(lambda x: torch.linalg.pinv(x), lambda b, n: (randn(b, n + 3, 3),)),
    "a determinant": Row(lambda x: torch.linalg.slogdet(x)[1], lambda b, n: (positive(b, n),)),
    "an exponential": Row(lambda x: torch.matrix_exp(x / 20), lambda b, n: (positive(b, n),)),
}
SPAN = torch.hann_window(8) + 0.1
WEIGHT, TABLE = torch.randn(3, 4, 4), torch.randn(8, 4)
NORM = nn.InstanceNorm1d(4, affine=True)
CELL, PAIR = nn.GRUCell(4, 5), nn.LSTMCell(4, 5)
LSTM, TURNED = nn.LSTM(4, 5, 2), nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
GRU, NARROW = nn.GRU(4, 5, 2, bidirectional=True), nn.LSTM(4, 5, 1, proj_size=3)
GATED, PLAIN = nn.GRU(4, 5, batch_first=True), nn.RNN(4, 5, 2, nonlinearity="relu", bidirectional=True)
DOUBLE = nn.LSTM(4, 5, 2).double()
ONE_IMAGE = "one image says nothing of the layout of its axis"
ONE_ROW = "one row has another layout, or is asked for"


def indices(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 8, sizes)


SIGNAL, SMALLER, LARGER = nn.Conv1d(4, 3, 3), nn.Conv2d(2, 2, 3, 2, 1), nn.ConvTranspose2d(2, 2, 2, 2)


def image(b: int, n: int) -> tuple[torch.Tensor]:
    return (randn(b, 2, n + 1, 3),)


def last(b: int, n: int) -> tuple[torch.Tensor]:
    """Images with channels last."""
    return (randn(b, 4, n + 6, n + 9).to(memory_format=torch.channels_last),)


def last_of_three(b: int, n: int) -> tuple[torch.Tensor]:
    """Volumes with channels last."""
    return (randn(b, 4, n + 3, n + 2, 5).to(memory_format=torch.channels_last_3d),)


CONV, BATCHES, GROUPS = nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8).eval(), nn.GroupNorm(2, 8)


def block(x: torch.Tensor) -> tuple:
    y = F.max_pool2d(F.relu(BATCHES(CONV(x))), 2, 1)
    return y, GROUPS(y), F.adaptive_avg_pool2d(y, 1).flatten(1)


VOLUMES, NORMED = nn.Conv3d(4, 8, 3, 2, 1), nn.BatchNorm3d(8)


def block_of_three(x: torch.Tensor) -> tuple:
    y = F.max_pool3d(F.relu(NORMED(VOLUMES(x))), 2, 1)
    y = F.interpolate(F.pad(torch.cat([y, y * 2], 1), (1, 0, 2, 1, 0, 1)), scale_factor=2)
    return y, F.avg_pool3d(y, 2), F.adaptive_avg_pool3d(y, 1).flatten(1)


def resized(x: torch.Tensor) -> tuple:
    y = torch.cat([F.interpolate(x, scale_factor=2), F.pad(x, (1, x.shape[3] - 1, 0, x.shape[2]))], 1)
    return y, F.avg_pool2d(y, 2), F.adaptive_avg_pool2d(y, 2), F.pixel_shuffle(x, 2)


ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
FIRST = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval().requires_grad_(False)
HEADS = nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
LAYERS = {
    "encoder layer": Row(lambda x: ENCODER(x), lambda b, n: (randn(b, n, 8),), has_gradient=False),
    "encoder layer, norm first": Row(lambda x: FIRST(x), lambda b, n: (randn(b, n, 8),), has_gradient=False),
    "attention": Row(
        lambda x: HEADS(x, x, x, need_weights=False)[0], lambda b, n: (randn(b, n, 8),), has_gradient=False),
    "attention and weights": Row(lambda x: HEADS(x, x, x), lambda b, n: (randn(b, n, 8),), has_gradient=False),
    "attention and weights of each head": Row(
        lambda x: HEADS(x, x, x, average_attn_weights=False), lambda b, n: (randn(b, n, 8),), has_gradient=False),
    "channels last": Row(block, last, 3, ONE_IMAGE),
    "channels last, resized": Row(resized, last),
    "volumes with channels last": Row(block_of_three, last_of_three, 4, ONE_IMAGE),
    "padded around": Row(
        lambda x: F.pad(x, (1, 2, 0, 2), mode="circular"), lambda b, n: (randn(b, 2, n + 1, n + 3),)),
    "spectra": Row(
        lambda x: torch.stft(x, 8, 3, window=SPAN, return_complex=True, pad_mode="constant"),
        lambda b, n: (randn(b, 5 * n),)),
    "spectra of one signal": Row(
        lambda x: torch.stft(x, 8, center=False, window=SPAN, return_complex=False),
        lambda b, n: (randn(b * n + 8),), has_gradient=False),  # windows of an input as it is: op by op
    "spectra of a shorter window": Row(
        lambda x: torch.stft(x, 8, 3, 6, SPAN[:6], return_complex=True, pad_mode="constant"),
        lambda b, n: (randn(b, 5 * n),)),
    "spectra without a window": Row(
        lambda x: torch.stft(x, 8, 3, 6, return_complex=False), lambda b, n: (randn(b, 5 * n),)),
    "windows": Row(
        lambda x: x * torch.hann_window(x.shape[1]) + torch.hamming_window(x.shape[1], False, alpha=0.5)
        + torch.kaiser_window(window_length=x.shape[1]) + torch.bartlett_window(x.shape[1], dtype=torch.float64)
        + torch.blackman_window(x.shape[1] + 1)[1:],
        lambda b, n: (randn(b, n),)),
    "frequencies": Row(
        lambda x: (x * torch.fft.fftfreq(x.shape[1], 0.5), x.sum() * torch.fft.rfftfreq(x.shape[1], d=2.0)),
        lambda b, n: (randn(b, n),)),
    "rows and columns of triangles": Row(
        lambda x: (torch.tril_indices(x.shape[0], x.shape[1], -1), torch.triu_indices(x.shape[1], x.shape[1], 1)),
        lambda b, n: (randn(b, n),), 6, WIDE_OR_TALL, has_gradient=False),
    "a quantile": Row(lambda x: torch.quantile(x, 0.3, 1), lambda b, n: (randn(b, n),)),
    "quantiles": Row(
        lambda x, q: (x.quantile(q, 0, True), torch.nanquantile(x, q, 1), torch.quantile(x, q, interpolation="lower")),
        lambda b, n: (randn(b, n), torch.tensor([0.3, 0.9])), 4, ONE_ROW),
    "a quantile of all": Row(
        lambda x: (x.quantile(0.25, keepdim=True), x.nanquantile(0.5, 1, interpolation="midpoint")),
        lambda b, n: (randn(b, n),)),
    "elements along an axis": Row(
        lambda x: (torch.take_along_dim(x, x.argsort(1), 1), torch.take_along_dim(x, x.argmax(0, keepdim=True), 0)),
        lambda b, n: (randn(b, n),), 3, ONE_ROW),
    "norms of matrices": Row(
        lambda x: (torch.linalg.matrix_norm(x, 2), torch.linalg.norm(x, -2, (0, 2), True)),
        lambda b, n: (randn(b, n, 3),), 6, WIDE_OR_TALL, is_exact=False),  # eager computes no vectors
    "a product of four": Row(
        lambda x, y: torch.linalg.multi_dot([x[0], y, x, y]), lambda b, n: (randn(b, n), randn(n, b)), 7,
        "which two are multiplied first follows from the sizes"),
    "a product of three": Row(
        lambda x, y: torch.linalg.multi_dot([x, y, x]), lambda b, n: (randn(b, n), randn(n, b)), 3,
        "which two are multiplied first follows from the sizes"),
    "parts of a third": Row(lambda x: torch.unsafe_chunk(x, 3)[0], lambda b, n: (randn(3 * b, n),)),
    "diagonals of matrices": Row(lambda x: torch.diag(x[0]), lambda b, n: (randn(b, n),)),
    "pixels apart": Row(lambda x: F.pixel_unshuffle(x, 2), lambda b, n: (randn(b, 2, 4, 2 * n),)),
    "largest at random places": Row(
        lambda x: torch._C._nn.fractional_max_pool2d(x, (2, 2), (3, 2), torch.full((x.shape[0], 2, 2), 0.5))[0],
        lambda b, n: (randn(b, 2, n + 4, n + 3),)),
    "largest of each two": Row(lambda x: F.max_pool1d(x, 2), lambda b, n: (randn(b, 3, n + 1),)),
    "largest of three, padded": Row(lambda x: F.max_pool1d(x, 3, 2, 1), lambda b, n: (randn(b, 3, n + 1),)),
    "bilinear": Row(lambda x: F.bilinear(x, x + 1, WEIGHT), lambda b, n: (randn(b, n, 4),)),
    "distances of pairs": Row(lambda x: torch.pdist(x), lambda b, n: (randn(b + 1, n),)),
    "distances of pairs by sums": Row(lambda x: torch.pdist(x, 1), lambda b, n: (randn(b + 2, n),)),
    "blocks on a diagonal": Row(
        lambda x, y: torch.block_diag(x, y.t(), torch.ones(2), torch.tensor(3.0)),
        lambda b, n: (randn(b, n), randn(b, 3))),
    "one block twice": Row(lambda x: torch.block_diag(x, x), lambda b, n: (randn(b, n),)),
    "arange by steps that change": Row(
        lambda x: x + torch.arange(0, x.numel(), x.shape[1]).float()[:, None], lambda b, n: (randn(b, n),)),
    "kron": Row(lambda x, y: torch.kron(x, y), lambda b, n: (randn(b, n), randn(2, n, 2))),
    "cov": Row(lambda x: torch.cov(x), lambda b, n: (randn(b, n + 1),), 3, ONE_ROW),
    "cov without correction": Row(lambda x: x.cov(correction=0), lambda b, n: (randn(b, n),), 3, ONE_ROW),
    "cov of one variable": Row(lambda x: x[0].cov(), lambda b, n: (randn(b, n + 1),)),
    "corrcoef": Row(lambda x: torch.corrcoef(x), lambda b, n: (randn(b, n + 2),), 3, ONE_ROW),
    "instance norm": Row(lambda x: F.instance_norm(x), lambda b, n: (randn(b, 4, n + 1),)),
    "instance norm with weights": Row(lambda x: NORM(x), lambda b, n: (randn(b, 4, n + 1),)),
    "bags of rows": Row(lambda i: F.embedding_bag(i, TABLE), lambda b, n: (indices(b, n),), has_gradient=False),
    "bags of largest rows": Row(
        lambda i: F.embedding_bag(i, TABLE, mode="max"), lambda b, n: (indices(b, n),), has_gradient=False),
    "bags of weighted rows": Row(
        lambda i, w: F.embedding_bag(i, TABLE, per_sample_weights=w, mode="sum"),
        lambda b, n: (indices(b, n), randn(b, n))),
    "bags of rows of a table": Row(
        lambda i, w: F.embedding_bag(i, w, mode="sum"), lambda b, n: (indices(b, n), randn(8, 4))),
    "bags with an end": Row(
        lambda i, o: F.embedding_bag(i, TABLE, o, include_last_offset=True),
        lambda b, n: (indices(b * n), torch.arange(0, b * n + 1, n)), has_gradient=False),
    "activations in place": Row(
        lambda x: tuple([f(x * 2, inplace=True) for f in (F.leaky_relu, F.elu, F.celu, F.selu, F.hardtanh, F.hardsigmoid)]),
        lambda b, n: (randn(b, n),)),
    "leaky relu": Row(lambda x: F.leaky_relu(x), lambda b, n: (randn(b, n),)),
    "a grid": Row(
        lambda t, x: F.affine_grid(t, (t.shape[0], 1, x.shape[1], 4), align_corners=False),
        lambda b, n: (randn(b, 2, 3), randn(b, n)), has_gradient=False),
    "a cell": Row(lambda x: CELL(x), lambda b, n: (randn(b, 4),), 3, ONE_ROW),
    "a cell with a state": Row(lambda x, h: PAIR(x, (h, h)), lambda b, n: (randn(b, 4), randn(b, 5)), 3, ONE_ROW),
    "lstm": Row(lambda x: LSTM(x)[0], lambda b, n: (randn(n, b, 4),), has_gradient=False),
    "lstm with states": Row(
        lambda x, h, c: LSTM(x, (h, c))[1], lambda b, n: (randn(n, b, 4), randn(2, b, 5), randn(2, b, 5)),
        has_gradient=False),
    "lstm both ways, turned": Row(
        lambda x: TURNED(x)[0], lambda b, n: (randn(b, n, 4),), 4, "a turned tensor of one row lies as it was",
        has_gradient=False),
    "gru of three steps": Row(lambda x: GRU(x), lambda b, n: (randn(3, b * n, 4),), 3, ONE_ROW),
    "lstm with a projection, of three steps": Row(
        lambda x: NARROW(x)[0], lambda b, n: (randn(3, b * n, 4),), 3, ONE_ROW),
    "gru of any length": Row(lambda x: GRU(x), lambda b, n: (randn(n, b, 4),), has_gradient=False),
    "gru of any length, turned": Row(
        lambda x: GATED(x), lambda b, n: (randn(b, n, 4),), 3, ONE_ROW, has_gradient=False,
        is_exact=False),  # the call that is captured makes other products
    "rnn of any length": Row(lambda x: PLAIN(x)[0].relu(), lambda b, n: (randn(n, b, 4),), has_gradient=False),
    "lstm in 64 bits, of any length": Row(
        lambda x: DOUBLE(x.double())[1], lambda b, n: (randn(n, b, 4),), has_gradient=False),
    "lstm with a projection, of any length": Row(
        lambda x: (NARROW(x)[0], *NARROW(x)[1]), lambda b, n: (randn(n, b, 4),), has_gradient=False),
    "a loss whose targets have gradients": Row(
        lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()), lambda b, n: (randn(b, n),)),
    "samples of a grid made from sizes": Row(
        lambda x: F.grid_sample(
            x, F.affine_grid(torch.eye(2, 3)[None] * 0.9, (1, *x.shape[1:]), align_corners=False).expand(
                x.shape[0], -1, -1, -1), align_corners=False), image, 3, ONE_ROW, is_exact=False),
    "samples of a grid": Row(
        lambda x, y: F.grid_sample(x.detach(), y.tanh(), align_corners=False),
        lambda b, n: (randn(b, 2, n, 4), randn(b, n, 3, 2))),
    "a margin between classes": Row(
        lambda x: F.multi_margin_loss(x, torch.zeros(x.shape[0], dtype=torch.long)),
        lambda b, n: (randn(b * n + 1, 3),)),  # of no rows torch gives what the memory held
    "a margin between labels": Row(
        lambda x: F.multilabel_margin_loss(x, torch.zeros(x.shape, dtype=torch.long)),
        lambda b, n: (randn(b * n + 1, 3),)),
    "a convolution of a turned signal": Row(
        lambda x: SIGNAL(x.mT).mT, lambda b, n: (randn(b, n + 3, 4),)),
    "what an image was made larger than, cut off": Row(
        lambda x: torch.cat([x, LARGER(SMALLER(x))[..., :x.shape[-2], :x.shape[-1]]], 1),
        lambda b, n: (randn(2, 2, b + 1, n + 2),), is_exact=False),
    "a diagonal written over": Row(
        lambda x: (x * 2).fill_diagonal_(0.5), lambda b, n: (randn(b, n),), 3, "as many rows as columns, or more",
        has_gradient=False),
    "elements as integers": Row(lambda x: (x * 2).view(torch.int32) + 1, lambda b, n: (randn(b, n),), has_gradient=False),
    "elements in halves": Row(
        lambda x: (x * 2).view(torch.int16) + 1, lambda b, n: (randn(b, n),), has_gradient=False),
    "elements of a slice in bytes": Row(
        lambda x: x[:, 1:].view(torch.uint8) + 1, lambda b, n: (randn(b, n + 1),), 3, ONE_ROW, has_gradient=False),
    "rows of a norm at most": Row(lambda x: x.renorm(2, 0, 1.0), lambda b, n: (randn(b, n),), is_exact=False),
    "the least size": Row(
        lambda x: x * min(x.shape) + max(x.shape), lambda b, n: (randn(b, n),), 3, "which it is, is a way each"),
}
RESIZED = {
    f"{mode} by {factor}": Row(
        lambda x, mode=mode, factor=factor: F.interpolate(x, scale_factor=factor, mode=mode), image,
        3 if mode == "area" else 2, "means to one row are pooled otherwise")
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area") for factor in (1.5, 2.25, 0.7, 4 / 3)
} | {
    "linear by 1.5": Row(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), lambda b, n: (randn(b, 2, n + 1),)),
    "trilinear by 1.5": Row(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"), lambda b, n: (randn(1, 2, b, n, 3),)),
    "nearest by 1.1, three axes": Row(
        lambda x: F.interpolate(x, scale_factor=1.1), lambda b, n: (randn(1, 2, b, n, 3),)),
    "smoothed by 1.5": Row(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", antialias=True), image),
    "corners aligned": Row(
        lambda x: F.interpolate(x, scale_factor=2.5, mode="bicubic", align_corners=True), image),
    "by two factors": Row(lambda x: nn.Upsample(scale_factor=(1.5, 0.9))(x), image),
}
ROWS = FOURIER | LINEAR_ALGEBRA | LAYERS | RESIZED
