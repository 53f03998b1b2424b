"""Gradients clipped by their norm or value: a handful of kernels, whatever the number of parameters."""

import copy
from itertools import groupby

import pytest
import torch
from schedule.test_batches import beside_gpu
from torch import nn

import preheat
from preheat.capture.capture import capture
from preheat.generate.build import host_target
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

SHAPES = [(16, 8), (16,), (8, 16), (8,), (3, 5), (33,)]
NORM = nn.utils.clip_grad_norm_


def parameters(times=1, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES * times]
    return with_gradients(made, seed)


def with_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed + 1)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    return params


WAYS = {
    "norm": lambda params: NORM(params, 1.0),
    "norm, not reached": lambda params: NORM(params, 1e4),
    "largest": lambda params: NORM(params, 0.5, norm_type=float("inf")),
    "sum": lambda params: NORM(params, 3.0, norm_type=1.0),
    "one by one": lambda params: NORM(params, 1.0, foreach=False),
    "finite": lambda params: NORM(params, 1.0, error_if_nonfinite=True),
    "value": lambda params: nn.utils.clip_grad_value_(params, 0.3),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("way", WAYS)
def test_clipped_gradients_are_eagers(way, dtype):
    """By a norm that may be added up in another order, so the last bit of float32 may differ."""
    mine, theirs = parameters(2, dtype), parameters(2, dtype)
    clip = preheat.compile(WAYS[way], fullgraph=way != "finite", options={"cache": False})
    for seed in range(4):
        found, expected = clip(with_gradients(mine, seed)), WAYS[way](with_gradients(theirs, seed))
        within = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float32 else {}
        torch.testing.assert_close(found, expected, **within)
        for a, b in zip(mine, theirs):
            torch.testing.assert_close(a.grad, b.grad, **within)


def test_what_is_not_finite_raises_as_in_eager():
    params = parameters()
    clip = preheat.compile(WAYS["finite"], options={"cache": False})
    for seed in range(3):
        clip(with_gradients(params, seed))
    params[2].grad[0, 0] = float("nan")
    before = [param.grad.clone() for param in params]
    with pytest.raises(RuntimeError, match="non-finite"):
        clip(params)
    for param, grad in zip(params, before):
        assert torch.equal(param.grad.nan_to_num(), grad.nan_to_num())


def plans(run):
    body = capture(run, (), {}, limits=None).captured.trace.nodes[0].body
    core = lower(body)
    return schedule(core, host_target()), schedule(beside_gpu(core, ()), Target("cuda", "sm_90"))


def launches(plan):
    """What a GPU launches: kernels, those that stand together once, and library calls."""
    names = [
        plan.kernels[call.kernel].name if isinstance(call, KernelCall) else call.op for call in plan.calls]
    return [name for name, _ in groupby(names)]


@pytest.mark.parametrize("foreach", (None, False))
@pytest.mark.parametrize("times", (3, 10))
def test_a_clip_is_four_launches_whatever_the_number_of_parameters(times, foreach):
    params = parameters(times)
    cpu, gpu = plans(lambda: NORM(params, 1.0, foreach=foreach))
    assert len(launches(gpu)) <= 4
    for plan in (cpu, gpu):
        assert len(plan.kernels) <= 3 and max(len(kernel.params) for kernel in plan.kernels) <= 16
        assert [call.op for call in plan.calls if isinstance(call, LibraryCall)] == ["aten._foreach_norm.Scalar"]


@pytest.mark.parametrize("times", (2, 10))
def test_an_update_takes_the_clip_along(times):
    """The gradients are read once for both: the clip has no kernel of its own."""
    params = parameters(times)
    optimizer = torch.optim.AdamW(params)
    optimizer.step()

    def step():
        NORM(params, 1.0)
        optimizer.step()

    cpu, gpu = plans(step)
    assert len(launches(gpu)) <= 5
    for plan in (cpu, gpu):
        assert len(plan.kernels) <= 4 and len(plan.calls) <= 3 + 3 * len(params)


@pytest.mark.parametrize("foreach", (None, False))
def test_a_whole_step_with_a_clip_trains_as_eager(foreach):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)

    def training(net):
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            norm = NORM(net.parameters(), 0.1, foreach=foreach)
            optimizer.step()
            return loss.detach(), norm

        return step

    compiled, eager = preheat.compile(training(model), options={"cache": False}), training(twin)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(5, 8, generator=generator), torch.randn(5, 4, generator=generator)
        torch.testing.assert_close(compiled(x, y), eager(x, y), rtol=2e-5, atol=1e-6)
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6)
