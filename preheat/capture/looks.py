"""Looks: what C sees of an argument is pinned whole, or the call is not one that can be captured.

    look(value)       C may look at all of it, deeply (repr, sum, an op's list of sizes)
    compare(value)    C hashes or compares it
    shallow(value)    C moves its elements without looking at them

Default deny by the type of the argument: primitives, tensors, exact builtin containers and
iterators of C that the call made; anything else raises GiveUp, and the call becomes a host call.
"""

import functools
import operator
import re
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import raw_attribute
from preheat.bridge.symint import is_box
from preheat.bridge.tensors import Device, Parameter, Size, Tensor
from preheat.capture.guards import Guards
from preheat.capture.identities import has_identity
from preheat.capture.lists import KEYED, takes_keys
from preheat.capture.observer import GiveUp
from preheat.capture.policies import is_bound, is_fresh_iterator
from preheat.capture.sources import PRIMITIVES
from preheat.capture.spoken import holds_tensor, tells
from preheat.ir.dims import source_of
from preheat.ir.scalar import symbols
from preheat.ir.text_trace import keys_path, range_path, source_path

# Pinned as a whole where they were met: C may look at them as it likes.
BLIND_TYPES = PRIMITIVES | {Tensor, Device, range, re.Pattern, types.UnionType, types.GenericAlias}
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, Size, OrderedDict, defaultdict, deque))
_VIEWS = frozenset((type({}.keys()), type({}.values()), type({}.items())))
_SEQUENCES = (list, deque, bytearray)
_INDEXED = frozenset(("insert", "pop", "rotate", "__setitem__", "__delitem__", "__imul__"))
TAKING_ALL = frozenset((
    "extend", "update", "__iadd__", "__ior__", "__init__", "difference_update", "__iand__",
    "intersection_update", "symmetric_difference_update", "__isub__", "__ixor__", "extendleft",
))
_TAKEN_BY = ("__iter__", "__next__", "__getitem__", "__index__")
_TAKING_INDICES = frozenset((operator.getitem, operator.setitem, operator.delitem))
BY_KEY = _TAKING_INDICES | {operator.contains}
HASHING = frozenset((
    "add", "discard", "remove", "pop", "setdefault", "__setitem__", "__delitem__", "move_to_end",
))
KEYS_BY_IDENTITY = frozenset((Tensor, Parameter))
MAKING_TEXTS = frozenset(("pure", "operator"))
_MAX_DEPTH = 50


