"""A table of native guard rows under construction: each row is executed as it is added.

    table = Table(args)
    table.load(8 * i, base=ARGS, mask=0, save=slot)     # follow a pointer, compare nothing
    table.load(layout.type, base=slot)                  # this word must stay as it is now

`Table` runs the same little program as `generate/runtime_check`, in Python, on the call at hand;
the word that a row finds is the word it will expect. So a finished table passes by construction,
and the caller sees every word and decides what it means. A row that saves nothing is added once.
"""

import contextlib
import ctypes
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from preheat.ir.rows import (
    ADVANCE, ALL_BITS, APART, ARGS, BARE, CALL, COMPUTE, DISJOINT, FIRST_FREE, FUNCTION, LOAD,
    OPERATIONS, REFRESH, ROW, SAME, SLOTS, SPANS, STORE, VERDICT, VERSION, ZERO,
)
from preheat.run.layout import InstanceLayout, is_bare
from preheat.run.layout import word as word_at


# address, expected, mask, kind, base, save, other: see `ir/rows`. A model has thousands of rows,
# so they are bare tuples.
Row = tuple[int, int, int, int, int, int, int]


class NoRoom(Exception):
    """All slots are taken: what still needs one is checked in Python."""


class NotNative(Exception):
    """No row can say this: it is checked in Python on every call."""


