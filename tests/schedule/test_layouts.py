"""Convolutions of a GPU: biases apart, channels last, what stays as it is, and equal results.

Tensors are the CPU's, the plans a GPU's: its kernels run in the loop interpreter, library calls as
they are, with a check that their results lie in memory as the plan says. The CPU's library follows
the layout of the operands as the GPU's does.
"""

import pytest
import torch
import torch.nn.functional as F
from schedule.graphs import on_gpu, same
from schedule.loop_interpret import run_plan
from torch import nn

from preheat.bridge.interpret import run
from preheat.capture.capture import capture
from preheat.generate.cubin import build_gpu, gpu_target
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.ir.verify import verify
from preheat.schedule.biases import CONVOLUTION, biases_apart
from preheat.schedule.layouts import channels_last, is_channels_last
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

GPU = Target("cuda", "sm_90")
CPU = Target("cpu", "x86_64", ("avx512f",), 64)


def traced(fn, *args):
    with torch.no_grad():
        (node,) = capture(fn, args, {}, limits=None).nodes
    body = node.trace.nodes[0].body
    live = {"x%d" % k: a for k, a in enumerate(args)}
    return lower(body), body, live


def inputs_of(body, fn, args):
    """The tensors of the graph's inputs: arguments by number, parameters by name."""
    module = dict(fn.named_parameters()) | dict(fn.named_buffers())
    return [args[int(i.name)] if i.name.isdigit() else module[i.name.removeprefix("self.")] for i in body.inputs]


def turned(net, *args):
    """The plan of `net` for a GPU, run in the loop interpreter against the graph before; returned."""
    net = net.eval()
    core, body, _ = traced(net, *args)
    graph = channels_last(biases_apart(core, GPU), GPU)
    verify(graph)
    plan = schedule(on_gpu(core), GPU)
    verify(plan)
    with torch.no_grad():
        given = inputs_of(body, net, args)
        expected, found = run(core, given), run_plan(plan, given)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
            assert a.stride() == b.stride()
        for a, b in zip(run(graph, given), expected, strict=True):
            same(a, b)
    return plan


def convolutions(plan):
    """The types of (input, weight, result) of each convolution of the plan."""
    return [
        tuple(plan.buffers[k].type for k in (call.args[0].id, call.args[1].id, call.results[0]))
        for call in plan.calls if isinstance(call, LibraryCall) and call.op == CONVOLUTION]


class Block(nn.Module):
    def __init__(self, c=8, bias=False):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, 2, 1, bias=bias)
        self.norm = nn.BatchNorm2d(c)
        self.second = nn.Conv2d(c, c, 3, 1, 1, bias=bias)
        self.third = nn.Conv2d(c, 2 * c, 1, bias=bias)

    def forward(self, x):
        h = F.relu(self.norm(self.first(x)))
        h = F.max_pool2d(h, 3, 2, 1)
        return self.third(F.relu(self.second(h) + h))


def half(net):
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    return net.bfloat16()


def image(*sizes, dtype=torch.bfloat16):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
def test_a_network_is_turned_once_and_back_once(bias):
    plan = turned(half(Block(bias=bias)), image(2, 3, 19, 17))
    found = convolutions(plan)
    assert len(found) == 3 and all(is_channels_last(t) for types in found for t in types)
    assert all(call.args[2] is None for call in plan.calls if getattr(call, "op", "") == CONVOLUTION)
    # input and two weights (the third has 1 x 1 windows), two between, one for the result
    assert sum(isinstance(call, KernelCall) for call in plan.calls) == 6


def test_a_result_keeps_its_strides_and_others_that_read_it_go_on():
    class Both(Block):
        def forward(self, x):
            h = self.first(x)
            return h, self.second(h), h.relu()

    plan = turned(half(Both()), image(2, 3, 8, 8))
    assert all(is_channels_last(t) for types in convolutions(plan) for t in types)


def test_other_library_calls_get_the_strides_that_eager_gives_them():
    class Sorted(Block):
        def forward(self, x):
            h = self.first(x).relu()
            return torch.topk(h, 2, 1)[0], self.second(h), h.sum((2, 3)) @ h.flatten(1).t()[:8]

    plan = turned(half(Sorted()), image(8, 3, 8, 8))
    (topk,) = (c for c in plan.calls if getattr(c, "op", "") == "aten.topk.default")
    assert plan.buffers[topk.args[0].id].type.is_contiguous


def test_joined_channels_and_larger_images():
    class Dense(Block):
        def forward(self, x):
            h = self.first(x)
            h = torch.cat([h, F.pad(h, (0, 0, 1, 0))[:, :, :-1]], 1)[:, ::2]
            h = F.interpolate(self.second(h), scale_factor=2)
            return self.third(F.avg_pool2d(h * 2, 2))

    turned(half(Dense()), image(2, 3, 8, 8))


