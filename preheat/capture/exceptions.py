"""Exceptions as recipes: the class, its arguments and fields, and where it came from.

    ValueError("too long") raised in f    ->    t1 = call ValueError.__new__ ValueError "too long"
                                                t3 = call preheat.base.stubs.entry None f 14 31
                                                setattr t1 "__traceback__" t3

Requires an exception of one of C's classes or a subclass, whose traceback shows interpreted frames
only. Groups, and what has a field that C hides, are refused. No code of the program runs.
"""

import types
from typing import Any

from preheat.base import stubs
from preheat.base.identity import identity
from preheat.base.names import is_heap_type, mro_of
from preheat.capture.observer import GiveUp

_HISTORY = frozenset(vars(BaseException))


def instance(planner: Any, value: BaseException, base: type, make: int, cls: int) -> int:
    """A new exception with the arguments of `value` and the fields that its classes of C have."""
    if issubclass(base, BaseExceptionGroup):
        raise GiveUp("no_recipe", f"a {base.__name__}")
    place = planner.remember(value, planner.step("call", make, cls, *planner.many(value.args)))
    for owner in mro_of(base):
        if is_heap_type(owner) or owner in (BaseException, object):
            continue
        for name, field in vars(owner).items():
            if type(field) is types.MemberDescriptorType:
                part = field.__get__(value)
                if part is not None:
                    planner.step("setattr", place, name, planner.plan(part))
            elif type(field) is types.GetSetDescriptorType and name not in _HISTORY:
                _must_be_empty(value, name, field)
    return place


def _must_be_empty(value: BaseException, name: str, field: Any) -> None:
    try:
        field.__get__(value)
    except AttributeError:
        return
    raise GiveUp("no_recipe", f"{name} of a {type(value).__qualname__}")


def history(planner: Any, value: BaseException, place: int) -> None:
    """Where `value` was raised, and what it came from."""
    for name in ("__traceback__", "__context__", "__cause__"):
        part = getattr(value, name)
        if part is not None:
            planner.step("setattr", place, name, planner.plan(part))
    if value.__suppress_context__:
        planner.step("setattr", place, "__suppress_context__", planner.plan(True))


def traceback(planner: Any, value: types.TracebackType) -> int:
    """The entries from the innermost outward, each in front of those that follow."""
    entries = [value]
    while entries[-1].tb_next is not None and identity(entries[-1].tb_next) not in planner.memo:
        entries.append(entries[-1].tb_next)
    following = planner.plan(None) if entries[-1].tb_next is None else (
        planner.memo[identity(entries[-1].tb_next)])
    for shown in reversed(entries):
        function = stubs.function_of(shown)
        if function is None:
            raise GiveUp("no_recipe", "a traceback through native frames")
        make, *place = planner.many((stubs.entry, function, shown.tb_lasti, shown.tb_lineno))
        following = planner.step("call", make, following, *place)
        planner.kept.append(shown)
        planner.memo[identity(shown)] = following
    return following