class Table:
    """Rows, their owners (what a row speaks of, for reports) and what must stay alive."""

    def __init__(self, args: Sequence[Any] = ()):
        self.rows: list[Row] = []
        self.owners: list[Hashable] = []
        self.holds: list[Any] = []
        self.owner: Hashable = None
        self.saved: dict[int, int] = {}  # slot: how many rows save to it
        self.versions: dict[int, dict] = {}  # row: the held dict whose version it compares
        self.items: dict[int, dict] = {}  # row: the held dict of whose items it speaks
        self.ambient: set[int] = set()  # ids of the dicts that ambient guards lean on
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

    def load(
        self, address: int, base: int = ZERO, mask: int = ALL_BITS, save: int = ZERO,
        decides: bool = False,
    ) -> int:
        """The word at `address` behind slot `base`, which must stay under `mask`.

        decides   if it does not, a guard does not hold
        """
        key = (address, mask, base)
        found = self._known.get(key) if save == ZERO else None
        if found is not None:
            return found
        found = word_at(self._slots[base] + address)
        unsigned = address & ALL_BITS  # offsets may be negative
        kind = LOAD | VERDICT if decides else LOAD
        if save == ZERO:
            self._known[key] = found
            self.rows.append((unsigned, found, mask, kind, base, ZERO, ZERO))
            self.owners.append(self.owner)
            return found
        return self._add((unsigned, found, mask, kind, base, save, ZERO))

    def call(
        self, function: int, base: int = ZERO, mask: int = ALL_BITS, save: int = ZERO, second: int = ZERO,
    ) -> int:
        """What `function` answers for slots `base`, `second` and, as it was, `save`, which must stay under
        `mask`. Functions of fewer arguments do not look at the others."""
        arguments = (self._slots.get(slot, 0) for slot in (base, second, save))
        found = _FUNCTION(function)(*arguments)
        return self._add((function, found, mask, CALL, base, save, second))

    def same(self, base: int, other: int) -> int:
        """0: two slots must stay equal. Anything else: they are not."""
        difference = self._slots[base] ^ self._slots[other]
        return self._add((0, difference, ALL_BITS, SAME, base, ZERO, other))

    def apart(self, base: int, other: int, address: int = 0) -> int:
        """0: slot `base` must stay different from slot `other` + `address`. 1: they are equal."""
        are_equal = self._slots[base] == self._slots[other] + address
        return self._add((address, int(are_equal), ALL_BITS, APART, base, ZERO, other))

    def advance(self, base: int, distance: int) -> int:
        """A slot with the address `distance` bytes behind slot `base`."""
        slot = self.slot()
        self._add((distance, self._slots[base] + distance, 0, ADVANCE, base, slot, ZERO))
        return slot

    def disjoint(self, base: int, size: int, other: int, other_size: int) -> None:
        """The bytes behind two slots must not meet."""
        self._add((size, other_size, 0, DISJOINT, base, ZERO, other))

    def bare(self, base: int, where: InstanceLayout) -> bool:
        """Whether the instance in slot `base` has no attribute of its own, as it must stay."""
        offsets = (where.dict & ALL_BITS, where.values & ALL_BITS, where.values_used & ALL_BITS)
        self._add((*offsets, BARE, base, ZERO, where.dict_used | where.values_bit))
        return is_bare(self._slots[base], where)

    def compute(self, operation: str, left: int, right: int, word: int) -> int:
        """A slot with what `operation` gives for two slots, now `word`."""
        slot = self.slot()
        self._add((OPERATIONS.index(operation), word, 0, COMPUTE, left, slot, right))
        return slot

    def decide(self, operation: str, left: int, right: int, word: int) -> None:
        """What `operation` gives for two slots must stay `word`, or a guard does not hold."""
        kind = COMPUTE | VERDICT
        self._add((OPERATIONS.index(operation), word, ALL_BITS, kind, left, ZERO, right))

    def function(self, address: int, left: int, right: int, word: int) -> int:
        """A slot with what a function of C on doubles gives for two slots, now `word`."""
        slot = self.slot()
        self._add((address, word, 0, FUNCTION, left, slot, right))
        return slot

    def store(self, slot: int, address: int) -> None:
        """The word at `address` becomes that of the slot on each check."""
        self._add((address, 0, 0, STORE, slot, ZERO, ZERO))

    def spans(self, storage: int, data: int, spans: Sequence[tuple[int, int, int, int]]) -> None:
        """No two tensors share a byte. Of each: the slot of its TensorImpl or ZERO, its address if it
        is fixed, bytes from the data to the first element, bytes that it covers. storage, data: where
        a TensorImpl has its storage, and that its data."""
        words = [len(spans), storage, data]
        for span in spans:
            words += (*span, 0)
        words += range(len(spans))
        table = (ctypes.c_uint64 * len(words))(*words)
        self.holds.append(table)
        self._add((ctypes.addressof(table), 1, ALL_BITS, SPANS, ZERO, ZERO, ZERO))

    @contextlib.contextmanager
    def left_out(self, address: int, space: dict) -> Iterator[None]:
        """The rows added in the block, about the dict `space`, are left out as long as the word at
        `address` stays."""
        begin, known = len(self.rows), self._known
        self._known = {}  # elsewhere these rows may be needed, and here those that come later
        self._add((address, word_at(address), 0, VERSION, ZERO, ZERO, ZERO))
        try:
            yield
        finally:
            self._known = known
        count = len(self.rows) - begin
        self._add((address, count, 0, REFRESH, ZERO, ZERO, ZERO))
        self.rows[begin] = (*self.rows[begin][:2], count, *self.rows[begin][3:])
        self.items.update((row, space) for row in range(begin + 1, begin + count))

    def constant(self, value: int) -> int:
        """A slot that holds `value`."""
        cell, slot = ctypes.c_uint64(value), self.slot()
        self.holds.append(cell)
        self.load(ctypes.addressof(cell), save=slot)
        return slot

    def never(self) -> None:
        """A row that never passes."""
        zero = ctypes.c_uint64(0)
        self.holds.append(zero)
        self._add((ctypes.addressof(zero), ALL_BITS, ALL_BITS, LOAD, ZERO, ZERO, ZERO))

    def mark(self) -> int:
        """A point to go back to with `undo`, when a word turns out not to mean what it should."""
        return len(self.rows)

    def undo(self, mark: int) -> None:
        """Drops the rows added since `mark`."""
        for address, _, mask, _, base, save, _ in reversed(self.rows[mark:]):
            self._known.pop((_signed(address), mask, base), None)
            self.versions.pop(len(self.rows) - 1, None)
            self.items.pop(len(self.rows) - 1, None)
            if save != ZERO:
                self._forget(save)
            self.rows.pop()
            self.owners.pop()

    def _forget(self, slot: int) -> None:
        self.saved[slot] -= 1
        if not self.saved[slot]:
            del self.saved[slot]

    def pack(self) -> bytes:
        """The rows as the native checker reads them."""
        return b"".join(itertools.starmap(ROW.pack, self.rows))

    def _add(self, row: Row) -> int:
        self.rows.append(row)
        self.owners.append(self.owner)
        _, found, _, _, _, save, _ = row
        if save != ZERO:
            self._slots[save] = found
            self.saved[save] = self.saved.get(save, 0) + 1
        return found


def _signed(address: int) -> int:
    """An offset as it was before `ALL_BITS` made it unsigned."""
    return address - (1 << 64) if address >> 63 else address


_FUNCTION = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
