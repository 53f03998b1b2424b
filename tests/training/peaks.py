"""What `test_memory` measures in a process of its own: prints the bytes of each program as JSON.

`bench.memory` counts by the profiler, which it hides from a Preheat that is imported after it.
"""

import json

import bench.memory  # first
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import preheat

NO_CACHE = {"cache": False}


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + F.dropout(self.b(F.gelu(self.a(self.norm(x)))), 0.1, self.training)


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.blocks, self.kind = nn.ModuleList(Block() for _ in range(6)), kind

    def forward(self, x):
        for block in self.blocks:
            if self.kind == "plain":
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.kind == "reentrant")
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(1000, 64), nn.Linear(64, 64)

    def forward(self, x):
        return F.cross_entropy(F.linear(self.layer(self.table(x)), self.table.weight), x)


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(64, 64, 7, padding=3, groups=64), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(self.convolution(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).square().mean()


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 512, 5, padding=2), nn.Linear(512, 512)

    def forward(self, x):
        return self.last(F.gelu(self.first(x)).mean((2, 3))).square().mean()


def beside_eager(kind):
    """The peak of a step, eager and compiled."""
    net, peaks = Net(kind), []
    for call in (net, preheat.compile(net, options=NO_CACHE)):
        def step():
            x = torch.randn(512, 64, requires_grad=True)
            call(x).square().mean().backward()
            for p in net.parameters():
                p.grad = None
        for _ in range(5):
            step()
        peaks.append(bench.memory.peak_bytes(step))
    return peaks


def beside_gradients(make, x):
    """The peak of a step, what is held between steps, and the gradients' own bytes."""
    before = bench.memory.alive_bytes()
    net = make()
    gradients = sum(p.numel() * 4 for p in net.parameters())
    call = preheat.compile(net, options=NO_CACHE)

    def step():
        call(x).backward()
        for p in net.parameters():
            p.grad = None

    for _ in range(5):
        step()
    held = bench.memory.alive_bytes() - before - gradients
    return bench.memory.peak_bytes(step), held, gradients


if __name__ == "__main__":
    print(json.dumps({
        **{kind: beside_eager(kind) for kind in ("plain", "checkpoint", "reentrant")},
        "tied": beside_gradients(Tied, torch.arange(16)),
        "depthwise": beside_gradients(Depthwise, torch.randn(2, 8, 8, 64)),
        "narrow": beside_gradients(Narrow, torch.randn(1, 16, 12, 12)),
    }))
