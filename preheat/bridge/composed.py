"""Functions that C composes of other ops, and how to be asked for each of these composites.

    with below_autograd():
        torch.matmul(x, w)      a dispatch mode sees aten.matmul, elsewhere aten.mm alone

Autograd stands above dispatch modes and takes composites apart before they see them. Below it they come
whole, those within others, too, as in inference mode, where no tensor requires grad.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator
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


_guard, _included, _excluded = (private(f"_C.{name}") for name in (
    "_ForceDispatchKeyGuard", "_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set"))
_ABOVE = [key for key in map(private, (
    f"_C.DispatchKey.{name}" for name in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"))) if key is not None]
can_come_back = below_autograd is not None and None not in (_guard, _included, _excluded)
"""Whether this torch has what `with_autograd` needs."""


@contextlib.contextmanager
def with_autograd() -> Iterator[None]:
    """A block, within an operator that autograd does not see into, in which it sees all."""
    excluded = _excluded()
    for key in _ABOVE:
        excluded = excluded.remove(key)
    with _guard(_included(), excluded), torch.enable_grad():
        yield


def asks_of_sizes(function: Any) -> bool:
    """Whether C looks at sizes that this function is given, or asks more of them than follows for its result."""
    return type(function) in _KINDS and function in _ASKING
