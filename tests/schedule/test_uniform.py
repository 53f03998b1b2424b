"""Random numbers that kernels compute: the same bits as their meaning, wherever loops and vectors begin."""

import pytest
import torch
from generate.kernels import targets
from generate.native import run_native
from generate.test_triton import check_binaries, needs_triton
from schedule.graphs import TARGET, Make, on_gpu
from schedule.loop_interpret import run_plan

from preheat.base.errors import InternalError
from preheat.bridge.interpret import run
from preheat.bridge.uniform import numbers, words
from preheat.generate.triton import source_of
from preheat.ir.loop import Kernel
from preheat.ir.plan import KernelCall, Target
from preheat.ir.text import show
from preheat.ir.text_loop import read_kernel, show_kernel
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.ir.words import Reader
from preheat.schedule.schedule import schedule

TARGETS = targets()
SEEDS = (0, 1, -1, 0x0123456789ABCDEF, -(2**63))
SIZES = ((16, 64), (5, 33), (2, 7), (90, 3), (3, 4, 17), (131,), ())


def drawn(m: Make, *sizes: int, stream: int = 0) -> int:
    seed = m.input(dtype="int64")
    return m.add("uniform", [seed], tensor("float32", sizes), stream=stream)


def moved(m: Make, sizes) -> list[int]:
    """Numbers in order, and moved in every way before they are used."""
    u = drawn(m, *sizes)
    found = [m.op("mul", u, (2.0,)), m.op("lt", u, (0.5,))]
    if len(sizes) == 2:
        rows, columns = sizes
        found += [
            m.op("neg", m.permute(drawn(m, *sizes, stream=1), 1, 0)),
            m.op("neg", m.slice(drawn(m, *sizes), 1, 1, columns)),
            m.op("neg", m.slice(drawn(m, *sizes), 1, 0, columns, 2)),
            m.op("neg", m.flip(drawn(m, *sizes), 1)),
            m.op("neg", m.pad(drawn(m, *sizes), (1, 2), (0, 3))),
            m.op("neg", m.reshape(drawn(m, *sizes, stream=2**32 - 1), rows * columns)),
            m.op("neg", m.take(drawn(m, *sizes), m.input(6, dtype="int64"))),
            m.op("neg", m.take(drawn(m, *sizes), m.input(2, dtype="int64"), 1)),
            m.op("neg", m.cat(0, drawn(m, *sizes), m.input(*sizes))),
            m.op("mul", drawn(m, *sizes), drawn(m, *sizes, stream=3)),
            m.reduce("max", m.op("add", drawn(m, *sizes), m.input(*sizes)), 1),
            m.reduce("max", drawn(m, *sizes), 0),
            m.reduce("min", drawn(m, *sizes), 0, 1)]
    return found


def given(graph, seed: int) -> list[torch.Tensor]:
    return [
        torch.full(i.type.sizes, seed) if i.type.rank == 0 else
        torch.arange(i.type.elems) % min(i.type.elems, 2) if i.type.dtype == "int64" else
        torch.randn(i.type.sizes, generator=torch.Generator().manual_seed(0))
        for i in graph.inputs]


def test_the_known_answers():
    """Of Random123's kat_vectors: a counter of zeros under a key of zeros."""
    zero = torch.zeros((), dtype=torch.int64)
    assert words(zero, zero, 0).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_have_the_numbers_of_their_meaning(sizes):
    m = Make()
    graph = m.graph(*moved(m, sizes))
    verify(graph)
    plan = schedule(graph, TARGET)
    verify(plan)
    for seed in SEEDS[:2]:
        expected = run(graph, given(graph, seed))
        for found, wanted in zip(run_plan(plan, given(graph, seed)), expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", SIZES)
def test_machine_code_has_the_same_bits(sizes, target):
    m = Make()
    graph = m.graph(*moved(m, sizes))
    plan = schedule(graph, TARGETS[target])
    for number, seed in enumerate(SEEDS):
        expected = run(graph, given(graph, seed))
        found = run_native(plan, given(graph, seed), TARGETS[target], number)
        for ours, wanted in zip(found, expected, strict=True):
            assert torch.equal(ours, wanted)


def test_no_number_has_memory():
    """Used by two kernels, it is computed in each."""
    m = Make()
    u = drawn(m, 512, 64)
    kept = m.cast(m.op("lt", u, (0.5,)), "float32")
    x, w = m.input(512, 64), m.input(64, 64)
    graph = m.graph(m.matmul(m.op("mul", x, kept), w), m.op("mul", m.matmul(x, w), kept))
    plan = schedule(graph, TARGET)
    drawing = {k for k, kernel in enumerate(plan.kernels) if "uniform" in show_kernel(kernel)}
    kernels = [call for call in plan.calls if isinstance(call, KernelCall)]
    assert len(kernels) == 2 and all(call.kernel in drawing for call in kernels)
    memory = [b.type for b in plan.buffers if b.kind in ("arena", "owned")]
    assert len([type for type in memory if type.elems == 512 * 64]) <= 2  # what the products take and give
    assert all(type.dtype == "float32" for type in memory)


def test_text_of_a_kernel():
    m = Make()
    plan = schedule(m.graph(m.op("neg", m.slice(drawn(m, 4, 9, stream=7), 1, 1, 9))), TARGET)
    (kernel,) = plan.kernels
    text = show_kernel(kernel)
    assert "uniform v0 stream 7 at [" in text and " + 1]" in text, show(plan)
    read: Kernel = read_kernel(Reader(text))
    assert read == kernel


def test_what_is_no_seed():
    m = Make()
    with pytest.raises(InternalError, match="the seed is a 0-d int64"):
        verify(m.graph(m.add("uniform", [m.input(3)], tensor("float32", (4,)), stream=0)))


@needs_triton
@pytest.mark.parametrize("arch", ("sm_90",))
def test_kernels_of_a_gpu_compile(arch):
    m = Make()
    x = m.input(96, 1000, dtype="bfloat16")
    kept = m.cast(m.op("lt", drawn(m, 96, 1000), (0.9,)), "float32")
    dropped = m.op("mul", m.cast(x, "float32"), kept)
    made = m.layer_norm(dropped, m.input(1000), m.input(1000))
    graph = on_gpu(m.graph(m.cast(dropped, "bfloat16"), m.cast(made, "bfloat16")))
    plan = schedule(graph, Target("cuda", arch))
    assert any("drawn(" in source_of(kernel, Target("cuda", arch)).text for kernel in plan.kernels)
    check_binaries(plan.kernels, arch)


def test_numbers_are_exact_in_float32():
    found = numbers(torch.tensor(3), (1000,), 0)
    assert found.dtype == torch.float32 and found.min() >= 0 and found.max() < 1
    assert torch.equal(found * 2**24, torch.floor(found * 2**24))
