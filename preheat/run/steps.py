"""Steps: for each kind of source, the rows that lead from the place of its parent to its own.

    s2 = s1["weight"]             row: the version of the dict; Place(0, id(weight))
    s4 = s3[0], s3 an argument    rows: the length of the list, the pointer in it; Place(slot 3, 0)

`add_all` finds the place of every source; those that no row can follow have none.
"""

import collections
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from preheat.base.callers import Raised
from preheat.base.identity import identity
from preheat.base.names import find, is_heap_type, raw_attribute
from preheat.ir.rows import ARGS, ZERO
from preheat.ir.trace import At, Named
from preheat.run.check import references
from preheat.run.layout import WORD, word
from preheat.run.members import is_small_table, member_offset
from preheat.run.places import Place, Places, bare_place, impl
from preheat.run.table import NoRoom, NotNative


def add_all(places: Places) -> None:
    """Finds the place of every source."""
    where, is_held, done = places.where, places.is_held, places.done
    for number, source in enumerate(places.sources):
        parent = source.parent
        if (
            source.kind == "item" and ("version", parent) in done
            and where[parent][0] == ZERO and number not in places.numbers
            and type(source.key) not in _NAMING_OTHERS
        ):  # the usual case: another item of a dict that does not change
            value = places.found[number]
            where.append(bare_place((ZERO, id(value))))
            is_held.append(is_held[parent])
            if is_held[parent]:
                places.table.holds.append(value)
            continue
        places.table.owner = number
        _add(places, number)


_NAMING_OTHERS = frozenset((At, tuple))


def _add(places: Places, number: int) -> None:
    """Finds the place of source `number`; all before it have theirs."""
    source = places.sources[number]
    parent = source.parent
    places.is_held.append(parent < 0 or places.is_held[parent])
    places.where.append(None)
    if number in places.fleeting or parent >= 0 and places.where[parent] is None:
        return
    mark = places.table.mark()
    try:
        if parent < 0:
            place = ROOTS[source.kind](places, number, source.key)
        else:
            place = STEPS.get(source.kind, _python_only)(places, number, parent, source.key)
    except (NotNative, NoRoom):
        places.undo(mark)
        return
    places.where[number] = place
    if place is not None and place.base == ZERO and places.is_held[number]:
        places.table.holds.append(places.found[number])


# ---------------------------------------------------------------------------- roots
def _entry(places: Places, number: int, key: Any) -> Place:
    return Place(ZERO, id(places.found[number]))


_MOVING = (
    torch.Tensor, int, float, complex, str, bytes, type(None), list, tuple, Raised, BaseException,
)
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
    places.is_held[number] = issubclass(type(value), _CODE) or identity(value) in places.lasting
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
    for index in references(key):  # what is found is found for this very key
        _stays(places, index)
    if issubclass(kind, dict) and not places.at(parent).is_fixed:
        table, start = places.entries(parent)
        index = next((i for i, name in enumerate(owner) if _is_key(name, key)), None)
        if index is None:
            raise NotNative
        return arrive(places, number, table, start + WORD * (2 * index + 1))
    if issubclass(kind, dict) or kind is types.MappingProxyType:
        spot = places.spot(parent, key) if number in places.numbers else None
        if spot is not None:
            return arrive(places, number, *spot)
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


def _stays(places: Places, number: int) -> None:
    """Adds a row: a key that may move is the object that was resolved. It need not be kept alive: the
    dict, which has not changed, does that."""
    place = places.at(number)
    if not place.is_fixed:
        origin = places.origin[place.base]
        if places.table.load(origin.address, origin.base) != id(places.found[number]):
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
    if not places.is_held[parent] and places.layout.cell is not None:
        places.type_of(parent)
        return arrive(places, number, places.at(parent), places.layout.cell)
    return _pointer(places, number, parent, places.layout.cell)


def _pointer(places: Places, number: int, parent: int, offset: int | None) -> Place:
    """What the object of `parent` points to at `offset`, which may be null: always the same, or
    what is there now."""
    if number not in places.numbers or not places.is_held[parent] or offset is None:
        return places.pointer(number, parent, offset)
    place = arrive(places, number, places.at(parent), offset)
    if not place.is_fixed and places.table.apart(place.base, ZERO) != 0:
        raise NotNative
    return place


def _unchanging(places: Places, number: int, parent: int, key: Any) -> Place:
    """A field that CPython never changes in a live object (a function's closure and globals)."""
    if not (places.at(parent).is_fixed and places.is_held[parent]):
        raise NotNative
    return Place(ZERO, id(places.found[number]))


def _length(places: Places, number: int, parent: int, key: Any) -> Place:
    if number not in places.numbers:
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
    if name == "grad" and issubclass(cls, torch.Tensor):
        return _gradient(places, number, parent)
    if cls in _IMMUTABLE:
        return _unchanging(places, number, parent, None)
    descriptor = raw_attribute(cls, name)
    places.type_version(cls)
    if type(descriptor) is types.MemberDescriptorType and cls is Raised:
        return arrive(places, number, places.at(parent), member_offset(descriptor, places.layout))
    if type(descriptor) is types.MemberDescriptorType:
        return _pointer(places, number, parent, member_offset(descriptor, places.layout))
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


def _gradient(places: Places, number: int, parent: int) -> Place | None:
    """None, or a tensor that may be another one on each call: see `Places.impls`."""
    where, value = places.tensors, places.found[number]
    if where is None or where.grad is None:
        raise NotNative
    _, slot = impl(places, parent)
    found = places.table.slot()
    reference = places.table.call(where.grad, slot, mask=0, save=found)
    if value is None:
        if places.table.load(0, found, decides=True) != where.no_grad:
            raise NotNative
        return Place(ZERO, id(None))
    if word(reference) != value._cdata:
        raise NotNative
    places.impls[number] = places.follow(Place(found, 0), 0)
    return None


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
