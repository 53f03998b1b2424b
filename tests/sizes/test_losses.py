"""Losses whose mean is over a batch that changes, and choices by random numbers: plans of both halves, not op by op."""

import pytest
import torch
import torch.nn.functional as F

import preheat

LOSSES = {
    name: getattr(F, name) for name in (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "soft_margin_loss",
        "poisson_nll_loss", "kl_div", "cross_entropy", "hinge_embedding_loss")}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_mean_over_a_batch_that_changes(name, reduction):
    weight, loss = torch.randn(2, requires_grad=True), LOSSES[name]
    compiled = preheat.compile(lambda x, y: loss(x * weight, y, reduction=reduction), options={"cache": False})
    before = preheat.counters()["fallbacks"]
    for n in (6, 9, 4, 2, 17):
        x, y = torch.randn(n, 2), torch.rand(n, 2)
        (found,), (expected,) = (
            torch.autograd.grad(value, weight) for value in (compiled(x, y), loss(x * weight, y, reduction=reduction)))
        torch.testing.assert_close(found, expected)
    assert preheat.counters()["fallbacks"] == before


def test_choices_by_random_numbers():
    def program(x):
        return F.gumbel_softmax(x * 2, 0.9, hard=True) * x + torch.empty_like(x).cauchy_() * x

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()
    for n in (6, 9, 4, 2, 17):
        x, made = torch.randn(n, 4, requires_grad=True), []
        for f in (compiled, program):
            torch.manual_seed(n)
            y = f(x)
            made.append((y, *torch.autograd.grad(y.sum(), x)))
        torch.testing.assert_close(*made)
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 2 and after["fallbacks"] == before["fallbacks"]
