"""A fused group as one loop nest: index expressions instead of movement, one node a distinct value.

    %2 = mul(%0, expand(%1))            i0:8 i1:128     n0 = load %0[i0*128 + i1]
    %3 = permute(%2, axes=(1, 0))                       n1 = load %1[i1]
    store %3                                            n2 = mul n0, n1
                                                        store %3[i1*8 + i0] = n2

`lower` evaluates the stored values at symbolic positions of a `Frame` (the loops: rows, and the
axes walked inside a row by its reductions). Movement ops change the position, elementwise ops make
a node, values with memory become loads, and a reduction becomes a node when its position is a row
of the frame. A group that does not fit one frame raises `NoFit`: legality is trial.

Requires level core. Guarantees: every node is defined after its operands; loads are in bounds or
masked, whatever an index tensor holds. Source: tinygrad's rangeify; TorchInductor's inner_fn.
"""

from collections.abc import Callable, Collection, Mapping

from preheat.base.errors import Unsupported
from preheat.ir.graph import Op
from preheat.ir.hinted import holds
from preheat.ir.ops import ELEMENTWISE, REDUCE
from preheat.ir.scalar import Dim, Number, Scalar, product, type_of
from preheat.ir.types import HALVES, TensorType, contiguous_strides
from preheat.schedule.affine import (
    ZERO,
    Affine,
    Key,
    Space,
    SplitAxis,
    affine,
    axis,
    flatten,
    reshape_index,
)
from preheat.schedule.folds import folded
from preheat.schedule.nests import Frame, Nest, Node, NoFit
from preheat.schedule.views import Store

MOST_NODES = 1500
# What kernels only move is moved as integers of the same size.
MOVED_AS = {
    "complex32": "int32",
    "complex64": "int64",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
}
IDENTITIES = {"sum": 0, "prod": 1, "any": False, "all": True}
DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod")
Index = tuple[Affine, ...]


def lower(
    stores: Collection[Store],
    frame: Frame,
    ops: Mapping[int, Op],
    types: Mapping[int, TensorType],
    memory_of: Callable[[int], int | None],
    may_fold: bool = False,
) -> Nest:
    """The nest that does `stores`. `memory_of(value)`: where to load it, None if it is computed.
    `may_fold`: sums over rows may be stores of the loops that walk the rows.

    Raises NoFit when the group needs other loops than `frame`, Unsupported for a symbolic size
    that an index must divide by.
    """
    for _ in range(16):
        lowering = _Lowering(frame, ops, types, memory_of, may_fold)
        try:
            for store in stores:
                lowering.store(store)
            return lowering.finish()
        except SplitAxis as cut:
            frame = frame.split(cut.name, cut.inner)
        except RecursionError:
            raise NoFit("the expression is too deep") from None
    raise NoFit("the axes are cut too often")


