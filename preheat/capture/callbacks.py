"""Callbacks: what C decides by what a function of the program's gives, the machine decides in its place.

    sorted(rows, key=weight)    C compares Key(weight(row)): the machine compares what is in it
    filter(wanted, rows)        C is given True or False: the machine has tested what `wanted` gave

So a comparison of numbers that change is a guard on its answer, as in `a < b` of the program's own, and a
Python `__lt__` or `__bool__` is interpreted. Guarantees the order in which C compares, and its errors.
"""

import operator
import types
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.capture import operations
from preheat.capture.observer import ABSENT

C_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType,
)  # fmt: skip


def trampoline(m, callback: Any, decide: Callable | None = None) -> Any:
    """A native function that C may call: the machine runs `callback`. Unwatched, C may as well
    call it. `decide(m, result)`: what C shall see of what it gives.
    """
    cls = type(callback)
    if (
        not m.is_watching
        or callback is None
        or not (m.numbers and m.observer.is_operation(callback))
        and (cls in C_CALLABLES or cls is type and not m.view(callback).is_heap)
    ):
        return callback

    def call_in_machine(*args, **kwargs):
        result = m.call(callback, args, kwargs)
        return result if decide is None else decide(m, result)

    return call_in_machine


def iterates_in_python(m, value: Any) -> bool:
    """Whether C would run Python to iterate `value`."""
    cls = type(value)
    raw = m.lookup(value, cls, "__iter__")
    if raw is ABSENT:
        raw = m.lookup(value, cls, "__getitem__")
    return operations.runs_python(raw)


def tester(m, test: Any) -> Any:
    """`test`, a function or None, as C shall call it: it gives the truth of what that gives, or of the
    element itself."""
    if m.is_watching and (test is None or test is bool):
        return lambda value: is_true(m, value)
    return trampoline(m, test, is_true)


class Key:
    """What a key function gave, for C to compare with others by `operation` (`<` or `>`) alone."""

    __slots__ = ("machine", "value", "operation")

    def __init__(self, machine: Any, value: Any, operation: Callable) -> None:
        self.machine, self.value, self.operation = machine, value, operation

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def _compare(self, asked: Callable, other: Any) -> bool:
        """C asks the other way round where the other one did not know."""
        m = self.machine
        pair = self.value, other.value if type(other) is Key else other
        first, second = pair if asked is self.operation else pair[::-1]
        return is_true(m, m.finish(operations.compare(m, self.operation, first, second)))


def by_less(m, value: Any) -> Any:
    """What a sort, or `min`, compares."""
    return value if _is_known_to_c(m, value) else Key(m, value, operator.lt)


def by_greater(m, value: Any) -> Any:
    """What `max` compares."""
    return value if _is_known_to_c(m, value) else Key(m, value, operator.gt)


def _is_known_to_c(m, value: Any) -> bool:
    """A plain value that does not change, or a tuple of some: C compares them as the machine would."""
    if type(value) is tuple and identity(value) not in m.known:
        return all(_is_known_to_c(m, part) for part in value)
    return type(value) in operations.PLAIN and identity(value) not in m.numbers


def holds_numbers(m, args: list) -> bool:
    """Whether the only argument is a list or tuple that the call made, with a number in it that changes."""
    if len(args) != 1 or type(args[0]) not in (list, tuple) or identity(args[0]) in m.known:
        return False
    return any(identity(part) in m.numbers for part in args[0])


def is_true(m, value: Any) -> bool:
    """`bool(value)`, here and now."""
    return m.finish(operations.truth(m, value))
