"""What capture does with each call into C: a table of kinds, default deny.

    policy(math.sqrt)          Call("pure")         C looks at the whole of its arguments, deeply
    policy(list.append)        Call("fill")         changes its first argument, looks at nothing
    policy(time.time)          Call("refuse", "host_call")

kind          the call is performed, and ...
op            torch op: the recorder sees it, arguments are looked at deeply, its result is checked
reader        torch op that, for some arguments, reads elements unseen: it is then refused
metadata      reads what a tensor's guard covers
ambient       reads state that the entry guards (bridge/ambient)
element       reads the number in a tensor (capture/elements)
unchanged     changes a flag of a tensor, unless it is so already
detached      cuts a tensor off its history, unless that was used before
asked         reads state that the entry guards because of this call (its WHEN_READ)
set_ambient   sets such state; at the end of the call it must be as it was
nothing       has no effect that matters and yields nothing
pure          the result follows from the arguments, which C looks at deeply
shallow       C looks at the arguments' outermost containers only, elements are just moved
identity      C looks at no content, or only stores its arguments
get           dict.get: one key is looked at
contains      `in`: of a dict or set, one key is looked at
fill          writes into its first argument: allowed on an object made by this call
again         asked again on every call: the result is a source (contextvars, logging levels)
cached        a functools.lru_cache: declared to depend on its arguments alone
referent      a weak reference is followed: the result is a source, asked again
operator      a function of module operator: as the operator itself
id            the number of an object: objects so numbered stay different
acquire, release  of a lock: allowed in pairs
view          a read-only view of a mapping: what is looked at is the mapping
class         a class is made
checkpoint    its function begins to run, as a region of the graph; end_checkpoint: it is over;
              whole_checkpoint: it is a host call (capture/regions)
own_gradients  a torch.autograd.Function is applied: a host call
import        an import statement: done once and for all, its ops are not the call's
abc           isinstance or issubclass by an abstract base class: re-evaluated as a guard
refuse        the capture ends, with `reason`

A function is found by itself, by the class that owns it, or by its module. What no row names is
refused: C could read or change anything. torch's own functions are in `bridge/calls.py`.
"""

import builtins
import collections
import contextvars
import functools
import inspect
import itertools
import logging
import operator
import re
import traceback
import types
import typing
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import _abc
import _thread

from preheat.base import marks
from preheat.base.names import raw_attribute
from preheat.bridge.calls import ENGINE, HOOKS, NATIVE, PROFILER_MARKS, Call, torch_call
from preheat.bridge.checkpoints import (
    CHECKPOINT, close_checkpoint, open_checkpoint, whole_checkpoint,
)
from preheat.capture import polyfills
from preheat.capture.checkpointed import checkpointed

PURE, SHALLOW, IDENTITY, FILL = Call("pure"), Call("shallow"), Call("identity"), Call("fill")
AGAIN, NOTHING, HOST = Call("again"), Call("nothing"), Call("refuse", "host_call")

