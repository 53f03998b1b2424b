"""The items of a dict that changes from call to call: rows for what its version alone cannot say.

    self.calls += 1; ... if self.flag      version  of the dict; as it was: go on at A
                                           load     the shape of its table of keys
                                           load     key 3 is "flag"
                                           load     value 3 is True
                                           load     key 5 is "calls"
                                           refresh  this version is the one to expect
                                        A  load     value 5, a number, into a slot

A version that differs means "compare what was read"; when all of it is as it was, the new version
is expected from then on. Only dicts that are known to change get such rows: a row and a test for
each of the others is enough.

Requires a dict with str keys in a table of its own or one that instances of a class share (CPython's
`Objects/dictobject.c`); any other has no `Entries`, and Python compares (`Rows.repair`).
"""

import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.ir.rows import ZERO
from preheat.ir.trace import At, Guard, Named, Source, Trace
from preheat.run.layout import (
    KEYS_COUNT, KEYS_SHAPE, KEYS_SHAPE_MASK, WORD, Layout, entries_offset, word, words_at,
)
from preheat.run.table import NotNative, Table


@dataclass(frozen=True)
class Reads:
    """What a node reads of one dict.

    items     by name: (key, source, the object)
    absent    keys that must not be there
    sources   others that are read from it; guards: others on it
    """

    items: list[tuple[str, int, Any]]
    absent: list[str]
    sources: list[int]
    guards: list[Guard]


def reads_of(
    trace: Trace, guards: Sequence[Guard], objects: Sequence[Any], spaces: Collection[int],
    without: Collection[int] = (),
) -> dict[int, Reads]:
    """What is read of each dict whose id is in `spaces`.

    objects   those of all sources; without: sources that do not count
    """
    reads = {space: Reads([], [], [], []) for space in spaces}
    if not reads:
        return reads
    for number, source in enumerate(trace.sources):
        if number in without:
            continue
        for space in _spaces_of(source, objects):
            if identity(space) not in reads:
                continue
            found = reads[identity(space)]
            if source.kind == "item" and type(source.key) is str:
                found.items.append((source.key, number, objects[number]))
            else:
                found.sources.append(number)
    for guard in guards:
        space = objects[guard.source] if guard.source >= 0 else None
        if identity(space) in reads:
            found = reads[identity(space)]
            if guard.kind == "absent" and type(guard.expected) is str:
                found.absent.append(guard.expected)
            else:
                found.guards.append(guard)
    return reads


def _spaces_of(source: Source, objects: Sequence[Any]) -> tuple[Any, ...]:
    """What a source is read from: its parent, or the dicts on the way of a name."""
    if source.kind == "named":
        module = source.key.module if isinstance(source.key, Named) else source.key[0]
        return sys.modules, vars(sys.modules.get(module, sys))
    return (objects[source.parent],) if source.parent >= 0 else ()


class Spot(NamedTuple):
    """A word in memory: `offset` behind the pointer in slot `base`."""

    base: int
    offset: int


class Entries:
    """Where the keys and values of one dict lie, behind two slots that each check loads anew.

    index   of each key that is there; objects: the keys themselves
    """

    def __init__(self, space: dict, keys: int, values: int, where: Layout):
        self._start, self._where = entries_offset(word(id(space) + where.dict_keys)), where
        self.keys, self.values = keys, values  # slots; ZERO: values lie beside the keys
        self.index: dict[str, int] = {}
        self.objects: dict[str, str] = {}
        table = word(id(space) + where.dict_keys)
        self.count = word(table + KEYS_COUNT)
        places = {key: i for i, key in enumerate(words_at(table + self._start, 2 * self.count)[::2])}
        for key in dict.__iter__(space):
            if type(key) is str and id(key) in places:
                self.index[key], self.objects[key] = places[id(key)], key

    def key(self, key: str) -> Spot:
        return Spot(self.keys, self._start + 2 * WORD * self.index[key])

    def value(self, key: str) -> Spot:
        """Where the pointer to the value of `key` is."""
        if self.values == ZERO:
            return Spot(self.keys, self.key(key).offset + WORD)
        return Spot(self.values, self._where.dict_items + WORD * self.index[key])


def add_items(places: Any, space: dict, reads: Reads) -> Entries:
    """Rows for the version of `space`, a held dict, and for what is read of it where that differs.

    Values that move are only proved to be there: whoever reads them loads them anew. Raises
    NotNative if no row can say some of it.
    """
    where, table = places.layout, places.table
    if None in (where.dict_keys, where.dict_used, where.dict_values, where.dict_items):
        raise NotNative
    is_shared = word(id(space) + where.dict_values) != 0
    keys, values = _pointer(table, id(space) + where.dict_keys), ZERO
    if is_shared:
        values = _pointer(table, id(space) + where.dict_values)
    entries, owner = Entries(space, keys, values, where), table.owner
    with table.left_out(id(space) + where.dict_version, space):
        if not is_shared:
            table.load(id(space) + where.dict_values)
        elif table.apart(values, ZERO) != 0:
            raise NotNative
        table.load(KEYS_SHAPE, keys, KEYS_SHAPE_MASK)
        for key, number, value in reads.items:
            table.owner = number
            _add_item(table, places, entries, key, number, value)
        for number in reads.sources:
            table.owner = number
            _add_source(table, places, space, entries, number)
        table.owner = owner
        _add_keys(places, space, entries, reads)
    table.owner = owner
    return entries


