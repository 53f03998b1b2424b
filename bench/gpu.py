"""Speed on a GPU: eager, torch.compile and Preheat in one process, correctness first.

    python -m bench.gpu                       every row
    python -m bench.gpu softmax chain --no-compile --json out.json
    python -m bench.gpu MLP BERT --mode max-autotune-no-cudagraphs

A row is checked before it is timed: the error of each is against the same program in float64, over
the largest value. Device time is by events around single calls, the median; host time is what
submitting a call takes while the device is idle. "floor" is the time in which a copy moves the
bytes that the program must move, measured in the same process. What fails or runs eager is printed.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import preheat
from bench.gpu_models import Row, models, tensor, trained_models
from bench.gpu_optimizers import optimizers
from preheat.base.events import bus

SECONDS = 0.25  # of timed calls a backend
MOST_CALLS = 200
COPY_BYTES = 1 << 30


@dataclass
class Measured:
    name: str
    floor_us: float = 0.0
    device_us: dict[str, float] = field(default_factory=dict)
    host_us: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------- rows
def softmax(columns: int) -> Row:
    rows = (1 << 27) // columns
    return Row(
        f"softmax {rows}x{columns} bf16",
        lambda: (lambda x: x.softmax(-1), (tensor(rows, columns),)), 2 * 2 << 27)


def chain(x, r, w, b):
    """Residual, layer norm, gelu, sigmoid, softmax."""
    h = F.layer_norm(x + r, (x.shape[-1],), w, b)
    return r + torch.softmax(F.gelu(h) * torch.sigmoid(h), -1)


def mlp(layers: int = 8, width: int = 256) -> torch.nn.Module:
    torch.manual_seed(0)
    parts = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts).cuda().eval().requires_grad_(False)


def convolutions() -> tuple[Callable, tuple]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(64, 256, 1, bias=False), torch.nn.BatchNorm2d(256), torch.nn.ReLU(),
        torch.nn.Conv2d(256, 256, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(256, 64, 1))
    net.cuda().bfloat16().eval().requires_grad_(False)
    return (lambda x: net(x)), (tensor(32, 64, 56, 56),)


def with_tf32() -> tuple[Callable, tuple]:
    torch.backends.cuda.matmul.allow_tf32 = True  # until the row is measured
    return mlp(), (tensor(128, 256, dtype=torch.float32),)


def norms(x):
    """A kernel for each sum, along rows and columns in turn."""
    for _ in range(3):
        x = (x - x.amax(0)).softmax(1)
    return x


def norm_backward(x, g, w):
    mean = x.float().mean(-1, keepdim=True)
    rstd = (x.float().var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    return torch.ops.aten.native_layer_norm_backward(
        g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def trained_kernels() -> Iterator[Row]:
    """Forward and backward of programs that memory bounds; `moved`: bytes of both halves, each
    reading its operands and writing its results once."""
    wide, most, f32 = 32768 * 4096 * 2, 8192 * 32000 * 2, torch.float32

    def row(name: str, moved: int, program: Callable, *make: Callable) -> Row:
        return Row(f"train {name}", lambda: (program, tuple(m() for m in make)), moved, trains=True)

    def of(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Callable:
        return lambda: tensor(*sizes, dtype=dtype).requires_grad_()

    def ids(count: int, most: int) -> Callable:
        return lambda: torch.randint(0, most, (count,), device="cuda")

    w = (32768, 4096)
    yield row(
        "layer_norm 32768x4096 bf16", 5 * wide, lambda x, s, b: F.layer_norm(x, (4096,), s, b),
        of(*w), of(4096), of(4096))
    yield row(
        "layer_norm 131072x768 f32", 5 * 131072 * 768 * 4,
        lambda x, s, b: F.layer_norm(x, (768,), s, b),
        of(131072, 768, dtype=f32), of(768, dtype=f32), of(768, dtype=f32))
    yield row(
        "rms_norm 32768x4096 bf16", 5 * wide, lambda x, s: F.rms_norm(x, (4096,), s, 1e-6),
        of(*w), of(4096))
    yield row("bias gelu 32768x4096 bf16", 5 * wide, lambda x, b: F.gelu(x + b), of(*w), of(4096))
    yield row("softmax 32768x4096 bf16", 5 * wide, lambda x: x.softmax(-1), of(*w))
    yield row(
        "cross_entropy 8192x32000 bf16", 3 * most, F.cross_entropy, of(8192, 32000),
        ids(8192, 32000))
    yield row(
        "embedding 65536 of 50000x1024 bf16", (3 * 65536 + 50000) * 1024 * 2,
        lambda t, i: F.embedding(i, t) * 2, of(50000, 1024), ids(65536, 50000))


def kernels() -> Iterator[Row]:
    """Programs that memory bounds. `w` stands for a tensor of 32768 x 4096."""
    w, f32 = (32768, 4096), torch.float32
    wide = 32768 * 4096 * 2

    def row(name: str, moved: int, program: Callable, *make: Callable) -> Row:
        return Row(name, lambda: (program, tuple(m() for m in make)), moved)

    def of(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Callable:
        return lambda: tensor(*sizes, dtype=dtype)

    def ids(count: int, most: int) -> Callable:
        return lambda: torch.randint(0, most, (count,), device="cuda")

    yield row("add 32768x4096 bf16", 3 * wide, lambda x, y: x + y, of(*w), of(*w))
    yield row(
        "bias gelu 32768x4096 bf16", 2 * wide, lambda x, b: F.gelu(x + b), of(*w), of(4096))
    yield row(
        "silu mul 16384x4096 f32", 3 * wide, lambda x, y: F.silu(x) * y,
        of(16384, 4096, dtype=f32), of(16384, 4096, dtype=f32))
    yield row(
        "transpose 8192x8192 f32", 2 * 4 << 26, lambda x: x.t().contiguous() * 2,
        of(8192, 8192, dtype=f32))
    yield row(
        "rms_norm 32768x4096 bf16", 2 * wide, lambda x, s: F.rms_norm(x, (4096,), s, 1e-6),
        of(*w), of(4096))
    yield row(
        "layer_norm 32768x4096 bf16", 2 * wide, lambda x, s, b: F.layer_norm(x, (4096,), s, b),
        of(*w), of(4096), of(4096))
    yield row(
        "layer_norm 131072x768 bf16", 2 * 131072 * 768 * 2,
        lambda x, s, b: F.layer_norm(x, (768,), s, b), of(131072, 768), of(768), of(768))
    yield row(
        "layer_norm backward 32768x4096 bf16", 3 * wide, norm_backward, of(*w), of(*w), of(4096))
    yield row("column sum 32768x4096 bf16", wide, lambda x: x.sum(0), of(*w))
    yield row("sum of all 32768x4096 bf16", wide, lambda x: x.sum(), of(*w))
    for columns in (64, 256, 1024, 4096, 8192, 16384, 32768, 131072):
        yield softmax(columns)
    for count, length in ((16, 4 << 20), (64, 1 << 20)):
        yield row(
            f"softmax {count}x{length} bf16", 2 * 2 << 26, lambda x: x.softmax(-1),
            of(count, length))
    yield row(
        "cross_entropy 8192x32000 bf16", 8192 * 32000 * 2, F.cross_entropy, of(8192, 32000),
        ids(8192, 32000))
    yield row(
        "relu, max_pool 3x3 32x64x112x112 channels last bf16", 2 * 32 * 64 * (112 * 112 + 56 * 56),
        lambda x: F.max_pool2d(x.relu(), 3, 2, 1),
        lambda: tensor(32, 64, 112, 112).to(memory_format=torch.channels_last))
    yield row(
        "embedding 65536 of 50000x1024 bf16", 2 * 65536 * 1024 * 2,
        lambda t, i: F.embedding(i, t) * 2, of(50000, 1024), ids(65536, 50000))
    yield row(
        "chain 32768x4096 bf16", 3 * wide, chain, of(*w), of(*w), of(4096), of(4096))


def rows() -> Iterator[Row]:
    yield from kernels()
    yield Row(
        "MLP 8 x Linear(256) ReLU, batch 128 f32",
        lambda: (mlp(), (tensor(128, 256, dtype=torch.float32),)), host=True, graphs=True)
    yield Row("MLP 8 x Linear(256) ReLU, batch 128 tf32", with_tf32, host=True, graphs=True)
    yield Row(
        "MLP 8 x Linear(256) ReLU, batch 128 bf16",
        lambda: (mlp().bfloat16(), (tensor(128, 256),)), host=True, graphs=True)
    yield Row(
        "logits 4096 tokens of 768, 50257 columns bf16",
        lambda: (lambda x, w: x @ w.t(), (tensor(4096, 768), tensor(50257, 768))))
    yield Row(
        "logits 2048 tokens of 768, 30522 columns, bias bf16",
        lambda: (F.linear, (tensor(2048, 768), tensor(30522, 768), tensor(30522))))
    yield Row("convolutions 64 and 256 channels, 32 of 56x56 bf16", convolutions)
    yield Row(
        "one kernel on 1024 f32",
        lambda: (lambda x: torch.relu(x * 2 + 1), (tensor(1024, dtype=torch.float32),)),
        host=True, graphs=True)
    yield Row(
        "six kernels on 1024 f32", lambda: (norms, (tensor(32, 32, dtype=torch.float32),)),
        host=True, graphs=True)
    yield from optimizers()
    yield from models()
    yield from trained_kernels()
    yield from trained_models()


# ---------------------------------------------------------------------------- measuring
def measure(row: Row, with_compile: bool, copy_bytes_per_us: float, mode: str) -> Measured:
    """The row by every backend, each checked before it is timed; both compilers in `mode`."""
    torch.manual_seed(0)
    program, args = row.make()
    step = training_step(program, args) if row.trains else lambda call: call
    made = Measured(row.name, row.moved / copy_bytes_per_us)
    told: list[str] = []
    stop = bus.subscribe(lambda event: told.append(_told(event)), {"fallback", "break", "direct"})
    backends: dict[str, Callable] = {"eager": step(program)}
    if with_compile:
        torch._dynamo.reset()
        backends["torch.compile"] = step(torch.compile(program, mode=mode))
    backends["preheat"] = step(preheat.compile(program, mode=mode, options={"cache": False}))
    if row.graphs and mode == "default":
        if with_compile:
            backends["torch.compile graphs"] = _marked(
                torch.compile(program, mode="reduce-overhead"))
        backends["preheat graphs"] = preheat.compile(
            program, mode="reduce-overhead", options={"cache": False})
    backends.update({name: make() for name, make in row.rivals})
    truth = _trained_truth(row, program, args) if row.trains else _truth(program, args)
    try:
        with torch.set_grad_enabled(row.trains):
            for name, call in list(backends.items()):
                try:
                    _check(made, name, call, args, truth, 3 if row.trains else row.first)
                except Exception as error:
                    made.notes.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
                    del backends[name]
            for name, call in backends.items():
                made.device_us[name], made.host_us[name] = _times(call, args, row.host)
    finally:
        stop()
        torch.backends.cuda.matmul.allow_tf32 = False
    made.notes += dict.fromkeys(told)
    return made


def training_step(program: Callable, args: tuple) -> Callable:
    """Makes of a callable like `program` one that also runs backward: result and gradients."""
    weights = list(program.parameters()) if isinstance(program, torch.nn.Module) else []
    leaves = [*weights, *(a for a in args if a.requires_grad)]
    tangents: list[torch.Tensor] = []

    def step(call: Callable) -> Callable:
        def run(*given: torch.Tensor) -> list[torch.Tensor]:
            result = call(*given)
            if not tangents:
                generator = torch.Generator("cuda").manual_seed(1)
                drawn = torch.randn(result.shape, generator=generator, device="cuda")
                tangents.append(drawn.to(result.dtype) if result.dim() else torch.ones_like(result))
            result.backward(tangents[0])
            grads = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
            return [result.detach(), *grads]

        return run

    return step


def _marked(call: Callable) -> Callable:
    """`call`, whose results of the step before may be overwritten: torch.compile's graphs want that
    to be said."""
    def step(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call(*args)

    return step


def _trained_truth(row: Row, program: Callable, args: tuple) -> list[torch.Tensor]:
    """Result and gradients in float64; of a model, which may draw random numbers, eager's own."""
    if isinstance(program, torch.nn.Module):
        torch.manual_seed(0)
        return [v.double() for v in training_step(program, args)(program)(*args)]
    wide = tuple(a.detach().requires_grad_(a.requires_grad) for a in _doubled(args))
    result = program(*wide)
    generator = torch.Generator("cuda").manual_seed(1)
    drawn = torch.randn(result.shape, generator=generator, device="cuda")
    dtype = next(a.dtype for a in args if a.requires_grad)
    result.backward(drawn.to(dtype).double() if result.dim() else torch.ones_like(result))
    return [result.detach(), *(a.grad for a in wide if a.requires_grad)]


