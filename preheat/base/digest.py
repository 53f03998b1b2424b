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
    return hashlib.blake2b(_code_text(code).encode(), digest_size=16).hexdigest()


def _code_text(code: types.CodeType) -> str:
    """What counts of `code`, as text that no other code has: `repr` does most of it at once."""
    head = repr((
        code.co_code, getattr(code, "co_exceptiontable", b""), code.co_argcount,
        code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_stacksize,
        code.co_name, code.co_qualname, code.co_names, code.co_varnames, code.co_cellvars,
        code.co_freevars,
    ))
    return f"code[{head}{_text(code.co_consts)}]"


def _text(value: object) -> str:
    """A constant with its type; floats by their bits."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is types.CodeType:
        return _code_text(value)
    if kind is tuple:
        return f"({','.join(map(_text, value))})"
    if kind is frozenset:
        return f"frozenset[{','.join(sorted(map(_text, value)))}]"
    if kind is float:
        return f"float {struct.pack('<d', value).hex()}"
    if kind is complex:
        return f"complex {struct.pack('<dd', value.real, value.imag).hex()}"
    return f"{kind.__name__} {value!r}"  # Ellipsis: the compiler makes no other constants


# Types whose `repr` no value of another type here has, and each value of its own.
_PLAIN = frozenset((type(None), bool, int, str, bytes))
