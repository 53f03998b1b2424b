"""Operators, subscripts, truth, iteration and containment, with Python dunders interpreted.

    binary(m, operator.add, vector, 1)     ->  Frame(Vector.__add__), then Frame(...__radd__) where
                                               that gave NotImplemented
    binary(m, operator.add, 2, 3)          ->  5
    truth(m, record)                       ->  Frame(Record.__bool__), its result checked

Each gives a value or a frame. Where no class involved has a Python dunder for it, C does the whole
operation, through `observer.operate` unless the operands are plain. Guarantees CPython's order of
attempts (a subclass's reflected dunder goes first) and its error messages. Source: CPython
`Objects/abstract.c` `binary_op1`, `Objects/typeobject.c` `SLOT1BINFULL`, data model docs.
"""

import operator
import types
from collections.abc import Callable
from types import FunctionType
from typing import Any

from preheat.base.callers import Exhausted
from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.base.names import mro_of
from preheat.capture import polyfills
from preheat.capture.answers import judged
from preheat.capture.calls import bind_special, invoke, with_handled
from preheat.capture.frames import END, and_then, attempt
from preheat.capture.iterators import C_ITERATORS, HOSTED
from preheat.capture.lists import is_iterated_anew, is_moving, with_numbers
from preheat.capture.observer import ABSENT
from preheat.capture.tracebacks import raise_as_is

PLAIN = frozenset(
    (int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented))
)
SEQUENCES = (list, tuple, str, bytes, bytearray)
CONTAINERS = frozenset((list, tuple, dict, set, frozenset, range, slice))
SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@",
    "pow": "** or pow()", "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """What an operator of module `operator` is made of: its dunders and its symbol."""

    inplace: str
    dunder: str
    reflected: str
    symbol: str


def rows() -> dict[Callable, Row]:
    table = {}
    for name, symbol in SYMBOLS.items():
        plain = getattr(operator, name + "_" if name in ("and", "or") else name)
        table[plain] = Row("", f"__{name}__", f"__r{name}__", symbol)
        inplace_symbol = "**=" if name == "pow" else symbol + "="
        table[getattr(operator, "i" + name)] = Row(
            f"__i{name}__", f"__{name}__", f"__r{name}__", inplace_symbol
        )
    return table


ROWS = rows()
COMPARISONS = {
    operator.lt: Row("", "__lt__", "__gt__", "<"),
    operator.le: Row("", "__le__", "__ge__", "<="),
    operator.eq: Row("", "__eq__", "__eq__", "=="),
    operator.ne: Row("", "__ne__", "__ne__", "!="),
    operator.gt: Row("", "__gt__", "__lt__", ">"),
    operator.ge: Row("", "__ge__", "__le__", ">="),
}
OBJECT_NE = object.__dict__["__ne__"]


def operate(m, function: Callable, *args: Any) -> Any:
    """An operation that C does, made by the observer."""
    handled = m.handled.current()
    if m.operate is None:
        return function(*args) if handled is None else with_handled(m, handled, function, *args)
    if handled is None:
        return m.operate(function, args)
    return with_handled(m, handled, m.operate, function, args)


def calculate(m, function: Callable, *args: Any) -> Any:
    """Arithmetic of C on plain values; the observer's, where it tells one of them apart."""
    if m.calculate is not None and any(identity(arg) in m.numbers for arg in args):
        return m.calculate(function, args)
    return function(*args)


def look_at(m, *values: Any) -> None:
    """Tells that C is about to look at `values`."""
    if m.numbers and m.look_at is not None:
        for value in values:
            m.look_at(value)


# ----------------------------------------------------------------------------- binary operators
def binary(m, function: Callable, left: Any, right: Any) -> Any:
    """`left + right` and its kin, in-place ones too."""
    left_class, right_class = type(left), type(right)
    if left_class in PLAIN and right_class in PLAIN:
        return calculate(m, function, left, right) if m.numbers else function(left, right)
    row = ROWS[function]
    left_heap, right_heap = m.view(left_class).is_heap, m.view(right_class).is_heap
    if left_heap or right_heap:
        tries = attempts(m, row, left, right, left_heap, right_heap)
        if tries is not None:
            return try_next(m, (row, tries, left, right), NotImplemented)
    if left_class in CONTAINERS:
        return operate_container(m, function, row, left, right)
    value = operate(m, function, left, right)
    if m.born is not None and type(value) not in PLAIN:
        m.born(value, "result")
    return value