_BUILTINS = {
    PURE: "abs all any ascii bin bool bytes chr complex divmod float format hash hex int max min "
          "oct ord pow range repr round sorted str sum",
    SHALLOW: "dict enumerate filter frozenset iter len list map next reversed set tuple zip",
    Call("id"): "id",
    IDENTITY: "callable classmethod isinstance issubclass object property slice staticmethod super",
}
_C_METHODS = frozenset((
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.BuiltinFunctionType, staticmethod,
))
_NO_RECEIVERS = (type(None), type, types.ModuleType)
_BY_MODULE = {"math": PURE, "cmath": PURE, "_operator": Call("operator"), "_bisect": PURE}
# Functions that may be given one to call on elements: where the machine stands between.
CALLING_BACK = frozenset((map, filter, functools.reduce, sorted, min, max, list.sort))
CALLING_C = frozenset((  # these may be given functions of C alone
    itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.filterfalse, itertools.groupby,
))
_MOVERS_OF_ITERTOOLS = (
    itertools.chain, itertools.repeat, itertools.islice, itertools.product, itertools.zip_longest,
    itertools.cycle, itertools.count, itertools.pairwise, itertools.compress,
    itertools.combinations, itertools.permutations, itertools.combinations_with_replacement,
)
# Classes whose methods look only at their own value: nothing of the program can hide in them.
_VALUE_CLASSES = frozenset((
    str, bytes, int, float, complex, bool, type(None), range, slice, re.Pattern, re.Match,
    types.CodeType, type(Ellipsis), types.UnionType, types.GenericAlias,
))
_CONTAINERS = frozenset((
    list, dict, set, frozenset, tuple, collections.deque, collections.OrderedDict,
    collections.defaultdict, type({}.keys()), type({}.values()), type({}.items()), bytearray,
    types.MappingProxyType,
))
_CONTAINER_METHODS = {
    Call("get"): "get",
    Call("contains"): "__contains__",
    FILL: """append appendleft extend extendleft insert remove pop popleft popitem clear sort
        reverse update setdefault add discard difference_update intersection_update
        symmetric_difference_update rotate move_to_end __setitem__ __delitem__ __iadd__ __imul__
        __ior__ __iand__ __isub__ __ixor__ __init__""",
    SHALLOW: """keys values items copy __len__ __iter__ __getitem__ __reversed__ union __new__
        __add__ __mul__ __or__ fromkeys __class_getitem__ __bool__ __copy__""",
    PURE: """index count __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __repr__
        __str__ __format__ difference intersection symmetric_difference issubset issuperset
        isdisjoint __and__ __sub__ __xor__""",
}
# Methods that every class has from C and that look at identities alone; of exceptions, what stores
# arguments.
_OBJECT_METHODS = frozenset("""
    __new__ __init__ __init_subclass__ __subclasshook__ __eq__ __ne__ __instancecheck__
    __subclasscheck__ mro __prepare__ __set_name__ __class_getitem__
""".split())
_BINDING_ONLY = (
    types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, staticmethod,
)
_EXCEPTION_METHODS = frozenset("__new__ __init__ with_traceback __setstate__".split())
_ITERATOR_METHODS = frozenset("__next__ __iter__ __length_hint__ close send throw".split())
_ITERATORS = frozenset(type(i) for i in (
    iter([]), iter(()), iter({}), iter({}.values()), iter({}.items()), iter(set()), iter(range(0)),
    iter(""), reversed([]), reversed({}), reversed(()), zip(), enumerate(()), map(len, ()),
    filter(None, ()), iter(range(1 << 70)), itertools.chain(), itertools.repeat(0),
    itertools.count(), itertools.islice((), 0), itertools.pairwise(()), itertools.zip_longest(),
    itertools.product(),
)) | {types.GeneratorType}
_ROWS: dict[Any, Call] = {
    **{mover: SHALLOW for mover in _MOVERS_OF_ITERTOOLS}, **{f: PURE for f in CALLING_C},
    operator.call: HOST,
    **{getattr(builtins, name): row for row, names in _BUILTINS.items() for name in names.split()},
    functools.partial: IDENTITY, types.SimpleNamespace: IDENTITY, types.MethodType: IDENTITY,
    types.MappingProxyType: Call("view"), types.FunctionType: IDENTITY, types.CellType: IDENTITY,
    collections.deque: SHALLOW, collections.OrderedDict: SHALLOW, collections.defaultdict: SHALLOW,
    functools.reduce: SHALLOW, operator.attrgetter: IDENTITY, operator.itemgetter: IDENTITY,
    operator.is_: IDENTITY, operator.is_not: IDENTITY, functools.lru_cache: IDENTITY,
    contextvars.ContextVar.get: AGAIN, contextvars.ContextVar.set: Call("set_context"),
    contextvars.ContextVar.reset: Call("reset_context"),
    _abc._abc_instancecheck: Call("abc"), _abc._abc_subclasscheck: Call("abc"),
    builtins.__import__: Call("import"), type: Call("class"),
}
# Python functions that are known by name, since their modules may not be imported here: the end of
# the module's name, and the row. Once torch.compile has run in a process it counts every module made
# (its init is wrapped); for one that the call makes and a replay does not, there is nothing to count.
_BY_NAME: dict[str, tuple[str, Call]] = {
    "GenerationTracker.tag": (".mutation_guard", NOTHING),
    "_str": ("torch._tensor_str", HOST),  # a tensor as text: one host call, not one for each element
}
# Python functions that run natively: what they compute follows from their arguments, but they keep
# caches of their own, or would cost thousands of bytecodes.
_NATIVE: dict[Any, Call] = {
    **{f: PURE for f in (
        re.compile, re.match, re.search, re.fullmatch, re.sub, re.split, re.findall, re.escape,
    )},
    **{f: Call("signature") for f in (
        inspect.signature, inspect.getfullargspec, inspect.unwrap, inspect.isclass,
        inspect.isfunction, inspect.ismethod,
    )},
    **{f: HOST for f in (  # an exception as text: they read its lines from files
        traceback.print_exc, traceback.format_exc, traceback.print_exception,
        traceback.format_exception, traceback.print_tb, traceback.format_tb, traceback.extract_tb,
    )},
    **{f: Call("refuse", "backward") for f in ENGINE},
    **{f: HOST for f in HOOKS},
    logging.Logger._log: HOST,  # it looks at its caller's line, the time and the thread
    logging.Logger.isEnabledFor: AGAIN, logging.Logger.getEffectiveLevel: AGAIN,
    open_checkpoint: Call("checkpoint"), close_checkpoint: Call("end_checkpoint"),
    whole_checkpoint: Call("whole_checkpoint"),
    marks.is_compiling: Call("constant"),
    typing._SpecialForm.__getitem__: IDENTITY,  # Optional[int]
    typing.cast: IDENTITY, typing.get_origin: IDENTITY, typing.get_args: IDENTITY,
    typing.get_type_hints: Call("signature"),
}


