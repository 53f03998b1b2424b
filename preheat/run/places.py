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
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from preheat.base.names import find, has_managed_dict, is_heap_type, mro_of, raw_attribute
from preheat.ir.rows import ALL_BITS, ARGS, ZERO
from preheat.ir.trace import Named, Source
from preheat.run.layout import (
    KEYS_COUNT, KEYS_SHAPE, KEYS_SHAPE_MASK, WORD, Layout, entries_offset, force_type_version, word,
)
from preheat.run.members import is_small_table, member_offset
from preheat.run.table import NoRoom, Table
from preheat.run.tensor_layout import TensorLayout


class Place(NamedTuple):
    """`address` behind slot `base`; base ZERO: a fixed place."""

    base: int
    address: int

    @property
    def is_fixed(self) -> bool:
        return self.base == ZERO


_place = functools.partial(tuple.__new__, Place)  # of a pair, at half the cost of Place(...)


class NotNative(Exception):
    """No row can say this: it is checked in Python on every call."""


class Places:
    """The place of every source of a call, and the rows that prove it, written to `table`.

    `where[number]` is None for a source that only Python can follow.
    """

    def __init__(
        self, table: Table, layout: Layout, tensors: TensorLayout | None, sources: Sequence[Source],
        found: Sequence[Any], keyword_index: Mapping[str, int],
        numbers: frozenset[int] = frozenset(), replaced: frozenset[int] = frozenset(),
        lasting: frozenset[int] = frozenset(), fleeting: frozenset[int] = frozenset(),
    ):
        self.table, self.layout, self.tensors = table, layout, tensors
        self.sources, self.found, self.keyword_index = sources, found, keyword_index
        self.replaced = replaced  # sources that lead to another object on each call
        self.numbers = numbers | replaced  # and those that may lead to another number
        self.fleeting = fleeting  # sources that have no place: see `Rows.restless`
        self.bare_ones: set[int] = set()  # dicts that a row says are empty
        self.lasting = lasting  # ids of objects that live as long as what is compiled
        self.where: list[Place | None] = []
        self.is_held: list[bool] = []
        self.origin: dict[int, Place] = {}  # of a slot: the place it was loaded from
        self._shared: int | None = None
        self._items: dict[int, Place] = {}
        self._tables: dict[int, Place] = {}
        self.done: set[tuple[Any, int]] = set()  # (what, about what): its rows are there

    def add_all(self) -> None:
        """Finds the place of every source."""
        where, is_held, done = self.where, self.is_held, self.done
        for number, source in enumerate(self.sources):
            parent = source.parent
            if (
                source.kind == "item" and ("version", parent) in done
                and where[parent][0] == ZERO and number not in self.replaced
            ):  # the usual case: another item of a dict that does not change
                value = self.found[number]
                where.append(_place((ZERO, id(value))))
                is_held.append(is_held[parent])
                if is_held[parent]:
                    self.table.holds.append(value)
                continue
            self.table.owner = number
            self.add(number)

    def add(self, number: int) -> None:
        """Finds the place of source `number`; all before it have theirs."""
        source = self.sources[number]
        parent = source.parent
        self.is_held.append(parent < 0 or self.is_held[parent])
        self.where.append(None)
        if number in self.fleeting or parent >= 0 and self.where[parent] is None:
            return
        mark = self.table.mark()
        try:
            if parent < 0:
                place = ROOTS[source.kind](self, number, source.key)
            else:
                place = STEPS.get(source.kind, _python_only)(self, number, parent, source.key)
        except (NotNative, NoRoom):
            self.undo(mark)
            return
        self.where[number] = place
        if place.base == ZERO and self.is_held[number]:
            self.table.holds.append(self.found[number])

    def undo(self, mark: int) -> None:
        """Drops the rows added since `mark`, and what they proved."""
        if self.table.mark() > mark:
            self.table.undo(mark)
            self.done.clear()

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

    def word(self, place: Place, offset: int | None, mask: int = ALL_BITS, save: int = ZERO) -> int:
        """Adds a row for the word at `offset` of the object at `place`."""
        if offset is None:
            raise NotNative
        return self.table.load(place.address + offset, place.base, mask, save)

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
        row = len(table.rows)
        table.load(place[1] + offset, place[0])
        if held is not None and len(table.rows) > row:
            table.versions[row] = held

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
        place = self.at(number)
        if (
            place[0] != ZERO or not self.is_held[number]
            or is_heap_type(cls) or issubclass(cls, types.ModuleType)  # these can be given another
        ):
            self.table.holds.append(cls)
            if self.word(place, self.layout.type) != id(cls):
                raise NotNative
        self.done.add(about)
        return cls


