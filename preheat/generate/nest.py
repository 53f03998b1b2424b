"""Loop nests: where in its loops each operation of a kernel belongs, and how wide it is.

    softmax over i0, stage j: vector        axes (i0, j), outer 1
      v1 = load p0[i0*128 + j]              level 2, varies between lanes
      v2 = load p2[i0]                      level 1, one value a row
      v3 = mul v1, v2                       level 2

An operation runs once a position of the deepest axis that it depends on, so what is the same for a
whole row is computed once a row and on one lane. Only the data flow is looked at: no target, no
text. Extents may be expressions (`ir/hinted.py`). Guarantees: each operation comes
after its operands; reductions sit at the innermost level, where they see every position.
"""

from typing import NamedTuple

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.generate.llvm import Value
from preheat.ir.hinted import estimate
from preheat.ir.loop import Axis, Kernel, LoopOp, Stage
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import DTYPES

# What a value costs relative to an addition, for unrolling; the polynomial functions are long.
COST = {
    **dict.fromkeys("div reciprocal sqrt rsqrt uniform".split(), 4),
    **dict.fromkeys("exp exp2 sigmoid sin cos floordiv truncdiv remainder fmod".split(), 12),
    **dict.fromkeys(
        "expm1 log log2 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
        "pow atan2".split(), 20,
    ),
    **dict.fromkeys("const axis".split(), 0),
}
SHORT_VECTORS = 4  # rows of an extent that is an argument are one step, if they fit in so many
STRIP_WEIGHT = 4  # two loads, a product, a sum


@dataclass(frozen=True, slots=True)
class StageNest:
    """A stage in its loops. `axes` is the whole nest, of which the first `outer` are the kernel's.

    levels[d]   operations that depend on axes[d - 1] and on none deeper; all that depend on outer
                axes only are in levels[outer]
    varying     values that differ between the lanes of `vector`
    recalled    values kept by an earlier stage and used by this one
    """

    axes: tuple[Axis, ...]
    outer: int
    vector: str | None
    levels: tuple[tuple[LoopOp, ...], ...]
    varying: frozenset[int]
    recalled: tuple[LoopOp, ...]
    reductions: tuple[LoopOp, ...]

    @property
    def own(self) -> tuple[Axis, ...]:
        return self.axes[self.outer:]

    def varies(self, op: LoopOp) -> bool:
        """Whether the address of a load or store differs between lanes."""
        return any(
            term in self.varying if isinstance(term, int) else term == self.vector and stride != 0
            for term, stride in op.index.terms
        )

    @property
    def is_down(self) -> bool:
        """Each lane reduces a column of its own."""
        return bool(self.reductions) and self.vector in {a.name for a in self.axes[: self.outer]}

    @property
    def positions(self) -> Dim:
        """How many positions the stage's own axes have."""
        return product(axis.extent for axis in self.own)


class Piece(NamedTuple):
    """Positions start .. stop of the vector axis, `lanes` at a time; `is_masked`: fewer of them.

    trips   how many times about, where start and stop are only known when the kernel runs (i64
            values): then there may be none, too
    """

    lanes: int
    start: int | Value
    stop: int | Value
    is_masked: bool = False
    trips: int = 0


def nests(kernel: Kernel) -> tuple[StageNest, ...]:
    """The nest of every stage of `kernel`. Raises InternalError for what has no native form."""
    _verify(kernel)
    outer = tuple(a for a in kernel.axes if a.name != kernel.lane)
    outer += tuple(a for a in kernel.axes if a.name == kernel.lane)
    known: dict[int, frozenset[str]] = {}  # what later stages see of a value: axes it depends on
    kept: dict[int, LoopOp] = {}
    result = []
    for stage in kernel.stages:
        result.append(_nest(stage, kernel.lane, outer, known, kept))
    return tuple(result)


def _nest(stage: Stage, lane, outer, known, kept) -> StageNest:
    axes = outer + stage.axes
    vector = lane or (stage.axes[-1].name if stage.axes else None)
    everything = frozenset(a.name for a in axes)
    row = frozenset(a.name for a in outer)
    depth = {axis.name: d + 1 for d, axis in enumerate(axes)}
    needs = dict(known)
    levels: list[list[LoopOp]] = [[] for _ in range(len(axes) + 1)]
    recalled: dict[int, LoopOp] = {}
    for op in stage.body:
        used = operands(op)
        for value in used:
            if value in kept and value not in needs:
                recalled[value], needs[value] = kept[value], everything
            elif value not in needs:
                raise InternalError(f"v{value} is used before it is computed, or was not kept")
        depends = _axes_of(op, axes).union(*(needs[v] for v in used))
        if op.op == "reduce" or (op.keep and not depends <= row):
            depends = everything
        level = max([len(outer), *(depth[name] for name in depends)])
        levels[level].append(op)
        if op.id >= 0:
            needs[op.id] = depends
    varying = frozenset(v for v, names in needs.items() if vector in names)
    for op in (op for level in levels for op in level):
        if op.op == "reduce":
            known[op.id] = row
        elif op.id >= 0 and needs[op.id] <= row:
            known[op.id] = needs[op.id]
        elif op.keep:
            kept[op.id] = op
    reductions = tuple(op for op in stage.body if op.op == "reduce")
    # a reduction's result is no value of its own stage; in row form it is the same for all lanes
    varying -= {op.id for op in reductions}
    return StageNest(
        axes, len(outer), vector, tuple(map(tuple, levels)), varying, tuple(recalled.values()),
        reductions,
    )


