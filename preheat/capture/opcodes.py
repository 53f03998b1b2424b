"""Instructions: one handler for each opcode of CPython 3.11, 3.12 and 3.13.

    @handles("BINARY_OP")
    def binary_op(m, frame, function): ...       peek two operands, operate, pop them, push the result

A handler gets the machine, the frame and the decoded argument. It returns None to go on, the index to
jump to, a Frame to enter (after saying in `frame.deliver` and `frame.drop` how the result is taken), or
RETURN or YIELD. It touches the stack only after everything that can raise or be told is done.
Source: CPython `Python/ceval.c` (3.11), `Python/bytecodes.c` (3.12, 3.13), `Doc/library/dis.rst`.
"""

import operator
import sys
import types
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any

from preheat.capture import attributes, calls, generators, imports, operations, polyfills
from preheat.capture.attributes import Method
from preheat.capture.bytecode import NULL_FIRST, VERSION
from preheat.capture.frames import END, NULL, RETURN, YIELD, Frame, and_then
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is

HANDLERS: dict[str, Callable] = {}


def handles(*names: str) -> Callable:
    """Registers the function below as the handler of opcodes `names`."""

    def register(handler: Callable) -> Callable:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


# ---------------------------------------------------------------------------- delivering results
def push(m, frame: Frame, value: Any) -> None:
    """The result replaces the instruction's operands."""
    if frame.drop:
        del frame.stack[-frame.drop:]
    frame.stack.append(value)


def discard(m, frame: Frame, value: Any) -> None:
    """The operands go, the result is not wanted."""
    del frame.stack[-frame.drop:]


def push_negated(m, frame: Frame, value: bool) -> None:
    push(m, frame, not value)


def settle(m, frame: Frame, value: Any, drop: int, deliver: Callable = push) -> Any:
    """Delivers `value`, or has the loop run the frame that gives it."""
    frame.drop = drop
    if type(value) is Frame:
        frame.deliver = deliver
        return value
    return deliver(m, frame, value)