_USUAL_DICTS = frozenset((dict, collections.OrderedDict))


# ---------------------------------------------------------------------------- roots
def _entry(places: Places, number: int, key: Any) -> Place:
    return Place(ZERO, id(places.found[number]))


_MOVING = (torch.Tensor, int, float, complex, str, bytes, type(None), list, tuple)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType, type)


def _argument(places: Places, number: int, key: int | str) -> Place:
    index = places.keyword_index[key] if isinstance(key, str) else key
    value = places.found[number]
    is_method = type(value) is types.BuiltinFunctionType
    if is_method and not issubclass(type(value.__self__), _CODE):
        raise NotNative  # `x.item`: a method of C is made anew whenever it is looked up
    return arrive(places, number, Place(ARGS, 0), WORD * index)


def arrive(places: Places, number: int, owner: Place, offset: int) -> Place:
    """The place of an object, maybe another on each call; its pointer is at `offset` of `owner`.

    Data moves; code is fixed and held, and so is the model that is compiled, with its parts; other
    objects are fixed, but not held.
    """
    value = places.found[number]
    places.is_held[number] = issubclass(type(value), _CODE) or id(value) in places.lasting
    if issubclass(type(value), _MOVING) or is_small_table(value, places.layout):
        place = places.follow(owner, offset)
        if places.table.value(place.base) != id(value):
            raise NotNative
        return place
    if places.word(owner, offset) != id(value):
        raise NotNative
    place = Place(ZERO, id(value))
    if not places.is_held[number]:
        # another object may have taken the place of one that died: its type fixes what can be read
        places.table.holds.append(type(value))
        places.word(place, places.layout.type)
    return place


def _named(places: Places, number: int, key: Any) -> Place:
    """A row for each dict or class that the name goes through."""
    name = key if isinstance(key, Named) else Named(*key)
    here: Any = sys.modules[name.module]
    _dict_version(places, sys.modules)
    parts = name.qualname.split(".") if name.qualname else []
    for depth, part in enumerate(parts):
        if isinstance(here, types.ModuleType):
            _dict_version(places, object.__getattribute__(here, "__dict__"))
        else:
            places.type_version(here)
        here = find(name.module, ".".join(parts[: depth + 1]))
    return Place(ZERO, id(places.found[number]))


def _dict_version(places: Places, space: dict) -> None:
    if ("version of", id(space)) not in places.done:
        places.table.holds.append(space)
        places.dict_version(Place(ZERO, id(space)), space)
        places.done.add(("version of", id(space)))


def _python_only(places: Places, number: int, *step: Any) -> Place:
    raise NotNative


ROOTS: Mapping[str, Callable[[Places, int, Any], Place]] = types.MappingProxyType({
    "entry": _entry, "live": _entry, "named": _named, "arg": _argument, "kwarg": _argument,
    "slot": _python_only, "number": _python_only,
})


# ---------------------------------------------------------------------------- steps
def _dict(places: Places, number: int, parent: int, key: Any) -> Place:
    """An instance's, module's or function's dict: a pointer in it. A class's: the class itself.

    That of a moving object with nothing in it has no place: see `Places.bare`.
    """
    owner = places.found[parent]
    if not places.at(parent).is_fixed and dict.__len__(places.found[number]) == 0:
        raise NotNative
    places.type_of(parent)
    if issubclass(type(owner), type):
        places.fixed(parent)
        return Place(ZERO, id(places.found[number]))
    offset = type.__dict__["__dictoffset__"].__get__(type(owner))
    if offset <= 0:
        offset = places.layout.managed_dict
    space = places.found[number]
    if places.word(places.at(parent), offset) != id(space):
        raise NotNative
    return Place(ZERO, id(space))