def operate_container(m, function: Callable, row: Row, left: Any, right: Any) -> Any:
    """Operators on builtin containers: concatenation, unions; the in-place ones are writes."""
    if row.inplace and type(left) in (list, dict, set):
        if is_moving(m, right) or m.observer.is_opaque(left, row.inplace, (right,), {}):
            return operate(m, function, left, right)
        if m.read_whole is not None and identity(right) in m.known:
            m.read_whole(right)
        if m.mutate is not None:
            m.mutate(left, row.inplace, (right,), {})
        return function(left, right)
    for part in (left, right):
        if m.read_whole is not None and identity(part) in m.known and not is_moving(m, part):
            m.read_whole(part)
    value = operate(m, function, left, right)
    if m.born is not None:
        m.born(value, "result")
    return value


def attempts(m, row: Row, left: Any, right: Any, left_heap: bool, right_heap: bool) -> list | None:
    """The calls to try, last one first, or None when no Python is involved."""
    left_class, right_class = type(left), type(right)
    inplace = m.lookup(left, left_class, row.inplace) if row.inplace and left_heap else ABSENT
    forward = m.lookup(left, left_class, row.dunder) if left_heap else ABSENT
    backward = m.lookup(right, right_class, row.reflected) if right_heap else ABSENT
    if not (runs_python(inplace) or runs_python(forward) or runs_python(backward)):
        return None
    if not left_heap:
        if row.inplace:
            inplace = m.lookup(left, left_class, row.inplace)
        forward = m.lookup(left, left_class, row.dunder)
    if not right_heap:
        backward = m.lookup(right, right_class, row.reflected)
    tries = []
    if left_class is right_class:
        backward = ABSENT
    forward_call, backward_call = (forward, left, right), (backward, right, left)
    if (
        issubclass(left_class, SEQUENCES)
        and not runs_python(forward)
        and row.dunder in ("__add__", "__mul__")
    ):
        order = (backward_call, forward_call)  # sequences concatenate after both number protocols
    elif (
        left_class is not right_class
        and is_subtype(right_class, left_class)
        and backward is not m.lookup(left, left_class, row.reflected)
    ):
        order = (backward_call, forward_call)
    else:
        order = (forward_call, backward_call)
    for call in reversed(order):
        if call[0] is not ABSENT:
            tries.append(call)
    if inplace is not ABSENT:
        tries.append((inplace, left, right))
    return tries


def is_subtype(cls: type, base: type) -> bool:
    """CPython's PyType_IsSubtype: by MRO, no `__subclasscheck__`."""
    return any(each is base for each in mro_of(cls))


def runs_python(raw: Any) -> bool:
    """A dunder that is not C's: a function, or any other object with a call of its own."""
    return raw is not ABSENT and raw is not None and type(raw) not in C_DUNDERS


C_DUNDERS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


def try_next(m, state: tuple, result: Any) -> Any:
    """`result`, unless it is NotImplemented and another attempt is left."""
    row, tries, left, right = state
    while result is NotImplemented:
        if not tries:
            raise TypeError(
                f"unsupported operand type(s) for {row.symbol}: "
                f"'{type(left).__name__}' and '{type(right).__name__}'"
            )
        raw, first, second = tries.pop()
        result = and_then(call_dunder(m, raw, first, second), try_next, None, state, m)
    return result


def call_dunder(m, raw: Any, owner: Any, *args: Any) -> Any:
    """A dunder of the class of `owner`, bound by its own descriptor, called."""
    if type(raw) is FunctionType or type(raw) in C_DUNDERS:
        return invoke(m, raw, (owner, *args))
    getter = m.lookup(raw, type(raw), "__get__")
    if type(getter) is FunctionType:
        return and_then(invoke(m, getter, (raw, owner, type(owner))), call_bound, None, args, m)
    return invoke(m, raw if getter is ABSENT else raw.__get__(owner, type(owner)), args)


def call_bound(m, args: tuple, bound: Any) -> Any:
    return invoke(m, bound, args)


def unary(m, function: Callable, value: Any) -> Any:
    """`-value`, `+value`, `~value`."""
    cls = type(value)
    if cls in PLAIN:
        return calculate(m, function, value) if m.numbers else function(value)
    raw = m.lookup(value, cls, f"__{function.__name__.rstrip('_')}__")
    if runs_python(raw):
        return call_dunder(m, raw, value)
    result = operate(m, function, value)
    if m.born is not None and type(result) not in PLAIN:
        m.born(result, "result")
    return result


