"""Numbers that change beside tensors that require grad: weights of losses, temperatures, steps counted."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import preheat

# what is computed of a tensor with a number that changes
USES = {
    "a product": lambda y, n: (y * n).sum(),
    "a product from the left": lambda y, n: (n * y).sum(),
    "a sum": lambda y, n: (y + n).pow(2).sum(),
    "a sum from the left": lambda y, n: (n + y).pow(2).sum(),
    "a difference": lambda y, n: (y - n).pow(2).sum(),
    "a difference from the left": lambda y, n: (1 - n - y).pow(2).sum(),
    "a quotient": lambda y, n: (y / (n + 2)).exp().sum(),
    "functions": lambda y, n: torch.mul(y, n).add(n + 1).sum() + torch.div(y, n + 2).sum(),
    "methods": lambda y, n: y.mul(n).sub(2 * n).div(n + 3).pow(2).sum(),
    "a loss": lambda y, n: y.pow(2).mean() + n * y.abs().mean(),
    "a loss of no axes": lambda y, n: (y.sum() * n + n) * (1 - n),
    "in place": lambda y, n: (y * 2).mul_(n).sum(),
    "twice": lambda y, n: (y * n * (n * 0.5)).sum() * n,
    "a power": lambda y, n: (y.abs() + 1).pow(n).sum(),
    "under the line": lambda y, n: (n / (y.abs() + 1)).sum(),
    "a region": lambda y, n: checkpoint(lambda t: (t * n).tanh(), y, use_reentrant=False).sum() * n,
    "a part": lambda y, n: (y[0] * n).sum() + y.t().mul(n).sum(),
}
NUMBERS = {"floats": [0.1 * k for k in range(7)], "ints": [3, 4, 5, 6, 8, 9, 2**25 + 1]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", USES)
def test_gradients_with_a_number_that_changes(name, kind, dtype):
    w = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()

    def program(x, number):
        return USES[name](x * w, number)

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    for k, number in enumerate(NUMBERS[kind]):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(k)).to(dtype)
        found = compiled(x, number)
        expected = program(x, number)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        exact = USES[name](x.double() * w.double(), number)
        results = [(result.detach(), torch.autograd.grad(result, w)[0]) for result in (found, expected, exact)]
        if dtype != torch.bfloat16:
            torch.testing.assert_close(*results[:2])
        for one, eager, truth in zip(*results) if dtype == torch.bfloat16 else ():
            torch.testing.assert_close(one.isfinite(), eager.isfinite())
            truth = truth.double()[eager.isfinite()]
            errors = [(made.double()[eager.isfinite()] - truth).abs().sum() for made in (one, eager)]
            assert errors[0] <= 3 * errors[1] + 1e-2 * truth.abs().sum()
    assert preheat.counters()["captures"] - before == 2


@pytest.mark.parametrize("use", ["double", "no_grad", "sizes", "item"])
def test_the_same_in_other_ways(use):
    w = torch.randn(4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def program(x, number):
        y = (x * w).tanh()
        weight = y.detach().sum().item() * number if use == "item" else number
        return (y * weight).pow(2).sum() + weight * y.sum()

    compiled = preheat.compile(program, options={"cache": False})
    for k in range(8):
        rows = 3 + (k if use == "sizes" else 0)
        x, results = torch.randn(rows, 4, generator=torch.Generator().manual_seed(k)), []
        for call in (compiled, program):
            with torch.set_grad_enabled(use != "no_grad" or k % 2 == 0):
                result = call(x, 0.1 * k)
            if result.requires_grad:
                (grad,) = torch.autograd.grad(result, w, create_graph=use == "double")
                result = result.detach(), torch.autograd.grad(grad.sum(), w) if use == "double" else grad
            results.append(result)
        torch.testing.assert_close(*results)


def test_a_weight_that_anneals_in_a_step():
    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer, state = torch.optim.AdamW(model.parameters(), lr=0.01), {"beta": 0.0, "step": 0}

        def step(x):
            optimizer.zero_grad()
            h = model(x)
            loss = h.pow(2).mean() + state["beta"] * h.abs().mean() / (state["step"] + 1)
            loss.backward()
            optimizer.step()
            state["beta"] = min(1.0, state["beta"] + 0.02)
            state["step"] += 1
            return loss.detach()

        return step, model

    (eager, one), (step, other) = make(), make()
    compiled = preheat.compile(step, options={"cache": False})
    before = preheat.counters()
    for k in range(60):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(k))
        torch.testing.assert_close(compiled(x), eager(x))
    for pair in zip(one.parameters(), other.parameters()):
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)
    after = preheat.counters()
    assert after["captures"] - before["captures"] <= 5 and after["interpreted"] == before["interpreted"]
