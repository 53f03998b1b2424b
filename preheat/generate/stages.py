"""Stages as loops: walks over axes, pieces of the vector axis, running reductions.

    stage j:100 { v0 = load; r = max v0 }      loop j = 0, 64:    m64 = max(m64, load <64 x float>)
                                        ->     loop j = 64, 96:   m16 = max(m16, load <16 x float>)
                                               j = 96, masked:    m16 = ...
                                               r = max over m64, m16, their lanes

Each operation is written at the level of its nest (nest.py). Vectors wider than a register are
how loops are unrolled: LLVM splits them, and the parts overlap. Sums of more than BLOCK terms
a lane are added up in blocks of BLOCK, and blocks of blocks, as eager's are: no term goes through
more than BLOCK additions a level, so the error grows with the logarithm only, on any number of
lanes. Source: cascade_sum in aten/src/ATen/native/cpu/SumKernel.cpp.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from preheat.generate import access, elementwise, reduction
from preheat.generate.access import At, Unit
from preheat.generate.elementwise import memory_element
from preheat.generate.llvm import Builder, Value
from preheat.generate.nest import COST, SHORT_VECTORS, Piece, StageNest, pieces, turned, widths
from preheat.generate.reduction import State
from preheat.ir.dims import substitute
from preheat.ir.hinted import estimate
from preheat.ir.loop import FLAGS, Index, LoopOp
from preheat.ir.scalar import Scalar, apply, type_of
from preheat.ir.types import DTYPES

BLOCK = 16
States = dict[Piece, list[State]]  # for each piece of the vector axis, one a reduction
Step = Callable[[Value, States], States]


def stage(unit: Unit, nest: StageNest, at: At) -> dict[int, Value]:
    """One stage; yields the values that later stages may use."""
    across = turned(nest)
    if across:
        _square_stage(unit, nest, at, across)
        return at.values
    return _plain_stage(unit, nest, at._replace(pointers=access.pointers(unit, nest, at)))


def _plain_stage(unit: Unit, nest: StageNest, at: At) -> dict[int, Value]:
    at = at._replace(values=dict(at.values))
    covers = (Piece(at.lanes, 0, 1),)
    if unit.kernel.lane is None and nest.own:
        extent = nest.own[-1].extent
        covers = unit.covers[extent] if isinstance(extent, Scalar) else pieces(
            extent, unit.lanes, unit.unroll, unit.b.has_masks)
    covers = covers or (Piece(1, 0, 0),)
    states = {
        piece: [_start(unit, op, piece.lanes, piece.start) for op in nest.reductions]
        for piece in covers
    }
    states[covers[0]] = _operations(unit, nest, nest.outer, at, states[covers[0]])
    if nest.own and nest.positions:
        states = _walk(unit, nest, nest.outer, at, states)
    results = {}
    for number, op in enumerate(nest.reductions):
        results[op.id] = _result(unit, op, [states[piece][number] for piece in covers])
    return {**at.values, **results}


def cover(unit: Unit) -> None:
    """Finds out, once a call of the kernel, how vectors cover each axis whose extent is an argument."""
    if unit.kernel.lane is None:
        unit.covers |= {extent: _pieces(unit, extent) for extent in _extents(unit)}


def ways(unit: Unit) -> Iterator[Value | None]:
    """For each way to cover rows whose extent is an argument: whether it is the one, found out when the
    kernel runs; the way is set up meanwhile. None: there is one only.

    A short row is covered without loops: by one masked vector, or by a whole one and a masked one.
    """
    b, extents = unit.b, _extents(unit)
    is_one = len({nest.own[-1].extent for nest in unit.stages if nest.own}) == len(extents) == 1
    if unit.kernel.lane is not None or not is_one or not b.has_masks or unit.lanes == 1:
        yield None
        return
    (extent,), end = extents, access.number(unit, extents[0])
    low, general = b.integer(0), unit.covers[extent]
    others: list[Value] = []  # whether the row is none of those that are covered already
    for count in _WHOLE if _is_light(unit) and _divides_by_size(unit, extent) else ():
        width = unit.lanes * count
        unit.covers[extent] = pieces(width, unit.lanes, 1 << count.bit_length() - 1, True)
        unit.known = {extent.args[0]: width}
        others = [b.binary("and", b.compare("ne", end, b.integer(width)), one) for one in others] or [
            b.compare("ne", end, b.integer(width))]
        yield b.compare("eq", end, b.integer(width))
    unit.known = {}

    def is_left(is_meant: Value) -> Value:
        return b.binary("and", is_meant, others[0]) if others else is_meant

    for whole, masked in _FEW if _is_light(unit) else ((0, SHORT_VECTORS),):
        first, lanes = unit.lanes * whole, unit.lanes * masked
        last = Piece(lanes, b.integer(first), end, True, 1)
        unit.covers[extent] = (Piece(first, 0, first), last) if first else (last,)
        unit.masks[last] = _lanes_before(b, lanes, last.start, end)
        high = b.integer(first + lanes)
        is_meant = b.compare("ule", end, high)
        if low.text != "0":
            is_meant = b.binary("and", is_meant, b.compare("ugt", end, low))
        yield is_left(is_meant)
        low = high
    unit.covers[extent] = general
    yield is_left(b.compare("ugt", end, low))


def _divides_by_size(unit: Unit, extent: Scalar) -> bool:
    """Whether something is divided by the length of a row: by a power of two that is a product, which waits less."""
    if extent.op != "sym":
        return False
    ops = [op for stage in unit.kernel.stages for op in stage.body]
    counts = {op.id for op in ops if op.op == "const" and op.other == apply("float", extent)}
    return any(op.op == "div" and op.args[1] in counts for op in ops)


# Vectors of a row that has no others, and is as long as one that is known. Three are two and one: the lanes of 48 are
# added up slowly (a layer norm of 4096 x 48 took 1.2 times as long as with sizes known, now 0.91).
_WHOLE = (1, 2, 3, SHORT_VECTORS, 2 * SHORT_VECTORS)
# Vectors of a row, whole and masked ones, where more code costs little.
_FEW = tuple((whole, masked) for whole in (0, SHORT_VECTORS) for masked in (1, 2, SHORT_VECTORS))
_LIGHT = 30


def _is_light(unit: Unit) -> bool:
    """Whether the body is short, so that what a row costs besides it is much."""
    costs = [COST.get(op.op, 1) for stage in unit.kernel.stages for op in stage.body]
    return sum(costs) <= _LIGHT and max(costs, default=0) < COST["exp"]


def _extents(unit: Unit) -> tuple[Scalar, ...]:
    """The extents of vector axes that are arguments."""
    extents = (nest.own[-1].extent for nest in unit.stages if nest.own)
    return tuple(dict.fromkeys(extent for extent in extents if isinstance(extent, Scalar)))


def _pieces(unit: Unit, extent: Scalar) -> tuple[Piece, ...]:
    """As `nest.pieces`; with masks the last whole vectors and what is left are one piece."""
    b, found = unit.b, []
    start, end, trips = b.integer(0), access.number(unit, extent), estimate(extent)
    wide = widths(unit.lanes, unit.unroll)
    for width in wide[:-1] if b.has_masks and len(wide) > 1 else wide:
        rest = b.binary("sub", end, start) if found else end
        count = b.binary("udiv", rest, b.integer(width))
        stop = b.plus(start, b.binary("mul", count, b.integer(width)))
        found.append(Piece(width, start, stop, False, max(trips // width, 1)))
        start, trips = stop, width
    if unit.lanes > 1:
        lanes = unit.lanes if b.has_masks else 1
        found.append(Piece(lanes, start, end, b.has_masks, width // lanes))
    return tuple(found)


def _lanes_before(b: Builder, lanes: int, position: Value, end: Value) -> Value:
    """Which lanes from `position` on are before `end`."""
    count = b.convert("trunc", b.binary("sub", end, position), "i32")
    return b.compare("slt", b.vector(range(lanes), "i32"), b.splat(count, lanes))


def _square_stage(unit: Unit, nest: StageNest, at: At, across: tuple[LoopOp, ...]) -> None:
    """A square that some accesses cross: they go by a scratch square, transposed in registers.

        v0 = load p0[a + b*1024]   ->   scratch = transpose(rows of p0)
                                        v0 = load scratch[a*16 + b]
    """
    side, pointers = nest.own[0].extent, access.pointers(unit, nest, at)
    squares = {}
    for number, op in enumerate(across):
        # the base only tells squares apart: the pointer is the scratch itself
        place = Index(number, ((nest.own[0].name, side), (nest.own[1].name, 1)))
        squares[op] = replace(op, index=place)
        element = memory_element(unit.kernel.params[op.param].dtype)
        pointers[op.param, place] = unit.b.scratch(element, side * side)
    levels = tuple(tuple(squares.get(op, op) for op in level) for level in nest.levels)
    ends = {
        op: (pointers[op.param, op.index], pointers[op.param, squares[op].index]) for op in across
    }
    for op in (op for op in across if op.op == "load"):
        access.transpose(unit, nest, op, *ends[op])
    _plain_stage(unit, replace(nest, levels=levels), at._replace(pointers=pointers))
    for op in (op for op in across if op.op == "store"):
        access.transpose(unit, nest, op, *ends[op])


def _start(unit: Unit, op: LoopOp, lanes: int, position: int) -> State:
    step = 0 if unit.kernel.lane else 1  # lanes of a row are positions, lanes of rows are not
    return reduction.start(unit.b, op, _reduces_in(unit, op), lanes, position, step)


def _reduces_in(unit: Unit, op: LoopOp) -> str:
    return reduction.working_dtype(op, unit.dtypes[op.args[0]])


def _result(unit: Unit, op: LoopOp, states: list[State]) -> Value:
    """The states of all pieces as one; in row form, of all lanes as one."""
    dtype, total = _reduces_in(unit, op), states[0]
    for state in states[1:]:
        narrow = reduction.fold(unit.b, op, dtype, total, state[0].lanes)
        total = reduction.merge(unit.b, op, dtype, narrow, state)
    if unit.kernel.lane is None:
        total = reduction.fold(unit.b, op, dtype, total, 1)
    return reduction.finish(unit.b, op, dtype, total)


def _walk(unit: Unit, nest: StageNest, depth: int, at: At, states: States) -> States:
    """The loops of a stage from `depth` inwards."""
    if depth == len(nest.axes):
        return states
    axis = nest.axes[depth]
    if axis.name == nest.vector:
        return {piece: _cover(unit, nest, at, piece, state) for piece, state in states.items()}

    def step(position: Value, states: States) -> States:
        inside = access.enter(unit, nest, at, axis, position)
        if depth + 1 == len(nest.axes):
            (piece, state), = states.items()
            return {piece: _operations(unit, nest, depth + 1, inside, state)}
        _operations(unit, nest, depth + 1, inside, [])
        return _walk(unit, nest, depth + 1, inside, states)

    extent = axis.extent
    piece = Piece(1, 0, extent)
    if isinstance(extent, Scalar):
        start, stop = unit.b.integer(0), access.number(unit, extent)
        piece = Piece(1, start, stop, False, max(estimate(extent), 1))
    return _accumulate(unit, nest, piece, states, step, depth > nest.outer)


def _cover(unit: Unit, nest: StageNest, at: At, piece: Piece, state: list[State]) -> list[State]:
    """One piece of the vector axis of a stage in row form."""
    axis = nest.axes[-1]

    def step(position: Value, states: States) -> States:
        inside = access.enter(unit, nest, at, axis, position)._replace(lanes=piece.lanes)
        inside = inside._replace(mask=lanes_of_tail(unit, piece, position))
        return {piece: _operations(unit, nest, len(nest.axes), inside, states[piece])}

    is_nested = len(nest.own) > 1
    return _accumulate(unit, nest, piece, {piece: state}, step, is_nested)[piece]


def lanes_of_tail(unit: Unit, piece: Piece, position: Value) -> Value | None:
    if not piece.is_masked:
        return None
    if piece in unit.masks:
        return unit.masks[piece]
    if piece.trips:
        return _lanes_before(unit.b, piece.lanes, position, piece.stop)
    return unit.b.vector([k < piece.stop - piece.start for k in range(piece.lanes)], "i1")


def _accumulate(
    unit: Unit, nest: StageNest, piece: Piece, states: States, step: Step, is_nested: bool
) -> States:
    """Runs `step` over `piece`; long float sums are added up in blocks, and blocks of blocks.

    A loop inside another one is a block of its own.
    """
    b = unit.b
    if piece.trips:
        trips, start, stop = piece.trips, piece.start, piece.stop
        if piece in unit.masks:
            return step(start, states)  # no axis is without elements
    else:
        trips = -(-(piece.stop - piece.start) // piece.lanes)
        start, stop = b.integer(piece.start), b.integer(piece.stop)
        if trips == 1:
            return step(start, states)
    has_sums = any(reduction.is_float_sum(op) for op in nest.reductions)
    sizes, size = [], BLOCK
    while has_sums and trips > size:
        sizes.append(size * piece.lanes)
        size *= BLOCK
    top = len(sizes) - 1

    def blocks(level: int, start: Value, stop: Value, states: States, is_inner: bool) -> States:
        may_be_empty = bool(piece.trips) and not is_inner
        if level < 0:
            return _loop(unit, start, stop, piece.lanes, states, step, may_be_empty)

        def block(position: Value, before: States) -> States:
            end = b.intrinsic("smin", b.plus(position, b.integer(sizes[level])), stop)
            return _apart(
                unit, nest, before, lambda fresh: blocks(level - 1, position, end, fresh, True))

        return _loop(unit, start, stop, sizes[level], states, block, may_be_empty)

    if has_sums and is_nested and trips >= 8:
        return _apart(unit, nest, states, lambda fresh: blocks(top, start, stop, fresh, False))
    return blocks(top, start, stop, states, False)


def _apart(unit: Unit, nest: StageNest, before: States, body: Callable[[States], States]) -> States:
    """`body` with float sums that start at zero and are then added to those of `before`."""
    sums = [k for k, op in enumerate(nest.reductions) if reduction.is_float_sum(op)]
    fresh = {piece: list(state) for piece, state in before.items()}
    for piece, number in ((piece, number) for piece in fresh for number in sums):
        fresh[piece][number] = _start(unit, nest.reductions[number], piece.lanes, 0)
    after = body(fresh)
    for piece, number in ((piece, number) for piece in after for number in sums):
        op, parts = nest.reductions[number], (before[piece][number], after[piece][number])
        after[piece][number] = reduction.merge(unit.b, op, _reduces_in(unit, op), *parts)
    return after


def _loop(
    unit: Unit, start: Value, stop: Value, step: int, states: States, body: Callable,
    may_be_empty: bool,
) -> States:
    """`Builder.loop` with the states of every piece carried."""

    def flat(position: Value, values: list[Value]) -> list[Value]:
        return _pack(body(position, _unpack(values, states)))

    values = unit.b.loop(start, stop, step, _pack(states), flat, may_be_empty)
    return _unpack(values, states)


def _pack(states: States) -> list[Value]:
    return [value for group in states.values() for state in group for value in state]


def _unpack(values: Sequence[Value], like: States) -> States:
    """`values` in the form of the states `like`."""
    rest = iter(values)
    return {key: [[next(rest) for _ in state] for state in group] for key, group in like.items()}


def _operations(
    unit: Unit, nest: StageNest, depth: int, at: At, states: list[State]
) -> list[State]:
    """The operations of one level; yields the states of its reductions."""
    states = list(states)
    if depth == len(nest.axes):
        for op in nest.recalled:
            at.values[op.id] = access.recall(unit, nest, at, op)
    for op in nest.levels[depth]:
        if op.op == "reduce":
            number = nest.reductions.index(op)
            states[number] = _reduce(unit, nest, at, op, states[number])
        elif op.op == "store":
            access.store(unit, nest, at, op)
        elif op.op == "check":
            condition = at.values[op.args[0]]
            _raise(unit, at, elementwise.BOOL["bitwise_not"](unit.b, condition), op.how)
        else:
            value = _VALUES.get(op.op, _elementwise)(unit, nest, at, op)
            at.values[op.id] = value
            if op.keep and depth > nest.outer:
                access.keep(unit, nest, at, op, value)
    return states


def _elementwise(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    b, lanes = unit.b, access.width(unit, nest, at, op)
    args = tuple(access.wide(unit, at, value, lanes) for value in op.args)
    dtype = unit.dtypes[op.args[-1]]
    if op.op == "cast":
        return elementwise.cast(b, args[0], dtype, op.dtype)
    if op.op == "bitcast":
        return elementwise.bitcast(b, args[0], op.dtype)
    if op.op in elementwise.DIVISIONS and DTYPES[dtype].kind in "iu":
        if not args[1].is_constant or args[1].is_zero:
            is_zero = b.compare("eq", args[1], b.constant(0, args[1]))
            _raise(unit, at, is_zero, "zero_division")
            args = args[0], b.select(is_zero, b.constant(1, args[1]), args[1])
    return elementwise.apply(b, op.op, dtype, args)


def _constant(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    if not isinstance(op.other, Scalar):
        return elementwise.number(op.dtype, op.other, 1, unit.b)
    known = substitute(op.other, unit.known)
    if not isinstance(known, Scalar):
        return elementwise.number(op.dtype, known, 1, unit.b)
    given, dtype = unit.sizes[op.other], "int64"
    if type_of(op.other) == "float":
        given, dtype = unit.b.from_bits(given, "double"), "float64"
    return elementwise.cast(unit.b, unit.b.splat(given, 1), dtype, op.dtype)


def _axis(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    b, lanes = unit.b, access.width(unit, nest, at, op)
    position = b.splat(at.axes[op.axis], lanes)
    return b.binary("add", position, b.iota(lanes)) if lanes > 1 else position


def _raise(unit: Unit, at: At, bad: Value, how: str) -> None:
    """Sets bit `how` of the error flag if some lane that exists is bad."""
    b = unit.b
    if at.mask is not None and bad.lanes == at.lanes:
        bad = b.binary("and", bad, at.mask)

    def body() -> list[Value]:
        old, bit = b.name("%f"), FLAGS[how]
        b.emit(f"{old} = atomicrmw or {unit.flag.operand}, i32 {bit} monotonic, align 4")
        return []

    b.when(b.any(bad), body)


def _reduce(unit: Unit, nest: StageNest, at: At, op: LoopOp, state: State) -> State:
    b, dtype, lanes = unit.b, _reduces_in(unit, op), state[0].lanes
    source = unit.dtypes[op.args[0]]
    value = elementwise.cast(b, access.wide(unit, at, op.args[0], lanes), source, dtype)
    position = None
    if len(state) > 1:
        position = b.splat(access.flat(unit, nest, at), lanes)
        if unit.kernel.lane is None:
            position = b.binary("add", position, b.iota(lanes))
    return reduction.take(b, op, dtype, state, value, at.mask, position)


_VALUES = {
    "load": access.load, "const": _constant, "axis": _axis, "uniform": access.uniform}
