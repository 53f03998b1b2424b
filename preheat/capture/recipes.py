"""Recipes: how to build the call's result again from the values that its ops computed.

    {"logits": y, "cache": cache}    ->    t0 = dict;  t1 = value 0;  setitem t0 "logits" t1;  ...

Leaves are values of the body, objects that came from outside (the same object again), constants and
names; everything else was made in this call and is made anew, part by part: `__new__` of its C
base, the content of that base, slots and instance dict. No constructor and no reducer of the
program runs. Shared objects and cycles come out as they were: an object is planned once.

What has no sound recipe is refused: generators, iterators, closures and classes made in the call,
locks and other objects of C, a cycle through an immutable.
"""

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from preheat.base.names import instance_dict, is_heap_type, mro_of, raw_attribute
from preheat.bridge.tensors import Device, Size, Tensor
from preheat.capture.guards import has_identity
from preheat.capture.observer import GiveUp
from preheat.capture.policies import is_bound
from preheat.capture.sources import PRIMITIVES, Sources
from preheat.ir.trace import Recipe, Step


def plan(
    value: Any, sources: Sources, output: Callable[[Any], int | None],
    is_born: Callable[[Any], bool],
) -> Recipe:
    """The recipe of `value`. `output(tensor)` is the place of a tensor among the body's outputs.

    `is_born(value)` tells functions and classes that the call itself made.
    Raises GiveUp("no_recipe") for what cannot be built again.
    """
    planner = _Planner(sources, output, is_born)
    result = planner.plan(value)
    return Recipe(tuple(planner.steps), result)


class _Planner:
    """Steps under construction; `memo` has the step of every object planned so far."""

    def __init__(self, sources: Sources, output: Callable, is_born: Callable) -> None:
        self.sources, self.output, self.is_born = sources, output, is_born
        self.steps: list[Step] = []
        self.memo: dict[int, int] = {}
        self.kept: list[Any] = []  # reduce makes temporary objects: their ids must stay theirs
        self.open: set[int] = set()

    def plan(self, value: Any) -> int:
        """The number of the step that gives `value`."""
        kind = type(value)
        if kind in PRIMITIVES:
            return self.step("const", value)
        done = self.memo.get(id(value))
        if done is not None:
            return done
        if id(value) in self.open:
            raise GiveUp("no_recipe", f"a cycle through a {kind.__qualname__}")
        self.kept.append(value)
        self.open.add(id(value))
        place = self._place(value, kind)
        self.open.discard(id(value))
        self.memo[id(value)] = place
        return place

    def step(self, kind: str, *args: Any) -> int:
        self.steps.append(Step(kind, args))
        return len(self.steps) - 1

    def _place(self, value: Any, kind: type) -> int:
        source = self.sources.known.get(id(value))
        if source is not None and not has_identity(value, kind):
            return self.step("source", source)
        if issubclass(kind, Tensor):
            place = self.output(value)
            if place is None:
                raise GiveUp("no_recipe", "a tensor that no recorded op made")
            return self.step("value", place)
        if has_identity(value, kind):
            if self.is_born(value):
                name = f"the {kind.__name__} {value.__qualname__}"
                raise GiveUp("no_recipe", f"{name}, made in the call")
            return self.step("const", self.sources.name(value))
        if issubclass(kind, tuple) and raw_attribute(kind, "n_sequence_fields") is not None:
            return _size(self, value)  # a struct sequence of C, such as torch.return_types.max
        row = _BY_KIND.get(kind)
        if row is not None:
            return row(self, value)
        return self._instance(value, kind)

    def many(self, values: Any) -> list[int]:
        return [self.plan(part) for part in values]

    def remember(self, value: Any, place: int) -> int:
        """`value` may be referred to from now on: a cycle leads back to this step."""
        self.memo[id(value)] = place
        self.open.discard(id(value))
        return place

    # ------------------------------------------------------------------ instances
    def _instance(self, value: Any, kind: type) -> int:
        """Class, content of the C base, slots and instance dict: no code of the program runs."""
        base = next(b for b in mro_of(kind) if not is_heap_type(b))
        row = _BY_BASE.get(base)
        if row is None:
            raise GiveUp("no_recipe", f"{kind.__module__}.{kind.__qualname__}")
        make = self.plan(raw_attribute(base, "__new__"))
        place = row(self, value, base, make, self.plan(kind))
        self.remember(value, place)
        for cls in mro_of(kind):
            for name, member in type.__dict__["__dict__"].__get__(cls).items():
                if type(member) is types.MemberDescriptorType and is_heap_type(cls):
                    self._slot(value, place, name, member)
        for name, part in (instance_dict(value) or {}).items():
            self.step("update_dict", place, name, self.plan(part))
        return place

    def _slot(self, value: Any, place: int, name: str, member: Any) -> None:
        try:
            part = member.__get__(value)
        except AttributeError:
            return
        self.step("setattr", place, name, self.plan(part))

    def items(self, place: int, pairs: Any) -> None:
        for key, part in pairs:
            self.step("setitem", place, self.plan(key), self.plan(part))

    def elements(self, place: int, parts: Any) -> None:
        for part in parts:
            self.step("append", place, self.plan(part))


