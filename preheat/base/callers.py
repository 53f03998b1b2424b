"""Callers: a call made from a line of the user's, for those who look at who called them.

    caller("model.py", 12, "forward")(log, ("step",), {})

`logging` finds the line it reports, and `inspect.stack()` its first entry, by walking the frames
outward. A host call is made by us, so it is made through a function whose code bears the file, the
name and the line of the user's.
"""

import functools
import types
from collections.abc import Callable
from typing import Any


def _call(function: Callable, args: tuple, kwargs: dict) -> Any: return function(*args, **kwargs)  # noqa: E704 - one line, whose number is the user's


@functools.lru_cache(maxsize=4096)
def caller(file: str, line: int, name: str) -> Callable[[Callable, tuple, dict], Any]:
    """`f(function, args, kwargs)` calls function(*args, **kwargs) as line `line` of `name` would."""
    code = _call.__code__.replace(
        co_filename=file, co_firstlineno=line, co_name=name, co_qualname=name)
    return types.FunctionType(code, _call.__globals__, name)
