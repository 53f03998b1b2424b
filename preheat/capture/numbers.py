"""Numbers: which ints and floats of the program are only known when it runs, and how they are made.

    numbers.make(symbol("s3", "int"), 7)      an int 7 of its own, known to be source 3
    numbers.calculate(operator.add, (n, 1))   8, known to be s3 + 1
    numbers.pin(n)                            guard s3 value 7: the program has looked at it

A runtime number is an ordinary int or float of the program, told by its identity: no other object is
it, not even an equal one. So the program, and all of C, see a number like any other, and what does not
ask this table can never mistake it. What the program computes from one is one again, as long as
`ir.scalar` has the operation with the very type and value that Python gives; whatever else is done
with it (a comparison, an index, a key, text, a call of C) must be told here and pins the sources of
its expression at their present values. The machine asks at each operation on plain values, the
watcher at each call.

Source of the idea of small ints of one's own: CPython `Objects/longobject.c` `_PyLong_New`.
"""

import ctypes
import functools
import math
import operator
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from preheat.bridge.symint import box, combined, is_box, plain, scalar_of
from preheat.ir.scalar import Number, Scalar, symbols

NUMBERS = frozenset((int, float))
_CONSTANTS = frozenset((int, float, bool))
# What the program may do with a runtime number and get another one, and the operation it is.
OPERATIONS: dict[Callable, str] = {
    **{getattr(operator, name): name
       for name in "add sub mul truediv floordiv mod pow neg".split()},
    **{getattr(operator, "i" + name): name
       for name in "add sub mul truediv floordiv mod pow".split()},
    abs: "abs", min: "min", max: "max", float: "float", int: "int", round: "round",
    operator.abs: "abs", math.sqrt: "sqrt", math.exp: "exp", math.log: "log",
    math.log2: "log2", math.log10: "log10", math.sin: "sin", math.cos: "cos", math.tan: "tan",
    math.tanh: "tanh", math.pow: "fpow", math.floor: "floor", math.ceil: "ceil",
    math.trunc: "trunc",
}
_SAME = frozenset((operator.pos,))
_COUNTS = {"min": (2, 9), "max": (2, 9), "log": (1, 1), "pow": (2, 2)}
_WALKED = frozenset((
    list, tuple, dict, set, frozenset, deque, slice, OrderedDict, defaultdict,
))
_MAX_DEPTH = 50


def apply(function: Callable, args: tuple, kwargs: dict) -> Any:
    return function(*args, **kwargs)


