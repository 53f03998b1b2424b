"""Digests of Python code: equal exactly if two code objects do the same on the same globals.

    code_digest(f.__code__)  -> "9c1f...", 32 hex digits

Counts: bytecode, constants with their types and bits (0.0 is not -0.0, 1 is not True), every name,
the flags, argument counts, the exception table, nested code. Does not count: file, line numbers, so
a comment added above a function keeps its digest. Digests are of one minor version of Python.
"""

import functools
import hashlib
import struct
import types


@functools.lru_cache(maxsize=8192)
def code_digest(code: types.CodeType) -> str:
    """The digest of `code`. Cached: code objects are immutable and compare by content and types."""
    seen = hashlib.blake2b(digest_size=16)
    _feed_code(seen, code)
    return seen.hexdigest()


def _feed_code(seen, code: types.CodeType) -> None:
    _feed(seen, b"code", code.co_code)
    _feed(seen, b"exceptions", getattr(code, "co_exceptiontable", b""))
    counts = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_stacksize,
    )
    _feed(seen, b"counts", repr(counts).encode())
    for kind, names in (
        (b"name", (code.co_name, code.co_qualname)), (b"names", code.co_names),
        (b"locals", code.co_varnames), (b"cells", code.co_cellvars), (b"free", code.co_freevars),
    ):
        _feed_constant(seen, names)
        seen.update(kind)
    _feed_constant(seen, code.co_consts)


def _feed_constant(seen, value: object) -> None:
    kind = type(value)
    if kind is types.CodeType:
        _feed_code(seen, value)
    elif kind is tuple:
        _feed(seen, b"tuple", str(len(value)).encode())
        for item in value:
            _feed_constant(seen, item)
    elif kind is frozenset:
        _feed(seen, b"frozenset", str(len(value)).encode())
        for item in sorted(_constant_digest(item) for item in value):
            seen.update(item)
    elif kind is float:
        _feed(seen, b"float", struct.pack("<d", value))
    elif kind is complex:
        _feed(seen, b"complex", struct.pack("<dd", value.real, value.imag))
    elif kind is bytes:
        _feed(seen, b"bytes", value)
    elif kind is str:
        _feed(seen, b"str", value.encode("utf-8", "surrogatepass"))
    else:  # None, True, 12, ...: the compiler makes no other constants
        _feed(seen, kind.__name__.encode(), repr(value).encode())


def _constant_digest(value: object) -> bytes:
    seen = hashlib.blake2b(digest_size=16)
    _feed_constant(seen, value)
    return seen.digest()


def _feed(seen, kind: bytes, data: bytes) -> None:
    """Kind and length go first, so that no two sequences of parts give the same bytes."""
    seen.update(kind + b"%d:" % len(data) + data)