class _Lowering:
    """One trial: nodes by content, so that equal loads and equal values are one node."""

    def __init__(self, frame: Frame, ops, types, memory_of, may_fold: bool = False):
        self.may_fold = may_fold
        self.frame, self.ops, self.types, self.memory_of = frame, ops, types, memory_of
        self.nodes: list[Node] = []
        self.numbers: dict[Node | tuple[Node, str], int] = {}
        self.known: dict[tuple, int] = {}
        self.plain: dict[int, bool] = {}
        self.stores: list[int] = []
        self.checks: list[int] = []
        self.reads: set[int] = set()
        self.reductions: dict[int, int] = {}
        self.extents: dict[Key, Dim] = {a.name: a.extent for a in frame.axes}
        self.space = Space(self.extents, self.divide)

    def finish(self) -> Nest:
        values = dict.fromkeys(key[0] for key in self.known)
        computed = tuple(v for v in values if v not in self.reads)
        return Nest(
            self.frame,
            tuple(self.nodes),
            tuple(self.stores),
            tuple(self.checks),
            computed,
            frozenset(self.reads),
        )

    # ------------------------------------------------------------------ positions and effects
    def store(self, store: Store) -> None:
        extents = [(a.name, a.extent, a.is_walked) for a in self.frame.axes] if self.may_fold else ()
        fold = folded(store.value, extents, self.ops, self.types, self.space)
        if fold is None:
            index = self.position(store.value)
            value = self.value(store.value, index, None)
        else:
            index = fold.index
            value = self.cast(self.value(fold.source, fold.position, None), "float32")
        offset = Affine(store.offset)
        for part, stride in zip(index, store.strides):
            offset = offset + part.times(stride)
        how = "" if fold is None else "sum"
        node = Node("store", self.nodes[value].dtype, (value,), store.memory, offset, how=how)
        self.stores.append(self.add(node))

    def position(self, value: int) -> Index:
        """Where the loops stand in a stored value: one element each of frame or rows."""
        sizes = self.types[value].sizes
        rows = self.frame.part(is_walked=False)
        is_reduction = value in self.ops and self.ops[value].name in REDUCE
        for axes in (rows, self.frame.axes) if is_reduction else (self.frame.axes, rows):
            if product(sizes) == product(a.extent for a in axes):
                old = tuple(a.extent for a in axes)
                return reshape_index(tuple(axis(a.name) for a in axes), old, sizes, self.space)
        raise NoFit("a stored value has neither the frame's elements nor its rows'")

    def check(self, condition: int, mask: int | None, how: str) -> None:
        if mask is not None:
            condition = self.op(
                "logical_or", "bool", self.op("logical_not", "bool", mask), condition
            )
        node = Node("check", "bool", (condition,), how=how)
        if node not in self.numbers:
            self.checks.append(self.add(node))

    # ------------------------------------------------------------------ nodes
    def add(self, node: Node) -> int:
        # a constant by its text too: 0.0 equals -0.0, and 1 equals True
        key = node if node.other is None else (node, repr(node.other))
        number = self.numbers.get(key)
        if number is None:
            if len(self.nodes) >= MOST_NODES:
                raise NoFit("too many operations for one kernel")
            number = self.numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return number

    def op(self, name: str, dtype: str, *args: int) -> int:
        return self.add(Node(name, dtype, args))

    def const(self, dtype: str, value) -> int:
        return self.add(Node("const", dtype, other=value))

    def cast(self, value: int, dtype: str) -> int:
        return value if self.nodes[value].dtype == dtype else self.op("cast", dtype, value)

    def number(self, index: Affine) -> int:
        """The int64 node of an index expression."""
        total: int | None = None
        for key, stride in index.terms:
            term = key if isinstance(key, int) else self.add(Node("axis", "int64", axis=key))
            if stride != 1:
                term = self.op("mul", "int64", term, self.const("int64", stride))
            total = term if total is None else self.op("add", "int64", total, term)
        if total is None:
            return self.const("int64", index.base)
        return (
            total
            if index.base == 0
            else self.op("add", "int64", total, self.const("int64", index.base))
        )

    def divide(self, index: Affine, divisor: Dim) -> tuple[Affine, Affine]:
        """Quotient (towards -inf) and remainder of any index; masked ones may be negative, so the
        dividend is shifted: keys of the space count from 0."""
        low, high = self.space.bounds(index)
        if isinstance(low, Scalar) or isinstance(divisor, Scalar):
            if not holds("ge", low, 0):
                raise NoFit("a position that may be negative is divided")
            shift = 0
        else:
            shift = max(0, -(low // divisor))
        number, by = self.number(index + shift * divisor), self.const("int64", divisor)
        quotient = self.op("floordiv", "int64", number, by)
        remainder = self.op("remainder", "int64", number, by)
        self.extents[quotient] = high // divisor + shift + 1
        self.extents[remainder] = divisor
        return affine(-shift, {quotient: 1}), affine(0, {remainder: 1})

    def inside(self, index: Affine, low: Dim, high: Dim) -> int | None:
        """The bool node for low <= index < high, or None when it always holds."""
        least, most = self.space.bounds(index)
        conditions = []
        if not holds("ge", least, low):
            conditions.append(self.op("ge", "bool", self.number(index), self.const("int64", low)))
        if not holds("lt", most, high):
            conditions.append(self.op("lt", "bool", self.number(index), self.const("int64", high)))
        return self.both(*conditions)

    def both(self, *conditions: int | None) -> int | None:
        """The conjunction; None stands for true."""
        given = list(dict.fromkeys(c for c in conditions if c is not None))
        total = given[0] if given else None
        for condition in given[1:]:
            total = self.op("logical_and", "bool", total, condition)
        return total

    # ------------------------------------------------------------------ values at a position
    def value(self, value: int, index: Index, mask: int | None) -> int:
        """The node of element `index` of `value`; where `mask` is false it may be anything."""
        if mask is not None and self.is_inside(value, index):
            mask = None
        key = (value, index, mask)
        if key not in self.known:
            if self.memory_of(value) is not None:
                node = self.load(value, index, mask)
            else:
                op = self.ops[value]
                node = RULES.get(op.name, _unknown)(self, op, index, mask)
            self.known[key] = node
        return self.known[key]

    def is_plain(self, value: int) -> bool:
        """Whether elements of `value` are made of elements at the same places of contiguous memory."""
        if value not in self.plain:
            type, op = self.types[value], self.ops.get(value)
            if self.memory_of(value) is not None:
                self.plain[value] = type.strides == contiguous_strides(type.sizes)
            else:
                self.plain[value] = op is not None and RULES.get(op.name) is _elementwise and all(
                    self.types[arg.id].sizes == type.sizes and (self.is_plain(arg.id) or self.is_one(arg.id))
                    for arg in op.args)
        return self.plain[value]

    def is_one(self, value: int) -> bool:
        """Whether `value` is one number everywhere."""
        op = self.ops.get(value)
        if op is None or self.memory_of(value) is not None:
            return False
        return op.name == "full" or op.name == "expand" and self.types[op.args[0].id].elems == 1

    def is_inside(self, value: int, index: Index) -> bool:
        sizes = self.types[value].sizes
        return all(self.space.is_within(part, 0, size) for part, size in zip(index, sizes))

    def load(self, value: int, index: Index, mask: int | None, other=None) -> int:
        type = self.types[value]
        offset = ZERO
        for part, stride in zip(index, type.strides):
            offset = offset + part.times(stride)
        if mask is not None and other is None:
            other = False if type.dtype == "bool" else 0
        self.reads.add(value)
        dtype = MOVED_AS.get(type.dtype, type.dtype)
        if type.kind not in "fiub" and dtype == type.dtype:
            raise Unsupported("no_kernel", f"a copy of {type.dtype}")
        return self.add(Node("load", dtype, (), self.memory_of(value), offset, mask, other))


# ---------------------------------------------------------------------------- one rule an op
def _unknown(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    raise Unsupported("no_kernel", f"no loop rule for core op {op.name}")


def _elementwise(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    args = tuple(lowering.value(a.id, index, mask) for a in op.args)
    dtype = op.type.dtype
    if op.name in DIVISIONS and op.type.kind in "iu":
        divisor = lowering.nodes[args[1]]
        if not (divisor.op == "const" and divisor.other != 0):
            is_fine = lowering.op("ne", "bool", args[1], lowering.const(dtype, 0))
            lowering.check(is_fine, mask, "zero_division")
    if op.name == "cast":
        return lowering.cast(args[0], dtype)
    return lowering.op(op.name, dtype, *args)


def _full(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    return lowering.const(op.type.dtype, op.attr("value"))


def _iota(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    start, step, dtype = op.attr("start"), op.attr("step"), op.type.dtype
    position = index[op.attr("axis")]
    if _is_integer(start) and _is_integer(step) and op.type.kind in "iu":
        return lowering.cast(lowering.number(position.times(step) + start), dtype)
    wide = "float64" if op.type.kind == "f" else dtype
    number = lowering.cast(lowering.number(position), wide)
    scaled = lowering.op("mul", wide, number, lowering.const(wide, step))
    return lowering.cast(lowering.op("add", wide, scaled, lowering.const(wide, start)), dtype)


def _uniform(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    seed = lowering.value(op.args[0].id, (), None)
    place = flatten(index, op.type.sizes)
    return lowering.add(Node("uniform", "float32", (seed,), index=place, other=op.attr("stream")))


def _is_integer(number: Number) -> bool:
    return type_of(number) == "int"


def _reduce(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source = op.args[0].id
    sizes = lowering.types[source].sizes
    reduced = (op.attr("axis"),) if op.name in ("argmax", "argmin") else tuple(op.attr("axes"))
    if product(sizes[k] for k in reduced) == 0:
        if op.name not in IDENTITIES:
            raise Unsupported("no_kernel", f"{op.name} over no elements")
        return lowering.const(op.type.dtype, IDENTITIES[op.name])
    if mask is not None:
        raise NoFit("a reduction at a masked position")
    whole = _row_position(lowering, op, index, sizes, reduced)
    value = lowering.value(source, whole, None)
    dtype = _accumulator(op, lowering.nodes[value].dtype)
    value = lowering.cast(value, dtype)
    if all(sizes[k] == 1 for k in reduced):  # nothing to combine
        is_index = op.name in ("argmax", "argmin")
        return lowering.const("int64", 0) if is_index else lowering.cast(value, op.type.dtype)
    result = op.type.dtype if op.name in ("argmax", "argmin") else dtype
    node = lowering.add(Node("reduce", result, (value,), how=op.name))
    if lowering.reductions.setdefault(op.result, node) != node:
        raise NoFit("a reduction at two positions")
    return lowering.cast(node, op.type.dtype)


def _row_position(lowering: _Lowering, op: Op, index: Index, sizes, reduced) -> Index:
    """The reduction's operand index: `index` on the kept axes, the walked loops on the others."""
    if op.attr("keepdim"):
        index = tuple(part for k, part in enumerate(index) if k not in reduced)
    walked = lowering.frame.part(is_walked=True)
    shape = tuple(sizes[k] for k in sorted(reduced))
    inner: Index = (ZERO,) * len(shape)
    if any(s != 1 for s in shape):
        if product(shape) != product(a.extent for a in walked):
            raise NoFit("a reduction over other axes")
        names = {key for part in index for key in part.keys()}
        rows = {a.name for a in lowering.frame.part(is_walked=False)}
        if names != rows:
            raise NoFit("a reduction that is not one a row")
        old = tuple(a.extent for a in walked)
        inner = reshape_index(tuple(axis(a.name) for a in walked), old, shape, lowering.space)
    whole, kept, walk = [], iter(index), iter(inner)
    for k in range(len(sizes)):
        whole.append(next(walk) if k in reduced else next(kept))
    return tuple(whole)


def _accumulator(op: Op, dtype: str) -> str:
    """The dtype that a reduction works in."""
    if op.name in ("sum", "prod"):
        return "float32" if op.type.dtype in HALVES else op.type.dtype
    return "bool" if op.name in ("any", "all") else dtype


# ---------------------------------------------------------------------------- movement
def _reshape(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source = op.args[0].id
    old = lowering.types[source].sizes
    if old and lowering.is_plain(source):  # then the whole position may stand in the last place
        flat = flatten(index, op.type.sizes)
        return lowering.value(source, (*(ZERO,) * (len(old) - 1), flat), mask)
    return lowering.value(source, reshape_index(index, op.type.sizes, old, lowering.space), mask)


def _permute(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    moved: list[Affine] = [ZERO] * len(index)
    for place, source in enumerate(op.attr("axes")):
        moved[source] = index[place]
    return lowering.value(op.args[0].id, tuple(moved), mask)


def _flip(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    axes = op.attr("axes")
    moved = tuple(
        part.times(-1) + (size - 1) if k in axes else part
        for k, (part, size) in enumerate(zip(index, op.type.sizes))
    )
    return lowering.value(op.args[0].id, moved, mask)


def _expand(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source = op.args[0].id
    sizes = lowering.types[source].sizes
    parts = index[len(index) - len(sizes) :]
    moved = tuple(ZERO if size == 1 else part for part, size in zip(parts, sizes))
    return lowering.value(source, moved, mask)


def _slice(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    moved = _replaced(
        index, op.attr("axis"), index[op.attr("axis")].times(op.attr("step")) + op.attr("start")
    )
    return lowering.value(op.args[0].id, moved, mask)


def _window(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    *rest, tap = index
    place = op.attr("axis")
    rest[place] = rest[place].times(op.attr("step")) + tap.times(op.attr("dilation"))
    return lowering.value(op.args[0].id, tuple(rest), mask)


def _replaced(index: Index, place: int, part: Affine) -> Index:
    return (*index[:place], part, *index[place + 1 :])


def _pad(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source = op.args[0].id
    type = lowering.types[source]
    fill = op.attr("value")
    if type.kind not in "fiub":
        raise Unsupported("no_kernel", f"pad of {type.dtype}")
    if type.elems == 0:
        return lowering.const(type.dtype, fill)
    moved = tuple(part + (0 - low) for part, low in zip(index, op.attr("low")))
    here = lowering.both(*(lowering.inside(part, 0, size) for part, size in zip(moved, type.sizes)))
    if here is None:
        return lowering.value(source, moved, mask)
    if lowering.memory_of(source) is not None:
        return lowering.load(source, moved, lowering.both(mask, here), fill)
    value = lowering.value(source, moved, lowering.both(mask, here))
    return lowering.op("where", type.dtype, here, value, lowering.const(type.dtype, fill))


def _cat(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    place = op.attr("axis")
    parts, start = [], 0
    for arg in op.args:
        size = lowering.types[arg.id].sizes[place]
        if size != 0:
            parts.append((arg.id, start, size))
        start = start + size
    result: int | None = None
    for source, start, size in reversed(parts):
        moved = index[place] + (0 - start)
        least, most = lowering.space.bounds(moved)
        if holds("lt", most, 0) or holds("ge", least, size):
            continue
        here = lowering.inside(moved, 0, size)
        value = lowering.value(source, _replaced(index, place, moved), lowering.both(mask, here))
        if result is None or here is None:
            result = value
        else:
            # parts come last to first: what is not in the later ones is below this one's end
            first = lowering.inside(moved, least, size)
            result = (
                value
                if first is None
                else lowering.op("where", op.type.dtype, first, value, result)
            )
    if result is None:  # a masked position outside of every part
        return lowering.const(op.type.dtype, False if op.type.dtype == "bool" else 0)
    return result


def _place(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    base, source = op.args[0].id, op.args[1].id
    place, start, step = op.attr("axis"), op.attr("start"), op.attr("step")
    size = lowering.types[source].sizes[place]
    if lowering.types[source].elems == 0:
        return lowering.value(base, index, mask)
    moved = index[place] + (0 - start)
    here = lowering.inside(moved, 0, (size - 1) * step + 1)
    if step != 1:
        moved, rest = lowering.divide(moved, step)
        is_hit = lowering.op("eq", "bool", lowering.number(rest), lowering.const("int64", 0))
        here = lowering.both(here, is_hit)
    value = lowering.value(source, _replaced(index, place, moved), lowering.both(mask, here))
    if here is None:
        return value
    return lowering.op("where", op.type.dtype, here, value, lowering.value(base, index, mask))


# ---------------------------------------------------------------------------- gathers
def _checked(
    lowering: _Lowering, indices: int, index: Index, mask: int | None, size: Dim, wraps: bool
) -> Affine:
    """Element `index` of the index tensor as a position within `size`; with `wraps`, negative ones
    count from the end. Out of range raises the index flag and reads position 0."""
    if size == 0:
        raise Unsupported("no_kernel", "indices into an axis of size 0")
    given = lowering.cast(lowering.value(indices, index, mask), "int64")
    zero, end = lowering.const("int64", 0), lowering.const("int64", size)
    if wraps:
        is_negative = lowering.op("lt", "bool", given, zero)
        given = lowering.op(
            "where", "int64", is_negative, lowering.op("add", "int64", given, end), given
        )
    is_inside = lowering.op(
        "logical_and",
        "bool",
        lowering.op("ge", "bool", given, zero),
        lowering.op("lt", "bool", given, end),
    )
    lowering.check(is_inside, mask, "index")
    safe = lowering.op("where", "int64", is_inside, given, zero)
    lowering.extents[safe] = size
    return affine(0, {safe: 1})


def _take(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source, indices = op.args[0].id, op.args[1].id
    place, rank = op.attr("axis"), lowering.types[indices].rank
    size = lowering.types[source].sizes[place]
    part = _checked(
        lowering, indices, index[place : place + rank], mask, size, bool(op.attr("wrap"))
    )
    return lowering.value(source, (*index[:place], part, *index[place + rank :]), mask)


def _gather(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source, indices, place = op.args[0].id, op.args[1].id, op.attr("axis")
    part = _checked(lowering, indices, index, mask, lowering.types[source].sizes[place], False)
    return lowering.value(source, _replaced(index, place, part), mask)


def _index(lowering: _Lowering, op: Op, index: Index, mask: int | None) -> int:
    source, indices, axes = op.args[0].id, [a.id for a in op.args[1:]], op.attr("axes")
    sizes, rank = lowering.types[source].sizes, lowering.types[indices[0]].rank
    are_adjacent = all(b == a + 1 for a, b in zip(axes, axes[1:]))
    first = axes[0] if are_adjacent else 0
    at, rest = index[first : first + rank], iter((*index[:first], *index[first + rank :]))
    parts = {a: _checked(lowering, i, at, mask, sizes[a], True) for a, i in zip(axes, indices)}
    moved = tuple(parts[k] if k in parts else next(rest) for k in range(len(sizes)))
    return lowering.value(source, moved, mask)


RULES: dict[str, Callable[[_Lowering, Op, Index, int | None], int]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCE, _reduce),
    "full": _full,
    "iota": _iota,
    "uniform": _uniform,
    "reshape": _reshape,
    "permute": _permute,
    "flip": _flip,
    "expand": _expand,
    "slice": _slice,
    "window": _window,
    "pad": _pad,
    "cat": _cat,
    "place": _place,
    "take": _take,
    "gather": _gather,
    "index": _index,
}
