"""Attributes: reading, writing and deleting `o.name`, properties and dunders interpreted.

    load(m, layer, "weight")      ->  the tensor; tells read_class(Linear, "weight", ABSENT) and
                                      read_attribute(layer, layer.__dict__, "weight", tensor)
    load(m, layer, "area")        ->  Frame(area's getter)         for a Python property

The order of the search is `object.__getattribute__`'s (data descriptor, instance dict, class
attribute, `__getattr__`), `type.__getattribute__`'s for classes, and so on; each step is told
before the value is seen. Classes of C that search as `object` does have slots of their own for it:
`common` knows them. What has another `__getattribute__` of C (threading.local, weakref.proxy) is read
by C: a member of the class is told, anything else is a call of C. Source: CPython
`Objects/object.c` `_PyObject_GenericGetAttrWithDict`, `Objects/typeobject.c` `type_getattro`.
"""

import types
from types import FunctionType, MethodType
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import mro_of
from preheat.capture.calls import c_call, invoke
from preheat.capture.classes import OF_OBJECT, common
from preheat.capture.frames import Frame, and_then
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is

OBJECT_GET, OBJECT_SET, OBJECT_DELETE = OF_OBJECT.values()
TYPE_SET, TYPE_DELETE = type.__dict__["__setattr__"], type.__dict__["__delattr__"]
PROPERTY_GET, PROPERTY_SET = property.__dict__["__get__"], property.__dict__["__set__"]
PROPERTY_DELETE = property.__dict__["__delete__"]
C_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
BOUND_ON_READ = frozenset(
    (
        types.BuiltinFunctionType,
        types.MethodWrapperType,
        MethodType,
    )
)  # fresh objects that C makes on every read


def load(m, owner: Any, name: str) -> Any:
    """`owner.name`, or the frame that gives it."""
    cls = type(owner)
    view = m.views.get(identity(cls))
    if view is None or view.tag.value != view.version:
        view = m.view(cls)
    getter = view.getattribute
    try:
        if name in view.by_c and identity(owner) not in m.known:
            value = OBJECT_GET(owner, name)
            if m.born is not None and type(value) in BOUND_ON_READ:
                m.born(value, "method")
            return value if not m.numbers else seen_size(m, owner, name, value)
        search = SEARCHES.get(getter)
        if search is not None:
            value = search(m, owner, cls, name)
            if value is ABSENT and m.lookup(owner, cls, "__getattr__") is ABSENT:
                value = OBJECT_GET(owner, name)  # raises the error that C raises
        elif is_own_slot(getter, "__getattribute__"):
            value = load_hidden(m, owner, cls, name)
        else:
            value = call_hook(m, getter, owner, cls, name)
    except AttributeError as error:
        hook = m.lookup(owner, cls, "__getattr__")
        if hook is ABSENT:
            if error.name is None and error.obj is None:
                error.name, error.obj = name, owner
            raise
    else:
        if type(value) is Frame:
            return and_then(value, None, on_missing, (owner, cls, name))
        if value is not ABSENT:
            return value
        hook = m.lookup(owner, cls, "__getattr__")
    value = call_hook(m, hook, owner, cls, name)
    return and_then(value, None, name_attribute, (owner, cls, name))


def on_missing(m, place: tuple, error: BaseException) -> Any:
    """After a Python getter raised: AttributeError means that `__getattr__` is asked."""
    owner, cls, name = place
    hook = m.lookup(owner, cls, "__getattr__")
    if hook is ABSENT or not isinstance(error, AttributeError):
        name_attribute(m, place, error)
    return and_then(call_hook(m, hook, owner, cls, name), None, name_attribute, place)


def name_attribute(m, place: tuple, error: BaseException) -> Any:
    """Raises `error`; an AttributeError learns which attribute of what is missing, as in C."""
    owner, _, name = place
    if isinstance(error, AttributeError) and error.name is None and error.obj is None:
        error.name, error.obj = name, owner
    raise_as_is(error)


def call_hook(m, hook: Any, owner: Any, cls: type, *args: Any) -> Any:
    """A class's `__getattr__` or its like, bound by its own descriptor where it is no plain
    function.
    """
    if type(hook) is FunctionType:
        return invoke(m, hook, (owner, *args))
    getter = m.lookup(hook, type(hook), "__get__")
    return invoke(m, hook if getter is ABSENT else hook.__get__(owner, cls), args)


def is_own_slot(hook: Any, name: str) -> bool:
    """Whether `hook` is what a class of C has under `name` itself, and not another function that a
    class statement put there."""
    return type(hook) is types.WrapperDescriptorType and hook.__name__ == name


