"""Numbers that C refuses: finite ones beyond what the dtype that it makes of them holds.

    x.masked_fill(mask, n)    x of float16, n = 1e6: "value cannot be converted to type c10::Half without overflow"

A kernel would make an infinity of such a number. So a program for all numbers is for those within the bounds of the
tensor's dtype, and asks; a number beyond them is looked at: C says what it thinks of it. Infinities and nan are
within. Operands (`x + n`, `x ** n`) are not refused, and are not asked about.

Source: c10/util/TypeCast.h, `checked_convert`.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from preheat.bridge.symint import is_box, pin, plain, scalar_of
from preheat.ir.scalar import Scalar, apply

_OPERANDS = frozenset(("self", "other", "exponent"))
_NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))


def is_within(number: int | float, dtype: torch.dtype) -> bool:
    """Whether C makes a number of the floating `dtype` of this one."""
    return not torch.finfo(dtype).max < abs(number) < math.inf


def boxes_in(args: tuple, kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    """The boxes among arguments, by their places and names."""
    return {key: arg for key, arg in (*enumerate(args), *kwargs.items()) if is_box(arg)}


def ask(function: Any, boxes: Mapping[int | str, Any], out: Any) -> None:
    """Tells the owner of each box, which the op `function` takes at that place or by that name and gives `out`, that
    its number is within the bounds of the result's dtype; looks at it where it is not."""
    made = out[0] if type(out) in (tuple, list) and out else out
    if not isinstance(made, torch.Tensor) or made.dtype not in _NARROW:
        return
    parameters = function._schema.arguments
    for key, box in boxes.items():
        name = key if type(key) is str else parameters[key].name
        scalar = scalar_of(box)
        if name in _OPERANDS or not isinstance(scalar, Scalar):
            continue
        if not is_within(plain(box), made.dtype):
            pin(box)
            continue
        size = apply("abs", scalar)
        is_beyond = apply("and", apply("gt", size, torch.finfo(made.dtype).max), apply("lt", size, math.inf))
        box.node.owner.test(is_beyond, False)
