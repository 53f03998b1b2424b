"""The compiled module: an instance of the model's own class that shares the model's `__dict__`.

    compiled = preheat.compile(model)
    isinstance(compiled, type(model))                         True
    compiled.state_dict().keys() == model.state_dict().keys() True, no prefix
    compiled.eval(); model.training                           False: one state, two objects

A call of the compiled module runs the compiled `model(...)`, hooks included. All else (parameters,
`train`, `to`, hooks, user's methods) is inherited and works on the shared state. Since the model's
own methods and `super()` run with the model as `self`, nothing in them can tell. The state cannot
hold the compiled code (it belongs to the model), so that lives in slots of the proxy.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from preheat.base import marks
from preheat.base.callers import leaves_us
from preheat.base.errors import UserError


class CompiledModule:
    """What every compiled module is, besides an instance of its model's class."""

    # Slots, since the instance's `__dict__` is the model's.
    __slots__ = (
        "_preheat_model",
        "_preheat_settings",
        "_preheat_make",
        "_preheat_call",
        "_preheat_forward",
    )

    def __init_subclass__(cls) -> None:
        """The model's own `__init_subclass__` may register models; a proxy is none: not told."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._preheat_call(*args, **kwargs)
        except BaseException as error:
            leaves_us(error)
            raise

    def __copy__(self) -> Any:
        return compiled_module(
            copy.copy(self._preheat_model), self._preheat_settings, self._preheat_make
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model = copy.deepcopy(self._preheat_model, memo)
        return compiled_module(model, copy.deepcopy(self._preheat_settings), self._preheat_make)

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Pickled as the model and the settings; loading compiles anew."""
        return _load, (self._preheat_model, self._preheat_settings, self._preheat_make)

    def original(self) -> Any:
        """The model that was compiled (call as `CompiledModule.original(compiled)`)."""
        return self._preheat_model

    def holders(self) -> tuple[Any, ...]:
        """What calls of the module, and of its `forward`, go to."""
        return self._preheat_call, self._preheat_forward

    def settings(self) -> dict[str, Any]:
        """How it was asked to be compiled."""
        return self._preheat_settings


def compiled_module(
    model: Any, settings: dict[str, Any], make: Callable[[Callable, dict], Any]
) -> Any:
    """A module that shares all state of `model` and is called through `make(model, settings)`.

    `make` is an importable function, since it is pickled by name.
    """
    proxy = object.__new__(_proxy_class(type(model)))
    object.__setattr__(proxy, "__dict__", model.__dict__)
    object.__setattr__(proxy, "_preheat_model", model)
    object.__setattr__(proxy, "_preheat_settings", settings)
    object.__setattr__(proxy, "_preheat_make", make)
    object.__setattr__(proxy, "_preheat_call", make(model, settings))
    object.__setattr__(proxy, "_preheat_forward", None)
    return proxy


def _load(model: Any, settings: dict[str, Any], make: Callable[[Callable, dict], Any]) -> Any:
    return compiled_module(model, settings, make)


def _proxy_class(cls: type) -> type:
    """A subclass of `cls` with the same names, so that `repr` and messages read as the model's."""
    body = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(_class_of, _set_class),
    }
    forward = getattr(cls, "forward", None)
    if forward is not None:
        body["forward"] = _forward_of(forward)
    try:
        return type(cls)(cls.__name__, (CompiledModule, cls), body)
    except TypeError as error:
        raise UserError(
            f"cannot compile a {cls.__qualname__} as a module ({error}): two objects cannot share "
            f"what its class keeps outside __dict__ (__slots__); compile its forward method instead"
        ) from error


def _class_of(self: Any) -> type:
    """`compiled.__class__` is the model's, so `super(self.__class__, self)` finds its parent."""
    return type(self._preheat_model)


def _set_class(self: Any, cls: type) -> None:
    """Changing the class (parametrizations do) changes the model's, and the proxy's with it."""
    self._preheat_model.__class__ = cls
    object.__dict__["__class__"].__set__(self, _proxy_class(cls))  # past the property above


def _forward_of(forward: Callable) -> Callable:
    """`compiled.forward(x)`: the compiled forward, without the model's hooks, as in eager."""

    @functools.wraps(forward)
    def compiled_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = self._preheat_forward
        if call is None:
            call = self._preheat_make(self._preheat_model.forward, self._preheat_settings)
            object.__setattr__(self, "_preheat_forward", call)
        return call(*args, **kwargs)

    compiled_forward.__dict__.pop(marks.COMPILED, None)
    return compiled_forward
