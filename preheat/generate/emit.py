"""Kernels as LLVM IR text: loops around explicit vectors.

    kernel relu(%p0: f32, %p1: f32)          define void @relu(ptr %args, i64 %begin, i64 %end)
      over i0 parallel, lane i0        ->      loop: load <64 x float>, fcmp, select, store
        v0 = load p0[i0] ...                   loop: the same with <16 x float>
                                               last lanes: masked, or one by one

The native form is that of ir/loop.py: `args` holds a data pointer a parameter, then the pointer to
the error flag (int32). Vectors wider than a register are how loops are unrolled: LLVM splits
them, and the parts overlap. Guarantees: no element outside the buffers is read or written, no
alignment beyond the element's is assumed, empty ranges and extents do nothing, and a position's
result does not depend on which range or thread computed it. Sums of more than 2*BLOCK terms are
added up in blocks of BLOCK, and blocks of blocks: the error grows with the logarithm only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from preheat.base.errors import InternalError
from preheat.generate import elementwise, reduction
from preheat.generate.elementwise import memory_element
from preheat.generate.llvm import Builder, Value
from preheat.generate.nest import Piece, StageNest, lanes_of, nests, pieces, turned, unroll_of
from preheat.generate.reduction import State
from preheat.ir.loop import FLAGS, Axis, Index, Kernel, LoopOp
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim
from preheat.ir.types import DTYPES

BLOCK = 64
ATTRIBUTES = {
    64: '"prefer-vector-width"="512" "min-legal-vector-width"="512"',
    32: '"prefer-vector-width"="256" "min-legal-vector-width"="256"', 16: "",
}


def module_text(kernels: Sequence[Kernel], target: Target) -> str:
    """The LLVM IR module with one function a kernel."""
    functions, declarations = [], set()
    for kernel in kernels:
        text, needed = kernel_text(kernel, target)
        functions.append(text)
        declarations |= needed
    attributes = f"attributes #0 = {{ nounwind {ATTRIBUTES[target.vector_bytes]} }}"
    return "\n".join([*functions, *sorted(declarations), attributes, ""])


def kernel_text(kernel: Kernel, target: Target) -> tuple[str, set[str]]:
    """The function of `kernel`, and the declarations and helper functions that it needs."""
    b, stages = Builder(target), nests(kernel)
    emitter = _Emitter(b, kernel, stages, lanes_of(kernel, target), unroll_of(stages))
    if all(axis.extent > 0 for axis in kernel.axes):
        emitter.outer_loops()
    b.emit("ret void")
    head = f"define void @{kernel.name}(ptr noalias readonly %args, i64 %begin, i64 %end) #0 {{\nentry:\n"
    return head + "\n".join((*b.allocations, *b.lines)) + "\n}\n", b.declarations | b.helpers


class _At(NamedTuple):
    """Where code is being written: inside which loops, on how many lanes, with what at hand.

    axes       the position along each axis entered so far (of the vector axis: of its first lane)
    lanes      lanes of the vector axis; 1 before it is entered
    mask       which of them exist, None if all
    pointers   the address of each (param, index) as far as the axes entered decide it
    values     what has been computed, on `lanes` lanes or on one
    """

    axes: dict[str, Value]
    lanes: int = 1
    mask: Value | None = None
    pointers: dict[tuple[int, Index], Value] = {}
    values: dict[int, Value] = {}

    def enter(self, **axes: Value) -> "_At":
        return self._replace(axes={**self.axes, **axes}, values=dict(self.values))


States = dict[Piece, list[State]]  # for each piece of the vector axis, one a reduction


@dataclass
class _Emitter:
    """Writes one kernel. Loops call `body(position, carried)` and pass on what it yields."""

    b: Builder
    kernel: Kernel
    stages: tuple[StageNest, ...]
    lanes: int
    unroll: int
    params: list[Value] = field(default_factory=list)
    flag: Value | None = None
    scratch: dict[int, Value] = field(default_factory=dict)
    dtypes: dict[int, str] = field(default_factory=dict)

    # the kernel's own axes

    def outer_loops(self) -> None:
        """The loops over the shared range and the kernel's other axes, with the stages inside."""
        self._arguments()
        kernel = self.kernel
        shared = list(kernel.axes[:kernel.parallel])
        inner = [axis for axis in kernel.axes[kernel.parallel:] if axis.name != kernel.lane]
        lane = next((axis for axis in kernel.axes if axis.name == kernel.lane), None)
        begin, end = Value("%begin", "i64", 0), Value("%end", "i64", 0)
        if lane is None or lane not in shared:
            self._odometer(begin, end, shared, lambda flat, at: self._inner_loops(
                at, inner, lambda at: self._whole_lane(at, lane) if lane else self._stages(at)))
        elif len(shared) == 1:
            self._inner_loops(_At({}), inner, lambda at: self._lane_range(at, begin, end))
        else:
            self._rows_of_lanes(begin, end, shared, inner)

    def _arguments(self) -> None:
        b, args = self.b, Value("%args", "ptr", 0)
        for number in range(len(self.kernel.params) + 1):
            slot = b.offset(args, b.integer(number), "ptr") if number else args
            self.params.append(Value(f"%p{number}", "ptr", 0))
            b.emit(f"%p{number} = load ptr, ptr {slot.text}, align 8")
        self.flag = self.params.pop()
        for stage in self.kernel.stages:
            self.dtypes |= {op.id: op.dtype for op in stage.body if op.id >= 0}

    def _odometer(self, begin: Value, end: Value, axes: list[Axis], body: Callable) -> None:
        """`body(flat, at)` for each flat position; the digits are divided out once, then counted."""
        b = self.b
        if len(axes) < 2:
            def single(flat: Value, carried: list[Value]) -> list[Value]:
                body(flat, _At({axes[0].name: flat} if axes else {}))
                return []
            b.loop(begin, end, 1, [], single, may_be_empty=True)
            return
        digits, rest = [], begin
        for axis in reversed(axes):
            extent = b.integer(axis.extent)
            digits.insert(0, b.binary("urem", rest, extent))
            rest = b.binary("udiv", rest, extent)

        def step(flat: Value, digits: list[Value]) -> list[Value]:
            body(flat, _At({axis.name: digit for axis, digit in zip(axes, digits)}))
            carry, following = b.integer(1), []
            for axis, digit in zip(reversed(axes), reversed(digits)):
                more = b.binary("add", digit, carry)
                wraps = b.compare("eq", more, b.integer(axis.extent))
                following.insert(0, b.select(wraps, b.integer(0), more))
                carry = b.convert("zext", wraps, "i64")
            return following

        b.loop(begin, end, 1, digits, step, may_be_empty=True)

    def _inner_loops(self, at: _At, axes: list[Axis], body: Callable[[_At], None]) -> None:
        if not axes:
            return body(at)

        def step(position: Value, carried: list[Value]) -> list[Value]:
            self._inner_loops(at.enter(**{axes[0].name: position}), axes[1:], body)
            return []

        self.b.loop(self.b.integer(0), self.b.integer(axes[0].extent), 1, [], step)
        return None

    def _rows_of_lanes(self, begin: Value, end: Value, shared: list[Axis], inner: list[Axis]) -> None:
        """The shared range when the lane axis is its last digit: whole rows but for the ends."""
        b, extent = self.b, self.b.integer(shared[-1].extent)
        first = b.binary("udiv", begin, extent)
        above = b.binary("add", end, b.integer(shared[-1].extent - 1))
        last = b.select(b.compare("slt", begin, end), b.binary("udiv", above, extent), first)

        def row(number: Value, at: _At) -> None:
            base = b.binary("mul", number, extent)
            start = b.intrinsic("smax", b.binary("sub", begin, base), b.integer(0))
            stop = b.intrinsic("smin", b.binary("sub", end, base), extent)
            self._inner_loops(at, inner, lambda at: self._lane_range(at, start, stop))

        self._odometer(first, last, shared[:-1], row)

    def _whole_lane(self, at: _At, lane: Axis) -> None:
        """All positions of a lane axis that is not shared."""
        b = self.b
        for piece in pieces(lane.extent, self.lanes, self.unroll, b.has_masks):
            mask = self._lanes_of_tail(piece)
            b.loop(b.integer(piece.start), b.integer(piece.stop), piece.lanes, [],
                   lambda position, _: self._on_lanes(at, piece.lanes, position, mask))

    def _lanes_of_tail(self, piece: Piece) -> Value | None:
        if not piece.is_masked:
            return None
        return self.b.vector([k < piece.stop - piece.start for k in range(piece.lanes)], "i1")

    def _lane_range(self, at: _At, start: Value, stop: Value) -> None:
        """Lanes start .. stop, known when the kernel runs: wide vectors, vectors, the last lanes."""
        b = self.b
        for width in dict.fromkeys((self.lanes * self.unroll, self.lanes)):
            size = b.integer(width)
            count = b.binary("sdiv", b.binary("sub", stop, start), size)
            following = b.binary("add", start, b.binary("mul", count, size))
            b.loop(start, following, width, [], lambda position, _, width=width: self._on_lanes(
                at, width, position, None), may_be_empty=True)
            start = following
        if b.has_masks and self.lanes > 1:
            def last() -> list[Value]:
                left = b.splat(b.binary("sub", stop, start), self.lanes)
                return self._on_lanes(at, self.lanes, start, b.compare("slt", b.iota(self.lanes), left))
            b.when(b.compare("slt", start, stop), last)
        elif self.lanes > 1:
            b.loop(start, stop, 1, [], lambda position, _: self._on_lanes(at, 1, position, None),
                   may_be_empty=True)

    def _on_lanes(self, at: _At, lanes: int, position: Value, mask: Value | None) -> list[Value]:
        at = at.enter(**{self.kernel.lane: position})
        self._stages(at._replace(lanes=lanes, mask=mask))
        return []

    # stages

    def _stages(self, at: _At) -> None:
        """All stages at one position of the kernel's own axes."""
        for nest in self.stages:
            at.values.update(self._stage(nest, at))

    def _stage(self, nest: StageNest, at: _At) -> dict[int, Value]:
        """One stage; yields the values that later stages may use."""
        across = turned(nest)
        if across:
            self._square_stage(nest, at, across)
            return at.values
        return self._plain_stage(nest, at._replace(values=dict(at.values), pointers=self._pointers(nest, at)))

    def _plain_stage(self, nest: StageNest, at: _At) -> dict[int, Value]:
        covers = (Piece(at.lanes, 0, 1),)
        if self.kernel.lane is None and nest.own:
            covers = pieces(nest.own[-1].extent, self.lanes, self.unroll, self.b.has_masks)
        covers = covers or (Piece(1, 0, 0),)
        states = {
            piece: [self._start(op, piece.lanes, piece.start) for op in nest.reductions] for piece in covers
        }
        entry = self._operations(nest, nest.outer, at, states[covers[0]])
        states[covers[0]] = entry
        if nest.own and nest.positions:
            states = self._walk(nest, nest.outer, at, states)
        results = {}
        for number, op in enumerate(nest.reductions):
            results[op.id] = self._result(op, [states[piece][number] for piece in covers])
        return {**at.values, **results}

    def _square_stage(self, nest: StageNest, at: _At, across: tuple[LoopOp, ...]) -> None:
        """A square that some accesses cross: they go by a scratch square, transposed in registers.

            v0 = load p0[a + b*1024]   ->   scratch = transpose(rows of p0);  v0 = load scratch[a*16 + b]
        """
        side, pointers = nest.own[0].extent, self._pointers(nest, at)
        squares = {}
        for number, op in enumerate(across):
            # the base only tells squares apart: the pointer is the scratch itself
            place = Index(number, ((nest.own[0].name, side), (nest.own[1].name, 1)))
            squares[op] = replace(op, index=place)
            element = memory_element(self.kernel.params[op.param].dtype)
            pointers[op.param, place] = self.b.scratch(element, side * side)
        levels = tuple(tuple(squares.get(op, op) for op in level) for level in nest.levels)
        for op in (op for op in across if op.op == "load"):
            self._transpose(nest, op, pointers[op.param, op.index], pointers[op.param, squares[op].index], True)
        self._plain_stage(replace(nest, levels=levels), at._replace(values=dict(at.values), pointers=pointers))
        for op in (op for op in across if op.op == "store"):
            self._transpose(nest, op, pointers[op.param, op.index], pointers[op.param, squares[op].index], False)

    def _transpose(self, nest: StageNest, op: LoopOp, memory: Value, square: Value, is_load: bool) -> None:
        """Copies between a square of `op`'s memory and the scratch square, across."""
        b, side, element = self.b, nest.own[0].extent, memory_element(op.dtype)
        stride = self._static(op.index.stride(nest.own[1].name))
        there = [b.offset(memory, b.integer(k * stride), element) for k in range(side)]
        here = [b.offset(square, b.integer(k * side), element) for k in range(side)]
        sources, places = (there, here) if is_load else (here, there)
        rows = [b.load(pointer, element, side) for pointer in sources]
        for row, pointer in zip(b.transpose(rows), places):
            b.store(row, pointer)

    def _start(self, op: LoopOp, lanes: int, position: int) -> State:
        step = 0 if self.kernel.lane else 1  # lanes of a row are positions, lanes of rows are not
        return reduction.start(self.b, op, self._reduces_in(op), lanes, position, step)

    def _reduces_in(self, op: LoopOp) -> str:
        return reduction.working_dtype(op, self.dtypes[op.args[0]])

    def _result(self, op: LoopOp, states: list[State]) -> Value:
        """The states of all pieces as one; in row form, of all lanes as one."""
        dtype, total = self._reduces_in(op), states[0]
        for state in states[1:]:
            narrow = reduction.fold(self.b, op, dtype, total, state[0].lanes)
            total = reduction.merge(self.b, op, dtype, narrow, state)
        if self.kernel.lane is None:
            total = reduction.fold(self.b, op, dtype, total, 1)
        return reduction.finish(self.b, op, dtype, total)

    def _walk(self, nest: StageNest, depth: int, at: _At, states: States) -> States:
        """The loops of a stage from `depth` inwards."""
        if depth == len(nest.axes):
            return states
        axis = nest.axes[depth]
        if axis.name == nest.vector:
            return {piece: self._cover(nest, at, piece, state) for piece, state in states.items()}

        def step(position: Value, states: States) -> States:
            inside = self._enter(nest, at, axis, position)
            if depth + 1 == len(nest.axes):
                (piece, state), = states.items()
                return {piece: self._operations(nest, depth + 1, inside, state)}
            self._operations(nest, depth + 1, inside, [])
            return self._walk(nest, depth + 1, inside, states)

        return self._accumulate(nest, Piece(1, 0, axis.extent), states, step, depth > nest.outer)

    def _cover(self, nest: StageNest, at: _At, piece: Piece, state: list[State]) -> list[State]:
        """One piece of the vector axis of a stage in row form."""
        axis, b = nest.axes[-1], self.b

        def step(position: Value, states: States) -> States:
            inside = self._enter(nest, at, axis, position)._replace(lanes=piece.lanes)
            inside = inside._replace(mask=self._lanes_of_tail(piece))
            return {piece: self._operations(nest, len(nest.axes), inside, states[piece])}

        is_nested = len(nest.own) > 1
        return self._accumulate(nest, piece, {piece: state}, step, is_nested)[piece]

    def _accumulate(
        self, nest: StageNest, piece: Piece, states: States, step: Callable[[Value, States], States], is_nested: bool
    ) -> States:
        """Runs `step` over `piece`; long float sums are added up in blocks, and blocks of blocks.

        A loop inside another one is a block of its own.
        """
        b = self.b
        trips = -(-(piece.stop - piece.start) // piece.lanes)
        start, stop = b.integer(piece.start), b.integer(piece.stop)
        if trips == 1:
            return step(start, states)
        has_sums = any(reduction.is_float_sum(op) for op in nest.reductions)
        sizes, size = [], BLOCK
        while has_sums and trips > 2 * size:
            sizes.append(size * piece.lanes)
            size *= BLOCK

        def blocks(level: int, start: Value, stop: Value, states: States) -> States:
            if level < 0:
                return self._loop(start, stop, piece.lanes, states, step)

            def block(position: Value, before: States) -> States:
                end = b.intrinsic("smin", b.binary("add", position, b.integer(sizes[level])), stop)
                return self._apart(nest, before, lambda fresh: blocks(level - 1, position, end, fresh))

            return self._loop(start, stop, sizes[level], states, block)

        if has_sums and is_nested and not sizes and trips >= 8:
            return self._apart(nest, states, lambda fresh: blocks(-1, start, stop, fresh))
        return blocks(len(sizes) - 1, start, stop, states)

    def _apart(self, nest: StageNest, before: States, body: Callable[[States], States]) -> States:
        """`body` with float sums that start at zero and are then added to those of `before`."""
        sums = [k for k, op in enumerate(nest.reductions) if reduction.is_float_sum(op)]
        fresh = {piece: list(state) for piece, state in before.items()}
        for piece, number in ((piece, number) for piece in fresh for number in sums):
            fresh[piece][number] = self._start(nest.reductions[number], piece.lanes, 0)
        after = body(fresh)
        for piece, number in ((piece, number) for piece in after for number in sums):
            op, parts = nest.reductions[number], (before[piece][number], after[piece][number])
            after[piece][number] = reduction.merge(self.b, op, self._reduces_in(op), *parts)
        return after

    def _loop(self, start: Value, stop: Value, step: int, states: States, body: Callable) -> States:
        """`Builder.loop` with the states of every piece carried."""
        shape = [(key, [len(state) for state in group]) for key, group in states.items()]

        def unpack(values: Sequence[Value]) -> States:
            rest = iter(values)
            return {key: [[next(rest) for _ in range(size)] for size in sizes] for key, sizes in shape}

        def pack(states: States) -> list[Value]:
            return [value for group in states.values() for state in group for value in state]

        carried = self.b.loop(start, stop, step, pack(states), lambda i, values: pack(body(i, unpack(values))))
        return unpack(carried)

    # operations

    def _pointers(self, nest: StageNest, at: _At) -> dict[tuple[int, Index], Value]:
        """Where each index of the stage points as far as the kernel's own axes go."""
        b, pointers = self.b, {}
        for op in (op for level in nest.levels for op in level if op.index is not None):
            if (op.param, op.index) in pointers:
                continue
            offset = b.integer(self._static(op.index.base))
            for name, stride in op.index.terms:
                if name in at.axes and stride != 0:
                    offset = b.plus(offset, b.times(at.axes[name], self._static(stride)))
            pointers[op.param, op.index] = self._moved(op.param, self.params[op.param], offset)
        return pointers

    def _moved(self, param: int, pointer: Value, elements: Value) -> Value:
        if elements.text == "0":
            return pointer
        return self.b.offset(pointer, elements, memory_element(self.kernel.params[param].dtype))

    def _static(self, dim: Dim) -> int:
        if not isinstance(dim, int):
            raise InternalError(f"{self.kernel.name}: symbolic stride or offset {dim}")
        return dim

    def _enter(self, nest: StageNest, at: _At, axis: Axis, position: Value) -> _At:
        """Inside the loop over `axis`: pointers moved along it."""
        b, pointers = self.b, dict(at.pointers)
        for (param, index), pointer in at.pointers.items():
            stride = self._static(index.stride(axis.name))
            if stride:
                pointers[param, index] = self._moved(param, pointer, b.times(position, stride))
        return at.enter(**{axis.name: position})._replace(pointers=pointers)

    def _operations(self, nest: StageNest, depth: int, at: _At, states: list[State]) -> list[State]:
        """The operations of one level; yields the states of its reductions."""
        states = list(states)
        if depth == len(nest.axes):
            for op in nest.recalled:
                at.values[op.id] = self._recall(nest, at, op)
        for op in nest.levels[depth]:
            if op.op == "reduce":
                number = nest.reductions.index(op)
                states[number] = self._reduce(nest, at, op, states[number])
            elif op.op == "store":
                self._store(nest, at, op)
            elif op.op == "check":
                condition = at.values[op.args[0]]
                self._raise(at, elementwise.BOOL["bitwise_not"](self.b, condition), op.how)
            else:
                value = _VALUES.get(op.op, _Emitter._elementwise)(self, nest, at, op)
                at.values[op.id] = value
                if op.keep and depth > nest.outer:
                    self._keep(nest, at, op, value)
        return states

    def _width(self, nest: StageNest, at: _At, op: LoopOp) -> int:
        return at.lanes if op.id in nest.varying else 1

    def _wide(self, at: _At, value: int, lanes: int) -> Value:
        return self.b.splat(at.values[value], lanes)

    def _elementwise(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        b, lanes = self.b, self._width(nest, at, op)
        args = tuple(self._wide(at, value, lanes) for value in op.args)
        dtype = self.dtypes[op.args[-1]]
        if op.op == "cast":
            return elementwise.cast(b, args[0], dtype, op.dtype)
        if op.op == "bitcast":
            return elementwise.bitcast(b, args[0], op.dtype)
        if op.op in elementwise.DIVISIONS and DTYPES[dtype].kind in "iu":
            if not args[1].is_constant or args[1].is_zero:
                is_zero = b.compare("eq", args[1], b.constant(0, args[1]))
                self._raise(at, is_zero, "zero_division")
                args = args[0], b.select(is_zero, b.constant(1, args[1]), args[1])
        return elementwise.apply(b, op.op, dtype, args)

    def _constant(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        return elementwise.number(op.dtype, op.other, 1, self.b)

    def _axis(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        b, lanes = self.b, self._width(nest, at, op)
        position = b.splat(at.axes[op.axis], lanes)
        return b.binary("add", position, b.iota(lanes)) if lanes > 1 else position

    def _raise(self, at: _At, bad: Value, how: str) -> None:
        """Sets bit `how` of the error flag if some lane that exists is bad."""
        b = self.b
        if at.mask is not None and bad.lanes == at.lanes:
            bad = b.binary("and", bad, at.mask)

        def body() -> list[Value]:
            b.emit(f"{b.name('%f')} = atomicrmw or {self.flag.operand}, i32 {FLAGS[how]} monotonic, align 4")
            return []

        b.when(b.any(bad), body)

    def _reduce(self, nest: StageNest, at: _At, op: LoopOp, state: State) -> State:
        b, dtype, lanes = self.b, self._reduces_in(op), state[0].lanes
        source = self.dtypes[op.args[0]]
        value = elementwise.cast(b, self._wide(at, op.args[0], lanes), source, dtype)
        position = None
        if len(state) > 1:
            position = b.splat(self._flat(nest, at), lanes)
            if self.kernel.lane is None:
                position = b.binary("add", position, b.iota(lanes))
        return reduction.take(b, op, dtype, state, value, at.mask, position)

    def _flat(self, nest: StageNest, at: _At) -> Value:
        """The row-major position within the stage's own axes."""
        b, flat = self.b, self.b.integer(0)
        for axis in nest.own:
            flat = b.plus(b.times(flat, axis.extent), at.axes[axis.name])
        return flat

    # kept rows

    def _kept_at(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        """Where `op` of this position is kept: lanes side by side."""
        b, element = self.b, memory_element(op.dtype)
        width = self.lanes * self.unroll
        if op.id not in self.scratch:
            # room for a whole vector after the last position: tails are stored unmasked
            count = nest.positions * width if self.kernel.lane else nest.positions + width
            self.scratch[op.id] = b.scratch(element, count)
        flat = self._flat(nest, at)
        if self.kernel.lane:
            flat = b.times(flat, width)
        return b.offset(self.scratch[op.id], flat, element)

    def _keep(self, nest: StageNest, at: _At, op: LoopOp, value: Value) -> None:
        b, wide = self.b, self.b.splat(value, at.lanes)
        if op.dtype == "bool":
            wide = b.convert("zext", wide, "i8")
        b.store(wide, self._kept_at(nest, at, op))

    def _recall(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        value = self.b.load(self._kept_at(nest, at, op), memory_element(op.dtype), at.lanes)
        return elementwise.truth(self.b, value, "uint8") if op.dtype == "bool" else value

    # memory

    def _load(self, nest: StageNest, at: _At, op: LoopOp) -> Value:
        b, lanes = self.b, self._width(nest, at, op)
        mask = self._mask(at, op, lanes)
        element = memory_element(op.dtype)
        other = elementwise.number(op.dtype, op.other or 0, lanes, b)
        if op.dtype == "bool":
            other = b.splat_of(bool(op.other), element, lanes)
        address, stride = self._address(nest, at, op, lanes)
        if address.lanes:
            everywhere = b.splat_of(True, "i1", lanes)
            value = b.gather(address, mask or everywhere, other)
        elif stride < 0:
            order = range(lanes - 1, -1, -1)
            value = self._plain_load(address, mask and b.shuffle(mask, order), other)
            value = b.shuffle(value, order)
        else:
            value = self._plain_load(address, mask, other)
        return elementwise.truth(b, value, "uint8") if op.dtype == "bool" else value

    def _plain_load(self, address: Value, mask: Value | None, other: Value) -> Value:
        if mask is None:
            return self.b.load(address, other.element, other.lanes)
        return self.b.masked_load(address, mask, other)

    def _store(self, nest: StageNest, at: _At, op: LoopOp) -> None:
        b, varies = self.b, nest.varies(op)
        lanes = at.lanes if varies else 1
        if not varies and (op.args[0] in nest.varying or op.mask in nest.varying):
            raise InternalError(f"{self.kernel.name}: lanes of v{op.args[0]} are stored to one place")
        value, mask = self._wide(at, op.args[0], lanes), self._mask(at, op, lanes)
        if op.dtype == "bool":
            value = b.convert("zext", value, "i8")
        address, stride = self._address(nest, at, op, lanes)
        if address.lanes:
            return b.scatter(value, address, mask or b.splat_of(True, "i1", lanes))
        if stride < 0:
            order = range(lanes - 1, -1, -1)
            value, mask = b.shuffle(value, order), mask and b.shuffle(mask, order)
        return b.masked_store(value, address, mask) if mask else b.store(value, address)

    def _mask(self, at: _At, op: LoopOp, lanes: int) -> Value | None:
        """The lanes that an access may touch; None for all. One lane always exists."""
        exists = at.mask if lanes == at.lanes else None
        if op.mask is None:
            return exists
        wanted = self._wide(at, op.mask, lanes)
        return wanted if exists is None else self.b.binary("and", wanted, exists)

    def _address(self, nest: StageNest, at: _At, op: LoopOp, lanes: int) -> tuple[Value, int]:
        """Where `op` accesses: one pointer with stride 1 or -1 (then to the lowest), or one a lane."""
        b, pointer = self.b, at.pointers[op.param, op.index]
        element = memory_element(self.kernel.params[op.param].dtype)
        stride = self._static(op.index.stride(nest.vector)) if nest.vector and lanes > 1 else 0
        indices = None
        for term, step in op.index.terms:
            if isinstance(term, str) or step == 0:
                continue
            value = elementwise.cast(b, at.values[term], self.dtypes[term], "int64")
            scaled = b.binary("mul", value, b.constant(self._static(step), value))
            if value.lanes == 1:
                pointer = b.offset(pointer, b.lane(scaled), element)
            else:
                indices = scaled if indices is None else b.binary("add", indices, scaled)
        if indices is None and lanes == 1 or indices is None and stride == 1:
            return pointer, 1
        if indices is None and stride == -1:
            return b.offset(pointer, b.integer(1 - lanes), element), -1
        steps = b.iota(lanes, stride)
        indices = steps if indices is None else b.binary("add", indices, steps) if stride else indices
        return b.offset(pointer, indices, element), stride


_VALUES = {"load": _Emitter._load, "const": _Emitter._constant, "axis": _Emitter._axis}
