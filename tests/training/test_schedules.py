"""Every scheduler of torch, inside the compiled step and outside: eager's rates to the bit, and few captures."""

import warnings

import pytest
import torch
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

import preheat

STEPS = 45
# How each is made, and in how many captures 45 steps are done with it inside. Three are the first steps' own
# (no gradients yet, no state yet, rates known to change); each way that a schedule goes is another.
MAKE = {
    "LambdaLR": (lambda o: schedules.LambdaLR(o, lambda epoch: 0.95**epoch), 4),
    "MultiplicativeLR": (lambda o: schedules.MultiplicativeLR(o, lambda epoch: 0.95), 4),
    "StepLR": (lambda o: schedules.StepLR(o, 7, 0.5), 7),
    "MultiStepLR": (lambda o: schedules.MultiStepLR(o, [5, 12, 13, 20, 30, 31, 40], 0.5), 7),
    "ConstantLR": (lambda o: schedules.ConstantLR(o, 0.5, 6), 6),
    "LinearLR": (lambda o: schedules.LinearLR(o, 0.1, 1.0, 20), 5),
    "ExponentialLR": (lambda o: schedules.ExponentialLR(o, 0.97), 4),
    "SequentialLR": (lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=10), schedules.CosineAnnealingLR(o, 60)], [10]), 8),
    "PolynomialLR": (lambda o: schedules.PolynomialLR(o, 30, 2.0), 5),
    "CosineAnnealingLR": (lambda o: schedules.CosineAnnealingLR(o, 30), 5),
    "ChainedScheduler": (lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.1, 10), schedules.ExponentialLR(o, 0.97)]), 5),
    "ReduceLROnPlateau": (lambda o: schedules.ReduceLROnPlateau(o, patience=3), 12),
    "CyclicLR": (lambda o: schedules.CyclicLR(o, 0.001, 0.1, 10, cycle_momentum=True), 4),
    "OneCycleLR": (lambda o: schedules.OneCycleLR(o, 0.1, total_steps=60), 4),
    "CosineAnnealingWarmRestarts": (lambda o: schedules.CosineAnnealingWarmRestarts(o, 10, 2), 7),
    "SWALR": (lambda o: SWALR(o, swa_lr=0.05, anneal_epochs=15), 6),
}
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
}


class Training:
    """Some steps of a small model; the scheduler steps in the compiled function, or after it."""

    def __init__(self, schedule, optimizer, is_inside):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.params, self.is_inside = [*model.parameters()], is_inside
        self.optimizer = OPTIMIZERS[optimizer](self.params)
        self.scheduler = MAKE[schedule][0](self.optimizer)
        self.needs_loss = schedule == "ReduceLROnPlateau"

        def step(x, y):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            self.optimizer.step()
            if self.is_inside:
                self.advance(loss)
            return loss

        self.step = step

    def advance(self, loss):
        self.scheduler.step(*((loss.detach(),) if self.needs_loss else ()))

    def run(self, wrap):
        """The groups after each step, without their parameters."""
        call, generator, groups = wrap(self.step), torch.Generator().manual_seed(1), []
        for _ in range(STEPS):
            loss = call(torch.randn(5, 4, generator=generator), torch.randn(5, 1, generator=generator))
            if not self.is_inside:
                self.advance(loss)
            groups.append([
                {key: value for key, value in group.items() if key != "params"}
                for group in self.optimizer.param_groups])
        return groups


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", MAKE)
def test_a_schedule(schedule, optimizer, where):
    sides = [Training(schedule, optimizer, where == "inside") for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of some schedulers, about others
        expected = sides[0].run(lambda step: step)
        before = preheat.counters()
        found = sides[1].run(lambda step: preheat.compile(step, options={"cache": False}))
    after = preheat.counters()
    assert found == expected
    for param, other in zip(sides[0].params, sides[1].params):
        torch.testing.assert_close(other, param, rtol=1e-4, atol=1e-4)
    captures = after["captures"] - before["captures"]
    assert captures <= (MAKE[schedule][1] if where == "inside" else 4), captures
    assert after["interpreted"] == before["interpreted"]


def test_every_scheduler_is_here():
    known = {
        name for name, value in vars(schedules).items() if isinstance(value, type)
        and issubclass(value, schedules.LRScheduler) and not name.startswith("_")}
    assert known - {"LRScheduler", "EPOCH_DEPRECATION_WARNING"} <= MAKE.keys()
