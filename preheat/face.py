"""The public functions. Checks what the caller asked for and hands out callables and modules.

    compile(f)         a function that calls a `Compiled`
    compile(module)    a module, see module.py
    compile(mode=m)    a decorator
    disable(f)         f, never captured

Guarantees that a wrong option, mode, backend or target is a `UserError` at this line, never later.
"""

import functools
import itertools
import os
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from preheat.base import marks
from preheat.base.callers import leaves_us
from preheat.base.errors import UserError, nearest
from preheat.base.pins import Known
from preheat.base.options import (
    OPTIONS,
    Option,
    checked_backend,
    checked_mode,
    checked_options,
)
from preheat.bridge.frames import step_over
from preheat.bridge.fx import registered
from preheat.bridge.modules import is_module
from preheat.bridge.tensors import Tensor, mark
from preheat.buckets import Bucketed
from preheat.dispatch import Compiled
from preheat.module import CompiledModule, compiled_module
from preheat.report.explain import Explanation, explain_call
from preheat.run.known import known_of, moved_at
from preheat.warm import parts_of, seal, warmup  # noqa: F401 - public

Target = TypeVar("Target", bound=Callable[..., Any])

step_over(Compiled.__call__, is_opaque=True)
step_over(CompiledModule.__call__)
# Every Compiled alive, for `reset()`; holds none of them.
_living: "weakref.WeakSet[Compiled]" = weakref.WeakSet()


@overload
def compile(
    model: Target,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Target: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[Target], Target]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable = "preheat",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """`model` compiled: the same results, computed faster. The signature is torch.compile's.

    model      a function, bound method or other callable: returns a function that behaves like it. A
               staticmethod, classmethod or property: returns one of its compiled function.
               A `torch.nn.Module`: returns a module that shares its parameters, buffers, hooks and
               attributes and is an instance of its class. A class: its instances are called
               compiled; returns the class. Left out: returns a decorator.
    fullgraph  a call that is not one graph raises `UserError` at its first break, before the
               function that breaks it is called
    dynamic    None: a size that changes from one call to another is captured as a symbol, once for
               all its values;  True: so are all sizes of tensors in arguments, from the first call
               on;  False: each size is a variant of its own
    backend    "preheat";  "eager": captured graphs run op by op;  the name of a backend of
               torch.compile, such as "inductor", or a callable `(gm, example_inputs) -> callable`:
               it is given each captured graph, of ATen ops, as a `torch.fx.GraphModule`
    mode       a name of `base.options.MODES`, for the backend "preheat"
    options    a dict checked against `preheat.options()`
    disable    returns `model` as it is, as does PREHEAT_DISABLE=1

    Raises UserError for an unknown backend, mode or option (naming the nearest), a mode beside another
    backend, or a target that cannot be called.
    """
    settings = {
        "fullgraph": _checked_bool("fullgraph", fullgraph),
        "dynamic": dynamic if dynamic is None else _checked_bool("dynamic", dynamic),
        "backend": checked_backend(backend, registered),
        "mode": checked_mode(mode),
        "options": checked_options(options),
    }
    _checked_bool("disable", disable)
    if settings["backend"] != "preheat" and settings["mode"] != "default":
        raise UserError(f"mode={mode!r} is for the backend 'preheat': others have no modes here")
    if callable(settings["backend"]):
        settings["options"]["cache"] = False  # what a backend from outside makes cannot be kept
    if model is None:
        return functools.partial(_compile, settings=settings, is_disabled=disable)
    return _compile(model, settings, disable)


def bucketed(
    model: Callable, *, lengths: Sequence[int], dims: Mapping[str, int],
    fill: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
) -> Any:
    """`model` with the arguments `dims` (name -> axis) padded to the next of `lengths` and the results
    cut back: one static variant for each length, and each size of all other axes.

    fill    what stands in the padding, by argument: of a mask, the value that hides. An argument
            without one is padded with 0, and may hold anything there: that is checked at the first
            call of each length
    The same as `compile` with options={"buckets": {"length": {"lengths": ..., "dims": ..., "fill":
    ...}}}, which takes several names: batches and lengths, say. Raises UserError where the padding
    reaches the rest of the results or gradients, for arguments of different lengths, for lengths
    that are no positive integers, and for `options` with buckets of their own. Sizes beyond the last
    bucket are symbols.
    """
    _check_callable("compile", model)
    others = checked_options(options)
    if others["buckets"]:
        raise UserError(
            "bucketed(lengths, dims) is one name of options={'buckets': ...}, and was given others beside "
            "it: give all of them to preheat.compile(model, options={'buckets': {...}})")
    own = {"lengths": lengths, "dims": dims, "fill": {} if fill is None else fill}
    return compile(model, options={**others, "buckets": {"length": own}})


