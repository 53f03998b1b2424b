"""Tracebacks: exceptions show the program's frames, never the machine's.

    File ".../capture/machine.py", line 201, in execute          File "model.py", line 12, in forward
    File ".../capture/expressions.py", line 98, in binary_op ->    return x / 0
    ZeroDivisionError: division by zero                                   ~~^~~
                                                             ZeroDivisionError: division by zero

Entries of our own files are taken out; for each interpreted frame an entry is put in, whose frame
object is a stub (`base/stubs.py`). Its f_locals are empty: a copy of the locals would keep objects
alive that the program has let go (a batch, after an out-of-memory error).
Requires an exception that was just caught by the machine's loop.
"""

import types

from preheat.base import stubs
from preheat.base.identity import identity
from preheat.capture.bytecode import OWN_FOLDER
from preheat.capture.frames import Frame


def add(error: BaseException, frame: Frame) -> None:
    """Puts the instruction of `frame` on top of the traceback of `error`, which is clean."""
    if frame.code.is_own:
        return
    offset = frame.code.offsets[frame.pc]
    error.__traceback__ = stubs.entry(
        error.__traceback__, frame.function, offset, frame.line())


def clean(error: BaseException) -> None:
    """Takes the entries of our own files out of the traceback of `error`."""
    entry = error.__traceback__
    while entry is not None and is_own(entry):
        entry = entry.tb_next
    first = entry
    while entry is not None:
        following = entry.tb_next
        while following is not None and is_own(following):
            following = following.tb_next
        if following is not entry.tb_next:
            entry.tb_next = following
        entry = following
    error.__traceback__ = first


def is_own(entry: types.TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(OWN_FOLDER)


def traceback_of(m, error: BaseException) -> types.TracebackType | None:
    """`error.__traceback__`, read by an instruction of the program."""
    found = error.__traceback__
    if identity(error) in m.known and m.read_member is not None:
        m.read_member(error, "__traceback__", found)
    return found


def set_context(error: BaseException, context: BaseException) -> None:
    """`error.__context__ = context`, a cycle through `error` cut, as `_PyErr_SetObject` does."""
    if error is context:
        return
    link, slow, moves_slow = context, context, False
    while link.__context__ is not None:
        if link.__context__ is error:
            link.__context__ = None
            break
        link = link.__context__
        if link is slow:
            break
        slow = slow.__context__ if moves_slow else slow
        moves_slow = not moves_slow
    error.__context__ = context


def raise_as_is(error: BaseException) -> None:
    """Raises `error` with the context it has; a plain `raise` inside a native handler would
    replace it.
    """
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
