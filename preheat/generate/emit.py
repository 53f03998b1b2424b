"""Kernels as LLVM IR text: functions, their arguments, and the loops over the kernel's own axes.

    kernel relu(%p0: f32, %p1: f32)          define void @relu(ptr %args, i64 %begin, i64 %end)
      over i0 parallel, lane i0        ->      loop: load <64 x float>, fcmp, select, store
        v0 = load p0[i0] ...                   loop: the same with <16 x float>
                                               last lanes: masked, or one by one

The native form is that of ir/loop.py: `args` holds a data pointer a parameter, a number for each
expression of the kernel, then the pointer to the error flag (int32). Guarantees: no element outside the buffers is read or written, no alignment
beyond the element's is assumed, empty ranges and extents do nothing, and a position's result does
not depend on which range or thread computed it.
"""

from collections.abc import Callable, Sequence

from preheat.generate import access, stages
from preheat.generate.access import At, Unit
from preheat.generate.llvm import Builder, Value
from preheat.generate.nest import lanes_of, nests, pieces, unroll_of, widths
from preheat.generate.rows import side_by_side
from preheat.ir.loop import Axis, Kernel, sizes_of
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar

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
    sizes = sizes_of(kernel)
    kernel = side_by_side(kernel)
    b, loops = Builder(target), nests(kernel)
    if all(isinstance(axis.extent, Scalar) or axis.extent > 0 for axis in kernel.axes):
        unit = Unit(b, kernel, loops, lanes_of(kernel, target), unroll_of(loops))
        _outer_loops(unit, sizes)
    b.emit("ret void")
    head = f"define void @{kernel.name}(ptr noalias readonly %args, i64 %begin, i64 %end) #0 {{"
    text = "\n".join((head, "entry:", *b.allocations, *b.lines, "}", ""))
    return text, b.declarations | b.helpers


def _outer_loops(unit: Unit, sizes: Sequence[Scalar]) -> None:
    """The loops over the shared range and the kernel's other axes, with the stages inside; several times
    where short rows are another matter than long ones, which is only known when the kernel runs."""
    _arguments(unit, sizes)
    for is_meant in stages.ways(unit):
        if is_meant is None:
            _loops(unit)
        else:
            unit.b.when(is_meant, lambda: _loops(unit) or [])


def _loops(unit: Unit) -> None:
    kernel = unit.kernel
    shared = list(kernel.axes[:kernel.parallel])
    inner = [axis for axis in kernel.axes[kernel.parallel:] if axis.name != kernel.lane]
    lane = next((axis for axis in kernel.axes if axis.name == kernel.lane), None)
    begin, end = Value("%begin", "i64", 0), Value("%end", "i64", 0)
    if lane is None or lane not in shared:
        _odometer(unit, begin, end, shared, lambda flat, at: _inner_loops(unit, 
            at, inner, lambda at: _whole_lane(unit, at, lane) if lane else _stages(unit, at)))
    elif len(shared) == 1:
        _inner_loops(unit, At({}), inner, lambda at: _lane_range(unit, at, begin, end))
    else:
        _rows_of_lanes(unit, begin, end, shared, inner)


def _arguments(unit: Unit, sizes: Sequence[Scalar]) -> None:
    b, args = unit.b, Value("%args", "ptr", 0)
    count = len(unit.kernel.params)
    for place, size in enumerate(sizes, start=count):
        unit.sizes[size] = Value(f"%n{place}", "i64", 0)
        b.allocations += [
            f"  %n{place}.at = getelementptr i64, ptr %args, i64 {place}",
            f"  %n{place} = load i64, ptr %n{place}.at, align 8"]
    for number in (*range(count), count + len(sizes)):
        slot = b.offset(args, b.integer(number), "ptr") if number else args
        unit.params.append(Value(f"%p{number}", "ptr", 0))
        b.emit(f"%p{number} = load ptr, ptr {slot.text}, align 8")
    unit.flag = unit.params.pop()
    stages.cover(unit)
    for stage in unit.kernel.stages:
        unit.dtypes |= {op.id: op.dtype for op in stage.body if op.id >= 0}