def _told(event: Any) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in event.data.items() if key != "name")
    return f"{event.kind}: {facts[:200]}"


def _check(
    made: Measured, name: str, call: Callable, args: tuple, truth: Any, first: int,
) -> None:
    """Error, peak memory beyond what lay there before (weights, arguments), and the time of the `first`
    calls, which compile."""
    gc.collect()  # what is freed later, of the row before or of a float64 run that failed, would count as less
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    for _ in range(first):
        call(*args)
    torch.cuda.synchronize()
    made.first_s[name] = time.perf_counter() - began
    for _ in range(6):
        call(*args)
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    found = call(*args)
    torch.cuda.synchronize()
    made.peak_mb[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    if truth is not None:
        made.error[name] = max(map(_error, _tensors(found), truth))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [v for v in value if v is not None]


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    difference = (found.flatten()[: truth.numel()].double() - truth.flatten()).abs().max().item()
    worst = difference / max(truth.abs().max().item(), 1e-300)
    return worst if math.isfinite(worst) else math.inf


def _truth(program: Callable, args: tuple) -> list[torch.Tensor] | None:
    """The first elements of the results in float64, where the program can run so."""
    try:
        with torch.no_grad():
            if isinstance(program, torch.nn.Module):
                dtype = next((p.dtype for p in program.parameters()), torch.float32)
                made = program.double()(*_doubled(args))
                program.to(dtype)
            else:
                made = program(*_doubled(args))
        return [v.double() for v in _tensors(made)]
    except Exception:
        return None


def _doubled(args: tuple) -> tuple:
    return tuple(a.double() if a.is_floating_point() else a for a in args)  # a list: no truth


def _times(call: Callable, args: tuple, host: bool) -> tuple[float, float]:
    """(median of the device's time, median of the submitting time) in microseconds."""
    for _ in range(3):
        call(*args)
    torch.cuda.synchronize()
    began = time.perf_counter()
    call(*args)
    torch.cuda.synchronize()
    count = max(5, min(MOST_CALLS, int(SECONDS / max(time.perf_counter() - began, 1e-6))))
    events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(count)]
    for first, last in events:
        first.record()
        call(*args)
        last.record()
    torch.cuda.synchronize()
    device = statistics.median(first.elapsed_time(last) for first, last in events) * 1e3
    times = []
    for _ in range(40):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            call(*args)
        times.append((time.perf_counter() - began) / 5)
    return device, statistics.median(times) * 1e6


