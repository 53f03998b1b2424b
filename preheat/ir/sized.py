"""Sized: a graph with symbols at the sizes of one call.

    at(graph, {"n3": 4})      %2: f32[(n3 * 2), 6] = view(%0, ((n3 * 2), 6))
                        ->    %2: f32[8, 6] = view(%0, (8, 6))
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from preheat.ir.graph import Graph, Op, Ref, Token
from preheat.ir.scalar import Number, Scalar, evaluate

_WITHOUT = frozenset((int, float, bool, str, type(None), Ref, Token))


def at(noun: Any, values: Mapping[str, Number]) -> Any:
    """`noun` (a graph, a type, an argument, tuples of them) with the values of its symbols, which
    are inputs of a graph no longer."""
    if isinstance(noun, Graph):
        noun = without_symbols(noun)
    return mapped(noun, lambda scalar: evaluate(scalar, values))


def without_symbols(graph: Graph) -> Graph:
    """`graph`, to which the values of its symbols are no inputs: who runs it knows them."""
    symbols = {value for _, value in graph.symbols}
    return replace(
        graph, symbols=(), inputs=tuple([i for i in graph.inputs if i.id not in symbols]))


def mapped(noun: Any, change: Callable[[Scalar], Number], but: tuple[str, ...] = ()) -> Any:
    """`noun` with `change(scalar)` for each expression in it; fields named in `but` stay.

    What has no expression in it is the same object as before.
    """
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


def without_types(graph: Graph, values: Mapping[str, Number]) -> Graph:
    """As `at`, for who runs a level aten graph op by op and looks at no type: those stay symbolic."""
    symbols = {value for _, value in graph.symbols}
    return replace(
        graph, symbols=(), inputs=tuple([i for i in graph.inputs if i.id not in symbols]),
        ops=tuple([_op_at(op, values) for op in graph.ops]))


def _op_at(op: Op, values: Mapping[str, Number]) -> Op:
    if not _has_symbols(op.args) and not _has_symbols(op.attrs):
        return op
    return replace(op, args=at(op.args, values), attrs=at(op.attrs, values))


def _has_symbols(arg: Any) -> bool:
    kind = arg.__class__
    return kind is Scalar or kind is tuple and any([_has_symbols(part) for part in arg])
