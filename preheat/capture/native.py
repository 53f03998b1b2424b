"""Calls into C, one function for each kind of `policies.py`: how the watcher performs them.

    CALLS["op"](watcher, torch.relu, (x,), {}, row)      the result, recorded
    CALLS["refuse"](watcher, time.time, (), {}, row)     GiveUp("host_call", "time.time")

Each looks at what C is about to look at (and so pins it), performs the call, and judges the result.
Raises GiveUp without a result if it did not perform the call, with the result if it did. The call
itself goes through `watcher.perform`, which tells the program's exceptions from our own faults.
"""

import _abc
import functools
import inspect
import itertools
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.ambient import AMBIENT, WHEN_READ
from preheat.bridge.calls import Call, reads_memory
from preheat.bridge.tensors import Tensor
from preheat.capture.identities import has_identity
from preheat.capture.modes import SameInferenceMode
from preheat.capture.observer import GiveUp
from preheat.capture.policies import CALLING_BACK, CALLING_C, is_bound, is_fresh_iterator, policy
from preheat.capture.size_attention import lengths_apart
from preheat.capture.sources import PRIMITIVES
from preheat.capture.spoken import makes_text
from preheat.ir.trace import Constant

_INSTANCECHECK = _abc._abc_instancecheck
_INPLACE = frozenset(
    getattr(operator, name) for name in dir(operator)
    if name[0] == "i" and hasattr(operator, f"__{name}__")
    and name not in ("is_", "is_not", "index", "inv", "invert")
) | {operator.setitem, operator.delitem}
_CALLABLE = frozenset((types.FunctionType, types.MethodType, functools.partial))
_OF_PAIRS = frozenset((dict, OrderedDict, defaultdict))
_HASHING_ALL = frozenset((set, frozenset)) | _OF_PAIRS
_ITERATING = frozenset((enumerate, zip, reversed))  # what comes of them is advanced by the machine
_HASHING_METHODS = frozenset(("fromkeys", "union", "__or__"))
_ONLY_LOOKING = frozenset(("pure", "identity", "shallow", "operator"))
_LAZY = CALLING_C | {map, filter}
_CHANGING = frozenset((list, set, dict, deque))
_QUICK = PRIMITIVES | {Tensor}
_NUMBERS = frozenset((int, float, complex, bool))


