"""Batch norms of cuDNN, which no CPU has: graphs that say them mean what torch's own do."""

import pytest
import torch
import torch.nn.functional as F

from preheat.bridge import interpret
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.types import tensor
from preheat.transform.norms import native_norms
from preheat.transform.pipeline import lower

IMAGE, CHANNELS, RESERVED = tensor("float32", (3, 5, 4, 6)), tensor("float32", (5,)), tensor("uint8", (0,))


def graph(is_training=True, reads_reserved=False, writes_mean=False):
    """relu of cuDNN's batch norm of x, and its backward under `g`; gives these, and what was saved."""
    b = Builder("aten")
    x, g = b.input(IMAGE, "x"), b.input(IMAGE, "g")
    weight, bias, mean, variance = [b.input(CHANNELS, name) for name in "wbmv"]
    made, saved, rstd, reserved = [b.fresh() for _ in range(4)]
    statistics = CHANNELS if is_training else tensor("float32", (0,))
    refs = map(Ref, (x, weight, bias, mean, variance))
    b.append(Op(
        "aten.cudnn_batch_norm.default", (*refs, is_training, 0.3, 1e-3), (made, saved, rstd, reserved),
        (IMAGE, statistics, statistics, RESERVED)))
    outputs = [b.add("aten.relu.default", [made], IMAGE)]
    if is_training:
        grads = [b.fresh() for _ in range(3)]
        refs = map(Ref, (x, g, weight, mean, variance, saved, rstd))
        b.append(Op(
            "aten.cudnn_batch_norm_backward.default", (*refs, 1e-3, Ref(reserved)), tuple(grads),
            (IMAGE, CHANNELS, CHANNELS)))
        outputs += grads
    if writes_mean:
        b.append(Op("aten.mul_.Tensor", (Ref(mean), 2.0), (mean,), (CHANNELS,), writes=(mean,), aliases=(mean,)))
    return b.finish([*outputs, *([reserved] if reads_reserved else [])])


def given():
    generator = torch.Generator().manual_seed(0)
    sizes = (IMAGE.sizes, IMAGE.sizes, *[CHANNELS.sizes] * 3)
    return [*(torch.randn(s, generator=generator) for s in sizes), torch.rand(5, generator=generator) + 0.5]


@pytest.mark.parametrize("writes_mean", [False, True])
def test_training(writes_mean):
    """Results, gradients, and running statistics that are written once, also where others write to them."""
    core = lower(graph(writes_mean=writes_mean), is_checked=True)
    assert not any(op.name == "library" for op in core.ops)
    ours, theirs = given(), given()
    found = interpret.run(core, ours)
    x, g, w, b, mean, variance = theirs
    leaves = [t.requires_grad_() for t in (x, w, b)]
    made = F.batch_norm(x, mean, variance, w, b, True, 0.3, 1e-3)
    made.backward(g)
    if writes_mean:
        mean.mul_(2)
    for one, expected in zip(found, [made.relu(), *(leaf.grad for leaf in leaves)], strict=True):
        torch.testing.assert_close(one, expected.detach(), rtol=1e-4, atol=1e-5)
    for one, expected in zip(ours, theirs):
        torch.testing.assert_close(one, expected.detach())


def test_inference():
    core = lower(graph(is_training=False), is_checked=True)
    assert not any(op.name == "library" for op in core.ops) and not core.writes
    x, _, w, b, mean, variance = given()
    (found,) = interpret.run(core, given())
    torch.testing.assert_close(found, F.batch_norm(x, mean, variance, w, b, False, 0.3, 1e-3).relu())


def test_what_cudnn_reserves_keeps_it_where_it_is_read():
    kept = graph(reads_reserved=True)
    assert native_norms(kept).ops == kept.ops
    assert native_norms(Builder("aten").finish([])).ops == ()
