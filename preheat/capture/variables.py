"""Instructions on locals, constants, the stack, cells, names and attributes.

    LOAD_FAST x, LOAD_DEREF n, LOAD_GLOBAL f, STORE_NAME y, LOAD_ATTR weight, LOAD_METHOD forward

Reads of globals, cells and attributes are told after the value is there, writes before they happen.
"""

import contextlib
from types import CellType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import attributes, calls, items
from preheat.capture.attributes import Method
from preheat.capture.bytecode import NULL_FIRST
from preheat.capture.frames import NULL, Frame, and_then, has_content
from preheat.capture.handlers import discard, handles, push, settle
from preheat.capture.observer import ABSENT


# ------------------------------------------------------------------ locals, constants, the stack
@handles("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(m, frame, index):
    value = frame.locals[index]
    if value is NULL:
        raise UnboundLocalError(
            f"cannot access local variable {frame.code.names[index]!r} "
            "where it is not associated with a value"
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


# ---------------------------------------------------------------------------------------- cells
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
        value = NULL
    if value is NULL:  # out of the handler: the error has no other context than in CPython
        raise unbound(frame, index)
    if m.read_cell is not None and identity(cell) in m.known:
        other = m.read_cell(cell, value)
        value = value if other is None else other
    frame.stack.append(value)


def unbound(frame: Frame, index: int) -> NameError:
    name = frame.code.names[index]
    if name in frame.source.co_freevars:
        return NameError(
            f"cannot access free variable {name!r} "
            "where it is not associated with a value in enclosing scope"
        )
    return UnboundLocalError(
        f"cannot access local variable {name!r} where it is not associated with a value"
    )


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
    if not has_content(cell):
        raise unbound(frame, index)
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


# ---------------------------------------------------------------------------------------- names
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
        other = m.read_global(space, name, value)
        return value if other is None else other
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
    return settle(
        m, frame, items.store_item(m, frame.names, name, frame.stack[-1]), 1, discard
    )


@handles("DELETE_NAME")
def delete_name(m, frame, name):
    with contextlib.suppress(KeyError):
        del frame.names[name]
        return
    raise NameError(f"name {name!r} is not defined", name=name)


@handles("SETUP_ANNOTATIONS")
def setup_annotations(m, frame, _):
    if "__annotations__" not in frame.names:
        frame.names["__annotations__"] = {}


# ----------------------------------------------------------------------------------- attributes
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
        frame.stack[-frame.drop :] = value.function, value.owner
    else:
        frame.stack[-frame.drop :] = (NULL, value) if NULL_FIRST else (value, NULL)


@handles("LOAD_SUPER_ATTR")
def load_super_attr(m, frame, argument):
    return settle(m, frame, super_attribute(m, frame, *argument), 3)


@handles("LOAD_SUPER_METHOD")
def load_super_method(m, frame, argument):
    return settle(m, frame, super_attribute(m, frame, *argument), 3, push_method)


def super_attribute(m, frame: Frame, name: str, has_arguments: bool) -> Any:
    """`super().name`, with whatever the name `super` stands for."""
    function, cls, owner = frame.stack[-3:]
    if function is not super:
        made = calls.invoke(m, function, (cls, owner) if has_arguments else ())
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
