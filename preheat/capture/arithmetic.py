"""Arithmetic: which of Python's functions are operations of runtime numbers, and what each of them does.

    OPERATIONS[operator.add]      "add" of `ir.scalar`, with the very type and value that Python gives
    is_operation(math.gcd)        True: Python computes it anew on each call

What is in no table here looks at the number, which pins it (`capture/numbers.py`).
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from preheat.base.numbers import joined
from preheat.ir.functions import CALLS, power
from preheat.ir.scalar import Number, Scalar, apply, type_of

NUMBERS = frozenset((int, float))
# What the program may do with a runtime number and get another one, and the operation it is.
OPERATIONS: dict[Callable, str] = {
    **{getattr(operator, name): name
       for name in "add sub mul truediv floordiv mod pow neg".split()},
    **{getattr(operator, "i" + name): name
       for name in "add sub mul truediv floordiv mod pow".split()},
    abs: "abs", pow: "pow", min: "min", max: "max", float: "float", int: "int", round: "round",
    operator.abs: "abs", math.sqrt: "sqrt", math.exp: "exp", math.log: "log",
    math.log2: "log2", math.log10: "log10", math.sin: "sin", math.cos: "cos", math.tan: "tan",
    math.tanh: "tanh", math.atan: "atan", math.sinh: "sinh", math.cosh: "cosh", math.expm1: "expm1",
    math.atan2: "atan2", math.pow: "fpow", math.floor: "floor", math.ceil: "ceil",
    math.trunc: "trunc",
}
# Texts made of runtime numbers are told apart as they are.
TEXTS: dict[Callable, str] = {str: "str", repr: "repr", format: "format", joined: "join"}
SAME: dict[Callable, frozenset] = {operator.pos: NUMBERS, operator.index: frozenset((int,))}
# Tests: which way they go is guarded, not the numbers themselves.
TESTS: dict[Callable, str] = {
    getattr(operator, name): name for name in ("eq", "ne", "lt", "le", "gt", "ge")
} | {bool: "bool"}
# Of floats: the same as tests.
PREDICATES: dict[Callable, Callable[[Scalar], Number]] = {
    math.isnan: lambda x: apply("ne", x, x),
    math.isfinite: lambda x: apply("eq", apply("sub", x, x), 0.0),
    math.isinf: lambda x: apply("and", apply("eq", x, x), apply("ne", apply("sub", x, x), 0.0)),
}
COUNTS = {
    "min": (2, 2), "max": (2, 2), "log": (1, 1), "pow": (2, 2), "atan2": (2, 2), "round": (1, 1), "int": (1, 1),
}
# Operations that raise outside their domain: the operand that decides, and its test against 0.
DOMAINS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("truediv", "floordiv", "mod"), (1, "ne")),
    **dict.fromkeys(("log", "log2", "log10"), (0, "gt")), "sqrt": (0, "ge"),
}
# What Python computes on each call (`ir/functions.py`).
CALLED: dict[Callable, str] = {
    **{row.compute: name for name, row in CALLS.items()},
    math.factorial: "factorial", math.comb: "comb", math.perm: "perm", operator.lshift: "lshift",
    operator.iand: "bitand", operator.ior: "bitor", operator.ixor: "bitxor",
    operator.ilshift: "lshift", operator.irshift: "rshift",
}
# Of these each part.
TUPLES: dict[Callable, tuple[str, ...]] = {
    math.modf: ("modf_0", "modf_1"), math.frexp: ("frexp_0", "frexp_1"),
    int.as_integer_ratio: ("ratio_0", "ratio_1"), float.as_integer_ratio: ("ratio_0", "ratio_1"),
}
# Each value of one operand gives another one.
_ONE_TO_ONE = frozenset("add sub neg float str repr format join".split())
# Raise where an operand is no finite number, or where no finite number comes of one.
OF_FINITE = frozenset("floor ceil trunc int round sin cos tan".split())
TO_FINITE = frozenset("exp expm1 sinh cosh pow fpow".split())


def is_operation(function: Any) -> bool:
    """Whether `Numbers.calculate` knows what `function` makes of runtime numbers."""
    try:
        return function is divmod or any(
            function in table for table in (OPERATIONS, PREDICATES, CALLED, TUPLES, SAME))
    except TypeError:  # a callable object that cannot be hashed
        return False


def is_one_to_one(number: Number) -> bool:
    """Whether each value of the one symbol in `number` gives another value."""
    if not isinstance(number, Scalar) or number.op == "sym":
        return True
    if number.op == "format" and number.args[1] != "" or type_of(number.args[0]) == "float":
        return False
    return number.op in _ONE_TO_ONE and all(map(is_one_to_one, number.args))


def has_power(base: int, exponent: int) -> bool:
    """Whether a power is computed on each call, see `ir.functions.power`."""
    try:
        power(base, exponent)
    except OverflowError:
        return False
    return True


def is_always_finite(number: Scalar) -> bool:
    """Whether a float is one whatever its operands are: it is made of integers, or Python has raised."""
    return number.op in ("float", "truediv") and all(type_of(arg) != "float" for arg in number.args)
