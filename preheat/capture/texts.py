"""Text of values: `str`, `repr` and `format`, with Python dunders interpreted.

    text(m, record)             ->  Frame(Record.__str__), its result checked to be a string
    format_value(m, 0.5, ".3f") ->  "0.500"

Each gives a value or a frame, as in `operations.py`. Source: CPython `Objects/object.c`
`PyObject_Str`, `PyObject_Format`.
"""

from collections.abc import Callable
from typing import Any

from preheat.capture import operations
from preheat.capture.calls import c_call
from preheat.capture.frames import and_then


def text(m, value: Any) -> Any:
    """`str(value)`."""
    return _shown(m, str, "__str__", value)


OBJECT_STR = object.__dict__["__str__"]
OBJECT_FORMAT = object.__dict__["__format__"]


def representation(m, value: Any) -> Any:
    """`repr(value)`."""
    return _shown(m, repr, "__repr__", value)


def _shown(m, function: type | Callable, dunder: str, value: Any) -> Any:
    cls = type(value)
    if cls in operations.PLAIN:
        return operations.calculate(m, function, value) if m.numbers else function(value)
    raw = m.lookup(value, cls, dunder)
    if operations.runs_python(raw):
        return string_by(m, raw, dunder, value)
    if function is str and raw is OBJECT_STR:
        return representation(m, value)
    return c_call(m, function, (value,), None)


def string_by(m, raw: Any, dunder: str, value: Any) -> Any:
    """What the Python `dunder` of `value` gives; a TypeError unless it is a string."""
    return and_then(operations.call_dunder(m, raw, value), check_string, None, dunder, m)


def check_string(m, dunder: str, result: Any) -> Any:
    if not issubclass(type(result), str):
        raise TypeError(f"{dunder} returned non-string (type {type(result).__name__})")
    return result


def format_value(m, value: Any, spec: str) -> Any:
    """`format(value, spec)`."""
    cls = type(value)
    if cls in operations.PLAIN:
        return operations.calculate(m, format, value, spec) if m.numbers else format(value, spec)
    raw = m.lookup(value, cls, "__format__")
    if operations.runs_python(raw):
        return and_then(operations.call_dunder(m, raw, value, spec), check_format, None, None, m)
    if raw is OBJECT_FORMAT and not spec:
        return text(m, value)
    return c_call(m, format, (value, spec), None)


def check_format(m, _: None, result: Any) -> Any:
    if not issubclass(type(result), str):
        raise TypeError(f"__format__ must return a str, not {type(result).__name__}")
    return result


def convert(m, how: Callable | None, value: Any) -> Any:
    """The `!s`, `!r` or `!a` of an f-string."""
    if how is None:
        return value
    if how is str:
        return text(m, value)
    shown = representation(m, value)
    return shown if how is repr else and_then(shown, escape, None, None, m)


def escape(m, _: None, shown: str) -> str:
    operations.look_at(m, shown)
    return shown.encode("ascii", "backslashreplace").decode("ascii")
