"""Runs a random program eager and compiled, and compares all that can be seen.

    check(seed)        raises AssertionError naming step, what and the program

Where rounding alone makes values differ (a layer norm of a row that is nearly constant), they are judged by the same
program in float64: what is as near to that as eager, up to a factor of 2, is right.
"""

import contextlib
import functools
import io
import linecache
import re
import warnings

import torch
from torch.utils.checkpoint import checkpoint

import preheat
from tests.same import is_no_worse
from tests.training.place import DEVICE
from tests.training.programs import Program, Step


class Double(torch.autograd.Function):
    """Twice its argument, with Python of its own in both halves."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * 2 + 0 * x


def check(seed: int, settings: dict | None = None, has_regions: bool = False) -> Program:
    """The program of `seed` does the same compiled as eager, in each of its steps."""
    program = Program(seed, has_regions)
    eager = _run(program, lambda f: f)
    compiled = _run(program, lambda f: preheat.compile(f, **(settings or {"options": {"cache": False}})))
    truth = functools.cache(lambda: _run(program, lambda f: f, torch.float64))
    for number, (expected, found) in enumerate(zip(eager, compiled, strict=True)):
        if any(str(expected[name]).startswith("RuntimeError: Output") for name in ("raised", "used")):
            continue  # a view among others refuses to be written to; a result of compiled code does not
        for name in expected:
            if name == "log" and isinstance(expected["used"], str) != isinstance(found["used"], str):
                continue
            if name == "log" and program.steps[number].how == "double":
                continue  # a class runs again from its arguments: hooks inside it are not met
            if name == "grads" and program.steps[number].how == "double":
                continue  # what retains its gradient there sees one backward, not two
            if name == "grads" and any(isinstance(seen["used"], str) for seen in (expected, found)):
                continue  # a backward that raises has come further or less far; "used" is judged below
            if name == "raised" and expected[name].startswith("RuntimeError: A view w"):
                break  # made under no_grad, it refuses to be written to; what needed no gradient then does not
            if _is_lost(program.steps[number], expected[name], found.get(name)):
                continue
            if has_regions and name != "used" and any(isinstance(s["used"], str) for s in (expected, found)):
                continue  # what a region does, a backward does again, as far as it comes
            if has_regions and _is_changed_in_region(expected[name], found.get(name)):
                continue
            why = difference(expected[name], found.get(name), name == "results")
            why = why and difference(expected[name], found.get(name), name == "results", truth()[number][name])
            assert not why, (
                f"seed {seed}, step {number} ({program.steps[number]}), {name}: {why}\n"
                f"{program.text}\neager    {expected[name]}\ncompiled {found.get(name)}")
    return program


def _run(program: Program, wrap, dtype: torch.dtype = torch.float32) -> list[dict]:
    log: list = []
    names = {"torch": torch, "log": log, "double": Double.apply, "checkpoint": checkpoint}
    names["hook"] = lambda label: lambda grad: log.append((label, grad.detach().clone()))
    text, file = placed(program.text), f"<seed {program.seed}>"
    exec(compile(text, file, "exec"), names)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    call = wrap(names["f"])
    return [_step(call, program, number, step, log, dtype) for number, step in enumerate(program.steps)]


def placed(text: str) -> str:
    """The text of a program with its constants where its tensors are."""
    return text if DEVICE == "cpu" else re.sub(r"torch\.tensor\((\[.*?\])\)", rf"torch.tensor(\1, device={DEVICE!r})", text)


def _step(call, program: Program, number: int, step: Step, log: list, dtype: torch.dtype) -> dict:
    generator = torch.Generator().manual_seed(1000 * program.seed + number)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator).to(DEVICE, dtype)

    leaf = draw(3, 3).requires_grad_()
    given = {
        "x": draw(3, 3), "y": leaf * 1.5, "w": draw(3, 3).requires_grad_(),
        "b": draw(2, 3).requires_grad_(), "s": torch.zeros(3, device=DEVICE, dtype=dtype)}
    given["y"].retain_grad()
    seen: dict = {}
    torch.manual_seed(number)
    del log[:]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = call(*given.values())
        except Exception as error:
            seen["raised"], seen["used"] = describe(error), None
            results = ()
        else:
            seen["raised"] = ""
            try:
                seen["used"] = _use(step, given, leaf, results, draw, log)
            except Exception as error:
                seen["used"] = describe(error)
                log.clear()
    seen["results"] = [(r.detach().clone(), r.requires_grad, r.stride()) for r in results]
    seen["grads"] = {
        name: tensor.grad for name, tensor in (*given.items(), ("leaf", leaf))
        if tensor.is_leaf or name == "y"}
    seen["inputs"] = {name: tensor.detach().clone() for name, tensor in given.items()}
    seen["needs"] = [t.requires_grad for t in given.values()]
    seen["random"] = torch.get_rng_state()
    # independent results may run backward in another order
    seen["log"], seen["printed"] = sorted(log, key=lambda row: str(row[:1])), _words(printed.getvalue())
    return seen


def _words(text: str) -> list[str | float]:
    """What was printed, numbers as such: sums of another order round otherwise."""
    words: list[str | float] = []
    for word in text.split():
        with contextlib.suppress(ValueError):
            word = float(word)
        words.append(word)
    return words


def _use(step: Step, given: dict, leaf, results, draw, log) -> object:
    def note(label):
        return lambda grad: log.append((label, None if grad is None else grad.detach().clone()))

    for name in step.hooks if step.how != "double" else ():  # replayed from its arguments there
        kind, _, target = name.rpartition(" ")
        index = int(target[1]) if target[0] == "r" else -1
        if index >= len(results):
            continue
        tensor = given[target] if index < 0 else results[index]
        if not tensor.requires_grad:
            continue
        tensor.grad_fn  # torch crashes in hooks on a view of a leaf that was written to, but for this
        if kind == "post":
            tensor.register_post_accumulate_grad_hook(
                lambda t: log.append(("post", t.grad.detach().clone())))
        else:
            tensor.register_hook(note(name))
    chosen = [k for k in step.chosen if results[k].requires_grad]
    tangents = []
    for k, layout in zip(step.chosen, step.layouts):
        sizes = tuple(results[k].shape)
        tangent = draw(*sizes)
        if layout == "turned" and len(sizes) == 2:
            tangent = draw(*sizes[::-1]).t()
        if layout == "expanded" and sizes:
            tangent = draw(*sizes[:-1], 1).expand(*sizes)
        if k in chosen:
            tangents.append(tangent)
    outputs = [results[k] for k in chosen]
    if not outputs:
        return None
    if step.how == "changed":
        with torch.no_grad():
            results[step.other].mul_(1.5)
    if step.how == "altered":
        with torch.no_grad():
            given[step.altered].mul_(1.5)
    if step.how in ("backward", "changed", "altered"):
        torch.autograd.backward(outputs, tangents)
    elif step.how == "twice":
        # a gradient may be a view of its tangent: each backward has tangents of its own
        torch.autograd.backward(outputs, [t.clone() for t in tangents], retain_graph=True)
        torch.autograd.backward(outputs[:1], [t.clone() for t in tangents[:1]])
        torch.autograd.backward(outputs[:1], tangents[:1])
    elif step.how == "grad":
        return torch.autograd.grad(outputs, [leaf, given["w"]], tangents, allow_unused=True)
    elif step.how == "unused":
        return torch.autograd.grad(outputs[:1], [given["b"]], tangents[:1])
    elif step.how == "inner":
        other = results[step.other]
        if other.requires_grad:
            return torch.autograd.grad(
                outputs, [other, given["w"], given["y"]], tangents, allow_unused=True)
    elif step.how == "double":
        first = torch.autograd.grad(
            outputs, [given["w"], leaf], tangents, create_graph=True, allow_unused=True)
        total = sum(g.pow(2).sum() for g in first if g is not None and g.requires_grad)
        if isinstance(total, torch.Tensor):
            return first, torch.autograd.grad(total, [given["w"], leaf], allow_unused=True)
        return first
    return None


def _is_lost(step: Step, expected, found) -> bool:
    """Where errors may differ: a backward for which the body would have to run again is refused when
    its inputs were changed; of two reasons to refuse, either may come first; and what a formula
    of torch saves but does not need is not kept, so its second backward is not refused. Nor is a view
    that eager's custom function has given."""
    refused = isinstance(found, str) and found.startswith("RuntimeError")
    if isinstance(expected, str) and expected.startswith("RuntimeError"):
        return refused or expected.startswith(("RuntimeError: Trying", "RuntimeError: Output"))
    return step.how in ("double", "changed", "altered") and refused and found.startswith("RuntimeError: one of")


