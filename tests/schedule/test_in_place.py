"""Results of products and convolutions whose place a kernel's result takes, and the memory that is left."""

import pytest
import torch
import torch.nn.functional as F
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

import preheat
from preheat.bridge.interpret import run
from preheat.capture.capture import capture
from preheat.generate.build import build, host_target
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.run.executable import Executable, executable
from schedule.footprint import live_bytes, peak_bytes
from preheat.schedule import memory
from preheat.schedule.memory import is_pointwise
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

GPU = Target("cuda", "sm_90")
ROOM = 64 * 32 * 2  # bytes of each value between two products


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(memory, "GPU_LARGE_BYTES", ROOM)


def product(m, x, columns=32):
    return m.matmul(x, m.input(m.type(x).sizes[1], columns, dtype="bfloat16"))


def half(m, x):
    return m.cast(x, "bfloat16")


def tanh(m, x):
    return half(m, m.op("tanh", m.cast(x, "float32")))


def added(m, x, y):
    return half(m, m.op("add", m.cast(x, "float32"), m.cast(y, "float32")))


def layers(kind):
    """Two products, and what is between them."""
    m = Make()
    y = product(m, m.input(64, 48, dtype="bfloat16"))
    if kind == "elementwise":
        return m.graph(product(m, tanh(m, y)))
    if kind == "in another shape":
        wide = m.reshape(y, 8, 8, 32)
        return m.graph(product(m, m.reshape(added(m, wide, m.input(8, 32, dtype="bfloat16")), 64, 32)))
    if kind == "two products":
        return m.graph(product(m, added(m, y, product(m, m.input(64, 8, dtype="bfloat16")))))
    if kind == "read later":
        return m.graph(added(m, product(m, tanh(m, y)), y))
    if kind == "given out":
        return m.graph(y, product(m, tanh(m, y)))
    if kind == "turned":
        square = m.reshape(tanh(m, m.permute(y, 1, 0)), 64, 32)
        return m.graph(product(m, square))
    if kind == "of another type":
        return m.graph(m.reduce("sum", m.op("tanh", m.cast(y, "float32")), 0, 1), product(m, tanh(m, y)))
    if kind == "moved along":
        return m.graph(product(m, added(m, y, m.flip(y, 1))))
    raise AssertionError(kind)


def joined(plan):
    return sum(
        param.role == "inout" for call in plan.calls if isinstance(call, KernelCall)
        for param in plan.kernels[call.kernel].params)


IN_PLACE = ("elementwise", "in another shape", "two products")
APART = ("read later", "given out", "turned", "moved along")


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", [*IN_PLACE, *APART])
def test_a_result_that_nobody_needs_any_longer_is_replaced(kind, target):
    graph = layers(kind)
    plan = schedule(on_gpu(graph), GPU) if target == "gpu" else schedule(graph, host_target())
    assert joined(plan) == (kind in IN_PLACE)
    assert plan.arena_bytes == (0 if kind in IN_PLACE else ROOM)
    given = [[random_input(i.type, torch.Generator().manual_seed(0), 2) for i in graph.inputs] for _ in range(3)]
    expected = run(graph, given[0])
    for a, b in zip(run_plan(plan, given[1]), expected, strict=True):
        same(a, b)
    if target == "cpu":
        for a, b in zip(executable(plan, build(plan.kernels, host_target()))(given[2]), expected, strict=True):
            same(a, b)


def test_memory_that_a_library_view_shows_is_not_replaced():
    def seen(x, w):
        y = x @ w
        return y.tanh() @ w, y.view(torch.int16) + 1

    x, w = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()
    body = capture(seen, (x, w), {}, limits=None).captured.trace.nodes[0].body
    plan = schedule(lower(body), host_target())
    found = executable(plan, build(plan.kernels, host_target()))([x, w])
    for a, b in zip(found, seen(x, w), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_threads_of_a_gpu_touch_an_element_once():
    """Whoever stores it has loaded it: no other position reads the old one."""
    def kernel(load, store, axes=(), more=()):
        body = (
            LoopOp("load", 0, "float32", param=0, index=load), *more,
            LoopOp("store", -1, "float32", (0,), param=1, index=store))
        outer = (Axis("i0", 64), Axis("i1", 32))
        return Kernel("k", (Param("float32", "in"), Param("float32", "out")), outer, (Stage(axes, body),), 2)

    whole, row = Index(0, (("i0", 32), ("i1", 1))), Index(0, (("i0", 1),))
    assert is_pointwise(kernel(whole, whole), 0, 1)
    assert not is_pointwise(kernel(row, row), 0, 1), "all threads of a row read it"
    again = LoopOp("load", 1, "float32", param=0, index=whole)
    assert not is_pointwise(kernel(whole, whole, more=(again,)), 0, 1)
    assert not is_pointwise(kernel(whole, whole, (Axis("j", 4),)), 0, 1)


class Bottleneck(torch.nn.Module):
    """Blocks of a ResNet, and the means of what they give."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(64) for _ in range(3))
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(inner, 64, 1, bias=False) for inner in (16, 64, 64))

    def forward(self, x):
        x = F.relu(self.norms[0](self.convolutions[0](x)))
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:]):
            x = F.relu(norm(convolution(x)) + x)
        return x.mean((2, 3))


def test_a_residual_block_has_two_values_at_once():
    """What a convolution reads, which is added to its result, and that result, in whose place the sum is."""
    torch.manual_seed(0)
    model = Bottleneck().bfloat16().eval()
    x = torch.randn(4, 16, 64, 64).bfloat16()
    with torch.no_grad():
        body = capture(model, (x,), {}, limits=None).captured.trace.nodes[0].body
        plan = schedule(on_gpu(lower(body)), GPU)
        value, others = 4 * 64 * 64 * 64 * 2, 1 << 20
        assert 2 * value <= peak_bytes(Executable(plan, None)) < 2 * value + others
        assert {b.type.dtype for b in plan.buffers if b.type.elems * 2 == value} == {"bfloat16"}
        compiled = preheat.compile(model, options={"cache": False})
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=0.05, atol=0.05)


def test_bytes_while_each_call_runs():
    m = Make()
    x = m.input(64, 64)
    for _ in range(3):
        x = m.matmul(m.op("tanh", x), m.input(64, 64))
    plan = schedule(on_gpu(m.graph(x)), GPU)
    assert [type(call) for call in plan.calls] == 3 * [KernelCall, LibraryCall]
    each, made = 64 * 64 * 4, Executable(plan, None)
    # the arena, which stays; then a product's result, which the next kernel changes and the next product reads
    assert plan.arena_bytes == each and made.keeps_arena
    assert live_bytes(made) == [each * n for n in (1, 2, 2, 3, 2, 3)]
