"""Recipes: how to build the call's result again from the values that its ops computed.

    {"logits": y, "cache": cache}    ->    t0 = dict;  t1 = value 0;  setitem t0 "logits" t1;  ...

Leaves are values of the body, objects that came from outside (the same object again), constants and
names; everything else was made in this call and is made anew, part by part: `__new__` of its C
base, the content of that base, slots and instance dict. No constructor and no reducer of the
program runs. Shared objects and cycles come out as they were: an object is planned once.

A function that the call made is rebuilt from the code object in its maker's constants, with its
cells; an iterator of C from what it iterates and how far it is (`iterators.py`).

What has no sound recipe is refused: generators, iterators over sets, classes made in the
call, locks and other objects of C, a cycle through an immutable.
"""

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import (
    c_base, has_hidden_memory, instance_dict, is_heap_type, mro_of, raw_attribute,
)
from preheat.bridge.tensors import Device, Size, Tensor
from preheat.capture import exceptions
from preheat.capture.bytecode import OWN_FOLDER
from preheat.capture.effects import Effect
from preheat.capture.identities import has_identity
from preheat.capture.iterators import BY_REDUCE, OVER_DICTS, VIEWS, dict_of, viewed
from preheat.capture.observer import GiveUp
from preheat.capture.policies import is_bound
from preheat.capture.sources import PRIMITIVES, Sources
from preheat.ir.scalar import Scalar
from preheat.ir.trace import Recipe, Step


class Planner:
    """Steps under construction; `memo` has the step of every object planned so far.

    output(tensor)   the place of a tensor among the body's outputs, or None
    made             functions and classes that the call itself made, by id, each with the function
                     that made it (None for classes)

    Raises GiveUp("no_recipe") for what cannot be built again.
    """

    def __init__(self, sources: Sources, output: Callable, made: Mapping[int, tuple]) -> None:
        self.sources, self.output, self.made = sources, output, made
        self.steps: list[Step] = []
        self.memo: dict[int, int] = {}
        self.kept: list[Any] = []  # reduce makes temporary objects: their ids must stay theirs
        self.open: set[int] = set()

    def plan(self, value: Any) -> int:
        """The number of the step that gives `value`."""
        kind = type(value)
        if kind in PRIMITIVES:
            scalar = self.sources.scalar_of(value)
            return self.step("const", value) if scalar is None else self.number(value, scalar)
        done = self.memo.get(identity(value))
        if done is not None:
            return done
        if identity(value) in self.open:
            raise GiveUp("no_recipe", f"a cycle through a {kind.__qualname__}")
        self.kept.append(value)
        self.open.add(identity(value))
        place = self._place(value, kind)
        self.open.discard(identity(value))
        self.memo[identity(value)] = place
        return place

    def number(self, value: Any, scalar: Scalar) -> int:
        """The step that gives a runtime number. What may fail (1 / n) is computed with the guards,
        before anything is done."""
        place = self.memo.get(identity(value))
        if place is None:
            place = self.memo[identity(value)] = self.step("source", self.sources.number(scalar))
        return place

    def step(self, kind: str, *args: Any) -> int:
        self.steps.append(Step(kind, args))
        return len(self.steps) - 1

    def _place(self, value: Any, kind: type) -> int:
        source = self.sources.known.get(identity(value))
        is_named = has_identity(value, kind) and self.sources.has_name(value)
        if source is not None and not is_named:
            return self.step("source", source)
        if issubclass(kind, Tensor):
            place = self.output(value)
            if place is None:
                raise GiveUp("no_recipe", "a tensor that no recorded op made")
            return self.step("value", place)
        if has_identity(value, kind):
            if identity(value) in self.made:
                return self._made_here(value, kind)
            if kind is types.FunctionType and value.__code__.co_filename.startswith(OWN_FOLDER):
                self._refuse_own(value)
            return self.step("const", self.sources.name(value))
        if issubclass(kind, tuple) and raw_attribute(kind, "n_sequence_fields") is not None:
            return _size(self, value)  # a struct sequence of C, such as torch.return_types.max
        row = _BY_KIND.get(kind)
        if row is not None:
            return row(self, value)
        return self._instance(value, kind)

    def call(self, method: tuple, *args: Any) -> int:
        """The step that calls getattr(*method[1:]) with `args`."""
        return self.step("call", self.step("call", *self.many(method)), *self.many(args))

    def recipe(self, result: int) -> Recipe:
        return Recipe(tuple(self.steps), result)

    # ------------------------------------------------------------------ effects
    def effect(self, effect: Effect) -> None:
        """The steps that do `effect` again."""
        target = self.plan(effect.target)
        if effect.kind != "mutate":
            self.step(effect.kind, target, *self._parts(effect))
            return
        method, args, kwargs = effect.parts
        steps = self.many(args)
        named = [part for name in kwargs for part in (name, self.plan(kwargs[name]))]
        self.step("mutate", target, method, len(steps), *steps, *named)

    def _parts(self, effect: Effect) -> list:
        """Names of attributes stand for themselves, keys and values are planned."""
        is_named = effect.kind in ("write", "delete")
        first, rest = effect.parts[:is_named], effect.parts[is_named:]
        return [*first, *self.many(rest)]

    # ------------------------------------------------------------------ functions
    def _made_here(self, value: Any, kind: type) -> int:
        maker = self.made[identity(value)][1]
        if maker is None or kind is not types.FunctionType:
            name = f"the {kind.__name__} {value.__qualname__}"
            raise GiveUp("no_recipe", f"{name}, made in the call")
        place = self.plan(maker)
        code = self.step("code", place, maker.__code__.co_consts.index(value.__code__))
        space = self.step("call", *self.many((getattr,)), place, self.plan("__globals__"))
        name, defaults = self.plan(value.__name__), self.plan(value.__defaults__)
        cells = self.many(value.__closure__ or ())
        function = self.step("function", code, space, name, defaults, *cells)
        self.remember(value, function)
        for name in ("__kwdefaults__", "__qualname__"):
            if getattr(value, name):
                self.step("setattr", function, name, self.plan(getattr(value, name)))
        for name, part in value.__dict__.items():
            self.step("update_dict", function, name, self.plan(part))
        return function

    def _refuse_own(self, value: types.FunctionType) -> None:
        """A closure of the machine's own would bring back the machine that made it."""
        if value.__closure__:
            raise GiveUp("no_recipe", f"a call of {value.__qualname__} under way")

    def many(self, values: Any) -> list[int]:
        return [self.plan(part) for part in values]

    def remember(self, value: Any, place: int) -> int:
        """`value` may be referred to from now on: a cycle leads back to this step."""
        self.memo[identity(value)] = place
        self.open.discard(identity(value))
        return place

    # ------------------------------------------------------------------ instances
    def _instance(self, value: Any, kind: type) -> int:
        """Class, content of the C base, slots and instance dict: no code of the program runs."""
        base = _c_base(kind)
        row = _BY_BASE.get(base)
        if row is None and issubclass(base, BaseException):
            row = exceptions.instance
        if row is None or has_hidden_memory(kind, base):
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
        if issubclass(kind, BaseException):
            exceptions.history(self, value, place)
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


