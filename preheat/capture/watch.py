"""The watcher: sees what a program reads, calls and writes, and turns it into guards or gives up.

Reads of outside objects become guards (`guards.py`); calls into C are judged by `policies.py`; ops
are recorded by the dispatch mode meanwhile. A write to an object from outside, a look at a tensor's
value, a call that no row allows: each ends the capture with a row of `reasons.py`, and the program
goes on for real.

An object is from outside exactly if it is in `known`, or is a class, function or module that the
call did not make. Objects made by the call may be read and written freely: recipes rebuild them.
"""

import functools
import operator
import re
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from preheat.base.names import raw_attribute
from preheat.bridge.calls import LIBRARY_FOLDERS, is_tensor_attribute, reads_memory
from preheat.bridge.tensors import Device, Size, Tensor
from preheat.capture.guards import Guards, has_identity
from preheat.capture.native import CALLS, describe
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.policies import is_bookkeeping, is_bound, is_fresh_iterator, is_native, policy
from preheat.capture.recorder import Recorder
from preheat.capture.sources import PRIMITIVES, Sources
from preheat.ir.graph import Graph

# Pinned as a whole where they were met: C may look at them as it likes.
BLIND_TYPES = PRIMITIVES | {Tensor, Device, range, re.Pattern, types.UnionType, types.GenericAlias}
_MOVERS = frozenset((iter, next, len, reversed))  # operators that look at no element
_COMPARERS = frozenset((
    operator.contains, operator.getitem, operator.setitem, operator.delitem,
    operator.eq, operator.ne,
))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, Size, OrderedDict, defaultdict, deque))
_VIEWS = frozenset((type({}.keys()), type({}.values()), type({}.items())))
_COMPARING = frozenset(("sort", "remove"))  # mutating methods that compare elements
_HASHING = frozenset((
    "add", "discard", "remove", "pop", "setdefault", "__setitem__", "__delitem__", "move_to_end",
))
_TAKING_ALL = frozenset((
    "extend", "update", "__iadd__", "__ior__", "__init__", "difference_update", "__iand__",
    "intersection_update", "symmetric_difference_update", "__isub__", "__ixor__", "extendleft",
))
_TUPLE_FIELD = type(namedtuple("_Pair", "a").a)  # how a namedtuple reads a field: C, by position
_HASHED_DISPLAYS = frozenset(("dict", "set"))
_CLASSES_AND_FUNCTIONS = frozenset(("class", "function"))
_MAX_DEPTH = 50


