"""Models of builtins that call back into Python: the machine stays in charge of what they call.

    len(layers)                 ->  Frame(ModuleList.__len__)
    sorted(rows, key=weight)    ->  sorted(rows, key=<native function: the machine runs weight>)
    getattr(o, "x", None)       ->  the attribute search of `attributes.py`, then the default

Guarantees the results, the order of callbacks and the errors of the originals. What C still does by
itself: the `__lt__`, `__eq__` and `__hash__` of elements inside C containers, and of sorts without a key.
"""

import abc
import collections
import functools
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.capture import attributes, generators, items, operations, polyfills, ranges, texts
from preheat.capture.answers import judged
from preheat.capture.attributes import OBJECT_DELETE, OBJECT_GET, OBJECT_SET
from preheat.capture.callbacks import by_greater, by_less, holds_numbers, iterates_in_python, tester, trampoline
from preheat.capture.calls import c_call, invoke, mutate
from preheat.capture.classes import common
from preheat.capture.frames import Frame, and_then, attempt
from preheat.capture.lists import hangs_on_key, is_taken_by_c, with_numbers
from preheat.capture.models import MODELS, method, models
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is

# ------------------------------------------------------------------------------------- callbacks
def iterable(m, value: Any, is_at_once: bool = False) -> Any:
    """`value`, or an iterator that the machine drives when iterating it would run Python. `is_at_once`: C takes all
    elements here and now, so that no list has changed by then."""
    if iterates_in_python(m, value):
        return generators.drive_iterator(m, m.finish(operations.iterate(m, value)))
    if m.read_whole is not None and identity(value) in m.known and not is_taken_by_c(m, value):
        if type(value) is tuple or is_at_once and type(value) is list:
            return with_numbers(m, value)
        m.read_whole(value)
    return value


def with_callback(
    function: Callable, at: int | None, keyword: str | None, iterables: slice,
    decide: Callable | None = None,
) -> None:
    """Models `function`: argument `at` or `keyword` is a callback, those in `iterables` are
    iterated. `decide(m, result)`: what C shall see of what the callback gives.
    """

    def model(m, args, kwargs):
        args = list(args)
        if function is not tuple or not args or type(args[0]) is not tuple:  # it gives back a tuple itself
            args[iterables] = [iterable(m, value, function in AT_ONCE) for value in args[iterables]]
        if keyword in kwargs:
            kwargs[keyword] = trampoline(m, kwargs[keyword], decide)
        elif function is sorted and holds_numbers(m, args) and kwargs.keys() <= {"reverse"}:
            made = sorted(*args, key=lambda value: by_less(m, value), **kwargs)  # C compares by the machine alone
            if m.born is not None:
                m.born(made, "result")
            return made
        if at is not None and at < len(args):
            args[at] = trampoline(m, args[at], decide)
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


AT_ONCE = frozenset((sorted, any, all, list, tuple, set, frozenset, functools.reduce))
FIRST, REST, SECOND, EACH = slice(0, 1), slice(1, None), slice(1, 2), slice(0, None)
for row in (
    (map, 0, None, REST), (functools.reduce, 0, None, SECOND),
    (sorted, None, "key", FIRST, by_less), (any, None, None, FIRST), (all, None, None, FIRST),
    (list, None, None, FIRST), (tuple, None, None, FIRST),
    (set, None, None, FIRST), (frozenset, None, None, FIRST),
    (enumerate, None, None, FIRST), (zip, None, None, EACH),
    *((taker, None, None, FIRST) for taker in (
        collections.deque, itertools.islice, itertools.cycle, itertools.pairwise, itertools.accumulate,
        itertools.combinations, itertools.permutations, itertools.combinations_with_replacement)),
    *((taker, None, None, EACH) for taker in (itertools.chain, itertools.product, itertools.zip_longest)),
):  # fmt: skip
    with_callback(*row)


@models(range)
def model_range(m, args, kwargs):
    if any(type(arg) not in operations.PLAIN and
           operations.runs_python(m.lookup(arg, type(arg), "__index__")) for arg in args):
        return invoke(m, polyfills.range_of, tuple(args))
    ranges.check_step(m, args)
    return c_call(m, range, args, kwargs)


@models(filter)
def model_filter(m, args, kwargs):
    if len(args) != 2:
        return c_call(m, filter, args, kwargs)
    return c_call(m, filter, (tester(m, args[0]), iterable(m, args[1])), kwargs)


