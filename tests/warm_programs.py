"""What `test_warm` runs in processes of their own: python warm_programs.py NAME prints JSON.

Imports only torch (and for some programs transformers), as a user's service would.
"""

import json
import os
import sys
import types
from typing import NamedTuple

import torch
from torch import nn

import preheat

COMPILER = (
    "preheat.capture",
    "preheat.transform",
    "preheat.schedule",
    "preheat.generate",
    "preheat.compile",
    "preheat.differentiate",
    "preheat.templates",
    "preheat.targets",
)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, *, scale=1.0):
        self.count.add_(1)
        return x + torch.nn.functional.gelu(self.fc(self.norm(x))) * scale


def plain(x):
    return torch.softmax(x * 2 + 1, -1)


def structured(x, y):
    total = (x + y).relu()
    return {"total": total, "pair": Pair(total.sum(0), x), "flag": True, "shape": x.shape}


def in_place(x):
    x.mul_(2)
    return x[0] + 1


def block():
    return nn.Sequential(*(Block(16) for _ in range(3))).eval()


def bert():
    import transformers

    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return transformers.BertModel(config).eval()


PROGRAMS = {
    "plain": lambda: (plain, (torch.randn(4, 9),)),
    "structured": lambda: (structured, (torch.randn(4, 9), torch.randn(4, 9))),
    "in_place": lambda: (in_place, (torch.randn(4, 9),)),
    "block": lambda: (block(), (torch.randn(5, 16),)),
    "bert": lambda: (bert(), (torch.randint(0, 50, (2, 7)),)),
}


def loaded_since(before):
    """The modules of the compiler that were loaded since."""
    return sorted(
        m
        for m in sys.modules
        if m.startswith((*COMPILER, "torch._dynamo", "llvmlite", "triton")) and m not in before
    )


def train(wrap):
    """Losses and the last gradients of four steps."""
    torch.manual_seed(0)
    device = os.environ.get("WARM_DEVICE", "cpu")
    model = nn.Sequential(block().train(), nn.Dropout(0.1), nn.Linear(16, 3)).to(device)
    call, losses = wrap(model), []
    for _ in range(4):
        x, y = torch.randn(5, 16, device=device), torch.randint(0, 3, (5,), device=device)
        model.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return leaves([*losses, *(p.grad for p in model.parameters())])


def main_training():
    before = set(sys.modules)
    found = train(preheat.compile)
    report(loaded_since(before), found, train(lambda model: model))


def main_generated():
    """Beside the same by what nothing is stored of."""
    before = set(sys.modules)
    found = train(lambda model: preheat.compile(model, options={"random": "generated"}))
    loaded, counters = loaded_since(before), preheat.counters()
    report(loaded, found, train(lambda model: preheat.compile(
        model, options={"random": "generated", "cache": False})), counters)


def main_sizes(*lengths):
    """A model at batches and lengths, each of them new to a process that has a cache."""
    torch.manual_seed(0)
    model, before, found, expected = bert(), set(sys.modules), [], []
    compiled = preheat.compile(model)
    with torch.no_grad():
        for number, length in enumerate(map(int, lengths)):
            ids = torch.randint(0, 50, (number % 3 + 2, length))
            found += leaves(compiled(ids)[0])
        loaded = loaded_since(before)
        torch.manual_seed(0)
        bert()
        for number, length in enumerate(map(int, lengths)):
            ids = torch.randint(0, 50, (number % 3 + 2, length))
            expected += leaves(model(ids)[0])
    report(loaded, found, expected)


def by_index(xs):
    total = torch.zeros(3)
    for place in range(len(xs)):
        total += xs[place] * 2
    return total


def by_part(xs):
    return [x + 1 for x in xs[1:]], torch.stack([*reversed(xs)]).sum(0) + xs[-1]


def main_lists(*lengths):
    """Loops over lists of these lengths."""
    torch.manual_seed(0)
    before, found, expected = set(sys.modules), [], []
    with torch.no_grad():
        for function in (by_index, by_part):
            compiled = preheat.compile(function)
            for length in map(int, lengths):
                xs = [torch.randn(3) for _ in range(length)]
                found += leaves(compiled(xs))
                expected += leaves(function(xs))
    report(loaded_since(before), found, expected)


def report(loaded, found, expected, counters=None):
    print(
        json.dumps(
            {
                "loaded": loaded,
                "counters": counters or preheat.counters(),
                "found": found,
                "expected": expected,
            }
        )
    )


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value.tolist()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in leaves(part)]
    return [] if isinstance(value, types.FunctionType) else [repr(value)]


def main(name):
    torch.manual_seed(0)
    call, args = PROGRAMS[name]()
    before = set(sys.modules)
    with torch.no_grad():
        compiled = preheat.compile(call)
        first = leaves(compiled(*args))
        loaded = loaded_since(before)
        second = leaves(compiled(*args))
        torch.manual_seed(0)
        call, args = PROGRAMS[name]()
        expected = leaves(call(*args)), leaves(call(*args))
    report(loaded, [first, second], expected)


if __name__ == "__main__":
    mains = {"training": main_training, "generated": main_generated, "sizes": main_sizes, "lists": main_lists}
    given = sys.argv[2:] if sys.argv[1] in mains else sys.argv[1:]
    mains.get(sys.argv[1], main)(*given)