def copy_rate() -> float:
    """Bytes a microsecond that a copy moves, read and written counted."""
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _times(target.copy_, (source,), False)[0]


# ---------------------------------------------------------------------------- printing
def line(made: Measured) -> str:
    def number(values: dict[str, float], name: str, form: str = "8.1f") -> str:
        return format(values[name], form) if name in values else " " * 7 + "-"

    names = ("eager", "torch.compile", "preheat")
    device = " ".join(number(made.device_us, name) for name in names)
    hosts = " ".join(number(made.host_us, name, "6.1f") for name in names)
    errors = " ".join(number(made.error, name, ".1e") for name in names)
    firsts = " ".join(number(made.first_s, name, "5.2f") for name in names)
    peaks = " ".join(number(made.peak_mb, name, "6.0f") for name in names)
    text = (
        f"{made.name[:42]:42s} {made.floor_us:7.1f} | {device} | {hosts} | {errors} | {firsts} | "
        f"{peaks}")
    for name in made.device_us:
        if name not in names:
            text += (
                f"\n    {name}: device {number(made.device_us, name)} us, "
                f"host {number(made.host_us, name, '6.1f')} us, error {number(made.error, name, '.1e')}, "
                f"first {number(made.first_s, name, '5.2f')} s")
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("words", nargs="*", help="rows whose names have one of these words")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--mode", default="default", help="of torch.compile and Preheat")
    parser.add_argument("--json", help="writes everything that was measured to this file")
    chosen = parser.parse_args(arguments)
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e6:.2f} TB/s")
    print(f"{'':42s} {'floor':>7s} | device us: eager, compile, preheat | host us | error | "
          "first s | peak MB")
    results = []
    for row in rows():
        if chosen.words and not any(word in row.name for word in chosen.words):
            continue
        try:
            made = measure(row, not chosen.no_compile, rate, chosen.mode)
        except Exception as error:
            made = Measured(row.name, notes=[f"{type(error).__name__}: {str(error)[:300]}"])
        results.append(made)
        print(line(made), flush=True)
        for note in made.notes:
            print(f"    {note}", flush=True)
        torch.cuda.empty_cache()
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump([asdict(r) for r in results], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
