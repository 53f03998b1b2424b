"""Checkpoints: calls of `torch.utils.checkpoint.checkpoint` that a graph can hold as regions.

    function, arguments, named, region = open_checkpoint((block, x), {"use_reentrant": False})
    region.watch(saved)                  # saved(tensor) for each that autograd saves from now on
    function(*arguments, **named)
    close_checkpoint(region, None)

While a call is captured it runs for real, so torch's own hooks stand around its ops and the backward
runs `function` again, as in eager; `function` may be interpreted meanwhile. That is torch's generator
of the kind without re-entrance, a private name as is that of the hooks which it sets: where one is absent,
and for all other kinds of call, `function` is torch's whole `checkpoint`, and no region is opened.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, noop_context_fn

from preheat.bridge.draws import Generating
from preheat.bridge.history import is_looking
from preheat.bridge.ops import private

CHECKPOINT = checkpoint
OPTIONS = frozenset((
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state"))
_generator = private("utils.checkpoint._checkpoint_without_reentrant_generator")
_top_hooks = private("_C._autograd._top_saved_tensors_default_hooks")
_CHECKS = ("default", "none")


class Region:
    """A checkpoint whose function is running. `keeps_random`: its backward draws the same numbers."""

    def __init__(self, steps: Iterator, keeps_random: bool):
        self.steps, self.keeps_random = steps, keeps_random
        self._saved: Callable[[torch.Tensor], None] | None = None
        self._hooks: torch.autograd.graph.saved_tensors_hooks | None = None

    def watch(self, saved: Callable[[torch.Tensor], None]) -> None:
        """Until it is closed, `saved` is told of each tensor that autograd saves, before torch's hook."""
        pack, unpack = _top_hooks(False)

        def told(tensor: torch.Tensor) -> Any:
            if self._saved is not None:
                self._saved(tensor)
            return pack(tensor)

        self._saved, self._hooks = saved, torch.autograd.graph.saved_tensors_hooks(told, unpack)
        self._hooks.__enter__()

    def unwatch(self) -> None:
        """`saved` is told no longer: torch's own hooks are the innermost again."""
        if self._hooks is not None:
            self._hooks.__exit__()
        self._saved = self._hooks = None


class _Again:
    """The function of a checkpoint, called by torch when it is needed again; whoever only looks at what
    autograd has saved is refused. `is_generating`: it has generated numbers again, see `draws.py`."""

    def __init__(self, function: Callable, is_generating: bool):
        self.function, self.is_generating = function, is_generating

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_looking():
            raise RuntimeError("what a checkpoint computes again is not looked at")
        with Generating() if self.is_generating else contextlib.nullcontext():
            return self.function(*args, **kwargs)


def whole_checkpoint(*args: Any, **kwargs: Any) -> Any:
    """torch's `checkpoint`, as a function that is not told apart from others."""
    return checkpoint(*args, **kwargs)


def open_checkpoint(
    args: tuple, kwargs: dict[str, Any], is_whole: bool = False, is_generating: bool = False,
) -> tuple[Callable, tuple, dict[str, Any], Region | None]:
    """For `checkpoint(*args, **kwargs)`: the function to call, its arguments, and the region within which
    that is, if it is one. `is_whole`: the call shall stay one of torch's; `is_generating`: random numbers
    are generated."""
    if is_whole or why_whole(args, kwargs):
        return whole_checkpoint, args, kwargs, None
    function, arguments = args[0], args[1:]
    named = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    if not torch.is_grad_enabled():
        return function, arguments, named, None
    keeps_random = bool(kwargs.get("preserve_rng_state", True))
    steps = _generator(
        _Again(function, is_generating), keeps_random, noop_context_fn,
        kwargs.get("determinism_check", "default"), False, kwargs.get("early_stop", True),
        *arguments, **named)
    next(steps)
    return function, arguments, named, Region(steps, keeps_random)


def close_checkpoint(region: Region, error: BaseException | None) -> None:
    """The function of `region` has given its result, or raised `error`, which goes on."""
    region.unwatch()
    if error is not None:
        region.steps.close()
    else:
        next(region.steps, None)


def why_whole(args: tuple, kwargs: Mapping[str, Any]) -> str:
    """Why a checkpoint that is called so cannot be a region, or ""."""
    if _generator is None or _top_hooks is None or not args:
        return "of a kind that is not known"
    if kwargs.get("use_reentrant") is not False:
        return "use_reentrant is not False"
    if kwargs.get("context_fn", noop_context_fn) is not noop_context_fn:
        return "it has a context_fn"
    if kwargs.get("debug", False) is not False or _setting("_checkpoint_debug_enabled"):
        return "it is debugged"
    if kwargs.get("early_stop", True) is not True or _setting("_enable_checkpoint_early_stop") is not None:
        return "whether it stops early is set"
    if kwargs.get("determinism_check", "default") not in _CHECKS:
        return "its determinism_check is not known"
    return ""


def _setting(name: str) -> Any:
    """A setting of the process for all checkpoints; None if it is not set."""
    return private(f"utils.checkpoint.{name}")