def load_generic(m, owner: Any, cls: type, name: str) -> Any:
    """The search of `object.__getattribute__`: data descriptor, instance dict, class attribute.

    ABSENT when all three lack the name.
    """
    raw = m.lookup(owner, cls, name)
    kind, getter = type(raw), ABSENT
    if raw is not ABSENT and kind is not FunctionType:
        if kind in C_MEMBERS:
            mark_by_c(m, cls, name)
            return load_member(m, owner, cls, name)
        getter = m.lookup(raw, kind, "__get__")
        if getter is not ABSENT and is_data_descriptor(m, raw, kind):
            return load_data(m, owner, cls, name, raw, getter)
    is_known = identity(owner) in m.known
    if is_known or raw is ABSENT or is_python(getter):
        namespace = instance_dict(m, owner, cls)
        if namespace is not None:
            value = namespace.get(name, ABSENT)
            if value is not ABSENT:
                if is_known and m.read_attribute is not None:
                    other = m.read_attribute(owner, namespace, name, value)
                    return value if other is None else other
                return value
            if is_known and m.miss_attribute is not None:
                m.miss_attribute(owner, namespace, name)
        if raw is ABSENT:  # classes of C may keep a dict that has no getset
            return load_member(m, owner, cls, name) if namespace is None else ABSENT
        if is_python(getter):
            return invoke(m, getter, (raw, owner, cls))
    other = number_of_class(m, cls, name, kind)
    if other is not None:
        return other
    if kind is FunctionType or not m.view(kind).is_heap:
        mark_by_c(m, cls, name)
    value = OBJECT_GET(owner, name)
    if m.born is not None and type(value) in BOUND_ON_READ:
        m.born(value, "method")
    return value


def number_of_class(m, cls: type, name: str, kind: type) -> Any:
    """What the program shall see for an int or float found on `cls`, None where that is the object itself."""
    return m.observer.class_number(cls, name) if m.numbers and (kind is int or kind is float) else None


def mark_by_c(m, cls: type, name: str) -> None:
    """Notes that C alone reads `name` of instances of `cls`, unless they search in another way."""
    view = m.view(cls)
    if view.getattribute is OBJECT_GET:
        view.by_c.add(name)


def load_data(m, owner: Any, cls: type, name: str, raw: Any, getter: Any) -> Any:
    """A data descriptor found on the class: a property, a Python descriptor, or one of C."""
    if getter is PROPERTY_GET and raw.fget is not None:
        return invoke(m, raw.fget, (owner,))
    if is_python(getter):
        return invoke(m, getter, (raw, owner, cls))
    return load_member(m, owner, cls, name)


def load_member(m, owner: Any, cls: type, name: str) -> Any:
    """An attribute that C reads, by the class's own `__getattribute__`."""
    try:
        value = m.view(cls).getattribute(owner, name)
    except AttributeError:
        if m.miss_member is not None and identity(owner) in m.known:
            m.miss_member(owner, name)
        raise
    if m.c_call is not None and m.observer.is_opaque_member(owner, name, value):
        return c_call(m, getattr, (owner, name), None)
    if type(value) in BOUND_ON_READ:
        if m.born is not None:
            m.born(value, "method")
    elif m.read_member is not None and identity(owner) in m.known:
        other = m.read_member(owner, name, value)
        return value if other is None else other
    return value if not m.numbers else seen_size(m, owner, name, value)


def load_hidden(m, owner: Any, cls: type, name: str) -> Any:
    """An attribute that C searches in a way of its own (threading.local, weakref.proxy): a guard can
    ask for what a member of the class gives, anything else is a call of C on every run.
    """
    is_member = type(m.lookup(owner, cls, name)) in C_MEMBERS and name != "__dict__"
    if is_member or not is_hidden(m, owner):
        return load_member(m, owner, cls, name)
    return c_call(m, getattr, (owner, name), None)


def is_hidden(m, owner: Any) -> bool:
    """Whether an attribute of `owner`, which C keeps in a way of its own, is a call of C."""
    return m.c_call is not None and (identity(owner) in m.known or m.observer.has_answer())


def seen_size(m, owner: Any, name: str, value: Any) -> Any:
    """`value`, an attribute that C has read, as the observer wants it seen."""
    other = m.read_size(owner, name) if m.read_size is not None else None
    return value if other is None else other


