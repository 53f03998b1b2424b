"""Numbers as rows: what a program computed of outside numbers, and which way a test of it went.

    s4 = number (s2 % 2 == 0)      load     the pointer to s2; its type; its word into slot 3
    guard s4 is True               compute  slot 5 = slot 3 % slot 4
                                   compute  slot 5 == slot 6, and a guard does not hold if not

`ir/scalar` says what the operations mean. Integers are words of 64 bits, floats the bits of
doubles; what has no row here (a power, a sine, text) is computed in Python on every call.
"""

import ctypes
import functools
import struct
from typing import Any

from preheat.ir.rows import ALL_BITS, ZERO
from preheat.ir.scalar import Number, Scalar, evaluate, type_of
from preheat.ir.trace import Source
from preheat.run.layout import WORD
from preheat.run.places import Places, impl
from preheat.run.resolve import Values
from preheat.run.table import NotNative, Table
from preheat.run.tensor_layout import INLINE_RANK

_INT, _FLOAT = ("int", "bool"), ("float",)
_EXACT = 1 << 53  # up to here every integer is a double
# Operations of two operands: what each is for integers and for floats, and whether the operands
# change places.
_TWO: dict[str, tuple[str, str, bool]] = {
    "add": ("int_add", "float_add", False), "sub": ("int_sub", "float_sub", False),
    "mul": ("int_mul", "float_mul", False), "truediv": ("", "float_truediv", False),
    "floordiv": ("int_floordiv", "", False), "mod": ("int_mod", "", False),
    "min": ("int_min", "float_min", False), "max": ("int_max", "float_max", False),
    "eq": ("int_eq", "float_eq", False), "lt": ("int_lt", "float_lt", False),
    "le": ("int_le", "float_le", False), "gt": ("int_lt", "float_lt", True),
    "ge": ("int_le", "float_le", True),
}
_COMPARED = frozenset(("eq", "lt", "le", "gt", "ge"))
_LOGICAL = frozenset(("and", "or"))
# What one operation says by another and its opposite.
_OPPOSITE = {"ne": "eq"}


def add_test(places: Places, scalar: Scalar, answer: bool) -> None:
    """Rows: the test `scalar`, whose answer now is `answer`, still has it. Raises NotNative."""
    _Writer(places).decide(scalar, answer)


class _Writer:
    """Slots of numbers, from the leaves up. A slot goes with the type of what is in it."""

    def __init__(self, places: Places):
        self.places, self.table = places, places.table

    def decide(self, scalar: Number, answer: bool) -> None:
        """A row that differs exactly where the answer is another one."""
        if not isinstance(scalar, Scalar):
            raise NotNative
        op = scalar.op
        if op == "not":
            self.decide(scalar.args[0], not answer)
        elif op in _OPPOSITE:
            self.decide(Scalar(_OPPOSITE[op], scalar.args, "bool"), not answer)
        elif op in _COMPARED:
            self.table.decide(*self.operands(scalar), int(answer))
        elif op == "bool" and type_of(scalar.args[0]) != "str":
            slot, kind = self.slot(scalar.args[0])
            zero = self.constant(0 if kind == "int" else 0.0)
            self.table.decide(f"{kind}_eq", slot, zero, int(not answer))
        elif scalar.type == "bool":
            slot, _ = self.slot(scalar)
            self.table.decide("int_eq", slot, self.constant(int(answer)), 1)
        else:
            raise NotNative

    def slot(self, number: Number) -> tuple[int, str]:
        """A slot with the word of `number`, and "int" or "float"."""
        if not isinstance(number, Scalar):
            return self.constant(number), "float" if type(number) is float else "int"
        if number.op == "sym":
            return source_slot(self.places, int(number.args[0][1:]))
        if number.op in _TWO:
            operation, left, right = self.operands(number)
            return self.computed(operation, left, right, number)
        if number.op in _LOGICAL and all(type_of(a) == "bool" for a in number.args):
            left, right = (self.slot(a)[0] for a in number.args)
            return self.computed(number.op, left, right, number)
        one = _ONE.get(number.op)
        if one is None or len(number.args) != 1:
            raise NotNative
        return one(self, number, *self.slot(number.args[0]))

    def operands(self, scalar: Scalar) -> tuple[str, int, int]:
        """The operation for two operands of one type, and their slots."""
        if len(scalar.args) != 2:
            raise NotNative
        for_ints, for_floats, is_turned = _TWO[scalar.op]
        (left, left_kind), (right, right_kind) = map(self.slot, scalar.args)
        is_int = left_kind == right_kind == "int" and for_ints != ""
        if not is_int:
            left = self.as_float(left, left_kind, scalar.args[0])
            right = self.as_float(right, right_kind, scalar.args[1])
        operation = for_ints if is_int else for_floats
        if not operation or scalar.op in ("min", "max") and left_kind != right_kind:
            raise NotNative
        return (operation, right, left) if is_turned else (operation, left, right)

    def as_float(self, slot: int, kind: str, number: Number) -> int:
        if kind == "float":
            return slot
        value = self.value(number)
        if not -_EXACT <= value <= _EXACT:
            raise NotNative
        return self.table.compute("float_of_int", slot, ZERO, _word(float(value)))

    def computed(self, operation: str, left: int, right: int, number: Scalar) -> tuple[int, str]:
        value = self.value(number)
        kind = "float" if type(value) is float else "int"
        if kind != ("float" if number.type == "float" else "int"):
            raise NotNative
        return self.table.compute(operation, left, right, _word(value)), kind

    def constant(self, value: int | float) -> int:
        return self.table.constant(_word(value))

    def value(self, number: Number) -> Any:
        """What it is in the call at hand."""
        return evaluate(number, Values(self.places.found))