@models(itertools.compress)
def model_compress(m, args, kwargs):
    if kwargs or len(args) != 2 or not m.is_watching:
        return c_call(m, itertools.compress, args, kwargs)
    selectors = map(tester(m, None), iterable(m, args[1]))
    return c_call(m, itertools.compress, (iterable(m, args[0]), selectors), None)


def of_generators(function: Callable, polyfill: Callable) -> None:
    """Models `function` of one iterable also where that is a generator of the program's, by `polyfill`."""
    by_c = MODELS[function]

    def model(m, args, kwargs):
        is_own = len(args) == 1 and not kwargs and generators.is_own(args[0])
        if is_own and m.is_watching and identity(args[0]) not in m.known:
            return invoke(m, polyfill, tuple(args))
        return by_c(m, args, kwargs)

    MODELS[function] = model


for row in ((list, polyfills.list_of), (tuple, polyfills.tuple_of), (any, polyfills.any_of), (all, polyfills.all_of)):
    of_generators(*row)


@models(sum)
def model_sum(m, args, kwargs):
    if kwargs or len(args) not in (1, 2) or not (
            type(args[0]) is types.GeneratorType or m.is_watching and is_added_in_machine(m, args[0])):
        return c_call(m, sum, [iterable(m, value, is_at_once=True) for value in args[:1]] + list(args[1:]), kwargs)
    return invoke(m, polyfills.sum_of, tuple(args))


def is_added_in_machine(m, value: Any) -> bool:
    """Whether a list or tuple that the call made holds what C would add up unseen, at the sizes that it has; or a
    range is as long as a number that changes says."""
    return ranges.is_changing(m, value) or type(value) in (list, tuple) and identity(value) not in m.known and any(map(m.observer.has_sizes, value))


def extremum(function: Callable, decide: Callable) -> None:
    """Models min or max: of one iterable, or of its arguments. `decide`: what C shall compare of a key."""

    def model(m, args, kwargs):
        if len(args) == 1:
            args = (iterable(m, args[0], is_at_once=True),)
        if "key" in kwargs:
            kwargs["key"] = trampoline(m, kwargs["key"], decide)
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


extremum(min, by_less)
extremum(max, by_greater)


@method("sort", list)
def model_sort(m, function, owner, args, kwargs):
    seen = {**kwargs, "key": trampoline(m, kwargs["key"], by_less)} if "key" in kwargs else kwargs
    if m.mutate is None:
        return c_call(m, function, args, seen)
    return mutate(m, function, owner, "sort", args, kwargs, seen)


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
    if (
        kwargs
        or not 1 <= len(args) <= 2
        or type(args[0]) not in operations.PLAIN
        or m.c_call is None
        or hangs_on_key(m, owner, args[0])
    ):
        return c_call(m, function, args, kwargs)
    operations.look_at(m, args[0])
    value = dict.get(owner, args[0], ABSENT)
    is_known = identity(owner) in m.known
    if value is not ABSENT:
        if is_known and m.read_item is not None:
            other = m.read_item(owner, args[0], value)
            return value if other is None else other
        return value
    if is_known and m.miss_item is not None:
        m.miss_item(owner, args[0])
    return args[1] if len(args) == 2 else None


# ----------------------------------------------------------------------------------- attributes
def is_attribute_call(m, args: tuple | list, kwargs: dict, *counts: int) -> bool:
    if kwargs or len(args) not in counts or type(args[1]) is not str:
        return False
    operations.look_at(m, args[1])
    return True


def has_changing_name(m, args: tuple | list) -> bool:
    """Whether a host call finds an attribute of what is from outside, whose name is made of a number that changes."""
    return len(args) > 1 and identity(args[1]) in m.numbers and (
        m.observer.has_answer() or identity(args[0]) in m.known and m.observer.is_changing_key(args[1]))


@models(getattr)
def model_getattr(m, args, kwargs):
    if has_changing_name(m, args) or not is_attribute_call(m, args, kwargs, 2, 3):
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
    if not is_attribute_call(m, args, kwargs, 2):
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
    if not is_attribute_call(m, args, kwargs, 3):
        return c_call(m, setattr, args, kwargs)
    return and_then(attributes.store(m, *args), always_none, None, None, m)


@models(delattr)
def model_delattr(m, args, kwargs):
    if not is_attribute_call(m, args, kwargs, 2):
        return c_call(m, delattr, args, kwargs)
    return and_then(attributes.delete(m, *args), always_none, None, None, m)


def always_none(m, _: Any, value: Any) -> None:
    return None


