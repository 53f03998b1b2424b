"""Memory of tables: arrays of 8-byte words and the Python objects that words point to, kept alive.

    memory = Memory()
    memory.words((4, 6))       the address of an array of two words
    memory.object(tensor)      the address of an object, which lives as long as `memory`

A `Stencil` is the same where words hang on sizes (`ir/hinted.py`): it keeps arrays with holes, and
each `at` makes copies of those that have any, filled in for some sizes. Source: copy-and-patch (Xu
and Kjolstad, 2021).
"""

import ctypes
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from preheat.ir.hinted import Hinted
from preheat.ir.records import RECORDS, WORD_BYTES
from preheat.ir.scalar import FUNCTIONS, Number, Scalar, python
from preheat.run.buffers import number_of, word_of

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
        self._makers: list[Callable[[Sequence[int], list], Sequence[int]]] = []
        self._made = 0
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

    def made(self, make: Callable[[Sequence[int], list], Sequence[int]], count: int = 1) -> tuple[int, ...]:
        """The words that `make(words, kept)` gives, `count` of them, which appends to `kept` what has to live
        as long. `words`: those of the holes of numbers."""
        first, self._made = self._made, self._made + count
        self._makers.append(make)
        return tuple(map(_Made, range(first, first + count)))

    def number(self, value: Number) -> int:
        """The place of `value` among the words of holes; -1 if it does not hang on sizes."""
        return self._hole(value)[1] if isinstance(value, Hinted) else -1

    def value(self, number: Scalar) -> Callable[[Sequence[int]], Number]:
        """What gives the value of `number` of the words of the holes of numbers."""
        plain = number.plain if isinstance(number, Hinted) else number
        place = self._holes.setdefault(plain, len(self._holes))
        if plain.type == "float":
            return lambda words: number_of(words[place])
        return operator.itemgetter(place)

    def _hole(self, value: int) -> tuple[str, int] | None:
        if isinstance(value, _Hole):
            return value.kind, int(value)
        if isinstance(value, Hinted):
            return "number", self._holes.setdefault(value.plain, len(self._holes))
        return None

    def evaluator(self, symbols: Sequence[str]) -> Callable[..., list[int]]:
        """The function from the values of `symbols` to the words of all holes of numbers."""
        return compiled_expressions(symbols, list(self._holes))

    @functools.cached_property
    def _block(self) -> tuple:
        """Arrays with holes one after the other, and where they are filled: (template, starts of the arrays,
        places of numbers, of addresses in the block, of what is made)."""
        starts, length = {}, 0
        for number, (array, holes) in enumerate(self._arrays):
            if holes:
                starts[number], length = length, length + len(array)
        block = (ctypes.c_int64 * max(length, 1))()
        filled: dict[str, list[tuple[int, int]]] = {"number": [], "array": [], "made": []}
        for number, start in starts.items():
            array, holes = self._arrays[number]
            block[start : start + len(array)] = array[:]
            for place, kind, what in holes:
                filled[kind].append((start + place, starts[what] * WORD_BYTES if kind == "array" else what))
        return block, starts, *filled.values()

    def at(self, words: Sequence[int]) -> "Filled":
        """The tables with these words in the holes of numbers."""
        kept: list[Any] = [self]
        template, starts, numbers, addresses, made_places = self._block
        made = [word for make in self._makers for word in make(words, kept)]
        block = type(template).from_buffer_copy(template)
        base = ctypes.addressof(block)
        for place, number in numbers:
            block[place] = words[number]
        for place, start in addresses:
            block[place] = base + start
        for place, number in made_places:
            block[place] = made[number]
        kept.append(block)
        return Filled(lambda array: base + starts[array] * WORD_BYTES if array in starts
                      else ctypes.addressof(self._arrays[array][0]), kept)


class Filled:
    """A stencil at some sizes: the `address` of each of its arrays, and all that they point to."""

    def __init__(self, address: Callable[[int], int], kept: list[Any]):
        self.address, self.kept = address, kept


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
