"""Generators: a real generator drives each interpreted frame, so that C code can consume it.

    new_generator(m, frame)    ->  a generator; next(it) runs `frame` up to its next YIELD_VALUE

send, throw, close, `return value`, `yield from` delegation and half-consumed generators work as in
CPython, since the object is a generator. Differences that remain: `gi_frame`, `gi_code` and
`gi_yieldfrom` are the driver's. A generator may outlive the run; it then goes on unwatched. Source:
CPython `Objects/genobject.c`, `_gen_throw`.
"""

from collections.abc import Generator, Iterator
from types import GeneratorType
from typing import Any

from preheat.capture import attributes, operations
from preheat.capture.bytecode import VERSION
from preheat.capture.frames import END, Frame, Handled, attempt
from preheat.capture.tracebacks import raise_as_is


class Returned:
    """What an iterator returned when it ended: the value of its StopIteration."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


def new_generator(m, frame: Frame) -> GeneratorType:
    """The generator of a frame that has just reached RETURN_GENERATOR; the frame's locals move to
    it.
    """
    body = Frame(frame.code, frame.function, frame.locals)
    body.pc = frame.pc
    made = drive(m, body)
    made.__name__, made.__qualname__ = frame.function.__name__, frame.function.__qualname__
    return made


def drive(m, frame: Frame) -> Generator:
    """Runs `frame` from yield to yield."""
    handled = Handled(None, None)
    sent, error = None, None
    while True:
        if error is None:
            frame.stack.append(sent)
            frame.pc += 1
        handled.below, m.handled, m.has_context = m.handled, handled, None
        try:
            value = m.execute(frame, error)
        finally:
            m.handled, handled.below = handled.below, None
        if not m.take_yield():
            return value
        sent, error = None, None
        while True:
            try:
                sent = yield value
                break
            except BaseException as thrown:
                error = thrown
            if frame.pc not in frame.code.delegations:
                break
            value, error = delegate(m, frame, error)
            if error is not None or value is END:
                sent = frame.stack.pop() if error is None else None
                break


def delegate(m, frame: Frame, error: BaseException) -> tuple[Any, BaseException | None]:
    """Throws `error` into the iterator that `frame` delegates to.

    (value, None): it yielded value. (END, None): it returned; the result is on the stack and `pc`
    is set. (None, error): to be raised in `frame`.
    """
    receiver = frame.stack[-1]
    outside, m.frame, frame.back = m.frame, frame, m.frame
    try:
        if isinstance(error, GeneratorExit):
            close = attribute_or_none(m, receiver, "close")
            if close is not None:
                m.call(close)
            return None, error
        throw = attribute_or_none(m, receiver, "throw")
        if throw is None:
            return None, error
        return m.call(throw, (error,)), None
    except StopIteration as stop:
        if VERSION >= (3, 12):
            return None, stop
        frame.stack[-1] = stop.value
        target = frame.code.instructions[frame.pc - 1][1]
        frame.pc = target - 1
        return END, None
    except BaseException as raised:
        return None, raised
    finally:
        m.frame = outside


def attribute_or_none(m, owner: Any, name: str) -> Any:
    try:
        return m.finish(attributes.load(m, owner, name))
    except AttributeError:
        return None


def send(m, receiver: Any, value: Any) -> Any:
    """`receiver.send(value)` or `next(receiver)`: what it yields, a Returned, or a frame."""
    if type(receiver) is GeneratorType:
        try:
            return receiver.send(value)
        except StopIteration as stop:
            return Returned(stop.value)
    if value is None:
        raw = m.lookup(receiver, type(receiver), "__next__")
        if operations.runs_python(raw):
            return attempt(m, stop_is_returned, None, operations.call_dunder, raw, receiver)
        try:
            return operations.operate(m, next, receiver)
        except StopIteration as stop:
            return Returned(stop.value)
    try:
        return m.call(m.finish(attributes.load(m, receiver, "send")), (value,))
    except StopIteration as stop:
        return Returned(stop.value)


def stop_is_returned(m, _: None, error: BaseException) -> Any:
    if isinstance(error, StopIteration):
        return Returned(error.value)
    raise_as_is(error)


def drive_iterator(m, iterator: Any) -> Iterator:
    """An iterator that C code may consume: one with a Python `__next__` is run by the machine."""
    if operations.runs_python(m.lookup(iterator, type(iterator), "__next__")):
        return steps(m, iterator)
    return iterator


def steps(m, iterator: Any) -> Iterator:
    while (value := m.finish(operations.advance(m, iterator))) is not END:
        yield value
