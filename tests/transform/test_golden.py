"""What each pass does to small graphs, as text people read: tests/golden/transform_*.txt."""

import pytest
import torch
import torch.nn.functional as F

from preheat.ir.text import show
from preheat.transform.pipeline import lower
from transform.record import record


def _cache(cache, row, query):
    cache[:, 3] = row
    return (query * cache).sum(-1)


def _inplace(x, y):
    top = x[0]
    top.add_(y)
    x.mul_(2)
    return top, x[1:]


def _attention(q, k, mask):
    scores = q @ k.transpose(-1, -2) / 8
    return scores.masked_fill(mask, float("-inf")).softmax(-1)


PROGRAMS = {
    "gelu": (lambda x: F.gelu(x), [(4, 8)]),
    "residual_layer_norm": (lambda x, r, w, b: F.layer_norm(x + r, (8,), w, b), [(4, 8), (4, 8), (8,), (8,)]),
    "softmax_bf16": (lambda x: F.silu(x).softmax(-1), [(4, 8, torch.bfloat16)]),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), [(2, 4, 8), (6, 8), (6,)]),
    "inplace": (_inplace, [(4, 8), (8,)]),
    "cache": (_cache, [(2, 16, 8), (2, 8), (2, 16, 8)]),
    "masked_softmax": (_attention, [(2, 4, 8), (2, 4, 8), (4, 4, torch.bool)]),
    "batch_norm": (lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), [(2, 3, 4, 4), (3,), (3,), (3,), (3,)]),
    "embedding": (lambda i, w, p: F.embedding(i, w) + p[: i.shape[1]], [(2, 3, torch.int64), (9, 4), (5, 4)]),
    "views": (lambda x: (x * 2).view(2, 2, 8).transpose(0, 1), [(4, 8)]),
}


def _tensor(*sizes, dtype=torch.float32):
    return torch.zeros(sizes, dtype=dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes(name, golden):
    fn, operands = PROGRAMS[name]
    inputs = [_tensor(*(s for s in sizes if isinstance(s, int)), dtype=next((s for s in sizes if not isinstance(s, int)), torch.float32))
              for sizes in operands]
    graph, _, _ = record(fn, inputs)
    parts = ["recorded\n" + show(graph)]
    lower(graph, is_checked=True, observe=lambda step, after: parts.append(f"{step.name}\n{show(after)}"))
    golden(f"transform_{name}", "\n\n".join(parts))
