"""Iterators of C: what they iterate and how far they are, asked without moving them.

    it = iter([a, b, c]); next(it)        where(it)         (iter, ([a, b, c],), 1)
    it = iter(table.values()); next(it)   dict_of(it)       (table, 1)
    enumerate(iter([a]))                  feeds(it)         [[a]]

Sources: `__reduce__` of CPython `Objects/listobject.c`, `tupleobject.c`, `rangeobject.c`,
`enumobject.c`, `Python/bltinmodule.c`; `Objects/dictobject.c` `dictiter_traverse`.
"""

import gc
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

# These say by `__reduce__` what makes them again; nothing of the program runs.
BY_REDUCE = frozenset(type(i) for i in (
    iter([]), iter(()), iter(range(0)), iter(range(1 << 70)), iter(""), reversed([]),
    enumerate(()), zip(),
))
# An iterator over a dict, and the view that it came from.
OVER_DICTS: dict[type, Callable[[dict], Any]] = {
    type(iter({})): dict.keys, type(iter({}.values())): dict.values,
    type(iter({}.items())): dict.items,
}


# A view of a dict, and the method that makes it.
VIEWS: dict[type, str] = {
    type(table_method()): table_method.__name__
    for table in ({}, OrderedDict())
    for table_method in (table.keys, table.values, table.items)
}

# What the machine advances by `next`; one from outside is advanced by host calls.
C_ITERATORS = frozenset(
    type(iter(made)) for made in ([], (), {}, set(), "", range(0), {}.items(), {}.values(), b"", reversed([]), deque())
) | {types.GeneratorType, zip, enumerate, reversed}
HOSTED = C_ITERATORS - {types.GeneratorType}


def viewed(view: Any) -> dict:
    """The dict that a view of it, or a mappingproxy, shows."""
    return next(o for o in gc.get_referents(view) if isinstance(o, dict))


def dict_of(iterator: Any) -> tuple[dict | None, int]:
    """The dict, or None of an exhausted iterator, and how many entries were taken.

    Raises RuntimeError where the dict has changed its size since.
    """
    over = next((o for o in gc.get_referents(iterator) if isinstance(o, dict)), None)
    if over is None:
        return None, 0
    _, (rest,) = iterator.__reduce__()
    return over, dict.__len__(over) - len(rest)


def feeds(value: Any) -> Iterator[Any]:
    """What the elements of an iterator come from, through enumerate and zip: lists, dicts,
    generators. Of anything else, nothing."""
    kind = type(value)
    if kind is types.GeneratorType:
        yield value
    elif kind in OVER_DICTS:
        over = dict_of(value)[0]
        if over is not None:
            yield over
    elif kind in BY_REDUCE:
        for part in value.__reduce__()[1]:
            if isinstance(part, list | tuple):
                yield part
            else:
                yield from feeds(part)
