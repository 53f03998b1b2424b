"""The table of models: what the machine does instead of calling a C function.

    @models(len)
    def model_len(m, args, kwargs): ...             gives a value, or a frame that gives it

    @method("get", dict)
    def model_get(m, function, owner, args, kwargs): ...

Functions get a model when they call back into Python (`builtins.py`) or look at the caller's frame
(`introspection.py`). A call that does not fit a model's shape goes to C, which raises its own
error.
"""

from collections.abc import Callable
from typing import Any

MODELS: dict[Any, Any] = {}


def models(*functions: Any) -> Callable:
    """Registers the function below as the model of `functions`."""

    def register(model: Callable) -> Callable:
        for function in functions:
            MODELS[function] = model
        return model

    return register


def method(name: str, cls: type) -> Callable:
    """Registers the function below as the model of method `name` of `cls`."""

    def register(model: Callable) -> Callable:
        MODELS.setdefault(name, []).append((cls, model))
        return model

    return register
