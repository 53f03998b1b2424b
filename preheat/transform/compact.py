"""Compact: what a backward reads of the forward, in the smallest form that loses nothing.

    %3 = library aten.bernoulli.p(..)  f32         %3 = ..; %9: bool = cast(%3); %10: f32 = cast(%9)
    %4 = mul(%2, %3)                        ->     %4 = mul(%2, %10)
    %7 = mul(%6, %3)   in the backward             %7 = mul(%6, %10)

Draws of 0 and 1 are bits; places in an image, of which pooling takes the largest, are as short as its
size allows. Requires and gives a graph at level core.
"""

from dataclasses import replace

from preheat.ir.graph import Graph, Op, Ref, map_refs, with_ops
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType

# With the count of axes that a place counts along.
_POOLINGS = {"aten.max_pool2d_with_indices.default": 2, "aten.max_pool3d_with_indices.default": 3}
_DRAWS_BITS = frozenset(("aten.bernoulli.p", "aten.bernoulli.default"))


def compact(core: Graph) -> Graph:
    """`core` with smaller forms beside the values that have them, read instead of those."""
    fresh, types = core.next_id(), core.types()
    ops: list[Op] = []
    bits: dict[int, int] = {}  # by value: the same made from bits

    def cast(value: int, type: TensorType) -> int:
        nonlocal fresh
        ops.append(Op("cast", (Ref(value),), (fresh,), (type,), (("dtype", type.dtype),)))
        fresh += 1
        return fresh - 1

    for op in core.ops:
        op = op if bits.keys().isdisjoint(op.refs()) else _renamed(op, bits)
        ops.append(op)
        if op.name == "library" and op.attr("op") in _DRAWS_BITS and op.type.dtype != "bool":
            bits[op.result] = cast(cast(op.result, replace(op.type, dtype="bool")), op.type)
        elif op.name == "library" and op.attr("op") in _POOLINGS and op.results[1] != -1:
            sides = types[op.args[0].id].sizes[-_POOLINGS[op.attr("op")]:]
            short, (_, places), (_, type) = _shortest(product(sides)), op.results, op.types
            if short:
                bits[places] = cast(cast(places, replace(type, dtype=short)), type)
    return with_ops(core, ops) if bits else core


def _shortest(count: Dim) -> str:
    """The shortest dtype of numbers below `count`; "" where that hangs on sizes."""
    ends = {"int16": 1 << 15, "int32": 1 << 31} if isinstance(count, int) else {}
    return next((dtype for dtype, end in ends.items() if count <= end), "")


def _renamed(op: Op, number: dict[int, int]) -> Op:
    def renamed(arg):
        return map_refs(arg, lambda ref: Ref(number.get(ref, ref)))

    return Op(
        op.name, tuple(map(renamed, op.args)), op.results, op.types,
        tuple((key, renamed(arg)) for key, arg in op.attrs))
