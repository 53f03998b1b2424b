"""Nouns to bytes and back: msgpack of plain lists, no code runs on load.

    decode(encode(graph)) == graph;  digest(graph) is stable across processes and machines

A noun becomes an extension value: its class number and its fields in order. Classes are a closed
table, so a foreign file can only make nouns. A long tuple of nouns of one class (guards, sources,
buffers) becomes a table of columns, in which an equal value stands once:

    (Guard(7, "type", T), Guard(8, "type", T), ...)   ->   Guard: (7, 8, ...), ("type", ...), (T, ...)

so equal values of a decoded column are one object. A column reads three times as fast as its rows.
"""

import collections
import dataclasses
import hashlib
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgpack

from preheat.base.identity import identity
from preheat.ir import graph, loop, plan, scalar, trace, training, types
from preheat.ir.hinted import Hinted

# Append only: the position of a class is its number on disk.
NOUNS: tuple[type, ...] = (
    scalar.Scalar, types.TensorType, types.ScalarType, types.NoneType,
    graph.Ref, graph.Token, graph.Op, graph.Input, graph.Graph,
    loop.Axis, loop.Index, loop.Param, loop.LoopOp, loop.Stage, loop.Kernel,
    plan.Target, plan.Buffer, plan.KernelCall, plan.ProductCall, plan.LibraryCall, plan.Output,
    plan.Plan, plan.Image,
    trace.Named, trace.Live, trace.At, trace.Source, trace.Guard, trace.TensorFacts, trace.Code,
    trace.Step, trace.Recipe, trace.Return, trace.Host, trace.Goto, trace.Node, trace.Point,
    trace.Signature, trace.Trace,
    graph.OutputAlias,
    graph.Store,
    graph.Item,
    training.Given, training.Exit, training.Wiring, training.Joint, training.Backward,
    training.Training,
    plan.Binary,
    training.Taught,
    plan.Sizing,
    training.Template,
)
_NUMBER = {cls: i for i, cls in enumerate(NOUNS)}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in NOUNS}
_SLOTS = {cls: tuple(cls.__dict__[name].__set__ for name in _FIELDS[cls]) for cls in NOUNS}
_GETTERS = {cls: tuple(map(operator.attrgetter, names)) for cls, names in _FIELDS.items()}
_NUMBER[Hinted], _GETTERS[Hinted] = _NUMBER[scalar.Scalar], _GETTERS[scalar.Scalar]  # plain on disk
_COMPLEX, _ELLIPSIS, _BIGINT, _TABLE = 120, 121, 122, 123
_SHORTEST_TABLE = 8


