"""Gradients of depthwise convolutions on a CPU: which go channels first, and equal results."""

import pytest
import torch

from preheat.bridge.interpret import run
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.schedule.depthwise import channels_first
from preheat.schedule.layouts import channels_last_strides, is_channels_last

CPU = Target("cpu", "x86_64", ("avx512f",), 64)


def backward(images, channels, side, kernel, groups=None, mask=(True, True, True), is_last=True):
    """The graph of one gradient, its inputs channels last."""
    groups = channels if groups is None else groups
    sizes, weights = (images, channels, side, side), (channels, channels // groups, kernel, kernel)
    strides = channels_last_strides(sizes) if is_last else None
    builder = Builder("core")
    g, x = (builder.input(tensor("float32", sizes, strides)) for _ in range(2))
    w = builder.input(tensor("float32", weights))
    kinds = (
        tensor("float32", sizes, strides), tensor("float32", weights, (kernel * kernel, 1, kernel, 1)),
        tensor("float32", (channels,)))
    made = [builder.fresh() if wanted else -1 for wanted in mask]
    pair = (kernel // 2, kernel // 2)
    builder.append(Op(
        "library", (Ref(g), Ref(x), Ref(w), (channels,), (1, 1), pair, (1, 1), False, (0, 0), groups, mask),
        tuple(made), kinds, (("op", "aten.convolution_backward.default"),)))
    return builder.finish([value for value in made if value != -1])


def inputs_of(graph):
    torch.manual_seed(0)
    return [
        torch.empty_strided(i.type.sizes, i.type.strides).copy_(torch.randn(i.type.sizes))
        for i in graph.inputs]


@pytest.mark.parametrize("sizes", [(2, 256, 2, 7), (1, 768, 7, 7), (2, 128, 4, 7), (1, 64, 2, 5)])
@pytest.mark.parametrize("mask", [(True, True, True), (False, True, True), (True, True, False)])
def test_few_positions_go_channels_first(sizes, mask):
    graph = backward(*sizes, mask=mask)
    turned = channels_first(graph, CPU)
    verify(turned)
    (call,) = [op for op in turned.ops if op.name == "library"]
    types = turned.types()
    assert all(types[arg.id].is_contiguous for arg in call.args[:2])
    given = inputs_of(graph)
    for found, expected in zip(run(turned, given), run(graph, given), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.dim() < 4 or found.stride() == expected.stride()
    assert not mask[0] or is_channels_last(types[turned.outputs[0]])


@pytest.mark.parametrize("graph", [
    backward(32, 384, 7, 7),  # its sums are faster channels last
    backward(2, 64, 8, 7),
    backward(1, 576, 7, 3),  # kernels of 3 x 3 have no padded weights
    backward(2, 256, 2, 7, is_last=False),
    backward(2, 256, 2, 7, groups=128),
    backward(2, 256, 2, 7, mask=(True, False, True)),  # the weights are what is padded
])
def test_others_stay(graph):
    assert channels_first(graph, CPU) is graph


def test_a_gpu_has_a_library_of_its_own():
    graph = backward(2, 256, 2, 7)
    assert channels_first(graph, Target("cuda", "sm_90")) is graph
