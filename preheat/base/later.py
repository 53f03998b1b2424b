"""Modules that load when a name of theirs is first used, not with those that may need them.

    tuning = later("preheat.tuning")      `tuning.tuned(...)` loads it

A cold first call of a CPU loads no generator for GPUs, nothing of backwards and of sizes that change:
a sixth of all code. A module is named so where it is needed by some programs only.

Guarantees: no matter how often and from which threads it is asked for, it loads once. A name stands
for what the module has under it now.
"""

import importlib
from typing import Any

from preheat.base.collector import paused_collector


class Later:
    """A module by its name; its attributes are those of the module."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks any object for
            raise AttributeError(name)
        with paused_collector(is_lasting=True):
            return getattr(importlib.import_module(self._module), name)


def later(module: str) -> Any:
    """The module named `module`, which loads when it is first looked at."""
    return Later(module)