def load_of_module(m, owner: Any, cls: type, name: str) -> Any:
    """A module's attribute: data descriptors of its class, its dict, its own `__getattr__`."""
    raw = m.lookup(owner, cls, name)
    if raw is not ABSENT and is_data_descriptor(m, raw, type(raw)):
        return load_data(m, owner, cls, name, raw, m.lookup(raw, type(raw), "__get__"))
    namespace = types.ModuleType.__dict__["__dict__"].__get__(owner)
    value = namespace.get(name, ABSENT)
    is_known = identity(owner) in m.known
    if value is not ABSENT:
        if is_known and m.read_attribute is not None:
            other = m.read_attribute(owner, namespace, name, value)
            return value if other is None else other
        return value
    if is_known and m.miss_attribute is not None:
        m.miss_attribute(owner, namespace, name)
    hook = namespace.get("__getattr__", ABSENT)
    if raw is ABSENT and type(hook) is FunctionType:
        return invoke(m, hook, (name,))
    return load_member(m, owner, cls, name)


def load_of_class(m, owner: type, cls: type, name: str) -> Any:
    """A class's attribute: data descriptors of the metaclass, its own MRO, then the metaclass."""
    meta = m.lookup(owner, cls, name)
    meta_getter = m.lookup(meta, type(meta), "__get__") if meta is not ABSENT else ABSENT
    if meta_getter is not ABSENT and is_data_descriptor(m, meta, type(meta)):
        return load_data(m, owner, cls, name, meta, meta_getter)
    raw = m.lookup(owner, owner, name)
    if raw is not ABSENT:
        kind = type(raw)
        if kind is FunctionType:
            return raw
        getter = m.lookup(raw, kind, "__get__")
        if is_python(getter):
            return invoke(m, getter, (raw, None, owner))
        value = type.__getattribute__(owner, name)
        if m.born is not None and value is not raw:
            m.born(value, "method")
        other = number_of_class(m, owner, name, kind)
        return value if other is None else other
    if type(meta) is not FunctionType and is_python(meta_getter):
        return invoke(m, meta_getter, (meta, owner, cls))
    return load_member(m, owner, cls, name)


def load_of_method(m, owner: MethodType, cls: type, name: str) -> Any:
    """An attribute of a bound method: one of its own, or one of its function."""
    if m.lookup(owner, cls, name) is not ABSENT:
        return load_member(m, owner, cls, name)
    return load(m, load_member(m, owner, cls, "__func__"), name)


def load_of_super(m, owner: super, cls: type, name: str) -> Any:
    """An attribute of a `super` object: the MRO of its instance's class, behind the class named."""
    after, start, instance = owner.__thisclass__, owner.__self_class__, owner.__self__
    if start is None or name == "__class__" or cls is not super:
        return load_member(m, owner, cls, name)
    mro = mro_of(start)
    raw = ABSENT
    for base in mro[mro.index(after) + 1 :]:
        raw = type.__dict__["__dict__"].__get__(base).get(name, ABSENT)
        if raw is not ABSENT:
            break
    if m.read_super is not None:
        m.read_super(instance, start, after, name, raw)
    if raw is ABSENT:
        return load_member(m, owner, cls, name)
    if type(raw) is not FunctionType:
        getter = m.lookup(raw, type(raw), "__get__")
        bound_to = None if instance is start else instance
        if getter is PROPERTY_GET and raw.fget is not None and bound_to is not None:
            return invoke(m, raw.fget, (instance,))
        if is_python(getter):
            return invoke(m, getter, (raw, bound_to, start))
    value = getattr(owner, name)
    if m.born is not None and value is not raw:
        m.born(value, "method")
    return value


SEARCHES = {
    OBJECT_GET: load_generic,
    types.ModuleType.__dict__["__getattribute__"]: load_of_module,
    type.__dict__["__getattribute__"]: load_of_class,
    super.__dict__["__getattribute__"]: load_of_super,
    MethodType.__dict__["__getattribute__"]: load_of_method,
}


def load_method(m, owner: Any, name: str) -> Any:
    """`owner.name` about to be called: a pair (function, owner) where binding can be left out."""
    cls = type(owner)
    view = m.view(cls)
    if view.getattribute is OBJECT_GET:
        raw = m.lookup(owner, cls, name)
        if type(raw) is FunctionType:
            if identity(owner) not in m.known:
                namespace = instance_dict(m, owner, cls)
                if namespace is None or name not in namespace:
                    return Method(raw, owner)
            else:
                namespace = instance_dict(m, owner, cls)
                if namespace is None:
                    return Method(raw, owner)
                if name not in namespace:
                    if m.miss_attribute is not None:
                        m.miss_attribute(owner, namespace, name)
                    return Method(raw, owner)
    return load(m, owner, name)


