"""Models of builtins: C functions that call back into Python, or that look at the caller's frame.

    len(layers)                 ->  Frame(ModuleList.__len__)
    sorted(rows, key=weight)    ->  sorted(rows, key=<a native function that has the machine run weight>)
    super(), locals(), sys._getframe()    answered from the machine's frames

`MODELS` maps a C function to model(m, args, kwargs), which gives a value or a frame, and a method name to
pairs (class, model(m, function, owner, args, kwargs)). Calls that do not fit a model's shape go to C, which
raises its own error. Guarantees the results, the order of callbacks and the errors of the originals.
"""

import __future__
import abc
import builtins
import functools
import math
import operator
import sys
import types
import warnings
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from preheat.capture import attributes, generators, operations
from preheat.capture.calls import c_call, invoke, native_call
from preheat.capture.frames import NULL, Frame, and_then, attempt
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is

MODELS: dict[Any, Any] = {}


def models(*functions: Any) -> Callable:
    """Registers the function below as the model of `functions`."""

    def register(model: Callable) -> Callable:
        for function in functions:
            MODELS[function] = model
        return model

    return register


# ---------------------------------------------------------------------------- callbacks
C_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
)  # fmt: skip


def trampoline(m, callback: Any) -> Any:
    """A native function that C may call: the machine runs `callback`. Unwatched, C may as well call it."""
    cls = type(callback)
    if not m.is_watching or callback is None or cls in C_CALLABLES or cls is type and not m.view(callback).is_heap:
        return callback

    def call_in_machine(*args, **kwargs):
        return m.call(callback, args, kwargs)

    return call_in_machine


def iterable(m, value: Any) -> Any:
    """`value`, or an iterator that the machine drives when iterating it would run Python."""
    cls = type(value)
    if operations.runs_python(m.lookup(value, cls, "__iter__")):
        return generators.drive_iterator(m, m.finish(operations.iterate(m, value)))
    if m.read_whole is not None and id(value) in m.known:
        m.read_whole(value)
    return value


def with_callback(function: Callable, at: int | None, keyword: str | None, iterables: slice) -> None:
    """Models `function`: argument `at` or `keyword` is a callback, those in `iterables` are iterated."""

    def model(m, args, kwargs):
        args = list(args)
        if keyword in kwargs:
            kwargs[keyword] = trampoline(m, kwargs[keyword])
        if at is not None and at < len(args):
            args[at] = trampoline(m, args[at])
        args[iterables] = [iterable(m, value) for value in args[iterables]]
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


FIRST, REST, SECOND = slice(0, 1), slice(1, None), slice(1, 2)
for row in (
    (map, 0, None, REST), (filter, 0, None, REST), (sorted, None, "key", FIRST), (functools.reduce, 0, None, SECOND),
    (any, None, None, FIRST), (all, None, None, FIRST), (sum, None, None, FIRST), (list, None, None, FIRST),
    (tuple, None, None, FIRST), (set, None, None, FIRST), (frozenset, None, None, FIRST),
    (enumerate, None, None, FIRST), (zip, None, None, slice(0, None)),
):  # fmt: skip
    with_callback(*row)


def extremum(function: Callable) -> None:
    """Models min or max: of one iterable, or of its arguments; by a Python `__lt__` natively."""

    def model(m, args, kwargs):
        if "key" in kwargs:
            kwargs["key"] = trampoline(m, kwargs["key"])
        if len(args) == 1:
            args = (iterable(m, args[0]),)
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


extremum(min)
extremum(max)


def method(name: str, cls: type) -> Callable:
    """Registers the function below as the model of method `name` of `cls`."""

    def register(model: Callable) -> Callable:
        MODELS.setdefault(name, []).append((cls, model))
        return model

    return register


@method("sort", list)
def model_sort(m, function, owner, args, kwargs):
    if "key" in kwargs:
        kwargs["key"] = trampoline(m, kwargs["key"])
    return c_call(m, function, args, kwargs)