@models(OBJECT_GET)
def model_generic_getattribute(m, args, kwargs):
    if not is_attribute_call(m, args, kwargs, 2):
        return c_call(m, object.__getattribute__, args, kwargs)
    value = attributes.load_generic(m, args[0], type(args[0]), args[1])
    return object.__getattribute__(*args) if value is ABSENT else value


@models(OBJECT_SET)
def model_generic_setattr(m, args, kwargs):
    if not is_attribute_call(m, args, kwargs, 3) or not is_generic(m, args[0]):
        return c_call(m, object.__setattr__, args, kwargs)
    return and_then(attributes.store_plain(m, *args), always_none, None, None, m)


@models(type.__dict__["__setattr__"])
def model_type_setattr(m, args, kwargs):
    if not is_attribute_call(m, args, kwargs, 3) or not is_class(args[0]):
        return c_call(m, type.__setattr__, args, kwargs)
    return and_then(attributes.store_plain(m, *args), always_none, None, None, m)


@models(OBJECT_DELETE)
def model_generic_delattr(m, args, kwargs):
    if not is_attribute_call(m, args, kwargs, 2) or not is_generic(m, args[0]):
        return c_call(m, object.__delattr__, args, kwargs)
    return and_then(attributes.delete_plain(m, *args), always_none, None, None, m)


def is_generic(m, owner: Any) -> bool:
    """Whether `object.__setattr__` and its kin may be applied to `owner`."""
    setter = m.lookup(owner, type(owner), "__setattr__")
    return not is_class(owner) and (m.view(type(owner)).is_heap or common(setter) is OBJECT_SET)


def is_class(value: Any) -> bool:
    return issubclass(type(value), type)


# --------------------------------------------------------------------- one argument, one dunder
def by_operation(function: Callable, operation: Callable) -> None:
    """Models `function` of one argument as `operation`; other counts are C's to refuse."""

    def model(m, args, kwargs):
        if len(args) == 1 and not kwargs:
            return operation(m, args[0])
        return c_call(m, function, args, kwargs)

    MODELS[function] = model


by_operation(len, ranges.length)
by_operation(bool, operations.truth)
by_operation(str, texts.text)
by_operation(repr, texts.representation)


@models(iter)
def model_iter(m, args, kwargs):
    if len(args) == 1 and not kwargs:
        return operations.iterate(m, args[0])
    if len(args) == 2 and not kwargs and callable(args[0]):
        if m.is_watching:
            return invoke(m, polyfills.iterate_calls, tuple(args))
        return c_call(m, iter, (trampoline(m, args[0]), args[1]), None)
    return c_call(m, iter, args, kwargs)


@models(next)
def model_next(m, args, kwargs):
    if kwargs or not 1 <= len(args) <= 2:
        return c_call(m, next, args, kwargs)
    if generators.is_own(args[0]) and identity(args[0]) not in m.known:
        return operations.directly(m, args[0], next, *args)
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


@models(format)
def model_format(m, args, kwargs):
    if kwargs or not 1 <= len(args) <= 2 or len(args) == 2 and type(args[1]) is not str:
        return c_call(m, format, args, kwargs)
    return texts.format_value(m, args[0], args[1] if len(args) == 2 else "")


def judged_by_c(function: Callable, *dunders: str) -> None:
    """Models `function`, which calls one of `dunders` and checks what it gave: C does the
    checking.
    """

    def check(m, place, result):
        dunder, rest = place
        made = judged(function, dunder, result, *rest)
        if made is not result:  # C has made another number of it
            operations.look_at(m, result)
        return made

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


# ---------------------------------------------------------------------------------------- types
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
    """isinstance or issubclass: a Python check of the class is interpreted, abc's and C's are
    told.
    """
    if type(classinfo) is tuple:
        if m.test_type is not None and not any(has_own_check(m, cls, dunder) for cls in classinfo):
            return tested(m, function, value, classinfo)
        return any(m.finish(type_test(m, function, dunder, value, cls)) for cls in classinfo)
    if has_own_check(m, classinfo, dunder) and not (
        function is isinstance and type(value) is classinfo
    ):
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


# ------------------------------------------------------------------------------ module operator
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
model_operator("getitem", lambda m, _, container, key: items.subscript(m, container, key), 2)
model_operator(
    "contains", lambda m, _, container, value: items.contains(m, container, value), 2
)
model_operator("truth", lambda m, _, value: operations.truth(m, value), 1)