def _c_base(kind: type) -> type:
    """The class of C that makes instances of `kind`."""
    end = c_base(kind)
    for base in mro_of(kind):
        made = type.__dict__["__dict__"].__get__(base).get("__new__")
        if type(made) is types.BuiltinFunctionType or base is end:
            return base
    return object


def _plain_instance(planner: Planner, value: Any, base: type, make: int, cls: int) -> int:
    return planner.step("call", make, cls)


def _dict_instance(planner: Planner, value: dict, base: type, make: int, cls: int) -> int:
    place = planner.remember(value, planner.step("call", make, cls))
    planner.items(place, base.items(value))
    return place


def _list_instance(planner: Planner, value: list, base: type, make: int, cls: int) -> int:
    place = planner.remember(value, planner.step("call", make, cls))
    planner.elements(place, list.__iter__(value))
    return place


def _tuple_instance(planner: Planner, value: tuple, base: type, make: int, cls: int) -> int:
    content = planner.step("tuple", *planner.many(tuple.__iter__(value)))
    return planner.step("call", make, cls, content)


_BY_BASE: dict[type, Callable[..., int]] = {
    object: _plain_instance, dict: _dict_instance, OrderedDict: _dict_instance,
    list: _list_instance, tuple: _tuple_instance,
}


# ---------------------------------------------------------------------------- builtins
def _list(planner: Planner, value: list) -> int:
    if not _holds_itself(value):
        return planner.step("list", *planner.many(value))
    place = planner.remember(value, planner.step("list"))
    planner.elements(place, value)
    return place


def _dict(planner: Planner, value: dict) -> int:
    place = planner.remember(value, planner.step("dict"))
    planner.items(place, value.items())
    return place


def _holds_itself(value: list) -> bool:
    """Whether a list may be part of a cycle: it holds anything but tensors and primitives."""
    return not all(type(part) in PRIMITIVES or issubclass(type(part), Tensor) for part in value)


def _tuple(planner: Planner, value: tuple) -> int:
    return planner.step("tuple", *planner.many(value))


def _set(planner: Planner, value: set | frozenset) -> int:
    return planner.step(type(value).__name__, *planner.many(value))


def _by_attributes(*names: str) -> Callable[[Planner, Any], int]:
    def planned(planner: Planner, value: Any) -> int:
        function = planner.plan(type(value))
        parts = planner.many([getattr(value, name) for name in names])
        return planner.step("call", function, *parts)

    return planned


def _size(planner: Planner, value: Any) -> int:
    return planner.step("call", planner.plan(type(value)), planner.plan(tuple(value)))


def _method(planner: Planner, value: types.MethodType) -> int:
    return planner.step("method", planner.plan(value.__func__), planner.plan(value.__self__))


