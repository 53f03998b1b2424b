"""Numbers that C takes as plain floats: one capture for all values, results as in eager."""

import math
import types

import pytest
import torch
import torch.nn.functional as F

import preheat

X, Y = (torch.randn(8, 16, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
IMAGE = X.view(2, 4, 4, 4)
LINE, WIDE = torch.linspace(0.5, 2.0, 4), torch.linspace(-1.0, 1.0, 16)
VALUES = [0.1 + 0.07 * k for k in range(9)]

CALLS = {
    "layer_norm": lambda v: F.layer_norm(X, (16,), WIDE, WIDE, v),
    "rms_norm": lambda v: F.rms_norm(X, (16,), WIDE, v),
    "group_norm": lambda v: F.group_norm(IMAGE, 2, LINE, LINE, v),
    "batch_norm": lambda v: F.batch_norm(IMAGE, LINE - 1, LINE, LINE, LINE, False, 0.1, v),
    "huber": lambda v: F.huber_loss(X, Y, delta=v),
    "smooth_l1": lambda v: F.smooth_l1_loss(X, Y, reduction="none", beta=v),
    "nan_to_num": lambda v: torch.nan_to_num(X / 0 * 0, v),
    "dropout": lambda v: F.dropout(X, v),
}


def captures_of(run, values) -> int:
    compiled, before = preheat.compile(run), preheat.counters()["captures"]
    for v in values:
        torch.manual_seed(3)
        found = compiled(v)
        torch.manual_seed(3)
        torch.testing.assert_close(found, run(v), equal_nan=True)
    return preheat.counters()["captures"] - before


@pytest.mark.parametrize("name", CALLS)
def test_a_parameter_that_changes_is_captured_twice(name):
    assert captures_of(CALLS[name], VALUES) <= 3


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "nan_to_num"])
def test_numbers_that_are_none_or_infinite(name):
    captures_of(CALLS[name], [0.1, 0.2, 0.0, math.inf, -1.0, math.nan, 0.3])


@pytest.mark.parametrize("name, values", [
    ("huber", [0.1, 0.2, 0.3, 0.0, -1.0, math.nan, 0.4]), ("smooth_l1", [0.1, 0.2, 0.3, 0.0, -1.0, math.nan, math.inf, 0.4]),
    ("batch_norm", [0.1, 0.2, 0.3, 0.0, -1.0, math.nan, math.inf, 0.4]),
    ("dropout", [0.1, 0.2, 0.3, 0.0, 1.0, -0.5, 1.5, math.nan, 0.4]),
])
def test_what_eager_refuses_is_refused(name, values):
    run = CALLS[name]
    compiled = preheat.compile(run)
    for v in values:
        torch.manual_seed(3)
        try:
            wanted = run(v)
        except Exception as error:
            with pytest.raises(type(error), match=str(error)[:20].replace("(", ".").replace(")", ".")):
                compiled(v)
            continue
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(v), wanted, equal_nan=True)


def test_running_statistics_follow_a_momentum_that_changes():
    own, other = ([torch.zeros(4), torch.ones(4)] for _ in range(2))

    def run(mean, variance, v):
        return F.batch_norm(IMAGE, mean, variance, LINE, LINE, True, v, v)

    compiled, before = preheat.compile(run), preheat.counters()["captures"]
    for v in VALUES:
        torch.testing.assert_close(compiled(*own, v), run(*other, v))
        torch.testing.assert_close(own, other)
    assert preheat.counters()["captures"] - before <= 3


def test_a_dropout_that_is_annealed_in_training():
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(0.5))

    def run(v):
        model[1].p = v
        model.zero_grad()
        model(X).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    assert captures_of(types.FunctionType(run.__code__, globals(), "run", None, run.__closure__), VALUES) <= 6


def test_a_parameter_and_the_size_change_together():
    def run(x, v):
        return F.dropout(F.layer_norm(x, (16,), WIDE, WIDE, v), v)

    compiled, before = preheat.compile(run), preheat.counters()["captures"]
    for k, v in enumerate(VALUES):
        x = X[:8 - k % 5].clone()
        torch.manual_seed(3)
        found = compiled(x, v)
        torch.manual_seed(3)
        torch.testing.assert_close(found, run(x, v))
    assert preheat.counters()["captures"] - before <= 4


def test_autocast_casts_as_in_eager():
    def run(v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(X.bfloat16(), (16,), None, None, v)

    captures_of(run, [0.1, 0.2, 0.3])


@pytest.mark.parametrize("call", [
    lambda x, v: F.layer_norm(x, (16,), None, None, v), lambda x, v: F.huber_loss(x, Y, delta=v)])
def test_gradients_are_those_of_the_value(call):
    def run(v):
        x = X.clone().requires_grad_()
        call(x, v).square().sum().backward()
        return x.grad

    captures_of(run, [0.1, 0.2, 0.3, 0.4])


def test_an_attribute_of_a_norm_that_changes_in_inference():
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8), torch.nn.RMSNorm(8))

    @torch.no_grad()
    def run(v):
        model[1].eps = model[2].eps = v
        return model(X)

    assert captures_of(run, VALUES) <= 5
