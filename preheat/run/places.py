"""Sources as places in memory: the rows that prove that a source still leads to the same object.

    s0 = entry                    Place(0, id(model))     no row: the entry is bound to it
    s1 = s0.__dict__              Place(0, id(dict))      row: the pointer in the instance
    s2 = s1["weight"]             Place(0, id(weight))    row: the version of the dict
    s3 = arg 0                    Place(slot 2, 0)        row: load args[0] into slot 2

A *fixed* place is an absolute address: the rows before prove that the object there is the one that
was resolved when the rows were made. A *moving* place is a pointer in a slot, read anew on every
call. Arguments that are tensors, numbers, strings, lists, tuples and small dicts with str keys
move, and so do such items of theirs; everything else is fixed, and another object takes the slow
path. One that each call makes anew ends up in `fleeting` (see `Rows.restless`): Python follows it.

Held objects (`Table.holds`) are kept alive by the rows, so a pointer equal to theirs is theirs.
What is reached from an argument that is an instance or a large dict is not held (rows would keep a
caller's data alive): there only dict versions, which no two dicts share, prove anything.
"""

import collections
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from preheat.base.identity import identity
from preheat.base.names import has_managed_dict, is_heap_type, mro_of
from preheat.ir.rows import ALL_BITS, ZERO
from preheat.ir.scalar import Spelled
from preheat.ir.trace import Guard, Source
from preheat.run.items import Entries, Reads, add_items
from preheat.run.layout import (
    KEYS_COUNT, KEYS_SHAPE, KEYS_SHAPE_MASK, WORD, Layout, entries_offset, force_type_version,
)
from preheat.run.table import NoRoom, NotNative, Table
from preheat.run.tensor_layout import TensorLayout


class Place(NamedTuple):
    """`address` behind slot `base`; base ZERO: a fixed place."""

    base: int
    address: int

    @property
    def is_fixed(self) -> bool:
        return self.base == ZERO


bare_place = functools.partial(tuple.__new__, Place)  # of a pair, at half the cost of Place(...)


