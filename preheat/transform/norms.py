"""Norms: batch norm as cuDNN does it, said as torch's own: one meaning, and one set of rows to lower it by.

    %5, %6, %7, %8 = aten.cudnn_batch_norm.default(%0, %1, %2, %3, %4, True, 0.1, 1e-05)
    %10, .. = aten.cudnn_batch_norm_backward.default(%0, %9, %1, %3, %4, %6, %7, 1e-05, %8)
      ->
    %5, %6, %7 = aten.native_batch_norm.default(%0, %1, %2, %3, %4, True, 0.1, 1e-05)
    %10, .. = aten.native_batch_norm_backward.default(%9, %0, %1, %3, %4, %6, %7, True, 1e-05, (True, True, True))

Both save the mean and 1 / standard deviation. What cuDNN reserves beside (%8) its own backward alone reads; where
anything else does, the ops stay. Requires and gives level aten, as recorded. Source: tools/autograd/derivatives.yaml.
"""

from dataclasses import replace

from preheat.bridge.ops import arguments
from preheat.ir.graph import Arg, Graph, Op, Ref

CUDNN = "aten.cudnn_batch_norm.default"
CUDNN_BACKWARD = "aten.cudnn_batch_norm_backward.default"
NATIVE = "aten.native_batch_norm.default"
NATIVE_BACKWARD = "aten.native_batch_norm_backward.default"


def native_norms(graph: Graph) -> Graph:
    """`graph` without batch norms of cuDNN."""
    norms = [op for op in graph.ops if op.name == CUDNN]
    backwards = [op for op in graph.ops if op.name == CUDNN_BACKWARD]
    if not norms and not backwards:
        return graph
    reserved = {op.results[3] for op in norms}
    read = {*graph.outputs, *(value for pair in graph.writes for value in pair)}
    for op in graph.ops:
        read.update(arg.id for arg in _operands(op) if isinstance(arg, Ref))
    kept = reserved & read

    def native(op: Op) -> Op:
        if op.name == CUDNN and op.results[3] not in kept:
            aliases = op.aliases[:3]
            return replace(op, name=NATIVE, results=op.results[:3], types=op.types[:3], aliases=aliases)
        if op.name == CUDNN_BACKWARD and arguments(op)["reserveSpace"] not in map(Ref, kept):
            return _backward(op)
        return op

    return replace(graph, ops=tuple(map(native, graph.ops)))


def _operands(op: Op) -> list[Arg]:
    """What `op` reads, of cuDNN's backward without what its forward has reserved."""
    if op.name == CUDNN_BACKWARD:
        return [arg for name, arg in arguments(op).items() if name != "reserveSpace"]
    return [*map(Ref, op.refs())]


def _backward(op: Op) -> Op:
    given = arguments(op)
    names = "grad_output input weight running_mean running_var save_mean save_var".split()
    args = (*(given[name] for name in names), True, given["epsilon"], (True, True, True))
    return replace(op, name=NATIVE_BACKWARD, args=args, attrs=())
