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
}
_FAMILIES = {"preheat.given_": "numbered", "preheat.counted_": "integers"}  # by how their names begin
_LIBRARY = torch.library.Library("preheat", "DEF")
_LOCK = Lock()
_registered: set[str] = set()


def register(name: str) -> None:
    """The operator `name` is one of torch's from now on, if it is one of ours."""
    with _LOCK:
        if name in _registered:
            return
        module = importlib.import_module(f"preheat.bridge.{_module_of(name)}")
        make = module.OPERATORS.get(name)
        if make is None:
            return
        made, short = make(), name.split(".")[1]
        _LIBRARY.define(made.schema, tags=made.tags)
        _LIBRARY.impl(short, made.function, made.key)
        if made.autograd is not None:
            _LIBRARY.impl(short, made.autograd, "Autograd")
        _registered.add(name)


def _module_of(name: str) -> str:
    family = next((module for start, module in _FAMILIES.items() if name.startswith(start)), "regions")
    return _MODULES.get(name, family)
