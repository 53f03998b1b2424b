"""Pins: what a program was captured for, of a number: where it was looked at, by what, and what to do.

    f.py:12: n is 3 for good: it is an argument of torch.pixel_shuffle, which has no rule for a number that changes
        return F.pixel_shuffle(x, n)
        keep it the same on each call, or do that part outside and pass what it gives
"""

from typing import NamedTuple

_OF_CALL = "keep it the same on each call, or do that part outside and pass what it gives"
_OF_KEY = "look up outside what hangs on it and pass that"
_OF_VALUE = "compute with it in torch or by plain arithmetic, or keep it the same on each call"
_OF_TEST = "choose with torch.where, or make the test outside"


KEY, TEST = "index or key", "test"


class Pin(NamedTuple):
    """path      the number, as a user would write it;  value  what it is;  guard  what later calls are checked by
    by         the function that was given it; KEY of an index or a key, TEST of what the program decides by, or ""
    file, line, code   where in the program
    """

    path: str
    guard: str
    value: str
    by: str = ""
    file: str = ""
    line: int = 0
    code: str = ""

    @property
    def why(self) -> str:
        if self.by == TEST:
            return "each way that the program goes is a variant"
        if self.by == KEY:
            return "it is an index or a key"
        if not self.by:
            return "it is looked at as a value"
        return f"it is an argument of {self.by}, which has no rule for a number that changes"

    @property
    def hint(self) -> str:
        return {TEST: _OF_TEST, KEY: _OF_KEY, "": _OF_VALUE}.get(self.by, _OF_CALL)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}: " if self.file else ""

    def __str__(self) -> str:
        return f"{self.place}{self.path} is {self.value} for good: {self.why}"