@method("join", str)
@method("extend", list)
@method("update", dict)
@method("update", set)
def model_consuming_method(m, function, owner, args, kwargs):
    if not any(operations.runs_python(m.lookup(arg, type(arg), "keys")) for arg in args):
        args = [iterable(m, arg) if type(arg) is not dict else arg for arg in args]
    return c_call(m, function, args, kwargs)


@method("get", dict)
def model_get(m, function, owner, args, kwargs):
    if kwargs or not 1 <= len(args) <= 2 or type(args[0]) not in operations.PLAIN or m.c_call is None:
        return c_call(m, function, args, kwargs)
    value = dict.get(owner, args[0], ABSENT)
    is_known = id(owner) in m.known
    if value is not ABSENT:
        if is_known and m.read_item is not None:
            m.read_item(owner, args[0], value)
        return value
    if is_known and m.miss_item is not None:
        m.miss_item(owner, args[0])
    return args[1] if len(args) == 2 else None


# ---------------------------------------------------------------------------- attributes
def is_attribute_call(args: tuple | list, kwargs: dict, *counts: int) -> bool:
    return not kwargs and len(args) in counts and type(args[1]) is str


@models(getattr)
def model_getattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 2, 3):
        return c_call(m, getattr, args, kwargs)
    try:
        value = attributes.load(m, args[0], args[1])
    except AttributeError:
        if len(args) == 3:
            return args[2]
        raise
    if type(value) is Frame and len(args) == 3:
        return and_then(value, None, default_if_missing, args[2])
    return value


def default_if_missing(m, default: Any, error: BaseException) -> Any:
    if isinstance(error, AttributeError):
        return default
    raise_as_is(error)


@models(hasattr)
def model_hasattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 2):
        return c_call(m, hasattr, args, kwargs)
    try:
        value = attributes.load(m, args[0], args[1])
    except AttributeError:
        return False
    return and_then(value, always_true, default_if_missing, False, m)


def always_true(m, _: Any, value: Any) -> bool:
    return True


@models(setattr)
def model_setattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 3):
        return c_call(m, setattr, args, kwargs)
    return and_then(attributes.store(m, *args), always_none, None, None, m)


@models(delattr)
def model_delattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 2):
        return c_call(m, delattr, args, kwargs)
    return and_then(attributes.delete(m, *args), always_none, None, None, m)


def always_none(m, _: Any, value: Any) -> None:
    return None


@models(object.__dict__["__getattribute__"])
def model_generic_getattribute(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 2):
        return c_call(m, object.__getattribute__, args, kwargs)
    cls = type(args[0])
    return attributes.load_generic(m, args[0], cls, args[1])


@models(object.__dict__["__setattr__"])
def model_generic_setattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 3) or not m.view(type(args[0])).is_heap or is_class(args[0]):
        return c_call(m, object.__setattr__, args, kwargs)
    return and_then(attributes.store_plain(m, *args), always_none, None, None, m)


@models(type.__dict__["__setattr__"])
def model_type_setattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 3) or not is_class(args[0]):
        return c_call(m, type.__setattr__, args, kwargs)
    return and_then(attributes.store_plain(m, *args), always_none, None, None, m)


@models(object.__dict__["__delattr__"])
def model_generic_delattr(m, args, kwargs):
    if not is_attribute_call(args, kwargs, 2) or not m.view(type(args[0])).is_heap or is_class(args[0]):
        return c_call(m, object.__delattr__, args, kwargs)
    return and_then(attributes.delete_plain(m, *args), always_none, None, None, m)


def is_class(value: Any) -> bool:
    return issubclass(type(value), type)


# ---------------------------------------------------------------------------- one argument, one dunder
@models(len)
def model_len(m, args, kwargs):
    return operations.length(m, args[0]) if len(args) == 1 and not kwargs else c_call(m, len, args, kwargs)


@models(bool)
def model_bool(m, args, kwargs):
    return operations.truth(m, args[0]) if len(args) == 1 and not kwargs else c_call(m, bool, args, kwargs)


