"""Kernels: how a fused group is computed. One kernel is one pass over memory.

    kernel softmax_3(%p0: f32 in, %p1: f32 out) over i0:512 parallel
      stage j:128 vector
        v0 = load p0[i0*128 + j]
        r0 = max v0
      stage j:128 vector
        v1 = load p0[i0*128 + j]
        v2 = sub v1, r0
        v3 = exp v2
        r1 = sum v3
        keep v3
      stage j:128 vector
        v4 = div v3, r1
        store p1[i0*128 + j] = v4

The outer `axes` are independent of each other; the flattened range of the first `parallel` of them
is what threads share: the native form is `void kernel(ptr args, i64 begin, i64 end)` over it, with
`args` an array of one data pointer a parameter (already offset) followed by the error-flag pointer
(an int32 whose bits are `FLAGS`). Extents, strides and offsets are ints, or expressions (`Dim`): each
of these (`sizes_of`) is one more argument before the flag, an int64, or of a float its bits. `ANY` is
none: the extent of an only axis that is a shared lane, which begin and end say alone. On a GPU such a
kernel does what several calls of it do, one row of a table each (`TABLE_WORDS`).

A stage walks its own axes inside the outer ones, the last innermost. Exactly one axis of a kernel
is the vector axis: the last axis of every stage (`Kernel.lane` None: "row form"; reductions along
it give one value a row), or the outer axis `lane` ("lane form": each stage walks its axes
sequentially for a vector of lanes; reductions give one value a lane). A reduction's result is
usable in the later stages of the same kernel; so is a value marked `keep`, which has the same
position in the later stage (rows are kept in a scratch row on the stack, 64 KiB a kernel at most).
A stage without axes of its own is work once a row, or once a lane; all its values are usable later.
On a GPU several programs may share each row (`Kernel.shared`): each has a part of it, and where the row is
reduced waits for what the others' parts give. They tell each other by the parameter `WORDS`, an int64 for each
reduction, row and part, all 0 before. `Kernel.is_behind`: a program stores its part of a row when it has told of the next one.
The lane axis is the last of the shared ones, or not shared. Short axes that are not shared are
written out: what does not depend on them is loaded and computed once for all of their positions.
What does not depend on the vector axis is computed on one lane, at the outermost loop that it
depends on; so a store whose index does not move along the vector axis must store such a value.
Strides 1, 0 and -1 along the vector axis are fast, others are gathers; in a stage that walks a
square of axes, accesses that are contiguous along the outer one are transposed in registers.
"""

from collections.abc import Iterator
from typing import Union

from preheat.base.dataclass import dataclass
from preheat.ir.scalar import Dim, Scalar, product, symbol

ANY: Dim = symbol("n")  # extent of a kernel's only axis, a lane: as many positions as a call says
NUMBER = "number"  # name of a parameter that a GPU's kernel takes by value: 0-d, on the host
HOST = "host"  # of one of a plan for a GPU whose kernel runs on the host, in the host's memory
WORDS = "words"  # of one by which programs that share rows tell each other, used by nothing else
TABLE = "_table"  # behind the name of a kernel, that of the one that writes its table
TABLE_WORDS = 256  # that one launch writes to a table: it is compiled in 0.2 s, one of 480 words in 0.5
# Bits of the error flag, an int32 that kernels only ever set bits of.
FLAGS = {"index": 1, "zero_division": 2}


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop: its name ("i0", "j") and extent."""

    name: str
    extent: Dim


@dataclass(frozen=True, slots=True)
class Index:
    """An element offset: `base` + sum of stride * (axis by name, or SSA value by number)."""

    base: Dim
    terms: tuple[tuple[Union[str, int], Dim], ...] = ()

    def stride(self, axis: str) -> Dim:
        return next((s for name, s in self.terms if name == axis), 0)


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer of the kernel. role: "in", "out" or "inout" (read and written at the same places)."""

    dtype: str
    role: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoopOp:
    """One SSA value `id` of `dtype`.

    op "load"    param, index; `mask` (a bool value or None): lanes where it is false give `other`
    op "store"   param, index, args (value,); `mask` likewise; no result (id -1). With `how` "sum" a
                 *fold*: the sum over the last outer axes, along which `index` does not move, is
                 stored once (GPU only)
    op "const"   `other` is the number
    op "axis"    the position along the axis named `axis`, as int64
    op "reduce"  args (value,), `how` in sum prod max min any all argmax argmin
    op "check"   args (condition,): where false, bit `how` ("index", "zero_division") of the error flag is set;
                 the lane goes on: what would be out of bounds then must be masked or clamped
    op "uniform" args (seed,), index, `other` the stream: element `index` of `ops.CORE`'s uniform
    any elementwise name of `ops.CORE`, `cast` to `dtype` included.
    `keep` marks a value that later stages use at the same position.
    """

    op: str
    id: int
    dtype: str
    args: tuple[int, ...] = ()
    param: int = -1
    index: Index | None = None
    mask: int | None = None
    other: int | float | bool | Scalar | None = None
    axis: str = ""
    how: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A walk over `axes` (inside the kernel's own), doing `body` at each position.

    Reductions of a stage run over all of `axes`.
    """

    axes: tuple[Axis, ...]
    body: tuple[LoopOp, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A named loop nest. Equal kernels (by digest without the name) are generated once. shared: programs of a GPU
    that share each row, 0 where it is no more than one program's; is_behind: they store one when they have told of the next."""

    name: str
    params: tuple[Param, ...]
    axes: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    parallel: int = 1
    lane: str | None = None
    shared: int = 0
    is_behind: bool = False


def is_for_any(kernel: Kernel) -> bool:
    """Whether it is for any number of elements, which its calls say."""
    return bool(kernel.axes) and kernel.axes[0].extent == ANY


def is_on_host(kernel: Kernel) -> bool:
    """Whether it runs on the host, though its plan is for a GPU."""
    return any(param.name == HOST for param in kernel.params)


def sizes_of(kernel: Kernel) -> tuple[Scalar, ...]:
    """The expressions in `kernel`, each once, in the order of its arguments; and what they are made
    of besides sums and products, since code puts some together in another way."""
    found = dict.fromkeys(dim for dim in _dims(kernel) if isinstance(dim, Scalar) and dim != ANY)
    return tuple(dict.fromkeys((*found, *(atom for dim in found for atom in _atoms(dim)))))


def _atoms(dim: Dim) -> Iterator[Scalar]:
    if isinstance(dim, Scalar) and dim.op not in ("add", "sub", "mul"):
        yield dim
    elif isinstance(dim, Scalar):
        for part in dim.args:
            yield from _atoms(part)


def _dims(kernel: Kernel) -> Iterator[Dim]:
    yield from (axis.extent for axis in kernel.axes)
    for stage in kernel.stages:
        yield from (axis.extent for axis in stage.axes)
        if any(op.keep for op in stage.body):
            yield product(axis.extent for axis in stage.axes)  # the elements of a kept row
        for op in stage.body:
            if op.index is not None:
                yield op.index.base
                yield from (stride for _, stride in op.index.terms)
            yield op.other
