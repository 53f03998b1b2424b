"""Compact: what a backward reads of the forward, in the smallest form that loses nothing.

    %3 = library aten.bernoulli.p(..)  f32         %3 = ..; %9: bool = cast(%3); %10: f32 = cast(%9)
    %4 = mul(%2, %3)                        ->     %4 = mul(%2, %10)
    %7 = mul(%6, %3)   in the backward             %7 = mul(%6, %10)

Draws of 0 and 1 are bits. A float32 that the forward rounds to 16 bits is read rounded, as torch's
formulas read it. Requires and gives the graph of a `Whole` at level core.
"""

from dataclasses import replace

from preheat.ir.graph import Graph, Op, Ref, map_refs, with_ops
from preheat.ir.types import TensorType
from preheat.transform.lowering import SMALL_FLOATS
from preheat.transform.partition import Facts
from preheat.transform.whole import Whole

_DRAWS_BITS = frozenset(("aten.bernoulli.p", "aten.bernoulli.default"))


def compact(core: Graph, whole: Whole) -> Graph:
    """`core` with smaller forms beside the values that have them, read instead of those."""
    facts, fresh = Facts(core, whole), core.next_id()
    ops: list[Op] = []
    bits: dict[int, int] = {}  # by value: the same made from bits
    rounded: dict[int, int] = {}  # by value: the rounded one, wide again, for the backward

    def cast(value: int, type: TensorType, **attrs: bool) -> int:
        nonlocal fresh
        given = (("dtype", type.dtype), *attrs.items())
        ops.append(Op("cast", (Ref(value),), (fresh,), (type,), given))
        fresh += 1
        return fresh - 1

    for op in core.ops:
        is_forward = not facts.forward.isdisjoint(op.results)
        number = bits if is_forward else {**bits, **rounded} if rounded else bits
        if not number.keys().isdisjoint(op.refs()):
            op = _renamed(op, number)
        ops.append(op)
        if op.name == "library" and op.attr("op") in _DRAWS_BITS and op.type.dtype != "bool":
            bit = cast(op.result, _of(op.type, "bool"))
            bits[op.result] = cast(bit, op.type)
        elif op.name == "cast" and is_forward and op.attr("free") and op.type.dtype in SMALL_FLOATS:
            rounded[op.args[0].id] = cast(op.result, _of(op.type, "float32"), free=True)
    return with_ops(core, ops) if bits or rounded else core


def _of(type: TensorType, dtype: str) -> TensorType:
    return replace(type, dtype=dtype)


def _renamed(op: Op, number: dict[int, int]) -> Op:
    def renamed(arg):
        return map_refs(arg, lambda ref: Ref(number.get(ref, ref)))

    return Op(
        op.name, tuple(map(renamed, op.args)), op.results, op.types,
        tuple((key, renamed(arg)) for key, arg in op.attrs))
