"""Spoken tensors: where C makes text of a container, and asks a tensor in it what it holds.

    f"{ {'loss': loss} }"            tells((format), ({'loss': loss}, ""))   True: a host call, whose answer is the text
    ",".join(map(str, x))            makes_text(str)                         True: the machine calls it for each element

`Tensor.__repr__` takes every mode away while it reads the tensor, so no recorder sees that. What the program asks of a
tensor itself (`str(loss)`) is interpreted, down to a host call.
"""

import operator
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

from preheat.bridge.tensors import Tensor
from preheat.capture.sources import PRIMITIVES

_WALKED = (list, tuple, dict, set, frozenset)
_ITERATED = frozenset((*_WALKED, deque, type({}.keys()), type({}.values()), type({}.items())))
_MAKERS = (str, repr, ascii, format, operator.mod, operator.imod)
_TEXTS = (str, bytes, bytearray)
_DUNDERS = frozenset(("__repr__", "__str__", "__format__"))
MAX_DEPTH = 50


def makes_text(function: Any) -> bool:
    """Whether a function of C may make a text of what it is given."""
    if any(function is maker for maker in _MAKERS):
        return True
    kind = type(function)
    if kind is types.BuiltinFunctionType or kind is types.MethodWrapperType:
        owner = type(function.__self__)
    elif kind is types.MethodDescriptorType or kind is types.WrapperDescriptorType:
        owner = function.__objclass__
    else:
        return False
    return issubclass(owner, _TEXTS) or function.__name__ in _DUNDERS


def tells(function: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the call makes a text in which a tensor may be."""
    if not makes_text(function):
        return False
    if (function is operator.mod or function is operator.imod) and not issubclass(type(args[0]), _TEXTS):
        return False
    return holds_tensor((getattr(function, "__self__", None), *args, *kwargs.values()))


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Whether a tensor is in `value`, which C looks at deeply."""
    kind = type(value)
    if kind in PRIMITIVES:
        return False
    if issubclass(kind, Tensor) or kind is types.MappingProxyType or depth > MAX_DEPTH:
        return True
    return any(holds_tensor(part, depth + 1) for part in parts_of(value))


def parts_of(value: Any) -> Iterable[Any]:
    """What is in a value of C, whatever a subclass overrides; nothing, if that is not known."""
    kind = type(value)
    if issubclass(kind, dict):
        return (*dict.keys(value), *dict.values(value))
    base = next((base for base in _WALKED if issubclass(kind, base)), kind)
    if base is not kind or kind in _ITERATED:
        return tuple(base.__iter__(value))
    if issubclass(kind, BaseException):
        return value.args
    if kind is slice:
        return value.start, value.stop, value.step
    return value.__args__ if kind is types.GenericAlias else ()
