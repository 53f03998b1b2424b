"""One fresh process, one measurement; its last line of output is the result as JSON.

python -m bench.worker first bert preheat          first call, cache as the environment names
python -m bench.worker steady bert eager,preheat   alternation in one process, errors, overheads
python -m bench.worker bandwidth                   a kernel against a plain copy of the same bytes
"""

import argparse
import copy
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import preheat
from bench import models

BACKENDS: dict[str, Callable[[Callable], Callable]] = {
    "eager": lambda call: call,
    "torch.compile": lambda call: torch.compile(call),
    "preheat": lambda call: preheat.compile(call),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.worker")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("backends", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--round-ms", type=float, default=25.0)
    asked = parser.parse_args()
    with models.settings():
        found = WHAT[asked.what](asked)
    print(json.dumps(found), flush=True)


FIRST_STEPS = 3  # of training: what torch.compile does in its first, Preheat does in three


def first(asked: argparse.Namespace) -> dict[str, Any]:
    """Seconds from `compile(...)` to the first result (of training: the third), and what the next
    call takes."""
    subject, count = models.make(asked.model), 1
    if models.MODELS[asked.model].kind in ("training", "optimizer"):
        count = FIRST_STEPS
    began = time.perf_counter()
    call = BACKENDS[asked.backends](subject.call)
    for _ in range(count):
        perform(asked.model, subject, call)
    first_s = time.perf_counter() - began
    began = time.perf_counter()
    perform(asked.model, subject, call)
    return {
        "first_s": first_s,
        "second_s": time.perf_counter() - began,
        "counters": preheat.counters(),
    }


def steady(asked: argparse.Namespace) -> dict[str, Any]:
    """Median microseconds a call, the backends in turn within each round; errors against float64.

    Each backend gets the model itself, so all read the same weights.
    """
    subject = models.make(asked.model)
    calls = {name: BACKENDS[name](subject.call) for name in asked.backends.split(",")}
    reference = leaves(_in_float64(asked.model, subject))
    for call in calls.values():
        for _ in range(FIRST_STEPS):
            perform(asked.model, subject, call)
    errors = {
        name: relative_error(leaves(perform(asked.model, subject, call)), reference)
        for name, call in calls.items()
    }
    samples = alternate(
        {
            name: lambda call=call: perform(asked.model, subject, call)
            for name, call in calls.items()
        } | subject.rivals,
        asked.rounds,
        asked.round_ms / 1e3,
    )
    medians = {name: statistics.median(times) * 1e6 for name, times in samples.items()}
    return {"median_us": medians, "error": errors, "counters": preheat.counters()}


def perform(model: str, subject: models.Subject, call: Callable) -> Any:
    """What is measured: a call, or in training a forward and a backward. Then the result is the loss
    and the gradients, which the parameters do not keep."""
    if models.MODELS[model].kind != "training":
        return call(*subject.args, **subject.kwargs)
    parameters = list(subject.call.parameters())
    with torch.enable_grad():
        torch.manual_seed(0)
        result = call(*subject.args, **subject.kwargs)
        loss = getattr(result, "loss", None)
        if loss is None:
            loss = leaves(result)[0].float().pow(2).mean()
        loss.backward()
    # where nothing comes torch.compile gives zeros, eager None
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return [loss.detach(), *grads]


def bandwidth(asked: argparse.Namespace) -> dict[str, Any]:
    """GB/s of a fused elementwise kernel and of a plain copy, 64 MB read and 64 MB written each."""
    x = torch.randn(16 << 20)
    out = torch.empty_like(x)

    def copy_bytes() -> None:
        out.copy_(x)

    def chain(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(torch.relu(x * 2 + 1) - 0.5)

    compiled = preheat.compile(chain)
    samples = alternate(
        {"copy": copy_bytes, "kernel": lambda: compiled(x, out)}, asked.rounds, 0.05
    )
    moved = 2 * x.numel() * x.element_size()
    rates = {name: moved / statistics.median(times) / 1e9 for name, times in samples.items()}
    return {"gb_per_s": rates, "counters": preheat.counters()}


def alternate(
    calls: Mapping[str, Callable[[], Any]], rounds: int, round_s: float
) -> dict[str, list[float]]:
    """Seconds a call, once a round for each of `calls` in turn; a round runs `round_s` at least."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        began = time.perf_counter()
        call()
        counts[name] = max(1, int(round_s / max(time.perf_counter() - began, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.perf_counter() - began) / counts[name])
    return samples


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order, however nested."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        value = [part for part in vars(value).values()] if hasattr(value, "__dict__") else []
    return [tensor for part in value for tensor in leaves(part)]


def relative_error(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest |found - reference| over the largest |reference|, each tensor apart."""
    assert len(found) == len(reference)
    worst = 0.0
    for a, b in zip(found, reference):
        if a.numel():
            scale = b.double().abs().max().item() or 1.0
            worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


def _in_float64(model: str, subject: models.Subject) -> Any:
    """The result of the subject with parameters and arguments in float64."""
    call = subject.call
    if isinstance(call, torch.nn.Module):
        call = copy.deepcopy(call).double()
    wide = models.Subject(call, tuple(_double(subject.args)), _double(subject.kwargs))
    return perform(model, wide, call)


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _double(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_double(part) for part in value)
    return value


WHAT: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "first": first,
    "steady": steady,
    "bandwidth": bandwidth,
}

if __name__ == "__main__":
    main()
