"""Gradients of depthwise convolutions on a CPU: which are sums, and equal results in the same layout."""

import pytest
import torch

from preheat.bridge.interpret import run
from preheat.generate.build import build, host_target
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.run.executable import executable
from preheat.schedule.depthwise import depthwise_sums
from preheat.schedule.layouts import channels_last_strides
from preheat.schedule.schedule import schedule

CPU = Target("cpu", "x86_64", ("avx512f",), 64)


def backward(
    images, channels, side, kernel, groups=None, mask=(True, True, True), is_last=True,
    steps=(1, 1), lows=None, dilations=(1, 1), dtype="float32",
):
    """The graph of one gradient. `side`, `kernel`: of both axes, or of each."""
    groups = channels if groups is None else groups
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    sides = (side, side) if isinstance(side, int) else side
    lows = (high // 2, wide // 2) if lows is None else lows
    made = [
        (n + 2 * low - (k - 1) * d - 1) // s + 1
        for n, low, k, d, s in zip(sides, lows, (high, wide), dilations, steps)]
    sizes, results = (images, channels, *sides), (images, channels, *made)
    weights = (channels, channels // groups, high, wide)

    def image(shape):
        return tensor(dtype, shape, channels_last_strides(shape) if is_last else None)

    builder = Builder("core")
    g, x = builder.input(image(results)), builder.input(image(sizes))
    w = builder.input(tensor(dtype, weights))
    plain = tensor(dtype, weights)
    kinds = (
        image(sizes), tensor(dtype, weights, (high * wide, 1, wide, 1)) if groups == channels else plain,
        tensor(dtype, (channels,)))
    found = [builder.fresh() if wanted else -1 for wanted in mask]
    builder.append(Op(
        "library",
        (Ref(g), Ref(x), Ref(w), (channels,), steps, lows, dilations, False, (0, 0), groups, mask),
        tuple(found), kinds, (("op", "aten.convolution_backward.default"),)))
    return builder.finish([value for value in found if value != -1])


def inputs_of(graph):
    torch.manual_seed(0)
    return [
        torch.empty_strided(i.type.sizes, i.type.strides).copy_(torch.randn(i.type.sizes))
        for i in graph.inputs]


def is_near(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()


ASKED = [
    dict(images=2, channels=32, side=6, kernel=7),
    dict(images=1, channels=24, side=7, kernel=7, is_last=False),
    dict(images=3, channels=17, side=9, kernel=5, steps=(2, 2)),
    dict(images=2, channels=16, side=10, kernel=5, steps=(3, 2), lows=(0, 4)),  # the last are not read
    dict(images=1, channels=8, side=(12, 9), kernel=(5, 3), dilations=(2, 3), lows=(4, 1)),
    dict(images=2, channels=9, side=4, kernel=(1, 4), lows=(0, 3), is_last=False),
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("mask", [(True, True, True), (False, True, True), (True, True, False)])
def test_a_weights_gradient_is_a_sum(asked, mask):
    graph = backward(**asked, mask=mask)
    sums = depthwise_sums(graph, CPU)
    verify(sums.graph)
    calls = [op.args[-1] for op in sums.graph.ops if op.name == "library"]
    assert calls == ([(True, False, False)] if mask[0] else [])
    given = inputs_of(graph)
    expected = run(graph, given)
    is_near(run(sums.graph, given), expected)
    target = host_target()
    plan = schedule(graph, target)
    is_near(executable(plan, build(plan.kernels, target))(given), expected)


@pytest.mark.parametrize("graph", [
    backward(1, 576, 7, 3),  # no library pads a kernel of 3 x 3
    backward(2, 256, 2, 7, groups=128),
    backward(2, 4, 8, 7),  # no vector of channels
    backward(2, 32, 6, 7, dtype="float64"),
    backward(2, 256, 2, 7, mask=(True, False, True)),
])
def test_others_stay(graph):
    sums = depthwise_sums(graph, CPU)
    assert sums.graph is graph and not sums.operands


def test_a_gpu_has_a_library_of_its_own():
    graph = backward(2, 256, 2, 7)
    assert depthwise_sums(graph, Target("cuda", "sm_90")).graph is graph


def test_one_row_of_the_kernel_is_summed_at_once():
    graph = backward(2, 64, 8, 7, mask=(False, True, False))
    kernels = schedule(graph, host_target()).kernels
    (kernel,) = [kernel for kernel in kernels if any(
        op.op == "reduce" for stage in kernel.stages for op in stage.body)]
    assert kernel.lane is not None  # channels
    assert [axis.extent for axis in kernel.axes[kernel.parallel:]] == [7]


def test_error_is_no_worse_than_the_librarys():
    graph = backward(16, 16, 28, 7, mask=(False, True, True))
    target, given = host_target(), inputs_of(graph)
    plan = schedule(graph, target)
    found, library = executable(plan, build(plan.kernels, target))(list(given)), run(graph, given)
    exact = run(graph, [tensor.double() for tensor in given])
    for ours, theirs, truth in zip(found, library, exact, strict=True):
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 1e-6 * truth.norm()
