"""Batches: calls that differ in their sizes alone are one launch, directly and in a recorded graph."""

import ctypes
import struct

import pytest
import torch

import machines
from machines import EACH, N, Machine, batch_of, f32, made
from preheat.ir.plan import KernelCall, Output
from preheat.run.batches import batches_of
from preheat.run.buffers import places
from preheat.run.replays import why_direct

SIZES = (3, 20, 0, 8, 9, 1, 40)


@pytest.fixture
def machine(monkeypatch):
    machines.grow.programs = sum(-(-n // EACH) for n in SIZES)
    return Machine(monkeypatch, batch_of(SIZES))


def given(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator) for n in SIZES * 2]
    numbers = torch.randn(len(SIZES), generator=generator, dtype=torch.float64)
    return [*tensors, *numbers.unbind(), torch.tensor(float(seed))]


def grown(values):
    count = len(SIZES)
    made = [values[k] + float(values[2 * count + k]) * values[count + k] for k in range(count)]
    return [*made, *(v.clone() for v in values[count:-1]), values[-1] + 1]


def check(values, call):
    expected = grown(values)
    call()
    for found, right in zip(values, expected, strict=True):
        torch.testing.assert_close(found, right)


def test_one_launch_and_those_that_write_its_table(machine):
    for seed in range(2):
        values = given(seed)
        check(values, lambda: machine.launched(*values))
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in machine.fake.log]
        assert [name for name in names if name != "set"] == ["grow_table", "grow_table", "grow"], names
    assert machine.fake.programs[-3:] == [1, 1, machines.grow.programs]


def test_a_graph_gets_the_addresses_and_numbers_of_each_call(machine):
    for seed in range(8):  # other tensors and numbers each time
        values = given(seed)
        check(values, lambda: machine.call(*values))
    assert len(machine.replays.recorded) == 1 and not machine.slow.calls


def test_numbers_that_the_check_leaves(monkeypatch, machine):
    first = 2 * len(SIZES)
    cells = {first + k: ctypes.c_uint64() for k in range(len(SIZES))}
    machine = Machine(monkeypatch, batch_of(SIZES), cells=cells)
    for seed in range(8):
        values = given(seed)
        for place, cell in cells.items():
            (cell.value,) = struct.unpack("Q", struct.pack("d", values[place]))
        check(values, lambda: machine.call(*values[:first], *[None] * len(cells), values[-1]))
    assert len(machine.replays.recorded) == 1 and not machine.slow.calls


def test_from_python(machine):
    values = given(0)
    check(values, lambda: machine.executable(values))


def test_a_number_that_the_host_computes_is_no_part_of_a_graph(machine):
    assert not why_direct(machine.executable)
    number = machines.tensor("float32", ())
    plan = made(
        (f32(N), number), [("input", 0, f32(N)), ("input", 1, number), ("output", 0, f32(N))],
        ["count", "scale"], [KernelCall(0, (1,), 1), KernelCall(1, (0, 1, 2), N)], [2])
    assert "the host computes" in why_direct(machine._executable(plan))


def found_batches(calls, types):
    plan = made(types, [("input", k, type) for k, type in enumerate(types)], ["grow", "bump"], calls,
                [Output(types[0], alias="input", base=0)])

    class Loaded:
        launch = staticmethod(lambda name, sizes=(): machines.gpu.Launch(0, 1, 32, 0, 0, -1))
        most = staticmethod(lambda name, size: 8)
        memory_bytes = staticmethod(lambda name: 0)

    found = batches_of(plan, places(plan), Loaded(), "cpu")
    return sorted(found.launches), sorted(found.inside)


def test_a_batch_ends_where_calls_share_what_one_of_them_writes():
    x, number = f32(4), machines.tensor("float64", ())
    types = [x] * 4 + [number]
    apart = [KernelCall(0, (0, 1, 4), 4), KernelCall(0, (2, 1, 4), 4), KernelCall(0, (3, 1, 4), 4)]
    assert found_batches(apart, types) == ([2], [0, 1])
    chain = [KernelCall(0, (0, 1, 4), 4), KernelCall(0, (2, 0, 4), 4), KernelCall(0, (3, 1, 4), 4)]
    assert found_batches(chain, types) == ([0, 2], [1])
    assert found_batches([apart[0], apart[0]], types) == ([0, 1], [])
    between = [apart[0], KernelCall(1, (3,), 4), apart[1]]
    assert found_batches(between, types) == ([0, 2], [])
