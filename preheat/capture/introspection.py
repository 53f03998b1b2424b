"""Models of builtins that look at the caller's frame: they are answered from the machine's frames.

    super(), locals(), globals(), eval("x + 1"), sys._getframe(1), sys.exc_info(), warnings.warn()
    class A(B): ...             ->  Frame(the body), in the namespace that the metaclass prepared

Guarantees what the originals give in a native frame with the same variables. A frame from
`sys._getframe` is a `FrameView`: module inspect takes it for a frame, C code that wants a frame
object does not.
"""

import __future__
import builtins
import functools
import operator
import sys
import types
import warnings
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from preheat.capture import attributes
from preheat.capture.builtins import is_class, model_getattr
from preheat.capture.calls import c_call, invoke, native_call
from preheat.capture.frames import NULL, Frame, and_then, has_content
from preheat.capture.models import models
from preheat.capture.tracebacks import raise_as_is, traceback_of


# ------------------------------------------------------------------------------ class statements
@models(builtins.__build_class__)
def model_build_class(m, args, kwargs):
    """A class statement: the body runs in the namespace that the metaclass prepared."""
    if (
        m.is_native
        or len(args) < 2
        or type(args[0]) is not FunctionType
        or m.decode(args[0].__code__).why_native
    ):
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
        if not has_content(cell):
            raise RuntimeError(
                f"__class__ not set defining {name!r} as {cls!r}. "
                "Was __classcell__ propagated to type.__new__?"
            )
        found = cell.cell_contents
        if found is not cls:
            raise TypeError(f"__class__ set to {found!r} defining {name!r} as {cls!r}")
    if m.born is not None:
        m.born(cls, "class")
    return cls


# ---------------------------------------------------------------------------- the calling frame
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
    return (
        m.user_frame().globals if not args and not kwargs else native_call(m, globals, args, kwargs)
    )


@models(vars)
def model_vars(m, args, kwargs):
    if not args and not kwargs:
        return model_locals(m, args, kwargs)
    if len(args) == 1 and not kwargs:
        return (
            and_then(attributes.load(m, args[0], "__dict__"), None, no_dict, None)
            if hasattr(args[0], "__dict__")
            else native_call(m, vars, args, kwargs)
        )
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
    if not args or kwargs.keys() - {"globals", "locals"}:
        return c_call(m, function, args, kwargs)
    if kwargs and sys.version_info < (3, 13):
        return c_call(m, function, args, kwargs)
    args = [
        *args,
        *(kwargs.pop(name, None) for name in ("globals", "locals")[len(args) - 1 :] if kwargs),
    ]
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
    if error is None:
        return None, None, None
    return type(error), error, traceback_of(m, error)


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
            f"cannot set the recursion limit to {args[0]} at the recursion depth {m.depth}: "
            "the limit is too low"
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
        m,
        warnings.warn_explicit,
        (message, category, file, line, module, registry),
        {} if source is None else {"source": source},
    )