class Places:
    """The place of every source of a call, and the rows that prove it, written to `table`.

    `where[number]` is None for a source that only Python can follow.
    """

    def __init__(
        self, table: Table, layout: Layout, tensors: TensorLayout | None, sources: Sequence[Source],
        found: Sequence[Any], keyword_index: Mapping[str, int],
        numbers: frozenset[int] = frozenset(), replaced: frozenset[int] = frozenset(),
        lasting: frozenset[int] = frozenset(), fleeting: frozenset[int] = frozenset(),
        guards: Mapping[int, Sequence[Guard]] = types.MappingProxyType({}),
        changing: Mapping[int, Reads] = types.MappingProxyType({}),
    ):
        self.table, self.layout, self.tensors = table, layout, tensors
        self.sources, self.found, self.keyword_index = sources, found, keyword_index
        self.replaced = replaced  # sources that lead to another object on each call
        self.numbers = numbers | replaced  # and those that may lead to another number
        self.fleeting = fleeting  # sources that have no place: see `Rows.restless`
        self.bare_ones: set[int] = set()  # dicts that a row says are empty
        self.lasting = lasting  # ids of objects that live as long as what is compiled
        self.guards = guards  # by source
        self.changing = changing  # what is read of dicts that change from call to call, by id
        self.listed: dict[int, Entries] = {}  # those of them whose items have rows, by id
        self.where: list[Place | None] = []
        self.is_held: list[bool] = []
        self.origin: dict[int, Place] = {}  # of a slot: the place it was loaded from
        # of gradients, which have no object in Python before they are asked for: their TensorImpl
        self.impls: dict[int, Place] = {}
        self.scalars: dict[Any, tuple[int, str]] = {}  # slots of numbers, by what they are
        self.spelled = Spelled()
        self.present: dict[int, Any] = {}  # values of these in the call at hand
        self._shared: int | None = None
        self._items: dict[int, Place] = {}
        self._tables: dict[int, Place] = {}
        self.done: set[tuple[Any, int]] = set()  # (what, about what): its rows are there

    def undo(self, mark: int) -> None:
        """Drops the rows added since `mark`, and what they proved."""
        if self.table.mark() > mark:
            self.table.undo(mark)
            self.done.clear()
            self.scalars.clear()

    def guards_on(self, number: int) -> Sequence[Guard]:
        return self.guards.get(number, ())

    def is_decided(self, number: int) -> bool:
        """Whether a guard says what type the object of source `number` has."""
        return any(guard.kind in ("type", "value") for guard in self.guards_on(number))

    def held(self) -> tuple[Any, ...]:
        """The object of each source that is fixed and kept alive, else None."""
        return tuple([
            value if held and place is not None and place[0] == ZERO else None
            for value, held, place in zip(self.found, self.is_held, self.where)
        ])

    # ------------------------------------------------------------------ what many steps need
    def at(self, number: int) -> Place:
        """The place of source `number`. Raises NotNative if it has none."""
        place = self.where[number]
        if place is None:
            raise NotNative
        return place

    def fixed(self, number: int) -> Any:
        """The object of source `number`, whose place is fixed. Raises NotNative if it is not."""
        if not self.at(number).is_fixed:
            raise NotNative
        return self.found[number]

    def word(
        self, place: Place, offset: int | None, mask: int = ALL_BITS, save: int = ZERO,
        decides: bool = False,
    ) -> int:
        """Adds a row for the word at `offset` of the object at `place`; see `Table.load`."""
        if offset is None:
            raise NotNative
        return self.table.load(place.address + offset, place.base, mask, save, decides)

    def pointer(self, number: int, parent: int, offset: int | None) -> Place:
        """The object of `number`; that of `parent`, held, points to it at `offset`; null: None."""
        value = self.found[number]
        if not self.is_held[parent]:
            raise NotNative
        found = self.word(self.at(parent), offset)
        if found != id(value) and not (found == 0 and value is None):
            raise NotNative
        return Place(ZERO, id(value))

    def follow(self, place: Place, offset: int | None) -> Place:
        """A new slot with the pointer at `offset` of the object at `place`, never null."""
        slot = self.table.slot()
        self.word(place, offset, mask=0, save=slot)
        self.origin[slot] = Place(place.base, place.address + offset)
        return Place(slot, 0)

    def items(self, number: int) -> Place:
        """The items of a list that may be another one on each call: one slot a list."""
        known = self._items.get(number)
        if known is None or known.base not in self.table.saved:
            known = self._items[number] = self.follow(self.at(number), self.layout.list_items)
        return known

    def entries(self, number: int) -> tuple[Place, int]:
        """The table of keys of a moving dict and the offset of its entries; adds rows for all keys.

        The rows say, in this order: it is a dict with as many items, its values lie in the table,
        the table has this shape and no holes, and these are its keys.
        """
        where, place = self.layout, self.at(number)
        self.type_of(number)
        self.word(place, where.dict_used)
        if self.word(place, where.dict_values) != 0:
            raise NotNative
        known = self._tables.get(number)
        if known is None or known.base not in self.table.saved:
            known = self._tables[number] = self.follow(place, where.dict_keys)
        self.word(known, KEYS_SHAPE, mask=KEYS_SHAPE_MASK)
        self.word(known, KEYS_COUNT)
        start = entries_offset(self.table.value(known.base))
        for index, key in enumerate(self.found[number]):
            self.table.holds.append(key)
            if self.word(known, start + 2 * WORD * index) != id(key):
                raise NotNative
        return known, start

    def shared_slot(self) -> int:
        """One slot for pointers that only the next row needs."""
        if self._shared is None:
            self._shared = self.table.slot()
        return self._shared

    def version(self, number: int) -> None:
        """Adds rows: the dict (or the class's view of its dict) at source `number` did not change.

        For a moving dict: its keys are the same objects in the same order.
        """
        if ("version", number) in self.done:
            return
        value, place = self.found[number], self.at(number)
        if not place.is_fixed:
            self.entries(number)
        elif issubclass(type(value), dict):
            self.dict_version(place, value if self.is_held[number] else None)
        elif type(value) is types.MappingProxyType:
            self.type_version(self.fixed(self.sources[number].parent))
        else:
            raise NotNative
        self.done.add(("version", number))

    def bare(self, number: int) -> None:
        """Adds a row: the moving object whose `__dict__` is source `number` has nothing in it."""
        source, where = self.sources[number], self.layout.instance
        if source.kind != "dict" or where is None or number in self.fleeting:
            raise NotNative
        place, cls = self.at(source.parent), self.type_of(source.parent)
        if place.is_fixed or not has_managed_dict(cls) or not self.table.bare(place.base, where):
            raise NotNative
        self.bare_ones.add(number)

    def is_usual_dict(self, number: int) -> bool:
        """True, and the row of `version` is there, for a dict in its place whose type needs no row.

        Most guards of a model speak of such dicts: this is `type_of` and `version` in one step.
        """
        place, value = self.where[number], self.found[number]
        if place is None or place[0] != ZERO or type(value) not in _USUAL_DICTS:
            return False
        if not self.is_held[number] or self.layout.dict_version is None:
            return False
        about = "version", number
        if about not in self.done:
            self.dict_version(place, value)
            self.done.add(about)
        return True

    def dict_version(self, place: Place, held: dict | None) -> None:
        """Adds a row: the dict at `place` did not change. `held`: the dict, if it is kept alive."""
        table, offset = self.table, self.layout.dict_version
        if offset is None:
            raise NotNative
        if held is not None and identity(held) in self.changing and self._add_items(held):
            return
        row = len(table.rows)
        table.load(place[1] + offset, place[0])
        if held is not None and len(table.rows) > row:
            table.versions[row] = held

    def _add_items(self, space: dict) -> bool:
        """Rows for what is read of a dict that changes; False if there can be none."""
        mark = self.table.mark()
        try:
            self.listed[identity(space)] = add_items(self, space, self.changing[identity(space)])
        except (NotNative, NoRoom):
            self.undo(mark)
            return False
        return True

    def spot(self, number: int, key: Any) -> tuple[Place, int] | None:
        """Where the pointer to item `key` of the dict at source `number` is, which may change."""
        if not (self.at(number).is_fixed and self.is_held[number]):
            return None
        self.version(number)
        entries = self.listed.get(identity(self.found[number]))
        if entries is None or key not in entries.index or entries.keys not in self.table.saved:
            return None
        base, offset = entries.value(key)
        return Place(base, 0), offset

    def type_version(self, cls: type) -> None:
        """Adds a row: nothing changed in `cls` and its bases. A valid version is the proof."""
        if ("type version", id(cls)) in self.done:
            return
        if any(map(is_heap_type, mro_of(cls))):
            force_type_version(cls)
            self.table.holds.append(cls)
            place = Place(ZERO, id(cls))
            if self.word(place, self.layout.type_version, mask=0xFFFFFFFF) & 0xFFFFFFFF == 0:
                raise NotNative
        self.done.add(("type version", id(cls)))

    def type_of(self, number: int) -> type:
        """Adds a row: the object of source `number` still has its type, which is returned."""
        cls, about = type(self.found[number]), ("type", number)
        if about in self.done:
            return cls
        if number in self.impls:
            self._type_of_gradient(number, cls)
            self.done.add(about)
            return cls
        place = self.at(number)
        if (
            place[0] != ZERO or not self.is_held[number]
            or is_heap_type(cls) or issubclass(cls, types.ModuleType)  # these can be given another
        ):
            self.table.holds.append(cls)
            if self.word(place, self.layout.type, decides=self.is_decided(number)) != id(cls):
                raise NotNative
        self.done.add(about)
        return cls


    def _type_of_gradient(self, number: int, cls: type) -> None:
        """Adds rows: the Python object of a gradient, if it has one, is of class `cls`."""
        if cls is not torch.Tensor or self.layout.type != WORD:
            raise NotNative
        self.table.holds.append(cls)
        place = self.table.advance(self.impls[number].base, self.tensors.wrapper)
        self.table.decide("wrapper_class", place, self.table.constant(id(cls)), id(cls))


_USUAL_DICTS = frozenset((dict, collections.OrderedDict))


def impl(places: Places, number: int) -> tuple[Place, int]:
    """The TensorImpl of a tensor as a place, and a slot that points to it.

    That of a fixed tensor is compared and then fixed itself, and all of them share one slot.
    """
    known = places.impls.get(number)
    if known is not None:
        return known, known.base
    place, where = places.at(number), places.tensors
    if not place.is_fixed:
        moving = places.follow(place, where.impl)
        return moving, moving.base
    slot = places.shared_slot()
    return Place(ZERO, places.word(place, where.impl, save=slot)), slot
