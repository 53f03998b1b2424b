"""Guards as rows: for each kind, which words decide it.

    guard s2 tensor f32[8, 128]     rows: class, TensorImpl, key set, dtype and device, sizes, ...
    guard s1 absent "bias"          row:  the version of the dict
    guard s4 value 0.5              no row where s4 is fixed: a float can not change

A guard holds when its rows are made (the Python checker said so), so the rows only have to say that
what decided it is as it was. `NotNative` sends the guard to Python.
"""

import _collections_abc
import abc
import contextlib
import functools
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preheat.base.names import raw_attribute
from preheat.bridge.tensors import extent
from preheat.ir.rows import ZERO
from preheat.ir.trace import At, Guard, TensorFacts
from preheat.run.arithmetic import add_test, element_memory, first_byte
from preheat.run.check import Claim
from preheat.run.items import add_number
from preheat.run.layout import WORD
from preheat.run.members import member_offset
from preheat.run.places import Place, Places, impl
from preheat.run.state import add_state
from preheat.run.steps import dict_order, length
from preheat.run.table import NoRoom, NotNative
from preheat.run.tensor_layout import INLINE_RANK

_BYTE = 0xFF


def add_claims(
    places: Places, claims: Mapping[str, Sequence[tuple[Guard, Claim]]], found: Sequence[Any],
    without: tuple[str, ...] = (),
) -> list[Guard]:
    """Adds the rows of all claims, kind by kind; returns the guards that have none.

    claims    of each kind; tensors' memory comes after what proves that they are plain
    found     the objects of all sources
    without   names guard kinds and ambient rows that shall count as not native
    """
    slow, done, table = [], places.done, places.table
    for kind, rows in sorted(claims.items(), key=lambda row: row[0] == "alias"):
        add_rows = _maker(kind, without)
        is_by_source = add_rows in _BY_SOURCE
        for guard, claim in rows:
            about = add_rows, guard.source
            if is_by_source and about in done:
                continue
            table.owner = guard
            mark = len(table.rows)
            try:
                add_rows(places, guard, claim.object(found))
            except (NotNative, NoRoom):
                places.undo(mark)
                slow.append(guard)
                continue
            if is_by_source:
                done.add(about)
    return slow


def _maker(kind: str, without: tuple[str, ...]) -> Callable[[Places, Guard, Any], None]:
    """What adds the rows of a guard of this kind."""
    if kind == "ambient" and kind not in without:
        return functools.partial(_ambient, without=without)
    return _python_only if kind in without else CLAIM_ROWS.get(kind, _python_only)


def _python_only(places: Places, guard: Guard, expected: Any) -> None:
    raise NotNative


def _ambient(
    places: Places, guard: Guard, expected: tuple, without: tuple[str, ...] = ()
) -> None:
    if not add_state(places.table, *expected, without):
        raise NotNative


# ---------------------------------------------------------------------------- identity
def _type(places: Places, guard: Guard, expected: type) -> None:
    source = places.sources[guard.source]
    if source.kind == "element":  # the dtype of the tensor says what it gives
        element_memory(places, source.parent)
    else:
        places.type_of(guard.source)


def _is(places: Places, guard: Guard, expected: Any) -> None:
    source = places.sources[guard.source]
    if source.kind == "number":
        add_test(places, source.key, expected)
        return
    place = places.at(guard.source)
    other = _place_of(places, guard, expected)
    if place.is_fixed and other.is_fixed:
        return
    if not isinstance(guard.expected, At):  # what a source leads to lives by itself
        places.table.holds.append(expected)
    if not place.is_fixed and not other.is_fixed:
        if places.table.same(place.base, other.base) != 0:
            raise NotNative
        return
    moving, fixed = (other, place) if place.is_fixed else (place, other)
    _points_to(places, moving, fixed.address, decides=True)


def _place_of(places: Places, guard: Guard, expected: Any) -> Place:
    """Where the object is that a guard compares with: at a source, or an object by itself."""
    if isinstance(guard.expected, At):
        return places.at(guard.expected.index)
    return Place(ZERO, id(expected))


def _points_to(places: Places, moving: Place, address: int, decides: bool) -> None:
    """Adds a row: the pointer from which a slot was loaded is still `address`."""
    origin = places.origin[moving.base]
    if places.table.load(origin.address, origin.base, decides=decides) != address:
        raise NotNative


def _is_not(places: Places, guard: Guard, expected: Any) -> None:
    place = places.at(guard.source)
    other = _place_of(places, guard, expected)
    if place.is_fixed and other.is_fixed:
        return
    if not isinstance(guard.expected, At):
        places.table.holds.append(expected)
    _apart(places, *sorted((place, other), key=lambda p: p.is_fixed))


