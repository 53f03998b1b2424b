"""A training run of many steps: the compiled loss stays as near to eager's as eager does to itself."""

import pytest

import preheat
from bench import curve

# Two runs that differ by rounding part at a rate that varies; a wrong gradient parts at once.
FACTOR, ULP = 4, 5e-7


@pytest.mark.parametrize(
    "steps", [pytest.param(30, id="30"), pytest.param(curve.STEPS, id="300", marks=pytest.mark.slow)])
def test_loss_curve_is_eagers_within_float_noise(steps):
    before = preheat.counters()
    eager = curve.losses(lambda model: model, steps)
    noise = max(abs(a - b) for a, b in zip(eager, curve.losses(lambda model: model, steps, nudge=True)))
    compiled = curve.losses(lambda model: preheat.compile(model, options={"cache": False}), steps)
    apart = max(abs(a - b) for a, b in zip(eager, compiled))
    assert apart <= FACTOR * noise + ULP
    assert eager[-1] < 0.9 * eager[0] and compiled[-1] < 0.9 * compiled[0]  # it learns
    counts = {name: preheat.counters()[name] - before[name] for name in ("captures", "breaks", "fallbacks")}
    assert counts == {"captures": 1, "breaks": 0, "fallbacks": 0}
