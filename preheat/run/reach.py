"""Where an entry finds the objects it needs on each call: bound, an argument, or inside one.

    s0 = entry                       Origin("object", the module)
    s1 = arg 0                       Origin("argument", 0)
    s2 = s1.__dict__; s3 = s2["h"]   Origin("deep", 0)     deep(args...)[0]
    s5 = number (s4 + 1)             Origin("deep", 1)     deep(args...)[1]

What hangs on the compiled object itself was resolved when the trace was bound, and guards hold it
there. What lies inside an argument is another object on each call, and so is a number that moves
(`resolve.moving_numbers`) or an object that the node replaces, wherever it is: one straight-line function fetches all of it, computes
expressions, and makes the 0-d tensors in which the plan takes numbers. Guards have passed before
it runs, so types and keys are as they were; what it raises is a fault of the call.
"""

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.bridge.interpret import as_tensor
from preheat.ir.scalar import FUNCTIONS, python
from preheat.ir.trace import At, Source, Trace
from preheat.ir.types import TensorType
from preheat.run.resolve import STEPS, constant, moving_numbers, replaced

_EXACT = (list, tuple, dict)
_NUMBERS = (int, float, bool)
_NO_TENSOR = Tensor()


@dataclass(frozen=True, slots=True)
class Origin:
    """kind "object": `value` is it; "argument": its position; "deep": its place in deep's tuple;
    "word": of a number, the address of the cell where each check leaves it; "member": an object and
    the name of its attribute, read by C."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Reach:
    """`origins`: one a source asked for. `deep`: a function of the call's objects, or None."""

    origins: tuple[Origin, ...]
    deep: Callable | None


def reach(
    trace: Trace, wanted: Sequence[int], found: Sequence[Any], live: Sequence[Any] = (),
    types: Sequence[TensorType] = (), words: Mapping[int, int] = MappingProxyType({}),
) -> Reach:
    """Where the sources `wanted` are found. `found`: the objects of all sources when bound.

    types   of the first ones, as the plan takes them: a number is made a tensor of its type
    words   of sources that are numbers of which the plan needs nothing but the word: its address
    """
    writer = _Writer(trace, found, live, words)
    origins = tuple(
        writer.origin(source, types[place] if place < len(types) else None)
        for place, source in enumerate(wanted)
    )
    return Reach(origins, writer.function() if writer.results else None)


def _with_holders(trace: Trace, found: Sequence[Any], moving: frozenset[int]) -> frozenset[int]:
    """`moving`, and the tuples in which they lie: where one of their items is another one, so are they."""
    made = set(moving)
    for index in moving:
        holder = trace.sources[index].parent
        while holder >= 0 and isinstance(found[holder], tuple):
            made.add(holder)
            holder = trace.sources[holder].parent
    return frozenset(made)


def without_passing(trace: Trace, found: Sequence[Any]) -> list:
    """`found` without what the next call has others of, for a later `reach`: of the objects in arguments, and
    of tensors and containers that the node replaces, nothing remains but their kind.
    """
    kept = {at for source in trace.sources for at in _named_at(source.key)}
    moving = replaced(trace, found)
    made = list(found)
    for index, value in enumerate(found):
        kind, source = type(value), trace.sources[index]
        is_within = _root(trace, source).kind in ("arg", "kwarg")
        if index in kept or kind in _NUMBERS or not (is_within or index in moving):
            continue
        if kind in _EXACT:
            made[index] = kind()
        elif is_within:
            made[index] = None
        elif kind is Tensor:
            made[index] = _NO_TENSOR
    return made


def _named_at(key: Any) -> Iterator[int]:
    """The sources whose objects a key names."""
    if type(key) is At:
        yield key.index
    elif type(key) is tuple:
        for part in key:
            yield from _named_at(part)


def _root(trace: Trace, source: Source) -> Source:
    while source.parent >= 0:
        source = trace.sources[source.parent]
    return source


