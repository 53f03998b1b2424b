"""Held: numbers that change become values that a derivative may keep.

    (%0: f32[8] grad, %1: float):                     %4: f64[] = aten.full.default((), %1)
        %2 = aten.leaky_relu.default(%0, %1)    ->    %2 = aten.leaky_relu.default(%0, item %4)

What a formula saves of a forward is values of its graph, tensors. So each number that an op under autograd takes
becomes a tensor without axes, made at the start, and the op takes the element of that.
"""

from dataclasses import replace

from preheat.bridge.formulas import ROWS
from preheat.ir.graph import Arg, Graph, Item, Op, Ref, Token, map_refs
from preheat.ir.types import NUMBER_DTYPES, ScalarType, tensor


def with_held_numbers(graph: Graph) -> Graph:
    """`graph`, in which ops that gradients go through take elements of tensors for numbers."""
    numbers = {given.id: given.type.type for given in graph.inputs
               if isinstance(given.type, ScalarType) and given.type.type in ("float", "int")}
    grads = set(graph.grads)
    if not numbers or not grads:
        return graph
    held: dict[int, Op] = {}
    fresh = graph.next_id()

    def item(value: int) -> Arg:
        nonlocal fresh
        if value not in numbers:
            return Ref(value)
        if value not in held:
            type = tensor(NUMBER_DTYPES[numbers[value]], ())
            factory = (("dtype", Token("dtype", type.dtype)), ("device", Token("device", "cpu")))
            held[value] = Op("aten.full.default", ((), Ref(value)), (fresh,), (type,), factory, (), (-1,))
            fresh += 1
        return Item(held[value].result)

    def changed(op: Op) -> Op:
        refs = op.refs()
        if op.name not in ROWS or not op.is_grad_enabled or grads.isdisjoint(refs) or numbers.keys().isdisjoint(refs):
            return op
        return replace(
            op, args=tuple(map_refs(arg, item) for arg in op.args),
            attrs=tuple((key, map_refs(arg, item)) for key, arg in op.attrs))

    ops = tuple(map(changed, graph.ops))
    return replace(graph, ops=(*held.values(), *ops))
