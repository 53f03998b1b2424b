"""Redraw: how a region that is computed again comes by the random numbers that it had.

Where each of its draws is one number (the seeds of generated numbers, `draws.py`) the forward keeps
them. Else all are drawn again, from where the CPU's generator stood (`regions.py`).
"""

from collections.abc import Sequence

from preheat.bridge.ops import draws
from preheat.bridge.regions import DRAWN_AGAIN
from preheat.ir.graph import Op
from preheat.ir.types import TensorType


def is_draw(op: Op) -> bool:
    return draws(op.name, op.args, op.attrs)


def is_redrawn(ops: Sequence[Op]) -> bool:
    """Whether the region of these ops draws again; else it is given what it drew."""
    return not all(_is_one_number(op) for op in ops if is_draw(op))


def why_not_redrawn(ops: Sequence[Op]) -> str:
    """Why the region of these ops, recorded or functional, cannot have its numbers again, or ""."""
    if not is_redrawn(ops):
        return ""
    for op in filter(is_draw, ops):
        is_on_cpu = all(type.device == "cpu" for type in op.types if isinstance(type, TensorType))
        if op.name not in DRAWN_AGAIN or not is_on_cpu:
            return f"{op.name} draws random numbers that cannot be drawn again"
    return ""


def _is_one_number(op: Op) -> bool:
    return all(isinstance(type, TensorType) and type.sizes == () for type in op.types)
