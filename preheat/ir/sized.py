"""Sized: nouns with symbols at the sizes of one call.

    at(graph, {"n3": 4})      %2: f32[(n3 * 2), 6] = view(%0, ((n3 * 2), 6))
                        ->    %2: f32[8, 6] = view(%0, (8, 6))
    at(plan, {"n3": 4})       buffers, calls and outputs of a template likewise; its kernels stay
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from preheat.ir.dims import source_of, substitute
from preheat.ir.graph import Graph, Op, Ref, Token
from preheat.ir.hinted import Book, hints, with_hints
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Output, Plan
from preheat.ir.scalar import Number, Scalar, evaluate, symbols
from preheat.ir.trace import Guard, Trace
from preheat.ir.types import TensorType

Change = Callable[[Scalar], Number]
_WITHOUT = frozenset((int, float, bool, str, type(None), Ref, Token))


def at(noun: Any, values: Mapping[str, Number]) -> Any:
    """`noun` (a graph, a plan, a type, an argument, tuples of them) with the values of its symbols,
    which are inputs of a graph no longer."""
    return _changed(noun, lambda scalar: evaluate(scalar, values))


def builder(noun: Any, value: Callable[[Scalar], Callable]) -> Callable[[Any], Any]:
    """What makes `noun`, a type, an argument or tuples of them, at some sizes again and again: as `at`, with
    nothing looked up. value(scalar): what gives the value of an expression, of the same argument."""
    if isinstance(noun, Scalar):
        return value(noun)
    if not has_sizes(noun):
        return lambda given: noun
    if isinstance(noun, tuple):
        parts = [builder(part, value) for part in noun]
        return lambda given: tuple([part(given) for part in parts])
    kind, parts = noun.__class__, [builder(getattr(noun, f.name), value) for f in fields(noun)]
    return lambda given: kind(*[part(given) for part in parts])


def with_hinted_sizes(
    noun: Graph | Plan, symbols: Sequence[str], calls: Iterable[tuple[int, ...]], book: Book,
) -> Any:
    """`noun` with hinted numbers for its symbols, which are inputs no longer (`ir/hinted.py`).

    calls   values of the symbols in calls that are known of, a real one first; it may come again
    """
    known = hints([dict(zip(symbols, call)) for call in dict.fromkeys(calls)], book)
    return _changed(noun, lambda scalar: with_hints(scalar, known, book))


def _changed(noun: Any, change: Change) -> Any:
    """`noun` with `change(scalar)` for each expression in it."""
    if isinstance(noun, Scalar):
        return change(noun)
    if isinstance(noun, tuple):
        return tuple([_changed(part, change) for part in noun])
    fields = _FIELDS.get(noun.__class__)
    if fields is not None:
        return replace(noun, **{name: _changed(getattr(noun, name), change) for name in fields})
    if isinstance(noun, Graph):
        symbols = {value for _, value in noun.symbols}
        return replace(
            noun, symbols=(), hints=(),
            inputs=tuple(
                replace(i, type=_changed(i.type, change))
                for i in noun.inputs if i.id not in symbols),
            ops=_changed(noun.ops, change))
    if isinstance(noun, Plan):
        parts = {name: _changed(getattr(noun, name), change) for name in _PARTS}
        return replace(noun, symbols=(), conditions=(), preferences=(), **parts)
    return noun


# Where nouns have expressions.
_FIELDS: dict[type, tuple[str, ...]] = {
    TensorType: ("sizes", "strides"), Op: ("args", "attrs", "types"), Buffer: ("index", "type"),
    KernelCall: ("extent", "bytes", "sizes"), LibraryCall: ("args", "attrs"),
    Output: ("type", "offset"),
}
_PARTS = ("inputs", "buffers", "calls", "outputs", "arena_bytes")


def without_symbols(graph: Graph) -> Graph:
    """`graph`, to which the values of its symbols are no inputs: who runs it knows them."""
    symbols = {value for _, value in graph.symbols}
    return replace(
        graph, symbols=(), hints=(),
        inputs=tuple([i for i in graph.inputs if i.id not in symbols]))


def mapped(noun: Any, change: Change, but: tuple[str, ...] = ()) -> Any:
    """`noun`, of any class, with `change(scalar)` for each expression in it; fields named in `but`
    stay. What has no expression in it is the same object as before."""
    kind = noun.__class__
    if kind in _WITHOUT:
        return noun
    if kind is Scalar:
        return change(noun)
    if kind is tuple:
        parts = [mapped(part, change) for part in noun]
        return tuple(parts) if any(map(operator.is_not, parts, noun)) else noun
    if not is_dataclass(noun):
        return noun
    made = {
        field.name: mapped(getattr(noun, field.name), change)
        for field in fields(noun) if field.name not in but}
    made = {name: value for name, value in made.items() if value is not getattr(noun, name)}
    return replace(noun, **made) if made else noun


def evaluated(noun: Any, values: Mapping[str, Number]) -> Any:
    """`noun`, of any class, with the values of its symbols."""
    return mapped(noun, lambda scalar: evaluate(scalar, values))


def trace_at(trace: Trace, sizes: Mapping[str, int]) -> Trace:
    """`trace` of one node, for calls at these sizes alone: its guards say what they are."""
    (node,) = trace.nodes

    def value(scalar: Scalar) -> Number:
        return evaluate(scalar, sizes) if sizes.keys() >= set(symbols(scalar)) else scalar

    kept: list[Guard] = []
    fixed: dict[int, int] = {}  # sources that guards say are one number
    for guard in node.guards:
        source = trace.sources[guard.source] if guard.source >= 0 else None
        is_test = source is not None and source.kind == "number" and guard.kind == "is"
        if is_test and sizes.keys() >= set(symbols(source.key)):
            continue
        if guard.kind == "tensor":
            type = _changed(guard.expected.type, value)
            guard = replace(guard, expected=replace(guard.expected, type=type))
        elif guard.kind == "value":
            fixed[guard.source] = guard.expected
        kept.append(guard)
    types = {guard.source: guard.expected.type for guard in kept if guard.kind == "tensor"}
    for place, source in enumerate(trace.sources):
        if source.kind in ("size", "stride") and source.parent in types:
            type = types[source.parent]
            fixed[place] = (type.sizes if source.kind == "size" else type.strides)[source.key]
    kept += [
        Guard(source_of(name), "value", known) for name, known in sizes.items()
        if fixed.get(source_of(name)) != known]
    return replace(trace, nodes=(replace(node, guards=tuple(kept)),))


def with_sizes(graph: Graph, known: Mapping[str, Number]) -> Graph:
    """`graph` with `known[name]` in place of some of its symbols, which stay inputs."""
    if not known:
        return graph

    def change(scalar: Scalar) -> Number:
        return substitute(scalar, known)

    inputs = tuple(replace(i, type=_changed(i.type, change)) for i in graph.inputs)
    return replace(graph, inputs=inputs, ops=_changed(graph.ops, change))


def has_sizes(noun: Any) -> bool:
    """Whether there is an expression in `noun`."""
    found: list[Scalar] = []
    _changed(noun, lambda scalar: found.append(scalar) or scalar)
    return bool(found)


def without_types(graph: Graph, values: Mapping[str, Number]) -> Graph:
    """As `at`, for who runs a level aten graph op by op and looks at no type: those stay symbolic."""
    symbols = {value for _, value in graph.symbols}
    return replace(
        graph, symbols=(), hints=(), inputs=tuple([i for i in graph.inputs if i.id not in symbols]),
        ops=tuple([_op_at(op, values) for op in graph.ops]))


def _op_at(op: Op, values: Mapping[str, Number]) -> Op:
    if not _has_symbols(op.args) and not _has_symbols(op.attrs):
        return op
    return replace(op, args=at(op.args, values), attrs=at(op.attrs, values))


def _has_symbols(arg: Any) -> bool:
    kind = arg.__class__
    return kind is Scalar or kind is tuple and any([_has_symbols(part) for part in arg])
