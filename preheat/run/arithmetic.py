"""Numbers as rows: what a program computed of outside numbers, and which way a test of it went.

    s4 = number (s2 % 2 == 0)      load     the pointer to s2; its type; its word into slot 3
    guard s4 is True               compute  slot 5 = slot 3 % slot 4
                                   compute  slot 5 == slot 6, and a guard does not hold if not

`ir/scalar` says what the operations mean. Integers are words of 64 bits, floats the bits of
doubles; a power or a sine is what C's
function gives, as in Python; what has no row here (text) is computed in Python on every call.
"""

import ctypes
import functools
import math
import struct
import types
from collections.abc import Sequence
from typing import Any

import torch

from preheat.ir.rows import ALL_BITS, ZERO
from preheat.ir.scalar import EVALUATE, Number, Scalar, evaluate, symbol, type_of
from preheat.ir.trace import Source
from preheat.run.layout import WORD
from preheat.run.places import Places, impl
from preheat.run.resolve import Values
from preheat.run.table import NoRoom, NotNative
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
        about = self.places.spelled.place(number)
        known = self.places.scalars.get(about)
        if known is None:
            known = self.places.scalars[about] = self._new_slot(number)
        return known

    def _new_slot(self, number: Number) -> tuple[int, str]:
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
        if number.op in _FUNCTIONS:
            return self.called(number)
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

    def called(self, number: Scalar) -> tuple[int, str]:
        """What a function of C gives, which must be what Python gives now."""
        address = _function(_FUNCTIONS[number.op])
        slots = [self.as_float(*self.slot(arg), arg) for arg in number.args]
        value = self.value(number)
        if type(value) is not float or not math.isfinite(value) or number.op == "pow" and (
            all(type_of(arg) != "float" for arg in number.args)
        ):
            raise NotNative
        arguments = [float(self.value(arg)) for arg in number.args]
        if _PROTOTYPE(address)(arguments[0], arguments[-1]) != value:
            raise NotNative
        return self.table.function(address, slots[0], slots[-1], _word(value)), "float"

    def constant(self, value: int | float) -> int:
        return self.table.constant(_word(value))

    def value(self, number: Number) -> Any:
        """What it is in the call at hand."""
        present, place = self.places.present, self.places.spelled.place(number)
        if place not in present:
            if isinstance(number, Scalar) and number.op != "sym":
                present[place] = EVALUATE[number.op](*map(self.value, number.args))
            else:
                present[place] = evaluate(number, Values(self.places.found))
        return present[place]


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


def _single(writer: _Writer, number: Scalar, slot: int, kind: str) -> tuple[int, str]:
    operand = writer.as_float(slot, kind, number.args[0])
    return writer.computed("single", operand, ZERO, number)


def add_words(places: Places, inputs: Sequence[int]) -> dict[int, ctypes.c_uint64]:
    """Rows that compute those of the sources `inputs` that are numbers: each check leaves their words,
    integers or doubles, in the cells that are returned by source."""
    cells: dict[int, ctypes.c_uint64] = {}
    writer = _Writer(places)
    for number in dict.fromkeys(inputs):  # a row writes to its cell: none may be given up for another
        source = places.sources[number]
        if source.kind != "number" and number not in places.numbers:
            continue
        if type(places.found[number]) not in (int, float):
            continue
        mark, cell = places.table.mark(), ctypes.c_uint64()
        places.table.owner = number
        try:
            scalar = source.key if source.kind == "number" else _symbol(number, places.found[number])
            slot, kind = writer.slot(scalar)
            if kind != type(places.found[number]).__name__:
                raise NotNative
        except (NotNative, NoRoom):
            places.undo(mark)
            continue
        places.table.store(slot, ctypes.addressof(cell))
        cells[number] = cell
    return cells


def _symbol(number: int, value: int | float) -> Scalar:
    return symbol(f"s{number}", type(value).__name__)


_ONE = {
    "neg": _of_int("neg"), "abs": _of_int("abs"), "float": _float, "int": _int, "trunc": _int,
    "sqrt": _sqrt, "float32": _single,
}


# Functions of C that Python's floats are computed with, by operation. Where one of them gives no finite
# number Python raises, or has rules of its own.
_FUNCTIONS = types.MappingProxyType({
    "pow": "pow", "fpow": "pow",
    **{name: name for name in (
        "exp log log2 log10 sin cos tan tanh atan sinh cosh expm1 atan2".split())},
})
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)


@functools.cache
def _function(name: str) -> int:
    """The address of a function of the C library that the process has loaded."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is None:
        raise NotNative
    return ctypes.cast(found, ctypes.c_void_p).value


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
    if source.kind == "element":
        return _element_slot(places, source, value), "float"
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


def first_byte(places: Places, number: int) -> int:
    """A slot with the address of a tensor's first element; its offset in the storage must stay."""
    where, tensor = places.tensors, places.found[number]
    if where is None:
        raise NotNative
    places.type_of(number)
    place, _ = impl(places, number)
    places.word(place, where.keys)  # an ordinary key set has a storage behind it
    storage = places.follow(place, where.storage)
    places.word(place, where.storage_offset)
    memory = places.follow(storage, where.data)
    return places.table.advance(memory.base, tensor.storage_offset() * tensor.element_size())


def element_memory(places: Places, number: int) -> int:
    """A slot with the address of the number in the tensor at source `number`, which is there."""
    where, tensor = places.tensors, places.found[number]
    if where is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NotNative
    known = places.scalars.get(("memory", number))
    if known is None:
        places.type_of(number)
        place, _ = impl(places, number)
        places.word(place, where.keys)
        places.word(place, where.dtype, mask=(1 << 40) - 1, decides=True)
        places.word(place, where.rank, decides=True)
        known = first_byte(places, number), ""
        if places.table.apart(known[0], ZERO) != 0:
            raise NotNative
        places.scalars["memory", number] = known
    return known[0]


def _element_slot(places: Places, source: Source, value: float) -> int:
    """A slot with the number in a tensor."""
    read = _READERS.get(places.found[source.parent].dtype)
    if read is None:
        raise NotNative
    memory = element_memory(places, source.parent)
    return places.table.compute(read, memory, ZERO, _word(value))


_READERS = types.MappingProxyType({torch.float32: "single_at", torch.float64: "double_at"})


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