@models(iter)
def model_iter(m, args, kwargs):
    if len(args) == 1 and not kwargs:
        return operations.iterate(m, args[0])
    if len(args) == 2 and not kwargs and callable(args[0]):
        return c_call(m, iter, (trampoline(m, args[0]), args[1]), None)
    return c_call(m, iter, args, kwargs)


@models(next)
def model_next(m, args, kwargs):
    if kwargs or not 1 <= len(args) <= 2:
        return c_call(m, next, args, kwargs)
    raw = m.lookup(args[0], type(args[0]), "__next__")
    if not operations.runs_python(raw):
        return c_call(m, next, args, kwargs)
    if len(args) == 1:
        return operations.call_dunder(m, raw, args[0])
    return attempt(m, default_if_stopped, args[1], operations.call_dunder, raw, args[0])


def default_if_stopped(m, default: Any, error: BaseException) -> Any:
    if isinstance(error, StopIteration):
        return default
    raise_as_is(error)


@models(str)
def model_str(m, args, kwargs):
    return operations.text(m, args[0]) if len(args) == 1 and not kwargs else c_call(m, str, args, kwargs)


@models(repr)
def model_repr(m, args, kwargs):
    if len(args) == 1 and not kwargs:
        return operations.representation(m, args[0])
    return c_call(m, repr, args, kwargs)


@models(format)
def model_format(m, args, kwargs):
    if kwargs or not 1 <= len(args) <= 2 or len(args) == 2 and type(args[1]) is not str:
        return c_call(m, format, args, kwargs)
    return operations.format_value(m, args[0], args[1] if len(args) == 2 else "")


def judged_by_c(function: Callable, *dunders: str) -> None:
    """Models `function`, which calls one of `dunders` and checks what it gave: C does the checking."""
    answers = {
        dunder: type("Answer", (), {dunder: lambda self, *_: self.result, "__slots__": ("result",)})
        for dunder in dunders
    }

    def check(m, place, result):
        dunder, rest = place
        answer = answers[dunder]()
        answer.result = result
        return function(answer, *rest)

    def model(m, args, kwargs):
        if args and not kwargs:
            for dunder in dunders:
                raw = m.lookup(args[0], type(args[0]), dunder)
                if operations.runs_python(raw):
                    value = operations.call_dunder(m, raw, *args)
                    return and_then(value, check, None, (dunder, args[1:]), m)
                if raw is not ABSENT:
                    break
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


judged_by_c(hash, "__hash__")
judged_by_c(abs, "__abs__")
judged_by_c(round, "__round__")
judged_by_c(int, "__int__", "__index__")
judged_by_c(float, "__float__", "__index__")
judged_by_c(operator.index, "__index__")
judged_by_c(math.floor, "__floor__")
judged_by_c(math.ceil, "__ceil__")
judged_by_c(math.trunc, "__trunc__")
judged_by_c(reversed, "__reversed__")


# ---------------------------------------------------------------------------- types
@models(isinstance)
def model_isinstance(m, args, kwargs):
    if kwargs or len(args) != 2:
        return c_call(m, isinstance, args, kwargs)
    return type_test(m, isinstance, "__instancecheck__", *args)


@models(issubclass)
def model_issubclass(m, args, kwargs):
    if kwargs or len(args) != 2:
        return c_call(m, issubclass, args, kwargs)
    return type_test(m, issubclass, "__subclasscheck__", *args)


def type_test(m, function: Callable, dunder: str, value: Any, classinfo: Any) -> Any:
    """isinstance or issubclass: a Python check of the class is interpreted, abc's and C's are told."""
    if type(classinfo) is tuple:
        if m.test_type is not None and not any(has_own_check(m, cls, dunder) for cls in classinfo):
            return tested(m, function, value, classinfo)
        return any(m.finish(type_test(m, function, dunder, value, cls)) for cls in classinfo)
    if has_own_check(m, classinfo, dunder) and not (function is isinstance and type(value) is classinfo):
        raw = m.lookup(classinfo, type(classinfo), dunder)
        return and_then(
            operations.call_dunder(m, raw, classinfo, value), operations.truth_of, None, None, m
        )
    return tested(m, function, value, classinfo)