def _of_int(name: str):
    """An operation that has one form for integers and one for floats."""
    def write(writer: _Writer, number: Scalar, slot: int, kind: str) -> tuple[int, str]:
        if kind == "int" and name == "neg":
            return writer.computed("int_sub", writer.constant(0), slot, number)
        return writer.computed(f"{kind}_{name}", slot, ZERO, number)

    return write


def _float(writer: _Writer, number: Scalar, slot: int, kind: str) -> tuple[int, str]:
    return writer.as_float(slot, kind, number.args[0]), "float"


def _int(writer: _Writer, number: Scalar, slot: int, kind: str) -> tuple[int, str]:
    if kind == "int":
        return slot, kind
    return writer.computed("int_of_float", slot, ZERO, number)


def _sqrt(writer: _Writer, number: Scalar, slot: int, kind: str) -> tuple[int, str]:
    operand = writer.as_float(slot, kind, number.args[0])
    return writer.computed("float_sqrt", operand, ZERO, number)


_ONE = {
    "neg": _of_int("neg"), "abs": _of_int("abs"), "float": _float, "int": _int, "trunc": _int,
    "sqrt": _sqrt,
}


def _word(value: int | float) -> int:
    """The 64 bits of a number. Raises NotNative if it has more."""
    if type(value) is float:
        return int.from_bytes(struct.pack("<d", value), "little")
    if not -(1 << 63) <= value < 1 << 63:
        raise NotNative
    return value & ALL_BITS


def source_slot(places: Places, number: int) -> tuple[int, str]:
    """A slot with the word of the number at a source, and "int" or "float"."""
    source, value = places.sources[number], places.found[number]
    table, where = places.table, places.layout
    if type(value) not in (int, float, bool):
        raise NotNative
    if source.kind == "len" and number in places.numbers:
        return _length_slot(places, source.parent), "int"
    if source.kind in ("size", "stride"):
        return _axis_slot(places, source), "int"
    kind, place = "float" if type(value) is float else "int", places.at(number)
    if place.is_fixed:
        if number in places.numbers:
            raise NotNative  # it is another one on each call, and no row leads to it
        return table.constant(_word(value)), kind
    places.type_of(number)
    slot = table.slot()
    if kind == "float":
        places.word(place, where.float_value, mask=0, save=slot)
        return slot, kind
    bits, word = _int_readers()
    if table.call(bits, place.base, mask=ALL_BITS ^ 63) & ~63:
        raise NotNative
    table.call(word, place.base, mask=0, save=slot)
    return slot, kind


def _length_slot(places: Places, parent: int) -> int:
    """A slot with the length of the list, tuple or dict at a source."""
    kind = type(places.found[parent])
    offset = places.layout.size
    if issubclass(kind, dict):
        offset = places.layout.dict_used
    elif not issubclass(kind, (list, tuple)):
        raise NotNative
    places.type_of(parent)
    slot = places.table.slot()
    places.word(places.at(parent), offset, mask=0, save=slot)
    return slot


def _axis_slot(places: Places, source: Source) -> int:
    """A slot with the size, or the stride, of an axis of a tensor."""
    where, rank = places.tensors, places.found[source.parent].dim()
    if where is None:
        raise NotNative
    places.type_of(source.parent)
    place, _ = impl(places, source.parent)
    places.word(place, where.rank, decides=True)  # where the sizes are hangs on it
    slot = places.table.slot()
    if rank <= INLINE_RANK:
        start = where.sizes if source.kind == "size" else where.strides
        places.word(place, start + WORD * source.key, mask=0, save=slot)
    else:  # sizes, then strides, outside
        outside = places.follow(place, where.sizes)
        index = source.key + (rank if source.kind == "stride" else 0)
        places.word(outside, WORD * index, mask=0, save=slot)
    return slot


@functools.cache
def _int_readers() -> tuple[int, int]:
    """C functions of an int: how many bits it has, and its word where these are at most 63."""
    names = "_PyLong_NumBits", "PyLong_AsUnsignedLongLongMask"
    functions = [getattr(ctypes.pythonapi, name, None) for name in names]
    if None in functions:
        raise NotNative
    bits, word = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    ask = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.py_object)
    for value in (0, 1, -1, 77, -(1 << 31), (1 << 62) + 3, -(1 << 63) + 1, True):
        if ask(bits)(value) != value.bit_length() or ask(word)(value) != value & ALL_BITS:
            raise NotNative
    return bits, word
