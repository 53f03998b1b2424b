"""Convolutions as sums of products over windows: which, and equal results."""

import pytest
import torch
from schedule.graphs import Make, compare, last, on_gpu, random_input, same
from schedule.loop_interpret import run_plan
from schedule.test_layouts import half, image, inputs_of, traced
from torch import nn

from preheat.bridge.interpret import run
from preheat.generate.products import product_of
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.schedule.layouts import laid_out
from preheat.schedule.products import products_as_kernels, products_of
from preheat.schedule.schedule import schedule

GPU = Target("cuda", "sm_90")


def test_windows_are_what_unfold_gives():
    m = Make()
    x = m.input(3, 11, 4)
    windows = m.add("window", [x], tensor("float32", (3, 4, 4, 3)), axis=1, step=2, dilation=2)
    compare(m.graph(m.op("neg", windows), m.reduce("max", windows, 3), m.reduce("sum", windows, 1, 3)))
    given = torch.randn(3, 11, 4)
    (found, *_) = run(m.graph(m.op("neg", windows)), [given])
    assert torch.equal(found, -given.unfold(1, 5, 2)[..., ::2])


def fused(net, *args):
    """The plan of `net` with its convolutions as kernels, run in the loop interpreter against the graph."""
    net = net.eval()
    core, body, _ = traced(net, *args)
    graph = laid_out(on_gpu(core), GPU)
    assert laid_out(graph, GPU) == graph
    chosen = products_of(graph)
    verify(products_as_kernels(graph, chosen).graph)
    plan = schedule(graph, GPU, chosen)
    verify(plan)
    given = inputs_of(body, net, args)
    with torch.no_grad():
        for a, b in zip(run_plan(plan, given), run(core, given), strict=True):
            same(a, b)
            assert a.stride() == b.stride()
    return plan


CASES = {
    "3 x 3": (8, 12, 3, 1, 1), "pointwise": (8, 12, 1), "every second": (8, 12, 1, 2), "stem": (3, 8, 7, 2, 3),
    "apart": (6, 5, 3, 1, 2, 2), "flat": (5, 4, (1, 3), (1, 2), (0, 1)), "patches": (3, 10, 4, 4), "one": (1, 6, 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_kind_is_one_kernel_with_its_epilogue(name, dtype):
    torch.manual_seed(0)
    inner, outer, *rest = CASES[name]
    convolution = nn.Conv2d(inner, outer, *rest)
    net = nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.ReLU()).to(dtype, memory_format=torch.channels_last)
    x = image(2, inner, 13, 9, dtype=dtype).contiguous(memory_format=torch.channels_last)
    plan = fused(net, x)
    assert not any(isinstance(call, LibraryCall) for call in plan.calls)
    assert sum(product_of(k) is not None for k in plan.kernels) == 1
    is_turned = dtype == torch.bfloat16 and convolution.weight[0, 0].numel() > 1
    assert len(plan.calls) == 1 or is_turned


class Bottleneck(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(c, 2 * c, 1, 2, bias=False), nn.BatchNorm2d(2 * c))
        self.parts = nn.Sequential(
            nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, 2 * c, 1, bias=False), nn.BatchNorm2d(2 * c))

    def forward(self, x):
        return torch.relu(self.parts(x) + self.down(x))


def test_norm_residual_and_activation_are_epilogues():
    plan = fused(half(Bottleneck()), image(2, 16, 12, 10))
    convolutions = [k for k in plan.kernels if product_of(k) is not None]
    assert len(convolutions) == 4 and not any(isinstance(call, LibraryCall) for call in plan.calls)
    # besides them the input and the weights of 3 x 3 are turned, and the result is turned back or added up
    assert sum(isinstance(call, KernelCall) for call in plan.calls) <= 7
    assert any(k.name.startswith("convolution_relu") for k in plan.kernels)


def test_a_convolution_as_an_operand_of_others():
    """Pointwise ones compute a prologue where they load; of 3 x 3 taps each would, so it is in memory."""
    torch.manual_seed(0)
    for taps, kernels in ((1, 1), (3, 2)):
        net = nn.Sequential(nn.SiLU(), nn.Conv2d(8, 6, taps, padding=taps // 2, bias=False), nn.Tanh())
        net = net.to(memory_format=torch.channels_last)
        plan = fused(net, torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last))
        assert len(plan.calls) == kernels


@pytest.mark.parametrize("net", [
    nn.Conv2d(8, 8, 3, groups=2), nn.ConvTranspose2d(8, 8, 3), nn.Conv2d(8, 8, 3),
    nn.Conv2d(8, 8, 3).double().to(memory_format=torch.channels_last)])
def test_what_stays_the_librarys(net):
    """Grouped and transposed ones, float64, and float32 with channels first."""
    x = torch.randn(2, 8, 9, 9, dtype=net.weight.dtype)
    if net.weight.dtype == torch.float64:
        x = x.contiguous(memory_format=torch.channels_last)
    core, _, _ = traced(net, x)
    assert not products_of(laid_out(on_gpu(core), GPU))


def test_pixels_with_channels_first_are_a_product():
    torch.manual_seed(0)
    plan = fused(nn.Conv2d(8, 12, 1), torch.randn(2, 8, 9, 7))
    (kernel,) = plan.kernels
    assert product_of(kernel) is not None


def test_one_and_three_axes_of_space():
    for sizes, taps, stride in (((2, 8, 16), (3,), 2), ((1, 4, 5, 6, 7), (3, 1, 3), 1)):
        m = Make()
        x, w = m.input(*sizes, strides=last(sizes)), m.input(6, sizes[1], *taps)
        graph = m.graph(m.op("tanh", m.convolution(x, w, stride, 1)))
        moved = on_gpu(graph)
        plan = schedule(moved, GPU, products_of(moved))
        assert len(plan.calls) == 1 and product_of(plan.kernels[0]) is not None
        given = [random_input(i.type, torch.Generator().manual_seed(0)) for i in graph.inputs]
        for a, b in zip(run_plan(plan, given), run(graph, given), strict=True):
            same(a, b)
