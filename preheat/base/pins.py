"""Pins: what a program was captured for, of a number: where it was looked at, by what, and what to do.

    f.py:12: n is 3 for good: it is an argument of torch.pixel_shuffle, which has no rule for a number that changes
        return F.pixel_shuffle(x, n)
        keep it the same on each call, or do that part outside and pass what it gives
"""

from typing import NamedTuple

_OF_CALL = "keep it the same on each call, or do that part outside and pass what it gives"
_OF_KEY = "look up outside what hangs on it and pass that"
_OF_VALUE = "compute with it in torch or by plain arithmetic, or keep it the same on each call"
_OF_EQUAL = "leave it, if it can be no other one; else give both another size at the same time"
_OF_RULE = "write that part in other ops, or pad to a few sizes with options={'buckets': ...}"
OF_TEST = "choose with torch.where, or make the test outside"


KEY, TEST = "index or key", "test"


class Pin(NamedTuple):
    """path      the number, as a user would write it;  value  what it is;  guard  what later calls are checked by
    by         the function or op that was given it; KEY of an index or a key, TEST of what the program decides by, or ""
    is_size    it is a size or a stride of a tensor;  must  something that is never another one has to be equal to it
    file, line, code   where in the program
    """

    path: str
    guard: str
    value: str
    by: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    is_size: bool = False
    must: bool = False

    @property
    def why(self) -> str:
        if self.must:
            by = f" by {self.by}" if self.by not in ("", KEY) else ""
            return "the program asks whether it is just that" if self.by == TEST else f"it is required{by} to be just that"
        if self.by == TEST:
            return "each way that the program goes is a variant"
        if self.by == KEY:
            return "it is an index or a key"
        if not self.by:
            return "it is looked at as a value"
        if self.is_size:
            return f"it is a size of what {self.by} is given, which has no size rule for that"
        return f"it is an argument of {self.by}, which has no rule for a number that changes"

    @property
    def hint(self) -> str:
        if self.must and self.by != TEST:
            return _OF_EQUAL
        if self.is_size and self.by not in (TEST, KEY, ""):
            return _OF_RULE
        return {TEST: OF_TEST, KEY: _OF_KEY, "": _OF_VALUE}.get(self.by, _OF_CALL)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}: " if self.file else ""

    def __str__(self) -> str:
        return f"{self.place}{self.path} is {self.value} for good: {self.why}"


class Known(NamedTuple):
    """What is known of the numbers of a function that has been called.

    symbols  paths of sizes and numbers that a variant takes with any value
    pins     those that it was captured for, and why
    held     those that have been the same so far, as text: at another value the next variant has them as symbols
    """

    symbols: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    held: tuple[str, ...] = ()
