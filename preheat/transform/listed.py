"""Listed: norms of many tensors, one by one, as the one op on a list that torch has for them.

    %20 = aten.linalg_vector_norm.default(%0, 2.0)
    ...                                                ->    %20, .., %39 = aten._foreach_norm.Scalar([%0, .., %19], 2.0)
    %39 = aten.linalg_vector_norm.default(%19, 2.0)

As kernels each would be compiled for its own size, and on a GPU launched alone; the library does dozens in a launch. Of
whole inputs only, which are there before all else: whatever is computed is better reduced where it is made.
Requires and gives level aten without writes.
"""

from preheat.base.identity import identity
from preheat.bridge.ops import arguments
from preheat.ir.graph import Arg, Graph, Op, Ref, with_ops
from preheat.ir.types import TensorType

LEAST = 8
_NORM, _NORMS = "aten.linalg_vector_norm.default", "aten._foreach_norm.Scalar"


def norms_listed(graph: Graph) -> Graph:
    """`graph` with one op for the norms of many inputs."""
    inputs = {given.id: given.type for given in graph.inputs}
    alike: dict[tuple, list[Op]] = {}
    for op in graph.ops:
        key = _key(op, inputs) if op.name == _NORM else None
        if key is not None:
            alike.setdefault(key, []).append(op)
    first: dict[int, Op] = {}
    gone: set[int] = set()
    for (order, *_), ops in alike.items():
        if len(ops) >= LEAST:
            gone.update(map(identity, ops))
            first[identity(ops[0])] = Op(
                _NORMS, (tuple([op.args[0] for op in ops]), order), tuple([op.result for op in ops]),
                tuple([op.type for op in ops]), aliases=(-1,) * len(ops))
    if not gone:
        return graph
    return with_ops(graph, [
        first.get(identity(op), op) for op in graph.ops if identity(op) in first or identity(op) not in gone])


def _key(op: Op, inputs: dict) -> tuple[Arg, ...] | None:
    """What norms of one list share: the order first; None for one that is in none."""
    given = arguments(op)
    type = inputs.get(given["self"].id) if isinstance(given["self"], Ref) else None
    is_whole = given["dim"] is None and not given["keepdim"] and given["dtype"] is None
    if not isinstance(type, TensorType) or not is_whole or not isinstance(given["ord"], int | float):
        return None
    if type.kind != "f" or not all(isinstance(size, int) and size > 0 for size in type.sizes):
        return None
    return given["ord"], type.dtype, type.device
