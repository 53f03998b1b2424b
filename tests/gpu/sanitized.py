"""Kernels of each kind, on sizes that fill no block: run by `test_sanitizer.py` under compute-sanitizer.

Each result is compared with eager, so that what the tool watches is what is right.
"""

import torch
import torch.nn.functional as F
from torch import nn

import preheat

OPTIONS = {"cache": False}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def check(fn, *args):
    compiled = preheat.compile(fn, options=OPTIONS)
    with torch.no_grad():
        for _ in range(4):
            close(compiled(*args), fn(*args))


def normal(*sizes, dtype=torch.float32):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0)).to(dtype).cuda()


def kernels(dtype):
    wide, tall = normal(37, 1031, dtype=dtype), normal(2053, 19, dtype=dtype)
    check(lambda x: (F.gelu(x) * 2, x.t().contiguous(), x[1:, 3:] + 1, F.pad(x, (1, 2))), wide)
    check(lambda x: (x.softmax(-1), x.sum(), x.sum(0), x.amax(1), x.var(-1)), wide)
    check(lambda x: (x.softmax(-1), x.sum(), x.sum(0), x.amax(1), x.var(-1)), tall)
    check(lambda x: F.layer_norm(x, x.shape[-1:]), wide)
    check(lambda x: x.softmax(-1), normal(3, 70001, dtype=dtype))
    index = torch.tensor([0, 36, 5, 5, 17]).cuda()
    check(lambda x, i: (x[i], x.gather(0, i[:, None].expand(5, 7)), torch.cat([x[i], x])), wide, index)
    check(lambda x, i: torch.zeros_like(x).index_add(0, i, x[:5] * 2), wide, index)
    check(lambda x: (x @ x.t()).relu() + 1, wide)


def training(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(61, 48), nn.Linear(48, 77), nn.GELU(), nn.LayerNorm(77), nn.Dropout(0.1),
        nn.Linear(77, 61)).cuda().to(dtype)
    compiled = preheat.compile(net, options=OPTIONS)
    ids = torch.randint(0, 61, (5, 13)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
    step = preheat.compile(optimizer.step, options=OPTIONS)
    for seed in range(4):
        grads = []
        for call in (net, compiled):
            torch.manual_seed(seed)
            net.zero_grad()
            F.cross_entropy(call(ids).flatten(0, 1), ids.flatten()).backward()
            grads.append([p.grad.clone() for p in net.parameters()])
        for mine, eager in zip(*grads):
            close(mine, eager)
        step()


if __name__ == "__main__":
    for dtype in (torch.float32, torch.bfloat16):
        kernels(dtype)
        training(dtype)
    torch.cuda.synchronize()
    assert preheat.counters()["fallbacks"] == 0, preheat.counters()
    print("all as eager")
