"""The breaks of one compiled function: each reason once, as it is told, counted where it came.

    breaks.add(rows)               calls run eager because of them: events, and an error where one graph was asked for
    breaks.goes_on(row)            a node ended, and compiled code goes on after what it met
    breaks.is_hopeless(modes)      calls in these modes broke at one place again and again, whatever their shapes
    raised(error)                  the row for a place from which calls raise again and again
"""

import collections
import dataclasses
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from preheat.base.errors import UserError
from preheat.base.events import emit
from preheat.base.reasons import explain, whole_message
from preheat.ir.trace import Break

# Captures that broke at one place of the program, over all kinds of call; then new kinds do not try.
BREAKS_AT_ONE_PLACE = 6


class Breaks:
    """Why calls of the function `name` are not one graph. With `fullgraph`, what says so raises UserError."""

    def __init__(self, name: str, fullgraph: bool):
        self._name, self._fullgraph = name, fullgraph
        self._rows: dict[Break, None] = {}  # in the order they happened
        self._at: collections.Counter = collections.Counter()

    def __iter__(self) -> Iterator[Break]:
        return iter(self._rows)

    def clear(self) -> None:
        """Forgets all of them."""
        self._rows.clear()
        self._at.clear()

    def add(self, rows: tuple[Break, ...]) -> None:
        """Tells of parts that run eager."""
        self._rows.update(dict.fromkeys(rows))
        for row in rows:
            emit("break", name=self._name, **dataclasses.asdict(row))
        self.refuse(rows)

    def goes_on(self, row: Break) -> None:
        """Tells of a node that ended so, after which compiled code goes on."""
        self._rows[row] = None
        emit("break", name=self._name, goes_on=True, **dataclasses.asdict(row))

    def refuse(self, rows: tuple[Break, ...]) -> None:
        """Raises where the user asked for one graph and there are breaks."""
        if self._fullgraph and rows:
            raise UserError(whole_message(self._name, **dataclasses.asdict(rows[0])))

    def count(self, modes: Any, rows: Iterable[Break]) -> None:
        """A capture from the entry, in these modes, ended with `rows`."""
        for row in rows:
            self._at[modes, row.reason, row.file, row.line] += 1

    def is_hopeless(self, modes: Any) -> bool:
        """Whether captures in these modes broke at one place again and again."""
        return any(known == modes and count >= BREAKS_AT_ONE_PLACE for (known, *_), count in self._at.items())


def raised(error: BaseException) -> Break:
    """The row for a place from which calls have raised too often, the last one `error`: its line is to blame."""
    (last,) = traceback.extract_tb(error.__traceback__, -1) or (None,)
    where = ("", 0, "") if last is None else (last.filename, last.lineno, last.line or "")
    said = type(error).__name__
    return Break("raises", said, *where, explain("raises", said)[1])
