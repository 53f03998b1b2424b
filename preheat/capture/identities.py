"""Identities: which objects are pinned by being themselves, and not by what is in them.

    has_identity(torch.float32, torch.dtype)    True: a class, a function, a module, a dtype, an enum member
"""

import enum
import functools
import types
from typing import Any

from preheat.base.names import is_function_type
from preheat.bridge.calls import IDENTITY_TYPES
from preheat.capture.policies import is_bound

_ALWAYS_ONE = frozenset((
    type, types.FunctionType, types.ModuleType, property, classmethod, staticmethod,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType, functools._lru_cache_wrapper,
    *IDENTITY_TYPES,
))


def has_identity(value: Any, kind: type) -> bool:
    """Whether `value` is pinned by being itself: a class, function, dtype, enum member, ..."""
    if kind is types.BuiltinFunctionType:
        return not is_bound(value)
    return _has_identity(kind)


@functools.lru_cache(maxsize=None)
def _has_identity(kind: type) -> bool:
    return kind in _ALWAYS_ONE or is_function_type(kind) or issubclass(
        kind, (type, enum.Enum, types.ModuleType))
