"""Names of points: equal for points of equal content, whatever process or capture made them.

    point_key(point, objects)  ->  ("3f0c...", id(f), id(g))

Points hold objects of this process as `Live(k)` of the capture that made them; a key holds those
objects themselves, in the order in which the point names them. The rest is compared by its bytes:
True, 1 and 1.0 are equal, as are the two zeros, and yet they are different states of a program.
Who keeps a key keeps the objects alive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from preheat.ir.pack import digest
from preheat.ir.trace import Live, Point, Step

PointKey: TypeAlias = tuple[Any, ...]
_Kind = TypeVar("_Kind")


def point_key(point: Point, objects: Sequence[Any] = ()) -> PointKey:
    """The digest of `point`, whose `Live(k)` is `objects[k]`, and the ids of these objects."""
    point, objects = renumbered(point, objects)
    return digest(point), *map(id, objects)


def renumbered(point: Point, objects: Sequence[Any]) -> tuple[Point, tuple[Any, ...]]:
    """The point with its live objects numbered as they appear in it, and those objects."""
    order: dict[int, int] = {}
    for live in constants(point, Live):
        order.setdefault(live.index, len(order))
    if not order:
        return point, ()
    steps = tuple(Step(s.kind, _with_numbers(s.args, order)) for s in point.snapshot.steps)
    point = replace(point, snapshot=replace(point.snapshot, steps=steps))
    return point, tuple(objects[index] for index in order)


def is_portable(point: Point | None) -> bool:
    """Whether another process could rebuild the point; None: the entry, or the end."""
    return point is None or not any(True for _ in constants(point, Live))


def constants(point: Point, kind: type[_Kind]) -> Iterator[_Kind]:
    """The constants of class `kind` in the point's snapshot, in the order of its steps."""
    for step in point.snapshot.steps:
        yield from _parts(step.args, kind)


def _parts(value: Any, kind: type[_Kind]) -> Iterator[_Kind]:
    if type(value) is kind:
        yield value
    elif type(value) is tuple:
        for part in value:
            yield from _parts(part, kind)


def _with_numbers(value: Any, order: dict[int, int]) -> Any:
    if type(value) is Live:
        return Live(order[value.index])
    return tuple(_with_numbers(part, order) for part in value) if type(value) is tuple else value
