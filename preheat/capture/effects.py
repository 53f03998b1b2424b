"""Effects: what a node of the program writes to objects from outside, in program order.

    self.calls = 3;  log.append(y)     ->     write s0 "calls" 3;  mutate s4 "append" y

The program has written for real; the steps here do it again on replay, at the end of the node: no
one can see memory between the node's tensor ops and its end. A value is planned when the node ends,
with the content it has by then: an object that the program made is built once, whatever was done to
it since. What C consumes at once (the items of `list.extend`) is copied when it is consumed.

What is read back where it was written is known and needs no guard (`value`); a read that would mix
old memory and new (the length of a list that grew) must end the node first (`touches`).
"""

from typing import Any

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.bridge.tensors import Parameter, Tensor
from preheat.capture.observer import ABSENT, NOT_DONE
from preheat.capture.sources import PRIMITIVES

# Methods of containers that look at nothing of their owner, give nothing, and cannot fail.
BLIND = frozenset((
    "append", "appendleft", "extend", "extendleft", "insert", "clear", "update", "add", "discard",
    "__iadd__", "__ior__",
))
_CONSUMING = frozenset(("extend", "extendleft", "update", "__iadd__", "__ior__"))
_COPIES = {list: list, tuple: tuple, dict: dict, set: set, frozenset: frozenset}


@dataclass(frozen=True, slots=True)
class Effect:
    """One write: `kind` is a step kind of ir/trace; `parts` its arguments, values not yet planned.

    write, setitem, set_cell   (name or key), value        delete, delitem    name or key
    mutate                     method, args, kwargs        empty_cell         nothing
    """

    kind: str
    target: Any
    parts: tuple[Any, ...] = ()


class Effects:
    """The writes of one node, and where they went."""

    def __init__(self) -> None:
        self.list: list[Effect] = []
        self.targets: dict[int, Any] = {}  # objects written to, by id
        self._values: dict[tuple, Any] = {}  # (id of container, type of key, key) -> value or ABSENT
        self._keys: dict[int, Any] = {}  # what is in `_values` by id
        self._changed: dict[int, Any] = {}  # containers of which more changed than single entries
        self.class_names: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.list)

    def add(self, kind: str, target: Any, *parts: Any) -> None:
        self.list.append(Effect(kind, target, parts))
        self.targets[identity(target)] = target

    def entry(self, container: Any, key: Any, value: Any, is_new: bool = False) -> None:
        """`container[key]` is now `value`, or gone if ABSENT; `is_new`: its keys have changed."""
        place = _place(container, key)
        if place is None:
            self.changed(container)
            return
        self._values[place] = value
        self._keys[identity(key)] = key
        if is_new or value is ABSENT:
            self._values[identity(container), "keys"] = True
        self.targets.setdefault(identity(container), container)

    def class_written(self, cls: type, name: str, value: Any) -> None:
        """`cls.name` is now `value`, or gone if ABSENT."""
        self.class_names.add(name)
        self.entry(cls, name, value)

    def changed(self, container: Any) -> None:
        """Any part of `container` may have changed."""
        self._changed[identity(container)] = container

    def value(self, container: Any, key: Any) -> Any:
        """What this node wrote there: a value, ABSENT if it deleted it, NOT_DONE if nothing."""
        place = _place(container, key)
        return NOT_DONE if place is None else self._values.get(place, NOT_DONE)

    def touches(self, container: Any) -> bool:
        """Whether a read of all of `container`, its length or its keys would see a write."""
        here = identity(container)
        return here in self._changed or any(place[0] == here for place in self._values)

    def has_other_length(self, container: Any) -> bool:
        """Whether more than what is behind known keys, or at known places, may have changed."""
        return identity(container) in self._changed or (identity(container), "keys") in self._values

    def has_changed(self, container: Any) -> bool:
        """Whether any part of `container` may have changed."""
        return identity(container) in self._changed


def _place(container: Any, key: Any) -> tuple | None:
    """What tells an entry apart from others; None for a key that may be equal to another object."""
    kind = type(key)
    if kind in PRIMITIVES:
        return identity(container), kind, key
    return (identity(container), Tensor, identity(key)) if kind in _BY_IDENTITY else None


_BY_IDENTITY = frozenset((Tensor, Parameter))  # they hash by identity, and so dicts find them


def consumed(method: str, args: tuple) -> tuple | None:
    """`args` as they will be needed again; None when C consumes what cannot be had again."""
    if method not in _CONSUMING:
        return args
    copies = []
    for arg in args:
        copy = _COPIES.get(type(arg))
        if copy is None:
            return None
        copies.append(copy(arg))
    return tuple(copies)
