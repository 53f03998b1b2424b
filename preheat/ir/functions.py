"""Functions of numbers that Python computes anew on each call: one row each, found by the name of their operation.

    math.gcd(n, 12)     apply("gcd", s3, 12)        an int
    math.asin(n / 9)    apply("asin", s3 / 9)       a float, where "defined(asin, s3 / 9)" holds
    int(text)           apply("parsed_int", text)

A row says of which type the result is, by the types of the arguments alone, and whether the function may raise for some of
them. `ir/scalar.py` has the operations that graphs and rows of the check know, too.
"""

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preheat.base.dataclass import dataclass

_ANY = 1 << 16
MOST = 1 << 10  # factors of a product, places of a shift
_MOST_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Function:
    """`compute` of numbers. `type`: of the result, or "first": that of the first argument, or "mixed": a float if any
    argument is one. `takes`: the types of the arguments."""

    compute: Callable
    type: str
    least: int = 1
    most: int = 1
    is_total: bool = False
    takes: frozenset[str] = frozenset(("int", "float", "bool"))


_INTS, _TEXT = frozenset(("int", "bool")), frozenset(("str",))


def _of(module: Any, names: str, type: str, **facts: Any) -> dict[str, Function]:
    """Rows of the functions of `module` that this version of Python has."""
    return {name: Function(getattr(module, name), type, **facts) for name in names.split() if hasattr(module, name)}


def _bounded(function: Callable, place: int = 0) -> Callable:
    """`function`, which takes long where the argument at `place` is large: then it raises an OverflowError."""
    def compute(*args: int) -> int:
        if args[min(place, len(args) - 1)] > MOST:
            raise OverflowError("too large to be computed on each call")
        return function(*args)

    return compute


def power(base: float, exponent: float) -> float:
    """`base ** exponent`; an OverflowError where it is an int of more bits than are computed on each call."""
    if type(base) is int and type(exponent) is int and base.bit_length() * exponent > _MOST_BITS:
        raise OverflowError("too large to be computed on each call")
    return base ** exponent


def _part(function: Callable, place: int) -> Callable:
    return lambda *args: function(*args)[place]


def _dist(*ends: float) -> float:
    middle = len(ends) // 2
    return math.dist(ends[:middle], ends[middle:])


CALLS: Mapping[str, Function] = {
    **_of(math, "gcd lcm", "int", least=0, most=_ANY, is_total=True, takes=_INTS),
    "isqrt": Function(math.isqrt, "int", takes=_INTS), "factorial": Function(_bounded(math.factorial), "int", takes=_INTS),
    **{name: Function(_bounded(getattr(math, name), 1), "int", 2, 2, takes=_INTS) for name in ("comb", "perm")},
    **_of(math, "log1p exp2 asin acos atanh acosh gamma lgamma erf erfc asinh cbrt degrees radians ulp", "float"),
    **_of(math, "fabs", "float", is_total=True),
    **_of(math, "copysign fmod remainder nextafter", "float", least=2, most=2),
    **_of(math, "ldexp", "float", least=2, most=2),
    **_of(math, "fma", "float", least=3, most=3),
    **_of(math, "hypot", "float", least=0, most=_ANY),
    "prod": Function(lambda *parts: math.prod(parts), "mixed", 0, _ANY),
    "sum": Function(lambda *parts: builtins.sum(parts), "mixed", 0, _ANY),
    "fsum": Function(lambda *parts: math.fsum(parts), "float", 0, _ANY),
    "dist": Function(_dist, "float", 0, _ANY),
    "log_base": Function(math.log, "float", 2, 2),
    "powmod": Function(pow, "int", 3, 3, takes=_INTS),
    "rounded": Function(round, "first", 2, 2),
    **{f"bit{name}": Function(getattr(operator, f"{name}_"), "int", 2, 2, True, _INTS) for name in ("and", "or")},
    "bitxor": Function(operator.xor, "int", 2, 2, True, _INTS),
    "invert": Function(operator.invert, "int", 1, 1, True, _INTS),
    "lshift": Function(_bounded(operator.lshift, 1), "int", 2, 2, takes=_INTS),
    "rshift": Function(operator.rshift, "int", 2, 2, takes=_INTS),
    **_of(int, "bit_length bit_count conjugate", "int", is_total=True, takes=_INTS),
    "hash": Function(hash, "int", 1, 1, True, frozenset(("int", "float", "bool"))),
    **{name: Function(getattr(builtins, name), "str", 1, 1, True, _INTS) for name in ("bin", "hex", "oct")},
    **{f"ratio_{k}": Function(_part(lambda x: x.as_integer_ratio(), k), "int") for k in (0, 1)},
    "modf_0": Function(_part(math.modf, 0), "float"), "modf_1": Function(_part(math.modf, 1), "float"),
    "frexp_0": Function(_part(math.frexp, 0), "float"), "frexp_1": Function(_part(math.frexp, 1), "int"),
    "parsed_int": Function(int, "int", takes=_TEXT), "parsed_float": Function(float, "float", takes=_TEXT),
    "len": Function(len, "int", is_total=True, takes=_TEXT), "ord": Function(ord, "int", takes=_TEXT),
    "is_whole": Function(float.is_integer, "bool", is_total=True, takes=frozenset(("float",))),
    "isclose": Function(math.isclose, "bool", 2, 2),
}


def is_defined(name: str, *args: Any) -> bool:
    """Whether the operation `name` gives something of these arguments, and does not raise."""
    try:
        CALLS[name].compute(*args)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return True


def type_of_result(name: str, types: Sequence[str]) -> str:
    """The type of what the operation gives of arguments of these types."""
    made = CALLS[name].type
    if made == "mixed":
        return "float" if "float" in types else "int"
    if made == "first":
        return "float" if types[0] == "float" else "int"
    return made
