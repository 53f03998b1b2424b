"""Calls: what `callable(*args, **kwargs)` does, down to a frame to run or the result of a C call.

    invoke(m, Linear.forward, (layer, x))    ->  Frame(forward)            to be run by the loop
    invoke(m, math.sqrt, (4.0,))             ->  2.0                       through observer.c_call
    invoke(m, Point, (1, 2))                 ->  Frame(Point.__init__)     gives the instance

Python functions become frames; methods, partials, classes with Python `__new__` or `__init__` and
objects with a Python `__call__` are taken apart first. Builtins that look at frames or call back
have a model (`builtins.py`). Guarantees that the TypeError of a call that does not fit its
signature is CPython's own: the call is then made natively, and fails before the body runs.
"""

import functools
import types
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from preheat.base.identity import identity
from preheat.capture import polyfills
from preheat.capture.bytecode import VARARGS, VARKEYWORDS, Code
from preheat.capture.classes import common
from preheat.capture.frames import NULL, Frame, and_then
from preheat.capture.observer import ABSENT

BuiltinFunctionType = types.BuiltinFunctionType
TYPE_CALL = type.__dict__["__call__"]
OBJECT_NEW, OBJECT_INIT = object.__new__, object.__init__
PARTIAL_CALL = functools.partial.__dict__["__call__"]
C_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType)
MUTATORS = {
    list: "append extend insert remove pop clear sort reverse "
    "__setitem__ __delitem__ __iadd__ __imul__ __init__",
    dict: "update pop popitem setdefault clear __setitem__ __delitem__ __ior__ __init__",
    set: "add discard remove pop clear update difference_update intersection_update "
    "symmetric_difference_update __ior__ __iand__ __isub__ __ixor__ __init__",
    bytearray: "append extend insert remove pop clear reverse __setitem__ __delitem__ __iadd__",
}
MUTATORS = {cls: frozenset(names.split()) for cls, names in MUTATORS.items()}
MODELLED = frozenset(((list, "sort"), (dict, "__setitem__"), (dict, "__delitem__")))  # of these, what has a model


def invoke(m, function: Any, args: tuple | list, kwargs: dict | None = None) -> Any:
    """The result of the call, or the frame that gives it."""
    while True:
        cls = type(function)
        if cls is FunctionType:
            return enter(m, function, args, kwargs)
        if cls is MethodType:
            args, function = (function.__self__, *args), function.__func__
            continue
        step = UNWRAP.get(cls)
        if step is not None:
            return step(m, function, args, kwargs)
        if issubclass(cls, type):
            return invoke_class(m, function, args, kwargs)
        raw = m.lookup(function, cls, "__call__")
        if type(raw) is FunctionType:
            args, function = (function, *args), raw
            continue
        if raw is PARTIAL_CALL:
            if m.known:
                tell_partial(m, function)
            kwargs = {**function.keywords, **(kwargs or {})}
            args, function = (*function.args, *args), function.func
            continue
        if type(raw) in OTHER_CALLABLES:
            bound = bind_special(m, raw, function, cls)
            if bound is not function:
                function = bound
                continue
        return c_call(m, function, args, kwargs)


def spread(m, function: Any, args: tuple, rest: tuple, kwargs: dict) -> Any:
    """`function(*args, *rest, **kwargs)`, where `rest` is known and may have any length: what the function
    takes as its own `*args` is that very tuple, or one that operations of C make of it."""
    while type(function) is MethodType:
        args, function = (function.__self__, *args), function.__func__
    if type(function) is not FunctionType and not issubclass(type(function), type):
        raw = m.lookup(function, type(function), "__call__")
        if type(raw) is FunctionType:
            args, function = (function, *args), raw
    if not _takes_rest(m, function):
        return after_split(m, (function, args, kwargs), (rest, None))
    count = function.__code__.co_argcount - len(args)
    if count == 0:
        return enter(m, function, args, kwargs, rest)
    if count > 0:
        parts = invoke(m, polyfills.split, (rest, count))
    else:
        args, more = args[:count], args[count:]
        parts = invoke(m, polyfills.joined_in_front, (more, rest))
    return and_then(parts, after_split, None, (function, args, kwargs), m)