def _pointer(table: Table, address: int) -> int:
    slot = table.slot()
    table.load(address, mask=0, save=slot)
    return slot


def _add_item(
    table: Table, places: Any, entries: Entries, key: str, number: int, value: Any,
) -> None:
    """The key is where it was; so is the value, or what is expected of it holds."""
    guards = places.guards_on(number)
    is_number = _is_number_by_value(value, guards)
    if number not in places.numbers and not is_number:
        _add_value(table, entries, key, value, decides=_is_by_identity(value, guards))
        return
    pointer = _add_filled(table, entries, key)
    if number not in places.numbers:
        add_number(places, pointer, value)


def _add_value(
    table: Table, entries: Entries, key: str, value: Any, decides: bool = False,
) -> None:
    """`key` has this very value."""
    _add_key(table, entries, key)
    spot = entries.value(key)
    if table.load(spot.offset, spot.base, decides=decides) != id(value):
        raise NotNative


def _add_filled(table: Table, entries: Entries, key: str) -> int:
    """`key` has a value, to which the slot leads."""
    _add_key(table, entries, key)
    spot, slot = entries.value(key), table.slot()
    table.load(spot.offset, spot.base, mask=0, save=slot)
    if table.apart(slot, ZERO) != 0:
        raise NotNative
    return slot


def _add_source(
    table: Table, places: Any, space: dict, entries: Entries, number: int,
) -> None:
    """What is read of a dict otherwise than by name: its length, or a name that leads through it."""
    source = places.sources[number]
    if source.kind == "len":
        if number not in places.numbers:
            table.load(id(space) + places.layout.dict_used)
        return
    if source.kind != "named":
        raise NotNative
    name = source.key if isinstance(source.key, Named) else Named(*source.key)
    first = name.module if space is sys.modules else name.qualname.partition(".")[0]
    if first:
        _add_value(table, entries, first, space[first])


def add_number(places: Any, slot: int, value: int | float) -> None:
    """Rows: the slot leads to a number of this type and value."""
    table, where = places.table, places.layout
    if where.type is None or where.float_value is None or where.size is None:
        raise NotNative
    if table.load(where.type, slot, decides=True) != id(type(value)):
        raise NotNative
    if type(value) is float:
        table.load(where.float_value, slot, decides=True)
        return
    end = value.__sizeof__()
    for offset in range(where.size, end, WORD):
        mask = (1 << 8 * min(end - offset, WORD)) - 1
        table.load(offset, slot, mask, decides=True)


def _is_number_by_value(value: Any, guards: Sequence[Guard]) -> bool:
    return type(value) in (int, float) and any(guard.kind == "value" for guard in guards)


def _is_by_identity(value: Any, guards: Sequence[Guard]) -> bool:
    """Whether another object than `value` refutes one of its guards."""
    is_one = value is None or type(value) is bool
    return any(
        guard.kind == "is" and type(guard.expected) is not At or guard.kind == "value" and is_one
        for guard in guards
    )


def _add_key(table: Table, entries: Entries, key: str) -> None:
    if key not in entries.index:
        raise NotNative
    spot = entries.key(key)
    table.holds.append(entries.objects[key])
    if table.load(spot.offset, spot.base) != id(entries.objects[key]):
        raise NotNative


def _add_keys(places: Any, space: dict, entries: Entries, reads: Reads) -> None:
    """What is said of the keys: which are there, and that there are no others."""
    table, is_shared = places.table, entries.values != ZERO
    there, are_all = set(), bool(reads.absent)
    for guard in reads.guards:
        if guard.kind == "contains" and type(guard.expected[0]) is str:
            are_all |= not guard.expected[1]
            there |= {guard.expected[0]} if guard.expected[1] else set()
        elif guard.kind == "keys" and not is_shared and type(space) is dict:
            are_all = True
        elif guard.kind == "len":
            table.load(id(space) + places.layout.dict_used)
        elif guard.kind not in _OF_THE_DICT:
            raise NotNative
    if are_all:
        there |= space.keys()
        table.load(id(space) + places.layout.dict_used)
        if not is_shared and entries.count != len(space):  # what was deleted left a hole
            raise NotNative
    for key in there:
        (_add_filled if is_shared else _add_key)(table, entries, key)
    if are_all and not is_shared:
        table.load(KEYS_COUNT, entries.keys)


# Claims about the dict itself, which its place proves.
_OF_THE_DICT = frozenset(("type", "is", "isnot", "distinct"))
