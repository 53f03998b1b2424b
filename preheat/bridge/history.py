"""The graph of autograd behind live tensors: what its nodes have saved, and whether it still holds.

    check_saved([y], [history(x)])    raises torch's own error for a saved tensor that was written to
    why_broken([y], [history(x)])     the same as text: "MulBackward0 has saved a tensor that ...", or ""
    require_version(x, 0)             the same of one tensor

Only nodes between the tensors and what they were computed from are looked at: `origins` are the nodes
that gave these, None for leaves. What a checkpoint computes again when it is asked for has not been
changed, and is not computed for this (`is_looking`).
"""

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from preheat.base.identity import identity

_is_looking: ContextVar[bool] = ContextVar("preheat_is_looking", default=False)


def is_looking() -> bool:
    """Whether this thread unpacks saved tensors only to see whether they hold."""
    return _is_looking.get()


def check_saved(results: Iterable[torch.Tensor], origins: Iterable[Any]) -> None:
    """Raises what a backward from `results` to `origins` raises if a saved tensor was changed."""
    for node in nodes(results, origins):
        _unpack(node)


def why_broken(results: Iterable[torch.Tensor], origins: Iterable[Any]) -> str:
    """Why a backward from `results` to `origins` would raise: a saved tensor was changed in place."""
    for node in nodes(results, origins):
        try:
            _unpack(node)
        except RuntimeError:
            return f"{node.name()} has saved a tensor that was modified since"
    return ""


def nodes(results: Iterable[torch.Tensor], origins: Iterable[Any]) -> Iterator:
    """The nodes of autograd from `results` back to those that gave `origins`."""
    seen = {identity(node): node for node in origins if node is not None}
    waiting = [node for node in map(history, results) if node is not None]
    while waiting:
        node = waiting.pop()
        if identity(node) not in seen:
            seen[identity(node)] = node
            yield node
            waiting += [following for following, _ in node.next_functions if following is not None]


def require_version(tensor: torch.Tensor, version: int) -> None:
    """Raises what a backward raises for a saved tensor that was changed since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} is at version {tensor._version}; "
            f"expected version {version} instead.")


def history(tensor: torch.Tensor) -> Any:
    """The node that gave `tensor`, or what it is a view of; None for a leaf.

    A view is not asked itself: where its memory was written to, torch then makes it another node, which
    can be seen (one that had none before refuses to be written to until it is asked).
    """
    return (tensor._base if tensor._is_view() else tensor).grad_fn


def _unpack(node) -> None:
    token = _is_looking.set(True)
    try:
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError as error:
                    if "modified by an inplace operation" in str(error):
                        raise
    finally:
        _is_looking.reset(token)
