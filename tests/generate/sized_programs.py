"""Programs whose sizes change, and their plans for a GPU with sizes as arguments: for tests without one.

    template = planned(program, (x,))      a plan for all sizes, by a real call on the CPU
    template.at(args)                                       the same at the sizes of these, and its inputs
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from schedule.graphs import on_gpu

from preheat.capture.capture import capture
from preheat.generate.sources import Source
from preheat.generate.variants import sources_of
from preheat.ir.hinted import Book
from preheat.ir.plan import Plan, Target
from preheat.ir.scalar import Scalar, evaluate
from preheat.ir.sized import at, with_hinted_sizes
from preheat.ir.trace import Trace
from preheat.schedule.products import products_by_rule
from preheat.schedule.schedule import schedule
from preheat.templates import merged, with_other_hints
from preheat.transform.pipeline import lower

TARGET = Target("cuda", "sm_90")


class Planned(NamedTuple):
    """sources: of each kernel by name."""

    plan: Plan
    sources: dict[str, list[Source]]
    conditions: tuple[Scalar, ...]
    preferences: tuple[Scalar, ...]
    trace: Trace

    def serves(self, args) -> bool:
        """Whether a call with these arguments is the plan's, by guards on sizes and conditions."""
        found, sizes = self._found(args)
        (node,), sources = self.trace.nodes, self.trace.sources
        tests = [guard for guard in node.guards if guard.source >= 0 and sources[guard.source].kind == "number"]
        return all(found[guard.source] is guard.expected for guard in tests if guard.kind == "is") and all(
            evaluate(test, sizes) for test in self.conditions)

    def at(self, args) -> tuple[Plan, list[torch.Tensor]]:
        """The plan for these arguments, whose sizes meet its conditions, and its inputs."""
        (node,) = self.trace.nodes
        found, sizes = self._found(args)
        assert all(evaluate(test, sizes) for test in self.conditions), (sizes, *map(str, self.conditions))
        symbols = {value for _, value in node.body.symbols}
        inputs = [found[source] for source, i in zip(node.inputs, node.body.inputs) if i.id not in symbols]
        inputs = [
            torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else torch.int64)
            if isinstance(x, int | float) else x for x in inputs]
        return at(self.plan, sizes), inputs

    def _found(self, args) -> tuple[dict, dict]:
        """The arguments, sizes and numbers by source, and the sizes by name."""
        found, sizes = {}, {}
        for place, source in enumerate(self.trace.sources):
            if source.kind == "arg":
                found[place] = args[source.key]
            elif source.kind in ("size", "stride"):
                numbers = found[source.parent].shape if source.kind == "size" else found[source.parent].stride()
                found[place] = sizes[f"{'n' if source.kind == 'size' else 't'}{place}"] = numbers[source.key]
        for place, source in enumerate(self.trace.sources):
            if source.kind == "number":
                found[place] = evaluate(source.key, sizes)
        return found, sizes


def planned(program, args, fixed=None) -> Planned:
    """The plan of `program` for all sizes; every axis may change that has none of the sizes `fixed`, by default FIXED."""
    moving = frozenset(
        f"arg{k}.shape[{axis}]" for k, x in enumerate(args) for axis in range(x.dim())
        if not (x.shape[axis] in (fixed or FIXED)))
    with torch.no_grad():
        outcome = capture(program, args, {}, limits=None, dynamic=moving)
    trace = outcome.captured.trace
    graph = on_gpu(with_other_hints(merged(trace.nodes[0].body, trace), trace))
    symbols, book = tuple(name for name, _ in graph.symbols), Book()
    core = lower(with_hinted_sizes(graph, symbols, graph.hints, book), is_checked=True)
    plan = schedule(core, TARGET, products_by_rule(core, TARGET))
    sources = {kernel.name: sources_of(kernel, TARGET) for kernel in plan.kernels}
    return Planned(plan, sources, book.conditions, book.preferences, trace)


FIXED = (3, 24, 64)  # sizes that stay


def softmax(x):
    return torch.softmax(x * 0.5, -1), x.log_softmax(-1), x.softmax(0)


def norms(x):
    return F.layer_norm(x, x.shape[-1:]), x * (x.pow(2).mean(-1, True) + 1e-6).rsqrt(), x.std(-1), x.var(0)


def known_rows(x, w):
    return F.gelu(F.layer_norm(x, (24,), w) + x)


def reductions(x):
    return x.sum(-1), x.mean(0), x.amax(-1), x.amin(0), x.sum(), x.argmax(-1), x.argmin(0), (x > 0).any(-1)


