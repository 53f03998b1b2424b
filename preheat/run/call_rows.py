"""Rows of calls: what the driver does one after the other, before it gets addresses.

    Row("kernel", (address, 3, slots, 1000, 64), 15_000)    ->    a call record of 8 words

Rows come from `lowering`; here stretches of native work are put between a release of the GIL and its
return, and rows become records of `ir/records.py`.
"""

from collections.abc import Sequence

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.ir.records import CALL_KINDS, CALLS, RECORDS

_RELEASE_NS = 20_000  # shorter stretches keep the GIL: giving it away may cost a thread switch


@dataclass(frozen=True, slots=True)
class Row:
    """A call record without an address. `nanoseconds` estimates native work, -1: needs the GIL."""

    kind: str
    words: tuple[int, ...] = ()
    nanoseconds: int = -1


def with_releases(rows: Sequence[Row]) -> list[Row]:
    """`rows` with the GIL released around every stretch of native work that is long enough."""
    done: list[Row] = []
    stretch: list[Row] = []
    for row in (*rows, Row("")):
        if row.nanoseconds >= 0:
            stretch.append(row)
            continue
        is_long = sum(r.nanoseconds for r in stretch) >= _RELEASE_NS
        done += [Row("release"), *stretch, Row("acquire")] if is_long else stretch
        stretch = []
        done.append(row)
    return done[:-1]


def call_words(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """The call record of each row."""
    found: list[tuple[int, ...]] = []
    for row in rows:
        expected = len(CALLS[row.kind])
        if len(row.words) != expected:
            raise InternalError(f"a {row.kind} record has {expected} words, not {len(row.words)}")
        padding = len(RECORDS["call"]) - 1 - expected
        found.append((CALL_KINDS.index(row.kind), *row.words, *(0 for _ in range(padding))))
    return found
