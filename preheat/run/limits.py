"""Limits: what keeps calls from the nodes at a place, how many these are, and what is said when there may be no
more.

    misses.add(place, Miss("arg1", "value", "arg1: expected 3, found 4"))
    misses.told(place, 8, "variants")     "8 variants exist, and another is needed because of arg1: expected 3,
                                          found 4 (7 of 8 times)", "it is needed as a value (an index, ...): ..."

A node that was captured for the value of a number counts half once others there leave that number open: calls that
go another way, or find another number, have taken its place.
"""

import collections
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from preheat.base.pins import Pin
from preheat.base.remedies import OVER_LIMIT, first_other_axis, hint_of, kind_of_tensors
from preheat.ir.text_trace import axis_path, source_path
from preheat.ir.trace import Trace
from preheat.run.check import Failure
from preheat.run.walk import Bound, Place

class Miss(NamedTuple):
    """A guard that kept a call from the newest node of a place: where, of what kind, and the text of the case.
    All are "" where no node was there."""

    path: str
    kind: str
    text: str


def miss_at(place: Place, known: Sequence[Bound], args: Sequence, kwargs: Mapping) -> Miss:
    """The guard that keeps a call with these arguments from the nodes `known` at `place`."""
    failure = known[0].variant.why_missed(tuple(args), dict(kwargs)) if known else None  # the newest
    text = str(failure) if failure is not None else next((n.why for n in place.unbound), "")
    if place.why is not None and place.point.has_answer:
        answer = re.compile(rf"^arg{place.point.slots - 1}\b")
        text = answer.sub(f"the result of {place.why.detail}", text)
    path, kind = text.partition(": expected")[0], _kind_of(failure)
    if kind == "size":
        path = axis_path(path, "size", first_other_axis(failure.expected, failure.found))
    return Miss(path, kind, text)


def _kind_of(failure: Failure | None) -> str:
    """A row of `base.remedies.REMEDIES`, or a kind of guard."""
    if failure is None:
        return ""
    guard = failure.guard
    if guard is None:
        return "signature" if failure.path == "the call" else "missing"
    if guard.kind == "test":
        return "test"
    if failure.path.startswith("("):  # an expression
        return "size_test" if re.search(r"\.shape\[|\.stride\(", failure.path) else "test"
    if guard.kind == "tensor":
        return kind_of_tensors(failure.expected, failure.found)
    if guard.kind == "value":
        return "number" if type(guard.expected) in (int, float) else "value"
    return "flag" if guard.kind == "is" and type(guard.expected) in (bool, type(None)) else guard.kind


class Misses:
    """The misses at each place of a compiled function since it was made."""

    def __init__(self) -> None:
        self._at: dict[Any, collections.Counter] = {}  # by key: all entries are one place
        self._last: dict[tuple[Any, str], Miss] = {}  # in the order they came
        self.pins: dict[str, Pin] = {}  # by guard: what captures have looked at

    def clear(self) -> None:
        """Forgets all of them."""
        self._at.clear()
        self._last.clear()

    def learn(self, pins: Sequence[Pin], opened: Collection[str]) -> None:
        """What a capture has looked at of numbers, and those that it takes with any value."""
        self.pins = {guard: pin for guard, pin in self.pins.items() if guard not in opened}
        self.pins.update((pin.guard, pin) for pin in pins)

    def where(self, miss: Miss) -> str:
        """Where in the program, and why, there is a guard that has missed, if that is known: else ""."""
        pin = self.pins.get(miss.path)
        return "" if pin is None else f" ({pin.place}{pin.why})"

    def hint(self, miss: Miss, dynamic: bool | None = None) -> str:
        """The one thing to do about `miss`; `dynamic`: what was asked of sizes."""
        pin = self.pins.get(miss.path)
        if pin is not None:
            return pin.hint
        return hint_of("size_fixed" if miss.kind == "size" and dynamic is False else miss.kind)

    def add(self, place: Place, miss: Miss) -> None:
        """Counts a miss at `place`."""
        if miss.text:
            self._at.setdefault(place.key, collections.Counter())[miss.path] += 1
            self._last.pop((place.key, miss.path), None)
            self._last[place.key, miss.path] = miss

    def told(
        self, place: Place, limit: int, what: str, dynamic: bool | None = None,
    ) -> tuple[str, str]:
        """Detail and hint of the report that `limit` is reached: the miss that came most often, and what to do."""
        counts = self._at.get(place.key)
        if not counts:
            return f"{limit} {what} exist, and another is needed at a new place of the program", (
                f"{hint_of('')}, {OVER_LIMIT}")
        here = [miss for (key, _), miss in self._last.items() if key == place.key]
        miss = max(reversed(here), key=lambda one: counts[one.path])  # of several the last one
        count, total = counts[miss.path], counts.total()
        share = f" ({count} of {total} times)" if count < total else ""
        kind = "value" if miss.kind == "number" else miss.kind  # leaving it has not helped
        return (
            f"{limit} {what} exist, and another is needed because of {miss.text}{share}{self.where(miss)}",
            f"{self.hint(miss._replace(kind=kind), dynamic)}, {OVER_LIMIT}")


def counted(places: Sequence[Place]) -> float:
    """How many nodes begin at `places`, as they count, see the module docstring."""
    nodes = dict.fromkeys(node for place in places for node in (*place.bound, *place.unbound))
    return counted_traces([*map(trace_of, nodes)], frozenset().union(*(place.moving for place in places)))


def counted_traces(traces: Sequence[Trace], moving: Collection[str]) -> float:
    """The same of their traces; `moving`: the paths of numbers that change. Lengths are none of these: a list of
    a length that was captured for itself still goes that way."""
    moving = {path for path in moving if not path.startswith("len(")}
    pinned, left_open = [], set()
    for trace in traces if moving else ():
        values = {
            source_path(trace, guard.source) for node in trace.nodes for guard in node.guards
            if guard.kind == "value"}.intersection(moving)
        paths = {source_path(trace, number) for number in range(len(trace.sources))}
        left_open |= paths.intersection(moving) - values
        pinned.append(values)
    return len(traces) - sum(not values.isdisjoint(left_open) for values in pinned) / 2


def trace_of(node: Any) -> Trace:
    """The trace of a node, bound or not."""
    return (node.variant if isinstance(node, Bound) else node).artifact.trace