# ---------------------------------------------------------------------------------- comparisons
def compare(m, function: Callable, left: Any, right: Any) -> Any:
    """`left < right` and its kin."""
    left_class, right_class = type(left), type(right)
    if left_class in PLAIN and right_class in PLAIN:
        return calculate(m, function, left, right) if m.numbers else function(left, right)
    row = COMPARISONS[function]
    forward = m.lookup(left, left_class, row.dunder) if m.view(left_class).is_heap else ABSENT
    backward = (
        m.lookup(right, right_class, row.reflected) if m.view(right_class).is_heap else ABSENT
    )
    negates = function is operator.ne and (
        defaults_to_eq(m, left, left_class, forward)
        or defaults_to_eq(m, right, right_class, backward)
    )
    if not (runs_python(forward) or runs_python(backward) or negates):
        return compare_by_c(m, function, left, right)
    forward = m.lookup(left, left_class, row.dunder)
    backward = m.lookup(right, right_class, row.reflected)
    tries = [(forward, left, right)]
    if left_class is not right_class and is_subtype(right_class, left_class):
        tries.append((backward, right, left))
    else:
        tries.insert(0, (backward, right, left))
    return compare_next(m, (function, row, tries, left, right), NotImplemented)


def defaults_to_eq(m, value: Any, cls: type, raw: Any) -> bool:
    """object.__ne__ over a Python `__eq__`: it inverts what that gives."""
    return raw is OBJECT_NE and runs_python(m.lookup(value, cls, "__eq__"))


def compare_next(m, state: tuple, result: Any) -> Any:
    function, row, tries, left, right = state
    while result is NotImplemented:
        if not tries:
            if function in (operator.eq, operator.ne):
                return (left is right) is (function is operator.eq)
            raise TypeError(
                f"'{row.symbol}' not supported between instances of "
                f"'{type(left).__name__}' and '{type(right).__name__}'"
            )
        raw, first, second = tries.pop()
        if raw is OBJECT_NE:
            equal = m.lookup(first, type(first), "__eq__")
            call = and_then(call_comparison(m, equal, first, second), invert, None, None, m)
        else:
            call = call_comparison(m, raw, first, second)
        result = and_then(call, compare_next, None, state, m)
    return result


def call_comparison(m, raw: Any, owner: Any, other: Any) -> Any:
    """A comparison dunder, called; one that cannot be bound counts as NotImplemented, as in C."""
    if type(raw) is FunctionType or type(raw) in C_DUNDERS:
        return invoke(m, raw, (owner, other))
    try:
        bound = bind_special(m, raw, owner, type(owner))
    except Exception:
        return NotImplemented
    return invoke(m, bound, (other,))


def invert(m, _: None, result: Any) -> Any:
    if result is NotImplemented:
        return result
    return and_then(truth(m, result), negate, None, None, m)


def negate(m, _: None, result: bool) -> bool:
    return not result


def is_same(m, left: Any, right: Any) -> bool:
    """`left is right`. A small int that the observer tells apart is the one that CPython keeps."""
    if left is right or not m.numbers or not type(left) is type(right) is int:
        return left is right
    look_at(m, left, right)
    return left + 0 is right + 0


def compare_by_c(m, function: Callable, left: Any, right: Any) -> Any:
    for part in (left, right):
        if type(part) in CONTAINERS and m.read_whole is not None and identity(part) in m.known:
            m.read_whole(part)
    result = operate(m, function, left, right)
    if m.born is not None and type(result) not in PLAIN:
        m.born(result, "result")
    return result


# ------------------------------------------------------------------- truth, length, containment
def truth(m, value: Any) -> Any:
    """`bool(value)`."""
    cls = type(value)
    if cls in PLAIN:
        return calculate(m, bool, value) if m.numbers else bool(value)
    raw = m.lookup(value, cls, "__bool__")
    if raw is ABSENT:
        raw = m.lookup(value, cls, "__len__")
        if runs_python(raw):
            return and_then(call_dunder(m, raw, value), length_is_true, None, None, m)
        if raw is not ABSENT and issubclass(cls, tuple(CONTAINERS_WITH_LENGTH)):
            if m.read_length is not None and identity(value) in m.known:
                number = m.read_length(value, len(value))
                if number is not None:
                    return calculate(m, bool, number)
            return bool(value)
    elif runs_python(raw):
        return and_then(call_dunder(m, raw, value), check_bool, None, None, m)
    if m.test_truth is not None:
        return m.test_truth(value)
    return bool(value)