def _plain_instance(planner: _Planner, value: Any, base: type, make: int, cls: int) -> int:
    return planner.step("call", make, cls)


def _dict_instance(planner: _Planner, value: dict, base: type, make: int, cls: int) -> int:
    place = planner.remember(value, planner.step("call", make, cls))
    planner.items(place, base.items(value))
    return place


def _list_instance(planner: _Planner, value: list, base: type, make: int, cls: int) -> int:
    place = planner.remember(value, planner.step("call", make, cls))
    planner.elements(place, list.__iter__(value))
    return place


def _tuple_instance(planner: _Planner, value: tuple, base: type, make: int, cls: int) -> int:
    content = planner.step("tuple", *planner.many(tuple.__iter__(value)))
    return planner.step("call", make, cls, content)


_BY_BASE: dict[type, Callable[..., int]] = {
    object: _plain_instance, dict: _dict_instance, OrderedDict: _dict_instance,
    list: _list_instance, tuple: _tuple_instance,
}


# ---------------------------------------------------------------------------- builtins
def _list(planner: _Planner, value: list) -> int:
    if not _holds_itself(value):
        return planner.step("list", *planner.many(value))
    place = planner.remember(value, planner.step("list"))
    planner.elements(place, value)
    return place


def _dict(planner: _Planner, value: dict) -> int:
    place = planner.remember(value, planner.step("dict"))
    planner.items(place, value.items())
    return place


def _holds_itself(value: list) -> bool:
    """Whether a list may be part of a cycle: it holds anything but tensors and primitives."""
    return not all(type(part) in PRIMITIVES or issubclass(type(part), Tensor) for part in value)


def _tuple(planner: _Planner, value: tuple) -> int:
    return planner.step("tuple", *planner.many(value))


def _set(planner: _Planner, value: set | frozenset) -> int:
    return planner.step(type(value).__name__, *planner.many(value))


def _by_attributes(*names: str) -> Callable[[_Planner, Any], int]:
    def planned(planner: _Planner, value: Any) -> int:
        function = planner.plan(type(value))
        parts = planner.many([getattr(value, name) for name in names])
        return planner.step("call", function, *parts)

    return planned


def _size(planner: _Planner, value: Any) -> int:
    return planner.step("call", planner.plan(type(value)), planner.plan(tuple(value)))


def _method(planner: _Planner, value: types.MethodType) -> int:
    return planner.step("method", planner.plan(value.__func__), planner.plan(value.__self__))


def _c_method(planner: _Planner, value: types.BuiltinFunctionType) -> int:
    if not is_bound(value):
        return planner.step("const", planner.sources.name(value))
    return planner.step("call", *planner.many((getattr, value.__self__, value.__name__)))


def _ordered(planner: _Planner, value: Any) -> int:
    place = planner.remember(value, planner.step("call", planner.plan(OrderedDict)))
    planner.items(place, value.items())
    return place


def _defaulting(planner: _Planner, value: defaultdict) -> int:
    place = planner.step("call", planner.plan(defaultdict), planner.plan(value.default_factory))
    planner.remember(value, place)
    planner.items(place, value.items())
    return place


def _deque(planner: _Planner, value: deque) -> int:
    empty = planner.plan(())
    place = planner.step("call", planner.plan(deque), empty, planner.plan(value.maxlen))
    planner.remember(value, place)
    planner.elements(place, value)
    return place


def _partial(planner: _Planner, value: functools.partial) -> int:
    parts = planner.many((functools.partial, value.func, *value.args))
    place = planner.step("call", *parts)
    planner.remember(value, place)
    if value.keywords or value.__dict__:
        set_state = planner.step("call", planner.plan(getattr), place, planner.plan("__setstate__"))
        state = (value.func, value.args, value.keywords, value.__dict__ or None)
        planner.step("call", set_state, planner.plan(state))
    return place


def _device(planner: _Planner, value: Any) -> int:
    return planner.step("call", planner.plan(type(value)), planner.plan(str(value)))


_BY_KIND: dict[type, Callable[[_Planner, Any], int]] = {
    list: _list, dict: _dict, tuple: _tuple, set: _set, frozenset: _set, OrderedDict: _ordered,
    defaultdict: _defaulting, deque: _deque, slice: _by_attributes("start", "stop", "step"),
    range: _by_attributes("start", "stop", "step"), types.MethodType: _method,
    types.BuiltinFunctionType: _c_method, functools.partial: _partial, Size: _size, Device: _device,
}
