"""Instructions that build and unpack containers.

    BUILD_LIST 3, BUILD_MAP 2, LIST_EXTEND, DICT_MERGE, UNPACK_SEQUENCE 2, UNPACK_EX

Python iterators and mappings among the operands are run by the machine.
"""

import operator
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.base.numbers import joined
from preheat.capture import attributes, calls, generators, items, operations, polyfills
from preheat.capture.bytecode import NULL_FIRST
from preheat.capture.frames import END, NULL, Frame
from preheat.capture.handlers import handles, settle
from preheat.capture.lists import hangs_on_key, is_moving, is_taken_by_c
from preheat.capture.observer import ABSENT


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
    if m.numbers and count:
        operations.look_at(m, *frame.stack[-count:])
    display(m, frame, count, set, "set")


@handles("BUILD_MAP")
def build_map(m, frame, count):
    if m.numbers and count:
        if any(map(m.observer.is_changing_key, frame.stack[-2 * count :: 2])):
            made = calls.invoke(m, polyfills.dict_of, tuple(frame.stack[-2 * count :]))
            return settle(m, frame, made, 2 * count)
        operations.look_at(m, *frame.stack[-2 * count :: 2])
    display(m, frame, 2 * count, pairs_to_dict, "dict")


def pairs_to_dict(parts: Any) -> dict:
    return dict(zip(parts[::2], parts[1::2]))


@handles("BUILD_CONST_KEY_MAP")
def build_const_key_map(m, frame, count):
    keys = frame.stack.pop()
    display(m, frame, count, lambda values: dict(zip(keys, values)), "dict")


@handles("BUILD_STRING")
def build_string(m, frame, count):
    parts = frame.stack[-count:] if m.numbers and count else ()
    if any(identity(part) in m.numbers for part in parts):
        frame.stack[-count:] = [operations.calculate(m, joined, *parts)]
    else:
        display(m, frame, count, "".join, "string")


@handles("BUILD_SLICE")
def build_slice(m, frame, count):
    display(m, frame, count, lambda parts: slice(*parts), "slice")


@handles("LIST_APPEND")
def list_append(m, frame, depth):
    value = frame.stack.pop()
    target = frame.stack[-depth]
    if m.mutate is not None and identity(target) in m.known:  # a point lies between
        m.mutate(target, "append", (value,), {})
    target.append(value)


@handles("SET_ADD")
def set_add(m, frame, depth):
    add_element(m, frame.stack[-depth - 1], frame.stack[-1])
    frame.stack.pop()


def add_element(m, target: set, value: Any) -> None:
    operations.look_at(m, value)
    if m.mutate is not None:
        m.mutate(target, "add", (value,), {})
    target.add(value)


@handles("MAP_ADD")
def map_add(m, frame, depth):
    key, value = frame.stack[-2:]
    if hangs_on_key(m, frame.stack[-depth - 2], key):
        operations.operate(m, operator.setitem, frame.stack[-depth - 2], key, value)
    else:
        set_entry(m, frame.stack[-depth - 2], key, value)
    del frame.stack[-2:]


def set_entry(m, target: dict, key: Any, value: Any) -> None:
    operations.look_at(m, key)
    if m.write_item is not None:
        m.write_item(target, key, value)
    target[key] = value


def is_iterable(m, value: Any) -> bool:
    cls = type(value)
    raw = m.lookup(value, cls, "__iter__")
    return m.lookup(value, cls, "__getitem__") is not ABSENT if raw is ABSENT else raw is not None


def elements(m, value: Any) -> Any:
    """An iterable of C over the elements of `value`: Python iterators are run by the machine."""
    cls = type(value)
    if cls in (list, tuple) and identity(value) in m.known:
        return items.read_items(m, value)
    if cls in (list, tuple, dict, set, frozenset, str, range):
        if m.read_whole is not None and identity(value) in m.known:
            m.read_whole(value)
        operations.look_at(m, value if cls is str or cls is range else None)
        return value
    return generators.drive_iterator(m, m.finish(operations.iterate(m, value)))


@handles("LIST_EXTEND")
def list_extend(m, frame, depth):
    value = frame.stack[-1]
    if not is_iterable(m, value):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    if is_taken_by_c(m, value):
        operations.operate(m, operator.iadd, frame.stack[-depth - 1], value)
    else:
        frame.stack[-depth - 1].extend(elements(m, value))
    frame.stack.pop()


@handles("SET_UPDATE")
def set_update(m, frame, depth):
    target = frame.stack[-depth - 1]
    for value in elements(m, frame.stack[-1]):
        add_element(m, target, value)
    frame.stack.pop()


@handles("LIST_TO_TUPLE")
def list_to_tuple(m, frame, _):
    frame.stack[-1] = tuple_of(m, frame.stack[-1])


def tuple_of(m, value: list) -> tuple:
    """The tuple that a display with stars becomes; a point may lie between."""
    if is_moving(m, value):
        made = operations.operate(m, tuple, value)
    else:
        made = tuple(elements(m, value))
    if m.born is not None:
        m.born(made, "tuple")
    return made


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
            f"{calls.function_text(function)} argument after ** must be a mapping, "
            f"not {type(value).__name__}"
        )
    update_from_mapping(m, stack[-depth - 1], value, function)
    stack.pop()


DICT_ITER = dict.__dict__["__iter__"]


def update_from_mapping(m, target: dict, mapping: Any, function: Any) -> None:
    """`target.update(mapping)`; with `function`, for its keywords: no key twice."""
    if (
        issubclass(type(mapping), dict)
        and m.lookup(mapping, type(mapping), "__iter__") is DICT_ITER
    ):
        if m.read_whole is not None and identity(mapping) in m.known:
            m.read_whole(mapping)
        if function is None:  # no key is hashed again
            if m.mutate is not None:
                m.mutate(target, "update", (mapping,), {})
            dict.update(target, mapping)
            return
        pairs = dict.items(mapping)
    else:
        keys = m.call(m.finish(attributes.load(m, mapping, "keys")))
        pairs = (
            (key, m.finish(items.subscript(m, mapping, key))) for key in elements(m, keys)
        )
    for key, value in pairs:
        if function is not None and key in target:
            raise TypeError(
                f"{calls.function_text(function)} got multiple values for keyword argument '{key}'"
            )
        set_entry(m, target, key, value)


@handles("UNPACK_SEQUENCE")
def unpack_sequence(m, frame, count):
    value = frame.stack[-1]
    if type(value) in (tuple, list) and len(value) == count:
        frame.stack[-1:] = items.read_items(m, value)[::-1] if identity(value) in m.known else value[::-1]
        return
    frame.stack[-1:] = unpack(m, value, count, count)[::-1]


@handles("UNPACK_EX")
def unpack_ex(m, frame, counts):
    before, after = counts & 255, counts >> 8
    value = frame.stack[-1]
    if identity(value) in m.known and m.observer.is_moving(value):
        found = calls.invoke(m, polyfills.unpacked, (value, before, after))
        return settle(m, frame, found, 1, push_all)
    found = unpack(m, value, before + after, -1)
    middle = found[before : len(found) - after]
    if m.born is not None:
        m.born(middle, "list")
    found[before : len(found) - after] = [middle]
    frame.stack[-1:] = found[::-1]


def push_all(m, frame: Frame, values: tuple) -> None:
    frame.stack[-1:] = values[::-1]


def unpack(m, value: Any, least: int, most: int) -> list:
    """The elements of `value`, at least and at most so many (-1: any number); no more is taken
    than needed.
    """
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
