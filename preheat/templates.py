"""Templates: one plan for all sizes of a graph.

    graph (%0: f32[n3, 8]), hints ((4,), (9,))
      ->  plan of kernels that take n3 as an argument, for all n3 that its conditions allow

The graph goes through transform, schedule and generate with hinted sizes (`ir/hinted.py`). Choices
between two right ways look at the first hint, the sizes of a real call; what algebra does not decide
becomes a condition. Further hints are sizes that the guards of the trace allow: what is equal by
accident in one call is not in them.
"""

import random
from collections.abc import Mapping
from dataclasses import replace

from preheat.ir.dims import solved, substitute
from preheat.ir.graph import Graph
from preheat.ir.scalar import Dim, Number, Scalar, apply, evaluate, symbol, symbols
from preheat.ir.sized import with_sizes
from preheat.ir.trace import Trace

_OTHER_CALLS = 2
_ATTEMPTS = 200


def with_other_hints(graph: Graph, trace: Trace) -> Graph:
    """`graph`, the body of `trace`, with hints besides the sizes that it was recorded at."""
    names = [name for name, _ in graph.symbols]
    tests = _tests(trace, frozenset(names))
    chance, found = random.Random(0), list(graph.hints)
    for _ in range(_ATTEMPTS):
        if len(found) > _OTHER_CALLS:
            break
        call = tuple(chance.randint(2, 3 * max(hint, 4)) for hint in graph.hints[0])
        values = dict(zip(names, call))
        is_generic = len(set(call)) == len(call) and not set(call) & set(graph.hints[0])
        if is_generic and all(_is(test, values, answer) for test, answer in tests):
            found.append(call)
    return replace(graph, hints=tuple(found))


def merged(graph: Graph, trace: Trace) -> Graph:
    """`graph`, the body of `trace`, with one expression for sizes that the guards say are the same."""
    known: dict[str, Number] = {}
    for test, answer in _tests(trace, frozenset(name for name, _ in graph.symbols)):
        test = substitute(test, known)
        found = solved(*test.args) if answer and isinstance(test, Scalar) and test.op == "eq" else None
        if found is not None:
            name, value = found
            known = {other: substitute(by, {name: value}) for other, by in known.items()}
            known[name] = value
    return with_sizes(graph, known)


def _tests(trace: Trace, names: frozenset[str]) -> list[tuple[Scalar, bool]]:
    """What the guards say of these symbols alone."""
    (node,) = trace.nodes
    fixed, found = _known(trace), []
    for guard in node.guards:
        source = trace.sources[guard.source] if guard.source >= 0 else None
        if source is None or source.kind != "number" or guard.kind != "is":
            continue
        test = substitute(source.key, fixed)
        if isinstance(test, Scalar) and names.issuperset(symbols(test)):
            found.append((test, guard.expected))
    pinned = {name for name in names & fixed.keys() if isinstance(fixed[name], int)}
    return found + [(apply("eq", symbol(name), fixed[name]), True) for name in sorted(pinned)]


def _known(trace: Trace) -> dict[str, Dim]:
    """The symbols that can only be one number, by the facts of tensors or a guard of their own, and those of
    sizes and strides that are an expression of others."""
    (node,) = trace.nodes
    types = {g.source: g.expected.type for g in node.guards if g.kind == "tensor"}
    found = {
        f"{kind}{guard.source}": guard.expected
        for guard in node.guards for kind in "nst" if guard.kind == "value"}
    for place, source in enumerate(trace.sources):
        if source.kind in ("size", "stride") and source.parent in types:
            type = types[source.parent]
            dim = (type.sizes if source.kind == "size" else type.strides)[source.key]
            name = f"{'n' if source.kind == 'size' else 't'}{place}"
            if dim != symbol(name):
                found[name] = dim
    return {name: value for name, value in found.items() if value.__class__ is int or isinstance(value, Scalar)}


def _is(test: Scalar, values: Mapping[str, int], answer: bool) -> bool:
    try:
        return evaluate(test, values) is answer
    except ArithmeticError:
        return False
