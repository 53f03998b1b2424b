"""Device time of plans for all sizes beside plans of one, by graphs, with all that compiles done elsewhere.

    python -m bench.gpu_plans make FILE [softmax ..]     anywhere: plans with their kernels for an H200, compiled
    python -m bench.gpu_plans time FILE                  on the GPU: a row for each program, dtype and shape

A file that another version made may be timed beside it (`time FILE FILE`), as long as it is read: each kind of plan is
told by the name of its file. Times are microseconds of plans replayed from a graph, the median of rounds in
alternation; results are compared with eager's in float32.
"""

import gzip
import pickle
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from preheat.capture.capture import capture
from preheat.generate import cubin, variants
from preheat.ir.hinted import Book
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image, Plan
from preheat.ir.scalar import evaluate
from preheat.ir.sized import at, with_hinted_sizes
from preheat.run.buffers import sizes_at
from preheat.run.executable import executable
from preheat.run.gpu import is_for
from preheat.schedule.schedule import schedule
from preheat.templates import merged, with_other_hints
from preheat.transform.pipeline import lower
from bench.gpu_sizes import DTYPES, PROGRAMS, SHAPES

ARCH, FIRST = "sm_90", (4000, 998)
FEW = ((16, 4194304), (64, 1048576), (100, 40000), (3, 10000001))  # long rows
ODD = ((1048576, 16), (16, 1048576))
LINES = ((524288, 40), (1048576, 36))  # of which no whole number is a tile
ROUNDS, LARGE = 9, 1 << 25
Shape = tuple[int, int]
Row = tuple[str, str, Shape, str, bytes]  # program, dtype, shape, kind, plan and image

OTHERS: dict[str, Callable] = {
    "rms norm": lambda x: x * (x.pow(2).mean(-1, True) + 1e-6).rsqrt(),
    "largest of rows": lambda x: x.amax(-1), "variance of rows": lambda x: x.var(-1),
    "variance of all": lambda x: x.var(), "variance of columns": lambda x: x.var(0),
    "softmax of columns": lambda x: x.softmax(0), "exp and its sum": lambda x: (x.exp(), x.exp().sum(-1)),
    "cross entropy": lambda x: F.cross_entropy(x, x[:, 0].long() * 0), "scaled sum": lambda x: (x * x[0]).sum(), "scaled columns": lambda x: x * x[0], "scaled rows": lambda x: x * x[:, :1]}
ALL = {**PROGRAMS, **OTHERS}
MORE: dict[str, tuple[Shape, ...]] = {  # besides SHAPES, or of OTHERS all
    "softmax": FEW + ODD, "layer norm": FEW + ODD, "sum of rows": FEW + ODD, "sum of all": ODD,
    "column sum": (*ODD, FEW[0]), "rms norm": FEW, "largest of rows": FEW, "variance of rows": FEW,
    "variance of all": SHAPES[:3], "variance of columns": SHAPES[:4], "softmax of columns": SHAPES[:4],
    "scaled columns": SHAPES[:4] + ODD[:1] + LINES, "scaled rows": SHAPES[:4] + ODD[:1] + LINES, "exp and its sum": FEW[:2], "cross entropy": (*FEW[:2], SHAPES[0]), "scaled sum": (SHAPES[0], FEW[0], ODD[0])}


def make(names: Sequence[str]) -> Iterator[Row]:
    """Plans of each program at each of its shapes."""
    target = cubin.gpu_target(ARCH)
    for name in names or ALL:
        for dtype in DTYPES:
            graph = _graph(ALL[name], dtype)
            symbols, templates = tuple(symbol for symbol, _ in graph.symbols), []
            for shape in (*(SHAPES if name in PROGRAMS else ()), *MORE.get(name, ())):
                sizes = dict(zip(symbols, shape))
                plan = schedule(lower(at(graph, sizes)), target)
                yield name, str(dtype)[6:], shape, "static", encode((plan, _image(plan, [plan])))
                templates = templates or [(*_template(graph, symbols, FIRST), [])]
                if not any(_is_good(template, sizes) for template in templates):
                    templates.append((*_template(graph, symbols, shape), []))
                next(template for template in templates if _is_good(template, sizes))[2].append(shape)
            for plan, _, shapes in templates:
                plans = [at(plan, dict(zip(symbols, shape))) for shape in shapes]
                image = _image(plan, plans) if plans else None
                for shape, one in zip(shapes, plans):
                    yield name, str(dtype)[6:], shape, "dynamic", encode((one, image))


