"""Callers: a call made from a line of the user's, for those who look at who called them.

    caller("model.py", 12, "forward")(log, ("step",), {})

`logging` finds the line it reports, and `inspect.stack()` its first entry, by walking the frames
outward. A host call is made by us, so it is made through a function whose code bears the file, the
name and the line of the user's. What it raises shows the user's lines alone: see `leaves_us`.
"""

import functools
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity

_OURS = os.path.dirname(os.path.dirname(__file__))


def _call(function: Callable, args: tuple, kwargs: dict) -> Any: return function(*args, **kwargs)  # noqa: E704 - one line, whose number is the user's


class Raised:
    """The answer of a call that has raised `error`."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Exhausted:
    """The class itself is what `next(iterator, Exhausted)` answers at the end."""


class Handling:
    """`function`, for a call from a line that handles `error`: `sys.exc_info()` gives it, and what
    is raised has it as its context."""

    __slots__ = ("error", "function", "where")

    def __init__(
        self, error: BaseException, function: Callable, file: str, line: int, name: str,
    ) -> None:
        self.error, self.function, self.where = error, function, (file, line, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        error, call = self.error, caller(*self.where)
        traceback, context = error.__traceback__, error.__context__
        try:
            raise error
        except BaseException:
            error.__traceback__, error.__context__ = traceback, context
            try:
                return call(self.function, args, kwargs)
            except BaseException as raised:  # behind our entry and the caller's
                raised.__traceback__ = raised.__traceback__.tb_next.tb_next
                raise


def leaves_us(error: BaseException) -> None:
    """Takes our entries off the top of the traceback of `error`, and what our frames hold from the
    frames that called the user's: the error may be among it, and would then live in a circle with all
    that the program held. To be called where the outermost function of ours has caught it; a bare
    `raise` behind it adds none."""
    first = error.__traceback__
    while first is not None and _is_ours(first.tb_frame):
        first = first.tb_next
    if first is None:  # an error of ours
        return
    error.__traceback__ = first
    _empty_below(error, set())


def _empty_below(error: BaseException | None, seen: set[int]) -> None:
    """Clears the frames of ours that have ended and called what raised `error`, and what it came of."""
    if error is None or identity(error) in seen:
        return
    seen.add(identity(error))
    _empty_below(error.__cause__, seen)
    _empty_below(error.__context__, seen)
    if (entry := error.__traceback__) is None:
        return
    while entry.tb_next is not None:
        entry = entry.tb_next
    frame = entry.tb_frame.f_back
    while frame is not None:
        if _is_ours(frame) and not frame.f_code.co_flags & inspect.CO_GENERATOR:  # which may only wait
            try:
                frame.clear()
            except RuntimeError:  # it runs, and so do all around it
                return
        frame = frame.f_back


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def warn(text: str) -> None:
    """A warning at the user's line that calls us."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"preheat: {text}", stacklevel=level + 1)


@functools.lru_cache(maxsize=4096)
def caller(file: str, line: int, name: str) -> Callable[[Callable, tuple, dict], Any]:
    """`f(function, args, kwargs)` calls function(*args, **kwargs) as line `line` of `name` would."""
    code = _call.__code__.replace(
        co_filename=file, co_firstlineno=line, co_name=name, co_qualname=name)
    return types.FunctionType(code, _call.__globals__, name)