class Looks:
    """The part of the watcher that judges what C is about to look at."""

    known: dict[int, int]
    numbers: dict[int, Any]
    often: dict[int, Any]  # numbers of the node before that were such keys, by id
    guards: Guards
    read_whole: Callable[[Any], None]
    pin_sizes_within: Callable[[Any], None]
    _behind: dict[int, tuple[Any, Any]]  # made read-only views, and their mappings

    def read_all(self, container: Any) -> None:
        """C is about to look at all of a known container: that is a host call where its length is
        another one from call to call."""
        if self.guards.is_moving_list(container):
            path = source_path(self.guards.sources, self.known[identity(container)])
            raise GiveUp("list_length", f"{path}, of {len(container)} elements")
        self.read_whole(container)

    def look(self, value: Any, depth: int) -> None:
        """C is about to look at `value`, deeply: pins all of it, or gives up if its reads cannot
        be seen."""
        kind = type(value)
        if kind in BLIND_TYPES:
            if self.numbers:
                self.guards.numbers.pin_all(_ends(value) if kind is range else value)
            return
        if kind in _CONTAINERS:
            if identity(value) in self.known:
                self.read_all(value)
            if depth > _MAX_DEPTH:
                raise GiveUp("opaque_argument", "a container nested too deeply")
            for part in _parts(value, kind):
                self.look(part, depth + 1)
            return
        if issubclass(kind, Tensor) or has_identity(value, kind):
            return
        if is_fresh_iterator(kind):
            if identity(value) in self.known:
                raise GiveUp("outside_iterator", kind.__qualname__)
            return
        if kind in _VIEWS and identity(value) not in self.known:
            for part in value:
                self.look(part, depth + 1)
            return
        if kind is re.Match and identity(value) not in self.known:
            return
        if kind is types.MappingProxyType:
            self.look(self.behind(value, kind), depth + 1)
            return
        if issubclass(kind, BaseException) and identity(value) not in self.known:
            self.look(value.args, depth + 1)
            return
        if kind is slice:
            for part in (value.start, value.stop, value.step):
                self.look(part, depth + 1)
            return
        if not is_box(value):
            raise GiveUp("opaque_argument", f"a {kind.__module__}.{kind.__qualname__}")

    def look_own(self, owner: Any) -> None:
        """A method of C looks at the object that it was found on: at the content that its C base
        keeps, whatever a subclass overrides."""
        kind = type(owner)
        if kind in _CONTAINERS or not issubclass(kind, (dict, list, tuple, set, frozenset)):
            self.look(owner, 0)
            return
        if identity(owner) in self.known:
            self.read_all(owner)
        for part in _parts(owner, kind):
            self.look(part, 1)

    def behind(self, value: Any, kind: type) -> Any:
        """`value`, or the mapping behind a read-only view of it; a view from outside shows what no
        guard sees."""
        if kind is not types.MappingProxyType:
            return value
        made = self._behind.get(identity(value))
        if made is None:
            raise GiveUp("opaque_argument", "a mappingproxy")
        return made[1]

    def look_through(self, value: Any, makes_text: bool = False) -> None:
        """Functions of C are called on elements of `value`: at the sizes that tensors in it have."""
        if makes_text and holds_tensor(value):
            raise GiveUp("host_call", "a text of tensors")
        self.look(value, 0)
        self.pin_sizes_within(value)

    def refuse_text(self, kind: str, function: Any, args: tuple, kwargs: dict) -> None:
        """Gives up if the call makes a text of tensors, which nobody sees C read."""
        if kind in MAKING_TEXTS and tells(function, args, kwargs):
            raise GiveUp("host_call", f"{function.__name__} of a container of tensors")

    def compare(self, value: Any) -> None:
        """C hashes `value` or compares it: an object that does both by identity is no obstacle."""
        kind = type(value)
        if self.numbers and (kind in PRIMITIVES or kind is Tensor):
            self.guards.numbers.pin(value)
        if kind in PRIMITIVES:
            return
        if _is_compared_by_identity(kind) or issubclass(kind, Tensor):  # a tensor is hashed so
            if identity(value) in self.known:
                self.guards.distinct(self.known[identity(value)])
        elif kind is types.MappingProxyType:
            self.compare(self.behind(value, kind))
        elif is_fresh_iterator(kind):
            raise GiveUp("opaque_argument", f"a {kind.__qualname__} whose elements are compared")
        elif kind in _CONTAINERS:
            if identity(value) in self.known:
                self.read_all(value)
            for part in _parts(value, kind):
                self.compare(part)
        else:
            self.look(value, 0)

    def compare_all(self, function: Callable, args: tuple) -> None:
        """C compares `args`, or finds an item of the first by the second: of no dict, an index is a
        number that C asks an object for."""
        if function in BY_KEY and self.is_keyed(*args[:2]):
            raise GiveUp("changing_key", f"{args[1]!r}")
        self.compare(args[0])
        if function in _TAKING_INDICES and not issubclass(type(args[0]), dict):
            self.look(args[1], 0)
            args = args[2:]
        for arg in args[1:]:
            self.compare(arg)

    def asks_python(self, container: Any, method: str, args: tuple) -> bool:
        """Whether a method of C that changes a container asks an object for a number, or for elements."""
        if method in _INDEXED and issubclass(type(container), _SEQUENCES):
            return bool(args) and type(args[0]) not in PRIMITIVES
        return method in TAKING_ALL and any(map(runs_python, args))

    def taken(self, value: Any) -> None:
        """C takes elements of `value`, or a number: it must run no Python for that."""
        if runs_python(value):
            raise GiveUp("opaque_argument", f"a {type(value).__module__}.{type(value).__qualname__}")

    def is_key_by_identity(self, key: Any) -> bool:
        return type(key) in KEYS_BY_IDENTITY

    def compare_first(self, pair: Any) -> None:
        """C makes an entry of a dict of `pair`."""
        self.compare(pair[0] if type(pair) in (tuple, list) and pair else pair)

    def hashed(self, value: Any) -> None:
        """C puts the elements of `value` into a set, or its keys into a dict."""
        kind = type(value)
        if issubclass(kind, (list, tuple, dict, set, frozenset)):
            for part in kind.__iter__(value) if kind in _CONTAINERS else ():
                if type(part) is not str:
                    self.compare(part)

    def is_keyed(self, container: Any, key: Any) -> bool:
        """Whether what `container` has at `key` is to be found by a host call: by a number that is often another one."""
        return takes_keys(container) and self.is_changing_key(key) and (
            identity(container) in self.known or type(container) in KEYED and self._can_be_asked(container, key))

    def is_changing_key(self, key: Any) -> bool:
        """Whether `key` is, or is a tuple with, a number that is often another one."""
        held = [part for part in _leaves(key) if identity(part) in self.numbers]
        return bool(held) and self._are_looked_at_often(held)

    def _are_looked_at_often(self, values: Iterable[Any]) -> bool:
        """Whether one of `values` follows from a number that was looked at, and another one in each of three calls; but
        for numbers that this node has looked at in another way."""
        guards = self.guards
        scalars = filter(None, map(guards.numbers.scalar_of, values))
        return any(
            self._is_often(name) and not guards.is_pinned(source_of(name))
            for scalar in scalars for name in symbols(scalar)) and guards.can_end()

    def _is_often(self, name: str) -> bool:
        guards = self.guards
        return identity(guards.numbers.of(name)) in self.often or (
            range_path(source_path(guards.sources, source_of(name))) in guards.dynamic)

    def has_other_keys(self, container: Any) -> bool:
        sources = self.guards.sources
        return keys_path(source_path(sources, sources.known[identity(container)])) in self.guards.dynamic

    def refuse_changing_key(self, function: Any, args: tuple) -> None:
        """Gives up if a method of a container is given such a key: it is called anew on every call."""
        if getattr(function, "__name__", "") in HASHING:
            owner, *rest = (function.__self__, *args) if is_bound(function) else args
            if rest and self.is_keyed(owner, rest[0]):
                raise GiveUp("changing_key", f"{rest[0]!r}")

    def _can_be_asked(self, container: Any, key: Any) -> bool:
        """Whether a container of the call's own can surely be made again for a host call, and is not asked for one of a
        few, as by n % 3: each of these is captured."""
        numbers = self.guards.numbers
        return not numbers.is_of_many(numbers.scalar_of(key)) and all(map(self._can_be_given, _values(container)))

    def _can_be_given(self, value: Any) -> bool:
        return type(value) in PRIMITIVES or type(value) is Tensor or identity(value) in self.known

    def shallow(self, value: Any, is_iterated: bool = False) -> None:
        """C moves the elements of `value` without looking at them."""
        value = self.behind(value, type(value))
        kind = type(value)
        if identity(value) not in self.known:
            if kind is range and self.numbers and self.guards.numbers.holds_one(_ends(value)):
                if is_iterated and self._are_looked_at_often(_ends(value)):
                    self.guards.moving_lists[identity(value)] = value
                if self.guards.moving_lists and self.guards.can_end():
                    raise GiveUp("list_length", "a range of a number that changes")
                self.guards.numbers.pin_all(_ends(value))
            return
        if issubclass(kind, (list, tuple, dict, set, frozenset)):
            self.read_all(value)
        elif is_fresh_iterator(kind) or kind in _VIEWS:
            raise GiveUp("outside_iterator", kind.__qualname__)
        elif not (kind in BLIND_TYPES or issubclass(kind, Tensor) or has_identity(value, kind)):
            raise GiveUp("opaque_argument", f"a {kind.__module__}.{kind.__qualname__}")