def after_split(m, call: tuple, parts: tuple) -> Any:
    """The call, when it is known what goes to the parameters and what is the rest: None if all goes there.
    """
    (function, args, kwargs), (first, rest) = call, parts
    if rest is not None:
        return enter(m, function, (*args, *first), kwargs, rest)
    if m.read_whole is not None and identity(first) in m.known:
        m.read_whole(first)
    return invoke(m, function, (*args, *first), kwargs)


def _takes_rest(m, function: Any) -> bool:
    """Whether it is a Python function with `*args` that the machine will run itself."""
    if type(function) is not FunctionType or not function.__code__.co_flags & VARARGS or m.is_native:
        return False
    is_marked = m.marks_native is not None and m.marks_native(function)
    return not is_marked and not m.decode(function.__code__).why_native


def enter(
    m, function: FunctionType, args: tuple | list, kwargs: dict | None, rest: tuple | None = None,
) -> Any:
    """A frame for a Python function with its arguments bound; the native result where that cannot
    be. `rest`: what it takes as `*args`.
    """
    code = m.decode(function.__code__)
    if m.is_native and not code.looks_at_frames:
        return native_call(m, function, args, kwargs)
    if code.why_native:
        if code.why_native == "own":
            return native_call(m, function, args, kwargs)
        return call_marked(m, function, args, kwargs, code.why_native)
    if m.marks_native is not None:
        mark = m.marks_native(function)
        if mark is True:
            return call_marked(m, function, args, kwargs, "marked")
        if mark:
            return enter(m, mark, args, kwargs)
    if code.is_simple and not kwargs and len(args) == code.argument_count:
        values = [*args, *[NULL] * (code.size - len(args))]
    else:
        values = bind(m, function, code, args, kwargs or {}, rest)
        if values is None:
            return native_call(m, function, (*args, *(rest or ())), kwargs)
    if m.entered is not None and not code.is_own:
        m.entered(function)
    return Frame(code, function, values)


def call_marked(
    m, function: FunctionType, args: tuple | list, kwargs: dict | None, why: str
) -> Any:
    if m.native_function is not None:
        m.native_function(function, why)
    return c_call(m, function, args, kwargs)


def bind(
    m, function: FunctionType, code: Code, args: tuple | list, kwargs: dict, rest: tuple | None = None,
) -> list | None:
    """The fast locals at entry, or None when the arguments do not fit the signature."""
    source = function.__code__
    positional, total = source.co_argcount, source.co_argcount + source.co_kwonlyargcount
    flags, names, given = source.co_flags, source.co_varnames, len(args)
    values = [*args[:positional], *[NULL] * (code.size - min(given, positional))]
    if rest is not None:
        values[total] = rest
    elif flags & VARARGS:
        rest = values[total] = tuple(args[positional:])
        if m.born is not None:
            m.born(rest, "tuple")
    elif given > positional:
        return None
    extra: dict = {}
    for name, value in kwargs.items():
        try:
            at = names.index(name, source.co_posonlyargcount, total)
        except ValueError:
            if not flags & VARKEYWORDS or type(name) is not str and not isinstance(name, str):
                return None
            extra[name] = value
            continue
        if values[at] is not NULL:
            return None
        values[at] = value
    if flags & VARKEYWORDS:
        values[total + (1 if flags & VARARGS else 0)] = extra
        if m.born is not None:
            m.born(extra, "dict")
    return values if fill_defaults(function, values, positional, total, names) else None


def fill_defaults(
    function: FunctionType, values: list, positional: int, total: int, names: tuple
) -> bool:
    """Puts defaults where no argument was given; False when one is missing."""
    defaults, keyword_defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
    first = positional - len(defaults)
    for at in range(total):
        if values[at] is not NULL:
            continue
        if at >= positional:
            if names[at] not in keyword_defaults:
                return False
            values[at] = keyword_defaults[names[at]]
        elif at >= first:
            values[at] = defaults[at - first]
        else:
            return False
    return True