# Where torch keeps its own compiler from looking into functions of its own; the machine may.
_OPENED = ("torch.optim.",)
_MARKED_BY_TORCH = "_disable_dynamo.<locals>.inner"
# Python functions of which another is interpreted instead.
_INSTEAD: dict[Any, types.FunctionType] = {
    CHECKPOINT: checkpointed,
    **{mark.__enter__: polyfills.enter_mark for mark in PROFILER_MARKS},
    **{mark.__exit__: polyfills.leave_mark for mark in PROFILER_MARKS},
}


def is_native(function: Any) -> bool | types.FunctionType:
    """Whether a Python function is called natively, by a row or by the user's mark; or which one
    is interpreted instead."""
    instead = _INSTEAD.get(function)
    if instead is not None:
        return instead
    qualname = function.__code__.co_qualname
    if qualname == _MARKED_BY_TORCH and (function.__module__ or "").startswith(_OPENED):
        return function.__wrapped__
    if qualname == "Compiled.__call__":
        if function.__module__ == "preheat.dispatch":
            return polyfills.call_target
    if function in _NATIVE or function in NATIVE:
        return True
    if qualname in _BY_NAME and _named(function) is not None:
        return True
    return bool(function.__dict__) and _is_left_alone(function)


def policy(function: Any) -> Call:
    """The row of a callable of C; bound methods by their class."""
    kind = type(function)
    if kind is types.BuiltinFunctionType or kind is types.MethodWrapperType:
        owner = function.__self__
        if isinstance(owner, type):
            return _method_policy(owner, function.__name__, True)
        if is_bound(function):
            return _method_policy(type(owner), function.__name__, False)
    try:
        return _policy(function)
    except TypeError:  # unhashable: an object with __call__ of C
        return HOST


def is_bound(function: Any) -> bool:
    """Whether `function` is a C method bound to an instance: `[].append`, `x.view`."""
    kind = type(function)
    if kind is not types.BuiltinFunctionType and kind is not types.MethodWrapperType:
        return False
    return _has_method(type(function.__self__), function.__name__)


@lru_cache(maxsize=8192)
def _has_method(cls: type, name: str) -> bool:
    """Functions of pybind11 carry a record of theirs as `__self__`: it has no such method."""
    return not issubclass(cls, _NO_RECEIVERS) and _c_attribute(cls, name) is not None


def is_fresh_iterator(kind: type) -> bool:
    """Whether `kind` is an iterator or a view of C that only moves elements of what it iterates."""
    return kind in _ITERATORS