class Numbers:
    """The runtime numbers of one node.

    table    id of a number -> (the number, its expression); whoever is in it is kept alive
    claim    told (source, value) of each number that the program has looked at
    """

    def __init__(
        self, table: dict[int, tuple[int | float, Scalar]],
        claim: Callable[[int, int | float], None],
    ) -> None:
        self.table, self._claim = table, claim
        self._values: dict[int, int | float] = {}  # source -> its number

    def of_source(self, source: int, value: int | float) -> int | float:
        """The number that source `source` gives, whose value now is `value`: always one object."""
        known = self._values.get(source)
        if known is None:
            known = self.make(symbol_of(source, value), value)
            self._values[source] = known
        return known

    def adopt(self, source: int, value: int | float) -> int | float:
        """`value`, an object of its own already, is what source `source` gives."""
        self._values[source] = value
        self.table[id(value)] = (value, symbol_of(source, value))
        return value

    def make(self, scalar: Scalar, value: int | float) -> int | float:
        """A new number, equal to `value`, that is `scalar`."""
        made = copied(value)
        self.table[id(made)] = (made, scalar)
        return made

    def scalar_of(self, value: Any) -> Scalar | None:
        """The expression of a runtime number, None for any other object."""
        known = self.table.get(id(value))
        return None if known is None else known[1]

    # ------------------------------------------------------------------ looking
    def pin(self, value: Any) -> None:
        """The program has looked at `value`: what it came from must stay. Others are left alone."""
        known = self.table.get(id(value))
        if known is not None:
            self.pin_scalar(known[1])

    def pin_scalar(self, scalar: Scalar) -> None:
        for name in symbols(scalar):
            source = int(name[1:])
            self._claim(source, self._values[source])

    def pin_all(self, value: Any, depth: int = 0) -> None:
        """C looks at `value`: pins each runtime number in it and in builtin containers under it."""
        if id(value) in self.table:
            self.pin(value)
        elif type(value) in _WALKED and depth < _MAX_DEPTH:
            for part in _parts(value):
                if type(part) in NUMBERS or type(part) in _WALKED:
                    self.pin_all(part, depth + 1)

    def holds_one(self, value: Any, depth: int = 0) -> bool:
        """Whether `value` is a runtime number, or a builtin container with one under it."""
        if id(value) in self.table:
            return True
        return type(value) in _WALKED and depth < _MAX_DEPTH and any(
            self.holds_one(part, depth + 1) for part in _parts(value))

    # ------------------------------------------------------------------ calculating
    def calculate(self, function: Callable, args: tuple, run: Callable = apply) -> Any:
        """`function(*args)`, done now, of plain values: a runtime number again where that can be.

        run    run(function, args, {}) makes the call
        """
        if function in _SAME and type(args[0]) in NUMBERS:
            return args[0]
        op = OPERATIONS.get(function)
        if op is None or not self._fits(op, args):
            for arg in args:
                self.pin_all(arg)
            return run(function, args, {})
        result = run(function, args, {})
        scalars: list[Number] = [self._scalar_or_value(arg) for arg in args]
        made = combined(op, scalars, list(args), result)
        if made is None:
            for arg in args:
                self.pin(arg)
            return result
        return self.make(made, result) if isinstance(made, Scalar) else result

    def _fits(self, op: str, args: tuple) -> bool:
        low, high = _COUNTS.get(op, (1, 2))
        return low <= len(args) <= high and all(type(arg) in _CONSTANTS for arg in args)

    # ------------------------------------------------------------------ through torch
    def boxed(self, value: Any) -> Any:
        """`value` with a symbolic number for each runtime number in it, lists and tuples deep."""
        known = self.table.get(id(value))
        if known is not None:
            return box(known[1], known[0], self.pin_scalar)
        if type(value) in (list, tuple) and self.holds_one(value):
            return type(value)([self.boxed(part) for part in value])
        return value

    def unboxed(self, value: Any) -> Any:
        """`value` with a runtime number for each symbolic one."""
        if is_box(value):
            scalar = scalar_of(value)
            return self.make(scalar, plain(value)) if isinstance(scalar, Scalar) else plain(value)
        if type(value) in (list, tuple) and any(map(is_box, value)):
            return type(value)([self.unboxed(part) for part in value])
        return value

    def _scalar_or_value(self, value: int | float | bool) -> Number:
        known = self.table.get(id(value))
        return value if known is None else known[1]


def symbol_of(source: int, value: int | float) -> Scalar:
    return Scalar("sym", (f"s{source}",), type(value).__name__)


def _parts(value: Any) -> list:
    kind = type(value)
    if issubclass(kind, dict):
        return [*value.keys(), *value.values()]
    if kind is slice:
        return [value.start, value.stop, value.step]
    return list(value)


# ---------------------------------------------------------------------------- objects of their own
def copied(value: int | float) -> int | float:
    """An int or float equal to `value`, bit by bit, that no other name leads to."""
    if type(value) is float:
        return struct.unpack("<d", struct.pack("<d", value))[0]
    size = value.bit_length() // 8 + 1
    data = value.to_bytes(size, "little", signed=True)
    made = int.from_bytes(data, "little", signed=True)
    if made is not int.from_bytes(data, "little", signed=True):
        return made
    return _small(value)


def _small(value: int) -> int:
    """A small int beside the one that CPython keeps: its memory copied into a new object."""
    new, header = _new_int()
    made = new(1)
    ctypes.memmove(id(made) + header, id(value) + header, value.__sizeof__() - header)
    return made


@functools.cache
def _new_int() -> tuple[Callable, int]:
    """(makes an int of one digit, its bytes before size, sign and digits)."""
    new = ctypes.pythonapi._PyLong_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_ssize_t]
    return new, object.__basicsize__
