"""Numbers and texts of one's own: ints, floats and strings that no other name leads to.

    copied(7) == 7, copied(7) is not 7, type(copied(7)) is int

CPython keeps the small ints; a copy of one has the same bytes in another object. Nothing in CPython
tells the two apart but `is`. Source: `Objects/longobject.c`, `_PyLong_New`.
"""

import ctypes
import functools
import struct
from collections.abc import Callable


def copied(value: int | float | str) -> int | float | str:
    """An int, float or string equal to `value`, bit by bit, that no other name leads to.

    Where there can be one, see `has_copies`.
    """
    if type(value) is str:
        return _text(value)
    if type(value) is float:
        return struct.unpack("<d", struct.pack("<d", value))[0]
    size = value.bit_length() // 8 + 1
    data = value.to_bytes(size, "little", signed=True)
    made = int.from_bytes(data, "little", signed=True)
    if made is not int.from_bytes(data, "little", signed=True):
        return made
    return _small(value)


def has_copies(value: int | float | str) -> bool:
    """Whether `copied` makes another object: of the empty string there is but one, and so of each
    character from 128 to 255."""
    return type(value) is not str or len(value) > 1 or (bool(value) and value.isascii())


def joined(*parts: str) -> str:
    """What an f-string makes of its parts."""
    return "".join(parts)


def _text(value: str) -> str:
    """Joins give a new string, but for the single characters that CPython keeps: of these, an ASCII
    one is written into a new object."""
    if len(value) != 1 or not value.isascii():
        return "".join((value[:1], value[1:]))
    new = ctypes.pythonapi.PyUnicode_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_ssize_t, ctypes.c_uint32]
    made = new(1, 127)
    ctypes.memset(id(made) + "".__sizeof__() - 1, ord(value), 1)  # behind the header
    return made


def _small(value: int) -> int:
    """A small int beside the one that CPython keeps: its memory copied into a new object."""
    new, header = _new_int()
    made = new(1)
    ctypes.memmove(id(made) + header, id(value) + header, value.__sizeof__() - header)
    return made


@functools.cache
def _new_int() -> tuple[Callable, int]:
    """(makes an int of one digit, its bytes before size, sign and digits)."""
    new = ctypes.pythonapi._PyLong_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_ssize_t]
    return new, object.__basicsize__
