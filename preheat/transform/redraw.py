"""Redraw: a forward notes where the generator stands before a region of it draws.

    %3 = aten.bernoulli.p(%2, 0.9) region 1   ->   %9: u8[5056] = preheat.standing(1)
                                                   %3 = aten.bernoulli.p(%2, 0.9) region 1

Requires a functional graph at level aten.
"""

from collections.abc import Iterator
from dataclasses import replace

from preheat.bridge.redraw import is_draw, is_redrawn
from preheat.bridge.regions import STANDING, STATE_BYTES
from preheat.ir.graph import Graph, Op
from preheat.ir.types import tensor


def with_standing(graph: Graph) -> Graph:
    """`graph` that gives the state before the first draw of each region that draws again."""
    of_region: dict[int, list[Op]] = {}
    for op in graph.ops:
        of_region.setdefault(op.region, []).append(op)
    waiting = {number for number, ops in of_region.items() if number and is_redrawn(ops)}
    return replace(graph, ops=tuple(_ops(graph, waiting))) if waiting else graph


def _ops(graph: Graph, waiting: set[int]) -> Iterator[Op]:
    fresh = graph.next_id()
    for op in graph.ops:
        if op.region in waiting and is_draw(op):
            waiting.remove(op.region)
            yield Op(STANDING, (op.region,), (fresh,), (tensor("uint8", (STATE_BYTES,)),))
            fresh += 1
        yield op