def pooled(x):
    return x.mean(1), x.amax(1)


def chain(x, y):
    return (x + 1).relu() * y.sigmoid() - x


def gelu(x):
    return F.gelu(x * 0.5 + 1)


def bias(x, b):
    return F.gelu(x + b), x * b[:2].sum()


def mask(x, m):
    return x.masked_fill(m[:, None, None] == 0, -1e9), (x * m[:, None, None]).softmax(-1)


def embedding(i, w):
    return F.embedding(i, w) * 2, w[i].sum(1)


def movement(x):
    return x.transpose(0, 1).contiguous(), x.flip(1) + 1, F.pad(x, (1, 2)) * 2, x[1:, ::2].exp()


def joined(x, y):
    return torch.cat([x, y], 1) * 2, torch.cat([y, x], 1).sum(1)


def parts(x, i):
    """Long reductions with few results: in two steps, the first over a number of parts."""
    return x.sum(), x.double().sum(), x.sum(0), (x * 2).amax(0), i.amin(0), i.sum(), (i > 7).any(), (x < 9).all(0)


def long_rows(x):
    """Few of them: each in parts, of which the last may have less or nothing."""
    return x.softmax(-1), F.layer_norm(x, x.shape[-1:]), x.var(-1), (x * x[0]).sum(), x.var(), x.logsumexp(-1)


def scaled(x, y, z):
    """Lines of a broadcast begin anywhere, a line may have one element, or there may be none."""
    return x * y[:, None], (x + y[:, None]).exp() * z, (x.t() * y).contiguous(), x[:, 1:] * y[:, None] - z[1:]


def tall(x):
    """Long columns: in parts of rows abreast, what is reduced twice in one walk of each."""
    return x.softmax(0), x.var(0), x.logsumexp(0), (x - x.mean(0)) * (x.var(0) + 1e-5).rsqrt()


def beside(x):
    """A sum and the squares about its mean in one walk, beside reductions that have an element for each of a block."""
    return x.var(0), x.amin(0), x.var(-1), x.amax(-1), (x * x[0]).sum(-1)


def scalars(x):
    return x * x.shape[0] + x.shape[1] / 2, x / x.numel()



# Each: the program, and its arguments for sizes (a, b, c).
PROGRAMS = {
    "softmax": (softmax, lambda a, b, c: (torch.randn(a, b),)),
    "norms": (norms, lambda a, b, c: (torch.randn(a, b),)),
    "known_rows": (known_rows, lambda a, b, c: (torch.randn(a, b, 24), torch.randn(24))),
    "reductions": (reductions, lambda a, b, c: (torch.randn(a, b),)),
    "pooled": (pooled, lambda a, b, c: (torch.randn(a, b, 24),)),
    "chain": (chain, lambda a, b, c: (torch.randn(a, b, c), torch.randn(a, b, c))),
    "gelu": (gelu, lambda a, b, c: (torch.randn(a, b),)),
    "bias": (bias, lambda a, b, c: (torch.randn(a, b, 64), torch.randn(64))),
    "mask": (mask, lambda a, b, c: (torch.randn(a, 3, c, b), torch.randint(0, 2, (a, b)))),
    "embedding": (embedding, lambda a, b, c: (torch.randint(0, 64, (a, b)), torch.randn(64, 24))),
    "movement": (movement, lambda a, b, c: (torch.randn(a, b),)),
    "joined": (joined, lambda a, b, c: (torch.randn(a, b, 24), torch.randn(a, c, 24))),
    "parts": (parts, lambda a, b, c: (torch.randn(a, b), torch.randint(0, 9, (a, b)))),
    "long_rows": (long_rows, lambda a, b, c: (torch.randn(a, 4 * b + 5),)),
    "scaled": (scaled, lambda a, b, c: (torch.randn(a * c, b), torch.randn(a * c), torch.randn(b))),
    "tall": (tall, lambda a, b, c: (torch.randn(4 * b + 5, a) + 100,)),
    "beside": (beside, lambda a, b, c: (torch.randn(4 * b + 5, a * c),)),
    "scalars": (scalars, lambda a, b, c: (torch.randn(a, b),)),
}
FIRST = (5, 37, 7)  # the sizes of the real call
SIZES = ((4, 32, 8), (2, 2, 3), (9, 80, 11), (33, 100, 5), (6, 300, 2), (3, 1, 2), (1, 67, 5), (4, 9, 1), (1, 1, 1))
# Sizes with no elements, which another capture is for: what gives no value there is left out.
NOTHING = ((0, 5, 3), (4, 0, 2), (3, 2, 0), (0, 0, 0))
