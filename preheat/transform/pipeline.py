"""The pipeline: what happens to a recorded graph before it is scheduled, in order.

    aten graph   functionalize -> decompose -> cleanup -> reinplace   core graph

Each `Pass` is a function from graph to graph with the levels it takes and gives. `verify` may check
the graph after every pass, an observer sees each one (for dumps, and for tests of one pass).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from preheat.base.errors import InternalError, Unsupported
from preheat.base.later import later
from preheat.ir.graph import Graph
from preheat.transform.cleanup import cleanup
from preheat.transform.decompose import decompose
from preheat.transform.decompositions.movement import VIEWS
from preheat.transform.functionalize import functionalize
from preheat.transform.listed import norms_listed
from preheat.transform.norms import native_norms
from preheat.transform.reinplace import reinplace

checks = later("preheat.ir.verify")


class Pass(NamedTuple):
    """`run` takes a graph at level `takes` to one at level `gives`; `name` is its flag too."""

    name: str
    takes: str
    gives: str
    run: Callable[[Graph], Graph]


PIPELINE: tuple[Pass, ...] = (
    Pass("functionalize", "aten", "aten", lambda graph: norms_listed(functionalize(native_norms(graph)))),
    Pass("decompose", "aten", "core", decompose),
    Pass("cleanup", "core", "core", cleanup),
    Pass("reinplace", "core", "core", reinplace),
)
# The same without rewriting: every op that eager runs is a library call, in eager's order.
WHOLE: tuple[Pass, ...] = (
    Pass("functionalize", "aten", "aten", functionalize),
    Pass("decompose", "aten", "core", partial(decompose, rows=VIEWS)),
    Pass("reinplace", "core", "core", reinplace),
)

# In training: a forward with its backwards, before it is taken apart, and then each half.
JOINED = PIPELINE[:-1]
HALF = PIPELINE[-1:]


def lower(
    graph: Graph,
    *,
    passes: tuple[Pass, ...] = PIPELINE,
    is_checked: bool = False,
    is_for_many: bool = False,
    observe: Callable[[Pass, Graph], None] | None = None,
) -> Graph:
    """`graph`, recorded at level aten, at level core.

    is_checked   verify the graph before the first and after each pass
    is_for_many  its sizes are hinted: what was told to be the same for all of them is checked again
    observe      called with each pass and the graph it gave
    Raises Unsupported for what must run eager, InternalError for a fault of ours.
    """
    if is_for_many:
        try:
            return lower(graph, passes=passes, is_checked=True, observe=observe)
        except InternalError as why:
            raise Unsupported("symbolic", f"sizes do not follow from each other: {why}") from why
    graph = replace(graph, grads=(), grad_outputs=())  # values do not depend on them
    if is_checked:
        checks.verify(graph)
    for step in passes:
        if graph.level != step.takes:
            raise InternalError(f"pass {step.name} takes level {step.takes}, got {graph.level}")
        graph = step.run(graph)
        if is_checked:
            _check(step, graph)
        if observe is not None:
            observe(step, graph)
    return graph


def _check(step: Pass, graph: Graph) -> None:
    if graph.level != step.gives:
        raise InternalError(f"pass {step.name} gives level {step.gives}, gave {graph.level}")
    try:
        checks.verify(graph)
    except InternalError as error:
        raise InternalError(f"after pass {step.name}: {error}") from error
