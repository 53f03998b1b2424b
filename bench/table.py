"""Results as tables that a person reads: ratios first, then what they are made of.

"torch" is torch.compile. A ratio is the other's time over Preheat's: above 1, Preheat is faster.
First calls are counted beyond eager's own first call in a fresh process, since that much is the
program itself. An error is the largest difference from float64 over the largest value.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.table import Table

from bench.models import MODELS
from bench.suite import Report, Result

_NOTHING = "-"


def show(report: Report, console: Console) -> None:
    """Prints the steady state, the first calls, the overheads, the bandwidth and what failed."""
    chosen = [r for r in report.results if MODELS[r.model].kind == "model"]
    overheads = [r for r in report.results if MODELS[r.model].kind == "overhead"]
    if chosen:
        console.print(steady_table(chosen, "Steady state, one thread, medians"))
        console.print(first_call_table(chosen))
    trained = [r for r in report.results if MODELS[r.model].kind == "training"]
    if trained:
        console.print(steady_table(trained, "Training: forward and backward, one thread, medians"))
        console.print(memory_table(trained))
        console.print(first_call_table(trained))
    stepped = [r for r in report.results if MODELS[r.model].kind == "optimizer"]
    if stepped:
        console.print(rival_table(stepped, "Optimizers: a step, one thread, medians"))
        console.print(first_call_table(stepped))
    if overheads:
        console.print(steady_table(overheads, "Cost of a call: whole call on one-element tensors"))
    acting = [r for r in report.results if MODELS[r.model].kind == "python"]
    if acting:
        console.print(steady_table(acting, "Where Python must act: prints, branches, loops"))
    rates = report.bandwidth.get("gb_per_s")
    if rates:
        console.print(
            f"Memory-bound kernel: {rates['kernel']:.1f} GB/s, plain copy of the same bytes: "
            f"{rates['copy']:.1f} GB/s, ratio {rates['kernel'] / rates['copy']:.2f}"
        )
    for result in report.results:
        for line in notes(result):
            console.print(f"{result.model}: {line}", style="yellow", markup=False)
    console.print(
        ", ".join(f"{key} {value}" for key, value in report.machine.items()),
        style="dim",
        markup=False,
    )


@contextlib.contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that tells what runs now: in place on a terminal, else one line each."""
    if not console.is_terminal:
        yield lambda text: console.print(text, style="dim", markup=False)
        return
    with console.status("") as status:
        yield status.update


def steady_table(results: list[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for head in (
        "model",
        "eager us",
        "torch us",
        "preheat us",
        "/ eager",
        "/ torch",
        "eager err",
        "torch err",
        "preheat err",
    ):
        table.add_column(head, justify="left" if head == "model" else "right")
    for result in results:
        us, error = result.steady_us, result.error
        table.add_row(
            result.model,
            *(_number(us.get(b), "{:.1f}") for b in ("eager", "torch.compile", "preheat")),
            _number(ratio(us, "eager"), "{:.2f}x"),
            _number(ratio(us, "torch.compile"), "{:.2f}x"),
            *(_number(error.get(b), "{:.1e}") for b in ("eager", "torch.compile", "preheat")),
        )
    table.add_section()
    table.add_row(
        "geometric mean",
        "",
        "",
        "",
        _number(geometric_mean(ratio(r.steady_us, "eager") for r in results), "{:.2f}x"),
        _number(geometric_mean(ratio(r.steady_us, "torch.compile") for r in results), "{:.2f}x"),
        "",
        "",
        "",
    )
    return table


def memory_table(results: list[Result]) -> Table:
    table = Table(title="Training: peak memory beyond parameters, MB", title_justify="left")
    for head in ("model", "eager", "torch", "preheat", "/ eager", "/ torch"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for result in results:
        peak = {name: count / 1e6 for name, count in result.peak_bytes.items()}
        table.add_row(
            result.model,
            *(_number(peak.get(b), "{:.2f}") for b in ("eager", "torch.compile", "preheat")),
            *(_number(1 / one if (one := ratio(peak, b)) else None, "{:.2f}")
              for b in ("eager", "torch.compile")),
        )
    return table


def rival_table(results: list[Result], title: str) -> Table:
    """One row for each way to do the same, with its time over Preheat's."""
    table = Table(title=title, title_justify="left")
    for head in ("model", "by", "us", "/ preheat"):
        table.add_column(head, justify="right" if head in ("us", "/ preheat") else "left")
    for result in results:
        for name, took in result.steady_us.items():
            table.add_row(
                result.model, name, f"{took:.1f}",
                _number(ratio(result.steady_us, name), "{:.2f}x"))
    return table


def first_call_table(results: list[Result]) -> Table:
    table = Table(title="First call in a new process, seconds beyond eager's", title_justify="left")
    for head in (
        "model",
        "eager itself",
        "cold torch",
        "cold preheat",
        "ratio",
        "warm torch",
        "warm preheat",
        "ratio ",
    ):
        table.add_column(head, justify="left" if head == "model" else "right")
    for result in results:
        cold, warm = beyond_eager(result.cold_s), beyond_eager(result.warm_s)
        table.add_row(
            result.model,
            _number(result.cold_s.get("eager"), "{:.3f}"),
            _number(cold.get("torch.compile"), "{:.2f}"),
            _number(cold.get("preheat"), "{:.3f}"),
            _number(ratio(cold, "torch.compile"), "{:.0f}x"),
            _number(warm.get("torch.compile"), "{:.2f}"),
            _number(warm.get("preheat"), "{:.3f}"),
            _number(ratio(warm, "torch.compile"), "{:.0f}x"),
        )
    return table


def beyond_eager(seconds: dict[str, float]) -> dict[str, float]:
    """First calls without what eager's own first call takes; 0.1 ms at least, so ratios exist."""
    if "eager" not in seconds:
        return dict(seconds)
    return {
        name: max(took - seconds["eager"], 1e-4)
        for name, took in seconds.items()
        if name != "eager"
    }


def notes(result: Result) -> Iterable[str]:
    """What a reader must know beside the numbers: failures, and calls that Preheat ran eager."""
    for what, why in result.failures.items():
        yield f"{what} failed: {why}"
    counts = result.counters.get("cold preheat", {})
    if counts.get("breaks"):
        yield (
            f"{counts['breaks']} breaks, {counts.get('interpreted', 0)} calls went on as plain "
            f"Python: see `preheat explain {result.model}`"
        )
    if counts.get("fallbacks"):
        yield f"{counts['fallbacks']} parts ran op by op"
    warm = result.counters.get("warm preheat", {})
    if warm.get("captures") or (warm and not warm.get("cache_hits") and not counts.get("breaks")):
        yield "the warm process did not find it in the cache"


def ratio(values: dict[str, float], other: str) -> float | None:
    """`other`'s time over Preheat's."""
    if other not in values or "preheat" not in values:
        return None
    return values[other] / values["preheat"]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [math.log(value) for value in values if value is not None]
    return math.exp(sum(known) / len(known)) if known else None


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else form.format(value)
