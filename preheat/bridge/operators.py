"""Operators of our own in torch's library "preheat": each is registered when it is first asked for.

    register("preheat.uniform.default")          by `ops.overload`, so graphs and code name it as any other

A module has its own in `OPERATORS`, by name, each a function that gives the `Operator`: a process that
uses none registers none, nor imports what they are made of.
"""

import importlib
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import torch


class Operator(NamedTuple):
    """schema: without the library's name; key: where torch dispatches to `function`; autograd: what autograd does."""

    schema: str
    function: Callable
    key: str = "CompositeExplicitAutograd"
    tags: tuple[torch.Tag, ...] = ()
    autograd: Callable | None = None


_MODULES = {
    "preheat.uniform.default": "uniform",
    "preheat.recurrent.default": "recurrent", "preheat.recurrent_backward.default": "recurrent",
    "preheat.steps.default": "steps", "preheat.steps_backward.default": "steps",
    "preheat.made.default": "factories",
    **{f"preheat.given_{name}.default": "numbered" for name in (
        "native_layer_norm", "native_batch_norm", "native_group_norm", "huber_loss", "smooth_l1_loss", "bernoulli_",
        "nan_to_num", "logit", "_scaled_dot_product_flash_attention_for_cpu",
        "native_batch_norm_backward", "huber_loss_backward", "smooth_l1_loss_backward", "logit_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward")},
    **{f"preheat.counted_{name}.default": "integers" for name in (
        "max_pool2d_with_indices", "avg_pool2d", "adaptive_max_pool2d", "im2col", "polygamma", "round", "unfold",
        "histc", *(f"{start}{axes}d" for start, most in (
            ("upsample_nearest", 3), ("_upsample_nearest_exact", 3)) for axes in range(1, most + 1)), "upsample_linear1d",
        "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa")},
}
_LIBRARY = torch.library.Library("preheat", "DEF")
_LOCK = Lock()
_registered: set[str] = set()


def register(name: str) -> None:
    """The operator `name` is one of torch's from now on, if it is one of ours."""
    with _LOCK:
        if name in _registered:
            return
        module = importlib.import_module(f"preheat.bridge.{_MODULES.get(name, 'regions')}")
        make = module.OPERATORS.get(name)
        if make is None:
            return
        made, short = make(), name.split(".")[1]
        _LIBRARY.define(made.schema, tags=made.tags)
        _LIBRARY.impl(short, made.function, made.key)
        if made.autograd is not None:
            _LIBRARY.impl(short, made.autograd, "Autograd")
        _registered.add(name)