def _graph(program: Callable, dtype: torch.dtype) -> Any:
    """The graph of a program, whose both sizes change, on a GPU."""
    with torch.no_grad():
        outcome = capture(
            program, (torch.randn(37, 53).to(dtype),), {}, limits=None,
            dynamic=frozenset(("arg0.shape[0]", "arg0.shape[1]")))
    trace = outcome.captured.trace
    graph = with_other_hints(merged(trace.nodes[0].body, trace), trace)

    def moved(type: Any) -> Any:
        return replace(type, device="cuda:0") if hasattr(type, "device") else type

    return replace(
        graph, inputs=tuple(replace(i, type=moved(i.type)) for i in graph.inputs),
        ops=tuple(replace(op, types=tuple(map(moved, op.types))) for op in graph.ops))


def _template(graph: Any, symbols: Sequence[str], hint: Shape) -> tuple[Plan, tuple]:
    """A plan for many sizes, and where it is for them and good at them."""
    book = Book()
    whole = with_hinted_sizes(graph, symbols, (hint, *graph.hints[1:]), book)
    target = cubin.gpu_target(ARCH)
    plan = schedule(lower(whole, is_for_many=True), target)
    for kernel in plan.kernels:
        variants.sources_of(kernel, target)  # which has conditions of its own
    return plan, (*book.conditions, *book.preferences)


def _is_good(template: tuple, sizes: dict[str, int]) -> bool:
    return all(evaluate(test, sizes) for test in template[1])


def _image(plan: Plan, plans: Iterable[Plan]) -> Image:
    """The kernels of `plan`, by the sources that `plans`, which are it at some sizes, take."""
    used: dict[str, set[int]] = {}
    target = cubin.gpu_target(ARCH)
    for one in plans:
        for call in one.calls:
            kernel = plan.kernels[call.kernel]
            sources = variants.sources_of(kernel, target)
            number = next(k for k, s in enumerate(sources) if s.sizing is None or is_for(s.sizing, sizes_at(one, call)))
            used.setdefault(cubin.kernel_key(kernel), set()).add(number)

    def some(kernel: Any, target: Any, tile: Any = None) -> list:
        numbers = used[cubin.kernel_key(kernel)]
        return [s for k, s in enumerate(variants.sources_of(kernel, target, tile)) if k in numbers]

    cubin.sources_of = some
    try:
        return cubin.build_gpu(plan.kernels, target)
    finally:
        cubin.sources_of = variants.sources_of


def times(files: Sequence[str]) -> Iterator[str]:
    """Rows: program, dtype, shape, and the time of each kind of plan."""
    found: dict[tuple, dict[str, bytes]] = {}
    for number, file in enumerate(files):
        for name, dtype, shape, kind, data in pickle.loads(gzip.decompress(Path(file).read_bytes())):
            if kind != "static" or not number:
                label = f"{kind} {Path(file).stem}" if len(files) > 1 and kind != "static" else kind
                found.setdefault((name, dtype, shape), {})[label] = data
    for (name, dtype, shape), kinds in found.items():
        x = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
        expected, graphs, notes = ALL[name](x.float()), {}, ""
        for kind, data in kinds.items():
            run = executable(*decode(data))
            made = run([x])
            error = max(map(_error, made, expected if isinstance(expected, tuple) else (expected,)))
            notes += f"  {kind} ERROR {error:.1e}" if not error < 2e-2 else ""
            graphs[kind] = _recorded(run, x, 5 if x.numel() >= LARGE else 10)
        us: dict[str, list[float]] = {kind: [] for kind in graphs}
        for _ in range(ROUNDS):
            for kind, (graph, count) in graphs.items():
                us[kind].append(_once(graph) / count)
        first = statistics.median(next(iter(us.values())))
        cells = (f"{kind} {(t := statistics.median(all_)):.1f} ({t / first:.2f})" for kind, all_ in us.items())
        yield f"{name} {dtype} {shape[0]} x {shape[1]}: " + ", ".join(cells) + notes


def _error(made: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((made.float() - expected.float()).abs() / (1 + expected.float().abs())).max())


def _recorded(run: Any, x: torch.Tensor, count: int) -> tuple[Any, int]:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run([x])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                run([x])
    return graph, count


def _once(graph: Any) -> float:
    first, last = torch.cuda.Event(True), torch.cuda.Event(True)
    first.record()
    graph.replay()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e3


def main(what: str, *rest: str) -> None:
    if what == "make":
        Path(rest[0]).write_bytes(gzip.compress(pickle.dumps(list(make(rest[1:]))), 3))
        return
    with torch.no_grad():
        for row in times(rest):
            print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
