"""Items: subscripts of containers, writes to them, and what is in them.

    subscript(m, rates, "lr")       ->  rates["lr"], or Frame(Rates.__getitem__)
    contains(m, milestones, epoch)  ->  epoch in milestones; of a runtime number only the answer is guarded

As in `operations.py` each gives a value or a frame. A number that C finds in a container, or finds an entry
by, need not be looked at: which of the members it is equal to is a test, and entries that hold the same are
one answer.
"""

import bisect
import operator
from collections import defaultdict
from collections.abc import Callable
from types import FunctionType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import polyfills, ranges
from preheat.capture.calls import MUTATORS, c_call, invoke, mutate
from preheat.capture.frames import and_then
from preheat.capture.lists import hangs_on_key, hangs_on_length, has_other_keys, read_items
from preheat.capture.models import method, models
from preheat.capture.observer import ABSENT
from preheat.capture.operations import (
    CONTAINERS_WITH_LENGTH, PLAIN, calculate, call_dunder, look_at, operate, runs_python, truth_of,
)


# ------------------------------------------------------------------------------------ containment
def contains(m, container: Any, value: Any) -> Any:
    """`value in container`, as a bool or a frame."""
    cls = type(container)
    raw = m.lookup(container, cls, "__contains__")
    if runs_python(raw):
        return and_then(call_dunder(m, raw, container, value), truth_of, None, None, m)
    if raw is ABSENT and cls not in PLAIN and (
            m.is_watching or runs_python(m.lookup(container, cls, "__iter__"))):
        return invoke(m, polyfills.contains_by_iteration, (container, value))
    if m.numbers or m.observer.has_answer():
        if has_other_keys(m, container) and hangs_on_key(m, container, value):
            return operate(m, operator.contains, container, value)
        answer = number_within(m, container, cls, value)
        if answer is not None:
            return answer
        if hangs_on_key(m, container, value):
            return operate(m, operator.contains, container, value)
        # of a dict only the keys are compared
        look_at(m, value, *(dict.keys(container) if issubclass(cls, dict) else (container,)))
    if issubclass(cls, CONTAINERS_WITH_LENGTH):
        is_plain = type(value) in PLAIN and (
            not issubclass(cls, (list, tuple)) or all(type(part) in PLAIN for part in container))
        is_plain = is_plain or issubclass(cls, dict) and is_plain_key(m, value)
        answer = (
            value in container if is_plain else operate(m, operator.contains, container, value))
        if m.read_contains is not None and identity(container) in m.known:
            m.read_contains(container, value, answer)
        return answer
    if cls in PLAIN and type(value) in PLAIN:
        return value in container
    return operate(m, operator.contains, container, value)


def number_within(m, container: Any, cls: type, value: Any) -> bool | None:
    """`value in container` where one of them is a runtime number, as a test; None: C has to look."""
    if type(value) not in NUMBERS or value != value or m.observer.has_answer():
        return None
    if cls is range:
        return ranges.contains(m, container, value)
    if cls not in MEMBERSHIP and not issubclass(cls, dict) or len(container) > MOST_MEMBERS:
        return None
    members = list(dict.keys(container) if issubclass(cls, dict) else container)
    if not all(type(part) in COMPARED for part in members) or any(part != part for part in members):
        return None
    if identity(value) not in m.numbers and not any(identity(part) in m.numbers for part in members):
        return None
    if identity(container) in m.known:
        members = read_items(m, container) if cls in (list, tuple) else m.observer.read_members(container)
    return m.observer.is_one_of(value, [part for part in members if type(part) in NUMBERS or type(part) is bool])


def bisected(function: Callable, is_less: Callable) -> None:
    """Models `function` of module `bisect`: where a runtime number belongs is a few comparisons."""

    @models(function)
    def model(m, args: tuple | list, kwargs: dict) -> Any:
        if not m.numbers or kwargs or len(args) != 2 or type(args[0]) not in (list, tuple):
            return c_call(m, function, args, kwargs)
        container, value = args
        is_held = identity(value) in m.numbers or any(identity(part) in m.numbers for part in container)
        if not is_held or any(type(part) not in NUMBERS for part in (value, *container)):
            return c_call(m, function, args, kwargs)
        parts = read_items(m, container) if identity(container) in m.known else container
        low, high = 0, len(parts)
        while low < high:
            middle = (low + high) // 2
            if is_less(m, value, parts[middle]):
                high = middle
            else:
                low = middle + 1
        return low


