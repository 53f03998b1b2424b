"""Memory of tables: arrays of 8-byte words and the Python objects that words point to, kept alive.

memory = Memory()
memory.words((4, 6))       the address of an array of two words
memory.object(tensor)      the address of an object, which lives as long as `memory`
"""

import ctypes
from collections.abc import Iterable
from typing import Any

from preheat.ir.records import RECORDS


class Memory:
    """Arrays and objects that tables point to, kept alive together."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def words(self, values: Iterable[int]) -> int:
        """The address of an array of 8-byte words."""
        values = [_signed(v) for v in values] or [0]
        array = (ctypes.c_int64 * len(values))(*values)
        self._kept.append(array)
        return ctypes.addressof(array)

    def record(self, name: str, fields: dict[str, int]):
        """A record of `ir/records.py`; fields that are not given are 0."""
        words = [_signed(fields.get(field, 0)) for field in RECORDS[name]]
        array = (ctypes.c_int64 * len(words))(*words)
        self._kept.append(array)
        return array

    def object(self, value: Any) -> int:
        """The address of a Python object."""
        self._kept.append(value)
        return id(value)


def flat(records: Iterable[Iterable[int]]) -> list[int]:
    """The words of records one after the other."""
    return [word for record in records for word in record]


def _signed(value: int) -> int:
    """An address or number as a signed 8-byte word."""
    return value - (1 << 64) if value >= 1 << 63 else value