class _Writer:
    """The text of `deep` under construction."""

    def __init__(
        self, trace: Trace, found: Sequence[Any], live: Sequence[Any], words: Mapping[int, int],
    ):
        self.trace, self.found, self.live, self.words = trace, found, live, words
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.results: dict[str, int] = {}
        self.constants: dict[str, Any] = {
            "read_attribute": object.__getattribute__, "as_tensor": as_tensor, **FUNCTIONS,
        }
        self.numbers = moving_numbers(trace)
        self.moving = _with_holders(trace, found, self.numbers | replaced(trace, found))

    def origin(self, index: int, type: TensorType | None) -> Origin:
        if type is not None and index in self.words:
            return Origin("word", self.words[index])
        root, source = self.root(index), self.trace.sources[index]
        if (source.kind, source.key) == ("attr", "grad") and source.parent not in self.moving:
            if root.kind not in ("arg", "kwarg"):
                return Origin("member", (self.found[source.parent], "grad"))
        is_number = index in self.numbers or root.kind == "number"
        # one that moved when it was captured may be guarded by its value since: the plan takes it so
        is_number |= type is not None and builtins.type(self.found[index]) in _NUMBERS
        if root.kind not in ("arg", "kwarg") and not is_number and index not in self.moving:
            return Origin("object", self.found[index])
        if self.trace.sources[index].parent < 0 and root.kind != "number":
            if type is None or not is_number:
                return Origin("argument", self.position(root))
        result = self.name(index)
        if is_number and type is not None:
            result = f"as_tensor({result}, {self.bind(type)})"
        return Origin("deep", self.results.setdefault(result, len(self.results)))

    def root(self, index: int) -> Source:
        return _root(self.trace, self.trace.sources[index])

    def position(self, root: Source) -> int:
        """Keyword arguments follow the positional ones, as CPython passes them."""
        signature = self.trace.signature
        if root.kind == "arg":
            return root.key
        if root.key not in signature.keywords:
            raise InternalError(
                f"source {root.key!r} is no keyword of the signature {signature.keywords}"
            )
        return signature.positional + signature.keywords.index(root.key)

    def name(self, index: int) -> str:
        """The variable that holds source `index`, after the lines that fetch it."""
        if index in self.names:
            return self.names[index]
        source, root = self.trace.sources[index], self.root(index)
        if root.kind == "number":
            self.lines.append(
                f"d{index} = {python(source.key, lambda symbol: self.name(int(symbol[1:])))}")
            self.names[index] = f"d{index}"
            return self.names[index]
        if root.kind not in ("arg", "kwarg") and index not in self.moving:
            return self.names.setdefault(index, self.bind(self.found[index]))
        if source.parent < 0:
            self.names[index] = f"a{self.position(source)}"
            return self.names[index]
        self.lines.append(f"d{index} = {self.step(self.name(source.parent), source)}")
        self.names[index] = f"d{index}"
        return self.names[index]

    def step(self, base: str, source: Source) -> str:
        key = self.bind(constant(source.key, self.live, self.found))
        if source.kind == "item" and type(self.found[source.parent]) in _EXACT:
            return f"{base}[{key}]"
        if source.kind in ("size", "stride"):  # of an exact tensor, as a guard has said
            return f"{base}.{source.kind}({key})"
        if source.kind == "dict":
            return f"read_attribute({base}, '__dict__')"
        return f"{self.bind(STEPS[source.kind])}({base}, {key})"

    def bind(self, value: Any) -> str:
        if type(value) in (int, str, type(None)):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def function(self) -> Callable:
        signature = self.trace.signature
        count = signature.positional + len(signature.keywords)
        parameters = ", ".join(f"a{k}" for k in range(count))
        results = "".join(f"{result}, " for result in self.results)
        text = (
            f"def deep({parameters}):\n    "
            + "\n    ".join((*self.lines, f"return ({results})"))
            + "\n"
        )
        exec(
            compile(text, "<preheat arguments>", "exec"), self.constants
        )  # noqa: S102 - our own text
        return self.constants["deep"]
