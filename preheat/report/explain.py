"""Explanations: what one call was compiled to, and everything that kept it from being one graph.

print(preheat.explain(f)(x))

f: 2 graphs, 1 break, 14 guards, 3 kernels, compiled in 0.031 s
  model.py:12: host_call: print
      print("loss", x)
      move it out of the compiled function
      host step: the function is called anew on every call, ...

`explain(f)(x).to_html("page.html")` writes the same as a page.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.base.events import Event, bus
from preheat.base.fallbacks import with_hint
from preheat.base.kinds import KINDS
from preheat.base.pins import TEST, Known, Pin
from preheat.base.reasons import kind_of
from preheat.report.logs import guard_lines


@dataclass(frozen=True)
class ExplainedBreak:
    """A place where a call is not one graph.

    reason   a row of `base/reasons.py`;  detail   the values of this case
    file, line, code   where, and the source line;  hint   what to write instead, or to do
    kind     a row of `base.reasons.KINDS`: "host", "path", "write", "eager" or "limit"
    count    how often it was met in the call;  seconds   spent there, as far as it was measured
    """

    reason: str
    detail: str
    file: str
    line: int
    code: str
    hint: str
    kind: str
    count: int = 1
    seconds: float = 0.0

    @property
    def cost(self) -> str:
        """What the break costs, in a sentence, with what was counted and measured."""
        kind = KINDS[self.kind]
        times = f", {self.count} times" if self.count > 1 else ""
        took = f", {self.seconds:.3f} s" if self.seconds else ""
        return f"{kind.title}{times}{took}: {kind.cost}"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Explanation:
    """graph_count  graphs compiled, the pieces between breaks;  break_count  places where the call is not one graph
    breaks       an `ExplainedBreak` for each, in the order they were met
    guards       what the next call checks, as text
    kernels      kernels generated;  fallbacks  parts that run op by op, why, and what to do
    direct       why parts have no CUDA graph, where the mode asks for graphs
    pinned       ops without a size rule for what they were given: each new size is a variant there
    numbers      sizes and numbers that calls were captured for: each new value is a variant (`base.pins.Pin`)
    symbols      paths of sizes and numbers that one variant takes with any value
    held         those that have been the same in all calls so far, as text: symbols at their next value
    tuned        what the search of the modes "max-autotune" chose for each graph, and kernels for whose first choice the
                 device has no room
    seconds      of capture and compile together, the eager run within
    result       what the call returned;  error  the exception it raised, or None
    """

    name: str
    graph_count: int
    breaks: tuple[ExplainedBreak, ...]
    guards: tuple[str, ...]
    kernels: int
    fallbacks: tuple[str, ...]
    seconds: float
    result: Any = None
    error: BaseException | None = None
    pinned: tuple[str, ...] = ()
    numbers: tuple[Pin, ...] = ()
    tuned: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    @property
    def summary(self) -> str:
        head = f"{_many(self.graph_count, 'graph')}, {_many(self.break_count, 'break')}"
        if self.graph_count:
            head += (
                f", {_many(len(self.guards), 'guard')}, {_many(self.kernels, 'kernel')}, "
                f"compiled in {self.seconds:.3f} s"
            )
        return head

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary}"]
        for row in self.breaks:
            place = f"{row.place}: " if row.file else ""
            lines.append(f"  {place}{row.reason}: {row.detail}")
            told = "\n".join(text for text in (row.code.strip(), row.hint, row.cost) if text)
            lines += [f"      {line}" for line in told.splitlines()]
        lines += [f"  tuned: {text}" for text in self.tuned]
        lines += [f"  op by op: {text}" for text in self.fallbacks]
        lines += [f"  no CUDA graph: {text}" for text in self.direct]
        lines += [f"  sizes pinned by {text}, which has no size rule for them" for text in self.pinned]
        lines += [f"  any value: {', '.join(self.symbols)}"] if self.symbols else []
        lines += ["  the same so far; another value makes it a symbol, where nothing else is said:"] if self.held else []
        lines += [f"      {text}" for text in _first(self.held)]
        alike: dict[tuple, list[Pin]] = {}
        for pin in self.numbers:  # of a list that is looked at, each element is one
            alike.setdefault((pin.place, pin.why, pin.hint), []).append(pin)
        for pin, *others in alike.values():
            lines += [f"  {pin}", *(f"      {text}" for text in (pin.code, pin.hint) if text)]
            rest = len(others) - _MOST
            told = ", ".join(other.path for other in others[:_MOST]) + (f" and {rest} more" if rest > 0 else "")
            lines += [f"      and so is each of {told}"] if others else []
        if self.error is not None:
            lines.append(f"  the call raised {type(self.error).__name__}: {self.error}")
        return "\n".join(lines)

    def to_html(self, path: str | os.PathLike) -> Path:
        """Writes the explanation as one self-contained page; returns its path."""
        # the template engine is loaded for a page only: most explanations are printed
        page = importlib.import_module("preheat.report.page").page(self)
        path = Path(path)
        path.write_text(page, encoding="utf-8")
        return path


def explain_call(
    call: Callable[[], Any], name: str, known: Callable[[], Known] = Known,
) -> Explanation:
    """Runs `call` once and tells what was captured, compiled and broken meanwhile; `known` is asked after it."""
    seen: list[Event] = []
    unsubscribe = bus.subscribe(seen.append, (
        "capture", "compile", "break", "fallback", "direct", "stage", "tune"))
    result, error = None, None
    try:
        result = call()
    except Exception as raised:  # the program's own: part of what is explained
        error = raised
    finally:
        unsubscribe()
    return _explanation(name, seen, result, error, known())


def _explanation(
    name: str, seen: list[Event], result: Any, error: Exception | None, known: Known,
) -> Explanation:
    traces = [e.data["text"] for e in seen if e.kind == "stage" and e.data.get("name") == "trace"]
    return Explanation(
        name=name,
        graph_count=sum(e.data.get("nodes", bool(e.data.get("captured"))) for e in seen
                        if e.kind == "capture"),
        breaks=_breaks([event for event in seen if event.kind == "break"]),
        guards=tuple(line for text in traces for line in guard_lines(text)),
        kernels=sum(e.data.get("kernels", 0) for e in seen if e.kind == "compile"),
        fallbacks=tuple(
            with_hint(str(e.data.get("why", ""))) for e in seen if e.kind == "fallback"),
        direct=tuple(str(e.data.get("why", "")) for e in seen if e.kind == "direct"),
        seconds=sum(e.seconds for e in seen if e.kind in ("capture", "compile")),
        result=result,
        error=error,
        tuned=tuple(
            e.data["choice"] for e in seen
            if e.kind == "tune" and "choice" in e.data and "table" not in e.data),
        pinned=tuple(dict.fromkeys(
            name for e in seen if e.kind == "capture" for name in e.data.get("pinned", ()))),
        numbers=known.pins or tuple(dict.fromkeys(  # of a script there are events alone
            pin for e in seen if e.kind == "capture" for pin in e.data.get("numbers", ()) if pin.by != TEST or pin.must)),
        symbols=known.symbols,
        held=known.held,
    )


def _breaks(events: list[Event]) -> tuple[ExplainedBreak, ...]:
    """One row for each place, reason and kind, with its count and the seconds spent."""
    found: dict[tuple, list[Event]] = {}
    for event in events:
        facts = tuple(event.data.get(field, default) for field, default in _BREAK_FIELDS)
        kind = kind_of(facts[0], bool(event.data.get("goes_on")))
        found.setdefault((*facts, kind), []).append(event)
    return tuple(
        ExplainedBreak(*facts, len(same), sum(event.seconds for event in same))
        for facts, same in found.items()
    )


_BREAK_FIELDS = (
    ("reason", ""),
    ("detail", ""),
    ("file", ""),
    ("line", 0),
    ("code", ""),
    ("hint", ""),
)


def _first(texts: tuple[str, ...]) -> list[str]:
    """The first of `texts`, and how many there are beside these."""
    rest = len(texts) - _MOST
    return [*texts[:_MOST], *([f"and {rest} more: `.held` has them all"] if rest > 0 else [])]


_MOST = 12


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
