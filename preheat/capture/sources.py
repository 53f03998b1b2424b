"""Sources: where each object that the program met from outside comes from, and what to call it.

    sources.known[identity(model.layers)] == 7        table[7] == Source(5, "item", "layers")
    sources.constant(torch.nn.Linear) == Named("torch.nn.modules.linear", "Linear")

`known` maps identities to places in the table; every known object is kept alive here, so an id in
it means one object. But a tensor lives no longer than in the program: its id goes when it dies. Sources are interned: one path, one number. What has no importable name gets a
place among `objects` (`Live`), and `why_not_stored` then says which was the first.
"""

import sys
import types
import weakref
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import name_of
from preheat.bridge.calls import name_hint
from preheat.bridge.tensors import Tensor
from preheat.ir.dims import source_of
from preheat.ir.scalar import Scalar, Spelled
from preheat.ir.trace import At, Constant, Live, Named, Source

PRIMITIVES = frozenset((int, float, bool, str, bytes, complex, type(None), type(Ellipsis)))


class Sources:
    """The table of a trace under construction."""

    def __init__(
        self, known: dict[int, int] | None = None,
        numbers: dict[int, tuple[Any, Scalar]] | None = None,
    ) -> None:
        self.table: list[Source] = []
        self.known: dict[int, int] = {} if known is None else known
        self.objects: list[Any] = []
        self.why_not_stored = ""
        self._kept: list[Any] = []
        self._tensors: list[_OfTensor] = []
        self._index: dict[tuple, int] = {}
        self._spelled = Spelled()
        self._constants: dict[int, Named | Live] = {}
        self.numbers: dict[int, tuple[Any, Scalar]] = {} if numbers is None else numbers

    def let_go(self) -> None:
        """The node is complete: what its program met is held no longer."""
        self._kept.clear()
        self._tensors.clear()

    # ------------------------------------------------------------------ places
    def root(self, kind: str, key: Constant = None) -> int:
        """The number of a root source."""
        return self.step(-1, kind, key)

    def step(self, parent: int, kind: str, key: Constant = None) -> int:
        """The number of the source one step from `parent`."""
        place = (parent, kind, type(key), key)
        index = self._index.get(place)
        if index is None:
            index = self._index[place] = len(self.table)
            self.table.append(Source(parent, kind, key))
        return index

    @property
    def sources(self) -> list[Source]:
        """The table, by the name that a trace has for it."""
        return self.table

    def number(self, scalar: Scalar) -> int:
        """The source whose object is the value of `scalar`."""
        if scalar.op == "sym":
            return source_of(scalar.args[0])
        place = ("number", self._spelled.place(scalar))
        index = self._index.get(place)
        if index is None:
            index = self._index[place] = len(self.table)
            self.table.append(Source(-1, "number", scalar))
        return index

    def scalar_of(self, value: Any) -> Scalar | None:
        """The expression of a runtime number (`numbers.py`), None for any other object."""
        known = self.numbers.get(identity(value))
        return None if known is None else known[1]

    def has_step(self, parent: int, kind: str, key: Constant = None) -> bool:
        """Whether that source is in the table."""
        return (parent, kind, type(key), key) in self._index

    def know(self, value: Any, source: int) -> int:
        """Binds `value` to `source` unless it is known already; returns its source."""
        found = self.known.get(identity(value))
        if found is not None:
            return found
        self.known[identity(value)] = source
        if type(value) is Tensor:
            self._tensors.append(_OfTensor(value, self.known))
        else:
            self._kept.append(value)
        return source

    def of(self, value: Any, *hints: tuple[str, str]) -> int:
        """The source of `value`: as known, else a root by name or by life."""
        found = self.known.get(identity(value))
        if found is not None:
            return found
        name = self.name(value, *hints)
        if type(name) is Named:
            return self.know(value, self.root("named", (name.module, name.qualname)))
        return self.know(value, self.root("live", name.index))

    def module_of_globals(self, namespace: dict) -> types.ModuleType | None:
        """The imported module whose dict `namespace` is."""
        module = sys.modules.get(namespace.get("__name__", ""))
        is_its = isinstance(module, types.ModuleType) and module.__dict__ is namespace
        return module if is_its else None

    def all_known(self) -> list[tuple[Any, int]]:
        """Every object with a source, and its source; no plain tensors."""
        return [(value, self.known[identity(value)]) for value in self._kept if identity(value) in self.known]

    # ------------------------------------------------------------------ names
    def constant(self, value: Any, *hints: tuple[str, str]) -> Constant:
        """`value` as data: itself, `At` its source, or its name. Tuples part by part."""
        if type(value) in PRIMITIVES:
            return value
        if type(value) is tuple:
            return tuple([self.constant(part) for part in value])
        name = self._constants.get(identity(value))
        if name is not None:
            return name
        found = self.known.get(identity(value))
        if found is not None:
            return At(found)
        return self.name(value, *hints)

    def name(self, value: Any, *hints: tuple[str, str]) -> Named | Live:
        """The importable name of `value`, or its place among the live objects."""
        name = self._constants.get(identity(value))
        if name is None:
            found = _name_of(value, hints)
            name = Named(*found) if found is not None else self.live(value)
            self._constants[identity(value)] = name
            self._kept.append(value)
        return name

    def has_name(self, value: Any, *hints: tuple[str, str]) -> bool:
        """Whether `value` is importable; the name is then kept."""
        name = self._constants.get(identity(value))
        if name is None:
            found = _name_of(value, hints)
            if found is None:
                return False
            self._constants[identity(value)] = name = Named(*found)
            self._kept.append(value)
        return type(name) is Named

    def live(self, value: Any) -> Live:
        """A place for `value` in `objects`: it is known in this process only."""
        if not self.why_not_stored:
            kind = type(value)
            name = f" {value.__qualname__}" if kind in _WITH_QUALNAME else ""
            kind_name = f"{kind.__module__}.{kind.__qualname__}"
            self.why_not_stored = f"{kind_name}{name} has no importable name"
        self.objects.append(value)
        return Live(len(self.objects) - 1)


class _OfTensor(weakref.ref):
    """Takes the id of a tensor out of `known` when it dies."""

    __slots__ = ("key", "known")

    def __new__(cls, tensor: Any, known: dict[int, int]) -> "_OfTensor":
        return super().__new__(cls, tensor, _died)

    def __init__(self, tensor: Any, known: dict[int, int]) -> None:
        super().__init__(tensor, _died)
        self.key, self.known = identity(tensor), known


def _died(tensor: _OfTensor) -> None:
    tensor.known.pop(tensor.key, None)


def _name_of(value: Any, hints: tuple) -> tuple[str, str] | None:
    hint = name_hint(value)
    return name_of(value, *hints) if hint is None else name_of(value, hint, *hints)


_WITH_QUALNAME = (type, type(lambda: None), type(len))
