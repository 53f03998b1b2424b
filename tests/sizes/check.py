"""Whether a compiled program does what eager does at sizes that it was not captured at.

    python -m tests.sizes.check START COUNT [preheat] [-j N]    random programs of `grammar.py`, op by op or
                                                                with generated kernels
"""

import contextlib
import random
import sys
from collections import Counter

import torch

import preheat
from preheat.run.interpreted import Interpreted
from tests import spread
from tests.sizes import grammar

SIZES = ((4, 6), (5, 6), (3, 7), (1, 6), (4, 1), (2, 2), (7, 3), (1, 1), (6, 6), (2, 9), (8, 4), (0, 5), (3, 0))


def outcome(function, args):
    """What a call gives, or the exception: ("value", ...) or ("error", type)."""
    try:
        with torch.no_grad():
            return "value", function(*args)
    except Exception as error:  # the program's own, whichever it is
        return "error", type(error).__name__, str(error).partition("\nException raised from ")[0]  # stacks of C differ


def differs(found, expected, is_exact: bool) -> str:
    """How two results differ, "" if they do not."""
    if type(found) is not type(expected):
        return f"{type(found).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, torch.Tensor):
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
        strides = [
            (a, b) for a, b, n in zip(found.stride(), expected.stride(), expected.shape) if n > 1]
        if expected.numel() and any(a != b for a, b in strides):
            return f"strides {found.stride()} instead of {expected.stride()}"
        if is_exact:
            same = torch.equal(found, expected) or torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
        else:
            same = torch.allclose(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        return "" if same else "other values"
    if isinstance(expected, (tuple, list)):
        if len(found) != len(expected):
            return f"{len(found)} parts instead of {len(expected)}"
        return next((d for d in map(lambda p: differs(*p, is_exact), zip(found, expected)) if d), "")
    return "" if found == expected else f"{found!r} instead of {expected!r}"


def is_unstable(program, size, make=grammar.arguments, tries: int = 8) -> bool:
    """Whether eager gives something else, too, where its inputs differ in their last bits: the place of the
    largest of numbers that are equal but for rounding."""
    generator, expected = torch.Generator().manual_seed(0), outcome(program, make(*size))
    for _ in range(tries):
        args = [
            a * (1 + 2e-7 * (torch.rand(a.shape, generator=generator) - 0.5)) if a.is_floating_point() else a
            for a in make(*size)]
        if differs(outcome(program, args)[1], expected[1], False):
            return True
    return False


@contextlib.contextmanager
def counted_ops():
    """A list with an entry for each body that is run op by op meanwhile."""
    calls, run = [], Interpreted.__call__
    Interpreted.__call__ = lambda self, inputs: calls.append(self) or run(self, inputs)
    try:
        yield calls
    finally:
        Interpreted.__call__ = run


def check(text: str, sizes, backend: str = "eager", dynamic: bool | None = True, make=grammar.arguments) -> Counter:
    """Runs the program at all `sizes`, of arguments that `make` gives; counts calls, captures, and replays at sizes that are new.
    Raises AssertionError."""
    program = grammar.compiled_text(text)
    compiled = preheat.compile(
        program, backend=backend, dynamic=dynamic, options={"cache": False, "recompile_limit": 40})
    counts: Counter = Counter(calls=len(sizes))
    seen = set()
    for place, size in enumerate(sizes):
        args = make(*size)
        expected = outcome(program, args)
        before = preheat.counters()
        with counted_ops() as calls:
            found = outcome(compiled, args)
        after = preheat.counters()
        counts["captures"] += after["captures"] - before["captures"]
        is_replay = size not in seen and not any(
            after[name] != before[name] for name in ("captures", "fallbacks", "breaks"))
        counts["accepted replays"] += is_replay
        counts["of them op by op"] += is_replay and bool(calls)
        seen.add(size)
        assert found[0] == expected[0], (
            f"at {size}: {found[:3]} instead of {expected[:3]}\n{text}")
        if expected[0] == "error":
            assert found[1:] == expected[1:], f"at {size}: {found} instead of {expected}\n{text}"
            continue
        wrong = differs(found[1], expected[1], backend == "eager")
        if wrong == "other values" and not differs(found[1], expected[1], False):
            # under a dispatch mode some composites (matmul) go another way, and round otherwise: then
            # a capture at this very size is what the replay has to equal
            static = preheat.compile(
                program, backend=backend, dynamic=False, options={"cache": False})
            wrong = differs(found[1], outcome(static, args)[1], backend == "eager")
        if wrong == "other values" and is_unstable(program, size, make):
            counts["unstable"] += 1
            continue
        assert not wrong, f"at {size} (after {sizes[:place]}): {wrong}\n{text}"
    return counts


def run(start: int, count: int, backend: str = "eager", calls: int = 8) -> Counter:
    """Checks the programs of seeds from `start` on, a third of them with views as arguments; prints and counts failures."""
    return run_all(start, count, calls, lambda text, sizes, chance: check(
        text, sizes, backend, make=chance.choice((grammar.arguments, grammar.arguments, grammar.views))))


def run_all(start: int, count: int, calls: int, check_one) -> Counter:
    """check_one(text, sizes, chance) for the programs of these seeds; prints and counts failures."""
    total: Counter = Counter()
    for seed in range(start, start + count):
        chance = random.Random(seed)
        first = chance.choice(SIZES[:3])
        text = grammar.write(chance, first)
        sizes = [first, *(chance.choice(SIZES) for _ in range(calls - 1))]
        try:
            total += check_one(text, sizes, chance)
        except AssertionError as wrong:
            total["wrong"] += 1
            print(f"seed {seed}: {wrong}", flush=True)
        except Exception as fault:
            total["faults"] += 1
            print(f"seed {seed}: FAULT {type(fault).__name__}: {fault}\n{text}", flush=True)
        total["programs"] += 1
    return total


COUNTED = ("calls", "captures", "accepted replays", "of them op by op", "unstable")

if __name__ == "__main__":
    sys.exit(spread.main("tests.sizes.check", run, COUNTED, ("backend",)))
