"""Instructions of statements: try, raise, with, match, import, and CPython's intrinsics.

    PUSH_EXC_INFO, CHECK_EXC_MATCH, RERAISE, BEFORE_WITH, MATCH_CLASS, IMPORT_NAME, CALL_INTRINSIC_1

`m.handled` is the chain of exceptions being handled; `machine.py` does the unwinding.
"""

import operator
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import attributes, calls, imports, operations, polyfills
from preheat.capture.containers import tuple_of
from preheat.capture.frames import NULL, Frame, and_then
from preheat.capture.handlers import discard, handles, settle
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is, traceback_of


# ------------------------------------------------------------------------------------ exceptions
@handles("PUSH_EXC_INFO")
def push_exc_info(m, frame, _):
    error = frame.stack[-1]
    frame.stack[-1:] = m.handled.error, error
    m.handled.error = error


@handles("POP_EXCEPT")
def pop_except(m, frame, _):
    m.handled.error = frame.stack.pop()


@handles("CHECK_EXC_MATCH")
def check_exc_match(m, frame, _):
    error, wanted = frame.stack[-2:]
    for cls in wanted if type(wanted) is tuple else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
    frame.stack[-1] = any(
        cls in type(error).__mro__ for cls in (wanted if type(wanted) is tuple else (wanted,))
    )


@handles("CHECK_EG_MATCH")
def check_eg_match(m, frame, _):
    error, wanted = frame.stack[-2:]
    rest, match = split_group(error, wanted)
    if match is not None:
        m.handled.error = match
    frame.stack[-2:] = rest, match


def split_group(error: BaseException, wanted: Any) -> tuple:
    """(rest, match) of `except* wanted`, as CPython's `exception_group_match`."""
    for cls in wanted if type(wanted) is tuple else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
        if issubclass(cls, BaseExceptionGroup):
            raise TypeError(
                "catching ExceptionGroup with except* is not allowed. Use except instead."
            )
    if isinstance(error, wanted):
        if isinstance(error, BaseExceptionGroup):
            return None, error
        group = ExceptionGroup if isinstance(error, Exception) else BaseExceptionGroup
        match = group("", (error,))
        match.__traceback__ = error.__traceback__
        return None, match
    if isinstance(error, BaseExceptionGroup):
        match, rest = error.split(wanted)
        return rest, match
    return error, None


@handles("PREP_RERAISE_STAR", "CALL_INTRINSIC_2 1")
def prep_reraise_star(m, frame, _):
    original, raised = frame.stack[-2:]
    frame.stack[-2:] = [exceptions_to_reraise(original, raised)]


def exceptions_to_reraise(original: BaseException, raised: list) -> BaseException | None:
    """What an `except*` statement raises in the end: CPython's `_PyExc_PrepReraiseStar`."""
    raised = [error for error in raised if error is not None]
    if not raised:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return raised[0]
    fresh, same = [], []
    for error in raised:
        (same if error is original or is_part(error, original) else fresh).append(error)
    leaves = {identity(leaf) for error in same for leaf in leaves_of(error)}
    again = original.subgroup(lambda leaf: identity(leaf) in leaves) if same else None
    if not fresh:
        return again
    if again is not None:
        fresh.append(again)
    return BaseExceptionGroup("", fresh) if len(fresh) > 1 else fresh[0]


def is_part(error: BaseException, original: BaseExceptionGroup) -> bool:
    """`error` is a piece of `original` that was raised again, not a new exception."""
    return (
        isinstance(error, BaseExceptionGroup)
        and error.__traceback__ is original.__traceback__
        and error.__cause__ is original.__cause__
        and error.__context__ is original.__context__
    )


def leaves_of(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves_of(part)]
    return [error]


@handles("RERAISE")
def reraise(m, frame, _):
    m.is_reraise = True
    raise_as_is(frame.stack[-1])


@handles("RAISE_VARARGS")
def raise_varargs(m, frame, count):
    if count == 0:
        error = m.handled.current()
        if error is None:
            raise RuntimeError("No active exception to reraise")
        m.is_reraise = True
        raise_as_is(error)
    error = frame.stack[-count]
    if isinstance(error, type) and issubclass(error, BaseException):
        made = calls.invoke(m, error, ())
    else:
        made = error
    state = (frame.stack[-1] if count == 2 else NULL, error)
    return settle(m, frame, and_then(made, raise_made, None, state, m), count)


def raise_made(m, state: tuple, error: Any) -> Any:
    """Raises `error` with the cause of the statement."""
    cause, given = state
    if not isinstance(error, BaseException):
        if isinstance(given, type) and issubclass(given, BaseException):
            raise TypeError(
                f"calling {given!r} should have returned an instance of BaseException, "
                f"not {type(error)!r}"
            )
        raise TypeError("exceptions must derive from BaseException")
    if cause is not NULL:
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = m.call(cause)
            if not isinstance(cause, BaseException):
                raise TypeError(
                    f"calling {state[0]!r} should have returned an instance of BaseException, "
                    f"not {type(cause)!r}"
                )
        elif cause is not None and not isinstance(cause, BaseException):
            raise TypeError("exception causes must derive from BaseException")
        error.__cause__ = cause
    m.raise_fresh(error)


