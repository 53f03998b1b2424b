"""Lists whose length changes from call to call: what may hang on it is done by operations of C.

    torch.stack(xs)        a host call
    for x in xs[1:]:       host calls: xs[1:], iter of what that gives, then each next
    xs[0], len(xs) > 3     guards, as of any list: they say nothing of the length
    xs[-1], xs[n]          host calls

Which lists these are the observer says (`Guards.is_moving_list`). The answer of such a host call is one
again, if it is a list or tuple of tensors.
"""

import operator
from collections import deque
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import raw_attribute
from preheat.capture.iterators import HOSTED

KEYED = frozenset((list, tuple, dict, set, frozenset))
DICT_GETITEM = dict.__dict__["__getitem__"]


def takes_keys(container: Any) -> bool:
    """Whether C alone finds what `container` has at a key: of a Counter or a defaultdict, too, where what is missing may
    be made by Python."""
    cls = type(container)
    return cls in KEYED or issubclass(cls, dict) and raw_attribute(cls, "__getitem__") is DICT_GETITEM


def is_moving(m, value: Any) -> bool:
    """Whether `value` is such a list or tuple; where the present instruction was a host call, its answer
    is waiting for the operation of C."""
    if type(value) is not list and type(value) is not tuple:
        return False
    return m.observer.has_answer() or identity(value) in m.known and m.observer.is_moving(value)


def is_taken_by_c(m, value: Any) -> bool:
    """Whether all elements of `value` are to be taken by an operation of C: of such a list, of an iterator that
    existed before, or of a deque, of whose items no guard speaks."""
    if type(value) in HOSTED or type(value) is deque:
        return m.observer.has_answer() or identity(value) in m.known
    return is_moving(m, value)


def is_iterated_anew(m, value: Any) -> bool:
    """Whether `iter(value)` is a host call, and each `next` of what it gives: of such a list, or a deque from outside."""
    return is_moving(m, value) or type(value) is deque and identity(value) in m.known


def read_items(m, value: tuple | list, which: slice = slice(None)) -> list:
    """The items of `value`, or those of a part of it, as the program shall see them: there must be so many."""
    if m.read_length is not None:
        length = m.read_length(value, len(value))
        if length is not None and m.look_at is not None:
            m.look_at(length)
    found = []
    for index in range(len(value))[which]:
        other = m.read_item(value, index, value[index]) if m.read_item is not None else None
        found.append(value[index] if other is None else other)
    return found


def with_numbers(m, value: tuple | list) -> tuple | list:
    """A known list or tuple, all of which is about to be taken: one with the numbers in it that change, if there are
    any."""
    found = read_items(m, value)
    if all(map(operator.is_, found, value)):
        return value
    made = type(value)(found)
    if m.born is not None:
        m.born(made, "result")
    return made


def hangs_on_key(m, container: Any, key: Any) -> bool:
    """Whether `container` is to be asked by C for what it has at `key`, or be changed there: a number, or a text of
    one, that is another one in each call."""
    return takes_keys(container) and (
        m.observer.has_answer() or bool(m.numbers) and m.observer.is_keyed(container, key))


def has_other_keys(m, container: Any) -> bool:
    """Whether `container` is a dict from outside whose keys are others from call to call."""
    return issubclass(type(container), dict) and (
        m.observer.has_answer() or identity(container) in m.known and m.observer.has_other_keys(container))


def hangs_on_length(m, container: Any, key: Any) -> bool:
    """Whether `container[key]` is to be asked of C: of a list of any length, at the end, or at a number
    that nobody has looked at; of a dict or any list by a number that is another one in each call."""
    return hangs_on_key(m, container, key) or is_moving(m, container) and (
        type(key) is slice or m.observer.has_answer()
        or type(key) is int and (key < 0 or m.observer.is_counted(key)))
