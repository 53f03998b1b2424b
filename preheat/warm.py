"""Ahead of time: what a service does before it takes requests, so that none of them compiles.

    compiled = preheat.compile(model)
    preheat.warmup(compiled, [(ids,) for ids in examples])     captured and compiled
    preheat.seal(compiled)                                     from now on nothing is

After `seal` a call that nothing fits runs eager and warns, once for each kind of call, or raises
RecompileError (options={"on_miss": "error"}); `preheat.counters()` shows that nothing was captured.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from preheat.base import marks
from preheat.base.errors import UserError
from preheat.dispatch import Compiled
from preheat.module import CompiledModule

# Passes over the inputs until one captures nothing: the first meets a size, the second another one,
# which makes it a symbol, the third is served.
_MOST_PASSES = 5
_STANCES = {"eager": "eager_on_recompile", "error": "fail_on_recompile"}


def warmup(compiled: Any, inputs: Iterable[Any]) -> None:
    """Calls `compiled` with each of `inputs` until none of them has to be captured any more, and makes
    the plans of their sizes; CUDA graphs, where the mode asks for them, are recorded.

    An input is a tuple of arguments, a dict of keyword arguments, or the one argument. The program
    runs for real each time, in the grad mode that is on. Raises UserError for what is not compiled.
    """
    holders, calls = _compiled(compiled), [_call(one) for one in inputs]
    for number in range(_MOST_PASSES):
        before = [holder.variants for holder in holders]
        _set_patience(holders, 0)
        try:
            for args, kwargs in calls:
                compiled(*args, **kwargs)
        finally:
            _set_patience(holders)
        if number and before == [holder.variants for holder in holders]:
            break
    graphs = [holder.graphs for holder in holders if holder.graphs is not None]
    for args, kwargs in calls * max((asked.calls for asked in graphs), default=0):
        compiled(*args, **kwargs)


def seal(compiled: Any) -> None:
    """Nothing of `compiled` is captured or compiled any more. Raises UserError for what is not
    compiled."""
    for holder in _compiled(compiled):
        answer = holder.options.get("on_miss", "eager")
        if answer not in _STANCES:
            raise UserError(f"on_miss must be one of {', '.join(_STANCES)}, not {answer!r}")
        holder.sealed = _STANCES[answer]


def _compiled(fn: Any) -> list[Compiled]:
    """What holds the variants of `fn`."""
    if isinstance(fn, CompiledModule):
        return [holder for holder in fn.holders() if isinstance(holder, Compiled)]
    holder = marks.compiled_of(fn)
    if holder is None:
        raise UserError(f"{fn!r} is not compiled: give what preheat.compile returned")
    return [holder]


def _set_patience(holders: Sequence[Compiled], *calls: int) -> None:
    for holder in holders:
        for variant in holder.variants:
            variant.set_patience(*calls)


def _call(one: Any) -> tuple[tuple, dict]:
    if isinstance(one, dict):
        return (), one
    return one if isinstance(one, tuple) else (one,), {}
