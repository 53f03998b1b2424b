"""Batch norms that train on a GPU: how often their images are read, in how few launches, in which layout."""

from dataclasses import replace

import torch
from schedule.footprint import peak_bytes
from schedule.graphs import Make, last, on_gpu
from torch.nn import functional as F

from preheat.capture.capture import capture
from preheat.differentiate import Lesson
from preheat.generate.shared import shared
from preheat.generate.variants import sources_of
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.ir.types import tensor
from preheat.run.executable import Executable
from preheat.schedule.layouts import is_channels_last, laid_out
from preheat.schedule.schedule import schedule
from preheat.transform.cleanup import cleanup
from preheat.transform.compact import compact
from preheat.transform.halves import halves
from preheat.transform.partition import partition
from preheat.transform.pipeline import HALF, JOINED, lower
from preheat.transform.whole import whole

GPU = Target("cuda", "sm_90")
SIZES = (32, 64, 56, 56)
IMAGE = 32 * 64 * 56 * 56 * 2  # bytes in 16 bits


def norm(sizes=SIZES, dtype="bfloat16"):
    """relu of a batch norm of images with channels last, with all that it gives."""
    image, channel = tensor(dtype, sizes, last(sizes)), tensor("float32", sizes[1:2])
    b = Builder("aten")
    x, *others = [b.input(image, "x"), *(b.input(channel, name) for name in "wbmv")]
    made = [b.fresh() for _ in range(5)]
    refs = map(Ref, (x, *others))
    b.append(Op(
        "aten._native_batch_norm_legit_functional.default", (*refs, True, 0.1, 1e-5), tuple(made),
        (image, *[channel] * 4)))
    return on_gpu(lower(b.finish([b.add("aten.relu.default", [made[0]], image), *made[1:]])))


def test_statistics_read_images_once():
    """Sums of parts with those of the squares about their means; what is made of them; what is done with it."""
    plan = schedule(norm(), GPU)
    assert len(plan.calls) == 3 and all(isinstance(call, KernelCall) for call in plan.calls)
    moved = [call.bytes for call in plan.calls]
    assert IMAGE < moved[0] < IMAGE * 1.05 and moved[1] < IMAGE * 0.05 and 2 * IMAGE <= moved[2] < IMAGE * 2.01


def test_few_images_are_parts_of_several():
    (first, *_) = schedule(norm((32, 2048, 7, 7)), GPU).kernels
    assert [axis.extent for axis in first.axes] == [16, 2048]
    assert [axis.extent for stage in first.stages for axis in stage.axes] == [98, 98]


def test_images_of_several_widths_share_texts():
    """Where parts have as many rows, masked along no axis that lies in memory, and where channels are one block or some."""
    kernels = [kernel for count, side in ((256, 56), (512, 28), (1024, 14)) for kernel in schedule(
        norm((32, count, side, side)), GPU).kernels]
    made = shared([source for kernel in kernels for source in sources_of(kernel, GPU)])
    texts = [source.text.split("(", 1)[1] for source, _ in made]
    assert [len(set(texts[k::3])) for k in range(3)] == [1, 3, 1], "sums of parts, what is made of them, and their use"
    assert [numbers[0] for _, numbers in made[::3]] == [224, 196, 196]


def test_small_kernels_of_one_extent_are_one():
    """As the two sums of a backward: of parts, for each channel; others are launched at once, of any size."""
    m = Make()
    parts = [m.input(16, 64) for _ in range(30)]
    plan = schedule(on_gpu(m.graph(*(m.reduce("sum", part, 0) for part in parts))), GPU)
    assert [len(call.buffers) for call in plan.calls] == [24, 24, 12], "of 24 memories at most"


def test_a_choice_between_halves_has_16_bits():
    m = Make()
    wide = m.cast(m.input(64, 64, dtype="bfloat16"), "float32")
    chosen = m.op("where", m.input(64, 64, dtype="bool"), m.full(0.0, 64, 64), wide)
    odd = m.op("where", m.input(64, 64, dtype="bool"), m.full(0.1, 64, 64), wide)
    graph = cleanup(m.graph(m.op("exp", chosen), m.op("exp", odd)))
    types = [op.type.dtype for op in graph.ops if op.name == "where"]
    assert types == ["bfloat16", "float32"], "0.1 is no bfloat16"


def blocks(x, *weights):
    """Convolutions in 16 bits, each with its norm and relu."""
    for k in range(0, len(weights), 5):
        conv, mean, variance, scale, shift = weights[k:k + 5]
        x = F.relu(F.batch_norm(F.conv2d(x, conv, padding=1), mean, variance, scale, shift, True))
    return x.float().mean((2, 3))


def trained(count):
    """Plans of both halves on a GPU, and the bytes that the forward keeps."""
    channels, args = 16, [torch.randn(4, 16, 32, 32).bfloat16()]
    for _ in range(count):
        args += [
            torch.randn(channels, 16, 3, 3).bfloat16().requires_grad_(), torch.zeros(channels), torch.ones(channels),
            torch.ones(channels, requires_grad=True), torch.zeros(channels, requires_grad=True)]
    body = capture(blocks, tuple(args), {}, limits=None).captured.trace.nodes[0].body
    assert [i.type.sizes for i in body.inputs] == [tuple(a.shape) for a in args]
    lesson = Lesson.of(body)
    source = lesson.run(args)
    source.backward(0, [torch.ones_like(source.values[0])], [], False)
    known = lesson.training
    joints = [replace(joint, graph=on_gpu(joint.graph)) for joint in known.joints]
    joined = whole(on_gpu(known.forward), joints, known.replaced, known.wiring.commits)
    core = laid_out(compact(lower(joined.graph, passes=JOINED)), GPU)
    ahead, (back,) = halves(core, joined, partition(core, joined, 1.0))
    passed = [k for k, given in enumerate(back.takes) if given.kind != "input"]
    forward, backward = (
        schedule(lower(half.graph, passes=HALF), GPU, passed=own) for half, own in ((ahead, ()), (back, passed)))
    types = ahead.graph.types()
    return forward, backward, [types[value] for value in ahead.graph.outputs[joined.values:]]


def test_both_halves_have_channels_last_and_no_norm_of_the_library():
    forward, backward, kept = trained(3)
    calls = [call for plan in (forward, backward) for call in plan.calls if isinstance(call, LibraryCall)]
    assert {call.op for call in calls} == {"aten.convolution.default", "aten.convolution_backward.default"}
    assert all(is_channels_last(type) for type in kept if type.rank == 4 and type.elems > 16 * 16 * 9)
    for plan, call in [(forward, c) for c in calls[:3]] + [(backward, c) for c in calls[3:]]:
        for ref in [arg.id for arg in call.args if isinstance(arg, Ref)]:
            assert is_channels_last(plan.buffers[ref].type), call.op


def test_a_backward_holds_no_more_images_the_deeper_it_is():
    """What relu gave is computed again right before it is needed, not all of it at first."""
    image = 4 * 16 * 32 * 32 * 2

    def beyond(count):
        _, backward, kept = trained(count)
        taken = sum(type.elems * type.itemsize for type in kept)
        return peak_bytes(Executable(backward, None, is_lean=True, takes_inputs=True)) - taken

    assert beyond(8) - beyond(4) < image