def _is_changed_in_region(expected, found) -> bool:
    """Whether one of both refuses what a checkpoint has read and others have changed since: eager looks at
    its arguments, needed or not, and computes with what else there is by then."""
    return any(isinstance(seen, str) and seen.startswith("RuntimeError: one of") for seen in (expected, found))


def describe(error: Exception) -> str:
    """Type and the beginning of the message: versions and places may differ."""
    return f"{type(error).__name__}: {str(error)[:8]}"


def difference(one, other, with_strides: bool, truth=None) -> str:
    """What differs between two pictures, or "". `truth`: the first one's program in float64, if it could run so."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _difference_of_tensors(one, other, with_strides, truth)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{len(one)} against {len(other)} parts"
        truths = truth if isinstance(truth, (list, tuple)) and len(truth) == len(one) else (None,) * len(one)
        found = (difference(a, b, with_strides, c) for a, b, c in zip(one, other, truths))
        return next(filter(None, found), "")
    if isinstance(one, dict) and isinstance(other, dict):
        truths = truth if isinstance(truth, dict) else {}
        found = ((k, difference(one[k], other.get(k), with_strides, truths.get(k))) for k in one)
        return next((f"{k}: {why}" for k, why in found if why), "")
    if isinstance(one, float) and isinstance(other, float):
        return "" if abs(one - other) <= 1e-4 * (1 + abs(one)) else f"{one} against {other}"
    return "" if type(one) is type(other) and one == other else f"{one!r:.200} against {other!r:.200}"


def _difference_of_tensors(one: torch.Tensor, other: torch.Tensor, with_strides: bool, truth) -> str:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype} {tuple(one.shape)} against {other.dtype} {tuple(other.shape)}"
    if one.device != other.device:
        return f"on {one.device} against {other.device}"
    if with_strides and one.stride() != other.stride():
        return f"strides {one.stride()} against {other.stride()}"
    one, other = one.cpu(), other.cpu()
    scale = max(1.0, one.abs().nan_to_num().max().item() / 10) if one.numel() else 1.0
    if torch.allclose(one, other, rtol=2e-4, atol=2e-5 * scale, equal_nan=True):
        return ""
    if isinstance(truth, torch.Tensor) and one.is_floating_point() and is_no_worse(
            one.double(), other.double(), truth.cpu(), one.isfinite(), one.dtype):
        return ""
    return f"values differ by {(one - other).abs().max()}"