bisected(bisect.bisect_right, lambda m, value, part: calculate(m, operator.lt, value, part))
bisected(bisect.bisect_left, lambda m, value, part: not calculate(m, operator.lt, part, value))


NUMBERS = frozenset((int, float))
COMPARED = NUMBERS | {bool, str, bytes, type(None)}  # what compares with a number as C does, or is none
MEMBERSHIP = frozenset((list, tuple, set, frozenset))
MOST_MEMBERS = 32  # each is a comparison at each call


# ------------------------------------------------------------------------------------- subscripts
def subscript(m, container: Any, key: Any) -> Any:
    """`container[key]`."""
    cls = type(container)
    if hangs_on_length(m, container, key):
        return operate(m, operator.getitem, container, key)
    raw = m.lookup(container, cls, "__getitem__") if cls not in EXACT else ABSENT
    if runs_python(raw):
        return call_dunder(m, raw, container, key)
    if m.numbers and not m.observer.is_indexed_by_boxes(container, key):
        if identity(key) in m.numbers and issubclass(cls, dict):
            value = shared_entry(m, container, key)
            if value is not ABSENT:
                return value
        look_at(m, key, container if cls is str else None)
    if cls in EXACT:
        return subscript_builtin(m, container, key, cls)
    if raw is ABSENT and issubclass(cls, type):
        return subscript_class(m, container, key)
    if issubclass(cls, (list, tuple, dict)):
        return subscript_builtin(m, container, key, cls)
    is_plain = cls in PLAIN and is_index(key)
    result = container[key] if is_plain else operate(m, operator.getitem, container, key)
    if m.born is not None and type(result) not in PLAIN:
        m.born(result, "result")
    return result


def shared_entry(m, container: dict, key: Any) -> Any:
    """What `container` holds under a runtime number, if it holds the same under others, too: then only that
    the number is one of these is guarded. ABSENT: it has to be looked at."""
    value = dict.get(container, key, ABSENT)
    if type(value) not in PLAIN or value != value or len(container) > MOST_MEMBERS or m.observer.has_answer():
        return ABSENT
    keys = [
        k for k, other in dict.items(container)
        if type(k) in NUMBERS and k == k and type(other) is type(value) and repr(other) == repr(value)]
    if len(keys) < 2 or identity(value) in m.numbers:
        return ABSENT
    if identity(container) in m.known and m.read_item is not None:
        seen = [m.read_item(container, k, dict.__getitem__(container, k)) for k in keys]
        if any(other is not None for other in seen):
            return ABSENT
    m.observer.is_one_of(key, keys)
    return value


EXACT = frozenset((list, tuple, dict))


def is_index(key: Any) -> bool:
    """Whether C has no object to ask for the number that it takes for `key`."""
    parts = (key.start, key.stop, key.step) if type(key) is slice else (key,)
    return all(type(part) in PLAIN for part in parts)


DEFAULT_MISSING = defaultdict.__dict__["__missing__"]


def is_plain_key(m, key: Any) -> bool:
    """Whether C hashes and compares `key` without asking an object: a plain value, a tuple of these, or what is one by
    identity."""
    if type(key) is tuple:
        return all(type(part) in PLAIN or type(part) is tuple and is_plain_key(m, part) for part in key)
    return type(key) in PLAIN or m.observer.is_key_by_identity(key)


def subscript_builtin(m, container: Any, key: Any, cls: type) -> Any:
    """`container[key]` of a list, tuple or dict, or of a subclass that does not override it."""
    is_known = identity(container) in m.known
    if type(key) is slice:
        return cut(m, container, key, is_known)
    is_plain = type(key) in PLAIN or issubclass(cls, dict) and is_plain_key(m, key)
    is_subclass = cls is not dict and issubclass(cls, dict)
    if is_subclass and is_plain and not dict.__contains__(container, key):
        missing = m.lookup(container, cls, "__missing__")
        if runs_python(missing) or missing is DEFAULT_MISSING:
            if is_known and m.miss_item is not None:
                m.miss_item(container, key)
            if missing is DEFAULT_MISSING:
                return invoke(m, polyfills.missing_by_factory, (container, key))
            return call_dunder(m, missing, container, key)
    try:
        result = container[key] if is_plain else operate(m, operator.getitem, container, key)
    except (KeyError, IndexError):
        if is_known and m.miss_item is not None:
            m.miss_item(container, key)
        raise
    if is_known and m.read_item is not None:
        other = m.read_item(container, key, result)
        return result if other is None else other
    return result