class Watcher(Observer):
    """Collects sources, guards and ops of one call; `gave` says why and where it gave up."""

    def __init__(self, limits: Any, is_inference: bool) -> None:
        super().__init__()
        self.sources = Sources()
        self.known = self.sources.known
        self.guards = Guards(self.sources, limits.max_guards)
        self.recorder = Recorder(
            self.known_source, self.note, self.live_source, self.tested, limits.max_ops)
        self.bytecode_limit = limits.max_bytecodes
        self.is_inference = is_inference
        self.failure: tuple[str, str] | None = None
        self.gave: tuple[str, str, str, int] | None = None
        self._performed: Any = NOT_DONE  # result of the present call into C
        self._raised: Any = NOT_DONE  # its exception
        self._made: dict[int, Any] = {}  # classes and functions that the call made
        self._entered: set[int] = set()
        self._behind: dict[int, tuple[Any, Any]] = {}  # made read-only views, and their mappings
        self._locks: dict[int, int] = {}  # locks taken and not yet released
        self._contexts: dict[int, int] = {}  # context variables set and not yet reset

    # ------------------------------------------------------------------ the recorder's questions
    def known_source(self, tensor: Any) -> int | None:
        return self.known.get(id(tensor))

    def live_source(self, tensor: Any) -> int:
        return self.sources.of(tensor)

    def tested(self, graph: Graph, inputs: tuple[int, ...], answer: bool) -> None:
        """The program branches on a bool that follows from inputs by the ops of `graph`."""
        self.guards.claim(-1, "test", (graph, inputs, answer), graph)

    def note(self, reason: str, detail: str) -> None:
        """The recorder cannot go on; a C function is running, so this waits for the next hook."""
        self.failure = (reason, detail)

    def check(self, result: Any = NOT_DONE) -> None:
        """Gives up if the recorder noted a failure. `result`: of the call just performed."""
        if self.failure is not None:
            raise GiveUp(*self.failure, result)

    def gave_up(self, reason: str, detail: str, file: str, line: int) -> None:
        if self.gave is None:
            self.gave, self.failure = (reason, detail, file, line), (reason, detail)
            self.recorder.leave()

    def is_library(self, file: str) -> bool:
        return file.startswith(LIBRARY_FOLDERS)

    def is_made(self, value: Any) -> bool:
        """Whether the call made this class or function."""
        return id(value) in self._made

    def is_outside(self, value: Any) -> bool:
        """Whether `value` existed before the call."""
        if id(value) in self.known:
            return True
        kind = type(value)
        return has_identity(value, kind) and id(value) not in self._made

    # ------------------------------------------------------------------ functions
    def is_native(self, function: Any) -> bool:
        return is_native(function)

    def native_function(self, function: Any, why: str) -> None:
        if why not in ("closed", "marked"):
            raise GiveUp("native_python", f"{describe(function)} ({why})")

    def entered(self, function: Any) -> None:
        if id(function) in self._entered or id(function) in self._made:
            return
        self._entered.add(id(function))
        self.guards.function(function)

    # ------------------------------------------------------------------ reads
    def read_attribute(self, owner: Any, namespace: dict, name: str, value: Any) -> None:
        self.guards.attribute(owner, namespace, name, value)

    def miss_attribute(self, owner: Any, namespace: dict, name: str) -> None:
        self.guards.no_attribute(owner, namespace, name)

    def read_class(self, owner: Any, cls: type, name: str, raw: Any) -> None:
        if id(cls) not in self._made and not is_bookkeeping(cls):
            self.guards.class_attribute(owner, cls, name, raw)

    def read_super(self, owner: Any, cls: type, after: type, name: str, raw: Any) -> None:
        if id(cls) not in self._made:
            self.guards.super_attribute(cls, after, name)

    def read_member(self, owner: Any, name: str, value: Any) -> None:
        if issubclass(type(owner), Tensor):
            self.check()
            if not is_tensor_attribute(name) and not _is_method_of(value, owner):
                raise GiveUp("tensor_attribute", name)
            if name != "__dict__":
                return  # its guard covers it, or it was recorded as an op
        elif isinstance(owner, tuple):
            field = raw_attribute(type(owner), name)
            if type(field) is _TUPLE_FIELD:
                self.guards.item(owner, field.__reduce__()[1][0], value)
                return
        self.guards.member(owner, name, value)

    def miss_member(self, owner: Any, name: str) -> None:
        self.guards.no_member(owner, name)

    def read_global(self, namespace: dict, name: str, value: Any) -> None:
        self.guards.global_(namespace, name, value)

    def miss_global(self, namespace: dict, name: str) -> None:
        self.guards.no_global(namespace, name)

    def read_cell(self, cell: Any, value: Any) -> None:
        self.guards.cell(cell, value)

    def read_item(self, container: Any, key: Any, value: Any) -> None:
        self.guards.item(container, key, value)

    def miss_item(self, container: Any, key: Any) -> None:
        self.guards.no_item(container, key)

    def read_length(self, container: Any, length: int) -> None:
        self.guards.length(container, length)

    def read_contains(self, container: Any, value: Any, answer: bool) -> None:
        self.guards.contains(container, value, answer)

    def read_whole(self, container: Any) -> None:
        self.guards.whole(container)

    def test_type(self, value: Any, classinfo: Any, answer: bool) -> None:
        if id(type(value)) not in self._made:
            self.guards.mro(type(value))

    def type_of(self, value: Any) -> None:
        if id(type(value)) not in self._made:
            self.sources.of(type(value))  # what is read of the class is then told

    def test_subclass(self, cls: Any, classinfo: Any, answer: bool) -> None:
        if id(cls) not in self._made and issubclass(type(cls), type):
            self.guards.mro(cls)

    def test_identity(self, left: Any, right: Any, answer: bool) -> None:
        if answer or left is None or right is None:
            return
        first, second = self.known.get(id(left)), self.known.get(id(right))
        if first is not None and second is not None:
            if not (self.guards.is_pinned(left) and self.guards.is_pinned(right)):
                self.guards.differ(first, second)

    def test_truth(self, value: Any) -> bool:
        kind = type(value)
        if not issubclass(kind, Tensor):
            if raw_attribute(kind, "__bool__") is None and raw_attribute(kind, "__len__") is None:
                return True
            self.look(value, 0)
        elif not self.recorder.is_fixed(value) and self.recorder.test_of(value) is None:
            raise GiveUp("data_dependent_branch", "the truth of a tensor")
        answer = bool(value)
        self.check(answer)
        return answer

    # ------------------------------------------------------------------ births and writes
    def born(self, value: Any, kind: str) -> None:
        if kind in _CLASSES_AND_FUNCTIONS:
            self._made[id(value)] = value
        elif kind in _HASHED_DISPLAYS:
            for key in value:
                if type(key) is not str:
                    self.compare(key)

    def write_attribute(self, owner: Any, name: str, value: Any) -> None:
        self.refuse_write(owner, f"sets {_owner_name(owner)}.{name}")

    def delete_attribute(self, owner: Any, name: str) -> None:
        self.refuse_write(owner, f"deletes {_owner_name(owner)}.{name}")

    def write_item(self, container: Any, key: Any, value: Any) -> None:
        if not issubclass(type(container), Tensor):  # an op, judged by `operate`
            self.refuse_write(container, f"sets an item of a {type(container).__qualname__}")
            self.compare(key)

    def delete_item(self, container: Any, key: Any) -> None:
        self.refuse_write(container, f"deletes an item of a {type(container).__qualname__}")

    def write_cell(self, cell: Any, value: Any) -> None:
        self.refuse_write(cell, "sets a variable of an outer function")

    def write_global(self, namespace: dict, name: str, value: Any) -> None:
        raise GiveUp("write_outside", f"sets the global {name}")

    def mutate(self, container: Any, method: str, args: tuple, kwargs: dict) -> None:
        self.refuse_write(container, f"{type(container).__qualname__}.{method}")
        if method in _COMPARING:
            self.look(container, 0)
        for arg in (*args, *kwargs.values()):
            if method in _HASHING:
                self.compare(arg)
            elif method in _TAKING_ALL:
                self.shallow(arg)
                if not issubclass(type(container), (list, deque)):
                    self.hashed(arg)

    def refuse_write(self, owner: Any, detail: str) -> None:
        """Gives up if `owner` is from outside. A tensor's items are ops, its attributes are not."""
        if self.is_outside(owner):
            raise GiveUp("write_outside", detail)
        if issubclass(type(owner), Tensor):
            raise GiveUp("tensor_escape", detail)

    # ------------------------------------------------------------------ calls of C
    def c_call(self, function: Any, args: tuple, kwargs: dict) -> Any:
        self._performed = self._raised = NOT_DONE
        try:
            row = policy(function)
            return CALLS[row.kind](self, function, args, kwargs, row)
        except GiveUp:
            raise
        except BaseException as error:
            self.judge(error)
            raise

    def operate(self, function: Any, args: tuple) -> Any:
        self._performed = self._raised = NOT_DONE
        try:
            return self._operate(function, args)
        except GiveUp:
            raise
        except BaseException as error:
            self.judge(error)
            raise

    def perform(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Calls `function`, and remembers what came of it."""
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            self._raised = error
            raise
        self._performed = result
        return result

    def judge(self, error: BaseException) -> None:
        """An exception comes out of a call: unless it is the program's, the fault is ours, and the
        program goes on."""
        if error is not self._raised:
            detail = f"{type(error).__name__}: {error}"
            raise GiveUp("fault", detail, self._performed) from error

    def _operate(self, function: Any, args: tuple) -> Any:
        if function in _MOVERS:
            self.shallow(args[0])
        elif function in _COMPARERS:
            for arg in args:
                self.compare(arg)
            if issubclass(type(args[0]), Tensor) and reads_memory(function, args):
                raise GiveUp("data_dependent_number", "an index of lists that hold tensors")
        else:
            for arg in args:
                if type(arg) is not Tensor:
                    self.look(arg, 0)
        result = self.perform(function, args, {})
        self.check(result)
        return result

    def look(self, value: Any, depth: int) -> None:
        """C is about to look at `value`, deeply: pins all of it, or gives up if its reads cannot
        be seen."""
        kind = type(value)
        if kind in BLIND_TYPES:
            return
        if kind in _CONTAINERS:
            if id(value) in self.known:
                self.guards.whole(value)
            if depth > _MAX_DEPTH:
                raise GiveUp("opaque_argument", "a container nested too deeply")
            for part in _parts(value, kind):
                self.look(part, depth + 1)
            return
        if issubclass(kind, Tensor) or has_identity(value, kind):
            return
        if is_fresh_iterator(kind):
            if id(value) in self.known:
                raise GiveUp("outside_iterator", kind.__qualname__)
            return
        if kind in _VIEWS and id(value) not in self.known:
            for part in value:
                self.look(part, depth + 1)
            return
        if kind is re.Match and id(value) not in self.known:
            return
        if kind is types.MappingProxyType:
            self.look(self.behind(value, kind), depth + 1)
            return
        if issubclass(kind, BaseException) and id(value) not in self.known:
            self.look(value.args, depth + 1)
            return
        if kind is slice:
            for part in (value.start, value.stop, value.step):
                self.look(part, depth + 1)
            return
        raise GiveUp("opaque_argument", f"a {kind.__module__}.{kind.__qualname__}")

    def behind(self, value: Any, kind: type) -> Any:
        """`value`, or the mapping behind a read-only view of it; a view from outside shows what no
        guard sees."""
        if kind is not types.MappingProxyType:
            return value
        made = self._behind.get(id(value))
        if made is None:
            raise GiveUp("opaque_argument", "a mappingproxy")
        return made[1]

    def compare(self, value: Any) -> None:
        """C hashes `value` or compares it: an object that does both by identity is no obstacle."""
        kind = type(value)
        if kind in PRIMITIVES or kind is Tensor:
            return
        if _is_compared_by_identity(kind):
            if id(value) in self.known:
                self.guards.distinct(self.known[id(value)])
        elif kind is types.MappingProxyType:
            self.compare(self.behind(value, kind))
        elif is_fresh_iterator(kind):
            raise GiveUp("opaque_argument", f"a {kind.__qualname__} whose elements are compared")
        elif kind in _CONTAINERS:
            if id(value) in self.known:
                self.guards.whole(value)
            for part in _parts(value, kind):
                self.compare(part)
        else:
            self.look(value, 0)

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

    def shallow(self, value: Any) -> None:
        """C moves the elements of `value` without looking at them."""
        value = self.behind(value, type(value))
        if id(value) not in self.known:
            return
        kind = type(value)
        if issubclass(kind, (list, tuple, dict, set, frozenset)):
            self.guards.whole(value)
        elif is_fresh_iterator(kind) or kind in _VIEWS:
            raise GiveUp("outside_iterator", kind.__qualname__)
        elif not (kind in BLIND_TYPES or issubclass(kind, Tensor) or has_identity(value, kind)):
            raise GiveUp("opaque_argument", f"a {kind.__module__}.{kind.__qualname__}")

    def pin_function(self, function: Any) -> None:
        """Code and defaults of a function that runs natively."""
        if type(function) is types.FunctionType and id(function) not in self._entered:
            self._entered.add(id(function))
            self.guards.function(function)

    # ------------------------------------------------------------------ start and end
    def begin(self, target: Any, args: tuple, kwargs: dict, ambient: tuple) -> None:
        """The guards of the entry: ambient state, the target, the arguments."""
        sources, guards = self.sources, self.guards
        for name, value in ambient:
            guards.claim(-1, "ambient", (name, value), name)
        entry = sources.root("entry")
        if has_identity(target, type(target)):
            sources.know(target, entry)
        else:
            guards.meet(entry, target)
        for position, value in enumerate(args):
            guards.meet(sources.root("arg", position), value)
        for name, value in kwargs.items():
            guards.meet(sources.root("kwarg", name), value)

    def unfinished(self) -> tuple[str, str] | None:
        """What the call left undone that a replay would have to do: a reason and its detail."""
        if self.failure is not None:
            return self.failure
        if self._contexts:
            return "write_outside", "sets a context variable"
        if self._locks:
            return "host_call", "acquire of a lock that is not released"
        return None

    @property
    def frames(self) -> int:
        """How many functions from outside ran interpreted."""
        return len(self._entered)


# ---------------------------------------------------------------------------- names and parts
@functools.lru_cache(maxsize=None)
def _is_compared_by_identity(kind: type) -> bool:
    """Whether `==` and `hash` of instances of `kind` are object's own."""
    same = (
        raw_attribute(kind, "__eq__") is object.__eq__
        and raw_attribute(kind, "__hash__") is object.__hash__
    )
    return same and not issubclass(kind, Tensor)


def _owner_name(owner: Any) -> str:
    return owner.__qualname__ if issubclass(type(owner), type) else type(owner).__qualname__


def _is_method_of(value: Any, owner: Any) -> bool:
    return is_bound(value) and value.__self__ is owner


def _parts(value: Any, kind: type) -> list:
    """The elements of an exact container: keys and values of a dict."""
    if issubclass(kind, dict):
        return [*dict.keys(value), *dict.values(value)]
    return list(value)