def has_own_check(m, classinfo: Any, dunder: str) -> bool:
    raw = m.lookup(classinfo, type(classinfo), dunder)
    return operations.runs_python(raw) and raw is not ABC_CHECKS[dunder]


ABC_CHECKS = {name: vars(abc.ABCMeta)[name] for name in ("__instancecheck__", "__subclasscheck__")}


def tested(m, function: Callable, value: Any, classinfo: Any) -> bool:
    answer = function(value, classinfo)
    tell = m.test_type if function is isinstance else m.test_subclass
    if tell is not None:
        tell(value, classinfo, answer)
    return answer


@models(type)
def model_type(m, args, kwargs):
    if len(args) == 1 and not kwargs:
        if m.type_of is not None:
            m.type_of(args[0])
        return type(args[0])
    if len(args) == 3 and type(args[2]) is dict and "__module__" not in args[2]:
        frame = m.user_frame()
        if frame is not None and "__name__" in frame.globals:
            args = (*args[:2], {**args[2], "__module__": frame.globals["__name__"]})
    return c_call(m, type, args, kwargs)


@models(builtins.__build_class__)
def model_build_class(m, args, kwargs):
    """A class statement: the body runs in the namespace that the metaclass prepared."""
    if m.is_native or len(args) < 2 or type(args[0]) is not FunctionType or m.decode(args[0].__code__).why_native:
        return native_call(m, builtins.__build_class__, args, kwargs)
    function, name, *original = args
    original = tuple(original)
    bases = m.call(types.resolve_bases, (original,))
    meta = kwargs.pop("metaclass", None)
    if meta is None:
        meta = type(bases[0]) if bases else type
    if is_class(meta):
        meta = m.call(types._calculate_meta, (meta, bases))
    prepare = model_getattr(m, (meta, "__prepare__", None), {})
    prepare = m.finish(prepare)
    space = {} if prepare is None else m.call(prepare, (name, bases), dict(kwargs))
    if not hasattr(type(space), "__getitem__"):
        raise TypeError(
            f"{getattr(meta, '__name__', '<metaclass>')}.__prepare__() must return a mapping, "
            f"not {type(space).__name__}"
        )
    code = m.decode(function.__code__)
    body = Frame(code, function, [NULL] * code.size)
    body.names = space
    return and_then(body, make_class, None, (meta, name, bases, original, space, kwargs))


def make_class(m, place: tuple, cell: Any) -> Any:
    meta, name, bases, original, space, kwargs = place
    if bases is not original:
        space["__orig_bases__"] = original
    made = invoke(m, meta, (name, bases, space), kwargs)
    return and_then(made, check_class_cell, None, (name, cell), m)


def check_class_cell(m, place: tuple, cls: Any) -> Any:
    name, cell = place
    if is_class(cls) and type(cell) is CellType:
        try:
            found = cell.cell_contents
        except ValueError:
            raise RuntimeError(
                f"__class__ not set defining {name!r} as {cls!r}. "
                "Was __classcell__ propagated to type.__new__?"
            ) from None
        if found is not cls:
            raise TypeError(f"__class__ set to {found!r} defining {name!r} as {cls!r}")
    if m.born is not None:
        m.born(cls, "class")
    return cls


# ---------------------------------------------------------------------------- frames
@models(super)
def model_super(m, args, kwargs):
    """`super()`: the class from the `__class__` cell, the first argument of the calling frame."""
    if args or kwargs:
        return super_object(m, args, kwargs)
    frame = m.frame
    if not frame.source.co_argcount:
        raise RuntimeError("super(): no arguments")
    first = frame.locals[0]
    if type(first) is CellType and frame.code.names[0] in frame.source.co_cellvars:
        first = first.cell_contents if has_content(first) else NULL
    if first is NULL:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in frame.source.co_freevars:
        raise RuntimeError("super(): __class__ cell not found")
    cell = frame.locals[frame.code.names.index("__class__")]
    if not has_content(cell):
        raise RuntimeError("super(): empty __class__ cell")
    return super_object(m, (cell.cell_contents, first), {})