def cut(m, container: Any, key: slice, is_known: bool) -> Any:
    """`container[key]` of a list or tuple: what is known of it, item by item."""
    cls = type(container)
    if is_known and cls in (list, tuple) and is_index(key) and m.read_length is not None:
        result = cls(read_items(m, container, key))
    else:
        if is_known and m.read_whole is not None:
            m.read_whole(container)
        result = container[key] if is_index(key) else operate(m, operator.getitem, container, key)
    if m.born is not None:
        m.born(result, "result")
    return result


def subscript_class(m, cls: type, key: Any) -> Any:
    """`cls[key]`: its `__class_getitem__`."""
    raw = m.lookup(cls, cls, "__class_getitem__")
    if type(raw) is classmethod and type(raw.__func__) is FunctionType:
        return invoke(m, raw.__func__, (cls, key))
    result = operate(m, operator.getitem, cls, key)
    if m.born is not None:
        m.born(result, "result")
    return result


def store_item(m, container: Any, key: Any, value: Any) -> Any:
    """`container[key] = value`."""
    return change_item(m, operator.setitem, m.write_item, container, key, value)


def delete_item(m, container: Any, key: Any) -> Any:
    """`del container[key]`."""
    return change_item(m, operator.delitem, m.delete_item, container, key)


def change_item(m, function: Callable, tell: Callable | None, container: Any, *args: Any) -> Any:
    name = f"__{function.__name__}__"
    raw = m.lookup(container, type(container), name)
    if runs_python(raw):
        return call_dunder(m, raw, container, *args)
    if hangs_on_key(m, container, args[0]):
        return operate(m, function, container, *args)
    if m.numbers and not m.observer.is_indexed_by_boxes(container, args[0]):
        look_at(m, args[0])
    cls = type(container)
    is_exact = type(args[0]) in PLAIN and cls in WRITTEN_BY_C
    is_exact = is_exact or cls in DICTS and is_plain_key(m, args[0])
    is_exact = is_exact or type(args[0]) in PLAIN and raw is SETTERS[function]  # a subclass of dict
    if is_exact or not m.observer.is_opaque(container, name, args, {}):
        if tell is not None:
            tell(container, *args)
        if is_exact:
            function(container, *args)
            return None
    return operate(m, function, container, *args)


DICTS = frozenset((dict, defaultdict))
WRITTEN_BY_C = DICTS | {list}
SETTERS = {operator.setitem: dict.__dict__["__setitem__"], operator.delitem: dict.__dict__["__delitem__"]}


# ------------------------------------------------------------------------ the same by their names
def by_name(name: str, cls: type, count: int) -> Callable:
    """Models method `name` of `cls`, as `__getattr__ = dict.__getitem__` gives it: an operation on the object,
    if its class has not another meaning for that. Other counts are C's to refuse."""

    def register(operation: Callable) -> Callable:
        @method(name, cls)
        def model(m, function: Any, owner: Any, args: tuple | list, kwargs: dict) -> Any:
            is_its = m.lookup(owner, type(owner), name) is cls.__dict__[name]
            if kwargs or len(args) != count or not is_its or type(args[0]) not in PLAIN:
                is_write = m.mutate is not None and name in MUTATORS.get(cls, ())
                return mutate(m, function, owner, name, args, kwargs) if is_write else c_call(m, function, args, kwargs)
            return operation(m, owner, *args)

        return operation

    return register


for container_class in (dict, list, tuple):
    by_name("__getitem__", container_class, 1)(subscript)
by_name("__contains__", dict, 1)(contains)
by_name("__setitem__", dict, 2)(store_item)
by_name("__delitem__", dict, 1)(delete_item)
