"""Nouns to bytes and back: long tuples become tables of columns, and nothing of a value is lost."""

import gc
import random

import pytest

from preheat.ir import pack
from preheat.ir.pack import Ahead, decode, digest, encode
from preheat.ir.trace import At, Guard, Named, Source
from preheat.ir.types import TensorType

VALUES = (
    True, 1, 1.0, 0.0, -0.0, False, 0, None, "1", b"1", 1 << 70, 1j, Ellipsis, (1, True), (1.0, 1),
    Named("a", "b"), At(3), (Named("a", "b"), ()), (),
)


def shown(value):
    """`value` with all that equality does not see: types, and the bits of floats."""
    return repr(value)


@pytest.mark.parametrize("count", (0, 1, 7, 8, 200))
def test_guards_come_back_as_they_were(count):
    choose = random.Random(count)
    guards = tuple(Guard(i, "value", choose.choice(VALUES)) for i in range(count))
    assert shown(decode(encode(guards))) == shown(guards)
    assert encode(decode(encode(guards))) == encode(guards)


def test_an_encoding_leaves_nothing_to_a_collector():
    """Each of its packers has a megabyte."""
    gc.collect()
    gc.disable()
    try:
        encode((Guard(1, "value", VALUES),) * 9)
        assert not any(isinstance(value, pack._Encoder) for value in gc.get_objects())
    finally:
        gc.enable()


def test_nouns_of_several_classes_are_no_table():
    mixed = (*(Source(-1, "arg", i) for i in range(9)), Guard(0, "len", 3))
    assert decode(encode(mixed)) == mixed


def test_equal_values_of_a_column_are_one_object():
    guards = tuple(Guard(i, "type", Named("torch", "Tensor")) for i in range(50))
    read = decode(encode(guards))
    assert read == guards and len({id(guard.expected) for guard in read}) == 1


def test_the_digest_does_not_depend_on_which_objects_are_shared():
    one = Named("torch", "Tensor")
    shared = tuple(Guard(i, "type", one) for i in range(20))
    apart = tuple(Guard(i, "type", Named("torch", "Tensor")) for i in range(20))
    assert digest(shared) == digest(apart)


def test_bytes_that_are_no_table_are_a_value_error():
    whole = encode(tuple(Guard(i, "len", i) for i in range(20)))
    for end in range(1, len(whole), 7):
        with pytest.raises(ValueError):
            decode(whole[:end])


def test_what_was_encoded_ahead_is_the_same_bytes():
    """Found by identity, within tables and lists too."""
    types = [TensorType("float32", (k, 8), (8, 1)) for k in range(1, 12)]
    value = (tuple(types), types[3], {"a": types[4]}, TensorType("float32", (9, 9), (9, 1)))
    ahead = Ahead()
    ahead.add(types[2:6])
    assert encode(value, ahead) == encode(value) and decode(encode(value, ahead)) == value
    assert encode(types[3], ahead) == encode(types[3])
    assert ahead.fields_of(types[3]) is not None
    assert ahead.fields_of(TensorType("float32", (4, 8), (8, 1))) is None
