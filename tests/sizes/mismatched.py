"""Operands that fit together at the sizes of a capture, and do not at others: what eager refuses is refused, with
eager's words, and what it broadcasts is broadcast.

    ROWS["mm"]      Row(lambda x, w: x @ w, fitting arguments at two sizes, arguments that do not fit)

A replay that takes what it should not reads beyond its memory or gives a number where eager raises: so every rule of sizes
has to say what it needs of its operands, and each row here asks one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

randn = torch.randn


@dataclass(frozen=True)
class Row:
    program: Callable
    fitting: list[tuple]
    others: list[tuple]


def ints(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.int64)


ROWS = {
    "conv1d channels": Row(
        lambda x, w: F.conv1d(x, w), [(randn(2, 3, 9), randn(4, 3, 3)), (randn(3, 5, 7), randn(2, 5, 3))],
        [(randn(2, 4, 9), randn(4, 3, 3)), (randn(2, 3, 2), randn(4, 3, 3)), (randn(2, 1, 9), randn(4, 3, 3))]),
    "conv2d channels, fixed weights": Row(
        lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2)), [(randn(2, 3, 9, 4),), (randn(3, 3, 7, 5),)],
        [(randn(2, 4, 9, 4),), (randn(2, 3, 1, 4),), (randn(2, 1, 9, 4),)]),
    "conv2d bias": Row(
        lambda x, w, b: F.conv2d(x, w, b),
        [(randn(2, 3, 9, 4), randn(4, 3, 2, 2), randn(4)), (randn(2, 3, 8, 4), randn(5, 3, 2, 2), randn(5))],
        [(randn(2, 3, 9, 4), randn(4, 3, 2, 2), randn(5)), (randn(2, 3, 9, 4), randn(4, 3, 2, 2), randn(1))]),
    "conv2d groups": Row(
        lambda x, w: F.conv2d(x, w, groups=2),
        [(randn(2, 4, 9, 4), randn(4, 2, 2, 2)), (randn(2, 6, 8, 4), randn(6, 3, 2, 2))],
        [(randn(2, 6, 9, 4), randn(4, 2, 2, 2)), (randn(2, 4, 9, 4), randn(5, 2, 2, 2)),
         (randn(2, 6, 9, 4), randn(5, 3, 2, 2))]),
    "conv_transpose1d": Row(
        lambda x, w: F.conv_transpose1d(x, w), [(randn(2, 3, 9), randn(3, 4, 3)), (randn(3, 5, 7), randn(5, 2, 3))],
        [(randn(2, 4, 9), randn(3, 4, 3))]),
    "batch_norm stats": Row(
        lambda x, m, v: F.batch_norm(x, m, v),
        [(randn(4, 8, 3), randn(8), randn(8).exp()), (randn(4, 6, 5), randn(6), randn(6).exp())],
        [(randn(4, 6, 3), randn(8), randn(8).exp()), (randn(4, 8, 3), randn(8), randn(1).exp()),
         (randn(4, 8, 3), randn(1), randn(8).exp())]),
    "batch_norm fixed": Row(
        lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8)), [(randn(4, 8, 3),), (randn(2, 8, 5),)],
        [(randn(4, 6, 3),), (randn(4, 1, 3),)]),
    "batch_norm weights": Row(
        lambda x, w: F.batch_norm(x, None, None, w, w, training=True),
        [(randn(4, 8, 3), randn(8)), (randn(4, 6, 5), randn(6))],
        [(randn(4, 6, 3), randn(8)), (randn(4, 8, 3), randn(1)), (randn(1, 8, 1), randn(8))]),
    "group_norm": Row(
        lambda x, w: F.group_norm(x, 2, w, w), [(randn(4, 8, 3), randn(8)), (randn(4, 6, 5), randn(6))],
        [(randn(4, 6, 3), randn(8)), (randn(4, 7, 3), randn(7)), (randn(4, 8, 3), randn(1))]),
    "instance_norm": Row(
        lambda x, w: F.instance_norm(x, weight=w, bias=w), [(randn(4, 8, 3), randn(8)), (randn(4, 6, 5), randn(6))],
        [(randn(4, 6, 3), randn(8)), (randn(4, 8, 3), randn(1)), (randn(4, 8, 1), randn(8))]),
    "layer_norm": Row(
        lambda x, w: F.layer_norm(x, w.shape, w, w), [(randn(4, 3, 8), randn(8)), (randn(4, 5, 6), randn(6))],
        [(randn(4, 3, 8), randn(6)), (randn(4, 3, 1), randn(8)), (randn(4, 3, 8), randn(1))]),
    "layer_norm fixed": Row(
        lambda x: F.layer_norm(x, (8,)), [(randn(4, 3, 8),), (randn(4, 5, 8),)],
        [(randn(4, 3, 6),), (randn(4, 3, 1),)]),
    "layer_norm weight": Row(
        lambda x, w: F.layer_norm(x, x.shape[-1:], w), [(randn(4, 3, 8), randn(8)), (randn(4, 5, 6), randn(6))],
        [(randn(4, 3, 8), randn(6)), (randn(4, 3, 8), randn(1)), (randn(4, 3, 1), randn(8))]),
    "rms_norm": Row(
        lambda x, w: F.rms_norm(x, w.shape), [(randn(4, 3, 8), randn(8)), (randn(4, 5, 6), randn(6))],
        [(randn(4, 3, 8), randn(6)), (randn(4, 3, 1), randn(8)), (randn(4, 3, 8), randn(1))]),
    "rms_norm weight": Row(
        lambda x, w: F.rms_norm(x, x.shape[-1:], w), [(randn(4, 3, 8), randn(8)), (randn(4, 5, 6), randn(6))],
        [(randn(4, 3, 8), randn(6)), (randn(4, 3, 1), randn(8)), (randn(4, 3, 8), randn(1))]),
    "embedding_bag weights": Row(
        lambda places, w: F.embedding_bag(places, torch.ones(8, 4), per_sample_weights=w, mode="sum"),
        [(ints(3, 4), randn(3, 4)), (ints(2, 5), randn(2, 5))],
        [(ints(3, 4), randn(3, 5)), (ints(3, 4), randn(1, 4)), (ints(3, 4), randn(4, 3))]),
    "mm": Row(
        lambda x, w: x @ w, [(randn(4, 3), randn(3, 5)), (randn(2, 6), randn(6, 3))],
        [(randn(4, 3), randn(4, 5)), (randn(4, 3), randn(1, 5)), (randn(4, 1), randn(3, 5))]),
    "addmm": Row(
        lambda b, x, w: torch.addmm(b, x, w),
        [(randn(4, 5), randn(4, 3), randn(3, 5)), (randn(2, 3), randn(2, 6), randn(6, 3))],
        [(randn(3, 5), randn(4, 3), randn(3, 5)), (randn(1, 5), randn(4, 3), randn(3, 5)),
         (randn(4, 5), randn(1, 3), randn(3, 5)), (randn(4, 5), randn(4, 3), randn(3, 1))]),
    "bmm": Row(
        lambda x, w: torch.bmm(x, w), [(randn(2, 4, 3), randn(2, 3, 5)), (randn(3, 2, 6), randn(3, 6, 3))],
        [(randn(2, 4, 3), randn(1, 3, 5)), (randn(1, 4, 3), randn(2, 3, 5)), (randn(2, 4, 3), randn(2, 4, 5))]),
    "matmul": Row(
        lambda x, w: x @ w,
        [(randn(2, 4, 3), randn(2, 3, 5)), (randn(3, 2, 6), randn(3, 6, 3))],
        [(randn(2, 4, 3), randn(1, 3, 5)), (randn(1, 4, 3), randn(2, 3, 5)), (randn(2, 4, 3), randn(3, 3, 5)),
         (randn(2, 4, 3), randn(2, 4, 5))]),
    "baddbmm": Row(
        lambda b, x, w: torch.baddbmm(b, x, w),
        [(randn(2, 4, 5), randn(2, 4, 3), randn(2, 3, 5)), (randn(3, 2, 3), randn(3, 2, 6), randn(3, 6, 3))],
        [(randn(1, 4, 5), randn(2, 4, 3), randn(2, 3, 5)), (randn(2, 4, 5), randn(1, 4, 3), randn(1, 3, 5)),
         (randn(3, 4, 5), randn(2, 4, 3), randn(2, 3, 5)), (randn(2, 4, 5), randn(2, 4, 3), randn(1, 3, 5))]),
    "mv": Row(
        lambda x, w: torch.mv(x, w), [(randn(4, 3), randn(3)), (randn(2, 5), randn(5))],
        [(randn(4, 3), randn(4)), (randn(4, 3), randn(1)), (randn(4, 1), randn(3))]),
    "addmv": Row(
        lambda b, x, w: torch.addmv(b, x, w),
        [(randn(4), randn(4, 3), randn(3)), (randn(2), randn(2, 5), randn(5))],
        [(randn(3), randn(4, 3), randn(3)), (randn(1), randn(4, 3), randn(3)), (randn(4), randn(1, 3), randn(3)),
         (randn(4), randn(4, 3), randn(1))]),
    "addr": Row(
        lambda b, x, w: torch.addr(b, x, w), [(randn(4, 3), randn(4), randn(3)), (randn(2, 5), randn(2), randn(5))],
        [(randn(3, 3), randn(4), randn(3)), (randn(1, 3), randn(4), randn(3)), (randn(4, 3), randn(1), randn(3))]),
    "addbmm": Row(
        lambda b, x, w: torch.addbmm(b, x, w),
        [(randn(4, 5), randn(2, 4, 3), randn(2, 3, 5)), (randn(2, 3), randn(3, 2, 6), randn(3, 6, 3))],
        [(randn(1, 5), randn(2, 4, 3), randn(2, 3, 5)), (randn(4, 5), randn(1, 4, 3), randn(2, 3, 5)),
         (randn(4, 5), randn(2, 1, 3), randn(2, 3, 5)), (randn(3, 5), randn(2, 4, 3), randn(2, 3, 5))]),
    "dot": Row(
        lambda x, w: torch.dot(x, w), [(randn(4), randn(4)), (randn(3), randn(3))],
        [(randn(4), randn(3)), (randn(4), randn(1))]),
    "cdist": Row(
        lambda x, w: torch.cdist(x, w), [(randn(4, 3), randn(5, 3)), (randn(2, 6), randn(4, 6))],
        [(randn(4, 3), randn(5, 1)), (randn(4, 3), randn(5, 4))]),
    "cross": Row(
        lambda x, w: torch.linalg.cross(x, w), [(randn(4, 3), randn(4, 3)), (randn(2, 3), randn(2, 3))],
        [(randn(4, 3), randn(1, 3)), (randn(4, 3), randn(5, 3)), (randn(4, 4), randn(4, 4))]),
    "index_add": Row(
        lambda x, k, s: x.index_add(0, k, s),
        [(randn(6, 3), ints(2), randn(2, 3)), (randn(5, 4), ints(3), randn(3, 4))],
        [(randn(6, 3), ints(2), randn(3, 3)), (randn(6, 3), ints(2), randn(2, 1)),
         (randn(6, 3), ints(1), randn(2, 3)), (randn(6, 3), ints(2), randn(2, 4))]),
    "index_copy": Row(
        lambda x, k, s: x.index_copy(0, k, s),
        [(randn(6, 3), ints(2), randn(2, 3)), (randn(5, 4), ints(3), randn(3, 4))],
        [(randn(6, 3), ints(2), randn(3, 3)), (randn(6, 3), ints(2), randn(2, 1)),
         (randn(6, 3), ints(1), randn(2, 3)), (randn(6, 3), ints(2), randn(2, 4))]),
    "index_fill": Row(
        lambda x, k: x.index_fill(0, k, 2.0), [(randn(6, 3), ints(2)), (randn(5, 4), ints(3))],
        [(randn(6, 3), ints(2) + 7), ]),
    "index_put": Row(
        lambda x, k, s: x.index_put((k,), s),
        [(randn(6, 3), ints(2), randn(2, 3)), (randn(5, 4), ints(3), randn(3, 4))],
        [(randn(6, 3), ints(2), randn(3, 3)), (randn(6, 3), ints(2), randn(2, 1)),
         (randn(6, 3), ints(2), randn(1, 3)), (randn(6, 3), ints(2), randn(2, 4))]),
    "scatter": Row(
        lambda x, k, s: x.scatter(0, k, s),
        [(randn(6, 3), ints(2, 3), randn(2, 3)), (randn(5, 4), ints(3, 4), randn(3, 4))],
        [(randn(6, 3), ints(2, 3), randn(1, 3)), (randn(6, 3), ints(2, 4), randn(2, 4)),
         (randn(6, 3), ints(2, 3), randn(4, 4)), (randn(6, 3), ints(2, 2), randn(2, 3))]),
    "scatter_add": Row(
        lambda x, k, s: x.scatter_add(0, k, s),
        [(randn(6, 3), ints(2, 3), randn(2, 3)), (randn(5, 4), ints(3, 4), randn(3, 4))],
        [(randn(6, 3), ints(2, 3), randn(1, 3)), (randn(6, 3), ints(2, 4), randn(2, 4)),
         (randn(6, 3), ints(2, 3), randn(4, 4)), (randn(6, 3), ints(2, 2), randn(2, 3))]),
    "scatter_reduce": Row(
        lambda x, k, s: x.scatter_reduce(0, k, s, "amax"),
        [(randn(6, 3), ints(2, 3), randn(2, 3)), (randn(5, 4), ints(3, 4), randn(3, 4))],
        [(randn(6, 3), ints(2, 3), randn(1, 3)), (randn(6, 3), ints(2, 4), randn(2, 4)),
         (randn(6, 3), ints(2, 3), randn(4, 4))]),
    "gather": Row(
        lambda x, k: x.gather(0, k), [(randn(6, 3), ints(2, 3)), (randn(5, 4), ints(3, 4))],
        [(randn(6, 3), ints(2, 4)), (randn(6, 3), ints(7, 2)), (randn(6, 3), ints(2, 1))]),
    "take_along_dim": Row(
        lambda x, k: x.take_along_dim(k, 0), [(randn(6, 3), ints(2, 3)), (randn(5, 4), ints(3, 4))],
        [(randn(6, 3), ints(2, 4)), (randn(6, 3), ints(2, 1)), (randn(6, 1), ints(2, 4))]),
    "nll_loss": Row(
        lambda x, t: F.nll_loss(x, t), [(randn(4, 3), ints(4)), (randn(2, 5), ints(2))],
        [(randn(4, 3), ints(3)), (randn(4, 3), ints(1)), (randn(1, 3), ints(4))]),
    "nll_loss weight": Row(
        lambda x, t, w: F.nll_loss(x, t, w), [(randn(4, 3), ints(4), randn(3)), (randn(2, 5), ints(2), randn(5))],
        [(randn(4, 3), ints(4), randn(4)), (randn(4, 3), ints(4), randn(1))]),
    "cross_entropy": Row(
        lambda x, t: F.cross_entropy(x, t), [(randn(4, 3), ints(4)), (randn(2, 5), ints(2))],
        [(randn(4, 3), ints(3)), (randn(4, 3), ints(1)), (randn(1, 3), ints(4))]),
    "cross_entropy probs": Row(
        lambda x, t: F.cross_entropy(x, t), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(1, 3)), (randn(4, 3), randn(4, 1))]),
    "cross_entropy probs weight": Row(
        lambda x, t, w: F.cross_entropy(x, t, w),
        [(randn(4, 3), randn(4, 3), randn(3)), (randn(2, 5), randn(2, 5), randn(5))],
        [(randn(4, 3), randn(4, 3), randn(4)), (randn(4, 3), randn(4, 3), randn(1))]),
    "nll_loss2d": Row(
        lambda x, t: F.nll_loss(x, t), [(randn(2, 3, 4, 5), ints(2, 4, 5)), (randn(3, 2, 5, 4), ints(3, 5, 4))],
        [(randn(2, 3, 4, 5), ints(2, 4, 4)), (randn(2, 3, 4, 5), ints(1, 4, 5)), (randn(2, 3, 4, 5), ints(2, 1, 5))]),
    "grid_sample": Row(
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [(randn(2, 3, 4, 5), randn(2, 4, 4, 2)), (randn(3, 2, 5, 4), randn(3, 2, 2, 2))],
        [(randn(2, 3, 4, 5), randn(1, 4, 4, 2)), (randn(2, 3, 4, 5), randn(2, 4, 4, 3)),
         (randn(1, 3, 4, 5), randn(2, 4, 4, 2))]),
    "mse": Row(
        lambda x, t: F.mse_loss(x, t, reduction="none"), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(1, 3))]),
    "bce": Row(
        lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()),
        [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(1, 3)), (randn(4, 3), randn(4, 1))]),
    "bce logits": Row(
        lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()),
        [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(1, 3)), (randn(4, 3), randn(4, 1))]),
    "kl": Row(
        lambda x, t: F.kl_div(x, t.sigmoid(), reduction="batchmean"),
        [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(1, 3))]),
    "sdpa": Row(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [(randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 8)),
         (randn(3, 2, 5, 4), randn(3, 2, 3, 4), randn(3, 2, 3, 4))],
        [(randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 2, 4, 8)),
         (randn(2, 2, 4, 8), randn(1, 2, 5, 8), randn(1, 2, 5, 8)), (randn(2, 2, 4, 8), randn(2, 2, 5, 4), randn(2, 2, 5, 8)), (randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 4))]),
    "sdpa mask": Row(
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
        [(randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 1, 4, 5)),
         (randn(3, 2, 5, 4), randn(3, 2, 3, 4), randn(3, 1, 5, 3))],
        [(randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 1, 4, 4)),
         (randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(1, 1, 4, 5)), (randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(2, 1, 1, 5)), (randn(2, 2, 4, 8), randn(2, 2, 5, 8), randn(3, 1, 4, 5))]),
    "solve": Row(
        lambda a, b: torch.linalg.solve(a, b), [(torch.eye(4), randn(4, 3)), (torch.eye(3), randn(3, 2))],
        [(torch.eye(4), randn(3, 3)), (torch.eye(4), randn(1, 3))]),
    "solve_triangular": Row(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        [(torch.eye(4), randn(4, 3)), (torch.eye(3), randn(3, 2))],
        [(torch.eye(4), randn(3, 3)), (torch.eye(4), randn(1, 3))]),
    "cholesky_solve": Row(
        lambda a, b: torch.cholesky_solve(b, a), [(torch.eye(4), randn(4, 3)), (torch.eye(3), randn(3, 2))],
        [(torch.eye(4), randn(3, 3)), (torch.eye(4), randn(1, 3))]),
    "inverse": Row(lambda a: torch.linalg.inv(a), [(torch.eye(4),), (torch.eye(3),)], [(randn(4, 3),)]),
    "det": Row(lambda a: torch.linalg.det(a), [(torch.eye(4),), (torch.eye(3),)], [(randn(4, 3),)]),
    "cholesky": Row(lambda a: torch.linalg.cholesky(a), [(torch.eye(4),), (torch.eye(3),)], [(randn(4, 3),)]),
    "trace": Row(lambda a: torch.trace(a), [(torch.eye(4),), (torch.eye(3),)], [(randn(4, 3),)]),
    "where": Row(
        lambda c, a, b: torch.where(c > 0, a, b),
        [(randn(4, 3), randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(4, 2), randn(4, 3)), (randn(1, 3), randn(4, 3), randn(4, 1))]),
    "masked_fill": Row(
        lambda a, m: a.masked_fill(m > 0, 1.0), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(4, 2)), (randn(1, 3), randn(4, 3)), (randn(4, 3), randn(1, 3))]),
    "masked_fill_": Row(
        lambda a, m: a.clone().masked_fill_(m > 0, 1.0), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(4, 2)), (randn(1, 3), randn(4, 3)), (randn(4, 3), randn(1, 3))]),
    "add_": Row(
        lambda a, m: a.clone().add_(m), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(4, 2)), (randn(1, 3), randn(4, 3)), (randn(4, 3), randn(1, 3))]),
    "copy_": Row(
        lambda a, m: a.clone().copy_(m), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(4, 2)), (randn(1, 3), randn(4, 3)), (randn(4, 3), randn(1, 3))]),
    "setitem": Row(
        lambda a, m: a.clone().__setitem__(slice(0, 2), m), [(randn(4, 3), randn(2, 3)), (randn(3, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(1, 3), randn(2, 3)), (randn(4, 3), randn(1, 3))]),
    "searchsorted": Row(
        lambda a, m: torch.searchsorted(a, m), [(randn(4, 3), randn(4, 2)), (randn(2, 5), randn(2, 3))],
        [(randn(4, 3), randn(3, 2)), (randn(4, 3), randn(1, 2))]),
    "cat": Row(
        lambda a, b: torch.cat([a, b]), [(randn(4, 3), randn(2, 3)), (randn(2, 5), randn(3, 5))],
        [(randn(4, 3), randn(2, 4)), (randn(4, 3), randn(2, 1)), (randn(4, 3), randn(0))]),
    "stack": Row(
        lambda a, b: torch.stack([a, b]), [(randn(4, 3), randn(4, 3)), (randn(2, 5), randn(2, 5))],
        [(randn(4, 3), randn(3, 3)), (randn(4, 3), randn(4, 1))]),
    "index_select": Row(
        lambda a, k: a.index_select(1, k), [(randn(4, 3), ints(2)), (randn(2, 5), ints(3))],
        [(randn(4, 3), ints(2) + 4), (randn(4, 0), ints(2))]),
    "embedding": Row(
        lambda k, w: F.embedding(k, w), [(ints(4, 3), randn(4, 3)), (ints(2, 5), randn(2, 5))],
        [(ints(4, 3) + 6, randn(4, 3)), (ints(2, 5), randn(0, 3))]),
    "pixel_shuffle": Row(
        lambda x: F.pixel_shuffle(x, 2), [(randn(2, 8, 3, 4),), (randn(2, 4, 4, 5),)],
        [(randn(2, 6, 3, 4),)]),
    "pixel_unshuffle": Row(
        lambda x: F.pixel_unshuffle(x, 2), [(randn(2, 8, 4, 4),), (randn(2, 4, 6, 2),)],
        [(randn(2, 6, 3, 4),)]),
    "channel_shuffle": Row(
        lambda x: F.channel_shuffle(x, 2), [(randn(2, 8, 4, 4),), (randn(2, 4, 6, 2),)],
        [(randn(2, 5, 3, 4),)]),
    "fold": Row(
        lambda x: F.fold(x, (4, 5), 2), [(randn(2, 8, 12),), (randn(3, 4, 12),)],
        [(randn(2, 8, 11),), (randn(2, 6, 12),)]),
    "glu": Row(lambda x: F.glu(x), [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 7),)]),
    "prelu": Row(
        lambda x, w: F.prelu(x, w), [(randn(2, 8), randn(8)), (randn(3, 4), randn(4))],
        [(randn(2, 8), randn(4)), (randn(2, 8), randn(1))]),
    "bilinear": Row(
        lambda x, w: F.bilinear(x, x, w), [(randn(2, 8), randn(3, 8, 8)), (randn(3, 4), randn(2, 4, 4))],
        [(randn(2, 8), randn(3, 4, 8)), (randn(2, 8), randn(3, 1, 8))]),
    "reflect": Row(
        lambda x: F.pad(x, (2, 2), mode="reflect"), [(randn(2, 3, 8),), (randn(3, 4, 4),)],
        [(randn(2, 3, 2),), (randn(2, 3, 1),)]),
    "circular": Row(
        lambda x: F.pad(x, (2, 2), mode="circular"), [(randn(2, 3, 8),), (randn(3, 4, 4),)],
        [(randn(2, 3, 2),), (randn(2, 3, 1),)]),
    "max_pool2d": Row(
        lambda x: F.max_pool2d(x, 3), [(randn(2, 3, 8, 8),), (randn(3, 4, 4, 5),)],
        [(randn(2, 3, 2, 8),), (randn(2, 3, 0, 8),)]),
    "avg_pool1d": Row(lambda x: F.avg_pool1d(x, 3), [(randn(2, 3, 8),), (randn(3, 4, 4),)], [(randn(2, 3, 2),)]),
    "topk": Row(lambda x: x.topk(3)[0], [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 2),), (randn(2, 1),)]),
    "kthvalue": Row(lambda x: x.kthvalue(3)[0], [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 2),), (randn(2, 1),)]),
    "narrow": Row(lambda x: x.narrow(1, 2, 2), [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 2),), (randn(2, 3),)]),
    "select": Row(lambda x: x[:, 3], [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 3),), (randn(2, 1),)]),
    "expand": Row(lambda x: x.expand(3, 4), [(randn(3, 4),), (randn(1, 4),)], [(randn(2, 4),), (randn(3, 5),)]),
    "unfold": Row(lambda x: x.unfold(1, 3, 2), [(randn(3, 4),), (randn(2, 7),)], [(randn(2, 2),)]),
    "unflatten": Row(lambda x: x.unflatten(1, (2, -1)), [(randn(3, 4),), (randn(2, 6),)], [(randn(2, 3),)]),
    "split sizes": Row(
        lambda x: x.split([2, 3], 1)[1], [(randn(3, 5),), (randn(2, 5),)],
        [(randn(2, 6),), (randn(2, 1),)]),
    "amax": Row(lambda x: x.amax(1), [(randn(3, 5),), (randn(2, 4),)], [(randn(2, 0),)]),
    "argmax": Row(lambda x: x.argmax(), [(randn(3, 5),), (randn(2, 4),)], [(randn(2, 0),)]),
    "max dim": Row(lambda x: x.max(1)[0], [(randn(3, 5),), (randn(2, 4),)], [(randn(2, 0),), (randn(0, 3),)]),
    "median": Row(lambda x: x.median(1)[0], [(randn(3, 5),), (randn(2, 4),)], [(randn(2, 0),), (randn(0, 3),)]),
    "gru cell": Row(
        lambda x, h, wi, wh: torch.gru_cell(x, h, wi, wh),
        [(randn(3, 4), randn(3, 5), randn(15, 4), randn(15, 5)),
         (randn(2, 3), randn(2, 4), randn(12, 3), randn(12, 4))],
        [(randn(3, 4), randn(1, 5), randn(15, 4), randn(15, 5)),
         (randn(3, 4), randn(2, 5), randn(15, 4), randn(15, 5)), (randn(3, 3), randn(3, 5), randn(15, 4), randn(15, 5))]),
    "lstm cell": Row(
        lambda x, h, wi, wh: torch.lstm_cell(x, (h, h), wi, wh),
        [(randn(3, 4), randn(3, 5), randn(20, 4), randn(20, 5)),
         (randn(2, 3), randn(2, 4), randn(16, 3), randn(16, 4))],
        [(randn(3, 4), randn(1, 5), randn(20, 4), randn(20, 5)),
         (randn(3, 4), randn(2, 5), randn(20, 4), randn(20, 5)), (randn(3, 3), randn(3, 5), randn(20, 4), randn(20, 5))]),
    "fft": Row(lambda x: torch.fft.rfft(x), [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 0),)]),
    "histc": Row(lambda x: x.histc(4), [(randn(2, 8),), (randn(3, 4),)], [(randn(2, 0),)]),
    "cosine": Row(
        lambda x, y: F.cosine_similarity(x, y), [(randn(2, 8), randn(2, 8)), (randn(3, 4), randn(3, 4))],
        [(randn(2, 8), randn(1, 8)), (randn(2, 8), randn(2, 1)), (randn(2, 8), randn(3, 8))]),
    "triplet": Row(
        lambda x, y: F.triplet_margin_loss(x, y, x), [(randn(2, 8), randn(2, 8)), (randn(3, 4), randn(3, 4))],
        [(randn(2, 8), randn(1, 8)), (randn(2, 8), randn(2, 1)), (randn(2, 8), randn(3, 8))]),
    "interpolate": Row(
        lambda x: F.interpolate(x, scale_factor=0.4), [(randn(2, 3, 8),), (randn(2, 3, 9),)],
        [(randn(2, 3, 2),), (randn(2, 3, 0),)]),
    "adaptive": Row(
        lambda x: F.adaptive_avg_pool2d(x, 2), [(randn(2, 3, 8, 4),), (randn(2, 3, 9, 5),)],
        [(randn(2, 3, 0, 4),), (randn(2, 3, 1, 1),)]),
    "repeat_interleave": Row(
        lambda x, n: x.repeat_interleave(n, 0), [(randn(2, 3), ints(2) + 2), (randn(3, 3), ints(3) + 1)],
        [(randn(2, 3), ints(3) + 1), (randn(2, 3), ints(1) + 3)]),
    "as_strided": Row(lambda x: x.as_strided((3,), (1,)), [(randn(2, 3),), (randn(3, 3),)], [(randn(1, 2),)]),
    "block scatter": Row(
        lambda x, y: x.slice_scatter(y, 0, 1, 3), [(randn(4, 3), randn(2, 3)), (randn(5, 2), randn(2, 2))],
        [(randn(4, 3), randn(3, 3)), (randn(2, 3), randn(2, 3)), (randn(4, 3), randn(2, 1))]),
    "diagonal_scatter": Row(
        lambda x, y: x.diagonal_scatter(y), [(randn(4, 3), randn(3)), (randn(5, 2), randn(2))],
        [(randn(4, 3), randn(4)), (randn(4, 3), randn(1))]),
    "select_scatter": Row(
        lambda x, y: x.select_scatter(y, 0, 1), [(randn(4, 3), randn(3)), (randn(5, 2), randn(2))],
        [(randn(4, 3), randn(4)), (randn(4, 3), randn(1)), (randn(1, 3), randn(3))]),
    "bucketize": Row(
        lambda x, y: torch.bucketize(x, y), [(randn(4, 3), randn(3)), (randn(5, 2), randn(2))],
        [(randn(4, 3), randn(0))]),
    "view_as": Row(
        lambda x, y: x.view_as(y), [(randn(4, 3), randn(2, 6)), (randn(5, 2), randn(2, 5))],
        [(randn(4, 3), randn(2, 5))]),
    "broadcast add": Row(
        lambda x, y: x + y, [(randn(4, 3), randn(4, 3)), (randn(5, 2), randn(5, 2))],
        [(randn(4, 3), randn(2, 3)), (randn(4, 3), randn(1, 3)), (randn(1, 3), randn(4, 1))]),
}