def super_object(m, args: tuple, kwargs: dict) -> super:
    made = super(*args, **kwargs)
    if m.born is not None:
        m.born(made, "instance")
    return made


def has_content(cell: CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


@models(locals)
def model_locals(m, args, kwargs):
    if args or kwargs:
        return native_call(m, locals, args, kwargs)
    found = frame_locals(m.user_frame())
    if m.born is not None:
        m.born(found, "dict")
    return found


def frame_locals(frame: Frame) -> Any:
    return frame.variables() if frame.names is None else frame.names


@models(globals)
def model_globals(m, args, kwargs):
    return m.user_frame().globals if not args and not kwargs else native_call(m, globals, args, kwargs)


@models(vars)
def model_vars(m, args, kwargs):
    if not args and not kwargs:
        return model_locals(m, args, kwargs)
    if len(args) == 1 and not kwargs:
        return and_then(
            attributes.load(m, args[0], "__dict__"), None, no_dict, None
        ) if hasattr(args[0], "__dict__") else native_call(m, vars, args, kwargs)
    return native_call(m, vars, args, kwargs)


def no_dict(m, _: Any, error: BaseException) -> Any:
    if isinstance(error, AttributeError):
        raise TypeError("vars() argument must have __dict__ attribute") from error
    raise_as_is(error)


@models(dir)
def model_dir(m, args, kwargs):
    if args or kwargs:
        return c_call(m, dir, args, kwargs)
    return sorted(frame_locals(m.user_frame()))


@models(eval)
def model_eval(m, args, kwargs):
    return evaluate(m, eval, args, kwargs)


@models(exec)
def model_exec(m, args, kwargs):
    return evaluate(m, exec, args, kwargs)


def evaluate(m, function: Callable, args: tuple, kwargs: dict) -> Any:
    """eval or exec, natively, in the namespaces of the frame that called it."""
    if not args or kwargs:
        return c_call(m, function, args, kwargs)
    args = list(args)
    if len(args) == 1 or args[1] is None:
        frame = m.user_frame()
        space = args[2] if len(args) > 2 and args[2] is not None else frame_locals(frame)
        args[1:] = [frame.globals, space, *args[3:]]
    if type(args[0]) in (str, bytes):
        args[0] = compile_as(m, args[0], "<string>", function.__name__)
    return c_call(m, function, args, kwargs)


@models(compile)
def model_compile(m, args, kwargs):
    """compile() inherits the `from __future__` flags of its caller."""
    if "flags" in kwargs or "dont_inherit" in kwargs or len(args) > 3:
        return c_call(m, compile, args, kwargs)
    return c_call(m, compile, args, {**kwargs, "flags": future_flags(m), "dont_inherit": True})


def compile_as(m, text: Any, name: str, mode: str) -> Any:
    """`text` compiled under the caller's flags; eval strips blanks as C does."""
    stripped = text.lstrip(" \t" if type(text) is str else b" \t") if mode == "eval" else text
    return compile(stripped, name, mode, future_flags(m), True)


FUTURE_FLAGS = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def future_flags(m) -> int:
    frame = m.user_frame()
    return 0 if frame is None else frame.source.co_flags & FUTURE_FLAGS & ~0x10  # not CO_NESTED


@models(sys.exc_info)
def model_exc_info(m, args, kwargs):
    error = m.handled.current()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@models(sys.exception)
def model_exception(m, args, kwargs):
    return m.handled.current()


@models(sys.getrecursionlimit)
def model_getrecursionlimit(m, args, kwargs):
    return native_call(m, sys.getrecursionlimit, args, kwargs) if args or kwargs else m.limit


@models(sys.setrecursionlimit)
def model_setrecursionlimit(m, args, kwargs):
    if len(args) != 1 or kwargs or type(args[0]) is not int or args[0] < 1:
        return native_call(m, sys.setrecursionlimit, args, kwargs)
    if m.depth >= args[0]:
        raise RecursionError(
            f"cannot set the recursion limit to {args[0]} at the recursion depth {m.depth}: the limit is too low"
        )
    m.set_limit(args[0])


class FrameView:
    """What `sys._getframe()` gives for an interpreted frame."""

    __slots__ = ("_machine", "_frame", "f_trace")

    def __init__(self, machine: Any, frame: Frame):
        self._machine, self._frame, self.f_trace = machine, frame, None

    __class__ = property(lambda self: types.FrameType)  # for isinstance, as module inspect asks
    f_code = property(lambda self: self._frame.source)
    f_globals = property(lambda self: self._frame.globals)
    f_builtins = property(lambda self: self._frame.builtins)
    f_locals = property(lambda self: frame_locals(self._frame))
    f_lineno = property(lambda self: self._frame.line())
    f_lasti = property(lambda self: self._frame.code.offsets[self._frame.pc])

    @property
    def f_back(self) -> Any:
        back = self._frame.back
        while back is not None and back.code.is_own:
            back = back.back
        return self._machine.native_frame(0) if back is None else FrameView(self._machine, back)


@models(sys._getframe)
def model_getframe(m, args, kwargs):
    level = args[0] if args else 0
    if type(level) is not int:
        return native_call(m, sys._getframe, args, kwargs)
    frame = m.user_frame(max(level, 0))
    if frame is not None:
        return FrameView(m, frame)
    found = m.native_frame(level - m.user_depth())
    if found is None:
        raise ValueError("call stack is not deep enough")
    return found


if hasattr(sys, "_getframemodulename"):

    @models(sys._getframemodulename)
    def model_getframemodulename(m, args, kwargs):
        level = args[0] if args else kwargs.get("depth", 0)
        frame = m.user_frame(level)
        return None if frame is None else frame.globals.get("__name__")


@models(warnings.warn)
def model_warn(m, args, kwargs):
    """warnings.warn blames a line of the program: found in the machine's frames, not in its own."""
    if not 1 <= len(args) <= 4 or kwargs.keys() - {"category", "stacklevel", "source"}:
        return c_call(m, warnings.warn, args, kwargs)
    given = dict(zip(("message", "category", "stacklevel", "source"), args)) | kwargs
    message, category = given["message"], given.get("category") or UserWarning
    level, source = given.get("stacklevel", 1), given.get("source")
    if isinstance(message, Warning):
        category = type(message)
    if not (is_class(category) and issubclass(category, Warning)) or type(level) is not int:
        return c_call(m, warnings.warn, args, kwargs)
    frame = m.user_frame(max(level - 1, 0))
    if frame is None:
        space, file, line = vars(sys), "sys", 1
    else:
        space, file, line = frame.globals, frame.source.co_filename, frame.line()
    registry = space.setdefault("__warningregistry__", {})
    module = space.get("__name__", "<string>")
    return c_call(
        m, warnings.warn_explicit, (message, category, file, line, module, registry),
        {} if source is None else {"source": source},
    )


# ---------------------------------------------------------------------------- module operator
def model_operator(name: str, operation: Callable, count: int) -> None:
    function = getattr(operator, name)

    def model(m, args, kwargs):
        if kwargs or len(args) != count:
            return c_call(m, function, args, kwargs)
        return operation(m, function, *args)

    MODELS[function] = model


for function in operations.ROWS:
    model_operator(function.__name__, operations.binary, 2)
for function in operations.COMPARISONS:
    model_operator(function.__name__, operations.compare, 2)
for name in ("neg", "pos", "invert"):
    model_operator(name, operations.unary, 1)
model_operator("getitem", lambda m, _, container, key: operations.subscript(m, container, key), 2)
model_operator("contains", lambda m, _, container, value: operations.contains(m, container, value), 2)
model_operator("truth", lambda m, _, value: operations.truth(m, value), 1)