class Method:
    """A function and its first argument, on the machine's stack as two entries."""

    __slots__ = ("function", "owner")

    def __init__(self, function: FunctionType, owner: Any):
        self.function, self.owner = function, owner


# ------------------------------------------------------------------------- writing and deleting
def store(m, owner: Any, name: str, value: Any) -> Any:
    """`owner.name = value`: None, or the frame of a Python setter."""
    cls = type(owner)
    setter = m.lookup(owner, cls, "__setattr__")
    if type(setter) is FunctionType:
        return invoke(m, setter, (owner, name, value))
    if setter is TYPE_SET or common(setter) is OBJECT_SET:
        return store_plain(m, owner, name, value)
    if not is_own_slot(setter, "__setattr__"):
        return call_hook(m, setter, owner, cls, name, value)
    if is_hidden(m, owner):
        return c_call(m, setattr, (owner, name, value), None)
    if m.write_attribute is not None:
        m.write_attribute(owner, name, value)
    return setattr(owner, name, value)


def store_plain(m, owner: Any, name: str, value: Any) -> Any:
    """What `object.__setattr__(owner, name, value)` does, and its kin for classes and modules."""
    cls = type(owner)
    raw = m.lookup(owner, cls, name) if type(name) is str else ABSENT
    if raw is not ABSENT and type(raw) is not FunctionType:
        setter = m.lookup(raw, type(raw), "__set__")
        if setter is PROPERTY_SET and raw.fset is not None:
            return invoke(m, raw.fset, (owner, value))
        if is_python(setter):
            return invoke(m, setter, (raw, owner, value))
    if name == "__dict__" and is_hidden(m, owner):
        return c_call(m, setattr, (owner, name, value), None)  # all attributes are others now
    if m.write_attribute is not None:
        m.write_attribute(owner, name, value)
    if issubclass(cls, type):
        TYPE_SET(owner, name, value)
    else:
        OBJECT_SET(owner, name, value)
    return None


def delete(m, owner: Any, name: str) -> Any:
    """`del owner.name`: None, or the frame of a Python deleter."""
    deleter = m.lookup(owner, type(owner), "__delattr__")
    if type(deleter) is FunctionType:
        return invoke(m, deleter, (owner, name))
    if deleter is TYPE_DELETE or common(deleter) is OBJECT_DELETE:
        return delete_plain(m, owner, name)
    if not is_own_slot(deleter, "__delattr__"):
        return call_hook(m, deleter, owner, type(owner), name)
    if is_hidden(m, owner):
        return c_call(m, delattr, (owner, name), None)
    if m.delete_attribute is not None:
        m.delete_attribute(owner, name)
    return delattr(owner, name)


def delete_plain(m, owner: Any, name: str) -> Any:
    """What `object.__delattr__(owner, name)` does."""
    cls = type(owner)
    raw = m.lookup(owner, cls, name) if type(name) is str else ABSENT
    if raw is not ABSENT and type(raw) is not FunctionType:
        deleter = m.lookup(raw, type(raw), "__delete__")
        if deleter is PROPERTY_DELETE and raw.fdel is not None:
            return invoke(m, raw.fdel, (owner,))
        if is_python(deleter):
            return invoke(m, deleter, (raw, owner))
    if name == "__dict__" and is_hidden(m, owner):
        return c_call(m, delattr, (owner, name), None)
    if m.delete_attribute is not None:
        m.delete_attribute(owner, name)
    if issubclass(cls, type):
        TYPE_DELETE(owner, name)
    else:
        OBJECT_DELETE(owner, name)
    return None


# ------------------------------------------------------------------------ descriptors and dicts
def is_python(function: Any) -> bool:
    """A dunder that runs Python: a function, not a slot of C, not ABSENT."""
    return type(function) is FunctionType


def is_data_descriptor(m, raw: Any, kind: type) -> bool:
    return (
        m.lookup(raw, kind, "__set__") is not ABSENT
        or m.lookup(raw, kind, "__delete__") is not ABSENT
    )


def instance_dict(m, owner: Any, cls: type) -> dict | None:
    """The instance dict, or None: by the C descriptor of the class, never by a Python
    `__dict__` property.
    """
    raw = m.lookup(owner, cls, "__dict__")
    return raw.__get__(owner, cls) if type(raw) in C_MEMBERS else None