def _is_left_alone(function: Any) -> bool:
    """By the user's mark, or since torch.compile, which watches frames as we do, has compiled it."""
    return marks.is_disabled(function) or marks.compiled_by_torch(function) is not None


def _named(function: types.FunctionType) -> Call | None:
    module, row = _BY_NAME.get(function.__qualname__, ("", None))
    return row if row is not None and (function.__module__ or "").endswith(module) else None


@lru_cache(maxsize=8192)
def is_bookkeeping(cls: type) -> bool:
    """Whether nothing that a program can see follows from the state of `cls`: see `_BY_NAME`."""
    return any(
        name.startswith(f"{cls.__qualname__}.") and row is NOTHING and cls.__module__.endswith(module)
        for name, (module, row) in _BY_NAME.items()
    )


@lru_cache(maxsize=8192)
def _policy(function: Any) -> Call:
    row = _NATIVE.get(function) or _ROWS.get(function) or torch_call(function)
    if row is not None:
        return row
    kind = type(function)
    row = _named(function) if kind is types.FunctionType else None
    if row is not None:
        return row
    if _is_left_alone(function):
        return Call("refuse", "disabled_function")
    if kind is weakref.ref:
        return Call("referent")
    if kind is functools._lru_cache_wrapper:
        return Call("cached")
    if kind is types.FunctionType:
        return Call("refuse", "native_python")
    owner = getattr(function, "__objclass__", None)
    if owner is not None and kind in (
        types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    ):
        return _owned(owner, function.__name__)
    if isinstance(function, type):
        return _class_policy(function)
    return _BY_MODULE.get(getattr(function, "__module__", None), HOST)


@lru_cache(maxsize=8192)
def _method_policy(cls: type, name: str, is_class_method: bool) -> Call:
    """The row of C method `name` found on `cls` (a method of the class itself if
    `is_class_method`)."""
    raw = _c_attribute(cls, name)
    if raw is None and is_class_method:
        raw = _c_attribute(type(cls), name)
    if type(raw) is staticmethod or type(raw) is types.BuiltinFunctionType:
        return _owned(cls, name)
    return HOST if raw is None else _policy(raw)


def _c_attribute(cls: type, name: str) -> Any:
    """The first method of C called `name` along the MRO: `super()` may have stepped over
    Python's."""
    for base in type.__dict__["__mro__"].__get__(cls):
        raw = type.__dict__["__dict__"].__get__(base).get(name)
        if type(raw) in _C_METHODS:
            return raw
    return None


def _owned(owner: type, name: str) -> Call:
    row = _METHODS.get((owner, name))
    if row is not None:
        return row
    if owner in _VALUE_CLASSES:
        return PURE
    if owner in _ITERATORS and name in _ITERATOR_METHODS:
        return SHALLOW
    if name in _OBJECT_METHODS and owner in (object, type, super):
        return IDENTITY
    if issubclass(owner, BaseException):
        return FILL if name == "add_note" else IDENTITY if name in _EXCEPTION_METHODS else PURE
    if name == "__get__" and owner in _BINDING_ONLY:
        return IDENTITY
    return HOST


def _class_policy(cls: type) -> Call:
    """The row of calling a class whose `__new__` and `__init__` are of C."""
    if issubclass(cls, BaseException):
        return IDENTITY
    made = raw_attribute(cls, "__new__")
    initialised = raw_attribute(cls, "__init__")
    if made is object.__new__ and initialised is object.__init__:
        return IDENTITY
    for base in (*_CONTAINERS, str, int, float):
        if issubclass(cls, base) and made is raw_attribute(base, "__new__"):
            return SHALLOW
    return HOST


def _methods() -> Iterable[tuple[tuple[type, str], Call]]:
    for owner in (_thread.LockType, _thread.RLock):
        for name in ("acquire", "__enter__"):
            yield (owner, name), Call("acquire")
        for name in ("release", "__exit__"):
            yield (owner, name), Call("release")
    yield (property, "__new__"), IDENTITY
    yield (property, "__init__"), FILL  # of a class that is a property, by its own `__init__`
    for owner in _CONTAINERS:
        for row, names in _CONTAINER_METHODS.items():
            for name in names.split():
                yield (owner, name), row


_METHODS: dict[tuple[type, str], Call] = dict(_methods())
