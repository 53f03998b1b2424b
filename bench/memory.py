"""Peak memory of a training step: bytes that torch's CPU allocator has given out, at the most.

    python -m bench.memory train_bert preheat       {"peak_bytes": ..., "held_bytes": ...} as JSON
    peak_bytes(step)                                of one call, beyond what is there when it begins

Counted by the allocator itself, exactly and the same in every run: parameters apart, everything that
a step allocates, saved tensors, gradients, buffers and the workspace that torch's own kernels ask
torch for; `held_bytes` is what a backend keeps between steps. Memory of MKL and oneDNN is not seen.

The count is the profiler's, beside which Preheat runs plain Python: whoever imports this module
before `preheat` hides the profiler from it.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

assert "preheat" not in sys.modules, "bench.memory must be imported before preheat"
torch._C._autograd._profiler_enabled = lambda: False

from torch._C._profiler import _EventType  # noqa: E402

from bench import models, worker  # noqa: E402

_STEPS = 5  # until everything is compiled


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes that `run` has allocated and not yet freed at one time."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    found, stack = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields))
    # each event says how much was allocated after it, whatever the clock's grain
    _, first = min(found, key=lambda row: (row[0], row[1].total_allocated))
    return max(one.total_allocated for _, one in found) - first.total_allocated + first.alloc_size


def measure(model: str, backend: str) -> dict[str, int]:
    """Peak and held bytes of a training step of `model`, once everything is compiled."""
    subject = models.make(model)
    before = alive_bytes()
    call = worker.BACKENDS[backend](subject.call)
    for _ in range(_STEPS):
        worker.perform(model, subject, call)
    held = alive_bytes() - before
    gc.disable()
    peak = peak_bytes(lambda: worker.perform(model, subject, call))
    return {"peak_bytes": peak + held, "held_bytes": held}


def alive_bytes() -> int:
    """Bytes of all tensors that Python knows."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.memory")
    parser.add_argument("model")
    parser.add_argument("backend")
    asked = parser.parse_args()
    with models.settings():
        found = measure(asked.model, asked.backend)
    print(json.dumps(found), flush=True)
