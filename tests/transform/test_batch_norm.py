"""Batch norm that trains: core ops, by which statistics, gradients and running statistics are eager's."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from schedule.graphs import on_gpu
from torch import nn

import preheat
from preheat.capture.capture import capture
from preheat.generate.build import host_target
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from transform.check import check

SIZES = {"2d": (3, 5, 4, 6), "1d": (7, 5), "sequence": (3, 5, 4), "volume": (2, 5, 3, 2, 4), "one image": (1, 5, 8, 8)}
BACKWARD = torch.ops.aten.native_batch_norm_backward


def tensors(sizes, dtype=torch.float32, layout=torch.contiguous_format):
    """x, weight, bias, running mean, running variance."""
    torch.manual_seed(0)
    x = (torch.randn(sizes) * 2 + 3).to(dtype)
    x = x.to(memory_format=layout) if len(sizes) == 4 else x
    return x, torch.randn(5).to(dtype), torch.randn(5).to(dtype), torch.randn(5), torch.rand(5) + 0.5


def library(graph):
    return [op.attr("op") for op in graph.ops if op.name == "library"]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_forward(sizes, dtype, layout):
    x, w, b, mean, variance = tensors(sizes, dtype, layout)
    graph = check(
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True, 0.3),
        x, w, b, mean.to(dtype), variance.to(dtype))
    assert library(graph) == []


@pytest.mark.parametrize("call", [
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    lambda x, w, b: F.batch_norm(x, None, None, w, None, True),
    lambda x, w, b: F.batch_norm(x, None, None, None, None, True, eps=0.1),
], ids=["affine", "no bias", "neither"])
def test_without_running_statistics(call):
    x, w, b, *_ = tensors((3, 5, 4, 6))
    assert library(check(call, x, w, b)) == []


def test_16_bits_with_statistics_of_32():
    x, w, b, mean, variance = tensors((3, 5, 4, 6), torch.bfloat16)
    graph = check(
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True), x, w.float(), b.float(), mean, variance,
        factor=3)
    assert library(graph) == []


def test_one_element_a_channel_has_no_variance():
    x, w, b, mean, variance = tensors((1, 5, 1, 1))
    graph = check(
        lambda x, w, b, m: torch.ops.aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5), x, w, b, mean)
    assert library(graph) == ["aten.native_batch_norm.default"]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_backward(sizes, is_training, mask, dtype):
    x, w, b, mean, variance = (t.to(dtype) for t in tensors(sizes, dtype))
    _, saved, rstd = torch.ops.aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    grad = torch.randn_like(x)

    def call(grad, x, w, m, v, saved, rstd):
        made = BACKWARD(grad, x, w, m, v, saved, rstd, is_training, 1e-5, mask)
        return [one for one, wanted in zip(made, mask) if wanted]

    assert library(check(call, grad, x, w, mean, variance, saved, rstd)) == []


def test_a_gpu_has_the_same():
    x, w, b, mean, variance = tensors((3, 5, 4, 6))
    with torch.no_grad():
        body = capture(
            lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True), (x, w, b, mean, variance), {},
            limits=None).captured.trace.nodes[0].body

    assert library(lower(on_gpu(body))) == []


def test_one_kernel_with_what_follows():
    x, w, b, mean, variance = tensors((3, 5, 4, 6))
    with torch.no_grad():
        body = capture(
            lambda x, w, b, m, v: torch.relu(F.batch_norm(x, m, v, w, b, True) + x),
            (x, w, b, mean, variance), {}, limits=None).captured.trace.nodes[0].body
    plan = schedule(lower(body), host_target())
    assert len(plan.calls) == 1 and len(plan.kernels) == 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.second, self.other = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=0.3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.other(self.second(x)) + x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("is_frozen", [False, True])
def test_steps_of_training(layout, is_frozen):
    """Five steps beside eager and float64, each of two calls before the backward."""
    torch.manual_seed(0)
    net = Net()
    sides = [net, copy.deepcopy(net), copy.deepcopy(net).double()]
    for side in sides:
        side.train()
        side.norm.train(not is_frozen)
    compiled = preheat.compile(sides[0], options={"cache": False})
    before = preheat.counters()
    for step in range(5):
        x = (torch.randn(4, 3, 8, 8) + step).to(memory_format=layout)
        for call, side in ((compiled, sides[0]), (sides[1], sides[1]), (sides[2], sides[2])):
            side.zero_grad()
            given = x.to(next(side.parameters()).dtype, copy=True).requires_grad_()
            first = call(given)
            (first + call(given * 2) * 0.5).square().mean().backward()
            side.seen = given.grad
        for name in dict(net.named_parameters()) | dict(net.named_buffers()):
            found, expected, truth = (
                value if value.grad is None else value.grad
                for value in (dict(side.named_parameters()) | dict(side.named_buffers()) for side in sides)
                for value in (value[name],))
            assert found.dtype == expected.dtype and found.stride() == expected.stride(), name
            error, own = ((one.double() - truth).abs().max() for one in (found, expected))
            assert error <= 2 * own + 2e-6 * truth.abs().max() + 1e-6, (name, step, error, own)
        torch.testing.assert_close(sides[0].seen, sides[1].seen, rtol=1e-4, atol=1e-6)
    after = preheat.counters()
    assert after["fallbacks"] == before["fallbacks"] and after["compiles"] > before["compiles"]


@pytest.mark.parametrize("body", [
    lambda norm, x: norm(x),
    lambda norm, x: (norm(x), norm.running_mean.add_(0.25))[0],
    lambda norm, x: (norm.running_var.mul_(0.5), norm(x))[1],
    lambda norm, x: norm(norm(x)),
], ids=["alone", "and a write", "after a write", "twice"])
@pytest.mark.parametrize("needs_grad, rows", [
    (True, (3, 3, 3, 3)), (False, (3, 3, 3, 3)), (True, (3, 5, 4, 6, 7, 4, 4)), (False, (3, 5, 4, 6, 7, 4, 4))],
    ids=["grad", "no grad", "sizes", "no grad, sizes"])
def test_versions_count_what_they_count_in_eager(body, needs_grad, rows):
    """Whether they moved: several writes of one call are one here."""
    moved = []
    for wrap in (lambda f: f, lambda f: preheat.compile(f, options={"cache": False})):
        norm = nn.BatchNorm1d(4)
        call = wrap(lambda x, norm=norm: body(norm, x))
        seen = []
        for count in rows:
            x = torch.randn(count, 4)
            before = [b._version for b in norm.buffers()]
            with torch.set_grad_enabled(needs_grad):
                y = call(x)
            if needs_grad:
                with contextlib.suppress(RuntimeError):  # eager's too, after a write that counts
                    y.sum().backward()
            seen.append([b._version > was for b, was in zip(norm.buffers(), before)])
        moved.append(seen)
    assert moved[0] == moved[1]


def test_two_calls_before_a_backward_with_sizes_that_change():
    """A generator's and a discriminator's batches, the last of which are smaller."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    other = copy.deepcopy(net)
    compiled = preheat.compile(net, options={"cache": False})
    for rows in (8, 5, 7, 6, 9, 6, 6, 8):
        first, second = torch.randn(rows, 4), torch.randn(rows + 1, 4)
        for call, side in ((compiled, net), (other, other)):
            side.zero_grad()
            (call(first).square().sum() + call(second).square().sum()).backward()
        for one, expected in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(one.grad, expected.grad, rtol=1e-4, atol=1e-4)
        for one, expected in zip(net.buffers(), other.buffers()):
            torch.testing.assert_close(one, expected)
