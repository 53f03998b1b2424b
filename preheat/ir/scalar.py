"""Scalars: numbers of the program that may only be known when it runs. `Dim` is the integer case.

    s0*8 + 1        Scalar("add", (Scalar("mul", (s0, 8)), 1), "int")

A number that is known is a plain `int`, `float` or `bool`, so a static size is its own constant
`Dim`. Building an expression folds constants; equal expressions are equal objects by value. The
operations are Python's own, on unbounded integers and on floats, with Python's errors.
"""

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, Union

from preheat.base.dataclass import dataclass
from preheat.ir.functions import CALLS, is_defined, power, type_of_result


def both(op: str) -> tuple[Callable, Callable]:
    """The two methods by which `op` is an operator of a class of numbers, `_of(op, first, second)`. Beside what is no
    number they give way: a value of a graph knows what a number times itself is."""
    def forth(self: "Scalar", other: "Number") -> "Number":
        return self._of(op, self, other) if isinstance(other, NUMBERS) else NotImplemented

    def back(self: "Scalar", other: "Number") -> "Number":
        return self._of(op, other, self) if isinstance(other, NUMBERS) else NotImplemented

    return forth, back


@dataclass(frozen=True, slots=True)
class Scalar:
    """`op` applied to `args`; `type` is "int", "float", "bool" or, of a text made of numbers, "str".
    A symbol has op "sym"."""

    op: str
    args: tuple["Number | str", ...]
    type: str

    __add__, __radd__ = both("add")
    __sub__, __rsub__ = both("sub")
    __mul__, __rmul__ = both("mul")
    __floordiv__, __rfloordiv__ = both("floordiv")
    __mod__, __rmod__ = both("mod")

    def __neg__(self) -> "Number":
        return apply("neg", self)

    def _of(self, op: str, *args: "Number") -> "Number":
        return apply(op, *args)

    def __str__(self) -> str:
        if self.op == "sym":
            return str(self.args[0])
        sign = INFIX.get(self.op)
        if sign:
            return f"({self.args[0]} {sign} {self.args[1]})"
        return f"{self.op}({', '.join(str(a) for a in self.args)})"


NUMBERS = (int, float, Scalar)
Number: TypeAlias = Union[int, float, bool, Scalar]
Dim: TypeAlias = Union[int, Scalar]

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}
EVALUATE: dict[str, Callable] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": power, "neg": operator.neg,
    "abs": abs, "min": min, "max": max, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "not": operator.not_,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "float": float, "int": int,
    "bool": bool, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round,
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "tanh": math.tanh, "fpow": math.pow,
    "atan": math.atan, "sinh": math.sinh, "cosh": math.cosh, "expm1": math.expm1,
    "atan2": math.atan2,
    "str": str, "repr": repr, "format": format, "join": lambda *parts: "".join(parts),
    "percent": operator.mod, "float32": lambda value: ctypes.c_float(value).value,
    "defined": is_defined, **{name: row.compute for name, row in CALLS.items()},
}
_BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "not", "and", "or", "bool", "defined"}
_FLOAT = {
    "truediv", "float", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "fpow",
    "float32", "atan", "sinh", "cosh", "expm1", "atan2",
}
_STR = {"str", "repr", "format", "join", "percent"}
_INT = {"int", "floor", "ceil", "trunc", "round"}


def symbol(name: str, type: str = "int") -> Scalar:
    """A number that the program's inputs decide."""
    return Scalar("sym", (name,), type)


def type_of(value: Number) -> str:
    """"int", "float" or "bool"."""
    return value.type if isinstance(value, Scalar) else type(value).__name__


def apply(op: str, *args: Number) -> Number:
    """`op` on `args`, folded when every argument is known and on the units 0 and 1."""
    if not any(isinstance(a, Scalar) for a in args):
        return EVALUATE[op](*args)
    if op in _STR:
        return Scalar(op, tuple(args), "str")
    if op in CALLS:
        return Scalar(op, tuple(args), type_of_result(op, [type_of(a) for a in args]))
    is_integer = all(type_of(a) != "float" for a in args)
    if len(args) == 2 and is_integer:
        a, b = args
        if op == "add" and _is(a, 0):
            return b
        if op in ("add", "sub") and _is(b, 0):
            return a
        if op == "mul" and (_is(a, 0) or _is(b, 0)):
            return 0
        if op == "mul" and _is(a, 1):
            return b
        if op in ("mul", "floordiv") and _is(b, 1):
            return a
    if op in _BOOL:
        result = "bool"
    elif op in _INT:
        result = "int"
    elif op in _FLOAT or not is_integer:
        result = "float"
    else:
        result = "int"
    return Scalar(op, tuple(args), result)


def _is(value: Number, constant: int) -> bool:
    return type(value) is int and value == constant


def evaluate(value: Number, symbols: Mapping[str, Number]) -> Number:
    """The value of `value` where each symbol has the value `symbols` gives it.

    Raises KeyError for a symbol without a value.
    """
    if not isinstance(value, Scalar):
        return value
    if value.op == "sym":
        return symbols[value.args[0]]
    return EVALUATE[value.op](*(evaluate(a, symbols) for a in value.args))


def symbols(value: object) -> Iterator[str]:
    """The names of the symbols in `value`, each time they occur."""
    if isinstance(value, Scalar):
        for arg in value.args:
            if value.op == "sym":
                yield arg
            else:
                yield from symbols(arg)


def python(value: Number, name: Callable[[str], str]) -> str:
    """`value` as a Python expression, `name(symbol)` for each symbol.

    Functions are called by their names in `FUNCTIONS`, infinities and NaNs are made by `float`.
    """
    if not isinstance(value, Scalar):
        is_odd = type(value) is float and not math.isfinite(value)
        return f"float('{value}')" if is_odd else f"({value!r})"
    if value.op == "sym":
        return name(value.args[0])
    args = [python(arg, name) for arg in value.args]
    sign = INFIX.get(value.op)
    return f"({args[0]} {sign} {args[1]})" if sign else f"op_{value.op}({', '.join(args)})"


FUNCTIONS: Mapping[str, Callable] = {f"op_{name}": function for name, function in EVALUATE.items()}
"""What the text of `python` calls."""


def told_apart(value: Number) -> tuple:
    """What equal numbers share, and others do not: 1 is not 1.0, nor 0.0 -0.0."""
    if isinstance(value, Scalar):
        if value.op == "sym":
            return value.op, value.args[0], value.type
        return value.op, *map(told_apart, value.args)
    return type(value), repr(value)


class Spelled:
    """Numbers by what they are (see `told_apart`): each expression is walked once, however many are made of it."""

    def __init__(self) -> None:
        self._places: dict[tuple, int] = {}
        self._known: dict[int, tuple[Scalar, int]] = {}  # by identity, with what has it

    def place(self, value: Number) -> int:
        """A number that equal ones share, and others do not."""
        if not isinstance(value, Scalar):
            return self._places.setdefault((type(value), repr(value)), len(self._places))
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if value.op == "sym":
            key: tuple = told_apart(value)
        else:
            key = value.op, *map(self.place, value.args)
        place = self._places.setdefault(key, len(self._places))
        self._known[id(value)] = value, place
        return place


def product(dims) -> Dim:
    """The product of `dims`; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total
