"""What a compiled function knows of numbers: which are symbols, which are pinned and why, which have not changed yet.

    f(x of 3 rows, 2); f(x of 5 rows, 3)     Known(symbols=("arg0.shape[0]",), pins=(Pin("arg1", ...),),
                                                   held=("arg0.shape[1] is 8",))

It is read off the traces of its nodes: what one of them takes with any value is a symbol, unless the last capture that
looked at it has pinned it. Sizes are told of tensors
that are arguments, numbers of whatever is not a library's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from preheat.base.pins import TEST, Known, Pin
from preheat.ir.scalar import Scalar
from preheat.ir.text_trace import axis_path, source_path
from preheat.ir.trace import Captured, Named, TensorFacts, Trace
from preheat.run.limits import trace_of
from preheat.run.variant import moved_for
from preheat.run.walk import Place

_NUMBERS = frozenset((Named("builtins", "int"), Named("builtins", "float")))
# A library's, an expression, what Python and torch keep for themselves.
_HIDDEN = re.compile(r"^(torch|builtins|math)\.|^\(|\.__\w+__|_hooks\b|\._(parameters|buffers|modules)\b")


def known_of(places: Iterable[Place], pins: Mapping[str, Pin], dynamic: bool | None) -> Known:
    """What the nodes of `places` hold of numbers; `pins` has what captures looked at, by guard,
    `dynamic` what was asked of sizes."""
    places = [*places]
    nodes = {node: place.point is None for place in places for node in (*place.unbound, *place.bound)}
    pairs = (pair for node, is_entry in nodes.items() for pair in _numbers(trace_of(node), is_entry))
    moving = frozenset().union(*(place.moving for place in places))
    values: dict[str, list] = {}  # of each number; None: any
    for path, value in pairs:
        values.setdefault(path, []).append(value)
    pinned = {guard: pin for guard, pin in pins.items() if pin.by != TEST or pin.must}
    symbols = tuple(path for path, found in values.items() if None in found and path not in pinned)
    held = {
        path: _text(found) for path, found in values.items() if None not in found and path not in pinned}
    return Known(symbols, tuple(pinned.values()), tuple(
        f"{path} is {text}{_why(path, text, moving, dynamic)}" for path, text in held.items()))


def opened_by(captured: Iterable[Captured]) -> frozenset[str]:
    """The numbers of a call that nodes take with any value."""
    return frozenset(path for one in captured if one.start is None
                     for path, value in _numbers(one.trace, True) if value is None)


def moved_at(places: Iterable[Place], args: Sequence, kwargs: Mapping) -> frozenset[str]:
    """The numbers that would be symbols if a call with these arguments were captured beside the nodes of `places`."""
    entries = [place for place in places if place.point is None]
    nodes = dict.fromkeys(bound for place in entries for bound in place.bound)
    moved = moved_for([bound.variant for bound in nodes], (), args, kwargs)
    are_open = (path for bound in nodes for path, value in _numbers(trace_of(bound), True) if value is None)
    return moved.union(are_open, *(place.moving for place in entries))


def _why(path: str, values: str, moving: frozenset[str], dynamic: bool | None) -> str:
    is_size = ".shape[" in path
    if is_size and dynamic is False:
        return ": dynamic=False makes each size a variant"
    if is_size and values in ("0", "1"):
        return ": an axis of one element, or none, is a symbol from its second value on that is more"
    return ": something has pinned it in a variant that was not captured here" if path in moving else ""


def _text(values: Iterable[int | float]) -> str:
    return " or ".join(dict.fromkeys(map(repr, values)))


def _numbers(trace: Trace, is_entry: bool) -> Iterator[tuple[str, Any]]:
    """Path and value of each number that the guards of a trace speak of; None for the value of a symbol. Arguments of a
    node that begins elsewhere than the call are what it is handed, and no numbers of the caller's."""
    for node in trace.nodes:
        pinned = {guard.source for guard in node.guards if guard.kind == "value"}
        for guard in node.guards:
            is_argument = _root(trace, guard.source) in ("arg", "kwarg")
            path, expected = source_path(trace, guard.source), guard.expected
            if guard.source < 0 or _HIDDEN.search(path) or is_argument and not is_entry:
                continue
            if isinstance(expected, TensorFacts):
                if is_argument:
                    yield from _sizes(path, expected.type.sizes)
            elif guard.kind == "value" and type(expected) in (int, float):
                yield path, expected
            elif guard.kind == "len":
                yield f"len({path})", expected
            elif guard.kind == "type" and expected in _NUMBERS and guard.source not in pinned:
                yield path, None


def _sizes(path: str, sizes: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for axis, size in enumerate(sizes):
        yield axis_path(path, "size", axis), None if isinstance(size, Scalar) else size


def _root(trace: Trace, source: int) -> str:
    while source >= 0 and trace.sources[source].parent >= 0:
        source = trace.sources[source].parent
    return trace.sources[source].kind if source >= 0 else ""
