"""Events: what happened, when, and how long it took. Logs, reports, counters and benchmarks listen.

    with timed("capture", function="forward") as event:
        ...
        event.set(ops=303)

Nothing else in Preheat measures time. Listeners run in the thread that emits, in order of
subscription; one that raises is a fault of the listener and propagates. Events of kind "stage"
carry the text of a stage's product, which costs time to print: ask `wants("stage")` first.

    kind           data; `name` is the function or module compiled; listeners bear absent fields
    capture        name, captured (bool), nodes, ops, frames; pinned: how often which op pinned the
                   sizes that it was given; numbers: what was looked at of numbers (`base/pins.py`), where any was
    break          name, reason, detail, file, line, code, hint (the fields of ir.trace.Break), and
                   goes_on (bool): a point of the graph, which goes on after it; seconds spent there
    guard_failed   name, why (the guard, with the value found): a new variant is made
    compile        name, kernels, calls, bytes (of machine code)
    kernel         name, text (the generated code)
    cache          name, hit (True, False, or None for neither: not stored, evicted), why, bytes
    tune           name (a kernel, or the function), choice (in words), table (what each took, in us);
                   of the function's search also done, total, seconds_left, without a choice until
                   it is over; or a kernel of whose programs, which wait for each other, the device has too little room
    replay         name, resumed or interpreted (True): a call went on, watched or not, from a place
                   in its middle that no compiled node fitted
    fallback       what, why: a part that runs op by op, or kernels that this process compiles itself
    direct         name, why: a plan that no CUDA graph launches, though graphs were asked for
    graph          name, text: a CUDA graph was recorded
    stage          name ("trace", "aten", "core", "plan", "llvm", ...), text
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from preheat.base.dataclass import dataclass, field

KINDS = (
    "capture", "break", "guard_failed", "compile", "kernel", "cache", "tune", "replay", "fallback",
    "direct", "graph", "stage",
)


@dataclass
class Event:
    """One thing that happened. `seconds` is its duration, 0.0 for an instant."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0
    seconds: float = 0.0

    def set(self, **data: Any) -> None:
        self.data.update(data)


Listener = Callable[[Event], None]
COSTLY = frozenset({"stage"})  # kinds that only listeners who name them get


class Bus:
    """A list of listeners. The process has one, `bus`; tests may make their own."""

    def __init__(self) -> None:
        self._listeners: tuple[tuple[Listener, frozenset[str]], ...] = ()

    def subscribe(
        self, listener: Listener, kinds: Iterable[str] | None = None,
    ) -> Callable[[], None]:
        """Adds `listener` for `kinds` (None: all but the costly); returns the function that
        removes it."""
        row = (listener, frozenset(kinds) if kinds is not None else frozenset(KINDS) - COSTLY)
        self._listeners = (*self._listeners, row)

        def unsubscribe() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not row)

        return unsubscribe

    def wants(self, kind: str) -> bool:
        """Whether anyone listens for `kind`."""
        return any(kind in kinds for _, kinds in self._listeners)

    def emit(self, kind: str, **data: Any) -> None:
        """Tells the listeners that `kind` happened now."""
        self.send(Event(kind, data, time.perf_counter()))

    def send(self, event: Event) -> None:
        assert event.kind in KINDS, event.kind
        for listener, kinds in self._listeners:
            if event.kind in kinds:
                listener(event)

    @contextlib.contextmanager
    def timed(self, kind: str, **data: Any) -> Iterator[Event]:
        """Emits `kind` when the block ends, with its duration; also when it raises."""
        event = Event(kind, data, time.perf_counter())
        try:
            yield event
        finally:
            event.seconds = time.perf_counter() - event.at
            self.send(event)


bus = Bus()
emit, timed, subscribe, wants = bus.emit, bus.timed, bus.subscribe, bus.wants