CONTAINERS_WITH_LENGTH = (list, tuple, dict, set, frozenset)


def check_bool(m, _: None, result: Any) -> bool:
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def length_is_true(m, _: None, result: Any) -> Any:
    return truth(m, check_length(m, None, result))


def length(m, value: Any) -> Any:
    """`len(value)`."""
    cls = type(value)
    raw = m.lookup(value, cls, "__len__")
    if runs_python(raw):
        return and_then(call_dunder(m, raw, value), check_length, None, None, m)
    if issubclass(cls, CONTAINERS_WITH_LENGTH):
        result = len(value)
        if m.read_length is not None and identity(value) in m.known:
            number = m.read_length(value, result)
            return result if number is None else number
        return result
    if cls in PLAIN:
        return calculate(m, len, value) if m.numbers else len(value)
    return operate(m, len, value)


def check_length(m, _: None, result: Any) -> int:
    """What C makes of the result of a Python `__len__`."""
    if type(result) is int and calculate(m, operator.le, 0, result) and result < 1 << 63:
        return result
    look_at(m, result)
    return judged(len, "__len__", result)


def truth_of(m, _: None, result: Any) -> Any:
    return truth(m, result)


# ------------------------------------------------------------------------------------ iteration
def iterate(m, value: Any, is_alone: bool = False) -> Any:
    """`iter(value)`. `is_alone`: it is all that an instruction does, so it may be a host call."""
    cls = type(value)
    raw = m.lookup(value, cls, "__iter__")
    if runs_python(raw):
        return and_then(call_dunder(m, raw, value), check_iterator, None, None, m)
    if raw is ABSENT and runs_python(m.lookup(value, cls, "__getitem__")):
        return invoke(m, polyfills.iterate_by_index, (value,))
    if is_alone and (m.observer.has_answer() or is_iterated_anew(m, value) or cls is range and m.numbers):
        return operate(m, iter, value)
    if identity(value) in m.known and m.read_whole is not None:
        if is_alone and cls in HOSTED:
            return value
        if cls is tuple:
            value = with_numbers(m, value)
        else:
            m.read_whole(value)
    if cls is str or cls is range:
        look_at(m, value)
    result = iter(value) if issubclass(cls, ITERATED_BY_C) else operate(m, iter, value)
    if m.born is not None:
        m.born(result, "iterator")
    return result


ITERATED_BY_C = (list, tuple, dict, set, frozenset, str, range, types.GeneratorType)


def check_iterator(m, _: None, result: Any) -> Any:
    if m.lookup(result, type(result), "__next__") is ABSENT:
        raise TypeError(f"iter() returned non-iterator of type '{type(result).__name__}'")
    return result


def advance(m, iterator: Any) -> Any:
    """`next(iterator, END)`."""
    cls = type(iterator)
    if cls in C_ITERATORS:
        return next(iterator, END)
    raw = m.lookup(iterator, cls, "__next__")
    if runs_python(raw):
        return attempt(m, stop_is_end, None, call_dunder, raw, iterator)
    try:
        return operate(m, next, iterator)
    except StopIteration as stop:
        stop.__traceback__ = None
        return END


def advance_once(m, iterator: Any) -> Any:
    """`next(iterator, END)`, as all that an instruction does."""
    cls = type(iterator)
    if cls is types.GeneratorType:
        return directly(m, iterator, next, iterator, END)
    if cls in HOSTED and (identity(iterator) in m.known or m.observer.has_answer()):
        found = operate(m, next, iterator, Exhausted)
        return END if found is Exhausted else found
    if cls is enumerate:  # it counts after its iterator has been advanced
        return directly(m, iterator.__reduce__()[1][0], next, iterator, END)
    return advance(m, iterator)


def directly(m, generator: Any, function: Callable, *args: Any) -> Any:
    """`function(*args)`, which only advances `generator`: done anew, it would do so again."""
    m.direct = generator
    try:
        return function(*args)
    finally:
        m.direct = None


def stop_is_end(m, _: None, error: BaseException) -> Any:
    if isinstance(error, StopIteration):
        return END
    raise_as_is(error)
