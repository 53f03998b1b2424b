"""Nests: the loops of a group, and what is done in each turn of them, one node a distinct value.

    Frame   i0:8 i1:128                 rows, and the axes that are walked inside a row
    Nest    n0 = load %0[i0*128 + i1]   nodes over a frame; those with effects are stores and checks

`loops` makes them, `forms` and `tile` decide how their loops run.
"""

from collections.abc import Collection

from preheat.base.dataclass import dataclass
from preheat.ir.scalar import Dim
from preheat.schedule.affine import Affine


class NoFit(Exception):
    """The group cannot be one loop nest; says why."""


@dataclass(frozen=True, slots=True)
class FrameAxis:
    name: str
    extent: Dim
    is_walked: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The loops of a group in row-major order of the value they walk; size-1 axes are left out."""

    axes: tuple[FrameAxis, ...]

    def split(self, name: str, inner: Dim) -> "Frame":
        """The frame with axis `name` cut in two."""
        parts: list[FrameAxis] = []
        for part in self.axes:
            if part.name == name:
                parts.append(FrameAxis(name + "a", part.extent // inner, part.is_walked))
                parts.append(FrameAxis(name + "b", inner, part.is_walked))
            else:
                parts.append(part)
        return Frame(tuple(parts))

    def part(self, is_walked: bool) -> tuple[FrameAxis, ...]:
        return tuple(a for a in self.axes if a.is_walked is is_walked)


def frame_of(sizes: tuple[Dim, ...], walked: Collection[int] = ()) -> Frame:
    """The frame that visits a value of `sizes`, with axes `walked` inside the rows."""
    return Frame(tuple(FrameAxis(f"i{k}", s, k in walked) for k, s in enumerate(sizes) if s != 1))


@dataclass(frozen=True, slots=True)
class Node:
    """As `ir.loop.LoopOp`; `memory` is the value whose memory is meant, `args` are node numbers."""

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    memory: int = -1
    index: Affine | None = None
    mask: int | None = None
    other: int | float | bool | None = None
    axis: str = ""
    how: str = ""

    def operands(self) -> tuple[int, ...]:
        """Every node that must be known before this one."""
        extra = tuple(k for k in self.index.keys() if isinstance(k, int)) if self.index else ()
        return (*self.args, *extra, *(() if self.mask is None else (self.mask,)))


@dataclass(frozen=True, slots=True)
class Nest:
    """The nodes of a group over a frame. `stores` and `checks` are the nodes with effects."""

    frame: Frame
    nodes: tuple[Node, ...]
    stores: tuple[int, ...]
    checks: tuple[int, ...]
    values: tuple[int, ...]  # the values of the graph that were computed, for the kernel's name
    reads: frozenset[int]  # the values of the graph that are loaded

    def extents(self) -> dict[str, Dim]:
        return {a.name: a.extent for a in self.frame.axes}
