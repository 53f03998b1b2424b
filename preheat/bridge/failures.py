"""Why an op raised: by what its arguments are, or by what they hold.

    matmul of [2, 2] and [7]            fails_by_type: it raises on every call with such tensors
    cholesky of a [2, 2] not positive   not so: another call with the same types may well succeed

Runs the op on tensors without memory; one that raises there as well never looked at an element.
"""

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map_only


def fails_by_type(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether an op that has just raised would do so whatever its tensors hold."""
    try:
        bare_args, bare_kwargs = tree_map_only(torch.Tensor, _without_memory, (args, kwargs))
        function(*bare_args, **bare_kwargs)
    except NotImplementedError:
        return False
    except Exception:
        return True
    return False


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
