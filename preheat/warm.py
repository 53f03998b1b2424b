"""Ahead of time: what a service does before it takes requests, so that none of them compiles.

    compiled = preheat.compile(model)
    preheat.warmup(compiled, [(ids,) for ids in examples])     captured and compiled
    preheat.warmup(compiled, [(ids,)], ranges={"ids": {1: range(1, 513)}})    captured for all of these
    preheat.seal(compiled)                                     from now on nothing is

After `seal` a call that nothing fits runs eager and warns, once for each kind of call, or raises
RecompileError (options={"on_miss": "error"}); `preheat.counters()` shows that nothing was captured.
"""

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from preheat.base import marks
from preheat.base.errors import UserError
from preheat.base.signatures import check_arguments, signature_of
from preheat.bridge.padding import grads_of, resized
from preheat.bridge.tensors import Tensor
from preheat.dispatch import Compiled
from preheat.module import CompiledModule

# Passes over the inputs until one captures nothing: the first meets a size, the second another one,
# which makes it a symbol, the third is served.
_MOST_PASSES = 5
_STANCES = {"eager": "eager_on_recompile", "error": "fail_on_recompile"}


def warmup(
    compiled: Any, inputs: Iterable[Any], *,
    ranges: Mapping[str, Mapping[int, Iterable[int]]] | None = None,
) -> None:
    """Calls `compiled` with each of `inputs` until none of them has to be captured any more, and makes
    the plans of their sizes; CUDA graphs, where the mode asks for them, are recorded.

    An input is a tuple of arguments, a dict of keyword arguments, or the one argument. The program
    runs for real each time, in the grad mode that is on. With option "buckets" each input stands for
    all of them: it is cut or padded to every bucket.

    ranges   argument -> axis -> sizes: each input is also called at all of these, cut or padded (with
             0), so that each of them is captured; sizes of several axes in all combinations, those of
             one axis number of several arguments together. These get no plans of their own: they run
             op by op until they come again and again, or, once sealed, for good

    Raises UserError for what is not compiled or is sealed, for inputs that are no list or none, and for ranges
    that are not of this form or of which an input has no tensor or axis: then nothing has run. What
    the program raises is given on, with a note that says for which input.
    """
    tops = _compiled(compiled)
    holders = parts_of(tops)
    if any(holder.sealed for holder in holders):
        raise UserError(f"{tops[0].name} is sealed: warm it up before preheat.seal")
    if isinstance(inputs, Tensor | dict | str | bytes) or not isinstance(inputs, Iterable):
        raise UserError(
            f"warmup takes a list of inputs, got {type(inputs).__name__}: write [(x,)] for one call with x")
    calls = [_call(one) for one in inputs]
    if not calls:
        raise UserError(
            f"warmup of {tops[0].name} was given no inputs, so nothing would be compiled: give one for each kind of "
            "call, such as [(x,)]; an iterator that was used before is empty")
    calls = [each for args, kwargs in calls for each in _with_buckets(tops, args, kwargs)]
    moved = _in_ranges(tops[0].target, calls, {} if ranges is None else ranges)
    for number in range(_MOST_PASSES):
        before = [holder.variants for holder in holders]
        _set_patience(holders, 0)
        try:
            for place, (args, kwargs) in enumerate(calls):
                _run(compiled, args, kwargs, f"input {place} of {len(calls)}")
        finally:
            _set_patience(holders)
        for args, kwargs in moved:
            _run(compiled, args, kwargs, "an input at a size of ranges")
        if number and before == [holder.variants for holder in holders]:
            break
    graphs = [holder.graphs for holder in holders if holder.graphs is not None]
    for args, kwargs in calls * max((asked.most_calls for asked in graphs), default=0):
        compiled(*args, **kwargs)


def _run(compiled: Any, args: tuple, kwargs: dict, which: str) -> None:
    """A call; where grad mode is on, its backward too, which leaves no gradients behind."""
    try:
        grads_of(compiled(*args, **kwargs))
    except Exception as error:
        given = ", ".join([*map(_shown, args), *(f"{k}={_shown(v)}" for k, v in kwargs.items())])
        error.add_note(f"preheat.warmup has called it with {which}: ({given})")
        raise


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


