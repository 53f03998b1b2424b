"""Signatures: which arguments a callable has, by name.

    signature_of(model)                        <Signature (ids, mask=None)>, that of its forward
    check_arguments(signature, ["idx"])        UserError: there is no argument 'idx': did you mean 'ids'?
"""

import inspect
import types
from collections.abc import Iterable
from typing import Any

from preheat.base.errors import UserError, nearest


def signature_of(target: Any) -> inspect.Signature:
    """The signature of a callable, of a module that of its forward. Raises UserError for what has none."""
    try:
        return inspect.signature(getattr(target, "forward", target))
    except (TypeError, ValueError) as error:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        raise UserError(
            f"{name} says no names of its arguments ({error}): wrap it in a function that has them, "
            f"such as `lambda x: {name}(x)`") from error


def rest_of(target: Any) -> int:
    """How many positional arguments of a call of `target` come before its `*args`: none, of a module or
    another object that can be called; -1: it has no such."""
    function = getattr(target, "__func__", target)
    is_object = type(function) is not types.FunctionType
    if is_object:
        function = getattr(type(target), "forward", None) or getattr(type(target), "__call__", None)
    if type(function) is not types.FunctionType or not function.__code__.co_flags & inspect.CO_VARARGS:
        return -1
    return 0 if is_object else max(0, function.__code__.co_argcount - (function is not target))


def check_arguments(signature: inspect.Signature, names: Iterable[str]) -> None:
    """Raises UserError for a name that is no argument, with the nearest that is one."""
    for name in names:
        if name not in signature.parameters:
            raise UserError(f"there is no argument {name!r}: {nearest(name, signature.parameters)}")
