"""Events: what happened, when, and how long it took. Logs, reports, counters and benchmarks listen.

    with timed("capture", function="forward") as event:
        ...
        event.set(ops=303)

Nothing else in Preheat measures time. Listeners run in the thread that emits, in order of
subscription; one that raises is a fault of the listener and propagates.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

KINDS = (
    "capture", "break", "guard_failed", "compile", "kernel", "cache", "tune", "replay", "fallback",
    "graph", "stage",
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


class Bus:
    """A list of listeners. The process has one, `bus`; tests may make their own."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Adds `listener`; returns the function that removes it."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(x for x in self._listeners if x is not listener)

        return unsubscribe

    def emit(self, kind: str, **data: Any) -> None:
        """Tells the listeners that `kind` happened now."""
        self.send(Event(kind, data, time.perf_counter()))

    def send(self, event: Event) -> None:
        assert event.kind in KINDS, event.kind
        for listener in self._listeners:
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
emit, timed, subscribe = bus.emit, bus.timed, bus.subscribe
