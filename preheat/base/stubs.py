"""Stubs: frame objects that tracebacks show for functions which never ran in one.

    entry(None, forward, 14, 31)    ->  a traceback: File "model.py", line 31, in forward

The frame object belongs to a stub code object with the file, name, lines and columns of the
function's code (jinja2's method): that of a generator which never starts. The entry's tb_lineno is
right; the frame's f_lineno is the function's first line, its f_back is None and its f_locals are
empty. `function_of` finds the function again: the frame refers to the stub, the stub to it.
"""

import functools
import gc
import inspect
import opcode
import types

_FLAGS = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS | inspect.CO_GENERATOR
_UNSTARTED = bytes(
    part for name in ("RETURN_GENERATOR", "POP_TOP", "RESUME") for part in (opcode.opmap[name], 0)
)


def entry(
    following: types.TracebackType | None, function: types.FunctionType, offset: int, line: int,
) -> types.TracebackType:
    """The instruction of `function` at the byte `offset`, in front of the entries `following`."""
    stub = types.FunctionType(_stub_code(function.__code__), function.__globals__)
    stub.__wrapped__ = function
    return types.TracebackType(following, stub().gi_frame, offset, line)


def function_of(shown: types.TracebackType) -> types.FunctionType | None:
    """The function that an entry of ours shows, or None for any other entry."""
    code = shown.tb_frame.f_code
    for part in gc.get_referents(shown.tb_frame):
        if type(part) is types.FunctionType and part.__code__ is code:
            return getattr(part, "__wrapped__", None)
    return None


@functools.lru_cache(maxsize=4096)
def _stub_code(code: types.CodeType) -> types.CodeType:
    """A generator's code that never runs, with the file, name and lines of `code`."""
    rest = bytes((opcode.opmap["NOP"], 0)) * ((len(code.co_code) - len(_UNSTARTED)) // 2)
    return code.replace(
        co_code=_UNSTARTED + rest,
        co_flags=_FLAGS,
        co_argcount=0,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_cellvars=(),
        co_freevars=(),
        co_exceptiontable=b"",
    )