def _c_method(planner: Planner, value: types.BuiltinFunctionType) -> int:
    if not is_bound(value):
        return planner.step("const", planner.sources.name(value))
    owner, name = value.__self__, value.__name__
    for base in mro_of(type(owner)):  # `super()` may have stepped over a method of Python's
        raw = type.__dict__["__dict__"].__get__(base).get(name)
        if type(raw) in _C_DESCRIPTORS and raw.__get__(owner) == value:
            if raw_attribute(type(owner), name) is raw and name not in (instance_dict(owner) or ()):
                return planner.step("call", *planner.many((getattr, owner, name)))
            bind = planner.step("call", *planner.many((getattr, raw, "__get__")))
            return planner.step("call", bind, planner.plan(owner))
    raise GiveUp("no_recipe", f"a method of C, {value.__qualname__}")


def _ordered(planner: Planner, value: Any) -> int:
    place = planner.remember(value, planner.step("call", planner.plan(OrderedDict)))
    planner.items(place, value.items())
    return place


def _defaulting(planner: Planner, value: defaultdict) -> int:
    place = planner.step("call", planner.plan(defaultdict), planner.plan(value.default_factory))
    planner.remember(value, place)
    planner.items(place, value.items())
    return place


def _deque(planner: Planner, value: deque) -> int:
    empty = planner.plan(())
    place = planner.step("call", planner.plan(deque), empty, planner.plan(value.maxlen))
    planner.remember(value, place)
    planner.elements(place, value)
    return place


def _partial(planner: Planner, value: functools.partial) -> int:
    parts = planner.many((functools.partial, value.func, *value.args))
    place = planner.step("call", *parts)
    planner.remember(value, place)
    if value.keywords or value.__dict__:
        set_state = planner.step("call", planner.plan(getattr), place, planner.plan("__setstate__"))
        state = (value.func, value.args, value.keywords, value.__dict__ or None)
        planner.step("call", set_state, planner.plan(state))
    return place


def _cell(planner: Planner, value: types.CellType) -> int:
    place = planner.remember(value, planner.step("cell"))
    try:
        content = value.cell_contents
    except ValueError:
        return place
    planner.step("set_cell", place, planner.plan(content))
    return place


def _iterator(planner: Planner, value: Any) -> int:
    """How far an iterator of C is, as it says itself: it looks at what it holds, runs nothing."""
    function, args, *state = value.__reduce__()
    place = planner.step("call", *planner.many((function, *args)))
    if state and state[0] is not None:
        set_state = planner.step("call", planner.plan(getattr), place, planner.plan("__setstate__"))
        planner.step("call", set_state, planner.plan(state[0]))
    return place


def _dict_iterator(planner: Planner, value: Any) -> int:
    """A new iterator, moved as far: it fails as the old one would when the dict changes."""
    try:
        over, taken = dict_of(value)
    except RuntimeError:
        raise GiveUp("no_recipe", "an iterator over a dict that has changed since") from None
    if over is None:
        over = {}
    view = planner.step("call", *planner.many((OVER_DICTS[type(value)], over)))
    place = planner.step("call", planner.plan(iter), view)
    planner.step("advance", place, taken)
    return place


def _itself(planner: Planner, value: Any) -> int:
    """An object that nothing can change, though it has no name."""
    return planner.step("const", planner.sources.name(value))


def _view(planner: Planner, value: Any) -> int:
    over = viewed(value)
    method = getattr(OrderedDict if isinstance(over, OrderedDict) else dict, VIEWS[type(value)])
    return planner.step("call", *planner.many((method, over)))


def _proxy(planner: Planner, value: types.MappingProxyType) -> int:
    over = next((o for o in gc.get_referents(value) if type(o) in (dict, OrderedDict)), None)
    if over is None:
        raise GiveUp("no_recipe", "a mappingproxy")
    return planner.step("call", *planner.many((types.MappingProxyType, over)))


def _device(planner: Planner, value: Any) -> int:
    return planner.step("call", planner.plan(type(value)), planner.plan(str(value)))


_C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_BY_KIND: dict[type, Callable[[Planner, Any], int]] = {
    list: _list, dict: _dict, tuple: _tuple, set: _set, frozenset: _set, OrderedDict: _ordered,
    defaultdict: _defaulting, deque: _deque, slice: _by_attributes("start", "stop", "step"),
    range: _by_attributes("start", "stop", "step"), types.MethodType: _method,
    types.BuiltinFunctionType: _c_method, types.MethodWrapperType: _c_method, functools.partial: _partial, Size: _size, Device: _device,
    types.CellType: _cell, super: _by_attributes("__thisclass__", "__self__"),
    types.TracebackType: exceptions.traceback, types.CodeType: _itself, types.MappingProxyType: _proxy, **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(BY_REDUCE, _iterator), **dict.fromkeys(OVER_DICTS, _dict_iterator),
}