def _apart(places: Places, moving: Place, other: Place) -> None:
    """Adds a row: the object at a moving place is not the one at the other."""
    if places.table.apart(moving.base, other.base, other.address) != 0:
        raise NotNative


def _distinct(places: Places, guard: Guard, expected: tuple[int, ...]) -> None:
    """Objects at fixed places differ for good; each moving one is compared with all others."""
    found = sorted(
        (places.at(source) for source in guard.expected), key=lambda place: place.is_fixed
    )
    moving = [place for place in found if not place.is_fixed]
    if len(moving) * len(found) > _MOST_PAIRS:
        raise NotNative
    for index, place in enumerate(moving):
        for other in found[index + 1 :]:
            _apart(places, place, other)


_SINGLETONS = (type(None), bool, type(Ellipsis))


def _value(places: Places, guard: Guard, expected: Any) -> None:
    """Numbers and strings can not change, so a fixed one needs no row; a moving one is compared."""
    place, value = places.at(guard.source), places.found[guard.source]
    if place.is_fixed:
        return
    kind = type(value)
    if kind in (int, float):
        places.type_of(guard.source)
        add_number(places, place.base, value)
    elif kind in _SINGLETONS or kind in (str, bytes):
        # an equal string at another address takes the slow path, and is known from then on
        places.table.holds.append(value)
        _points_to(places, place, id(value), decides=kind in _SINGLETONS)
    else:
        raise NotNative


# ---------------------------------------------------------------------------- tensors
def _tensor(places: Places, guard: Guard, expected: TensorFacts) -> None:
    """Class, key set, dtype, device, rank, sizes, strides and what `requires_grad` answers."""
    where = places.tensors
    if where is None:
        raise NotNative
    places.type_of(guard.source)
    place, slot = impl(places, guard.source)
    places.word(place, where.keys)
    dtype = (1 << 40) - 1  # 2 bytes, and 3 of the device
    places.word(place, where.dtype, mask=dtype, decides=True)
    places.word(place, where.rank, decides=True)
    rank = len(expected.type.sizes)
    if rank <= INLINE_RANK:
        load, base, start = places.table.load, place.base, place.address
        for axis, (size, stride) in enumerate(zip(expected.type.sizes, expected.type.strides)):
            if type(size) is int:
                load(start + where.sizes + WORD * axis, base, decides=True)
            if type(stride) is int:
                load(start + where.strides + WORD * axis, base, decides=True)
    else:
        outside = places.follow(place, where.sizes)
        for index, dim in enumerate((*expected.type.sizes, *expected.type.strides)):
            if type(dim) is int:
                places.word(outside, WORD * index, decides=True)
    grad = places.table.call(where.requires_grad, slot, mask=_BYTE)
    if bool(grad & _BYTE) is not expected.requires_grad:
        raise NotNative


def _alias(places: Places, guard: Guard, groups: tuple[tuple[int, ...], ...]) -> None:
    """One disjoint row a pair of tensors, or one row for many; tensors that overlap are left to Python."""
    if any(len(group) > 1 for group in groups):
        raise NotNative
    numbers = [number for (number,) in groups if places.found[number].numel()]
    if len(numbers) > _FEW_TENSORS:
        _all_apart(places, numbers)
        return
    spans = []
    for number in numbers:
        start, end = extent(places.found[number])
        spans.append((first_byte(places, number), end - start))
    for index, (first, first_size) in enumerate(spans):
        for second, second_size in spans[index + 1 :]:
            places.table.disjoint(first, first_size, second, second_size)


def _all_apart(places: Places, numbers: Sequence[int]) -> None:
    where, spans = places.tensors, []
    if where is None:
        raise NotNative
    for number in numbers:
        tensor = places.found[number]
        places.type_of(number)
        place, slot = impl(places, number)
        places.word(place, where.keys)
        places.word(place, where.storage_offset)
        start, end = extent(tensor)
        offset = tensor.storage_offset() * tensor.element_size()
        is_fixed = place.is_fixed
        spans.append((
            ZERO if is_fixed else slot, place.address if is_fixed else 0, offset, end - start))
    places.table.spans(where.storage, where.data, spans)


_FEW_TENSORS = 8
_MOST_PAIRS = 4096


# ---------------------------------------------------------------------------- code and containers
def _code(places: Places, guard: Guard, expected: str) -> None:
    function = places.found[guard.source]
    places.type_of(guard.source)
    places.table.holds.append(function.__code__)
    if places.word(places.at(guard.source), places.layout.code) != id(function.__code__):
        raise NotNative


def _keys_of(places: Places, guard: Guard, expected: Any) -> None:
    """absent or contains: the version of a dict, the table of a set, nothing for a frozenset."""
    if places.is_usual_dict(guard.source):
        return
    places.type_of(guard.source)
    if issubclass(type(places.found[guard.source]), (set, frozenset)):
        _set(places, guard, expected)
    else:
        places.version(guard.source)


