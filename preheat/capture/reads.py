"""Reads: the hooks of the watcher by which reads of outside objects become guards.

A guard speaks of memory as the node finds it. So each read first asks the effects of the node:
what the node itself has put there is known and needs no guard; a read that would see memory half as
it was and half as the node left it ends the node, and is a read of the next one.
"""

from abc import ABCMeta
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import mro_of, raw_attribute
from preheat.bridge.calls import is_tensor_attribute
from preheat.bridge.tensors import Tensor
from preheat.capture.effects import Effects
from preheat.capture.guards import Guards
from preheat.capture.looks import KEYS_BY_IDENTITY
from preheat.capture.observer import ABSENT, NOT_DONE, Observer
from preheat.capture.policies import is_bookkeeping, is_bound
from preheat.capture.sources import Sources

HISTORY = frozenset(("__traceback__", "__context__"))  # what raising an exception changes
_NAMING = KEYS_BY_IDENTITY | {str}
_OF_ITS_OWN = frozenset(("__dict__", "grad"))  # attributes of tensors that are sources
_TUPLE_FIELD = type(namedtuple("_Pair", "a").a)  # how a namedtuple reads a field: C, by position


class Reads(Observer):
    """The part of the watcher that is told of reads."""

    effects: Effects
    guards: Guards
    sources: Sources
    made: dict[int, tuple[Any, Any]]
    risen: dict[int, tuple[BaseException, Any, Any]]
    compare: Callable[[Any], None]

    def go_on(self, reason: str, detail: str) -> None:
        """Ends the node before the present instruction."""
        raise NotImplementedError

    def check(self, result: Any = NOT_DONE) -> None:
        """Gives up if the recorder noted a failure."""
        raise NotImplementedError

    def is_own(self, container: Any, key: Any, value: Any) -> bool:
        """Whether this node has itself put there what is read.

        A read that would see memory as it was before some of the node's writes and as it is after
        others ends the node first.
        """
        if not self.effects:
            return False
        written = self.effects.value(container, key)
        if written is NOT_DONE:
            if self.effects.has_changed(container):
                self.go_on("own_write_read", f"reads {key!r} of what it changed")
            return False
        if written is not value:
            self.go_on("own_write_read", f"reads {key!r}, which it wrote")
            return False
        return True

    def end_if_touched(self, container: Any) -> None:
        """All of `container`, its keys or its length are read: not half old and half new."""
        if self.effects and self.effects.touches(container):
            self.go_on("own_write_read", f"reads a {type(container).__qualname__} that it changed")

    def read_attribute(self, owner: Any, namespace: dict, name: str, value: Any) -> int | float | None:
        if not self.is_own(namespace, name, value):
            return self.guards.attribute(owner, namespace, name, value)
        return None

    def miss_attribute(self, owner: Any, namespace: dict, name: str) -> None:
        if not self.is_own(namespace, name, ABSENT):
            self.guards.no_attribute(owner, namespace, name)

    def read_class(self, owner: Any, cls: type, name: str, raw: Any) -> None:
        if is_bookkeeping(cls):
            return
        if name in self.effects.class_names:
            if raw is not ABSENT and self.effects.value(cls, name) is raw:
                return  # the first class that is asked has it from this node
            self.go_on("own_write_read", f"reads the class attribute {name}, which it wrote")
        if identity(cls) in self.made:
            self._read_bases(mro_of(cls), name)
        else:
            self.guards.class_attribute(owner, cls, name, raw)

    def class_number(self, cls: type, name: str) -> int | float | None:
        return None if name in self.effects.class_names else self.guards.class_number(cls, name)

    def read_super(self, owner: Any, cls: type, after: type, name: str, raw: Any) -> None:
        if name in self.effects.class_names:
            self.go_on("own_write_read", f"reads the class attribute {name}, which it wrote")
        if identity(cls) in self.made:
            order = mro_of(cls)
            self._read_bases(order[order.index(after) + 1:], name)
        else:
            self.guards.super_attribute(cls, after, name)

    def _read_bases(self, classes: tuple[type, ...], name: str) -> None:
        """A class that the call made was asked: those of its bases from outside are read."""
        for base in classes:
            if identity(base) not in self.made:
                self.guards.class_attribute(base, base, name, raw_attribute(base, name, ABSENT))
            if name in type.__dict__["__dict__"].__get__(base):
                return

    def read_member(self, owner: Any, name: str, value: Any) -> int | float | None:
        if self._is_own_member(owner, name, value):
            return None
        if name in HISTORY and identity(owner) in self.risen:
            self.go_on("own_write_read", f"reads {name} of an exception that it raised")
        if issubclass(type(owner), Tensor):
            self.check()
            if name not in _OF_ITS_OWN:
                return self.read_size(owner, name)  # its guard covers it, or it was recorded as an op
        elif isinstance(owner, tuple):
            field = raw_attribute(type(owner), name)
            if type(field) is _TUPLE_FIELD:
                return self.guards.item(owner, field.__reduce__()[1][0], value)
        return self.guards.member(owner, name, value)

    def miss_member(self, owner: Any, name: str) -> None:
        if not self._is_own_member(owner, name, ABSENT):
            self.guards.no_member(owner, name)

    def _is_own_member(self, owner: Any, name: str, value: Any) -> bool:
        """As `is_own`: an attribute that C finds may lie in the dict of the object."""
        if self.is_own(owner, name, value):
            return True
        namespace = self.guards.own_namespace(owner, name) if self.effects else None
        return namespace is not None and self.is_own(namespace, name, value)

    def read_global(self, namespace: dict, name: str, value: Any) -> int | float | None:
        if not self.is_own(namespace, name, value):
            return self.guards.global_(namespace, name, value)
        return None

    def miss_global(self, namespace: dict, name: str) -> None:
        if not self.is_own(namespace, name, ABSENT):
            self.guards.no_global(namespace, name)

    def read_cell(self, cell: Any, value: Any) -> int | float | None:
        if not self.is_own(cell, None, value):
            return self.guards.cell(cell, value)
        return None

    def _is_answer(self) -> bool:
        """Whether the present instruction was a host call: what it gave is guarded as a slot."""
        return self.answered >= 0 and self.answered == self.machine.instant()

    def read_item(self, container: Any, key: Any, value: Any) -> int | float | None:
        if self._is_answer():
            return None
        if self.effects and type(key) is int and key < 0 and not isinstance(container, dict):
            self.end_if_touched(container)
        if type(key) in KEYS_BY_IDENTITY:
            self.compare(key)
        if not self.is_own(container, key, value):
            return self.guards.item(container, key, value)
        return None

    def miss_item(self, container: Any, key: Any) -> None:
        if self._is_answer():
            return
        if not isinstance(container, dict):
            self.end_if_touched(container)
        elif type(key) in KEYS_BY_IDENTITY:
            self.compare(key)
        if not self.is_own(container, key, ABSENT):
            self.guards.no_item(container, key)

    def read_length(self, container: Any, length: int) -> int | None:
        if self.effects and self.effects.has_other_length(container):
            self.end_if_touched(container)
        return self.guards.length(container, length)

    def read_contains(self, container: Any, value: Any, answer: bool) -> None:
        if self._is_answer():
            return
        if type(value) in KEYS_BY_IDENTITY:
            self.compare(value)
        is_named = type(value) in _NAMING and issubclass(type(container), dict)
        if not is_named or self.effects.has_changed(container):
            self.end_if_touched(container)
        elif self.effects and self.effects.value(container, value) is not NOT_DONE:
            return  # what the node itself has put there, or taken away
        self.guards.contains(container, value, answer)

    def read_members(self, container: Any) -> list:
        self.end_if_touched(container)
        if isinstance(container, dict):
            self.guards.keys(container)
            return list(dict.keys(container))
        self.guards.whole(container)
        return list(container)

    def is_one_of(self, value: Any, members: list) -> bool:
        return self.guards.numbers.is_one_of(value, members)

    def read_whole(self, container: Any) -> None:
        self.end_if_touched(container)
        self.guards.whole(container)

    def test_type(self, value: Any, classinfo: Any, answer: bool) -> None:
        if identity(type(value)) not in self.made:
            self.guards.mro(type(value))
            self._ask_abstract(type(value), classinfo)

    def type_of(self, value: Any) -> None:
        if identity(type(value)) not in self.made:
            self.sources.of(type(value))  # what is read of the class is then told

    def test_subclass(self, cls: Any, classinfo: Any, answer: bool) -> None:
        if identity(cls) not in self.made and issubclass(type(cls), type):
            self.guards.mro(cls)
            self._ask_abstract(cls, classinfo)

    def _ask_abstract(self, cls: type, classinfo: Any) -> None:
        """Abstract base classes are asked again on every call: any class may be registered."""
        for asked in classinfo if type(classinfo) is tuple else (classinfo,):
            if type(asked) is tuple:
                self._ask_abstract(cls, asked)
            elif issubclass(type(asked), ABCMeta):
                expected = self.sources.name(asked), issubclass(cls, asked)
                self.guards.claim(self.sources.of(cls), "issubclass", expected, asked)

    def test_identity(self, left: Any, right: Any, answer: bool) -> None:
        if answer or left is None or right is None:
            return
        first, second = self.known.get(identity(left)), self.known.get(identity(right))
        if first is not None and second is not None:
            if not (self.guards.is_pinned(left) and self.guards.is_pinned(right)):
                self.guards.differ(first, second)


def is_opaque_member(owner: Any, name: str, value: Any) -> bool:
    """Attributes of tensors that no guard covers and no op records (`t.data`)."""
    if not issubclass(type(owner), Tensor):
        return False
    return not (is_tensor_attribute(owner, name, value) or _is_method_of(value, owner))


def _is_method_of(value: Any, owner: Any) -> bool:
    return is_bound(value) and value.__self__ is owner