def _with_buckets(tops: Sequence[Any], args: tuple, kwargs: dict) -> Iterable[tuple[tuple, dict]]:
    """The call at each bucket, or as it is where there are none."""
    examples = getattr(tops[0], "examples", None)
    return [(args, kwargs)] if examples is None else examples(args, kwargs)


def _in_ranges(
    target: Any, calls: Sequence[tuple[tuple, dict]], ranges: Mapping[str, Mapping[int, Iterable[int]]],
) -> list[tuple[tuple, dict]]:
    """The calls at all sizes of `ranges`. Raises UserError for what they cannot be made of."""
    axes = _checked_axes(ranges)
    if not axes:
        return []
    signature = signature_of(target)
    check_arguments(signature, ranges)
    made = []
    for place, (args, kwargs) in enumerate(calls):
        bound = signature.bind(*args, **kwargs)
        for name, own in ranges.items():
            value = bound.arguments.get(name)
            if not isinstance(value, Tensor):
                raise UserError(
                    f"ranges[{name!r}]: in input {place} it is {_shown(value)}, no tensor that has sizes")
            for axis in own:
                if not -value.dim() <= axis < value.dim():
                    raise UserError(
                        f"ranges[{name!r}]: there is no axis {axis} of {list(value.shape)}, input {place}")
        for chosen in itertools.product(*axes.values()):
            arguments = dict(bound.arguments)
            for axis, size in zip(axes, chosen):
                for name, own in ranges.items():
                    if axis in own:
                        arguments[name] = resized(arguments[name], axis, size, 0)
            moved = inspect.BoundArguments(signature, arguments)
            made.append((moved.args, moved.kwargs))
    return made


def _checked_axes(ranges: Any) -> dict[int, list[int]]:
    """The sizes of each axis. Raises UserError for anything that is not of the form of `ranges`."""
    axes: dict[int, list[int]] = {}
    if not isinstance(ranges, Mapping) or not all(isinstance(own, Mapping) for own in ranges.values()):
        raise UserError(f"ranges must be {{argument: {{axis: sizes}}}}, such as "
                        f"{{'ids': {{1: range(1, 513)}}}}, got {ranges!r}")
    for name, own in ranges.items():
        for axis, given in own.items():
            sizes = [*given] if isinstance(given, Iterable) else []
            if type(axis) is not int or not sizes or not all(type(n) is int and n >= 0 for n in sizes):
                raise UserError(f"ranges[{name!r}] must be {{axis: sizes}} of ints that are not negative, "
                                f"such as {{1: range(1, 513)}}, got {own!r}")
            if axes.setdefault(axis, sizes) != sizes:
                raise UserError(f"ranges[{name!r}]: axis {axis} of another argument has other sizes: "
                                f"those of one axis number change together")
    return axes


def seal(compiled: Any) -> None:
    """Nothing of `compiled` is captured or compiled any more. Raises UserError for what is not
    compiled."""
    for holder in parts_of(_compiled(compiled)):
        holder.sealed = _STANCES[holder.options.get("on_miss", "eager")]


def _compiled(fn: Any) -> list[Any]:
    """What is behind calls of `fn`."""
    if isinstance(fn, CompiledModule):
        return [holder for holder in fn.holders() if holder is not None]
    holder = marks.compiled_of(fn)
    if holder is None:
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        raise UserError(f"{name} is not compiled: give what preheat.compile returned")
    return [holder]


def parts_of(tops: Sequence[Any]) -> list[Compiled]:
    """What holds the variants."""
    return [part for top in tops for part in getattr(top, "parts", (top,))]


def _set_patience(holders: Sequence[Compiled], *calls: int) -> None:
    for holder in holders:
        for variant in holder.variants:
            variant.set_patience(*calls)


def _call(one: Any) -> tuple[tuple, dict]:
    if isinstance(one, dict):
        return (), one
    return one if isinstance(one, tuple) else (one,), {}