def operands(op: LoopOp) -> tuple[int, ...]:
    """Every value that `op` reads: operands, mask, and values in its index."""
    indirect = tuple(t for t, _ in op.index.terms if isinstance(t, int)) if op.index else ()
    return op.args + indirect + (() if op.mask is None else (op.mask,))


def _axes_of(op: LoopOp, axes: tuple[Axis, ...]) -> frozenset[str]:
    """The axes that `op` itself depends on."""
    if op.op == "axis":
        return frozenset((op.axis,))
    if op.index is None:
        return frozenset()
    return frozenset(a.name for a in axes if op.index.stride(a.name) != 0)


def _verify(kernel: Kernel) -> None:
    shared = [a.name for a in kernel.axes[:kernel.parallel]]
    if kernel.lane in shared[:-1]:
        raise InternalError(f"{kernel.name}: lane {kernel.lane} is not the last of {shared}")
    if kernel.lane and kernel.lane not in {a.name for a in kernel.axes}:
        raise InternalError(f"{kernel.name}: lane {kernel.lane} is no axis of the kernel")


def lanes_of(kernel: Kernel, target: Target) -> int:
    """Lanes a vector of `kernel`: those of its widest arithmetic, 64-bit indices not counted.

    No more than short rows have, where that makes a whole vector.
    """
    dtypes = {op.dtype for stage in kernel.stages for op in stage.body if op.id >= 0}
    sizes = {d: DTYPES[d].itemsize for d in dtypes | {param.dtype for param in kernel.params}}
    if {"float32", "int32", "uint32", "float64"} & set(sizes):
        sizes = {d: size for d, size in sizes.items() if d not in ("int64", "uint64")}
    lanes = max(1, target.vector_bytes // max(sizes.values(), default=8))
    if kernel.lane is None:
        rows = [stage.axes[-1].extent for stage in kernel.stages if stage.axes]
        rows = [extent for extent in rows if not isinstance(extent, Scalar)]
        shortest = min((extent for extent in rows if extent > 0), default=lanes)
        if shortest < lanes and shortest & (shortest - 1) == 0:
            lanes = shortest
    return lanes


def turned(nest: StageNest) -> tuple[LoopOp, ...]:
    """The accesses of a square stage whose neighbours in memory lie along its outer axis.

    () unless the stage walks a square whose side is a power of two and only moves and maps there.
    """
    if len(nest.own) != 2 or nest.reductions or nest.recalled or nest.vector != nest.own[1].name:
        return ()
    side = nest.own[0].extent
    if isinstance(side, Scalar) or side != nest.own[1].extent or side not in (4, 8, 16, 32):
        return ()
    ops = [op for level in nest.levels for op in level]
    if any(op.keep for op in ops):
        return ()
    return tuple(op for op in ops if op.param >= 0 and _is_turned(nest, op))


def _is_turned(nest: StageNest, op: LoopOp) -> bool:
    is_plain = op.mask is None and all(isinstance(term, str) for term, _ in op.index.terms)
    along, across = (op.index.stride(axis.name) for axis in nest.own)
    return is_plain and along == 1 and abs(across) > 1


def unroll_of(stages: tuple[StageNest, ...]) -> int:
    """How many vectors to compute at once, so that loads and additions overlap: 8, 4, 2 or 1.

    8 where lanes walk down columns with little else to do: a strip of 512 bytes a row is what the
    prefetchers of memory follow (1.3-1.5 times the speed of 256 on matrices beyond L2). What is
    done once a row, before or after its walks, weighs as little as it is rare.
    """
    longest = max((estimate(nest.positions) for nest in stages if nest.own), default=1)
    weight = max((_weight(nest) // (1 if nest.own else max(longest, 1)) for nest in stages), default=1)
    if weight <= STRIP_WEIGHT and any(nest.is_down for nest in stages):
        return 8
    return 4 if weight <= 8 else 2 if weight <= 16 else 1


def _weight(nest: StageNest) -> int:
    return sum(COST.get(op.op, 1) for op in nest.levels[-1])


def widths(lanes: int, unroll: int) -> tuple[int, ...]:
    """The widths of vectors that cover an axis, widest first: of what is left, few are narrow."""
    counts = (8, 4, 2, 1) if unroll == 8 else (unroll, 1)
    return tuple(dict.fromkeys(lanes * count for count in counts))


def pieces(extent: int, lanes: int, unroll: int, has_masks: bool) -> tuple[Piece, ...]:
    """How vectors cover `extent` positions: unrolled ones, single ones, and a tail."""
    result, start = [], 0
    for width in widths(lanes, unroll):
        stop = start + (extent - start) // width * width
        if stop > start:
            result.append(Piece(width, start, stop))
        start = stop
    if start < extent:
        result.append(Piece(lanes, start, extent, True) if has_masks else Piece(1, start, extent))
    return tuple(result)

