"""Memory of tables: arrays of 8-byte words and the Python objects that words point to, kept alive.

    memory = Memory()
    memory.words((4, 6))       the address of an array of two words
    memory.object(tensor)      the address of an object, which lives as long as `memory`

A `Stencil` is the same where words hang on sizes (`ir/hinted.py`): it keeps arrays with holes, and
each `at` makes copies of those that have any, filled in for some sizes. Source: copy-and-patch (Xu
and Kjolstad, 2021).
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from preheat.ir.hinted import Hinted
from preheat.ir.records import RECORDS
from preheat.ir.scalar import FUNCTIONS, Number, Scalar, python
from preheat.run.buffers import word_of

Sizes = Mapping[str, int]


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

    def record(self, name: str, fields: dict[str, int]) -> int:
        """The address of a record of `ir/records.py`; fields that are not given are 0."""
        return self.words(fields.get(field, 0) for field in RECORDS[name])

    def object(self, value: Any) -> int:
        """The address of a Python object."""
        self._kept.append(value)
        return id(value)


class _Hole(int):
    """A word that is only known for some sizes; the number is that of what fills it."""

    kind = ""


class _Array(_Hole):
    kind = "array"


class _Made(_Hole):
    kind = "made"


class Stencil(Memory):
    """Tables with holes. `holes`: those of numbers, in the order of their evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays: list[tuple[Any, list[tuple[int, str, int]]]] = []
        self._makers: list[Callable[[Sizes, Sequence[int], list], int]] = []
        self._holes: dict[Scalar, int] = {}

    def words(self, values: Iterable[int]) -> int:
        given = list(values) or [0]
        holes = [(place, *hole) for place, v in enumerate(given) if (hole := self._hole(v))]
        array = (ctypes.c_int64 * len(given))(
            *(0 if self._hole(v) else _signed(v) for v in given))
        for place, kind, number in holes[:]:
            if kind == "array" and not self._arrays[number][1]:
                array[place] = ctypes.addressof(self._arrays[number][0])
                holes.remove((place, kind, number))
        self._arrays.append((array, holes))
        return _Array(len(self._arrays) - 1)

    def made(self, make: Callable[[Sizes, Sequence[int], list], int]) -> int:
        """A word that `make(sizes, words, kept)` gives, which appends to `kept` what has to live as
        long. `words`: those of the holes of numbers."""
        self._makers.append(make)
        return _Made(len(self._makers) - 1)

    def number(self, value: Number) -> int:
        """The place of `value` among the words of holes; -1 if it does not hang on sizes."""
        return self._hole(value)[1] if isinstance(value, Hinted) else -1

    def _hole(self, value: int) -> tuple[str, int] | None:
        if isinstance(value, _Hole):
            return value.kind, int(value)
        if isinstance(value, Hinted):
            return "number", self._holes.setdefault(value.plain, len(self._holes))
        return None

    def evaluator(self, symbols: Sequence[str]) -> Callable[..., list[int]]:
        """The function from the values of `symbols` to the words of all holes of numbers."""
        return compiled_expressions(symbols, list(self._holes))

    def at(self, words: Sequence[int], sizes: Sizes) -> "Filled":
        """The tables with these words in the holes of numbers."""
        kept: list[Any] = [self]
        made = [make(sizes, words, kept) for make in self._makers]
        addresses: list[int] = []
        for array, holes in self._arrays:
            if holes:
                array = type(array).from_buffer_copy(array)
                for place, kind, number in holes:
                    array[place] = (
                        words[number] if kind == "number"
                        else addresses[number] if kind == "array" else made[number])
                kept.append(array)
            addresses.append(ctypes.addressof(array))
        return Filled(addresses, kept)


class Filled:
    """A stencil at some sizes: the `addresses` of its arrays, and all that they point to."""

    def __init__(self, addresses: list[int], kept: list[Any]):
        self.addresses, self.kept = addresses, kept


def compiled_expressions(symbols: Sequence[str], numbers: Sequence[Scalar]) -> Callable[..., list]:
    """A function from the values of `symbols` to the words of `numbers`."""
    names = {name: f"s{k}" for k, name in enumerate(symbols)}
    parts = []
    for number in numbers:
        text = python(number, names.__getitem__)
        parts.append(f"word_of({text})" if number.type == "float" else text)
    text = f"lambda {', '.join(names.values())}: [{', '.join(parts)}]"
    code = compile(text, "<preheat sizes>", "eval")
    return eval(code, {**FUNCTIONS, "word_of": word_of})  # noqa: S307 - our own text


def flat(records: Iterable[Iterable[int]]) -> list[int]:
    """The words of records one after the other."""
    return [word for record in records for word in record]


def _signed(value: int) -> int:
    """An address or number as a signed 8-byte word."""
    return value - (1 << 64) if value >= 1 << 63 else value
