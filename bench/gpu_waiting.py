"""Few rows that no program holds, on a GPU: programs that share a row and wait for each other, beside other ways.

    python -m bench.gpu_waiting              a table: copy, eager, torch.compile, Preheat, Preheat without

Each time is the device's, of calls in a CUDA graph, the median of replays that take turns; "without" is Preheat's plan
whose programs wait for nobody (`schedule/sharing.py` says when they do). Errors are against float64 on the last row, as
multiples of eager's. Before a call its result's memory is filled with NaN.
"""

import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

import preheat
from preheat.schedule import schedule

CASES: tuple[tuple[str, int, int, str], ...] = (
    ("softmax", 1024, 1 << 17, "bfloat16"), ("softmax", 64, 1 << 20, "bfloat16"),
    ("softmax", 256, 1 << 18, "bfloat16"), ("softmax", 16, 1 << 22, "bfloat16"),
    ("log_softmax", 256, 1 << 18, "bfloat16"), ("rms_norm", 256, 1 << 18, "bfloat16"),
    ("layer_norm", 256, 1 << 18, "bfloat16"), ("softmax", 64, 1 << 20, "float32"),
    ("softmax", 256, 1 << 18, "float32"), ("rms_norm", 256, 1 << 18, "float32"))
ROUNDS, CALLS = 7, 10


def function_of(name: str, length: int, dtype: torch.dtype) -> Callable:
    """The case as a function of its rows."""
    weight, bias = (torch.randn(length, device="cuda").to(dtype) for _ in range(2))
    return {
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "rms_norm": lambda x: F.rms_norm(x, (length,), weight.to(x.dtype), 1e-6),
        "layer_norm": lambda x: F.layer_norm(x, (length,), weight.to(x.dtype), bias.to(x.dtype)),
    }[name]


def without_sharing(function: Callable, x: torch.Tensor) -> Callable:
    """`function` compiled by Preheat with programs that wait for nobody."""
    known, schedule.rows_to_share = schedule.rows_to_share, lambda graph, target: {}
    try:
        compiled = preheat.compile(function, options={"cache": False})
        for _ in range(3):
            compiled(x)
    finally:
        schedule.rows_to_share = known
    return compiled


def recorded(call: Callable) -> torch.cuda.CUDAGraph:
    """`CALLS` calls as one graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def medians_us(graphs: list[torch.cuda.CUDAGraph]) -> list[float]:
    """The time of one call of each."""
    seen: list[list[float]] = [[] for _ in graphs]
    for _ in range(ROUNDS):
        for times, graph in zip(seen, graphs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return [statistics.median(times) for times in seen]


def error(made: torch.Tensor, function: Callable, x: torch.Tensor) -> float:
    """Of the last row, relative to its norm."""
    expected = function(x[-1:].double())
    return ((made[-1:].double() - expected).norm() / expected.norm()).item()


def row(name: str, rows: int, length: int, kind: str) -> str:
    dtype = getattr(torch, kind)
    x = torch.randn(rows, length, device="cuda").to(dtype)
    function, out = function_of(name, length, dtype), torch.empty_like(x)
    ours, theirs = preheat.compile(function, options={"cache": False}), torch.compile(function, dynamic=False)
    others = without_sharing(function, x)
    for _ in range(3):
        ours(x), theirs(x)
    del out
    out = torch.full_like(x, float("nan"))
    made = ours(x)
    assert not made.isnan().any(), "elements that were not written"
    ratio = error(made, function, x) / error(function(x), function, x)
    del made
    calls = [partial(out.copy_, x), *(partial(f, x) for f in (function, theirs, ours, others))]
    times = medians_us([recorded(call) for call in calls])
    torch._dynamo.reset()
    label = f"{name} {rows} x {length} {kind}"
    return f"{label:36}" + "".join(f"{time:10.1f}" for time in times) + f"{times[0] / times[3]:8.2f}{ratio:8.2f}"


def main(wanted: str = "") -> None:
    """Prints the table, of cases whose name has `wanted`."""
    warnings.filterwarnings("ignore", module="torch._inductor")
    heads = ("copy us", "eager", "compile", "preheat", "without")
    print(f"{'':36}" + "".join(f"{head:>10}" for head in heads) + f"{'of copy':>8}{'error':>8}", flush=True)
    with torch.no_grad():
        for case in CASES:
            if wanted in " ".join(map(str, case)):
                print(row(*case), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
