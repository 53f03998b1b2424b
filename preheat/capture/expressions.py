"""Instructions that call, make functions, compute and format.

    CALL 2, CALL_FUNCTION_EX, MAKE_FUNCTION, BINARY_OP +, COMPARE_OP <, BINARY_SUBSCR, FORMAT_VALUE

The work is done by `calls.py` and `operations.py`; here operands come off the stack and results go
on it.
"""

import operator
import types
from types import CellType, FunctionType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import calls, items, operations, texts
from preheat.capture.bytecode import NULL_FIRST
from preheat.capture.containers import elements, is_iterable
from preheat.capture.frames import NULL, RETURN, Frame, and_then
from preheat.capture.handlers import discard, handles, push, push_negated, settle
from preheat.capture.lists import is_taken_by_c


# ----------------------------------------------------------------------------------------- calls
@handles("CALL")
def call(m, frame, count):
    stack = frame.stack
    args = stack[-count:] if count else []
    if NULL_FIRST:
        function, first = stack[-count - 2], stack[-count - 1]
        if function is NULL:
            function = first
        else:
            args.insert(0, first)
    else:
        function, first = stack[-count - 2], stack[-count - 1]
        if first is not NULL:
            args.insert(0, first)
    value = calls.invoke(m, function, args)
    frame.drop = count + 2
    if type(value) is Frame:
        frame.deliver = push
        return value
    del stack[-count - 2 :]
    stack.append(value)


@handles("CALL_KEYWORDS")
def call_keywords(m, frame, argument):
    count, names = argument
    return call_with_names(m, frame, count, names, count + 2)


@handles("CALL_KW")
def call_kw(m, frame, count):
    return call_with_names(m, frame, count, frame.stack[-1], count + 3)


def call_with_names(m, frame: Frame, count: int, names: tuple, drop: int) -> Any:
    """A call whose last arguments are keywords `names`; what lies above them goes with them."""
    below = frame.stack[-drop:][: count + 2]
    args = below[2:]
    function, first = below[:2]
    kwargs = dict(zip(names, args[count - len(names) :]))
    del args[count - len(names) :]
    if NULL_FIRST and function is NULL:
        function = first
    elif first is not NULL:
        args.insert(0, first)
    return settle(m, frame, calls.invoke(m, function, args, kwargs), drop)


@handles("CALL_FUNCTION_EX")
def call_function_ex(m, frame, flags):
    stack, extra = frame.stack, flags & 1
    kwargs = stack[-1] if extra else {}
    args, function = stack[-1 - extra], stack[-2 - extra] if NULL_FIRST else stack[-3 - extra]
    if type(args) is not tuple:
        if not is_iterable(m, args):
            raise TypeError(
                f"{calls.function_text(function)} argument after * must be an iterable, "
                f"not {type(args).__name__}"
            )
        args = operations.operate(m, tuple, args) if is_taken_by_c(m, args) else tuple(elements(m, args))
        stack[-1 - extra] = args
    if identity(args) in m.known and m.observer.is_moving(args):
        return settle(m, frame, calls.spread(m, function, (), args, dict(kwargs)), 3 + extra)
    if m.read_whole is not None and identity(args) in m.known:
        m.read_whole(args)
    return settle(m, frame, calls.invoke(m, function, args, dict(kwargs)), 3 + extra)


@handles("RETURN_VALUE")
def return_value(m, frame, _):
    return RETURN


@handles("RETURN_CONST")
def return_const(m, frame, value):
    frame.stack.append(value)
    return RETURN


@handles("MAKE_FUNCTION")
def make_function(m, frame, flags):
    stack = frame.stack
    code = stack.pop()
    flags = flags or 0
    closure = stack.pop() if flags & 8 else None
    annotations = stack.pop() if flags & 4 else None
    keyword_defaults = stack.pop() if flags & 2 else None
    defaults = stack.pop() if flags & 1 else None
    function = new_function(frame, code, defaults, closure)
    if keyword_defaults is not None:
        function.__kwdefaults__ = keyword_defaults
    if annotations is not None:
        set_annotations(function, annotations)
    if m.born is not None:
        m.born(function, "function")
    stack.append(function)


def new_function(
    frame: Frame, code: types.CodeType, defaults: tuple | None, closure: tuple | None
) -> FunctionType:
    function = FunctionType(
        code, frame.globals, None, defaults, closure or tuple(CellType() for _ in code.co_freevars)
    )
    function.__qualname__ = code.co_qualname
    function.__module__ = frame.globals.get("__name__")
    return function


def set_annotations(function: FunctionType, annotations: Any) -> None:
    if type(annotations) is tuple:
        annotations = dict(zip(annotations[::2], annotations[1::2]))
    function.__annotations__ = annotations


