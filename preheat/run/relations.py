"""Relations: guards on expressions of sizes and numbers, all judged by one function.

    guard (arg0.shape[0] == arg1.shape[0]) is True      def related(a0, a1):
    guard (arg0.shape[1] <= 512) is True           ->       d4 = a0.size(0)
                                                            ...
                                                            return (d4 == d9) is True and ...

As the checker judges them (`check.py`), a hundred times faster: 0.1-0.3 us each. It runs when all
guards that have rows hold, so objects have their classes; what it raises, or denies, the checker
says.
"""

from collections.abc import Callable, Sequence
from typing import Any

from preheat.ir.trace import Guard, Trace
from preheat.run.reach import function_of


def is_relation(trace: Trace, guard: Guard) -> bool:
    """Whether a guard says what a test of numbers gives."""
    return (
        guard.kind == "is" and type(guard.expected) is bool
        and trace.sources[guard.source].kind == "number")


def related(
    trace: Trace, guards: Sequence[Guard], found: Sequence[Any], live: Sequence[Any] = (),
) -> Callable[..., bool] | None:
    """Whether all of `guards`, which are relations, hold for the objects of a call (keyword ones
    last); None where there is none to judge."""
    if not guards:
        return None
    return function_of(
        trace, found, live, [(guard.source, guard.expected) for guard in guards])
