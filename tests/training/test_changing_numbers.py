"""Optimizers under a schedule: two captures, the first step and all others, native checks, a handful of kernels."""

import pytest
import torch

import preheat
from bench.optimizers import Lion, change
from preheat.capture.capture import capture
from preheat.generate.build import host_target
from preheat.ir.plan import KernelCall
from preheat.run.variant import Variant
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from tests.training.twins import Twins, captures

KINDS = {
    "SGD": (torch.optim.SGD, {}),
    "SGD momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "AdamW maximize": (torch.optim.AdamW, {"maximize": True}),
    "NAdam": (torch.optim.NAdam, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "Rprop": (torch.optim.Rprop, {}),
    "Lion": (Lion, {}),
}
WAYS = {"foreach": {"foreach": True}, "plain": {"foreach": False}, "fused": {"fused": True}}
CASES = [
    pytest.param(name, way, id=f"{name}-{way}") for name, (kind, _) in KINDS.items() for way in WAYS
    if (way != "fused" or kind.__name__ in ("SGD", "Adam", "AdamW", "Adagrad")) and (kind is not Lion or way == "plain")]
SIZES = [(3 + k % 7, *(4,) * (k % 3 == 0)) for k in range(24)]  # so many that parts are told to be alike


def made(name, way):
    kind, given = KINDS[name]
    chosen = {} if kind is Lion else WAYS[way]
    return lambda params: kind(params, **{"lr": 0.01, **given, **chosen})


def rate_alone(optimizer, k):
    optimizer.param_groups[0]["lr"] = 0.01 / (k + 1)


@pytest.mark.parametrize("schedule_of", (rate_alone, change))
@pytest.mark.parametrize("name, way", CASES)
def test_a_schedule_costs_two_captures(name, way, schedule_of):
    twins, before = Twins(made(name, way), SIZES, rtol=1e-5), captures()
    for k in range(6):
        twins.each(lambda optimizer, params, k=k: schedule_of(optimizer, k))
        twins.step()
    assert captures() - before == 2


@pytest.mark.parametrize("name", ("Adam", "NAdam", "Adamax", "RMSprop", "Lion"))
def test_numbers_in_tuples_that_are_replaced_are_checked_natively(name, monkeypatch):
    """Betas, which a schedule replaces by another tuple."""
    bound = []
    taken = Variant.bind.__func__

    def bind(cls, *args, **kwargs):
        bound.append(taken(cls, *args, **kwargs))
        return bound[-1]

    monkeypatch.setattr(Variant, "bind", classmethod(bind))
    twins = Twins(made(name, "plain"), SIZES[:4], rtol=1e-5)
    for k in range(5):
        twins.each(lambda optimizer, params, k=k: change(optimizer, k))
        twins.step()
    assert bound and bound[-1].is_native


@pytest.mark.parametrize("name, way", CASES)
def test_a_step_is_a_handful_of_kernels(name, way):
    params = [torch.nn.Parameter(torch.ones(size)) for size in SIZES]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = made(name, way)(params)
    optimizer.step()
    body = capture(optimizer.step, (), {}, limits=None).captured.trace.nodes[0].body
    plan = schedule(lower(body), host_target())
    assert len(plan.kernels) <= 4 and all(isinstance(call, KernelCall) for call in plan.calls)


def test_numbers_of_the_next_call_change_where_the_first_made_the_state():
    class Counter:
        def __init__(self):
            self.state, self.rate = {}, 0.5

        def step(self, x):
            if "sum" not in self.state:
                self.state["sum"] = torch.zeros_like(x)
            self.state["sum"] += x * self.rate
            return self.state["sum"].clone()

    mine, theirs = Counter(), Counter()
    step, before = preheat.compile(mine.step, options={"cache": False}), captures()
    for k in range(5):
        mine.rate = theirs.rate = 0.5 + k / 8
        torch.testing.assert_close(step(torch.ones(8)), theirs.step(torch.ones(8)))
    assert captures() - before == 2


def test_what_a_mask_chooses_is_a_kernel():
    def masked(x):
        x = x.clone()
        x[x > 1] = 7
        x[x[:, 0] < 0] = torch.arange(4.0)
        x[:, x[0] > 0] = 3
        x[x.isnan()] = 0.0
        return x

    compiled = preheat.compile(masked, options={"cache": False})
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x = torch.randn(9, 4, generator=generator)
        x[0, 1] = float("nan")
        assert torch.equal(compiled(x), masked(x))
    assert preheat.explain(masked)(x).kernels == 1
