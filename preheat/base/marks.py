"""Marks on functions, and whether this code is being captured.

    @preheat.disable              f.__preheat_disable__ is True: capture calls f natively
    torch.compiler.disable(f)     sets the mark of torch's own; it means the same to us
    torch.compile(f)              is called natively, and compiled as `f` itself
    preheat.compile(f)            wrapper.__preheat__ is the Compiled; capture enters its `.target`

Marks are read from the object's own `__dict__`, so that no user code runs and a class does not
pass its mark on to its instances. Capture treats `is_compiling` as the constant True.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from preheat.base.names import instance_dict

DISABLE = "__preheat_disable__"
COMPILED = "__preheat__"
_OF_TORCH = "_torchdynamo_disable"
_ORIGINAL_OF_TORCH, _MODULE_OF_TORCH = "_torchdynamo_orig_callable", "_orig_mod"
_DISABLING = (DISABLE, _OF_TORCH)

_is_capturing: ContextVar[bool] = ContextVar("preheat_is_capturing", default=False)


def is_disabled(fn: Any) -> bool:
    """Whether `fn` (a function, or the function of a bound method) must not be captured."""
    own = instance_dict(getattr(fn, "__func__", fn)) or {}
    return any(own.get(mark) is True for mark in _DISABLING)


def set_disabled_for_torch(fn: Any) -> None:
    """torch.compile does not look into `fn`."""
    setattr(fn, _OF_TORCH, True)


def compiled_by_torch(fn: Any) -> Any:
    """What torch.compile made the function or module `fn` from; None for any other, and for what
    torch.compiler.disable made."""
    own = instance_dict(fn) or {}
    if is_disabled(fn) or _ORIGINAL_OF_TORCH not in own:
        return None
    return own.get("_modules", {}).get(_MODULE_OF_TORCH, own[_ORIGINAL_OF_TORCH])


def compiled_of(fn: Any) -> Any:
    """The `Compiled` behind a function that `preheat.compile` returned, or None."""
    return (instance_dict(fn) or {}).get(COMPILED)


def is_compiling() -> bool:
    """Whether the caller is being captured right now (replayed code never asks again)."""
    return _is_capturing.get()


@contextlib.contextmanager
def capturing(value: bool = True) -> Iterator[None]:
    """In this block, and in this thread only, `is_compiling()` is `value`."""
    token = _is_capturing.set(value)
    try:
        yield
    finally:
        _is_capturing.reset(token)
