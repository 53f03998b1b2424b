"""Ranges: what the program asks of one whose ends are numbers that change.

    len(range(n))       ->  max(0, n)
    4 in range(n)       ->  the tests 0 <= 4 and 4 < n
    range(0, 9, n)      ->  the test n != 0, without which it raises

A range holds its numbers as any container does: nobody has looked at them until C iterates it.
"""

import operator
from typing import Any

from preheat.base.identity import identity
from preheat.capture import operations
from preheat.capture.operations import calculate


def is_changing(m, value: Any) -> bool:
    """Whether `value` is a range, one of whose numbers changes."""
    return type(value) is range and bool(m.numbers) and any(
        identity(number) in m.numbers for number in (value.start, value.stop, value.step))


def has_known_step(m, value: range) -> bool:
    return identity(value.step) not in m.numbers


def length(m, value: Any) -> Any:
    """`len(value)`, of anything."""
    if not is_changing(m, value) or not has_known_step(m, value):
        return operations.length(m, value)
    low, high = (value.start, value.stop) if value.step > 0 else (value.stop, value.start)
    span, step = calculate(m, operator.sub, high, low), abs(value.step)
    if step > 1:
        span = calculate(m, operator.floordiv, calculate(m, operator.add, span, step - 1), step)
    return span if calculate(m, operator.ge, span, 0) else 0


def contains(m, container: range, value: Any) -> bool | None:
    """`value in container`, of runtime numbers, as tests; None: C has to look."""
    if type(value) is not int or not has_known_step(m, container):
        return None
    if identity(value) not in m.numbers and not is_changing(m, container):
        return None
    low, high, step = container.start, container.stop, container.step
    is_within = (
        calculate(m, operator.le, low, value) and calculate(m, operator.lt, value, high) if step > 0
        else calculate(m, operator.ge, low, value) and calculate(m, operator.gt, value, high))
    if not is_within or abs(step) == 1:
        return is_within
    past = calculate(m, operator.mod, calculate(m, operator.sub, value, low), step)
    return calculate(m, operator.eq, past, 0)


def check_step(m, args: tuple | list) -> None:
    """A step that changes is 0 again, or is not."""
    if len(args) == 3 and type(args[2]) is int:
        calculate(m, operator.ne, args[2], 0)
