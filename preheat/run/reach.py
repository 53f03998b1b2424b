"""Where an entry finds the objects it needs on each call: bound, an argument, or inside one.

    s0 = entry                       Origin("object", the module)
    s1 = arg 0                       Origin("argument", 0)
    s2 = s1.__dict__; s3 = s2["h"]   Origin("deep", 0)     deep(args...)[0]

What hangs on the compiled object itself was resolved when the trace was bound, and guards hold it
there. What lies inside an argument is another object on each call: one straight-line function
fetches all of it. Guards have passed before it runs, so types and keys are as they were.
"""

from collections.abc import Callable, Sequence
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.ir.trace import Source, Trace
from preheat.run.resolve import STEPS, constant

_EXACT = (list, tuple, dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """kind "object": `value` is it; "argument": its position; "deep": its place in deep's tuple."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Reach:
    """`origins`: one a source asked for. `deep`: a function of the call's objects, or None."""

    origins: tuple[Origin, ...]
    deep: Callable | None


def reach(
    trace: Trace, wanted: Sequence[int], found: Sequence[Any], live: Sequence[Any] = ()
) -> Reach:
    """Where the sources `wanted` are found. `found`: the objects of all sources when bound."""
    writer = _Writer(trace, found, live)
    origins = tuple(writer.origin(source) for source in wanted)
    return Reach(origins, writer.function() if writer.results else None)


class _Writer:
    """The text of `deep` under construction."""

    def __init__(self, trace: Trace, found: Sequence[Any], live: Sequence[Any]):
        self.trace, self.found, self.live = trace, found, live
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.results: dict[int, int] = {}
        self.constants: dict[str, Any] = {"read_attribute": object.__getattribute__}

    def origin(self, index: int) -> Origin:
        root = self.root(index)
        if root.kind not in ("arg", "kwarg"):
            return Origin("object", self.found[index])
        if self.trace.sources[index].parent < 0:
            return Origin("argument", self.position(root))
        self.name(index)
        return Origin("deep", self.results.setdefault(index, len(self.results)))

    def root(self, index: int) -> Source:
        source = self.trace.sources[index]
        while source.parent >= 0:
            source = self.trace.sources[source.parent]
        return source

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
        source = self.trace.sources[index]
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
        results = "".join(f"{self.names[index]}, " for index in self.results)
        text = (
            f"def deep({parameters}):\n    "
            + "\n    ".join((*self.lines, f"return ({results})"))
            + "\n"
        )
        exec(
            compile(text, "<preheat arguments>", "exec"), self.constants
        )  # noqa: S102 - our own text
        return self.constants["deep"]