def _op(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    if kwargs.get("requires_grad"):
        raise GiveUp("new_leaf", describe(function))
    for arg in args:
        if type(arg) not in _QUICK:
            watcher.look(arg, 0)
    for arg in kwargs.values():
        if type(arg) not in _QUICK:
            watcher.look(arg, 0)
    result = watcher.perform(function, args, kwargs)
    watcher.check(result)
    if type(result) is Tensor and identity(result) in watcher.recorder.values:
        return result
    if not _is_seen(watcher, lengths_apart(args, result)):
        detail = f"{describe(function)} gave a {type(result).__qualname__}"
        raise GiveUp("tensor_escape", detail, result)
    return result


def _reader(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """An op that, for some arguments, reads elements of a tensor unseen by the recorder."""
    if reads_memory(function, (*_operands(function, args), *kwargs.values())):
        raise GiveUp("data_dependent_number", describe(function))
    return _op(watcher, function, args, kwargs, row)


def _operands(function: Any, args: tuple) -> tuple:
    """The arguments, after what a bound method is bound to."""
    return (function.__self__, *args) if is_bound(function) else args


def _is_seen(watcher: Any, result: Any) -> bool:
    """Whether the recorder or a guard accounts for what an op gave."""
    if result is None or result is NotImplemented:
        return True
    if isinstance(result, Tensor):
        return identity(result) in watcher.recorder.values or identity(result) in watcher.known
    return isinstance(result, list | tuple) and all(_is_seen(watcher, part) for part in result)


def _judge(watcher: Any, args: tuple) -> Callable[[Any], None]:
    """How to look at what a function of C is given: at more, where it calls a function of C among `args` on elements.
    That must only look at them."""
    called = [arg for arg in args if callable(arg) and type(arg) is not types.FunctionType]
    for arg in called:
        kind = "pure" if arg is type else policy(arg).kind
        if kind not in _ONLY_LOOKING or kind == "operator" and arg in _INPLACE:
            raise GiveUp("host_call", describe(arg))
    if not called:
        return lambda value: watcher.look(value, 0)
    is_text = any(map(makes_text, called))
    return lambda value: watcher.look_through(value, is_text)


def _metadata(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    result = watcher.perform(function, args, kwargs)
    watcher.check(result)
    return result


def _pure(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    if getattr(function, "__objclass__", None) in _NUMBERS:
        result = watcher.perform(function, args, kwargs)
        if result is NotImplemented:  # of a class it does not know: it looked at nothing else
            return result
    if is_bound(function):
        watcher.look_own(function.__self__)
    everything = (*args, *kwargs.values())
    calls_back = function in CALLING_BACK
    if not calls_back and any(type(arg) in _CALLABLE for arg in everything):
        raise GiveUp("opaque_argument", f"{describe(function)} with a function to call")
    calls_back = calls_back or type(function) is type and function in CALLING_C
    judge = _judge(watcher, everything if calls_back else ())
    for arg in everything:
        if type(arg) not in PRIMITIVES:
            judge(arg)
    if calls_back or any(is_fresh_iterator(type(arg)) for arg in args):
        args = tuple(_watched(watcher, arg, judge, function in _LAZY) for arg in args)
    result = watcher.perform(function, args, kwargs)
    watcher.check(result)
    return result


def _watched(watcher: Any, iterator: Any, judge: Callable[[Any], None], is_lazy: bool = False) -> Any:
    """An iterator whose elements are judged as C takes them; anything else as it is. `is_lazy`: C takes them later,
    of a container that may have changed by then.

    A refusal cannot stop C half way: it is noted, and the watcher gives up when C is done.
    """
    kind = type(iterator)
    if not (is_fresh_iterator(kind) or is_lazy and kind in _CHANGING and identity(iterator) not in watcher.known):
        return iterator

    def take(element: Any) -> Any:
        try:
            judge(element)
        except GiveUp as refused:
            watcher.note(refused.reason, refused.detail)
        return element

    return map(take, iterator)


def _shallow(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    if is_bound(function):
        watcher.shallow(function.__self__)
    everything = (*args, *kwargs.values())
    if function in CALLING_BACK and any(callable(arg) and type(arg) is not types.FunctionType for arg in everything):
        judge = _judge(watcher, everything)
        for arg in everything:
            judge(arg)
        args = tuple(_watched(watcher, arg, judge, function in _LAZY) for arg in args)
    else:
        for arg in everything:
            watcher.shallow(arg, function in _ITERATING)
    is_counting = function is enumerate or getattr(function, "__module__", "") == "itertools"
    for arg in _taken(function, args) + (tuple(kwargs.values()) if is_counting else ()):
        watcher.taken(arg)
    if function in _HASHING_ALL or getattr(function, "__name__", "") in _HASHING_METHODS:
        for arg in args:
            watcher.hashed(arg)
        judge = watcher.compare_first if function in _OF_PAIRS else watcher.compare
        args = tuple(_watched(watcher, arg, judge) for arg in args)
    result = watcher.perform(function, args, kwargs)
    watcher.check(result)
    return result


def _taken(function: Any, args: tuple) -> tuple:
    """The arguments whose elements C takes, or which it asks for a number: others it moves as they are."""
    if function is functools.reduce or function is next:
        return ()
    return args[1:] if function is itertools.repeat else args


def _get(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    owner, key, *default = _operands(function, args)
    owner = watcher.behind(owner, type(owner))
    if watcher.is_keyed(owner, key):
        raise GiveUp("changing_key", f"{key!r}")
    watcher.compare(key)
    result = watcher.perform(function, args, kwargs)
    if identity(owner) in watcher.known:
        if dict.__contains__(owner, key):
            number = watcher.guards.item(owner, key, result)
            return result if number is None else number
        watcher.guards.no_item(owner, key)
    return result


def _contains(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    owner, *rest = _operands(function, args)
    if not issubclass(type(owner), (dict, set, frozenset)) or len(rest) != 1:
        return _pure(watcher, function, args, kwargs, row)
    watcher.compare(rest[0])
    result = watcher.perform(function, args, kwargs)
    if identity(owner) in watcher.known:
        watcher.read_contains(owner, rest[0], result)
    return result


def _fill(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    owner, *rest = _operands(function, args)
    watcher.refuse_write(owner, f"{type(owner).__qualname__}.{function.__name__}")
    for arg in (*rest, *kwargs.values()):
        watcher.shallow(arg)
    if watcher.asks_python(owner, function.__name__, rest):
        watcher.look(rest[0], 0)
    if rest and not issubclass(type(owner), (list, deque)):
        watcher.compare(rest[0])
    return watcher.perform(function, args, kwargs)


def _perform(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    return watcher.perform(function, args, kwargs)


def _asked(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    name = WHEN_READ[function]
    if args or kwargs:  # the state is what it gives without any
        raise GiveUp("host_call", describe(function))
    watcher.guards.claim(-1, "ambient", (name, AMBIENT[name]()), name)
    return watcher.perform(function, args, kwargs)


def _refuse(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    raise GiveUp(row.reason, describe(function))


def _element(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """The number in a tensor: known, a runtime number, or asked for on every call."""
    operands = _operands(function, args)
    number = watcher.element(operands[0]) if len(operands) == 1 and not kwargs else None
    if number is None:
        raise GiveUp(row.reason, describe(function))
    return number


def _unchanged(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """`requires_grad_` of a tensor that is so already."""
    operands = _operands(function, args)
    wanted = operands[1] if len(operands) > 1 else kwargs.get("requires_grad", True)
    if type(wanted) is not bool or operands[0].requires_grad is not wanted:
        raise GiveUp(row.reason, describe(function))
    return watcher.perform(function, args, kwargs)


def _detached(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """`detach_`, of which below autograd nothing is seen."""
    operand = _operands(function, args)[0]
    if operand.requires_grad and not watcher.recorder.may_detach(operand):
        raise GiveUp(row.reason, describe(function))
    return watcher.perform(function, args, kwargs)


def _referent(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """A weak reference: what it refers to is asked again whenever guards are checked."""
    result = watcher.perform(function, (), {})
    if identity(function) in watcher.known:
        source = watcher.sources.step(watcher.known[identity(function)], "result", ("",))
        watcher.guards.meet(source, result)
    return result


def _acquire(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """A lock: what it protects is not written here, so a replay need not take it."""
    owner = _operands(function, args)[0]
    result = watcher.perform(function, args, kwargs)
    if result is True:
        watcher._locks[identity(owner)] = watcher._locks.get(identity(owner), 0) + 1
    return result


def _release(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    owner = _operands(function, args)[0]
    count = watcher._locks.pop(identity(owner), 0)
    if count == 0:
        raise GiveUp("host_call", describe(function))
    if count > 1:
        watcher._locks[identity(owner)] = count - 1
    return watcher.perform(function, args, kwargs)


def _operator(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    if function in _INPLACE and not issubclass(type(args[0]), Tensor):
        watcher.refuse_write(args[0], f"{describe(function)} of a {type(args[0]).__qualname__}")
    return watcher.operate(function, args)


def _identity_number(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    (value,) = args
    if identity(value) in watcher.known:
        watcher.guards.distinct(watcher.known[identity(value)])
    return id(value)


def _class(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    result = watcher.perform(function, args, kwargs)
    if len(args) == 3:
        watcher.born(result, "class")
    return result


def _view(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    view = watcher.perform(function, args, kwargs)
    watcher._behind[identity(view)] = (view, args[0])
    return view


def _import(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    with watcher.recorder.paused():
        module = watcher.perform(function, args, kwargs)
    watcher.sources.of(module)
    return module


def _dispatch_depth(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """The recorder is itself a dispatch mode, which the program must not see."""
    return watcher.perform(function, (), {}) - watcher.recorder.is_entered


def _again(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """The result becomes a source: the same call is made again whenever guards are checked."""
    owner, *rest = _operands(function, args)
    result = watcher.perform(function, args, kwargs)
    if any(owner is variable for variable, _, _ in watcher.contexts.values()):
        return result  # what this node itself has set
    if kwargs or identity(owner) not in watcher.known:
        raise GiveUp("host_call", describe(function), result)
    asked = (function.__name__, *[_constant(watcher, arg) for arg in rest])
    number = watcher.guards.meet(
        watcher.sources.step(watcher.known[identity(owner)], "result", asked), result)
    return result if number is None else number


def _cached(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """functools.lru_cache: the program says that the result follows from the arguments."""
    constants = [_constant(watcher, arg) for arg in args]
    names = [("=", name, _constant(watcher, arg)) for name, arg in kwargs.items()]
    wrapper = watcher.sources.of(function)
    watcher.guards.wrapped(function)
    watcher.pin_function(function.__wrapped__)
    with watcher.recorder.paused():  # what it makes outlives the call
        result = watcher.perform(function, args, kwargs)
    if type(result) not in PRIMITIVES and not has_identity(result, type(result)):
        asked = ("", *constants, *names)
        watcher.guards.meet(watcher.sources.step(wrapper, "result", asked), result)
    return result


def _abstract(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    cls, value = args
    result = watcher.perform(function, args, {})
    is_instance = function is _INSTANCECHECK
    if is_instance and identity(value) in watcher.known:
        watcher.guards.claim(
            watcher.known[identity(value)], "isinstance", (watcher.sources.name(cls), result), cls)
    elif not is_instance or type(value).__flags__ & (1 << 9):
        kind = type(value) if is_instance else value
        watcher.guards.claim(
            watcher.sources.of(kind), "issubclass", (watcher.sources.name(cls), result), cls)
    return result


def _signature(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """inspect.signature and its kin: they look at the code and the defaults of functions."""
    for arg in args:
        inner = getattr(arg, "__func__", arg) if type(arg) is types.MethodType else arg
        if type(inner) is types.FunctionType and not watcher.is_made(inner):
            watcher.pin_function(inner)
        elif type(inner) is not types.FunctionType and not issubclass(type(inner), type):
            raise GiveUp("opaque_argument", f"{describe(function)} of a {type(arg).__qualname__}")
    result = watcher.perform(function, args, kwargs)
    if type(result) is inspect.Signature:
        watcher._behind[identity(result.parameters)] = (result, dict(result.parameters))
    return result


def _inference_mode(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """The mode that is on already: what is left of it. Another one, and one that the program entered
    before, would take the recorder's own mode away or bring it back."""
    if kwargs or len(args) != 1 or args[0] is not watcher.is_inference:
        raise GiveUp("inference_mode_inside")
    return SameInferenceMode(*args)


def _set_context(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    owner, *rest = _operands(function, args)
    token = watcher.perform(function, args, kwargs)
    watcher.contexts[identity(token)] = owner, rest[0], token
    return token


def _reset_context(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    """Undone in the node that did it: nobody saw it. Else a host call, with the token it was given."""
    rest = _operands(function, args)[1:]
    if not rest or identity(rest[0]) not in watcher.contexts:
        raise GiveUp("host_call", describe(function))
    del watcher.contexts[identity(rest[0])]
    return watcher.perform(function, args, kwargs)


def _checkpoint(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    return watcher.regions.open(function, *args)


def _end_checkpoint(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    return watcher.regions.close(function, args)


def _whole_checkpoint(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    raise GiveUp("checkpoint", watcher.regions.why_whole(args, kwargs))


def _own_gradients(watcher: Any, function: Any, args: tuple, kwargs: dict, row: Call) -> Any:
    raise GiveUp("autograd_function", describe(args[0]))


CALLS: dict[str, Callable] = {
    "op": _op, "reader": _reader, "metadata": _metadata, "ambient": _perform, "asked": _asked,
    "set_ambient": _perform, "nothing": _perform, "pure": _pure, "shallow": _shallow,
    "identity": _perform, "fill": _fill, "get": _get, "contains": _contains, "again": _again, "cached": _cached,
    "abc": _abstract, "refuse": _refuse, "signature": _signature, "inference_mode": _inference_mode,
    "set_context": _set_context, "reset_context": _reset_context, "constant": _perform,
    "referent": _referent, "element": _element, "unchanged": _unchanged, "detached": _detached, "import": _import,
    "view": _view, "class": _class,
    "operator": _operator, "id": _identity_number,
    "acquire": _acquire, "release": _release, "dispatch_depth": _dispatch_depth,
    "checkpoint": _checkpoint, "end_checkpoint": _end_checkpoint, "whole_checkpoint": _whole_checkpoint,
    "own_gradients": _own_gradients,
}


def describe(function: Any) -> str:
    """The name of a callable for a report."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    owner = getattr(function, "__self__", None)
    if is_bound(function):
        name = f"{type(owner).__qualname__}.{function.__name__}"
    module = getattr(function, "__module__", None) or getattr(type(owner), "__module__", "")
    return name if module in ("builtins", "", None) else f"{module}.{name}"


def _constant(watcher: Any, value: Any) -> Constant:
    """An argument that a guard can name: a primitive, a constant object, one with a source."""
    kind = type(value)
    if kind in PRIMITIVES:
        return value
    if has_identity(value, kind) and not watcher.is_made(value):
        return watcher.sources.constant(value)
    if identity(value) in watcher.known and not issubclass(kind, Tensor):
        return watcher.sources.constant(value)
    raise GiveUp("opaque_argument", f"a {kind.__module__}.{kind.__qualname__}")