def _odometer(unit: Unit, begin: Value, end: Value, axes: list[Axis], body: Callable) -> None:
    """`body(flat, at)` for each flat position; the digits are divided out once, then counted."""
    b = unit.b
    if len(axes) < 2:
        def single(flat: Value, carried: list[Value]) -> list[Value]:
            body(flat, At({axes[0].name: flat} if axes else {}))
            return []
        b.loop(begin, end, 1, [], single, may_be_empty=True)
        return
    digits, rest = [], begin
    for axis in reversed(axes):
        extent = access.number(unit, axis.extent)
        digits.insert(0, b.binary("urem", rest, extent))
        rest = b.binary("udiv", rest, extent)

    def step(flat: Value, digits: list[Value]) -> list[Value]:
        body(flat, At({axis.name: digit for axis, digit in zip(axes, digits)}))
        carry, following = b.integer(1), []
        for axis, digit in zip(reversed(axes), reversed(digits)):
            more = b.binary("add", digit, carry)
            wraps = b.compare("eq", more, access.number(unit, axis.extent))
            following.insert(0, b.select(wraps, b.integer(0), more))
            carry = b.convert("zext", wraps, "i64")
        return following

    b.loop(begin, end, 1, digits, step, may_be_empty=True)


def _inner_loops(unit: Unit, at: At, axes: list[Axis], body: Callable[[At], None]) -> None:
    if not axes:
        return body(at)

    def step(position: Value, carried: list[Value]) -> list[Value]:
        _inner_loops(unit, at.enter(**{axes[0].name: position}), axes[1:], body)
        return []

    unit.b.loop(unit.b.integer(0), access.number(unit, axes[0].extent), 1, [], step)
    return None


def _rows_of_lanes(
    unit: Unit, begin: Value, end: Value, shared: list[Axis], inner: list[Axis]
) -> None:
    """The shared range when the lane axis is its last digit: whole rows but for the ends."""
    b, extent = unit.b, access.number(unit, shared[-1].extent)
    first = b.binary("udiv", begin, extent)
    above = b.binary("add", end, b.binary("add", extent, b.integer(-1)))
    last = b.select(b.compare("slt", begin, end), b.binary("udiv", above, extent), first)

    def row(number: Value, at: At) -> None:
        base = b.binary("mul", number, extent)
        start = b.intrinsic("smax", b.binary("sub", begin, base), b.integer(0))
        stop = b.intrinsic("smin", b.binary("sub", end, base), extent)
        _inner_loops(unit, at, inner, lambda at: _lane_range(unit, at, start, stop))

    _odometer(unit, first, last, shared[:-1], row)


def _whole_lane(unit: Unit, at: At, lane: Axis) -> None:
    """All positions of a lane axis that is not shared."""
    b = unit.b
    if isinstance(lane.extent, Scalar):
        _lane_range(unit, at, b.integer(0), access.number(unit, lane.extent))
        return
    for piece in pieces(lane.extent, unit.lanes, unit.unroll, b.has_masks):
        mask = stages.lanes_of_tail(unit, piece, b.integer(piece.start))
        b.loop(b.integer(piece.start), b.integer(piece.stop), piece.lanes, [],
               lambda position, _: _on_lanes(unit, at, piece.lanes, position, mask))


def _lane_range(unit: Unit, at: At, start: Value, stop: Value) -> None:
    """Lanes start .. stop, known when the kernel runs: wide vectors, vectors, the last lanes."""
    b = unit.b
    for width in widths(unit.lanes, unit.unroll):
        size = b.integer(width)
        count = b.binary("sdiv", b.binary("sub", stop, start), size)
        following = b.binary("add", start, b.binary("mul", count, size))
        b.loop(start, following, width, [], lambda position, _, width=width: _on_lanes(unit, 
            at, width, position, None), may_be_empty=True)
        start = following
    if b.has_masks and unit.lanes > 1:
        def last() -> list[Value]:
            left = b.splat(b.binary("sub", stop, start), unit.lanes)
            exist = b.compare("slt", b.iota(unit.lanes), left)
            return _on_lanes(unit, at, unit.lanes, start, exist)
        b.when(b.compare("slt", start, stop), last)
    elif unit.lanes > 1:
        b.loop(start, stop, 1, [], lambda position, _: _on_lanes(unit, at, 1, position, None),
               may_be_empty=True)


def _on_lanes(unit: Unit, at: At, lanes: int, position: Value, mask: Value | None) -> list[Value]:
    at = at.enter(**{unit.kernel.lane: position})
    _stages(unit, at._replace(lanes=lanes, mask=mask))
    return []


def _stages(unit: Unit, at: At) -> None:
    """All stages at one position of the kernel's own axes."""
    for nest in unit.stages:
        at.values.update(stages.stage(unit, nest, at))
