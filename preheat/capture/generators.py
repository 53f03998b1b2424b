"""Generators: a real generator drives each interpreted frame, so that C code can consume it.

    new_generator(m, frame)    ->  a generator; next(it) runs `frame` up to its next YIELD_VALUE
    hollow(function)           ->  one whose body is filled in later, wherever it stands

send, throw, close, `return value`, `yield from` delegation and half-consumed generators work as in
CPython, since the object is a generator. Differences that remain: `gi_frame`, `gi_code` and
`gi_yieldfrom` are the driver's. A generator may outlive the run; it then goes on unwatched. Source:
CPython `Objects/genobject.c`, `_gen_throw`.

Where an instruction of ours itself advances a generator (a loop, `yield from`, `next`, `send`,
`throw`), only native frames that are known stand in between: the instruction, executed anew on a
generator that was made again in the middle, leads back to where the body stood (`Frame.within`).
"""

import sys
from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import attributes, calls, operations
from preheat.capture.bytecode import VERSION
from preheat.capture.frames import END, Frame, Handled, attempt
from preheat.capture.models import method
from preheat.capture.tracebacks import raise_as_is


class Returned:
    """What an iterator returned when it ended: the value of its StopIteration."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Seat:
    """Where the machine of a generator stands: a generator that is made again gets another one."""

    __slots__ = ("machine",)

    def __init__(self, machine: Any = None):
        self.machine = machine


def new_generator(m, frame: Frame) -> GeneratorType:
    """The generator of a frame that has just reached RETURN_GENERATOR; the frame's locals move to
    it.
    """
    body = Frame(frame.code, frame.function, frame.locals)
    body.pc = frame.pc
    made = drive(Seat(m), body)
    made.__name__, made.__qualname__ = frame.function.__name__, frame.function.__qualname__
    return made


def revive(
    body: Frame, is_started: bool, handled: BaseException | None = None,
) -> GeneratorType:
    """A generator whose body stands where `state` found it; its seat is empty yet."""
    made = drive(Seat(), body, is_started, handled)
    made.__name__, made.__qualname__ = body.function.__name__, body.function.__qualname__
    if is_started:
        next(made)
    return made


def hollow(function: Any, code: Any) -> GeneratorType:
    """A generator that is advanced just now: its body's `within` will say where it stands. The next
    time it is advanced the body goes on there, whatever is sent."""
    return revive(Frame(code, function, []), is_started=True)


def ended(name: str, qualname: str) -> GeneratorType:
    """A generator that has ended."""
    made = (_ for _ in ())
    made.__name__, made.__qualname__ = name, qualname
    made.close()
    return made


def is_ended(value: GeneratorType) -> bool:
    """Whether `value` was a generator of a machine's and has ended: nobody can tell which one."""
    return value.gi_frame is None and value.gi_code is drive.__code__


def body_of(made: GeneratorType) -> Frame:
    """The body of a generator of the machine's that has not ended."""
    return made.gi_frame.f_locals["frame"]


def is_own(value: Any) -> bool:
    """Whether `value` is a generator of a machine's that has not ended."""
    is_driven = type(value) is GeneratorType and value.gi_code is drive.__code__
    return is_driven and value.gi_frame is not None


def let_go(replaced: Iterable[GeneratorType]) -> None:
    """Others go on in the place of these generators: they end without a trace."""
    for made in replaced:
        if is_own(made):
            seat_of(made).machine = None


def state(made: GeneratorType) -> tuple[Frame, bool, BaseException | None] | None:
    """The body of a generator of the machine's, whether it has started, and the exception that it
    handles; None for one that is running, has ended, or is no machine's.
    """
    if not is_own(made) or made.gi_running or body_of(made).within is not None:
        return None
    here = made.gi_frame.f_locals
    is_started = "handled" in here
    return here["frame"], is_started, here["handled"].error if is_started else None


def seat_of(made: GeneratorType) -> Seat:
    """The seat of a generator that has not ended."""
    return made.gi_frame.f_locals["seat"]


def drive(
    seat: Seat, frame: Frame, is_waiting: bool = False, error: BaseException | None = None,
) -> Generator:
    """Runs `frame` from yield to yield; `is_waiting`: it stands at one, and handles `error`."""
    handled = Handled(error, None)
    sent, error, value = None, None, None
    while True:
        if is_waiting:
            is_waiting = False
        else:
            m, innermost = seat.machine, None
            # one that C advances, or that dies after the run, can nowhere be gone on with
            native = 1 if is_advanced_directly(m, sys._getframe()) else -1
            if frame.within is not None:
                within, frame.within = frame.within, None
                innermost, handled.error, error = within.innermost, within.handled, within.error
                within = None
            elif error is None:
                frame.stack.append(sent)
                frame.pc += 1
            handled.below, m.handled, m.has_context = m.handled, handled, None
            m.directs += native
            try:
                value = m.execute(frame, error, innermost)
            finally:
                m.handled, handled.below, innermost = handled.below, None, None
                m.directs -= native
            if not m.take_yield():
                return value
        sent, error = None, None
        while True:
            try:
                sent = yield value
                break
            except BaseException as thrown:
                error = thrown
            if seat.machine is None:
                return None
            if frame.pc not in frame.code.delegations:
                break
            value, error = delegate(seat.machine, frame, error)
            if error is not None or value is END:
                sent = frame.stack.pop() if error is None else None
                break


def is_advanced_directly(m, frame: Any) -> bool:
    """Whether the machine's present instruction advances the generator with the native `frame`, and
    has done nothing else yet."""
    direct, m.direct = m.direct, None
    is_this = type(direct) is GeneratorType and direct.gi_frame is frame
    return is_this and m.delivered != m.instant()


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
        m.frame, frame.back = outside, None


def attribute_or_none(m, owner: Any, name: str) -> Any:
    try:
        return m.finish(attributes.load(m, owner, name))
    except AttributeError:
        return None


def send(m, receiver: Any, value: Any) -> Any:
    """`receiver.send(value)` or `next(receiver)`: what it yields, a Returned, or a frame."""
    if type(receiver) is GeneratorType:
        try:
            return operations.directly(m, receiver, receiver.send, value)
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


@method("send", GeneratorType)
@method("throw", GeneratorType)
@method("close", GeneratorType)
@method("__next__", GeneratorType)
def model_advance(m, function: Any, owner: GeneratorType, args: Any, kwargs: dict) -> Any:
    """A generator that the call has made runs in the machine: no C to be judged in between."""
    if kwargs or not is_own(owner) or identity(owner) in m.known:
        return calls.c_call(m, function, args, kwargs)
    return operations.directly(m, owner, function, *args)


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