def mark_dynamic(
    tensor: Any, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None,
) -> None:
    """Says that the size of axis `dim` of `tensor` (or of each of several) changes from call to call,
    within `min` and `max`: it is a symbol from the first capture on.

    A program that is captured for one size of it alone raises UserError, with the line and the
    reason. Raises UserError for an axis that there is not, for bounds that are no sizes, and for a
    size that is not within them.
    """
    axes = _axes(tensor, dim)
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and (type(bound) is not int or bound < 0):
            raise UserError(f"{name} must be a size, an int that is not negative, got {bound!r}")
    if min is not None and max is not None and min > max:
        raise UserError(f"min={min} is more than max={max}: no size is within them")
    for axis in axes:
        size = tensor.shape[axis]
        if min is not None and size < min or max is not None and size > max:
            bounds = ", ".join(f"{name}={n}" for name, n in (("min", min), ("max", max)) if n is not None)
            raise UserError(f"axis {axis} of {list(tensor.shape)} is {size}, which is not within {bounds}")
    mark(tensor, dynamic=axes, bounds=tuple((axis, min, max) for axis in axes))


def mark_static(tensor: Any, dim: int | Sequence[int] | None = None) -> None:
    """Says that the size of axis `dim` of `tensor` (of all axes, if None) is no symbol: each of its
    values is a variant of its own. Raises UserError for an axis that there is not."""
    mark(tensor, static=_axes(tensor, range(getattr(tensor, "ndim", 0)) if dim is None else dim))


def _axes(tensor: Any, dim: int | Sequence[int]) -> tuple[int, ...]:
    if not isinstance(tensor, Tensor):
        raise UserError(f"sizes of a tensor can be marked, not of a {type(tensor).__name__}")
    if not isinstance(dim, Iterable):
        dim = (dim,)
    axes, rank = tuple(dim), tensor.dim()
    for axis in axes:
        if type(axis) is not int or not -rank <= axis < rank:
            raise UserError(f"there is no axis {axis!r} of {list(tensor.shape)}")
    return tuple(axis % rank for axis in axes)


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """`fn` (a function, module or class), never captured: plain Python, callees included.

    Also a decorator, with or without arguments; `reason` is for the reader. A module is changed in
    place and returned. Raises UserError for recursive=False, and for what cannot be called.
    """
    if reason is not None and not isinstance(reason, str):
        raise UserError(f"reason must be a text, got {reason!r}")
    if not _checked_bool("recursive", recursive):
        raise UserError(
            "disable(recursive=False) is not there: what a disabled function calls is compiled where it is "
            "decorated with preheat.compile itself: disable the function whole, and decorate those"
        )
    if fn is None:
        return functools.partial(disable, reason=reason)
    if is_module(fn):
        fn.forward = disable(fn.forward, reason=reason)
        return fn
    if isinstance(fn, type):
        fn.__call__ = disable(fn.__call__, reason=reason)
        return fn
    _check_callable("disable", fn)

    @functools.wraps(fn, updated=_updated(fn))
    def plain(*args: Any, **kwargs: Any) -> Any:
        if not marks.is_compiling():
            return fn(*args, **kwargs)
        with marks.capturing(False):
            return fn(*args, **kwargs)

    setattr(plain, marks.DISABLE, True)
    return plain


def explain(fn: Any) -> Callable[..., Explanation]:
    """A function that calls `fn` once, compiling it anew, and returns the `Explanation`.

    `fn` may be compiled already; its own variants and the cache on disk are left alone. What its calls have shown of
    sizes and numbers is known here, too, and told: which are symbols, which are pinned and why. Raises UserError for
    what cannot be called.
    """
    _check_callable("explain", fn)
    target, settings = _unwrapped(fn)
    settings = settings or {"options": checked_options(None)}
    fresh = _made(
        target,
        {**settings, "fullgraph": False, "options": {**settings["options"], "cache": False}},
    )
    fresh.tell_all()
    pairs = [*itertools.zip_longest(parts_of([fresh]), _called_before(fn))]
    for part, before in pairs:
        if before is not None:
            part.also_moving = lambda args, kwargs, before=before: moved_at(before.state[0], args, kwargs)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        return explain_call(lambda: fresh(*args, **kwargs), fresh.name, lambda: _known(pairs))

    return explained