# ---------------------------------------------------------------------------- locals, constants, the stack
@handles("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(m, frame, index):
    value = frame.locals[index]
    if value is NULL:
        raise UnboundLocalError(
            f"cannot access local variable {frame.code.names[index]!r} where it is not associated with a value"
        )
    frame.stack.append(value)


@handles("LOAD_CLOSURE")
def load_closure(m, frame, index):
    frame.stack.append(frame.locals[index])


@handles("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(m, frame, index):
    frame.stack.append(frame.locals[index])
    frame.locals[index] = NULL


@handles("STORE_FAST")
def store_fast(m, frame, index):
    frame.locals[index] = frame.stack.pop()


@handles("DELETE_FAST")
def delete_fast(m, frame, index):
    if frame.locals[index] is NULL:
        load_fast(m, frame, index)
    frame.locals[index] = NULL


@handles("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(m, frame, pair):
    load_fast(m, frame, pair[0])
    load_fast(m, frame, pair[1])


@handles("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(m, frame, pair):
    frame.locals[pair[0]] = frame.stack.pop()
    frame.stack.append(frame.locals[pair[1]])


@handles("STORE_FAST_STORE_FAST")
def store_fast_store_fast(m, frame, pair):
    frame.locals[pair[0]] = frame.stack.pop()
    frame.locals[pair[1]] = frame.stack.pop()


@handles("LOAD_CONST")
def load_const(m, frame, value):
    frame.stack.append(value)


@handles("POP_TOP", "END_FOR")
def pop_top(m, frame, _):
    frame.stack.pop()


@handles("PUSH_NULL")
def push_null(m, frame, _):
    frame.stack.append(NULL)


@handles("COPY")
def copy(m, frame, depth):
    frame.stack.append(frame.stack[-depth])


@handles("SWAP")
def swap(m, frame, depth):
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


# ---------------------------------------------------------------------------- cells
@handles("MAKE_CELL")
def make_cell(m, frame, index):
    value = frame.locals[index]
    cell = CellType() if value is NULL else CellType(value)
    if m.born is not None:
        m.born(cell, "cell")
    frame.locals[index] = cell


@handles("COPY_FREE_VARS")
def copy_free_vars(m, frame, count):
    frame.locals[-count:] = frame.function.__closure__


@handles("LOAD_DEREF")
def load_deref(m, frame, index):
    cell = frame.locals[index]
    try:
        value = cell.cell_contents
    except ValueError:
        raise unbound(frame, index) from None
    if m.read_cell is not None and id(cell) in m.known:
        m.read_cell(cell, value)
    frame.stack.append(value)


def unbound(frame: Frame, index: int) -> NameError:
    name = frame.code.names[index]
    if name in frame.source.co_freevars:
        return NameError(
            f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
        )
    return UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")


@handles("STORE_DEREF")
def store_deref(m, frame, index):
    cell, value = frame.locals[index], frame.stack[-1]
    if m.write_cell is not None:
        m.write_cell(cell, value)
    cell.cell_contents = value
    frame.stack.pop()


@handles("DELETE_DEREF")
def delete_deref(m, frame, index):
    cell = frame.locals[index]
    try:
        cell.cell_contents
    except ValueError:
        raise unbound(frame, index) from None
    if m.write_cell is not None:
        m.write_cell(cell, ABSENT)
    del cell.cell_contents


@handles("LOAD_CLASSDEREF")
def load_classderef(m, frame, index):
    value = name_in(frame.names, frame.code.names[index])
    if value is ABSENT:
        return load_deref(m, frame, index)
    frame.stack.append(value)


@handles("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(m, frame, index):
    value = name_in(frame.stack[-1], frame.code.names[index])
    if value is ABSENT:
        load_deref(m, frame, index)
        value = frame.stack.pop()
    frame.stack[-1] = value


# ---------------------------------------------------------------------------- names
@handles("LOAD_GLOBAL")
def load_global(m, frame, name):
    frame.stack.append(global_value(m, frame, name))


@handles("LOAD_GLOBAL_NULL")
def load_global_null(m, frame, name):
    value = global_value(m, frame, name)
    frame.stack += (NULL, value) if NULL_FIRST else (value, NULL)


def global_value(m, frame: Frame, name: str) -> Any:
    """The global, or the builtin, of that name."""
    space = frame.globals
    is_told = not frame.code.is_own
    value = space.get(name, ABSENT) if type(space) is dict else name_in(space, name)
    if value is ABSENT:
        if m.miss_global is not None and is_told:
            m.miss_global(space, name)
        space = frame.builtins
        value = name_in(space, name)
        if value is ABSENT:
            raise NameError(f"name {name!r} is not defined", name=name)
    if m.read_global is not None and is_told:
        m.read_global(space, name, value)
    return value


def name_in(space: Any, name: str) -> Any:
    """`space[name]` of a dict or any mapping, or ABSENT."""
    if type(space) is dict:
        return space.get(name, ABSENT)
    try:
        return space[name]
    except KeyError:
        return ABSENT


@handles("STORE_GLOBAL")
def store_global(m, frame, name):
    value = frame.stack[-1]
    if m.write_global is not None:
        m.write_global(frame.globals, name, value)
    frame.globals[name] = value
    frame.stack.pop()


@handles("DELETE_GLOBAL")
def delete_global(m, frame, name):
    if name not in frame.globals:
        raise NameError(f"name {name!r} is not defined", name=name)
    if m.write_global is not None:
        m.write_global(frame.globals, name, ABSENT)
    del frame.globals[name]


@handles("LOAD_NAME")
def load_name(m, frame, name):
    value = name_in(frame.names, name)
    frame.stack.append(global_value(m, frame, name) if value is ABSENT else value)


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(m, frame, name):
    value = name_in(frame.stack[-1], name)
    frame.stack[-1] = global_value(m, frame, name) if value is ABSENT else value


@handles("LOAD_LOCALS")
def load_locals(m, frame, _):
    frame.stack.append(frame.names)


@handles("STORE_NAME")
def store_name(m, frame, name):
    return settle(m, frame, operations.store_item(m, frame.names, name, frame.stack[-1]), 1, discard)


@handles("DELETE_NAME")
def delete_name(m, frame, name):
    try:
        del frame.names[name]
    except KeyError:
        raise NameError(f"name {name!r} is not defined", name=name) from None


@handles("SETUP_ANNOTATIONS")
def setup_annotations(m, frame, _):
    if "__annotations__" not in frame.names:
        frame.names["__annotations__"] = {}


# ---------------------------------------------------------------------------- attributes
@handles("LOAD_ATTR")
def load_attr(m, frame, name):
    value = attributes.load(m, frame.stack[-1], name)
    if type(value) is Frame:
        frame.drop, frame.deliver = 1, push
        return value
    frame.stack[-1] = value


@handles("LOAD_METHOD")
def load_method(m, frame, name):
    return settle(m, frame, attributes.load_method(m, frame.stack[-1], name), 1, push_method)


def push_method(m, frame: Frame, value: Any) -> None:
    """A callable and its first argument, or the callable and NULL, in this version's order."""
    if type(value) is Method:
        frame.stack[-frame.drop:] = value.function, value.owner
    else:
        frame.stack[-frame.drop:] = (NULL, value) if NULL_FIRST else (value, NULL)


@handles("LOAD_SUPER_ATTR")
def load_super_attr(m, frame, name):
    return settle(m, frame, super_attribute(m, frame, name), 3)


@handles("LOAD_SUPER_METHOD")
def load_super_method(m, frame, name):
    return settle(m, frame, super_attribute(m, frame, name), 3, push_method)


def super_attribute(m, frame: Frame, name: str) -> Any:
    function, cls, owner = frame.stack[-3:]
    if function is not super:
        made = calls.invoke(m, function, (cls, owner))
    else:
        made = super(cls, owner)
    return and_then(made, attribute_of, None, name, m)


def attribute_of(m, name: str, owner: Any) -> Any:
    return attributes.load(m, owner, name)


@handles("STORE_ATTR")
def store_attr(m, frame, name):
    stack = frame.stack
    return settle(m, frame, attributes.store(m, stack[-1], name, stack[-2]), 2, discard)


@handles("DELETE_ATTR")
def delete_attr(m, frame, name):
    return settle(m, frame, attributes.delete(m, frame.stack[-1], name), 1, discard)


# ---------------------------------------------------------------------------- calls
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
    del stack[-count - 2:]
    stack.append(value)


@handles("CALL_KEYWORDS")
def call_keywords(m, frame, argument):
    count, names = argument
    return call_with_names(m, frame, count, names, count + 2)


@handles("CALL_KW")
def call_kw(m, frame, count):
    names = frame.stack.pop()
    try:
        return call_with_names(m, frame, count, names, count + 2)
    except BaseException:
        frame.stack.append(names)
        raise


def call_with_names(m, frame: Frame, count: int, names: tuple, drop: int) -> Any:
    """A call whose last arguments are keywords `names`."""
    args = frame.stack[-count:]
    function, first = frame.stack[-count - 2], frame.stack[-count - 1]
    kwargs = dict(zip(names, args[count - len(names):]))
    del args[count - len(names):]
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
                f"{function_text(function)} argument after * must be an iterable, not {type(args).__name__}"
            )
        args = tuple(elements(m, args))
        stack[-1 - extra] = args
    elif m.read_whole is not None and id(args) in m.known:
        m.read_whole(args)
    return settle(m, frame, calls.invoke(m, function, args, dict(kwargs)), 3 + extra)


def function_text(function: Any) -> str:
    """How CPython names a function in errors of a call: `_PyObject_FunctionStr`."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{name}()" if module is None or module == "builtins" else f"{module}.{name}()"


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


def new_function(frame: Frame, code: types.CodeType, defaults: tuple | None, closure: tuple | None) -> FunctionType:
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


# ---------------------------------------------------------------------------- operators
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
    answer = stack[-2] is stack[-1]
    if m.test_identity is not None:
        m.test_identity(stack[-2], stack[-1], answer)
    stack.pop()
    stack[-1] = answer is not bool(negated)


@handles("CONTAINS_OP")
def contains_op(m, frame, negated):
    value = operations.contains(m, frame.stack[-1], frame.stack[-2])
    return settle(m, frame, value, 2, push_negated if negated else push)


@handles("BINARY_SUBSCR")
def binary_subscr(m, frame, _):
    stack = frame.stack
    value = operations.subscript(m, stack[-2], stack[-1])
    if type(value) is Frame:
        frame.drop, frame.deliver = 2, push
        return value
    stack.pop()
    stack[-1] = value


@handles("BINARY_SLICE")
def binary_slice(m, frame, _):
    container, start, stop = frame.stack[-3:]
    return settle(m, frame, operations.subscript(m, container, slice(start, stop)), 3)


@handles("STORE_SUBSCR")
def store_subscr(m, frame, _):
    value, container, key = frame.stack[-3:]
    return settle(m, frame, operations.store_item(m, container, key, value), 3, discard)


@handles("STORE_SLICE")
def store_slice(m, frame, _):
    value, container, start, stop = frame.stack[-4:]
    return settle(m, frame, operations.store_item(m, container, slice(start, stop), value), 4, discard)


@handles("DELETE_SUBSCR")
def delete_subscr(m, frame, _):
    container, key = frame.stack[-2:]
    return settle(m, frame, operations.delete_item(m, container, key), 2, discard)


@handles("GET_LEN")
def get_len(m, frame, _):
    return settle(m, frame, operations.length(m, frame.stack[-1]), 0)


# ---------------------------------------------------------------------------- displays
def display(m, frame: Frame, count: int, make: Callable, kind: str) -> None:
    """The top `count` entries become one new object."""
    stack = frame.stack
    value = make(stack[-count:] if count else ())
    if m.born is not None:
        m.born(value, kind)
    if count:
        del stack[-count:]
    stack.append(value)


@handles("BUILD_TUPLE")
def build_tuple(m, frame, count):
    display(m, frame, count, tuple, "tuple")


@handles("BUILD_LIST")
def build_list(m, frame, count):
    display(m, frame, count, list, "list")


@handles("BUILD_SET")
def build_set(m, frame, count):
    display(m, frame, count, set, "set")


@handles("BUILD_MAP")
def build_map(m, frame, count):
    display(m, frame, 2 * count, pairs_to_dict, "dict")


def pairs_to_dict(parts: Any) -> dict:
    return dict(zip(parts[::2], parts[1::2]))


@handles("BUILD_CONST_KEY_MAP")
def build_const_key_map(m, frame, count):
    keys = frame.stack.pop()
    display(m, frame, count, lambda values: dict(zip(keys, values)), "dict")


@handles("BUILD_STRING")
def build_string(m, frame, count):
    display(m, frame, count, "".join, "string")


@handles("BUILD_SLICE")
def build_slice(m, frame, count):
    display(m, frame, count, lambda parts: slice(*parts), "slice")


@handles("LIST_APPEND")
def list_append(m, frame, depth):
    value = frame.stack.pop()
    frame.stack[-depth].append(value)


@handles("SET_ADD")
def set_add(m, frame, depth):
    frame.stack[-depth - 1].add(frame.stack[-1])
    frame.stack.pop()


@handles("MAP_ADD")
def map_add(m, frame, depth):
    key, value = frame.stack[-2:]
    frame.stack[-depth - 2][key] = value
    del frame.stack[-2:]


def is_iterable(m, value: Any) -> bool:
    cls = type(value)
    return m.lookup(value, cls, "__iter__") not in (ABSENT, None) or (
        m.lookup(value, cls, "__getitem__") is not ABSENT
    )


def elements(m, value: Any) -> Any:
    """An iterable of C over the elements of `value`: Python iterators are run by the machine."""
    cls = type(value)
    if cls in (list, tuple, dict, set, frozenset, str, range):
        if m.read_whole is not None and id(value) in m.known:
            m.read_whole(value)
        return value
    return generators.drive_iterator(m, m.finish(operations.iterate(m, value)))


@handles("LIST_EXTEND")
def list_extend(m, frame, depth):
    value = frame.stack[-1]
    if not is_iterable(m, value):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    frame.stack[-depth - 1].extend(elements(m, value))
    frame.stack.pop()


@handles("SET_UPDATE")
def set_update(m, frame, depth):
    frame.stack[-depth - 1].update(elements(m, frame.stack[-1]))
    frame.stack.pop()


@handles("LIST_TO_TUPLE")
def list_to_tuple(m, frame, _):
    value = tuple(frame.stack[-1])
    if m.born is not None:
        m.born(value, "tuple")
    frame.stack[-1] = value


@handles("DICT_UPDATE")
def dict_update(m, frame, depth):
    value = frame.stack[-1]
    if m.lookup(value, type(value), "keys") is ABSENT and not hasattr(value, "keys"):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    update_from_mapping(m, frame.stack[-depth - 1], value, None)
    frame.stack.pop()


@handles("DICT_MERGE")
def dict_merge(m, frame, depth):
    value, stack = frame.stack[-1], frame.stack
    at = -depth - 3 if NULL_FIRST else -depth - 4
    function = stack[at] if stack[at] is not NULL or not NULL_FIRST else stack[at - 1]
    if m.lookup(value, type(value), "keys") is ABSENT and not hasattr(value, "keys"):
        raise TypeError(
            f"{function_text(function)} argument after ** must be a mapping, not {type(value).__name__}"
        )
    update_from_mapping(m, stack[-depth - 1], value, function)
    stack.pop()


DICT_ITER = dict.__dict__["__iter__"]


def update_from_mapping(m, target: dict, mapping: Any, function: Any) -> None:
    """`target.update(mapping)`; with `function`, for its keywords: no key twice."""
    if issubclass(type(mapping), dict) and m.lookup(mapping, type(mapping), "__iter__") is DICT_ITER:
        if m.read_whole is not None and id(mapping) in m.known:
            m.read_whole(mapping)
        pairs = dict.items(mapping)
    else:
        keys = m.call(m.finish(attributes.load(m, mapping, "keys")))
        pairs = ((key, m.finish(operations.subscript(m, mapping, key))) for key in elements(m, keys))
    for key, value in pairs:
        if function is not None and key in target:
            raise TypeError(f"{function_text(function)} got multiple values for keyword argument '{key}'")
        target[key] = value


@handles("UNPACK_SEQUENCE")
def unpack_sequence(m, frame, count):
    value = frame.stack[-1]
    if type(value) in (tuple, list) and len(value) == count:
        if m.read_whole is not None and id(value) in m.known:
            m.read_whole(value)
        frame.stack[-1:] = value[::-1]
        return
    frame.stack[-1:] = unpack(m, value, count, count)[::-1]


@handles("UNPACK_EX")
def unpack_ex(m, frame, counts):
    before, after = counts & 255, counts >> 8
    found = unpack(m, frame.stack[-1], before + after, -1)
    middle = found[before:len(found) - after]
    if m.born is not None:
        m.born(middle, "list")
    found[before:len(found) - after] = [middle]
    frame.stack[-1:] = found[::-1]


def unpack(m, value: Any, least: int, most: int) -> list:
    """The elements of `value`, at least and at most so many (-1: any number); no more is taken than needed."""
    if not is_iterable(m, value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    found: list = []
    iterator = m.finish(operations.iterate(m, value))
    while most < 0 or len(found) <= most:
        element = m.finish(operations.advance(m, iterator))
        if element is END:
            break
        found.append(element)
    if len(found) < least:
        wanted = f"at least {least}" if most < 0 else f"{least}"
        raise ValueError(f"not enough values to unpack (expected {wanted}, got {len(found)})")
    if 0 <= most < len(found):
        raise ValueError(f"too many values to unpack (expected {most})")
    return found


# ---------------------------------------------------------------------------- strings
@handles("FORMAT_VALUE")
def format_value(m, frame, flags):
    has_spec = bool(flags & 4)
    spec = frame.stack[-1] if has_spec else ""
    value = frame.stack[-1 - has_spec]
    converted = operations.convert(m, CONVERSIONS[flags & 3], value)
    return settle(m, frame, and_then(converted, format_with, None, (spec, flags & 3), m), 1 + has_spec)


CONVERSIONS = (None, str, repr, ascii)


def format_with(m, how: tuple, value: Any) -> Any:
    spec, _ = how
    return operations.format_value(m, value, spec)


@handles("CONVERT_VALUE")
def convert_value(m, frame, kind):
    return settle(m, frame, operations.convert(m, CONVERSIONS[kind], frame.stack[-1]), 1)


@handles("FORMAT_SIMPLE")
def format_simple(m, frame, _):
    return settle(m, frame, operations.format_value(m, frame.stack[-1], ""), 1)


@handles("FORMAT_WITH_SPEC")
def format_with_spec(m, frame, _):
    value, spec = frame.stack[-2:]
    return settle(m, frame, operations.format_value(m, value, spec), 2)


# ---------------------------------------------------------------------------- jumps
@handles("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(m, frame, target):
    return target


@handles("JUMP_BACKWARD")
def jump_backward(m, frame, target):
    if m.loop is not None:
        m.loop(frame)
    return target


def branch(m, frame: Frame, target: int, wanted: bool) -> Any:
    value = operations.truth(m, frame.stack[-1])
    if type(value) is Frame:
        value.then.insert(0, (jump_target, None, (target, wanted)))
        frame.drop, frame.deliver = 1, jump_to
        return value
    frame.stack.pop()
    return target if value is wanted else None


def jump_target(m, branch: tuple, value: bool) -> int:
    target, wanted = branch
    return target if value is wanted else -1


def jump_to(m, frame: Frame, target: int) -> int | None:
    frame.stack.pop()
    return None if target < 0 else target


@handles("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(m, frame, target):
    value = frame.stack[-1]
    if value is True:
        frame.stack.pop()
        return None
    if value is False or value is None:
        frame.stack.pop()
        return target
    return branch(m, frame, target, False)


@handles("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(m, frame, target):
    value = frame.stack[-1]
    if value is True:
        frame.stack.pop()
        return target
    if value is False or value is None:
        frame.stack.pop()
        return None
    return branch(m, frame, target, True)


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(m, frame, target):
    value = frame.stack[-1]
    if m.test_identity is not None:
        m.test_identity(value, None, value is None)
    frame.stack.pop()
    return target if value is None else None


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m, frame, target):
    value = frame.stack[-1]
    if m.test_identity is not None:
        m.test_identity(value, None, value is None)
    frame.stack.pop()
    return None if value is None else target


def looping(handler: Callable) -> Callable:
    """A conditional jump that goes backward: told as a loop when taken."""

    def jump_back(m, frame, target):
        taken = handler(m, frame, target)
        if taken == target and m.loop is not None:
            m.loop(frame)
        return taken

    return jump_back


for condition in ("IF_FALSE", "IF_TRUE", "IF_NONE", "IF_NOT_NONE"):
    HANDLERS[f"POP_JUMP_BACKWARD_{condition}_LOOP"] = looping(HANDLERS[f"POP_JUMP_IF_{condition[3:]}"])


@handles("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(m, frame, target):
    return jump_or_pop(m, frame, target, False)


@handles("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(m, frame, target):
    return jump_or_pop(m, frame, target, True)


def jump_or_pop(m, frame: Frame, target: int, wanted: bool) -> Any:
    value = and_then(operations.truth(m, frame.stack[-1]), jump_target, None, (target, wanted), m)
    if type(value) is Frame:
        frame.deliver = pop_unless_jump
        return value
    return pop_unless_jump(m, frame, value)


def pop_unless_jump(m, frame: Frame, target: int) -> int | None:
    if target < 0:
        frame.stack.pop()
        return None
    return target


# ---------------------------------------------------------------------------- iteration
@handles("GET_ITER")
def get_iter(m, frame, _):
    value = frame.stack[-1]
    raw = m.lookup(value, type(value), "__getitem__")
    if operations.runs_python(raw) and m.lookup(value, type(value), "__iter__") is ABSENT:
        return settle(m, frame, calls.invoke(m, polyfills.iterate_by_index, (value,)), 1)
    return settle(m, frame, operations.iterate(m, value), 1)


@handles("FOR_ITER")
def for_iter(m, frame, target):
    value = operations.advance(m, frame.stack[-1])
    if type(value) is Frame:
        value.then.insert(0, (tag_end, None, target))
        frame.deliver = push_or_end
        return value
    if value is END:
        frame.stack.pop()
        return target
    frame.stack.append(value)


class Ended:
    """The index at which a loop goes on after its iterator ended."""

    __slots__ = ("target",)

    def __init__(self, target: int):
        self.target = target


def tag_end(m, target: int, value: Any) -> Any:
    return Ended(target) if value is END else value


def push_or_end(m, frame: Frame, value: Any) -> int | None:
    if type(value) is Ended:
        frame.stack.pop()
        return value.target
    frame.stack.append(value)
    return None


# ---------------------------------------------------------------------------- generators
@handles("RETURN_GENERATOR")
def return_generator(m, frame, _):
    made = generators.new_generator(m, frame)
    if m.born is not None:
        m.born(made, "generator")
    frame.stack.append(made)
    return RETURN


@handles("YIELD_VALUE")
def yield_value(m, frame, _):
    m.is_yield = True
    return YIELD


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(m, frame, _):
    value = frame.stack[-1]
    if type(value) is types.GeneratorType:
        return None
    return get_iter(m, frame, None)


@handles("SEND")
def send(m, frame, target):
    receiver, value = frame.stack[-2:]
    result = generators.send(m, receiver, value)
    if type(result) is Frame:
        result.then.insert(0, (tag_returned, None, target))
        frame.deliver = push_sent
        return result
    return push_sent(m, frame, tag_returned(m, target, result))


def tag_returned(m, target: int, result: Any) -> Any:
    return (result, target)


def push_sent(m, frame: Frame, outcome: tuple) -> int | None:
    """A yielded value replaces the one sent; a returned one replaces the receiver too (3.11)."""
    result, target = outcome
    if type(result) is generators.Returned:
        if VERSION == (3, 11):
            frame.stack.pop()
        frame.stack[-1] = result.value
        return target
    frame.stack[-1] = result
    return None


@handles("END_SEND")
def end_send(m, frame, _):
    del frame.stack[-2]


@handles("CLEANUP_THROW")
def cleanup_throw(m, frame, _):
    error = frame.stack[-1]
    if isinstance(error, StopIteration):
        frame.stack[-3:] = None, error.value
        return
    m.is_reraise = True
    raise_as_is(error)


# ---------------------------------------------------------------------------- exceptions
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
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
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
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
        if issubclass(cls, BaseExceptionGroup):
            raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
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


@handles("PREP_RERAISE_STAR")
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
    leaves = {id(leaf) for error in same for leaf in leaves_of(error)}
    again = original.subgroup(lambda leaf: id(leaf) in leaves) if same else None
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
                f"calling {given!r} should have returned an instance of BaseException, not {type(error)!r}"
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
    value = calls.invoke(m, leave, (type(error), error, error.__traceback__))
    return settle(m, frame, value, 0)


@handles("BEFORE_WITH")
def before_with(m, frame, _):
    manager = frame.stack[-1]
    cls = type(manager)
    enter, leave = m.lookup(manager, cls, "__enter__"), m.lookup(manager, cls, "__exit__")
    if enter is ABSENT or leave is ABSENT:
        missed = "" if enter is ABSENT else " (missed __exit__ method)"
        raise TypeError(f"'{cls.__name__}' object does not support the context manager protocol{missed}")
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


# ---------------------------------------------------------------------------- match statements
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


# ---------------------------------------------------------------------------- imports and intrinsics
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
    made = tuple(value)
    if m.born is not None:
        m.born(made, "tuple")
    return made


def import_star_intrinsic(m, frame: Frame, module: Any) -> None:
    imports.import_star(m, module, frame.names)


INTRINSICS = {
    1: print_intrinsic,
    2: import_star_intrinsic,
    3: stop_iteration_error,
    5: unary_positive_intrinsic,
    6: list_to_tuple_intrinsic,
}


@handles("CALL_INTRINSIC_1")
def call_intrinsic_1(m, frame, number):
    return settle(m, frame, INTRINSICS[number](m, frame, frame.stack[-1]), 1)


@handles("CALL_INTRINSIC_2")
def call_intrinsic_2(m, frame, number):
    original, raised = frame.stack[-2:]
    frame.stack[-2:] = [exceptions_to_reraise(original, raised)]
