"""Functions that C composes of other ops, and how to be asked for each of these composites.

    with below_autograd():
        torch.matmul(x, w)      a dispatch mode sees aten.matmul, elsewhere aten.mm alone

Autograd stands above dispatch modes and takes composites apart before they see them. Below it they come
whole, those within others, too, as in inference mode, where no tensor requires grad.
"""

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch

from preheat.bridge.ops import overload, private

unsafe_view = overload("aten._unsafe_view.default")
pool = overload("aten.max_pool2d_with_indices.default")
divide, times, plus = (overload(f"aten.{name}.Scalar") for name in ("div", "mul", "add"))

_ASKING = frozenset((
    torch.matmul, torch.linalg.matmul, operator.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__,
    torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention, torch.max_pool1d,
))
_KINDS = frozenset(map(type, _ASKING))


below_autograd: Callable[[], contextlib.AbstractContextManager] | None = private("_C._AutoDispatchBelowADInplaceOrView")
"""A block in which ops come without autograd; grad mode and `requires_grad` stay as they are. None: this torch has none."""


def asks_of_sizes(function: Any) -> bool:
    """Whether C looks at sizes that this function is given, or asks more of them than follows for its result."""
    return type(function) in _KINDS and function in _ASKING
