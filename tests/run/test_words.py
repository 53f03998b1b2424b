"""Rows that compute with floats of C, read numbers in tensors, leave words, and compare many tensors'
memory: the native checker does what `Table` says."""

import collections
import ctypes
import math
import random
import struct
import sys
import threading

import pytest
import torch
from torch import nn

import preheat

from preheat.ir.rows import ARGS, ZERO
from preheat.run import variant
from preheat.run.arithmetic import _function
from preheat.run.table import Table
from preheat.run.tensor_layout import tensor_layout
from tests.run.native_rows import native_check

Packed = collections.namedtuple("Packed", "address count")


def native(table, *values):
    buffer = ctypes.create_string_buffer(table.pack())
    return native_check(Packed(ctypes.addressof(buffer), len(table.rows)), list(values))


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def value_of(cell):
    return struct.unpack("<d", cell)[0]


def cell_of(value):
    return ctypes.c_uint64(bits(value))


def loaded(table, cell):
    slot = table.slot()
    table.load(ctypes.addressof(cell), mask=0, save=slot)
    return slot


@pytest.mark.parametrize("name, function", [
    ("pow", lambda a, b: a ** b), ("exp", lambda a, b: math.exp(a)), ("log", lambda a, b: math.log(a)),
    ("tanh", lambda a, b: math.tanh(a)), ("sin", lambda a, b: math.sin(a)),
])
def test_functions_of_c_are_python_s(name, function):
    left, right, found = cell_of(0.9), cell_of(3.0), ctypes.c_uint64()
    table = Table()
    slots = loaded(table, left), loaded(table, right)
    slot = table.function(_function(name), *slots, bits(function(0.9, 3.0)))
    table.store(slot, ctypes.addressof(found))
    numbers = random.Random(0)
    for _ in range(50):
        a, b = numbers.uniform(0.1, 9.0), numbers.uniform(-20.0, 20.0)
        left.value, right.value = bits(a), bits(b)
        assert native(table) == -1
        assert value_of(found) == function(a, b)


def test_a_function_without_a_finite_value_is_no_answer():
    left, right = cell_of(2.0), cell_of(3.0)
    table = Table()
    row = table.mark() + 2
    table.function(_function("pow"), loaded(table, left), loaded(table, right), bits(8.0))
    for a, b in ((2.0, 1e9), (0.0, -1.0), (-2.0, 0.5), (math.nan, 1.0), (math.inf, 1.0)):
        left.value, right.value = bits(a), bits(b)
        assert native(table) == row


@pytest.mark.parametrize("operation, make", [
    ("single_at", lambda x: torch.tensor(x, dtype=torch.float32)),
    ("double_at", lambda x: torch.tensor(x, dtype=torch.float64)),
])
def test_numbers_in_tensors(operation, make):
    tensor, found = make(0.5), ctypes.c_uint64()
    address, table = ctypes.c_uint64(tensor.data_ptr()), Table()
    slot = table.compute(operation, loaded(table, address), ZERO, bits(0.5))
    table.store(slot, ctypes.addressof(found))
    for value in (0.5, -0.0, 1e-45, 3.4e38, math.inf, 0.1):
        tensor.fill_(value)
        assert native(table) == -1
        assert bits(value_of(found)) == bits(tensor.item())


def test_rounding_to_a_single():
    number, found, table = cell_of(0.1), ctypes.c_uint64(), Table()
    slot = table.compute("single", loaded(table, number), ZERO, bits(0.0))
    table.store(slot, ctypes.addressof(found))
    for value in (0.1, 2.0**24 + 1, 1e-50, 1e39, -0.0):
        number.value = bits(value)
        assert native(table) == -1
        assert bits(value_of(found)) == bits(ctypes.c_float(value).value)


def test_the_class_of_the_object_of_a_tensor():
    where = tensor_layout()

    def says_tensor(impl):
        place, table = ctypes.c_uint64(impl + where.wrapper), Table()
        table.decide(
            "wrapper_class", loaded(table, place), table.constant(id(torch.Tensor)), id(torch.Tensor))
        return native(table) == -1

    plain, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    assert says_tensor(plain._cdata) and not says_tensor(parameter._cdata)
    parameter.sum().backward()
    ask = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(where.grad)
    gradient = ctypes.c_uint64.from_address(ask(parameter._cdata)).value
    assert says_tensor(gradient)  # no one has asked for it: it has no object yet
    assert parameter.grad._cdata == gradient and says_tensor(gradient)
    parameter.grad = torch.Tensor._make_subclass(torch.nn.Buffer, torch.ones(2))
    assert not says_tensor(ctypes.c_uint64.from_address(ask(parameter._cdata)).value)