@functools.lru_cache(maxsize=None)
def _is_compared_by_identity(kind: type) -> bool:
    """Whether `==` and `hash` of instances of `kind` are object's own."""
    same = (
        raw_attribute(kind, "__eq__") is object.__eq__
        and raw_attribute(kind, "__hash__") is object.__hash__
    )
    return same and not issubclass(kind, Tensor)


def runs_python(value: Any) -> bool:
    """Whether C would run Python to iterate `value`, or to get a number from it."""
    kind = type(value)
    return not issubclass(kind, (Tensor, type)) and _has_python(kind)


@functools.lru_cache(maxsize=None)
def _has_python(kind: type) -> bool:
    return any(type(raw_attribute(kind, name)) is types.FunctionType for name in _TAKEN_BY)


def _leaves(key: Any) -> list:
    """What a key is made of: the parts of a tuple, deeply."""
    if type(key) is not tuple and type(key) is not Size:
        return [key]
    return [leaf for part in key for leaf in _leaves(part)]


def _values(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _ends(value: range) -> tuple[int, int, int]:
    return value.start, value.stop, value.step


def _parts(value: Any, kind: type) -> list:
    """The elements of an exact container: keys and values of a dict."""
    if issubclass(kind, dict):
        return [*dict.keys(value), *dict.values(value)]
    base = next(b for b in (list, tuple, set, frozenset, object) if issubclass(kind, b))
    return list(base.__iter__(value)) if base is not object else list(value)
