"""Rows side by side: short outer axes that threads do not share are written out.

    over i0:256 parallel, i1:2                    over i0:256 parallel
      stage j:512 vector                            stage j:512 vector
        v0 = load p0[i1*512 + j]             ->       v0 = load p0[j]
        v1 = load p1[i0*512 + j]                      v4 = load p0[512 + j]
        v2 = mul v0, v1                               v1 = load p1[i0*512 + j]
        v3 = reduce sum v2                            v2 = mul v0, v1; v5 = mul v4, v1
                                                      v3 = reduce sum v2; v6 = reduce sum v5

What does not depend on such an axis is there once: a row of weights is loaded for all rows of a
small product. Guarantees: each value is computed as before; stores stay
in order. Source: unroll and jam (Callahan, Carr, Kennedy 1990).
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.generate.nest import operands
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Stage
from preheat.ir.scalar import Scalar

MOST_COPIES = 8  # of a value: more do not fit the registers


def side_by_side(kernel: Kernel) -> Kernel:
    """`kernel` without the unshared axes that are short enough to be written out."""
    copies = 1
    for axis in kernel.axes[kernel.parallel :]:
        if axis.name == kernel.lane or isinstance(axis.extent, Scalar):
            continue
        if 0 < axis.extent and copies * axis.extent <= MOST_COPIES:
            copies *= axis.extent
            kernel = _Copies(kernel, axis).kernel()
    return kernel


class _Copies:
    """The copies of each value of `kernel` along `axis`."""

    def __init__(self, whole: Kernel, axis: Axis):
        self.whole, self.axis = whole, axis
        ids = (op.id for stage in whole.stages for op in stage.body)
        self.next = max(ids, default=-1) + 1
        self.names: list[dict[int, int]] = [{} for _ in range(axis.extent)]

    def kernel(self) -> Kernel:
        stages = tuple(self._stage(stage) for stage in self.whole.stages)
        axes = tuple(a for a in self.whole.axes if a.name != self.axis.name)
        return replace(self.whole, axes=axes, stages=stages)

    def _stage(self, stage: Stage) -> Stage:
        return replace(stage, body=tuple(c for op in stage.body for c in self._copies(op)))

    def _copies(self, op: LoopOp) -> list[LoopOp]:
        """One op for all positions, or one for each; the first keeps the name."""
        if not self._depends(op):
            for names in self.names:
                names[op.id] = op.id
            return [op]
        made = []
        for position, names in enumerate(self.names):
            copy = self._at(op, position, names)
            if op.id >= 0 and position > 0:
                copy, self.next = replace(copy, id=self.next), self.next + 1
            names[op.id] = copy.id
            made.append(copy)
        return made

    def _depends(self, op: LoopOp) -> bool:
        is_moving = op.index is not None and op.index.stride(self.axis.name) != 0
        is_copied = any(len({n[v] for n in self.names}) > 1 for v in operands(op))
        return is_moving or is_copied or op.axis == self.axis.name

    def _at(self, op: LoopOp, position: int, names: Mapping[int, int]) -> LoopOp:
        if op.op == "axis" and op.axis == self.axis.name:
            return LoopOp("const", op.id, op.dtype, other=position, keep=op.keep)
        mask = None if op.mask is None else names[op.mask]
        index = op.index and self._index(op.index, position, names)
        return replace(op, args=tuple(names[v] for v in op.args), mask=mask, index=index)

    def _index(self, index: Index, position: int, names: Mapping[int, int]) -> Index:
        terms = tuple(
            (names[term] if isinstance(term, int) else term, stride)
            for term, stride in index.terms
            if term != self.axis.name
        )
        return Index(index.base + position * index.stride(self.axis.name), terms)
