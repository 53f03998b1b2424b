"""Where C code keeps what Python reads of an object: members of C structs, items of small dicts.

    member_offset(Point.x, layout())            16: `__slots__` and C types have such descriptors
    is_small_table({"a": 1}, layout())          True: its items can be followed one by one

Requires the offsets of `run/layout`. Source: CPython's `structmember.h` and `Objects/dictobject.c`.
"""

import ctypes
import functools
import types
from typing import Any

from preheat.run.layout import KEYS_COUNT, WORD, Layout, read, word

_OBJECT_MEMBERS = frozenset((6, 16))  # T_OBJECT and T_OBJECT_EX of CPython's structmember.h
_MOST_KEYS = 64


def member_offset(descriptor: types.MemberDescriptorType, where: Layout) -> int | None:
    """Where the object-valued C member of a descriptor lies; None for other members."""
    return None if where.member is None else _member_offset(descriptor, where.member)


@functools.lru_cache(maxsize=256)
def _member_offset(descriptor: types.MemberDescriptorType, member: int) -> int | None:
    definition = word(id(descriptor) + member)
    name = descriptor.__name__.encode() + b"\0"
    if read(word(definition), len(name)) != name:
        return None
    kind = ctypes.c_int.from_address(definition + WORD).value
    return word(definition + 2 * WORD) if kind in _OBJECT_MEMBERS else None


def is_small_table(value: Any, where: Layout) -> bool:
    """Whether a dict's items can be followed: few str keys, values in the table, no holes."""
    if type(value) is not dict or None in (where.dict_used, where.dict_keys, where.dict_values):
        return False
    if not 0 < len(value) <= _MOST_KEYS or any(type(key) is not str for key in value):
        return False
    keys = word(id(value) + where.dict_keys)
    return word(id(value) + where.dict_values) == 0 and word(keys + KEYS_COUNT) == len(value)
