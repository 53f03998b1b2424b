"""Promotion: the dtype in which torch compares or combines operands of several dtypes.

    promote([f16 tensor, f32 0-d tensor, 2])   -> "float16"     a higher category or rank decides
    promote([int64 tensor, 2.5])               -> "float32"     the default float dtype

Only needed where the recorded result type does not tell (comparisons): elsewhere the recorded
result says what torch chose. Source: c10/core/ScalarType.cpp,
aten/src/ATen/native/TypeProperties.cpp.
"""

from collections.abc import Sequence

from preheat.ir.scalar import Number, type_of
from preheat.ir.types import DTYPES, TensorType

_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}
_OF_NUMBER = {"bool": ("b", "bool"), "int": ("i", "int64"), "float": ("f", "float32")}


def promote(operands: Sequence[TensorType | Number]) -> str:
    """The common dtype of `operands`: tensors with axes, then tensors without, then numbers."""
    groups: list[list[str]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, TensorType):
            groups[0 if operand.rank else 1].append(operand.dtype)
        else:
            groups[2].append(_OF_NUMBER[type_of(operand)][1])
    found = ""
    for group in groups:
        if group:
            best = group[0]
            for dtype in group[1:]:
                best = promote_pair(best, dtype)
            if not found or category(best) > category(found):
                found = best
    return found


def category(dtype: str) -> int:
    """0 bool, 1 integer, 2 float."""
    return _CATEGORY[DTYPES[dtype].kind]


def promote_pair(a: str, b: str) -> str:
    """The smallest dtype that torch gives for two tensors of these dtypes."""
    if a == b:
        return a
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    x, y = DTYPES[a], DTYPES[b]
    if x.kind == "f" and x.itemsize == y.itemsize:
        return "float32"  # float16 with bfloat16
    if x.kind == y.kind or x.kind == "f":
        return a if x.itemsize > y.itemsize else b
    signed, unsigned = (x, y) if x.kind == "i" else (y, x)
    size = max(signed.itemsize, min(unsigned.itemsize * 2, 8))
    return f"int{size * 8}"
