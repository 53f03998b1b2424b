"""Fronts: the known beginnings of a call, tried one after the other without a look at the call.

    fronts.put(bound, entry)      entry is tried first from now on
    fronts.first(x)               its result, or MISS
    fronts.other(x)               that of another, or MISS: who then looks at the call knows more

A beginning is a callable that gives MISS where the call is not its own; that costs a native check
of its guards. So programs that go one way and then another need no Python to find it. One whose
guards are checked in Python, as before its backward has been learned, is tried only if it came last.
"""

import itertools
from collections.abc import Callable, Hashable
from typing import Any

from preheat.base.stance import present
from preheat.run.variant import MISS

# More are not tried in turn; after so many calls that were not the first's, the one at hand is.
_MOST, _CALLS_OF_OTHERS = 8, 16


class Fronts:
    """`first` is what a call tries; nothing is tried while the stance may not allow it."""

    __slots__ = ("first", "_others", "_known", "_calls")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.first: Callable = _miss
        self._others: tuple[Callable, ...] = ()
        # the first in front; each with whether its guards are checked natively
        self._known: dict[Hashable, tuple[Callable, bool]] = {}
        self._calls = 0  # of others

    def hide(self) -> None:
        """The next call has to look: the stance has changed."""
        self.first, self._others = _miss, ()

    def put(self, key: Hashable, front: Callable | None, is_native: bool = True) -> None:
        """`front`, the beginning known as `key`, is tried first from now on. None: nothing is, and
        then the others. `is_native`: its guards are checked natively."""
        if front is not None:
            others = (pair for pair in self._known.items() if pair[0] is not key)
            self._known = {key: (front, is_native), **dict(itertools.islice(others, _MOST - 1))}
        self._others = tuple(
            known for known, is_cheap in self._known.values() if is_cheap and known is not front)
        self.first = _miss if front is None else front
        if present.name == "force_eager":  # asked last: one that another thread takes now wins
            self.hide()

    def other(self, args: tuple, kwargs: dict) -> Any:
        """The result of one that is not the first, or MISS."""
        for front in self._others:
            result = front(*args, **kwargs)
            if result is not MISS:
                self._calls += 1
                if self._calls % _CALLS_OF_OTHERS == 0:
                    for key in [k for k, (known, _) in self._known.items() if known is front]:
                        self.put(key, front)
                return result
        return MISS


def _miss(*args: Any, **kwargs: Any) -> Any:
    """What is tried where nothing is known."""
    return MISS