class Ahead:
    """Nouns that have been encoded before they are needed, while there was time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # by id, with what has it

    def add(self, nouns: Iterable[Any]) -> None:
        """Encodes `nouns`."""
        for noun in nouns:
            self._known[identity(noun)] = noun, encode([get(noun) for get in _GETTERS[type(noun)]])

    def fields_of(self, noun: Any) -> bytes | None:
        """The bytes of the fields of `noun`, if that very object was added."""
        found = self._known.get(identity(noun))
        return None if found is None else found[1]


NOTHING = Ahead()


def encode(value: Any, ahead: Ahead = NOTHING) -> bytes:
    """`value` (a noun, or tuples, dicts and primitives of nouns) as bytes; `ahead` has those of some nouns.

    Raises TypeError for an object that is no noun.
    """
    encoder = _Encoder(ahead)
    try:
        return encoder.encode(value)
    finally:
        encoder.close()


def decode(data: bytes) -> Any:
    """The value that `encode` got. Raises ValueError for bytes that are not one."""
    try:
        return msgpack.unpackb(data, ext_hook=_ext_hook, use_list=False, strict_map_key=False)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"not an encoded noun: {error}") from error


def digest(value: Any) -> str:
    """A name for the content of `value`: 32 hex digits of BLAKE2b over its encoding."""
    return hashlib.blake2b(encode(value), digest_size=16).hexdigest()


class _Encoder:
    """One encoding. Values lie within values, and each level has a packer of its own (a new one for each
    value would get a megabyte each time)."""

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._packers: list[msgpack.Packer] = []
        self._depth = 0
        self._headers = msgpack.Packer()

    def encode(self, value: Any) -> bytes:
        if self._depth == len(self._packers):
            self._packers.append(
                msgpack.Packer(default=self._default, strict_types=True, use_bin_type=True))
        self._depth += 1
        data = self._packers[self._depth - 1].pack(value)
        self._depth -= 1
        return data

    def close(self) -> None:
        """Lets go of the packers, which know this object: nobody else would, until a collection."""
        self._packers.clear()

    def _default(self, value: Any) -> Any:
        cls = type(value)
        if cls is tuple:  # strict_types hands tuples here: they are arrays on disk
            return msgpack.ExtType(_TABLE, self._table(value)) if _is_table(value) else list(value)
        number = _NUMBER.get(cls)
        if number is not None:
            fields = self._ahead.fields_of(value)
            return msgpack.ExtType(
                number, self.encode([get(value) for get in _GETTERS[cls]]) if fields is None else fields)
        if cls is complex:
            return msgpack.ExtType(_COMPLEX, self.encode([value.real, value.imag]))
        if value is Ellipsis:
            return msgpack.ExtType(_ELLIPSIS, b"")
        if cls is int:
            return msgpack.ExtType(_BIGINT, str(value).encode())
        raise TypeError(f"not a noun of the IR: {cls.__module__}.{cls.__qualname__}")

    # ------------------------------------------------------------------ tables
    def _table(self, rows: tuple) -> bytes:
        """The class number, the number of rows, and each field's column."""
        cls = type(rows[0])
        columns = [self._column(list(map(get, rows))) for get in _GETTERS[cls]]
        whole = (self.encode(_NUMBER[cls]), self.encode(len(rows)), self._array(columns))
        return self._array(whole)

    def _column(self, values: list) -> bytes:
        """The distinct values and each row's place among them; no places where all differ. Values are one
        whose bytes are: True, 1 and 1.0 are three, as are the two zeros."""
        place_of: dict[bytes, int] = {}
        objects = list(map(identity, values))  # most values of a column are few objects
        place_at = {
            number: place_of.setdefault(self.encode(value), len(place_of))
            for number, value in dict(zip(objects, values)).items()}
        places = list(map(place_at.__getitem__, objects))
        is_plain = len(place_of) == len(values)
        return self._array((self._array(place_of), self.encode(None if is_plain else places)))

    def _array(self, encoded: Collection[bytes]) -> bytes:
        """The bytes of a list whose elements are encoded."""
        return self._headers.pack_array_header(len(encoded)) + b"".join(encoded)


def _ext_hook(number: int, data: bytes) -> Any:
    if number < len(NOUNS):
        return _noun(NOUNS[number], decode(data))
    if number == _COMPLEX:
        return complex(*decode(data))
    if number == _ELLIPSIS:
        return Ellipsis
    if number == _BIGINT:
        return int(data)
    if number == _TABLE:
        return _rows(*decode(data))
    raise ValueError(f"unknown noun number {number}")


def _noun(cls: type, values: Sequence) -> Any:
    """The noun with these fields; its `__init__` need not exist for that (see base/dataclass)."""
    fills = _SLOTS[cls]
    if len(values) != len(fills):
        raise ValueError(f"a {cls.__name__} with {len(values)} fields")
    made = object.__new__(cls)
    for fill, value in zip(fills, values):
        fill(made, value)
    return made


# ---------------------------------------------------------------------------- tables
def _is_table(values: tuple) -> bool:
    if len(values) < _SHORTEST_TABLE or type(values[0]) not in _NUMBER:
        return False
    return len(set(map(type, values))) == 1


def _rows(
    number: int, count: int, columns: Sequence[tuple[Sequence, Sequence[int] | None]]
) -> tuple:
    """The nouns of a table, filled column by column, without the checks of `__init__`."""
    cls = NOUNS[number]
    if len(columns) != len(_SLOTS[cls]):
        raise ValueError(f"a table of {cls.__name__} with {len(columns)} columns")
    rows = tuple([object.__new__(cls) for _ in range(count)])
    for fill, (distinct, places) in zip(_SLOTS[cls], columns):
        column = distinct if places is None else tuple(map(distinct.__getitem__, places))
        if len(column) != count:
            raise ValueError(f"a column of {len(column)} values in a table of {count} rows")
        _exhaust(map(fill, rows, column))
    return rows


def _exhaust(calls: Iterable) -> None:
    """Runs a lazy `map` for what its calls do."""
    collections.deque(calls, maxlen=0)
