"""Sized: a graph with symbols at the sizes of one call.

    at(graph, {"n3": 4})      %2: f32[(n3 * 2), 6] = view(%0, ((n3 * 2), 6))
                        ->    %2: f32[8, 6] = view(%0, (8, 6))
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from preheat.ir.graph import Graph, Op
from preheat.ir.scalar import Number, Scalar, evaluate
from preheat.ir.types import TensorType


def at(noun: Any, values: Mapping[str, Number]) -> Any:
    """`noun` (a graph, a type, an argument, tuples of them) with the values of its symbols, which
    are inputs of a graph no longer."""
    if isinstance(noun, Scalar):
        return evaluate(noun, values)
    if isinstance(noun, tuple):
        return tuple([at(part, values) for part in noun])
    if isinstance(noun, TensorType):
        return replace(noun, sizes=at(noun.sizes, values), strides=at(noun.strides, values))
    if isinstance(noun, Graph):
        symbols = {value for _, value in noun.symbols}
        return replace(
            noun, symbols=(),
            inputs=tuple(
                replace(i, type=at(i.type, values)) for i in noun.inputs if i.id not in symbols),
            ops=tuple(
                replace(op, args=at(op.args, values), attrs=at(op.attrs, values),
                        types=at(op.types, values))
                for op in noun.ops),
        )
    return noun


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
