"""Small programs in which sizes decide something, and how many captures they may take.

Each is called with x: [B, T] at every pair of `SIZES`, then where there are no elements. `None`: as many as there are ways that the
program goes (a loop over an axis is another program at each size).
"""

import torch
import torch.nn.functional as F

SIZES = tuple((b, t) for b in (4, 2, 3, 5, 6, 8, 12, 1) for t in (6, 2, 3, 4, 7, 9, 12, 1))
NOTHING = ((0, 6), (6, 0), (0, 0), (0, 1), (1, 0))  # each is a way of its own, at which many programs fail


def size_if(x):
    return x + 1 if x.shape[0] > 4 else x - 1


def loop(x):
    for i in range(x.shape[0]):
        x = x + i
    return x


def chunked(x):
    return torch.cat([c.sum(0, keepdim=True) for c in x.split(2)])


def padded(x):
    return F.pad(x, (0, 8 - x.shape[1])) if x.shape[1] < 8 else x


def assigned(x):
    x = x.clone()
    x[: x.shape[0] // 2] = 0.0
    return x


def broadcast(x):
    return x[:, :1] + x[:1]


def masked(x):
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    scores = x.unsqueeze(-1) * x.unsqueeze(-2)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def heads(x):
    batch, length = x.shape
    y = x.reshape(batch, length, 1).expand(batch, length, 8)
    y = y.reshape(batch, length, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(y, y, y).transpose(1, 2).reshape(batch, length, -1)


def blocks(x):
    length = x.shape[1] // 2 * 2
    return x[:, :length].reshape(x.shape[0], -1, 2).sum(-1)


def rotary(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def tuple_of_sizes(x):
    return x.sum(), x.shape, x.size(1) + 1, x.numel(), x.stride(), len(x), x.dim()


def compares(x):
    return x * 2 if x.shape[0] == x.shape[1] else x


def by_shape(x):
    return torch.zeros(x.shape[:1] + (3,)) + x.shape[-1]


def named_reductions(x):
    values, places = x.max(1)
    return values.sum() + places.float().mean(), x.var(0, correction=0), x.argmin(0)


PROGRAMS = {
    "add transposed": (lambda x: x + x.t(), None),
    "square product": (lambda x: x @ x, None),
    "view by 6": (lambda x: x.view(-1, 6), None),
    "branch": (size_if, 2),
    "loop": (loop, None),
    "flat": (lambda x: x.reshape(-1) * 2, 1),
    "half": (lambda x: x[: x.shape[0] // 2], 2),
    "last": (lambda x: x[-1], 1),
    "first three": (lambda x: x[:3], 2),
    "transposed view": (lambda x: x.t().reshape(-1), 5),
    "mean by hand": (lambda x: x.sum() / x.shape[0], 1),
    "arange": (lambda x: x + torch.arange(x.shape[1]), 1),
    "cat self": (lambda x: torch.cat([x, x + 1], 0), 1),
    "eye": (lambda x: x + torch.eye(x.shape[1])[:1], 2),
    "chunked": (chunked, None),
    "padded": (padded, 2),
    "permuted": (lambda x: x.unsqueeze(0).permute(2, 0, 1).contiguous().view(x.shape[1], -1), 5),
    "transposed slice": (lambda x: x.t()[:2].sum(0), 2),
    "square root": (lambda x: x * (x.shape[1] ** 0.5), 1),
    "softmax": (lambda x: (x @ x.t()).softmax(-1), 1),
    "expand": (lambda x: x[:1].expand(x.shape[0], -1) + x, 2),
    "sum of unbound": (lambda x: sum(x.unbind(0)), None),
    "stride": (lambda x: x.t() * x.t().stride(0) + x.t().is_contiguous(), 5),
    "scalar": (lambda x: x * x.shape[0], 1),
    "topk": (lambda x: x.topk(2, 0)[0], 2),
    "flat slice": (lambda x: x.reshape(-1)[: x.shape[0] * 2], 3),
    "max": (lambda x: x.max(1)[0], 1),
    "new": (lambda x: x.new_zeros(x.shape[0], 2) + 1, 1),
    "assigned": (assigned, 2),
    "broadcast": (broadcast, None),
    "masked": (masked, 1),
    "heads": (heads, 5),
    "blocks": (blocks, 6),
    "rotary": (rotary, 5),
    "sizes out": (tuple_of_sizes, 1),
    "compared": (compares, 2),
    "by shape": (by_shape, 1),
    "reductions": (named_reductions, 1),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), 1),
    "stack": (lambda x: torch.stack([x, x * 2], 1).flatten(1), 1),
    "norm": (lambda x: F.normalize(x), 1),
    "in place": (lambda x: (x * 1).add_(x).mul_(2).relu_(), 1),
    "outer": (lambda x: torch.einsum("bt,bs->ts", x, x), 5),
    "roll": (lambda x: x.roll(1, 1).flip(0), 1),
    "cumsum": (lambda x: x.cumsum(0).cumsum(1), 1),
    "gather": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), 1),
    "interpolated": (lambda x: F.interpolate(x[None, None], scale_factor=2), 1),
    "pooled": (lambda x: F.adaptive_avg_pool2d(x[None, None], 1), 2),
    "repeated": (lambda x: x.repeat(2, 3) + x.shape[0], 1),
    "diagonal": (lambda x: x.diagonal(), 2),
    "unfolded": (lambda x: x.unfold(1, 2, 1) if x.shape[1] > 1 else x, 2),
    "one by one": (lambda x: torch.tensor_split(x, 2, 1)[0], None),
    "sorted": (lambda x: x.sort(1)[0], 1),
    "double": (lambda x: x.double() / 3, 1),
    "where": (lambda x: torch.where(x > 0, x, x.mean(0)), 1),
    "narrow": (lambda x: x.narrow(1, x.shape[1] - 1, 1), 1),
}
