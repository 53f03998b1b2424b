"""A table of native guard rows under construction: each row is executed as it is added.

    table = Table(args)
    table.load(8 * i, base=ARGS, mask=0, save=slot)     # follow a pointer, compare nothing
    table.load(layout.type, base=slot)                  # this word must stay as it is now

`Table` runs the same little program as `generate/runtime_check`, in Python, on the call at hand;
the word that a row finds is the word it will expect. So a finished table passes by construction,
and the caller sees every word and decides what it means. A row that saves nothing is added once.
"""

import ctypes
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from preheat.ir.rows import (
    ADVANCE, ALL_BITS, APART, ARGS, CALL, DISJOINT, FIRST_FREE, LOAD, ROW, SAME, SLOTS, ZERO,
)
from preheat.run.layout import word as word_at


class Row(NamedTuple):
    """See `ir/rows`."""

    address: int
    expected: int
    mask: int = ALL_BITS
    kind: int = LOAD
    base: int = ZERO
    save: int = ZERO
    other: int = ZERO


class NoRoom(Exception):
    """All slots are taken: what still needs one is checked in Python."""


class Table:
    """Rows, their owners (what a row speaks of, for reports) and what must stay alive."""

    def __init__(self, args: Sequence[Any] = ()):
        self.rows: list[Row] = []
        self.owners: list[Hashable] = []
        self.holds: list[Any] = []
        self.owner: Hashable = None
        self.saved: dict[int, int] = {}  # slot: how many rows save to it
        self.versions: dict[int, dict] = {}  # row: the held dict whose version it compares
        self._args = (ctypes.c_uint64 * max(len(args), 1))(*(id(a) for a in args))
        self._slots = {ZERO: 0, ARGS: ctypes.addressof(self._args)}
        self._known: dict[tuple[int, int, int], int] = {}  # rows that save nothing: their words

    def slot(self) -> int:
        """A slot that nobody uses. Raises NoRoom."""
        number = len(self._slots)
        if number >= SLOTS:
            raise NoRoom
        self._slots[max(number, FIRST_FREE)] = 0
        return number

    def value(self, slot: int) -> int:
        """The word in `slot` now."""
        return self._slots[slot]

    def load(self, address: int, base: int = ZERO, mask: int = ALL_BITS, save: int = ZERO) -> int:
        """The word at `address` behind slot `base`, which must stay under `mask`."""
        key = (address, mask, base)
        if save == ZERO and key in self._known:
            return self._known[key]
        found = word_at(self._slots[base] + address)
        if save == ZERO:
            self._known[key] = found
        unsigned = address & ALL_BITS  # offsets may be negative
        return self._add(Row(unsigned, found, mask, LOAD, base, save))

    def call(self, function: int, base: int = ZERO, mask: int = ALL_BITS, save: int = ZERO) -> int:
        """What `function` answers for slot `base`, which must stay under `mask`."""
        found = _FUNCTION(function)(self._slots[base])
        return self._add(Row(function, found, mask, CALL, base, save))

    def same(self, base: int, other: int) -> int:
        """0: two slots must stay equal. Anything else: they are not."""
        difference = self._slots[base] ^ self._slots[other]
        return self._add(Row(0, difference, ALL_BITS, SAME, base, ZERO, other))

    def apart(self, base: int, other: int, address: int = 0) -> int:
        """0: slot `base` must stay different from slot `other` + `address`. 1: they are equal."""
        are_equal = self._slots[base] == self._slots[other] + address
        return self._add(Row(address, int(are_equal), ALL_BITS, APART, base, ZERO, other))

    def advance(self, base: int, distance: int) -> int:
        """A slot with the address `distance` bytes behind slot `base`."""
        slot = self.slot()
        self._add(Row(distance, self._slots[base] + distance, 0, ADVANCE, base, slot))
        return slot

    def disjoint(self, base: int, size: int, other: int, other_size: int) -> None:
        """The bytes behind two slots must not meet."""
        self._add(Row(size, other_size, 0, DISJOINT, base, ZERO, other))

    def constant(self, value: int) -> int:
        """A slot that holds `value`."""
        cell, slot = ctypes.c_uint64(value), self.slot()
        self.holds.append(cell)
        self.load(ctypes.addressof(cell), save=slot)
        return slot

    def mark(self) -> int:
        """A point to go back to with `undo`, when a word turns out not to mean what it should."""
        return len(self.rows)

    def undo(self, mark: int) -> None:
        """Drops the rows added since `mark`."""
        for row in reversed(self.rows[mark:]):
            self._known.pop((_signed(row.address), row.mask, row.base), None)
            self.versions.pop(len(self.rows) - 1, None)
            if row.save != ZERO:
                self._forget(row.save)
            self.rows.pop()
            self.owners.pop()

    def _forget(self, slot: int) -> None:
        self.saved[slot] -= 1
        if not self.saved[slot]:
            del self.saved[slot]

    def pack(self) -> bytes:
        """The rows as the native checker reads them."""
        return b"".join(ROW.pack(*row) for row in self.rows)

    def _add(self, row: Row) -> int:
        self.rows.append(row)
        self.owners.append(self.owner)
        if row.save != ZERO:
            self._slots[row.save] = row.expected
            self.saved[row.save] = self.saved.get(row.save, 0) + 1
        return row.expected


def _signed(address: int) -> int:
    """An offset as it was before `ALL_BITS` made it unsigned."""
    return address - (1 << 64) if address >> 63 else address


_FUNCTION = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