def _absent(places: Places, guard: Guard, expected: Any) -> None:
    """As `_keys_of`; or the object whose `__dict__` it is has nothing of its own at all."""
    if places.where[guard.source] is None:
        places.bare(guard.source)
    else:
        _keys_of(places, guard, expected)


def _keys(places: Places, guard: Guard, expected: Any) -> None:
    places.type_of(guard.source)
    dict_order(places, guard.source)


def _length(places: Places, guard: Guard, expected: int) -> None:
    if not places.is_usual_dict(guard.source):
        places.type_of(guard.source)
        length(places, guard.source)


def _set(places: Places, guard: Guard, expected: Any) -> None:
    """A set has no version: its table and every element's pointer in it."""
    place, layout = places.at(guard.source), places.layout
    if not (place.is_fixed and places.is_held[guard.source]):
        raise NotNative
    places.type_of(guard.source)
    value = places.found[guard.source]
    if issubclass(type(value), frozenset):
        return
    if not set.__len__(value):
        places.word(place, layout.set_used)
        return
    last = places.word(place, layout.set_mask)
    if places.word(place, layout.set_used) > _LARGEST_SET or last > 8 * _LARGEST_SET:
        raise NotNative
    places.table.holds.extend(set.__iter__(value))
    table = Place(ZERO, places.word(place, layout.set_table))
    for index in range(last + 1):
        places.word(table, 2 * WORD * index)


_LARGEST_SET = 64


# ---------------------------------------------------------------------------- classes
def _class(places: Places, guard: Guard, expected: Any) -> None:
    places.type_version(places.fixed(guard.source))


def _no_attribute(places: Places, guard: Guard, name: str) -> None:
    """The type has none, and a type has none of its own; or the type's slot for it is empty."""
    cls = places.type_of(guard.source)
    places.type_version(cls)
    if issubclass(cls, type):
        places.type_version(places.fixed(guard.source))
    descriptor = raw_attribute(cls, name)
    if descriptor is None:
        return
    if type(descriptor) is not types.MemberDescriptorType:
        raise NotNative
    if places.word(places.at(guard.source), member_offset(descriptor, places.layout)) != 0:
        raise NotNative


_CHECKS = ("__instancecheck__", "__subclasscheck__")
# Modules whose `__subclasshook__`s look at nothing but the methods along the MRO.
_METHOD_HOOKS = (_collections_abc.__name__, os.__name__, contextlib.__name__)


def _isinstance(places: Places, guard: Guard, expected: tuple) -> None:
    """Types, their versions, the number of ABC registrations; hooks of the user go to Python."""
    cls = places.type_of(guard.source)
    if raw_attribute(cls, "__class__") is not object.__dict__["__class__"]:
        raise NotNative
    _subclass(places, cls, expected)


def _issubclass(places: Places, guard: Guard, expected: tuple) -> None:
    places.type_of(guard.source)
    if not issubclass(type(places.found[guard.source]), type):
        raise NotNative
    _subclass(places, places.fixed(guard.source), expected)


def _subclass(places: Places, cls: type, expected: tuple) -> None:
    places.type_version(cls)
    wanted = expected[0] if isinstance(expected[0], tuple) else (expected[0],)
    for base in wanted:
        if base is cls:
            continue
        is_abstract = issubclass(type(base), abc.ABCMeta)
        if not issubclass(type(base), type) or not _has_plain_hook(base):
            raise NotNative
        ordinary = (abc.ABCMeta if is_abstract else type).__dict__
        if any(raw_attribute(type(base), name) is not ordinary[name] for name in _CHECKS):
            raise NotNative
        places.type_version(base)
        places.type_version(type(base))
        if is_abstract:
            places.word(Place(ZERO, 0), places.layout.abc_token)


def _has_plain_hook(base: type) -> bool:
    hook = raw_attribute(base, "__subclasshook__")
    if hook is object.__dict__["__subclasshook__"]:
        return True
    function = getattr(hook, "__func__", None)
    return type(function) is types.FunctionType and function.__module__ in _METHOD_HOOKS


CLAIM_ROWS: Mapping[str, Callable[[Places, Guard, Any], None]] = types.MappingProxyType({
    "type": _type, "is": _is, "isnot": _is_not, "value": _value, "tensor": _tensor, "code": _code,
    "absent": _absent, "contains": _keys_of, "keys": _keys, "len": _length, "set": _set,
    "noattr": _no_attribute, "class": _class, "mro": _class, "isinstance": _isinstance,
    "issubclass": _issubclass,
    "alias": _alias, "distinct": _distinct, "ambient": _ambient,
})
# The rows of these follow from the source alone, not from what is expected of it.
_BY_SOURCE = frozenset((_type, _code, _absent, _keys_of, _keys, _length, _set, _class))