def spans(tensors):
    """A table that says that the tensors are apart; those that are arguments move."""
    where, table = tensor_layout(), Table(tensors)
    rows = []
    for number, tensor in enumerate(tensors):
        place, impl = table.slot(), table.slot()
        table.load(8 * number, ARGS, mask=0, save=place)
        table.load(where.impl, place, mask=0, save=impl)
        size = tensor.numel() * tensor.element_size()
        offset = tensor.storage_offset() * tensor.element_size()
        is_moving = number % 2 == 0
        rows.append((impl if is_moving else ZERO, 0 if is_moving else tensor._cdata, offset, size))
    table.spans(where.storage, where.data, rows)
    return table


def test_many_tensors_that_are_apart_or_not():
    """Those at even places move: to memory of their own, and onto another one, by some elements."""
    order, memory = random.Random(1), torch.zeros(4000)
    views = [memory[k * 40:k * 40 + 40] for k in range(60)]
    order.shuffle(views)
    table = spans(views)
    buffer = ctypes.create_string_buffer(table.pack())  # one buffer: it keeps the order
    rows = Packed(ctypes.addressof(buffer), len(table.rows))
    assert native_check(rows, views) == -1
    for _ in range(100):
        given = list(views)
        for place in order.sample(range(0, 60, 2), 5):
            elsewhere = torch.zeros(4000)
            given[place] = elsewhere.as_strided((40,), (1,), views[place].storage_offset())
        assert native_check(rows, given) == -1
        one, other = order.choice(range(0, 60, 2)), order.choice(range(1, 60, 2))
        given[one] = _laid_over(views[other], views[one].storage_offset(), order.choice((-39, 0, 39)))
        assert native_check(rows, given) == len(table.rows) - 1


def _laid_over(tensor, offset, shift):
    """A tensor with this storage offset whose memory meets that of `tensor`, by all but `shift`."""
    start = tensor.data_ptr() + 4 * (shift - offset)
    storage = (ctypes.c_char * (4 * (offset + 40))).from_address(start)
    return torch.frombuffer(storage, dtype=torch.float32)[offset:]


def test_spans_that_share_a_byte():
    memory = torch.zeros(400, dtype=torch.uint8)
    for gap, is_apart in ((0, True), (1, True), (-1, False), (-20, False)):
        tensors, at = [], 0
        for _ in range(9):
            tensors.append(memory[at:at + 20])
            at += 20 + gap
        table = spans(tensors)
        assert (native(table, *tensors) == -1) is is_apart


def test_threads_have_words_of_their_own(switch_often):
    """A call that has to make its frame lets others be checked before it takes its words."""
    def scaled(x, rate):
        return x * (rate * 2.0)

    x, wrong = torch.ones(200_000), []

    def work(compiled, start):
        with torch.no_grad():
            for k in range(20):
                rate = start + k / 64
                if not torch.equal(compiled(x, rate), x * (rate * 2.0)):
                    wrong.append(rate)

    for _ in range(8):
        compiled = preheat.compile(scaled, options={"cache": False})
        with torch.no_grad():
            for rate in (0.5, 1.5, 2.5):
                compiled(x, rate)
        threads = [threading.Thread(target=work, args=(compiled, 10.0 * k)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.fixture
def switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)



def test_a_number_that_a_library_call_takes_is_a_tensor():
    def program(x, count):
        count += 1
        level = count.item() * 0.5
        column = torch.full((2,), level).view(2, 1).expand(2, 3)
        return column.cumsum(1), torch.sort(x * level).values, nn.functional.softshrink(x, level)

    compiled, x = preheat.compile(program, options={"cache": False}), torch.randn(7)
    with torch.no_grad():
        for k in range(5):
            expected = program(x, torch.tensor(float(k)))
            for pair in zip(compiled(x, torch.tensor(float(k))), expected):
                torch.testing.assert_close(*pair)


def test_a_number_that_is_an_input_twice_has_one_cell(monkeypatch):
    stored, store = [], Table.store

    def noted(table, slot, address):
        stored.append(address)
        return store(table, slot, address)

    monkeypatch.setattr(Table, "store", noted)
    kept, bind = [], variant.bind_rows

    def bound(*args, **kwargs):
        stored.clear()
        rows = bind(*args, **kwargs)
        kept.append((list(stored), {ctypes.addressof(cell) for cell in rows.words.values()}))
        return rows

    monkeypatch.setattr(variant, "bind_rows", bound)

    def scaled(x):
        return x.softmax(-1) * x.shape[0]

    compiled = preheat.compile(scaled, options={"cache": False})
    with torch.no_grad():
        for length in (3, 5, 7, 9):
            compiled(torch.randn(length, 4))
    assert any(addresses for addresses, _ in kept)
    for addresses, cells in kept:  # a row that writes elsewhere writes to memory of someone else
        assert set(addresses) <= cells
