"""Polyfills: parts of the language that CPython has in C, written in Python and run by the machine.

`match` against a class or a mapping, `in` over an iterator, `for` over `__getitem__`: they call
back into the program's dunders, and as interpreted functions they need no native recursion. So are
the call of a function that is compiled itself, and `sum`, `list` and their like over a generator, which may
end a node. Their
frames never show in tracebacks. Guarantees CPython's order of effects and its messages. Sources:
CPython `Python/ceval.c` `match_class`, `match_keys`; `Objects/iterobject.c`; `Objects/abstract.c`.
"""

import copyreg
from collections.abc import Iterator
from itertools import chain
from operator import index
from typing import Any

MATCH_SELF = 1 << 22  # Py_TPFLAGS of the builtins whose positional pattern is the subject itself


def call_target(compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a compiled function inside another: as if it were not compiled."""
    return compiled.target(*args, **kwargs)


def enter_mark(manager: Any) -> Any:
    """`__enter__` of a mark for profilers (`record_function`), without one. What leaves it may be
    torch's own function, once the call is interpreted no longer: it finds nothing to do."""
    manager.run_callbacks_on_exit = False
    return manager


def leave_mark(manager: Any, *error: Any) -> None:
    """`__exit__` of one."""
    manager.run_callbacks_on_exit = True


def missing_by_factory(container: Any, key: Any) -> Any:
    """defaultdict.__missing__."""
    factory = container.default_factory
    if factory is None:
        raise KeyError(key)
    container[key] = value = factory()
    return value


def reduce_by_state(
    value: Any, names: tuple, has_state: bool, has_dict: bool, is_list: bool, is_dict: bool
) -> tuple:
    """object.__reduce_ex__(value, 2) of a class of Python's over object, list or dict."""
    if has_state:
        state = value.__getstate__()
    else:
        state = (value.__dict__ or None) if has_dict else None
        slots = {}
        for name in names:
            try:
                slots[name] = getattr(value, name)
            except AttributeError:
                pass
        if slots:
            state = state, slots
    items = iter(value) if is_list else None
    pairs = iter(value.items()) if is_dict else None
    return copyreg.__newobj__, (type(value),), state, items, pairs


def contains_by_iteration(container: Any, value: Any) -> bool:
    """`value in container` for an object that can only be iterated."""
    for element in container:
        if element is value or element == value:
            return True
    return False


def sum_of(elements: Iterator, start: Any = 0) -> Any:
    """`sum(elements, start)`. From the first float on C goes on: it may add floats up exactly."""
    total = start
    if type(start) in (str, bytes, bytearray, float, complex):
        return sum(chain(elements), start)
    for element in elements:
        total = total + element
        if type(total) in (float, complex):
            return sum(chain(elements), total)
    return total


def dict_of(*parts: Any) -> dict:
    """What a display makes of its keys and values, in turns."""
    made = {}
    for place in range(0, len(parts), 2):
        made[parts[place]] = parts[place + 1]
    return made


def list_of(elements: Iterator) -> list:
    """`list(elements)` of a generator."""
    made = []
    for element in elements:
        made.append(element)
    return made


def tuple_of(elements: Iterator) -> tuple:
    """`tuple(elements)` of a generator."""
    return tuple(list_of(elements))


def any_of(elements: Iterator) -> bool:
    """`any(elements)` of a generator."""
    for element in elements:
        if element:
            return True
    return False


def all_of(elements: Iterator) -> bool:
    """`all(elements)` of a generator."""
    for element in elements:
        if not element:
            return False
    return True


def split(given: tuple, count: int) -> tuple:
    """The first `count` of `given`, and the others; all, and None, if there are no more."""
    if len(given) <= count:
        return given, None
    first = ()
    for place in range(count):
        first += (given[place],)
    return first, given[count:]


def unpacked(given: list | tuple, before: int, after: int) -> tuple:
    """What `a, *b, c = given` assigns, with so many names before and after the one with a star."""
    count = len(given)
    if count < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {count})")
    first = last = ()
    for place in range(before):
        first += (given[place],)
    for place in range(after):
        last += (given[place - after],)
    middle = list(given[before:count - after])
    return *first, middle, *last  # put together without another look at it


def joined_in_front(more: tuple, given: tuple) -> tuple:
    """Nothing, and `more` with `given` behind it: as `split` would give."""
    return (), more + given


def iterate_by_index(container: Any) -> Iterator:
    """`iter(container)` for an object that has `__getitem__` only."""
    index = 0
    while True:
        try:
            value = container[index]
        except (IndexError, StopIteration):
            return
        yield value
        index += 1


def range_of(*ends: Any) -> range:
    """`range(*ends)`, of objects that say which numbers they are."""
    numbers = ()
    for end in ends:
        numbers += (index(end),)
    return range(*numbers)


def iterate_calls(function: Any, last: Any) -> Iterator:
    """`iter(function, last)`."""
    while True:
        try:
            value = function()
        except StopIteration:
            return
        if value is last or last == value:
            return
        yield value


def values_of_keys(subject: Any, keys: tuple) -> tuple | None:
    """The values of a mapping pattern's keys, or None when one is absent."""
    seen = set()
    values = []
    absent = object()
    get = subject.get if keys else None
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        value = get(key, absent)
        if value is absent:
            return None
        values.append(value)
    return tuple(values)


def match_class(subject: Any, cls: type, count: int, names: tuple) -> tuple | None:
    """The values of a class pattern's `count` positional and its keyword sub-patterns, or None."""
    if not isinstance(subject, cls):
        return None
    values = []
    seen = set()
    if count:
        try:
            match_args = cls.__match_args__
        except AttributeError:
            match_args = ()
            allowed = 1 if cls.__flags__ & MATCH_SELF else 0
        else:
            if type(match_args) is not tuple:
                raise TypeError(
                    f"{cls.__name__}.__match_args__ must be a tuple "
                    f"(got {type(match_args).__name__})"
                )
            allowed = len(match_args)
        if allowed < count:
            plural = "" if allowed == 1 else "s"
            raise TypeError(
                f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)"
            )
        if not match_args:
            values.append(subject)
        for name in match_args[:count]:
            if type(name) is not str:
                raise TypeError(
                    f"__match_args__ elements must be strings (got {type(name).__name__})"
                )
            if name in seen:
                raise TypeError(
                    f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"
                )
            seen.add(name)
            try:
                values.append(getattr(subject, name))
            except AttributeError:
                return None
    for name in names:
        if name in seen:
            raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
        seen.add(name)
        try:
            values.append(getattr(subject, name))
        except AttributeError:
            return None
    return tuple(values)
