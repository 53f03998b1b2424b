"""Names of importable objects, and back, without running any of the user's Python.

    name_of(torch.nn.Linear.forward) == ("torch.nn.modules.linear", "Linear.forward")
    find("torch.nn.modules.linear", "Linear.forward") is torch.nn.Linear.forward

A name is only given if `find` leads from it to the very same object, so a name is as good as the
object. `find` reads raw dictionaries: no descriptor, `__getattr__` or metaclass takes part, so the
last part may be a property or a classmethod as it stands in the class. The part `<type>` steps to
the class of a module: how to reach a class that hides behind an instance of itself in
`sys.modules`. `mro_of`, `raw_attribute`, `instance_dict`, `is_heap_type` and their like look at
classes and objects in the same way.
"""

import enum
import sys
import types
from collections.abc import Mapping
from typing import Any

_MRO = type.__dict__["__mro__"]
_NAMESPACE = type.__dict__["__dict__"]
_MODULE = type.__dict__["__module__"]
_FLAGS = type.__dict__["__flags__"]
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: heap types that C made, such as deque in 3.12
_NO_INSTANCES = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION: only C makes them
_METHOD_DESCRIPTOR = 1 << 17  # Py_TPFLAGS_METHOD_DESCRIPTOR
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the pointer to `__dict__` lies before the object
_MADE_BY = _HEAP_TYPE | _IMMUTABLE_TYPE | _NO_INSTANCES
_WORD = object.__basicsize__ // 2
_MISSING = object()
# Classes of C that do not stand where they say: frames and cells, iterators over lists and dicts.
# Both modules are there as soon as Python runs.
_ELSEWHERE = {
    value: (module, name) for module in ("_collections_abc", "types")
    for name, value in vars(sys.modules[module]).items() if isinstance(value, type)}


def find(module: str, qualname: str) -> object:
    """The object `qualname` of module `module`; "" is the module. Raises LookupError if absent."""
    here: object = sys.modules.get(module, _MISSING)
    if here is _MISSING:
        raise LookupError(f"module {module!r} is not imported")
    for part in qualname.split(".") if qualname else ():
        there = _step(here, part)
        if there is _MISSING:
            raise LookupError(f"{module}.{qualname}: no {part!r}")
        here = there
    return here


def name_of(value: object, *hints: tuple[str, str]) -> tuple[str, str] | None:
    """The (module, qualname) of `value`: what it claims, else one of `hints`; None if none leads
    to it."""
    for module, qualname in (*_guesses(value), *hints):
        if type(module) is not str or type(qualname) is not str or "<locals>" in qualname:
            continue
        try:
            if find(module, qualname) is value:
                return module, qualname
        except LookupError:
            continue
    return None


def mro_of(cls: type) -> tuple[type, ...]:
    """The classes that lookups on `cls` go through, whatever its metaclass says."""
    return _MRO.__get__(cls)


def is_heap_type(cls: type) -> bool:
    """Whether a class statement made `cls`: it can be changed, may hold Python dunders, and its
    instances can be given another class."""
    return bool(_FLAGS.__get__(cls) & _HEAP_TYPE)


def has_managed_dict(cls: type) -> bool:
    """Whether instances of `cls` have a `__dict__` that CPython makes when somebody asks for it."""
    return bool(_FLAGS.__get__(cls) & _MANAGED_DICT)


def c_base(cls: type) -> type:
    """The nearest class along the MRO of `cls` that no class statement made."""
    for base in _MRO.__get__(cls):
        if _FLAGS.__get__(base) & _MADE_BY != _HEAP_TYPE:
            return base
    raise LookupError(f"{cls!r} has no class of C among its bases")


def has_hidden_memory(cls: type, base: type) -> bool:
    """Whether instances of `cls` have memory beside that of `base`, their dict, their weak
    references and their slots: C keeps something there."""
    known = base.__basicsize__
    for own in _MRO.__get__(cls)[: _MRO.__get__(cls).index(base)]:
        members = _NAMESPACE.__get__(own).values()
        known += _WORD * sum(type(member) is types.MemberDescriptorType for member in members)
    for offset in ("__dictoffset__", "__weakrefoffset__"):
        known += _WORD * (getattr(cls, offset) > max(0, getattr(base, offset)))
    return cls.__basicsize__ - known >= _WORD and not base.__itemsize__


def is_function_type(kind: type) -> bool:
    """Whether objects of `kind` become methods where a class has them, as functions do: those of
    Python and C, and of what compiles to C with a type of its own (Cython)."""
    return bool(_FLAGS.__get__(kind) & _METHOD_DESCRIPTOR)


def instance_dict(value: object) -> Mapping[str, Any] | None:
    """The `__dict__` that C's own lookup finds (of a class, its read-only view); None if none."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def class_of(value: object) -> type:
    """`value` itself, if it is a class, else its class."""
    return value if issubclass(type(value), type) else type(value)


def raw_attribute(cls: type, name: str, default: object = None) -> object:
    """What lookup of `name` along the MRO of `cls` finds, no descriptor run; else `default`."""
    for base in _MRO.__get__(cls):
        namespace = _NAMESPACE.__get__(base)
        if name in namespace:
            return namespace[name]
    return default


def _step(here: object, part: str) -> object:
    if isinstance(here, types.ModuleType):
        if part == "<type>":
            return type(here)
        return object.__getattribute__(here, "__dict__").get(part, _MISSING)
    if isinstance(here, type):
        if issubclass(here, enum.Enum):
            member = raw_attribute(here, "_member_map_", {}).get(part, _MISSING)
            if member is not _MISSING:
                return member
        return raw_attribute(here, part, _MISSING)
    return _MISSING


def _guesses(value: object):
    """Names that `value` claims, most likely first. Reads C-level attributes only."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        yield object.__getattribute__(value, "__dict__").get("__name__"), ""
    elif isinstance(value, type):
        yield _module_of(value), value.__qualname__
        yield _ELSEWHERE.get(value, ("", ""))
        yield _module_of(value), "<type>"
    elif kind is types.FunctionType:
        yield value.__module__, value.__qualname__
    elif kind is types.BuiltinFunctionType:
        owner = value.__self__
        if isinstance(owner, types.ModuleType):
            yield owner.__name__, value.__name__
        elif isinstance(owner, type):
            yield _module_of(owner), f"{owner.__qualname__}.{value.__name__}"
        yield value.__module__, value.__name__
    elif kind in _DESCRIPTORS:
        owner = value.__objclass__
        yield _module_of(owner), f"{owner.__qualname__}.{value.__name__}"
        module, name = _ELSEWHERE.get(owner, ("", ""))
        yield module, f"{name}.{value.__name__}"
    elif is_function_type(kind):
        yield getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    elif isinstance(value, enum.Enum):
        name = (instance_dict(value) or {}).get("_name_")  # none while the member is being made
        yield _module_of(kind), f"{kind.__qualname__}.{name}"


def _module_of(cls: type) -> str:
    found = _MODULE.__get__(cls)
    return found if type(found) is str else ""


_DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType,
)