def options() -> dict[str, Option]:
    """What `compile(options=...)` takes: name -> (type, default, meaning, minimum)."""
    return dict(OPTIONS)


def reset() -> None:
    """Forgets every compiled variant of this process; the cache on disk stays."""
    for compiled in list(_living):
        compiled.reset()


# ---------------------------------------------------------------------------- helpers
def _compile(model: Any, settings: dict[str, Any], is_disabled: bool) -> Any:
    if is_disabled or os.environ.get("PREHEAT_DISABLE") == "1" or marks.is_disabled(model):
        return model
    model, _ = _unwrapped(model)
    if is_module(model):
        return compiled_module(model, settings, _made)
    if isinstance(model, type):
        model.__call__ = _compile(_call_of(model), settings, is_disabled)
        return model
    if isinstance(model, staticmethod | classmethod):  # whose function is what is called
        return type(model)(_compile(model.__func__, settings, is_disabled))
    if isinstance(model, property):
        return model.getter(_compile(model.fget, settings, is_disabled))
    _check_callable("compile", model)
    compiled = _made(model, settings)

    @functools.wraps(model, updated=_updated(model))
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except BaseException as error:
            leaves_us(error)
            raise

    setattr(call, marks.COMPILED, compiled)
    step_over(call)
    return call


def _made(target: Callable, settings: dict[str, Any]) -> Compiled | Bucketed:
    options = settings["options"]
    if options.get("buckets"):
        return _bucketed(target, settings, options["buckets"])
    compiled = Compiled(target, **settings)
    _living.add(compiled)
    return compiled


def _bucketed(target: Callable, settings: dict[str, Any], buckets: Mapping[str, Any]) -> Bucketed:
    """One compiled function for each bucket, and one for longer inputs."""
    own = {**settings, "options": {**settings["options"], "buckets": {}}}
    padded = {**own, "dynamic": None if settings["dynamic"] else settings["dynamic"]}
    by_lengths = {
        lengths: _made(target, padded)
        for lengths in itertools.product(*(one.lengths for one in buckets.values()))}
    return Bucketed(target, settings, by_lengths, _made(target, own))


def _unwrapped(fn: Any) -> tuple[Any, dict[str, Any] | None]:
    """What `fn` compiles and how it was asked to; `fn` itself and None if it is not compiled."""
    if isinstance(fn, CompiledModule):
        return CompiledModule.original(fn), CompiledModule.settings(fn)
    compiled = marks.compiled_of(fn)
    if compiled is None:
        return marks.compiled_by_torch(fn) or fn, None
    if isinstance(compiled, Bucketed):
        return compiled.target, compiled.settings
    names = ("fullgraph", "dynamic", "backend", "mode", "options")
    return compiled.target, {name: getattr(compiled, name) for name in names}


def _called_before(fn: Any) -> Sequence[Compiled]:
    """What holds the variants of calls of `fn`; nothing if it is not compiled."""
    if isinstance(fn, CompiledModule):
        return parts_of(CompiledModule.holders(fn)[:1])
    compiled = marks.compiled_of(fn)
    return [] if compiled is None else parts_of([compiled])


def _known(pairs: Iterable[tuple[Compiled, Compiled | None]]) -> Known:
    """What is known of numbers by the first that has been called, and by what was called before it."""
    for part, before in pairs:
        places, pins = part.state
        if places:
            others, older = ((), {}) if before is None else before.state
            opened = known_of(places, pins, part.dynamic).symbols
            older = {guard: pin for guard, pin in older.items() if guard not in opened}
            return known_of((*places, *others), {**older, **pins}, part.dynamic)
    return Known()


def _call_of(cls: type) -> Callable:
    """The `__call__` that instances of `cls` are called by."""
    call = getattr(cls, "__call__", None)
    if not isinstance(call, types.FunctionType):
        raise UserError(f"cannot compile class {cls.__qualname__}: its instances cannot be called")
    return call


def _updated(fn: Any) -> tuple[str, ...]:
    """A function's own attributes go along; an object's state is not copied onto its wrapper."""
    return ("__dict__",) if isinstance(fn, types.FunctionType) else ()


def _check_callable(verb: str, fn: Any) -> None:
    if not callable(fn):
        raise UserError(
            f"cannot {verb} {fn!r} ({type(fn).__name__}): "
            f"give a function, a module or another callable"
        )


def _checked_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {value!r}")
    return value