@handles("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(m, frame, flag):
    function, value = frame.stack.pop(), frame.stack[-1]
    if flag == 8:
        made = new_function(frame, function.__code__, function.__defaults__, value)
        made.__kwdefaults__ = function.__kwdefaults__
        if function.__annotations__:
            made.__annotations__ = function.__annotations__
        function = made
        if m.born is not None:
            m.born(function, "function")
    elif flag == 1:
        function.__defaults__ = value
    elif flag == 2:
        function.__kwdefaults__ = value
    else:
        set_annotations(function, value)
    frame.stack[-1] = function


@handles("LOAD_BUILD_CLASS")
def load_build_class(m, frame, _):
    frame.stack.append(frame.builtins["__build_class__"])


# ------------------------------------------------------------------------------------ operators
@handles("BINARY_OP")
def binary_op(m, frame, function):
    stack = frame.stack
    value = operations.binary(m, function, stack[-2], stack[-1])
    if type(value) is Frame:
        frame.drop, frame.deliver = 2, push
        return value
    stack.pop()
    stack[-1] = value


@handles("UNARY_NEGATIVE")
def unary_negative(m, frame, _):
    return settle(m, frame, operations.unary(m, operator.neg, frame.stack[-1]), 1)


@handles("UNARY_POSITIVE")
def unary_positive(m, frame, _):
    return settle(m, frame, operations.unary(m, operator.pos, frame.stack[-1]), 1)


@handles("UNARY_INVERT")
def unary_invert(m, frame, _):
    return settle(m, frame, operations.unary(m, operator.invert, frame.stack[-1]), 1)


@handles("UNARY_NOT")
def unary_not(m, frame, _):
    return settle(m, frame, operations.truth(m, frame.stack[-1]), 1, push_negated)


@handles("TO_BOOL")
def to_bool(m, frame, _):
    return settle(m, frame, operations.truth(m, frame.stack[-1]), 1)


@handles("COMPARE_OP")
def compare_op(m, frame, function):
    stack = frame.stack
    value = operations.compare(m, function, stack[-2], stack[-1])
    if type(value) is Frame:
        frame.drop, frame.deliver = 2, push
        return value
    stack.pop()
    stack[-1] = value


@handles("COMPARE_BOOL")
def compare_bool(m, frame, function):
    value = operations.compare(m, function, frame.stack[-2], frame.stack[-1])
    return settle(m, frame, and_then(value, operations.truth_of, None, None, m), 2)


@handles("IS_OP")
def is_op(m, frame, negated):
    stack = frame.stack
    answer = operations.is_same(m, stack[-2], stack[-1])
    if m.test_identity is not None:
        m.test_identity(stack[-2], stack[-1], answer)
    stack.pop()
    stack[-1] = answer is not bool(negated)


@handles("CONTAINS_OP")
def contains_op(m, frame, negated):
    value = items.contains(m, frame.stack[-1], frame.stack[-2])
    return settle(m, frame, value, 2, push_negated if negated else push)


@handles("BINARY_SUBSCR")
def binary_subscr(m, frame, _):
    stack = frame.stack
    value = items.subscript(m, stack[-2], stack[-1])
    if type(value) is Frame:
        frame.drop, frame.deliver = 2, push
        return value
    stack.pop()
    stack[-1] = value


@handles("BINARY_SLICE")
def binary_slice(m, frame, _):
    container, start, stop = frame.stack[-3:]
    return settle(m, frame, items.subscript(m, container, slice(start, stop)), 3)


@handles("STORE_SUBSCR")
def store_subscr(m, frame, _):
    value, container, key = frame.stack[-3:]
    return settle(m, frame, items.store_item(m, container, key, value), 3, discard)


@handles("STORE_SLICE")
def store_slice(m, frame, _):
    value, container, start, stop = frame.stack[-4:]
    return settle(
        m, frame, items.store_item(m, container, slice(start, stop), value), 4, discard
    )


@handles("DELETE_SUBSCR")
def delete_subscr(m, frame, _):
    container, key = frame.stack[-2:]
    return settle(m, frame, items.delete_item(m, container, key), 2, discard)


@handles("GET_LEN")
def get_len(m, frame, _):
    return settle(m, frame, operations.length(m, frame.stack[-1]), 0)


# -------------------------------------------------------------------------------------- strings
@handles("FORMAT_VALUE")
def format_value(m, frame, flags):
    has_spec = bool(flags & 4)
    spec = frame.stack[-1] if has_spec else ""
    value = frame.stack[-1 - has_spec]
    converted = texts.convert(m, CONVERSIONS[flags & 3], value)
    return settle(
        m, frame, and_then(converted, format_with, None, spec, m), 1 + has_spec
    )


CONVERSIONS = (None, str, repr, ascii)


def format_with(m, spec: str, value: Any) -> Any:
    return texts.format_value(m, value, spec)


@handles("CONVERT_VALUE")
def convert_value(m, frame, kind):
    return settle(m, frame, texts.convert(m, CONVERSIONS[kind], frame.stack[-1]), 1)


@handles("FORMAT_SIMPLE")
def format_simple(m, frame, _):
    return settle(m, frame, texts.format_value(m, frame.stack[-1], ""), 1)


@handles("FORMAT_WITH_SPEC")
def format_with_spec(m, frame, _):
    value, spec = frame.stack[-2:]
    return settle(m, frame, texts.format_value(m, value, spec), 2)
