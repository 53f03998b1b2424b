"""Guards: each read of something from outside becomes a claim that later calls are checked by.

    self.training, read in forward   ->   s5 = s0.__dict__["training"];  guard s5 value False

`meet(source, value)` is the heart: it decides, by what the value is, which claim pins it. A
primitive is pinned by value; an object with an identity of its own (a class, a function, a dtype)
by `is`; a function without an importable name by its code; a tensor by its facts; any other object
by its type, and its content is pinned where the program reads it. A number that is known to change
is pinned by its type only, and the program sees one of its own (`numbers.py`). The second path to an object is
pinned by `is At(first)`, so that objects which were one are one again. Negative reads (absent keys,
missing attributes) are claims too.

Only memory as it was when the node started is read here: what the node itself has written is known,
and a read that would see both ends the node first (`watch.py`).
"""

import builtins
import functools
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from preheat.base.digest import code_digest
from preheat.base.identity import identity
from preheat.base.names import instance_dict, is_heap_type, mro_of, raw_attribute
from preheat.base.numbers import has_copies
from preheat.bridge.calls import VALUE_TYPES
from preheat.bridge.symint import is_available
from preheat.bridge.tensors import Tensor, has_marks, is_plain, marks_of, tensor_facts
from preheat.capture.arithmetic import NUMBERS
from preheat.capture.identities import has_identity
from preheat.capture.numbers import TOLD, Numbers, symbol_of
from preheat.capture.observer import ABSENT, GiveUp
from preheat.capture.sizes import is_symbolic, moving_axes, now, shown_type
from preheat.capture.sources import PRIMITIVES, Sources
from preheat.ir.dims import is_size, size_symbol, stride_symbol
from preheat.ir.scalar import Number, Scalar, apply
from preheat.ir.text_trace import axis_path, items_path, source_path
from preheat.ir.trace import At, Code, Guard, Named, Source
from preheat.ir.types import TensorType

_BUILTINS = builtins.__dict__
_BOUND_TO_C = (types.BuiltinFunctionType, types.MethodWrapperType)
_BY_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    re.Pattern: ("pattern", "flags"),
    slice: ("start", "stop", "step"), range: ("start", "stop", "step"),
    types.MethodType: ("__func__", "__self__"), functools.partial: ("func", "args", "keywords"),
    types.BuiltinFunctionType: ("__self__", "__name__"),
    types.MethodWrapperType: ("__self__", "__name__"),
    **VALUE_TYPES,
}
# All that are empty are one object: it comes from nowhere.
_ONE_IF_EMPTY = frozenset((tuple, frozenset))
_C_PLACES = frozenset((types.MemberDescriptorType, types.GetSetDescriptorType))
_FUNCTIONS_OF = {  # where a descriptor of C keeps the functions that it calls
    property: ("fget", "fset", "fdel"), classmethod: ("__func__",), staticmethod: ("__func__",),
}


