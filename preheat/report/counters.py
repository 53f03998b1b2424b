"""Counters: how often each thing happened in this process.

    before = preheat.counters()
    model(x)
    preheat.counters()["compiles"] - before["compiles"]     0 when the call was compiled before

`ROWS` says which event counts where; a row with a test counts only events that pass it. What native
code does comes from `base/tally.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

from preheat.base.events import Event, bus
from preheat.base.tally import GRAPH_REPLAYS


class Row(NamedTuple):
    kind: str
    counts: Callable[[Event], bool] = lambda event: True


ROWS: dict[str, Row] = {
    "captures": Row("capture", lambda event: bool(event.data.get("captured", True))),
    "compiles": Row("compile"),
    "recompiles": Row("guard_failed"),
    "breaks": Row("break"),
    "resumes": Row("replay", lambda event: bool(event.data.get("resumed", False))),
    "cache_hits": Row("cache", lambda event: event.data.get("hit") is True),
    "cache_misses": Row("cache", lambda event: event.data.get("hit") is False),
    "fallbacks": Row("fallback"),
    "interpreted": Row("replay", lambda event: bool(event.data.get("interpreted", False))),
}


class Counters:
    """A listener that counts. The process has one; tests may subscribe their own."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(ROWS, 0)

    def __call__(self, event: Event) -> None:
        for name, row in ROWS.items():
            if row.kind == event.kind and row.counts(event):
                self.values[name] += 1


_of_process = Counters()
bus.subscribe(_of_process, {row.kind for row in ROWS.values()})


def counters() -> dict[str, int]:
    """How often, since the process began: captures, compiles, recompiles, breaks, resumes,
    cache_hits, cache_misses, fallbacks, interpreted; graph_replays: launches of CUDA graphs."""
    return {**_of_process.values, "graph_replays": GRAPH_REPLAYS.value}