@handles("WITH_EXCEPT_START")
def with_except_start(m, frame, _):
    error, leave = frame.stack[-1], frame.stack[-4]
    found = traceback_of(m, error)
    value = calls.invoke(m, leave, (type(error), error, found))
    return settle(m, frame, value, 0)


@handles("BEFORE_WITH")
def before_with(m, frame, _):
    manager = frame.stack[-1]
    cls = type(manager)
    enter, leave = m.lookup(manager, cls, "__enter__"), m.lookup(manager, cls, "__exit__")
    if enter is ABSENT or leave is ABSENT:
        missed = "" if enter is ABSENT else " (missed __exit__ method)"
        raise TypeError(
            f"'{cls.__name__}' object does not support the context manager protocol{missed}"
        )
    leave = bind_dunder(m, leave, manager, cls)
    value = operations.call_dunder(m, enter, manager)
    frame.drop = 1
    if type(value) is Frame:
        value.then = [(with_exit, None, leave), *(value.then or [])]
        frame.deliver = push_entered
        return value
    return push_entered(m, frame, (leave, value))


def with_exit(m, leave: Any, value: Any) -> tuple:
    return leave, value


def push_entered(m, frame: Frame, pair: tuple) -> None:
    frame.stack[-1:] = pair


def bind_dunder(m, raw: Any, owner: Any, cls: type) -> Any:
    """A special method bound to `owner`."""
    if type(raw) is FunctionType:
        return MethodType(raw, owner)
    getter = m.lookup(raw, type(raw), "__get__")
    if type(getter) is FunctionType:
        return m.call(getter, (raw, owner, cls))
    return raw if getter is ABSENT else raw.__get__(owner, cls)


@handles("LOAD_ASSERTION_ERROR")
def load_assertion_error(m, frame, _):
    frame.stack.append(AssertionError)


# ----------------------------------------------------------------------------- match statements
@handles("MATCH_MAPPING")
def match_mapping(m, frame, _):
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & 1 << 6))  # Py_TPFLAGS_MAPPING


@handles("MATCH_SEQUENCE")
def match_sequence(m, frame, _):
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & 1 << 5))  # Py_TPFLAGS_SEQUENCE


@handles("MATCH_KEYS")
def match_keys(m, frame, _):
    subject, keys = frame.stack[-2:]
    frame.stack.append(m.call(polyfills.values_of_keys, (subject, keys)))


@handles("MATCH_CLASS")
def match_class(m, frame, count):
    subject, cls, names = frame.stack[-3:]
    if not isinstance(cls, type):
        raise TypeError("called match pattern must be a class")
    attributes_found = m.call(polyfills.match_class, (subject, cls, count, names))
    frame.stack[-3:] = [attributes_found]


# ----------------------------------------------------------------------- imports and intrinsics
@handles("PRINT_EXPR")
def print_expression(m, frame, _):
    return settle(m, frame, calls.invoke(m, sys.displayhook, (frame.stack[-1],)), 1, discard)


def print_intrinsic(m, frame: Frame, value: Any) -> Any:
    return calls.invoke(m, sys.displayhook, (value,))


@handles("IMPORT_NAME")
def import_name(m, frame, name):
    level, names = frame.stack[-2:]
    importer = frame.builtins.get("__import__") if type(frame.builtins) is dict else None
    if importer is None:
        raise ImportError("__import__ not found")
    space = frame.names if frame.names is not None else None
    module = calls.invoke(m, importer, (name, frame.globals, space, names, level))
    return settle(m, frame, and_then(module, imported, None, None, m), 2)


def imported(m, _: None, module: Any) -> Any:
    if m.born is not None:
        m.born(module, "module")
    return module


@handles("IMPORT_FROM")
def import_from(m, frame, name):
    place = (frame.stack[-1], name)
    try:
        value = attributes.load(m, frame.stack[-1], name)
    except AttributeError as error:
        value = imports.import_submodule(m, place, error)
    return settle(m, frame, and_then(value, None, imports.import_submodule, place), 0)


@handles("IMPORT_STAR")
def import_star(m, frame, _):
    imports.import_star(m, frame.stack[-1], frame.names)
    frame.stack.pop()


def stop_iteration_error(m, frame: Frame, error: BaseException) -> BaseException:
    """StopIteration escaped from a generator: RuntimeError, with it as cause (3.12)."""
    if not isinstance(error, StopIteration):
        return error
    replaced = RuntimeError("generator raised StopIteration")
    replaced.__cause__ = replaced.__context__ = error
    return replaced


def unary_positive_intrinsic(m, frame: Frame, value: Any) -> Any:
    return operations.unary(m, operator.pos, value)


def list_to_tuple_intrinsic(m, frame: Frame, value: list) -> tuple:
    return tuple_of(m, value)


def import_star_intrinsic(m, frame: Frame, module: Any) -> None:
    imports.import_star(m, module, frame.names)


def intrinsic(number: int, function: Callable) -> None:
    """CALL_INTRINSIC_1 with this number; those of type parameters have none: such code runs
    natively.
    """

    @handles(f"CALL_INTRINSIC_1 {number}")
    def call_intrinsic(m, frame, _):
        return settle(m, frame, function(m, frame, frame.stack[-1]), 1)


intrinsic(1, print_intrinsic)
intrinsic(2, import_star_intrinsic)
intrinsic(3, stop_iteration_error)
intrinsic(5, unary_positive_intrinsic)
intrinsic(6, list_to_tuple_intrinsic)