# ---------------------------------------------------------------------------------- C functions
def c_call(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    """A call that is not interpreted, made by the observer."""
    handled = m.handled.current()
    if handled is not None:
        return with_handled(m, handled, plain_call, m, function, args, kwargs)
    return plain_call(m, function, args, kwargs)


def plain_call(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    if m.c_call is None:
        result = function(*args, **kwargs) if kwargs else function(*args)
        m.has_context = None
        return result
    result = m.c_call(function, tuple(args), kwargs or {})
    m.has_context = None
    if m.born is not None:
        m.born(result, "call")
    return result


def native_call(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    """A call that no hook is told of."""
    handled = m.handled.current()
    if handled is not None:
        return with_handled(m, handled, apply, function, args, kwargs)
    return apply(function, args, kwargs)


def apply(function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    return function(*args, **kwargs) if kwargs else function(*args)


def with_handled(m, handled: BaseException, function: Callable, *args: Any) -> Any:
    """`function(*args)` while `handled` is the exception that native code sees as being handled."""
    traceback, context = handled.__traceback__, handled.__context__
    try:
        raise handled
    except BaseException:
        handled.__traceback__, handled.__context__ = traceback, context
        try:
            return function(*args)
        except BaseException as error:
            m.has_context = error
            raise


def invoke_builtin(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    """A C function, or a method of C bound to an object."""
    owner = function.__self__
    if owner is None or type(owner) is types.ModuleType:
        model = m.models.get(function)
        if model is not None:
            return model(m, args, kwargs or {})
        return c_call(m, function, args, kwargs)
    return invoke_method(m, function, owner, function.__name__, args, kwargs)


def invoke_method(
    m, function: Any, owner: Any, name: str, args: tuple | list, kwargs: dict | None
) -> Any:
    """A method of C on `owner`: mutating methods of containers are told as writes."""
    if m.mutate is not None:
        for cls, names in MUTATORS.items():
            if issubclass(type(owner), cls):
                if name in names and (cls, name) not in MODELLED:
                    return mutate(m, function, owner, name, args, kwargs)
                break
    methods = m.models.get(name)
    if methods is not None:
        for cls, model in methods:
            if issubclass(type(owner), cls):
                return model(m, function, owner, args, kwargs or {})
    return c_call(m, function, args, kwargs)


def mutate(
    m, function: Any, owner: Any, name: str, args: tuple | list, kwargs: dict | None,
    seen: dict | None = None,
) -> Any:
    """`seen`: the keyword arguments as C shall see them."""
    if m.observer.is_opaque(owner, name, tuple(args), kwargs or {}):
        return c_call(m, function, args, kwargs)
    m.mutate(owner, name, tuple(args), kwargs or {})
    result = native_call(m, function, args, seen or kwargs)
    if m.born is not None:
        m.born(result, "result")
    return result


def invoke_wrapper(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    """A bound slot of C, as `super().__setattr__` gives it."""
    owner, name = function.__self__, function.__name__
    model = m.models.get(common(function.__objclass__.__dict__.get(name)))
    if model is not None:
        return model(m, (owner, *args), kwargs or {})
    return invoke_method(m, function, owner, name, args, kwargs)


def invoke_descriptor(m, function: Any, args: tuple | list, kwargs: dict | None) -> Any:
    """A slot or method of C taken from its class: `list.append(items, 1)`."""
    is_its = args and args[0] is not None and issubclass(type(args[0]), function.__objclass__)
    model = m.models.get(common(function) if is_its else function)
    if model is not None:
        return model(m, args, kwargs or {})
    if is_its:
        bound = function.__get__(args[0])
        return invoke_method(m, bound, args[0], function.__name__, args[1:], kwargs)
    return c_call(m, function, args, kwargs)


def tell_partial(m, function: functools.partial) -> None:
    if identity(function) in m.known and m.read_member is not None:
        for name in ("func", "args", "keywords"):
            m.read_member(function, name, getattr(function, name))
        if m.read_whole is not None:
            for part in (function.args, function.keywords):
                if identity(part) in m.known:
                    m.read_whole(part)


def bind_special(m, raw: Any, owner: Any, cls: type) -> Any:
    """The dunder `raw` of `cls` bound to `owner` by its own C descriptor."""
    getter = m.lookup(raw, type(raw), "__get__")
    return raw if getter is ABSENT else raw.__get__(owner, cls)


UNWRAP = {
    BuiltinFunctionType: invoke_builtin,
    types.MethodWrapperType: invoke_wrapper,
    types.WrapperDescriptorType: invoke_descriptor,
    types.MethodDescriptorType: invoke_descriptor,
}
OTHER_CALLABLES = (MethodType, staticmethod, classmethod, functools.partial)


# -------------------------------------------------------------------------------------- classes
def invoke_class(m, cls: type, args: tuple | list, kwargs: dict | None) -> Any:
    """`cls(*args, **kwargs)`: the metaclass's `__call__`, or `__new__` and then `__init__`."""
    meta = type(cls)
    maker = m.lookup(cls, meta, "__call__")
    if maker is not TYPE_CALL:
        if type(maker) is FunctionType:
            return invoke(m, maker, (cls, *args), kwargs)
        return c_call(m, cls, args, kwargs)
    model = m.models.get(cls) if meta is type else None
    if model is not None:
        return model(m, args, kwargs or {})
    if not m.view(cls).is_heap:
        return c_call(m, cls, args, kwargs)
    new, init = m.lookup(cls, cls, "__new__"), m.lookup(cls, cls, "__init__")
    python_new = type(new) is staticmethod and type(new.__func__) is FunctionType
    if type(init) is not FunctionType and not python_new:
        return c_call(m, cls, args, kwargs)
    if python_new:
        made = invoke(m, new.__func__, (cls, *args), kwargs)
    elif new is OBJECT_NEW:
        made = cls.__new__(
            cls
        )  # type.__call__ passes the arguments on; object.__new__ ignores them here
    else:
        look_at(m, args, kwargs)
        made = native_call(m, cls.__new__, (cls, *args), kwargs)
    return and_then(made, initialise, None, (cls, args, kwargs), m)


def initialise(m, call: tuple, made: Any) -> Any:
    """After `__new__` gave `made`: its `__init__`, when it is an instance of the class."""
    cls, args, kwargs = call
    if m.born is not None:
        m.born(made, "instance")
    found = type(made)
    if found is not cls and not issubclass(found, cls):
        return made
    init = m.lookup(made, found, "__init__")
    if type(init) is FunctionType:
        return and_then(invoke(m, init, (made, *args), kwargs), check_init, None, made, m)
    if init is not OBJECT_INIT:
        look_at(m, args, kwargs)
        native_call(m, found.__init__, (made, *args), kwargs)
    elif args or kwargs:
        check_object_init(m, made, found, args, kwargs)
    return made


def look_at(m, args: tuple | list, kwargs: dict | None) -> None:
    """Tells that a constructor of C is about to look at these arguments."""
    if m.numbers and m.look_at is not None:
        m.look_at(tuple(args))
        m.look_at(dict(kwargs or {}))


def check_init(m, made: Any, result: Any) -> Any:
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return made


def check_object_init(m, made: Any, cls: type, args: tuple | list, kwargs: dict | None) -> None:
    """object.__init__ takes arguments only where `__new__` is overridden and it is not."""
    object.__init__(made, *args, **(kwargs or {}))


def function_text(function: Any) -> str:
    """How CPython names a function in errors of a call: `_PyObject_FunctionStr`."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{name}()" if module is None or module == "builtins" else f"{module}.{name}()"
