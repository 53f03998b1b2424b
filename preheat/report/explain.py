"""Explanations: what one call was compiled to, and what kept the rest from it.

print(preheat.explain(f)(x))

f: 1 graph, 0 breaks, 14 guards, 2 kernels, compiled in 0.031 s

f: 0 graphs, 1 break
  model.py:12: host_call: print is called with the value of a tensor
      print("loss", x)
      move it out of the compiled function
"""

from collections.abc import Callable
from typing import Any

from preheat.base.dataclass import dataclass
from preheat.base.events import Event, bus
from preheat.ir.trace import Break
from preheat.report.logs import guard_lines


@dataclass(frozen=True)
class Explanation:
    """graph_count  graphs captured;  break_count  places that were not
    breaks       each with .reason, .detail, .file, .line, .code, .hint
    guards       what the next call checks, as text
    kernels      kernels generated;  fallbacks  parts that run op by op, and why
    seconds      of capture and compile together, the eager run within
    result       what the call returned;  error  the exception it raised, or None
    """

    name: str
    graph_count: int
    breaks: tuple[Break, ...]
    guards: tuple[str, ...]
    kernels: int
    fallbacks: tuple[str, ...]
    seconds: float
    result: Any = None
    error: BaseException | None = None

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    def __str__(self) -> str:
        head = (
            f"{self.name}: {_many(self.graph_count, 'graph')}, {_many(self.break_count, 'break')}"
        )
        if self.graph_count:
            head += (
                f", {_many(len(self.guards), 'guard')}, {_many(self.kernels, 'kernel')}, "
                f"compiled in {self.seconds:.3f} s"
            )
        lines = [head]
        for row in self.breaks:
            place = f"{row.file}:{row.line}: " if row.file else ""
            lines.append(f"  {place}{row.reason}: {row.detail}")
            lines += [f"      {text.strip()}" for text in (row.code, row.hint) if text]
        lines += [f"  op by op: {text}" for text in self.fallbacks]
        if self.error is not None:
            lines.append(f"  the call raised {type(self.error).__name__}: {self.error}")
        return "\n".join(lines)


def explain_call(call: Callable[[], Any], name: str) -> Explanation:
    """Runs `call` once and tells what was captured, compiled and broken meanwhile."""
    seen: list[Event] = []
    unsubscribe = bus.subscribe(seen.append, ("capture", "compile", "break", "fallback", "stage"))
    result, error = None, None
    try:
        result = call()
    except Exception as raised:  # the program's own: part of what is explained
        error = raised
    finally:
        unsubscribe()
    return _explanation(name, seen, result, error)


def _explanation(name: str, seen: list[Event], result: Any, error: Exception | None) -> Explanation:
    breaks = [
        Break(*(event.data.get(field, default) for field, default in _BREAK_FIELDS))
        for event in seen
        if event.kind == "break"
    ]
    traces = [e.data["text"] for e in seen if e.kind == "stage" and e.data.get("name") == "trace"]
    return Explanation(
        name=name,
        graph_count=sum(e.kind == "capture" and bool(e.data.get("captured")) for e in seen),
        breaks=tuple(dict.fromkeys(breaks)),
        guards=tuple(line for text in traces for line in guard_lines(text)),
        kernels=sum(e.data.get("kernels", 0) for e in seen if e.kind == "compile"),
        fallbacks=tuple(str(e.data.get("why", "")) for e in seen if e.kind == "fallback"),
        seconds=sum(e.seconds for e in seen if e.kind in ("capture", "compile")),
        result=result,
        error=error,
    )


_BREAK_FIELDS = (
    ("reason", ""),
    ("detail", ""),
    ("file", ""),
    ("line", 0),
    ("code", ""),
    ("hint", ""),
)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