def _item(places: Places, number: int, parent: int, key: Any) -> Place:
    owner = places.found[parent]
    kind = type(owner)
    if issubclass(kind, dict) and not places.at(parent).is_fixed:
        table, start = places.entries(parent)
        index = next((i for i, name in enumerate(owner) if _is_key(name, key)), None)
        if index is None:
            raise NotNative
        return arrive(places, number, table, start + WORD * (2 * index + 1))
    if issubclass(kind, dict) or kind is types.MappingProxyType:
        if number in places.replaced:
            raise NotNative
        places.version(parent)
        return Place(ZERO, id(places.found[number]))
    if issubclass(kind, (list, tuple)) and type(key) is int and key >= 0:
        places.type_of(parent)
        return _SEQUENCES[issubclass(kind, list)](places, number, parent, key)
    if issubclass(kind, (str, bytes, range)) and places.at(parent).is_fixed:
        return Place(ZERO, id(places.found[number]))  # computed from what can not change
    raise NotNative


_COMPARED_BY_C = frozenset((str, int, bool, float, bytes, tuple))


def _is_key(name: Any, key: Any) -> bool:
    return name is key or type(name) is type(key) and type(key) in _COMPARED_BY_C and name == key


def _list_item(places: Places, number: int, parent: int, index: int) -> Place:
    place, layout = places.at(parent), places.layout
    places.word(place, layout.size)
    if not (place.is_fixed and places.is_held[parent]):
        return arrive(places, number, places.items(parent), WORD * index)
    items = places.word(place, layout.list_items)
    if number in places.numbers:
        return arrive(places, number, Place(ZERO, items), WORD * index)
    if places.word(Place(ZERO, items), WORD * index) != id(places.found[number]):
        raise NotNative
    return Place(ZERO, id(places.found[number]))


def _tuple_item(places: Places, number: int, parent: int, index: int) -> Place:
    place, layout = places.at(parent), places.layout
    if place.is_fixed and places.is_held[parent]:
        return Place(ZERO, id(places.found[number]))
    if layout.tuple_items is None:
        raise NotNative
    places.word(place, layout.size)
    return arrive(places, number, place, layout.tuple_items + WORD * index)


_SEQUENCES = (_tuple_item, _list_item)


def _key(places: Places, number: int, parent: int, key: Any) -> Place:
    dict_order(places, parent)
    return Place(ZERO, id(places.found[number]))


def dict_order(places: Places, number: int) -> None:
    """Adds rows: the keys of a dict and their order are as they were.

    An OrderedDict keeps its order beside the dict, where a version does not see it.
    """
    value = places.found[number]
    if issubclass(type(value), collections.OrderedDict) and dict.__len__(value) > 1:
        raise NotNative
    places.version(number)


def _type(places: Places, number: int, parent: int, key: Any) -> Place:
    places.is_held[number] = True
    return Place(ZERO, id(places.type_of(parent)))


def _class(places: Places, number: int, parent: int, key: Any) -> Place:
    places.type_version(places.fixed(parent))
    return Place(ZERO, id(places.found[number]))


def _cell(places: Places, number: int, parent: int, key: Any) -> Place:
    if number in places.numbers and places.is_held[parent] and places.layout.cell is not None:
        return arrive(places, number, places.at(parent), places.layout.cell)
    return places.pointer(number, parent, places.layout.cell)


def _unchanging(places: Places, number: int, parent: int, key: Any) -> Place:
    """A field that CPython never changes in a live object (a function's closure and globals)."""
    if not (places.at(parent).is_fixed and places.is_held[parent]):
        raise NotNative
    return Place(ZERO, id(places.found[number]))