class Tokens(Block):
    """The pixels of an image as tokens: two residual layers between convolutions, as in a diffusion model's block."""

    def __init__(self, c=8):
        super().__init__(c)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(c, c) for _ in range(2))

    def forward(self, x):
        image = self.second(self.first(x))
        h = image.flatten(2).transpose(1, 2)
        for norm, layer in zip(self.norms, self.layers):
            h = h + F.gelu(layer(norm(h)))
        return image + self.second(h.transpose(1, 2).unflatten(2, image.shape[2:]))


class Normed(Block):
    """A layer norm over the channels of an image, before and behind a depthwise convolution, as in ConvNeXt."""

    def __init__(self, c=8):
        super().__init__(c, bias=True)
        self.norm, self.deep = nn.LayerNorm(c), nn.Conv2d(c, c, 3, padding=1, groups=c)

    def forward(self, x):
        h = self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return h + self.norm(self.deep(h).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("net", [Tokens, Normed])
def test_what_is_made_of_the_pixels_keeps_channels_next_to_each_other(net):
    plan = turned(half(net()), image(2, 3, 12, 10))
    made = [b.type for b in plan.buffers if b.kind in ("arena", "owned") and b.type.sizes[0] == 2 and 8 in b.type.sizes]
    assert len(made) > 2 and all(type.strides[type.sizes.index(8)] == 1 for type in made)
    for call in plan.calls:
        if getattr(call, "op", "") == CONVOLUTION:
            assert call.args[2] is None


def test_channels_last_of_the_user_stays():
    net = half(Block()).to(memory_format=torch.channels_last)
    plan = turned(net, image(2, 3, 16, 16).to(memory_format=torch.channels_last))
    assert sum(isinstance(call, KernelCall) for call in plan.calls) == 2  # nothing is turned


@pytest.mark.parametrize("net, x", [
    (nn.Conv2d(4, 4, 3, groups=4), image(2, 4, 8, 8)),
    (nn.Conv2d(4, 4, 3).float(), image(2, 4, 8, 8, dtype=torch.float32)),
    (nn.Conv1d(4, 4, 3), image(2, 4, 8)),
    (nn.ConvTranspose2d(4, 4, 3), image(2, 4, 8, 8)),
    (nn.Conv2d(4, 4, 1), image(2, 4, 1, 1)),
], ids=["grouped", "float32", "one axis", "transposed", "one element"])
def test_what_is_left_as_it_is(net, x):
    core, _, _ = traced(net.to(x.dtype).eval(), x)
    assert channels_last(core, GPU) is core


def test_a_cpu_keeps_its_layouts_and_biases():
    core, _, _ = traced(half(Block(bias=True)).eval(), image(2, 3, 8, 8))
    assert channels_last(core, CPU) is core and biases_apart(core, CPU) is core


@pytest.mark.parametrize("net, x", [
    (nn.Conv2d(3, 4, 3), image(2, 3, 8, 9, dtype=torch.float32)),
    (nn.Conv2d(3, 4, 3).double(), image(2, 3, 8, 9, dtype=torch.float64)),
    (nn.Conv1d(3, 4, 3).bfloat16(), image(2, 3, 8)),
    (nn.Conv3d(3, 4, 2), image(2, 3, 4, 5, 6, dtype=torch.float32)),
    (nn.ConvTranspose2d(3, 4, 3, 2), image(2, 3, 4, 5, dtype=torch.float32)),
], ids=["float32", "float64", "one axis", "three axes", "transposed"])
def test_a_bias_joins_the_kernel_behind(net, x):
    plan = turned(nn.Sequential(net, nn.ReLU()), x)
    library, kernel = plan.calls
    assert library.args[2] is None and isinstance(kernel, KernelCall)
    turned(net, x)


@pytest.mark.parametrize("groups, is_last", [(4, False), (4, True), (2, False)])
def test_the_bias_of_a_grouped_convolution_stays_where_the_library_adds_it(groups, is_last):
    x = image(2, 4, 8, 8, dtype=torch.float32)
    x = x.to(memory_format=torch.channels_last) if is_last else x
    plan = turned(nn.Sequential(nn.Conv2d(4, 4, 3, groups=groups), nn.ReLU()), x)
    assert (plan.calls[0].args[2] is not None) is (groups == 4 and not is_last)


def test_its_kernels_compile():
    pytest.importorskip("triton")
    core, _, _ = traced(half(Block(64)).eval(), image(2, 3, 64, 64))
    plan = schedule(on_gpu(core), gpu_target("sm_90"))
    assert build_gpu(plan.kernels, gpu_target("sm_90")).binaries
