"""Plans of graphs whose sizes are hinted: one plan, right at every size that its conditions allow."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from preheat.capture.capture import capture
from preheat.compiler import compile_graph
from preheat.generate.build import build, cpu_target, host_target
from preheat.ir.hinted import Book
from preheat.ir.pack import decode, encode
from preheat.ir.scalar import evaluate
from preheat.ir.sized import at, with_hinted_sizes
from preheat.ir.types import tensor
from preheat.run.executable import executable

HOST = host_target()
TARGETS = {
    "host": HOST,
    "avx2": cpu_target("x86_64", ("avx2", "fma", "f16c")) if "avx2" in HOST.features else None,
    "baseline": cpu_target(HOST.arch, ()),
}
SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 48, 64, 65, 100, 128, 257, 1030)
HINTS = ((37, 19), (53, 7))
WEIGHT = torch.linspace(-1, 1, 24 * 40).view(24, 40)


def softmax(x):
    return (x * 2 + 1).softmax(-1), x.log_softmax(0)


def normalised(x):
    return F.layer_norm(x, x.shape[-1:]), x.var(0), x.mean()


def residual(x):
    y = F.layer_norm(x * 2, x.shape[-1:]) + x
    return y, y.mean(-1), (y - y.mean(-1, True)) / x.shape[1]


def chain(x):
    return (x.relu() * x.sigmoid() - x / x.shape[0]).t().contiguous(), x.t() * 2


def halves(x):
    return (x.bfloat16() * 3).softmax(-1), x.half().sum(-1), x.double().sum(0)


def extrema(x):
    return x.max(-1), x.min(0), x.argmax(), x.amax((0, 1)), x.abs().argmin(1)


def truths(x):
    return (x > 0).any(-1), (x > -3).all(0), (x > 1).sum(), x.bool().any()


def moved(x):
    return (torch.cat([x, x * 2], -1)[:, 1:], F.pad(x, (2, 1), value=3.0), x.flip(1).exp(),
            x[None].expand(3, -1, -1).permute(2, 0, 1).reshape(-1) + 1)


def counted(x):
    index = torch.arange(x.shape[1])
    return index.float() * x.shape[0] + x, F.embedding(index % 24, WEIGHT) + 1


def masked(x):
    rows = torch.arange(x.shape[0])[:, None]
    return torch.where(rows >= torch.arange(x.shape[1]), x, -1e4).softmax(-1), x.tril(), x.cumsum(0)


def batched(x):
    heads = x.unsqueeze(1).expand(-1, 4, -1).transpose(0, 1)  # [4, B, T]
    return heads @ heads.transpose(1, 2), (heads * 2).transpose(1, 2).contiguous() @ heads


PROGRAMS = (
    softmax, normalised, residual, chain, halves, extrema, truths, moved, counted, masked, batched)


def template(program, target):
    with torch.no_grad():
        outcome = capture(program, (torch.randn(HINTS[0]),), {}, limits=None, dynamic=frozenset(
            ["arg0.shape[0]", "arg0.shape[1]"]))
    trace = outcome.captured.trace
    body, sources = trace.nodes[0].body, [trace.sources[s] for s in trace.nodes[0].inputs]
    symbols = tuple(name for name, _ in body.symbols)
    calls = [tuple(call[k] for k in range(2)) for call in HINTS][: len(HINTS)]
    assert body.hints == (HINTS[0],), body.hints
    book = Book()
    graph = with_hinted_sizes(body, symbols, calls, book)
    plan, _ = compile_graph(graph, target, is_for_many=True)
    image = build(plan.kernels, target)
    plan = replace(plan, symbols=symbols, conditions=book.conditions)
    read = decode(encode(plan))
    assert decode(encode(read)) == read
    return body, sources, read, image


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target is not None])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_plan_at_every_size(program, target):
    body, sources, plan, image = template(program, TARGETS[target])
    symbols = {value for _, value in body.symbols}
    inputs = [pair for pair in zip(body.inputs, sources) if pair[0].id not in symbols]
    served = 0
    for number, rows in enumerate(SIZES):
        for columns in SIZES[number % 3 :: 3]:
            sizes = dict(zip(plan.symbols, (rows, columns)))
            if not all(evaluate(condition, sizes) for condition in plan.conditions):
                continue
            x = torch.randn(rows, columns)
            run = executable(at(plan, sizes), image)
            found = run([
                x.shape[source.key] if source.kind == "size" else
                WEIGHT if given.type == tensor("float32", (24, 40)) else x
                for given, source in inputs])
            expected = leaves(program(x))
            assert len(found) >= len(expected)
            for ours, theirs in zip(found, expected):
                assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
                rtol = 2e-2 if ours.dtype in (torch.bfloat16, torch.float16) else 2e-5
                torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol, equal_nan=True)
            served += 1
    assert served >= 40, plan.conditions


def leaves(value):
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]