def _length(places: Places, number: int, parent: int, key: Any) -> Place:
    length(places, parent)
    return Place(ZERO, id(places.found[number]))


def length(places: Places, number: int) -> None:
    """Adds rows: the container at source `number` still has as many items."""
    kind, place = type(places.found[number]), places.at(number)
    if issubclass(kind, dict) or kind is types.MappingProxyType:
        places.version(number)
    elif issubclass(kind, (list, tuple)):
        if issubclass(kind, list) or not (place.is_fixed and places.is_held[number]):
            places.word(place, places.layout.size)
    elif issubclass(kind, set):
        places.word(place, places.layout.set_used)
    elif not (
        issubclass(kind, (frozenset, str, bytes, range))
        and place.is_fixed
        and places.is_held[number]
    ):
        raise NotNative


def _attribute(places: Places, number: int, parent: int, name: str) -> Place:
    owner = places.found[parent]
    cls = places.type_of(parent)
    if name == "__class__":
        return _type(places, number, parent, None)
    if name == "__dict__":
        return _dict(places, number, parent, None)
    if cls in _IMMUTABLE:
        return _unchanging(places, number, parent, None)
    descriptor = raw_attribute(cls, name)
    places.type_version(cls)
    if type(descriptor) is types.MemberDescriptorType:
        return places.pointer(number, parent, member_offset(descriptor, places.layout))
    if cls is types.FunctionType and name in _FUNCTION_FIELDS:
        return places.pointer(number, parent, getattr(places.layout, _FUNCTION_FIELDS[name]))
    if issubclass(cls, type) and name in ("__name__", "__qualname__"):
        return _type_name(places, number, places.fixed(parent))
    if issubclass(cls, type) and name in _BY_TYPE_VERSION and is_heap_type(owner):
        places.type_version(places.fixed(parent))
        return Place(ZERO, id(places.found[number]))
    if cls is types.FunctionType and name in ("__name__", "__qualname__"):
        return _stored(places, number, places.fixed(parent), types.FunctionType.__basicsize__)
    raise NotNative


# What an attribute of these gives follows from the object, even where it is made anew on each read.
_IMMUTABLE = (
    types.CodeType, range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format,
)
# Attributes of a class that can not change without a new version of it.
_BY_TYPE_VERSION = frozenset(("__module__", "__bases__", "__mro__", "__base__"))
_FUNCTION_FIELDS = types.MappingProxyType({
    "__code__": "code", "__defaults__": "defaults", "__kwdefaults__": "kwdefaults",
})


def _type_name(places: Places, number: int, cls: type) -> Place:
    """A class statement's type stores its names; the names of other types can not change."""
    if not is_heap_type(cls):
        return Place(ZERO, id(places.found[number]))
    return _stored(places, number, cls, type.__basicsize__)


def _stored(places: Places, number: int, owner: Any, size: int) -> Place:
    """An attribute stored in its owner: every word that points to the value must keep doing so."""
    value = places.found[number]
    offsets = [o for o in range(2 * WORD, size, WORD) if word(id(owner) + o) == id(value)]
    if not offsets:
        raise NotNative
    for offset in offsets:
        places.word(Place(ZERO, id(owner)), offset)
    return Place(ZERO, id(value))


def _result(places: Places, number: int, parent: int, asked: tuple) -> Place:
    """What a weak reference gives: a pointer in it. What else is asked anew is asked in Python."""
    if type(places.found[parent]) is not weakref.ReferenceType or asked != ("",):
        raise NotNative
    place = places.pointer(number, parent, places.layout.weak_reference)
    places.is_held[number] = False  # when the object dies, the pointer becomes None
    return place


STEPS: Mapping[str, Callable[[Places, int, int, Any], Place]] = types.MappingProxyType({
    "attr": _attribute, "dict": _dict, "item": _item, "key": _key, "type": _type, "class": _class,
    "cell": _cell, "closure": _unchanging, "globals": _unchanging, "len": _length,
    "result": _result,
})
