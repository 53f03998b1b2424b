"""Whether gradients of a compiled program are eager's at sizes that it was not captured at.

    python -m tests.sizes.gradients START COUNT [-j N]      random programs of `grammar.py`, in training

x, y and the weights require grad. What does not replay is counted; every value is compared.
"""

import random
import sys
from collections import Counter

import torch

import preheat
from tests import spread
from tests.sizes import grammar
from tests.sizes.check import COUNTED, counted_ops, differs, run_all

WEIGHTS = ("W", "W1", "C1", "C2", "C3")


def outcome(function, program, size, seed: int):
    """What a call and its backward give: ("value", results, gradients), or ("error", type, text)."""
    x, y, m, ids = grammar.arguments(*size)
    leaves = [x.requires_grad_(), y.requires_grad_(), *(program.__globals__[name] for name in WEIGHTS)]
    torch.manual_seed(seed)
    try:
        results = function(x, y, m, ids)
    except Exception as error:  # the program's own, whichever it is
        return "error", type(error).__name__, str(error)
    chance = random.Random(seed)
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs:
        return "value", results, ()
    tangents = []
    for output in outputs:
        tangent = torch.randn(output.shape)
        if output.dim() == 2 and chance.random() < 0.2:
            tangent = torch.randn(output.shape[::-1]).t()
        if output.dim() and chance.random() < 0.2:
            tangent = torch.randn(*output.shape[:-1], 1).expand(output.shape)
        tangents.append(tangent.to(output.dtype))
    plain = [r.detach() if isinstance(r, torch.Tensor) else r for r in results]
    try:
        return "value", plain, torch.autograd.grad(outputs, leaves, tangents, allow_unused=True)
    except RuntimeError as error:
        return "error", "RuntimeError", str(error)[:40]


def check(text: str, sizes, dynamic: bool | None = None) -> Counter:
    """Runs the program and its backward at all `sizes`; counts calls, captures, and replays at sizes
    that are new. Raises AssertionError."""
    program = grammar.compiled_text(text)
    for name in WEIGHTS:
        program.__globals__[name].requires_grad_()
    compiled = preheat.compile(
        program, dynamic=dynamic, options={"cache": False, "recompile_limit": 40})
    counts: Counter = Counter(calls=len(sizes))
    seen = set()
    for place, size in enumerate(sizes):
        expected = outcome(program, program, size, place)
        before = preheat.counters()
        with counted_ops() as calls:
            found = outcome(compiled, program, size, place)
        after = preheat.counters()
        counts["captures"] += after["captures"] - before["captures"]
        counts["pinned"] += after["fallbacks"] - before["fallbacks"]
        is_replay = size not in seen and not any(
            after[name] != before[name] for name in ("captures", "fallbacks", "breaks"))
        counts["accepted replays"] += is_replay
        counts["of them op by op"] += is_replay and bool(calls)
        seen.add(size)
        where = f"at {size} (after {sizes[:place]})"
        assert found[0] == expected[0], f"{where}: {found[:3]} instead of {expected[:3]}\n{text}"
        if expected[0] == "error":
            assert found[1] == expected[1], f"{where}: {found} instead of {expected}\n{text}"
            continue
        for kind, own, other in zip(("results", "gradients"), found[1:], expected[1:]):
            wrong = _differ(own, other, kind == "results")
            assert not wrong, f"{where}, {kind}: {wrong}\n{text}"
    return counts


def _differ(found, expected, has_strides: bool) -> str:
    """How two tuples differ, to within float noise at the scale of each tensor."""
    if len(found) != len(expected):
        return f"{len(found)} parts instead of {len(expected)}"
    for place, (own, other) in enumerate(zip(found, expected)):
        if own is None or other is None or not isinstance(other, torch.Tensor):
            wrong = "" if own is other or own == other else f"{own} instead of {other}"
        else:
            scale = other.detach().double().nan_to_num(0, 0, 0).abs().max().clamp(min=1) if (
                other.numel() and other.is_floating_point()) else 1
            if not has_strides:  # where two gradients meet, the first one's layout wins
                own, other = (t.clone(memory_format=torch.contiguous_format) for t in (own, other))
            wrong = differs(own, other, False)
            if wrong == "other values" and torch.allclose(
                    own / scale, other / scale, rtol=2e-4, atol=2e-5, equal_nan=True):
                wrong = ""
        if wrong:
            return f"{place}: {wrong}"
    return ""


def run(start: int, count: int, calls: int = 8) -> Counter:
    """Checks the programs of seeds from `start` on; prints and counts failures."""
    return run_all(
        start, count, calls,
        lambda text, sizes, chance: check(text, sizes, chance.choice((None, True))))


if __name__ == "__main__":
    sys.exit(spread.main("tests.sizes.gradients", run, (*COUNTED, "pinned")))