class Guards:
    """The claims of a node under construction, in the order of the reads."""

    def __init__(self, sources: Sources, limit: int) -> None:
        self.sources = sources
        self.numbers = Numbers(sources.numbers, self._look, self._test, sources.number)
        self.dynamic: frozenset[str] = frozenset()  # paths of sources whose numbers change
        self.carried: dict[int, Any] = {}  # runtime numbers of the node before, by id
        self.moving_lists: dict[int, Any] = {}  # lists whose length changes from call to call, by id
        self.can_end: Callable[[], bool] = lambda: True  # whether a node could end here
        self.carried_axes: dict[int, frozenset[int]] = {}  # of its tensors: axes that change, by id
        self.tensors: dict[int, TensorType] = {}  # types of tensors from outside, by source
        self.has_sizes: Callable[[], None] = lambda: None  # told when a size becomes a symbol
        self.tested: Callable[[Scalar], None] = lambda scalar: None  # told of each test
        self._replaced: dict[tuple, int | float] = {}  # place that was read -> what is seen there
        self.limit = limit
        self.list: list[Guard] = []
        self.codes: list[Code] = []
        self.compared: dict[int, None] = {}
        self._claimed: set[tuple] = set()
        self._read: set[tuple] = set()
        self._is_mutable_class: dict[type, bool] = {}

    def claim(self, source: int, kind: str, expected: Any, key: Any = None) -> None:
        """Adds a guard once; `key` tells apart guards of one source and kind."""
        place = (source, kind, key)
        if place not in self._claimed:
            self._claimed.add(place)
            self.list.append(Guard(source, kind, expected))
            if len(self.list) > self.limit:
                raise GiveUp("limit_guards", f"{self.limit} guards")

    def finish(self) -> list[Guard]:
        """All claims but those that a source implies: where an item is read, its key is there."""
        if len(self.compared) > 1:
            self.claim(-1, "distinct", tuple(self.compared))
        for name in self.numbers.sizes:
            if is_size(name) and name not in self.numbers.same:
                self._test(apply("ge", self.numbers.sizes[name], 1), True)
        return [self._as_known(guard) for guard in self.list if not self._is_implied(guard)]

    def _as_known(self, guard: Guard) -> Guard:
        """Of a tensor, whose sizes some guards have made numbers."""
        if guard.kind != "tensor" or not is_symbolic(guard.expected.type):
            return guard
        return replace(guard, expected=replace(
            guard.expected, type=now(guard.expected.type, self.numbers)))

    def _is_implied(self, guard: Guard) -> bool:
        source = self.sources.table[guard.source] if guard.source >= 0 else None
        if source is not None and self.numbers.sizes:
            if source.kind in ("size", "stride") and guard.kind == "value":
                return self._is_fixed(source)
            if source.kind == "number" and guard.kind == "is":
                return self.numbers.is_settled(source.key)
        if guard.kind != "contains" or not guard.expected[1]:
            return False
        key = guard.expected[0]
        return self.sources.has_step(guard.source, "item", key)

    def _is_fixed(self, source: Source) -> bool:
        """Whether the facts of the tensor say what its size is."""
        type = now(self.tensors[source.parent], self.numbers)
        dims = type.sizes if source.kind == "size" else type.strides
        return not isinstance(dims[source.key], Scalar)

    def _look(self, source: int, value: int | float) -> None:
        self.claim(source, "value", value)

    def _test(self, scalar: Number, answer: bool) -> None:
        if isinstance(scalar, Scalar):
            self.claim(self.sources.number(scalar), "is", answer)
            self.tested(scalar)

    # ------------------------------------------------------------------ values
    def meet(self, source: int, value: Any, *hints: tuple[str, str]) -> int | float | None:
        """Pins `value`, which `source` leads to; or gives the runtime number that the program shall see instead."""
        kind = type(value)
        if kind in PRIMITIVES:
            if kind in TOLD and (self.dynamic or self.carried) and has_copies(value):
                number = self._runtime_number(source, value)
                if number is not None:
                    self.claim(source, "type", self.sources.name(kind))
                    return number
            singleton = kind is bool or value is None or value is Ellipsis
            self.claim(source, "is" if singleton else "value", value)
            return None
        sources = self.sources
        if kind in _ONE_IF_EMPTY and not value:
            self.claim(source, "type", sources.name(kind))
            self.claim(source, *(("len", 0) if kind is tuple else ("set", ())))
            return None
        found = sources.known.get(identity(value))
        if has_identity(value, kind) and not self._is_nameless(value, kind, *hints):
            # by name first: a class or function has one place, however many paths lead to it
            self.claim(source, "is", sources.name(value, *hints))
            if found is None:
                sources.know(value, source)
        elif found is None:
            sources.know(value, source)
            self._pin_new(source, value, kind)
        elif found != source:
            self.claim(source, "is", At(found))
        return None

    def _runtime_number(self, source: int, value: int | float) -> int | float | None:
        if identity(value) in self.carried:
            return self.numbers.adopt(source, value)
        if self.dynamic and source_path(self.sources, source) in self.dynamic:
            return self.numbers.of_source(source, value)
        return None

    def element(self, tensor: int, value: float) -> Scalar:
        """The symbol of the number in the tensor at source `tensor`, which was `value` at first."""
        source = self.sources.step(tensor, "element")
        self.claim(source, "type", self.sources.name(type(value)))
        return symbol_of(source, self.numbers.of_source(source, value))

    def _read_at(self, place: tuple, number: int | float | None) -> int | float | None:
        """What the program sees at `place`, now and whenever it reads there again."""
        if number is not None:
            self._replaced[place] = number
        return number

    def _pin_new(self, source: int, value: Any, kind: type) -> None:
        self.claim(source, "type", self.sources.name(kind))
        if issubclass(kind, Tensor):
            if not is_plain(value):
                name = f"{kind.__module__}.{kind.__qualname__}"
                layout = f", {value.layout}" if kind is Tensor else ""  # asking others runs their code
                raise GiveUp("tensor_subclass", name + layout)
            facts = tensor_facts(value)
            shown = self.tensors[source] = self._shown_type(source, value, facts.type)
            self.claim(source, "tensor", replace(facts, type=shown))
            return
        if kind is types.FunctionType:
            self.claim(source, "code", code_digest(value.__code__))
        for name in _BY_ATTRIBUTES.get(kind, ()):
            part = getattr(value, name)
            self.meet_as_is(self.sources.step(source, "attr", name), part)
            if type(part) in (tuple, dict):
                self.whole(part)

    def _shown_type(self, source: int, value: Tensor, type: TensorType) -> TensorType:
        """`type`, of the tensor at `source`, with symbols for the sizes that change."""
        if not (self.dynamic or self.carried_axes or has_marks(value)) or not is_available():
            return type
        sizes, strides = moving_axes(
            self.sources, source, type.sizes, value.__class__ is Tensor, self.dynamic)
        sizes |= self.carried_axes.get(identity(value), frozenset())
        marks = marks_of(value)
        sizes = (sizes | marks.dynamic) - marks.static
        if not sizes and not strides:
            return type
        for axis in marks.wanted & sizes:
            if type.sizes[axis] > 1:
                path = axis_path(source_path(self.sources, source), "size", axis)
                self.numbers.wanted[f"n{self.sources.step(source, 'size', axis)}"] = path

        self.has_sizes()

        def symbol(kind: str, make: Callable, now: Sequence[int], axis: int) -> Number:
            return self.numbers.size_of(self.sources.step(source, kind, axis), now[axis], make)

        size = functools.partial(symbol, "size", size_symbol, type.sizes)
        shown = shown_type(
            type, sizes, size, functools.partial(symbol, "stride", stride_symbol, type.strides),
            self.numbers, strides)
        for axis, *limits in marks.bounds:
            for op, limit in zip(("ge", "le"), limits):
                if limit is None or not isinstance(shown.sizes[axis], Scalar):
                    continue
                within = apply(op, shown.sizes[axis], limit)
                if self.numbers.value(within):
                    self.numbers.require(within)
                else:
                    path = axis_path(source_path(self.sources, source), "size", axis)
                    self.numbers.fixed(path, f"it is {type.sizes[axis]}, not {op} {limit}")
        return shown

    # ------------------------------------------------------------------ reads of objects
    def attribute(
        self, owner: Any, namespace: dict, name: str, value: Any,
    ) -> int | float | None:
        """`name` was found in the dict of `owner`. Gives what `meet` gives, as all reads do."""
        place = (identity(namespace), name)
        if place in self._read:
            return self._replaced.get(place)
        self._read.add(place)
        source = self.sources.step(self.namespace(owner, namespace), "item", name)
        return self._read_at(
            place, self.meet(source, value, *self._module_hint(namespace, name)))

    def no_attribute(self, owner: Any, namespace: dict, name: str) -> None:
        """The dict of `owner` lacks `name`."""
        self.claim(self.namespace(owner, namespace), "absent", name, name)

    def namespace(self, owner: Any, namespace: dict) -> int:
        """The source of the instance or module dict of a known `owner`."""
        known = self.sources.known
        if type(owner) is types.ModuleType and identity(namespace) in known:
            return known[identity(namespace)]
        source = self.sources.step(known[identity(owner)], "dict")
        found = self.sources.know(namespace, source)
        if found != source:  # it is a dict of something else, too
            self.claim(source, "is", At(found))
        return found

    def own_namespace(self, owner: Any, name: str) -> dict | None:
        """The dict in which C's setattr puts `name`; None where that is a slot or a class."""
        kind = type(owner)
        if issubclass(kind, type) or type(raw_attribute(kind, name)) in _C_PLACES:
            return None
        namespace = instance_dict(owner)
        if type(namespace) is not dict:
            return None
        if identity(owner) in self.sources.known:
            self.namespace(owner, namespace)
        return namespace

    def member(self, owner: Any, name: str, value: Any) -> int | float | None:
        """A C-level attribute of `owner`."""
        place = (identity(owner), name, "member")
        if place in self._read:
            return self._replaced.get(place)
        self._read.add(place)
        sources = self.sources
        source = sources.known[identity(owner)]
        if name == "__code__" and type(owner) is types.FunctionType:
            self.claim(source, "code", code_digest(value))
        if name == "__dict__":
            sources.know(value, sources.step(source, "dict"))
        elif name == "__class__":
            self.claim(source, "type", sources.name(type(owner)))
        elif type(value) in _BOUND_TO_C and value.__self__ is owner:
            return None  # a method of C, made for this read: the type is pinned
        elif type(own := instance_dict(owner)) is dict and own.get(name, ABSENT) is value:
            number = self.attribute(owner, own, name, value)  # C's own lookup found it there
            return self._read_at(place, number)
        else:
            return self._read_at(place, self.meet(sources.step(source, "attr", name), value))
        return None

    def no_member(self, owner: Any, name: str) -> None:
        self.claim(self.sources.known[identity(owner)], "noattr", name, name)

    def item(self, container: Any, key: Any, value: Any) -> int | float | None:
        """`container[key]`, a known list, tuple or dict."""
        sources = self.sources
        source = sources.known[identity(container)]
        if type(key) is int and key < 0 and not isinstance(container, dict):
            self.claim(source, "len", len(container))
            key += len(container)
        constant = sources.constant(key)
        place = (source, type(key), constant, "item")
        if place in self._read:
            return self._replaced.get(place)
        self._read.add(place)
        return self._read_at(place, self.meet(sources.step(source, "item", constant), value))

    def no_item(self, container: Any, key: Any) -> None:
        source = self.sources.known[identity(container)]
        if isinstance(container, dict):
            constant = self.sources.constant(key)
            self.claim(source, "absent", constant, (type(key), constant))
        else:
            self.claim(source, "len", len(container))

    def length(self, container: Any, length: int) -> int | None:
        """The length was asked: pinned, unless it changes from call to call."""
        source = self.sources.known[identity(container)]
        if self.dynamic or self.moving_lists:
            place = self.sources.step(source, "len")
            is_moving = self.is_moving_list(container)
            number = self.numbers.of_source(place, length) if is_moving else (
                self._runtime_number(place, length))
            if number is not None:
                return number
        self.claim(source, "len", length)
        return None

    def contains(self, container: Any, value: Any, answer: bool) -> None:
        source = self.sources.known[identity(container)]
        if isinstance(container, dict | set | frozenset):
            constant = self.sources.constant(value)
            self.claim(source, "contains", (constant, answer), (type(value), constant))
        else:
            self.whole(container)

    def whole(self, container: Any) -> None:
        """All of a known container, in order: keys or length, then every element."""
        if type(container) in _ONE_IF_EMPTY and not container:
            return  # is known by its guards
        sources = self.sources
        source = sources.known[identity(container)]
        place = (source, "whole")
        if place in self._read:
            return
        self._read.add(place)
        if isinstance(container, dict):
            self.keys(container)
            for position, (key, value) in enumerate(dict.items(container)):
                constant = sources.constant(key)
                self.meet_as_is(sources.step(source, "item", constant), value)
        elif isinstance(container, set | frozenset):
            self.claim(source, "set", tuple([sources.constant(e) for e in container]))
        elif isinstance(container, list | tuple):
            base = list if isinstance(container, list) else tuple
            self.claim(source, "len", base.__len__(container))
            for position, value in enumerate(base.__iter__(container)):
                self.meet_as_is(sources.step(source, "item", position), value)
        else:
            raise GiveUp("opaque_argument", f"a {type(container).__qualname__} from outside")

    def is_moving_list(self, container: Any) -> bool:
        """Whether a list of tensors from outside has another length from call to call: what looks at
        all of it is a host call."""
        if type(container) not in (list, tuple) or identity(container) not in self.sources.known:
            return False
        if not self.can_end():
            return False
        if identity(container) in self.moving_lists:
            return True
        path = self.dynamic and items_path(
            source_path(self.sources, self.sources.known[identity(container)]))
        if path not in self.dynamic or not all(type(e) is Tensor for e in container):
            return False
        self.moving_lists[identity(container)] = container
        return True

    def is_pinned(self, source: int) -> bool:
        """Whether the number at `source` has been looked at."""
        return (source, "value", None) in self._claimed

    def meet_as_is(self, source: int, value: Any) -> None:
        """C takes what is there: no other number can stand for it, unless it is one already."""
        number = self.meet(source, value)
        if number is not None and number is not value:
            self.numbers.pin(number)

    def keys(self, container: dict) -> None:
        """The keys of a known dict, in order; keys that are objects become known."""
        sources = self.sources
        source = sources.known[identity(container)]
        for position, key in enumerate(dict.keys(container)):
            if type(key) not in PRIMITIVES and type(key) is not tuple:
                self.meet(sources.step(source, "key", position), key)
        self.claim(source, "keys", tuple([sources.constant(key) for key in dict.keys(container)]))

    def differ(self, first: int, second: int) -> None:
        """Two outside objects were compared by identity and differ."""
        self.claim(first, "isnot", At(second), second)

    def is_pinned(self, value: Any) -> bool:
        """Whether `value`, where it was met, is pinned to be this very object."""
        kind = type(value)
        return has_identity(value, kind) and not self._is_nameless(value, kind)

    def apart(self, written: Iterable[Any]) -> None:
        """Objects that the node writes to are no other object of their kind that it reads."""
        for target in written:
            source = self.sources.known.get(identity(target))
            if source is None or has_identity(target, type(target)):
                continue
            is_namespace = self.sources.table[source].kind == "dict"
            for other, place in self.sources.all_known():
                if other is target or type(other) is not type(target) or is_namespace:
                    continue
                if self.sources.table[place].kind != "dict":
                    self.distinct(source)
                    self.distinct(place)

    def distinct(self, source: int) -> None:
        """The object at `source` was compared by identity with others: all stay different."""
        self.compared[source] = None

    def cell(self, cell: Any, value: Any) -> int | float | None:
        place = (identity(cell), "cell")
        if place in self._read:
            return self._replaced.get(place)
        self._read.add(place)
        return self._read_at(
            place, self.meet(self.sources.step(self.sources.known[identity(cell)], "cell"), value))

    # ------------------------------------------------------------------ globals
    def global_(self, namespace: dict, name: str, value: Any) -> int | float | None:
        place = (identity(namespace), name)
        if place in self._read:
            return self._replaced.get(place)
        self._read.add(place)
        source = self.sources.step(self.global_namespace(namespace), "item", name)
        return self._read_at(
            place, self.meet(source, value, *self._module_hint(namespace, name)))

    def _module_hint(self, namespace: dict, name: str) -> tuple:
        """How to import what stands in the dict of a module."""
        module = self.sources.module_of_globals(namespace) if "__name__" in namespace else None
        return () if module is None else ((module.__name__, name),)

    def no_global(self, namespace: dict, name: str) -> None:
        place = (identity(namespace), name, "absent")
        if place not in self._read:
            self._read.add(place)
            self.claim(self.global_namespace(namespace), "absent", name, name)

    def global_namespace(self, namespace: dict) -> int:
        """The source of a module's dict; one that belongs to no module is a live object."""
        found = self.sources.known.get(identity(namespace))
        if found is not None:
            return found
        return self.sources.of(namespace)

    # ------------------------------------------------------------------ classes
    def class_attribute(self, owner: Any, cls: type, name: str, raw: Any) -> None:
        """Lookup of `name` along the MRO of `cls` gave `raw`, or nothing."""
        place = (cls, name, "class")
        if place in self._read:
            return
        self._read.add(place)
        if not self._can_change(cls):
            return
        source = self.class_source(cls)
        if raw is ABSENT:
            self.claim(source, "class", (name, "<absent>"), name)
            return
        kind = type(raw)
        if self.dynamic and kind in NUMBERS and f"{source_path(self.sources, source)}.{name}" in self.dynamic:
            self._read_at(place, self.meet(self.sources.step(source, "class", name), raw))
            return
        if kind in PRIMITIVES and raw != "<absent>":
            self.claim(source, "class", (name, raw), name)
            return
        step = self.sources.step(source, "class", name)
        hint = self._hint(cls, name)
        if has_identity(raw, kind) and not self._is_nameless(raw, kind, hint):
            self.claim(source, "class", (name, self.sources.name(raw, hint)), name)
            self.sources.know(raw, step)
            for part in _FUNCTIONS_OF.get(kind, ()):
                function = getattr(raw, part)
                if function is not None:
                    self.sources.know(function, self.sources.step(step, "attr", part))
        else:
            self.meet(step, raw, hint)

    def class_number(self, cls: type, name: str) -> int | float | None:
        """The runtime number that the program sees for a number of a class."""
        return self._replaced.get((cls, name, "class"))

    def _hint(self, cls: type, name: str) -> tuple[str, str]:
        named = self.sources.name(cls)
        return (named.module, f"{named.qualname}.{name}") if type(named) is Named else ("", name)

    def _is_nameless(self, value: Any, kind: type, *hints: tuple[str, str]) -> bool:
        """A Python function that no name leads to (inside a decorator): pinned by its code there."""
        return kind is types.FunctionType and not self.sources.has_name(value, *hints)

    def class_source(self, cls: type) -> int:
        """The source of a class: its name, or the object itself."""
        return self.sources.of(cls)

    def super_attribute(self, cls: type, after: type, name: str) -> None:
        """`super(after, ...)` looked for `name` in the classes of `cls` behind `after`."""
        self.mro(cls)
        order = mro_of(cls)
        for base in order[order.index(after) + 1:]:
            if self._can_change(base):
                raw = raw_attribute(base, name, ABSENT)
                self.class_attribute(base, base, name, raw)
            if name in type.__dict__["__dict__"].__get__(base):
                return

    def mro(self, cls: type) -> None:
        """Pins the order in which the classes of `cls` are asked."""
        if self._can_change(cls):
            place = (cls, "mro")
            if place not in self._read:
                self._read.add(place)
                names = tuple([self.sources.name(base) for base in mro_of(cls)])
                self.claim(self.class_source(cls), "mro", names)

    def _can_change(self, cls: type) -> bool:
        found = self._is_mutable_class.get(cls)
        if found is None:
            found = any(map(is_heap_type, mro_of(cls)))
            self._is_mutable_class[cls] = found
        return found

    # ------------------------------------------------------------------ functions
    def function(self, function: types.FunctionType) -> None:
        """A function from outside runs: its code, its defaults and what leads to its globals."""
        sources = self.sources
        source = sources.of(function)
        code = function.__code__
        digest = code_digest(code)
        self.claim(source, "code", digest)
        place = code.co_filename, code.co_firstlineno, code.co_qualname
        self.codes.append(Code(source, digest, *place))
        self._globals_of(source, function)
        for name in ("__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            self.meet(sources.step(source, "attr", name), value)
            if value:
                self.whole(value)
        for position, cell in enumerate(function.__closure__ or ()):
            sources.know(cell, sources.step(source, "closure", position))

    def wrapped(self, function: Any) -> None:
        """What `function` wraps runs in its place."""
        sources = self.sources
        namespace = sources.know(function.__dict__, sources.step(sources.of(function), "dict"))
        self.meet(sources.step(namespace, "item", "__wrapped__"), function.__wrapped__)

    def globals_of(self, function: types.FunctionType) -> None:
        """What leads to the globals of a function that the call made."""
        sources = self.sources
        module = sources.module_of_globals(function.__globals__)
        if module is not None:
            sources.know(function.__globals__, sources.step(sources.of(module), "dict"))
        if function.__builtins__ is _BUILTINS:
            sources.know(_BUILTINS, sources.step(sources.of(builtins), "dict"))

    def _globals_of(self, source: int, function: types.FunctionType) -> None:
        sources = self.sources
        namespace = function.__globals__
        if identity(namespace) not in sources.known:
            module = sources.module_of_globals(namespace)
            if module is not None:
                sources.know(namespace, sources.step(sources.of(module), "dict"))
            else:
                sources.know(namespace, sources.step(source, "globals"))
        if function.__builtins__ is _BUILTINS:
            sources.know(_BUILTINS, sources.step(sources.of(builtins), "dict"))
        else:
            self.meet(sources.step(source, "attr", "__builtins__"), function.__builtins__)
