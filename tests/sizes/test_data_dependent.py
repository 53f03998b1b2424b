"""Sizes that elements decide: a host step finds them, compiled code goes on behind it with symbols."""

import pytest
import torch

import preheat


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


PROGRAMS = {
    "nonzero": lambda x: (x > 0).nonzero().sum(0) * 2 + x.shape[0],
    "boolean index": lambda x: x[x > 0].exp().cumsum(0),
    "masked_select": lambda x: torch.masked_select(x, x > 0).softmax(0),
    "unique": lambda x: torch.unique((x * 2).long()).float() * 0.5,
    "unique with counts": lambda x: torch.unique((x * 2).long(), return_counts=True)[1] + 1,
    "where": lambda x: torch.where(x > 0)[0].float().cumsum(0),
    "tolist": lambda x: x[: (x[:, 0] > 0).long().sum().tolist()] * 2,
    "item": lambda x: torch.zeros((x > 0).sum().item()) + x.sum(),
    "item, expanded": lambda x: x[0, 0].expand((x > 0).sum().item(), 2) * 2,
    "arange": lambda x: torch.arange((x > 0).sum().item()).float().mean(),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0).sum(-1),
    "two of them": lambda x: x[x > 0].sum() + x[x < -0.5].reshape(-1, 1).sum(-1).exp().mean(),
}


def inputs(count=12):
    return [torch.randn(6, 4, generator=torch.Generator().manual_seed(k)) for k in range(count)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_new_count_is_captured_twice_at_most(name, mode):
    program = PROGRAMS[name]
    compiled, before = preheat.compile(program, options={"cache": False}), preheat.counters()["captures"]
    with mode():
        for x in inputs():
            found, expected = compiled(x), program(x)
            assert found.shape == expected.shape and found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
    # the first call, and behind each step a second one with a symbol; sizes of 0 and 1, and a slice of
    # the whole, are others
    assert preheat.counters()["captures"] - before <= 6


@pytest.mark.parametrize("name", ["boolean index", "masked_select", "item, expanded", "two of them"])
def test_gradients(name):
    program, w = PROGRAMS[name], torch.randn(4, requires_grad=True)
    compiled = preheat.compile(lambda x: program(x * w), options={"cache": False})
    before = preheat.counters()["captures"]
    for x in inputs():
        (found,) = torch.autograd.grad(compiled(x).sum(), w)
        (expected,) = torch.autograd.grad(program(x * w).sum(), w)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before <= 6
