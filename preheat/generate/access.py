"""Where the values of a kernel come from and go to: loads, stores, kept rows, squares.

    load p0[i0*128 + j]        contiguous lanes: one vector load, masked at the tail
    load p0[i0*128 - j]        the same, lanes reversed
    load p0[v3*128 + j]        v3 the same for all lanes: contiguous, the row moved
    load p0[v3 + j*2]          a gather

`Unit` is the function being written, `At` a place in it. Guarantees: a lane that does not exist or
that a mask switches off touches no memory.
"""

from typing import NamedTuple

from preheat.base.dataclass import dataclass, field
from preheat.base.errors import InternalError
from preheat.generate import elementwise, philox
from preheat.generate.elementwise import memory_element
from preheat.generate.llvm import Builder, Value
from preheat.generate.nest import SHORT_VECTORS, StageNest
from preheat.ir.loop import Axis, Index, Kernel, LoopOp
from preheat.ir.scalar import Dim, Scalar


@dataclass
class Unit:
    """A kernel on its way to text: what is written so far (`b`), and what is the same everywhere.

    params     the pointers of the kernel's buffers;  flag: of the error flag
    dtypes     of every value;  scratch: where kept values lie
    sizes      the arguments that expressions of the kernel are
    covers     how vectors cover an axis whose extent is one (`stages.cover`);  masks: of its pieces
    known      sizes that are known where code is being written
    """

    b: Builder
    kernel: Kernel
    stages: tuple[StageNest, ...]
    lanes: int
    unroll: int
    params: list[Value] = field(default_factory=list)
    flag: Value | None = None
    scratch: dict[int, Value] = field(default_factory=dict)
    dtypes: dict[int, str] = field(default_factory=dict)
    sizes: dict[Scalar, Value] = field(default_factory=dict)
    covers: dict[Scalar, tuple] = field(default_factory=dict)
    masks: dict[tuple, Value] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)


class At(NamedTuple):
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

    def enter(self, **axes: Value) -> "At":
        return self._replace(axes={**self.axes, **axes}, values=dict(self.values))


def pointers(unit: Unit, nest: StageNest, at: At) -> dict[tuple[int, Index], Value]:
    """Where each index of the stage points as far as the kernel's own axes go."""
    b, pointers = unit.b, {}
    for op in (op for level in nest.levels for op in level if op.index is not None):
        if (op.param, op.index) in pointers:
            continue
        offset = number(unit, op.index.base)
        for name, stride in op.index.terms:
            if name in at.axes and stride != 0:
                offset = b.plus(offset, b.times(at.axes[name], number(unit, stride)))
        # of what lies nowhere, its place alone
        start = unit.params[op.param] if op.param >= 0 else b.integer(0)
        pointers[op.param, op.index] = _moved(unit, op.param, start, offset)
    return pointers


def enter(unit: Unit, nest: StageNest, at: At, axis: Axis, position: Value) -> At:
    """Inside the loop over `axis`: pointers moved along it."""
    b, pointers = unit.b, dict(at.pointers)
    for (param, index), pointer in at.pointers.items():
        stride = index.stride(axis.name)
        if isinstance(stride, Scalar) or stride:
            moved = b.times(position, number(unit, stride))
            pointers[param, index] = _moved(unit, param, pointer, moved)
    return at.enter(**{axis.name: position})._replace(pointers=pointers)


def _moved(unit: Unit, param: int, pointer: Value, elements: Value) -> Value:
    if param < 0:
        return unit.b.plus(pointer, elements)
    if elements.text == "0":
        return pointer
    return unit.b.offset(pointer, elements, memory_element(unit.kernel.params[param].dtype))


def number(unit: Unit, dim: Dim) -> Value:
    """`dim` as a plain i64: a constant, an argument, or computed from arguments."""
    if not isinstance(dim, Scalar):
        return unit.b.integer(dim)
    if dim in unit.sizes:
        return unit.sizes[dim]
    if dim.op not in _ARITHMETIC:
        raise InternalError(f"{unit.kernel.name}: {dim} is no argument of the kernel")
    return unit.b.binary(_ARITHMETIC[dim.op], *(number(unit, part) for part in dim.args))


