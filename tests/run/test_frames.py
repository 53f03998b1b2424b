"""Frames of calls on a GPU: memory that stays from call to call, for one stream each."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
import torch

from machines import N, X, Machine, made, numbers, with_aliases
from plans import f32
from preheat.ir.graph import Ref
from preheat.ir.plan import KernelCall, LibraryCall
from preheat.run import executable as executables


@pytest.fixture
def machine(monkeypatch):
    return lambda *args, **kwargs: Machine(monkeypatch, *args, **kwargs)


def products():
    """2 * (x @ w): the product by a C shim, for a kernel."""
    x, w, out = f32(3, 4), f32(4, 4), f32(3, 4)
    return made(
        (x, w), [("input", 0, x), ("input", 1, w), ("owned", 0, out), ("output", 0, out)],
        ["double"],
        [LibraryCall("aten.mm.default", (Ref(0), Ref(1)), (), (2,)), KernelCall(0, (2, 3), N)], [3])


def large_arena():
    """x * 8, through two buffers of an arena that is not kept from call to call."""
    return made(
        (X,), [("input", 0, X), ("arena", 0, X), ("arena", 64, X), ("output", 0, X)], ["double"],
        [KernelCall(0, (k, k + 1), N) for k in range(3)], [3], executables.KEPT_BYTES + 64)


def test_a_large_arena_is_one_allocation_of_the_call(machine):
    m, x = machine(large_arena(), limit_bytes=0), numbers(0)
    for _ in range(3):
        launched, result = m.launched(x)
        assert torch.equal(result, x * 8) and len(launched) == 3
    nodes = []
    m.fake.capturing = (0, nodes)
    m.call(x)
    m.fake.capturing = None
    first, second = (m.fake.nodes[handle].words[1] for handle in nodes[:2])
    assert second - first == 64


@pytest.mark.parametrize("given", [products, with_aliases])
def test_memory_belongs_to_a_stream(machine, given):
    m = machine(given(), limit_bytes=0)
    frames = m.entry._program.frames
    assert frames.is_streamed
    held = []
    for k, stream in enumerate((0, 5, 0, 5, 9, 0)):
        m.fake.stream = stream
        args = [torch.randn(t.sizes) for t in m.executable.plan.inputs]
        result = m.call(*args)
        first = args[0] * 4 if len(args) == 1 else 2 * (args[0] @ args[1])
        held.append((result if len(args) == 2 else result[0], first))
    assert len(frames._made) == 3
    for mine, theirs in held:
        torch.testing.assert_close(mine, theirs)


def test_a_result_that_is_given_out_is_not_kept(machine):
    """The product itself, by the library, and a view of it."""
    x, w, out = f32(3, 4), f32(4, 4), f32(3, 4)
    given = made(
        (x, w), [("input", 0, x), ("input", 1, w), ("owned", 0, out), ("view", 4, f32(2, 4), 2)], [],
        [LibraryCall("aten.mm.default", (Ref(0), Ref(1)), (), (2,))], [3])
    m = machine(given, limit_bytes=0)
    held = []
    for k in range(4):
        args = torch.randn(3, 4), torch.randn(4, 4)
        held.append((m.call(*args), (args[0] @ args[1])[1:]))
    for mine, theirs in held:
        torch.testing.assert_close(mine, theirs)


def turned_product():
    """2 * (x @ w.t())"""
    x, w, out = f32(3, 4), f32(4, 4), f32(3, 4)
    return made(
        (x, w),
        [("input", 0, x), ("input", 1, w), ("owned", 0, out), ("output", 0, out),
         ("view", 0, f32(4, 4, strides=(1, 4)), 1)],
        ["double"],
        [LibraryCall("aten.mm.default", (Ref(0), Ref(4)), (), (2,)), KernelCall(0, (2, 3), N)], [3])


def test_views_of_inputs_stay_as_long_as_the_memory_does(machine):
    def matrix():
        array = np.random.rand(4, 4).astype("float32")
        return torch.from_numpy(array), weakref.ref(array)

    m = machine(turned_product(), limit_bytes=0)
    frames, lens = m.entry._program.frames, m.entry._program.frames._lenses[0]
    x = torch.randn(3, 4)
    w, memory = matrix()
    seen = []
    for k in range(6):
        torch.testing.assert_close(m.call(x, w), 2 * (x @ w.t()))
        assert not m.slow.calls
        seen.append(frames._made[0][0][lens])
        if k == 2:
            w, newer = matrix()
            assert memory() is None  # the old one is not held by the view
    assert len(set(seen[:3])) == 1 and len(set(seen[3:])) == 1
    other = w.clone()
    torch.testing.assert_close(m.call(x, other), 2 * (x @ other.t()))
    view = weakref.ref(ctypes.cast(frames._made[0][0][lens], ctypes.py_object).value)
    del m, frames
    gc.collect()
    assert view() is None


def test_a_call_that_is_captured_has_memory_of_its_own(machine):
    m = machine(with_aliases(), limit_bytes=0)
    frames, x = m.entry._program.frames, numbers(0)
    m.call(x)
    m.fake.capturing = (0, [])
    kept = [m.call(x) for _ in range(3)]
    nodes = [m.fake.nodes[handle] for handle in m.fake.capturing[1]]
    m.fake.capturing = None
    arenas = {node.words[1] for node in nodes[::2]}
    # each is let go when the next is made: a real allocator keeps it for the graph
    assert len(frames._made) == 2 and not arenas & {frames._made[0][1].data_ptr() + 64}
    assert len(kept) == 3
    assert torch.equal(m.call(x)[0], x * 4) and len(frames._made) == 2
    m.fake.stream = 3
    m.call(x)
    assert len(frames._made) == 2
