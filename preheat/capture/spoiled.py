"""Spoiled: bodies whose backward is not in their ops. Eager refuses it, since a write took from a
derivative what it had saved:

    y = x.exp(); y.add_(1)      ExpBackward has saved y, which is another by now

No functional graph would raise, so such a body is not captured. What the nodes of autograd have saved
is looked at (`bridge/history`). The derivatives of writes through views are out of sight, inside
torch's CopySlices: for these the ops alone say what may be, and may refuse a body that torch would
run backward, never the other way round.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.history import nodes, why_broken
from preheat.ir.graph import Graph, Op, refs_of

# In-place ops whose derivatives need neither the operands nor the result.
_SAVES_NOTHING = frozenset(f"aten.{name}" for name in (
    "copy_.default", "fill_.Scalar", "fill_.Tensor", "zero_.default", "add_.Tensor", "add_.Scalar",
    "sub_.Tensor", "sub_.Scalar", "neg_.default", "mul_.Scalar", "div_.Scalar",
))
_SAVES_NOTHING_OF_NUMBERS = frozenset(("aten.mul_.Tensor", "aten.div_.Tensor"))


def why_spoiled(recorder: Any, results: Sequence[Any]) -> str:
    """Why a backward from the tensors `results` through what was recorded raises, or ""."""
    ops = recorder.builder.ops
    if not any(op.writes for op in ops):
        return ""
    inputs = recorder.live_inputs()
    written = [known() for known in inputs if known.value in recorder.written_inputs]
    broken = why_broken([*results, *written], [known.history for known in inputs])
    views = {known.value for known in inputs if known()._is_view()}
    return broken or _why_slice_spoiled(ops, recorder.root, views, _tracked(ops, recorder.root, recorder.needing_grad()))


def written_histories(graph: Graph, sources: Mapping[int, int]) -> list[int]:
    """The `sources` of the inputs that require grad and are written to under autograd: none may be a leaf."""
    grads, roots = set(graph.grads), graph.roots()
    written = {
        roots.get(value, value) for op in graph.ops if op.is_grad_enabled for value in op.writes if value in grads}
    return [sources[value] for value in sorted(written & grads) if value in sources]


def own_gradient(graph: Graph, grad_outputs: Sequence[int]) -> str:
    """An op that ran outside of autograd and gave a new tensor that requires grad all the same: what
    gave it its history (a `torch.autograd.Function`, a custom op's) was not seen. Or "".

    grad_outputs   places of the outputs whose tensors require grad, in whatever mode they were made
    """
    wanted = {*graph.grads, *(graph.outputs[place] for place in grad_outputs)}
    for op in graph.ops if wanted else ():
        made = [r for r, alias in zip(op.results, op.aliases) if alias == -1]
        if not op.is_grad_enabled and not wanted.isdisjoint(made):
            return op.name
    return ""


def lost_edge(graph: Graph, results: Sequence[Any], inputs: Sequence[Any]) -> str:
    """An input that autograd reaches from `results`, and the edges of the recorded graph do not: then an op ran where
    its edge was not seen. Or "".

    inputs   those of the recorder that are alive: their values, and the nodes that gave them
    """
    leaves = {known.value: known for known in inputs if known().is_leaf and known().requires_grad}
    if not leaves:
        return ""
    bases = {identity(known()._base) for known in inputs if known()._is_view()}
    found = {identity(node.variable) for node in nodes(results, [known.history for known in inputs])
             if node.name() == "torch::autograd::AccumulateGrad"}
    wanted = {value for value, known in leaves.items() if identity(known()) in found - bases}
    if not wanted:
        return ""
    root, grads = graph.roots(), set(graph.grads)
    reached = {root.get(graph.outputs[place], graph.outputs[place]) for place in graph.grad_outputs}
    written = {root.get(value, value) for op in graph.ops for value in op.writes}  # perhaps with a history since
    reached |= written & grads
    for op in reversed(graph.ops):
        made = {root.get(value, value) for value in (*op.results, *op.writes)}
        if op.is_grad_enabled and not made.isdisjoint(reached):
            reached.update(
                root.get(value, value) for value in op.refs() if value in grads or root.get(value, value) in written)
    lost = [value for value in wanted if root.get(value, value) not in reached]
    return f"a tensor of {graph.types()[lost[0]]}" if lost else ""


def _tracked(ops: Sequence[Op], root: Mapping[int, int], needing: Iterable[int]) -> set[int]:
    """The memory, by root, that autograd may have to do with: of the values `needing` a gradient, and what follows."""
    found = {root[value] for value in needing}
    for op in ops:
        if not found.isdisjoint(root[value] for value in op.refs()):
            found.update(root[value] for value in (*op.results, *op.writes) if value != -1)
    return found


def _saves(op: Op) -> bool:
    """Whether the derivative of `op`, which writes, may read its operands or its result."""
    is_of_number = op.name in _SAVES_NOTHING_OF_NUMBERS and not any(True for arg in op.args[1:] for _ in refs_of(arg))
    return op.name not in _SAVES_NOTHING and not is_of_number


def _why_slice_spoiled(
    ops: Sequence[Op], root: Mapping[int, int], views: Set[int], tracked: Set[int],
) -> str:
    """`views`: the inputs that are views of others outside; `tracked`: see `_tracked`."""
    later: set[int] = set()
    apart = {r for op in ops if op.name.startswith("aten.unsafe_") for r in op.results}
    for op in reversed(ops):
        written = {root[value] for value in op.writes}
        is_slice = any(
            value in views or root[value] != value and value not in apart for value in op.writes)
        is_tracked = op.is_grad_enabled and not tracked.isdisjoint(root[value] for value in op.refs())
        if is_tracked and is_slice and _saves(op):
            others = {root[value] for arg in op.args[1:] for value in refs_of(arg)}
            if not (later | written).isdisjoint(others) or not later.isdisjoint(written):
                return f"{op.name} through a view may have saved what was modified since"
        later |= written
    return ""