_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}


def width(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> int:
    """On how many lanes `op` is computed."""
    return at.lanes if op.id in nest.varying else 1


def wide(unit: Unit, at: At, value: int, lanes: int) -> Value:
    return unit.b.splat(at.values[value], lanes)


def load(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    b, lanes = unit.b, width(unit, nest, at, op)
    mask = _mask(unit, at, op, lanes)
    element = memory_element(op.dtype)
    other = elementwise.number(op.dtype, op.other or 0, lanes, b)
    if op.dtype == "bool":
        other = b.splat_of(bool(op.other), element, lanes)
    address, stride = _address(unit, nest, at, op, lanes)
    if address.lanes:
        everywhere = b.splat_of(True, "i1", lanes)
        value = b.gather(address, mask or everywhere, other)
    elif stride == -1:
        order = range(lanes - 1, -1, -1)
        value = _plain_load(unit, address, mask and b.shuffle(mask, order), other)
        value = b.shuffle(value, order)
    else:
        value = _plain_load(unit, address, mask, other)
    return elementwise.truth(b, value, "uint8") if op.dtype == "bool" else value


def _plain_load(unit: Unit, address: Value, mask: Value | None, other: Value) -> Value:
    if mask is None:
        return unit.b.load(address, other.element, other.lanes)
    return unit.b.masked_load(address, mask, other)


def store(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> None:
    b, varies = unit.b, nest.varies(op)
    lanes = at.lanes if varies else 1
    if not varies and (op.args[0] in nest.varying or op.mask in nest.varying):
        raise InternalError(f"{unit.kernel.name}: lanes of v{op.args[0]} are stored to one place")
    value, mask = wide(unit, at, op.args[0], lanes), _mask(unit, at, op, lanes)
    if op.dtype == "bool":
        value = b.convert("zext", value, "i8")
    address, stride = _address(unit, nest, at, op, lanes)
    if address.lanes:
        return b.scatter(value, address, mask or b.splat_of(True, "i1", lanes))
    if stride == -1:
        order = range(lanes - 1, -1, -1)
        value, mask = b.shuffle(value, order), mask and b.shuffle(mask, order)
    return b.masked_store(value, address, mask) if mask else b.store(value, address)


def _mask(unit: Unit, at: At, op: LoopOp, lanes: int) -> Value | None:
    """The lanes that an access may touch; None for all. One lane always exists."""
    exists = at.mask if lanes == at.lanes else None
    if op.mask is None:
        return exists
    wanted = wide(unit, at, op.mask, lanes)
    return wanted if exists is None else unit.b.binary("and", wanted, exists)


def _address(unit: Unit, nest: StageNest, at: At, op: LoopOp, lanes: int) -> tuple[Value, Dim]:
    """Where `op` accesses: one pointer with stride 1 or -1 (then to the lowest), or one a lane."""
    b, (pointer, indices, stride) = unit.b, _place(unit, nest, at, op, lanes)
    if indices is None and stride == 1:
        return pointer, 1
    if indices is None:
        return _moved(unit, op.param, pointer, b.integer(1 - lanes)), -1
    element = memory_element(unit.kernel.params[op.param].dtype)
    return b.offset(pointer, indices, element), stride


def _place(
    unit: Unit, nest: StageNest, at: At, op: LoopOp, lanes: int,
) -> tuple[Value, Value | None, Dim]:
    """Where the lanes of `op` are: from a pointer (or place) at stride 1 or -1, or one offset a lane."""
    b, pointer = unit.b, at.pointers[op.param, op.index]
    stride = op.index.stride(nest.vector) if nest.vector and lanes > 1 else 0
    indices = None
    for term, step in op.index.terms:
        if isinstance(term, str) or not isinstance(step, Scalar) and step == 0:
            continue
        value = elementwise.cast(b, at.values[term], unit.dtypes[term], "int64")
        scaled = b.binary("mul", value, splat(unit, step, value.lanes))
        if value.lanes == 1:
            pointer = _moved(unit, op.param, pointer, b.lane(scaled))
        else:
            indices = scaled if indices is None else b.binary("add", indices, scaled)
    if indices is None and (lanes == 1 or not isinstance(stride, Scalar) and abs(stride) == 1):
        return pointer, None, 1 if lanes == 1 else stride
    if isinstance(stride, Scalar):
        steps = b.binary("mul", b.iota(lanes), splat(unit, stride, lanes))
    else:
        steps = b.iota(lanes, stride)
    is_fixed = not isinstance(stride, Scalar) and stride == 0
    indices = steps if indices is None else indices if is_fixed else b.binary("add", indices, steps)
    return pointer, indices, stride


def uniform(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    """Random numbers: those of neighbouring lanes are of one group, if their places are neighbours."""
    b, lanes = unit.b, width(unit, nest, at, op)
    seed = b.lane(at.values[op.args[0]])
    place, indices, stride = _place(unit, nest, at, op, lanes)
    if indices is None and stride == 1 and lanes % philox.GROUP == 0:
        return philox.consecutive(b, seed, op.other, place, lanes)
    if indices is None:
        indices = b.iota(lanes, stride)
    places = b.binary("add", b.splat(place, lanes), indices)
    return philox.each(b, seed, op.other, places)


def splat(unit: Unit, dim: Dim, lanes: int) -> Value:
    """`dim` as i64 in every lane."""
    if isinstance(dim, Scalar):
        return unit.b.splat(number(unit, dim), lanes)
    return unit.b.splat_of(dim, "i64", lanes)


def flat(unit: Unit, nest: StageNest, at: At) -> Value:
    """The row-major position within the stage's own axes."""
    b, flat = unit.b, unit.b.integer(0)
    for axis in nest.own:
        flat = b.plus(b.times(flat, number(unit, axis.extent)), at.axes[axis.name])
    return flat


def keep(unit: Unit, nest: StageNest, at: At, op: LoopOp, value: Value) -> None:
    b, wide = unit.b, unit.b.splat(value, at.lanes)
    if op.dtype == "bool":
        wide = b.convert("zext", wide, "i8")
    b.store(wide, _kept_at(unit, nest, at, op))


def recall(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    value = unit.b.load(_kept_at(unit, nest, at, op), memory_element(op.dtype), at.lanes)
    return elementwise.truth(unit.b, value, "uint8") if op.dtype == "bool" else value


def _kept_at(unit: Unit, nest: StageNest, at: At, op: LoopOp) -> Value:
    """Where `op` of this position is kept: lanes side by side."""
    b, element = unit.b, memory_element(op.dtype)
    width = unit.lanes * unit.unroll * (SHORT_VECTORS if unit.covers else 1)
    if op.id not in unit.scratch:
        # room for a whole vector after the last position: tails are stored unmasked
        if isinstance(nest.positions, Scalar):
            unit.scratch[op.id] = b.scratch(element, width, unit.sizes[nest.positions])
        else:
            count = nest.positions * width if unit.kernel.lane else nest.positions + width
            unit.scratch[op.id] = b.scratch(element, count)
    place = flat(unit, nest, at)
    if unit.kernel.lane:
        place = b.times(place, b.integer(width))
    return b.offset(unit.scratch[op.id], place, element)


def transpose(unit: Unit, nest: StageNest, op: LoopOp, memory: Value, square: Value) -> None:
    """Copies between a square of `op`'s memory and the scratch square, across."""
    b, side, element = unit.b, nest.own[0].extent, memory_element(op.dtype)
    stride = number(unit, op.index.stride(nest.own[1].name))
    there = [
        b.offset(memory, b.times(b.integer(k), stride), element) for k in range(side)]
    here = [b.offset(square, b.integer(k * side), element) for k in range(side)]
    sources, places = (there, here) if op.op == "load" else (here, there)
    rows = [b.load(pointer, element, side) for pointer in sources]
    for row, pointer in zip(b.transpose(rows), places):
        b.store(row, pointer)
