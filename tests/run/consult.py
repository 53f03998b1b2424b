"""Guards for everything reachable: what a capture that read every object would emit.

    book = Book(); book.consult(model); trace = book.trace()

`Book` collects sources, guards and live objects by hand or by walking an object graph, so that the
checker can be tried without capture. Class lookups are recorded for the names in `CLASS_NAMES`.
"""

import types

import torch

from preheat.base.digest import code_digest
from preheat.base.names import raw_attribute
from preheat.bridge.ambient import ambient_now
from preheat.bridge.tensors import tensor_facts
from preheat.ir.trace import (
    At, Captured, Guard, Live, Node, Recipe, Return, Signature, Source, Step, Trace,
)

PRIMITIVES = (type(None), bool, int, float, complex, str, bytes)
CLASS_NAMES = ("forward", "scale", "not_there", "bias_name")
_MISSING = object()


class Book:
    """Sources, guards and live objects of a trace under construction."""

    def __init__(self):
        self.sources: list[Source] = []
        self.guards: list[Guard] = []
        self.objects: list[object] = []
        self.number_of: dict[tuple, int] = {}
        self.seen: dict[int, int] = {}
        self.positional = 0
        self.keywords: list[str] = []

    def source(self, parent: int, kind: str, key=None) -> int:
        """The number of this source, added once."""
        row = (parent, kind, type(key), key)
        if row not in self.number_of:
            self.sources.append(Source(parent, kind, key))
            self.number_of[row] = len(self.sources) - 1
            if kind == "arg":
                self.positional = max(self.positional, key + 1)
            if kind == "kwarg":
                self.keywords.append(key)
        return self.number_of[row]

    def guard(self, source: int, kind: str, expected) -> None:
        self.guards.append(Guard(source, kind, expected))

    def live(self, value) -> Live:
        self.objects.append(value)
        return Live(len(self.objects) - 1)

    def ambient(self) -> None:
        for row in ambient_now():
            self.guard(-1, "ambient", row)

    def trace(self) -> Trace:
        node = Node(tuple(self.guards), (), None, Return(Recipe((Step("const", (None,)),), 0)))
        signature = Signature(self.positional, tuple(self.keywords))
        return Trace(signature, tuple(self.sources), (node,))

    def captured(self) -> Captured:
        return Captured(self.trace(), tuple(self.objects))

    # ------------------------------------------------------------------ walking
    def consult_call(self, target, args=(), kwargs=None) -> None:
        """Everything reachable from a call, and the ambient state."""
        self.ambient()
        self.consult(self.source(-1, "entry"), target)
        for index, value in enumerate(args):
            self.consult(self.source(-1, "arg", index), value)
        for name, value in (kwargs or {}).items():
            self.consult(self.source(-1, "kwarg", name), value)

    def consult(self, number: int, value) -> None:
        """Guards for `value` at source `number` and for all that it refers to."""
        if isinstance(value, PRIMITIVES):
            self.guard(number, "value", value)
            return
        if id(value) in self.seen:
            self.guard(number, "is", At(self.seen[id(value)]))
            return
        self.seen[id(value)] = number
        if isinstance(value, type) or isinstance(
            value, (types.BuiltinFunctionType, types.ModuleType, torch.dtype)
        ):
            self.guard(number, "is", self.live(value))
            return
        self.guard(number, "type", self.live(type(value)))
        if isinstance(value, torch.Tensor):
            self.guard(number, "tensor", tensor_facts(value))
        elif isinstance(value, types.FunctionType):
            self._function(number, value)
        elif isinstance(value, dict):
            self._dict(number, value)
        elif isinstance(value, (list, tuple)):
            self.guard(number, "len", len(value))
            for index, entry in enumerate(value):
                self.consult(self.source(number, "item", index), entry)
        elif isinstance(value, (set, frozenset)):
            self.guard(number, "set", tuple(sorted(value)))
        else:
            self._instance(number, value)

    def _dict(self, number: int, value: dict) -> None:
        self.guard(number, "keys", tuple(value))
        self.guard(number, "absent", "absent_key")
        for key, entry in value.items():
            self.consult(self.source(number, "item", key), entry)

    def _function(self, number: int, value: types.FunctionType) -> None:
        self.guard(number, "code", code_digest(value.__code__))
        for name in ("__defaults__", "__kwdefaults__"):
            self.consult(self.source(number, "attr", name), getattr(value, name))
        for index, cell in enumerate(value.__closure__ or ()):
            here = self.source(self.source(number, "closure", index), "cell")
            self.consult(here, cell.cell_contents)
        space = self.source(number, "globals")
        for name in value.__code__.co_names:
            if name in value.__globals__:
                self.consult(self.source(space, "item", name), value.__globals__[name])
            else:
                self.guard(space, "absent", name)

    def _instance(self, number: int, value) -> None:
        cls = self.source(number, "type")
        for name in CLASS_NAMES:
            raw = raw_attribute(type(value), name, _MISSING)
            if raw is _MISSING:
                self.guard(cls, "class", (name, "<absent>"))
            else:
                self.consult(self.source(cls, "class", name), raw)
        slots = [
            n
            for c in type(value).__mro__
            for n in c.__dict__.get("__slots__", ())
            if n != "__dict__"
        ]
        for name in slots:
            try:
                here = object.__getattribute__(value, name)
            except AttributeError:
                self.guard(number, "noattr", name)
            else:
                self.consult(self.source(number, "attr", name), here)
        try:
            space = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        here = self.source(number, "dict")
        self.guard(here, "absent", "absent_name")
        for key, entry in space.items():
            self.consult(self.source(here, "item", key), entry)
