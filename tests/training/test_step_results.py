"""Whole training steps that return what is computed from the loss under autograd.

The part behind the backward then holds both: the update, with step counts and rates that change from call
to call, and ops with a history. It is one plan, and what comes back has the history that it has in eager.
"""

import gc
import warnings
import weakref

import pytest
import torch

import preheat
from preheat.base.events import bus
from tests.training.twins import alike, captures


def quarter(loss, h):
    return loss / 4


def first(loss, h):
    return h[0]


def both(loss, h):
    return loss, h


def scaled(loss, h):
    return {"loss": loss * 2, "h": h.t(), "plain": h.detach() + 1}


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, foreach=False),
}


class World:
    """A model, its optimizer, and a step of both as one function."""

    def __init__(self, make, give, retain=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        self.optimizer = make(self.model.parameters())

        def step(x):
            self.optimizer.zero_grad()
            h = self.model(x)
            loss = h.square().mean()
            loss.backward(retain_graph=retain)
            self.optimizer.step()
            return give(loss, h)

        self.step = step

    def state(self):
        return (
            list(self.model.parameters()), [p.grad for p in self.model.parameters()],
            self.optimizer.state_dict()["state"])


def worlds(make, give, retain=False):
    eager, compiled = World(make, give, retain), World(make, give, retain)
    compiled.step = preheat.compile(compiled.step, options={"cache": False})
    return eager, compiled


def batches(count, rows=5):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 6, generator=generator) for _ in range(count)]


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in (result.values() if isinstance(result, dict) else result) for t in tensors(part)]


def gradients(result, world):
    """What a backward through the result gives, or what it raises."""
    params = list(world.model.parameters())
    total = sum(t.sum() for t in tensors(result) if t.requires_grad)
    try:
        return torch.autograd.grad(total, params, allow_unused=True)
    except RuntimeError as error:
        return next(text for text in ("second time", "inplace operation") if text in str(error))


@pytest.fixture
def told():
    """What runs op by op, and how many kernels each compile has made."""
    found = {"fallback": [], "compile": []}
    stop = bus.subscribe(lambda event: found[event.kind].append(event.data), set(found))
    yield found
    stop()


@pytest.mark.parametrize("give", [quarter, first, both, scaled], ids=lambda give: give.__name__)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_results_of_a_step_have_histories_and_its_update_is_kernels(name, give, told):
    eager, compiled = worlds(OPTIMIZERS[name], give)
    rates = [torch.optim.lr_scheduler.ExponentialLR(w.optimizer, 0.9) for w in (eager, compiled)]
    for k, x in enumerate(batches(8)):
        expected, found = eager.step(x), compiled.step(x)
        for pair in zip(tensors(expected), tensors(found), strict=True):
            torch.testing.assert_close(pair[1], pair[0], rtol=1e-4, atol=1e-5)
            assert pair[0].requires_grad == pair[1].requires_grad
        alike_but_rounded(eager, compiled)
        assert gradients(found, compiled) == gradients(expected, eager) == "second time"
        if k % 2 and name != "fused":  # whose rates are pinned
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for rate in rates:
                    rate.step()
        if k == 5:
            before = captures(), len(told["compile"])
    assert (captures(), len(told["compile"])) == before
    assert not told["fallback"]
    assert told["compile"][-1]["kernels"] > 0


def alike_but_rounded(eager, compiled):
    for expected, found in zip(eager.state(), compiled.state()):
        alike_within(expected, found)


def alike_within(expected, found):
    if isinstance(expected, torch.Tensor):
        assert expected.requires_grad == found.requires_grad
        torch.testing.assert_close(found, expected, rtol=3e-4, atol=3e-5)
    elif isinstance(expected, dict):
        assert list(expected) == list(found)
        alike_within(list(expected.values()), list(found.values()))
    elif isinstance(expected, (list, tuple)):
        for pair in zip(expected, found, strict=True):
            alike_within(*pair)
    else:
        assert expected == found


@pytest.mark.parametrize("give", [quarter, first, both], ids=lambda give: give.__name__)
def test_a_graph_that_is_kept_notices_the_update(give):
    """The weights that the backward needs were written to by the step."""
    eager, compiled = worlds(OPTIMIZERS["adamw"], give, retain=True)
    for x in batches(6):
        expected, found = eager.step(x), compiled.step(x)
        assert gradients(found, compiled) == gradients(expected, eager) == "inplace operation"


def test_a_backward_through_the_result_of_a_step():
    """One layer: its gradient needs the input alone, so eager gives it."""
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(6, 3))
        optimizer = torch.optim.AdamW([weight])

        def step(x, weight=weight, optimizer=optimizer):
            optimizer.zero_grad()
            h = x @ weight
            h.sum().backward(retain_graph=True)
            optimizer.step()
            return h.tanh() * 2, h[0]

        call = preheat.compile(step, options={"cache": False}) if is_compiled else step
        rows = []
        for x in batches(7):
            y, part = call(x)
            (y.sum() + part.sum()).backward()
            rows.append((y.detach(), weight.grad.clone(), weight.detach().clone()))
        found.append(rows)
    alike(*found)


def test_numbers_that_gradients_hang_on(told):
    """What is computed with a number outside of autograd may be what a formula saves."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 12))
    x = torch.linspace(0, 1, 12)

    def scale(x, rate):
        with torch.no_grad():
            noise = x * rate + 1
        return (weight * noise).square() * noise

    compiled = preheat.compile(scale, options={"cache": False})
    for k in range(8):
        rate = 0.5 + 0.25 * k
        results = []
        for call in (scale, compiled):
            y = call(x, rate)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), [weight])))
        alike(*results)
        if k == 5:
            before = captures()
    assert captures() == before
    assert not told["fallback"]
    assert told["compile"][-1]["kernels"] > 0


def test_a_double_backward_where_numbers_change():
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 12))
    seen, x = torch.zeros(12), torch.linspace(0, 1, 12)

    def scale(x, rate):
        with torch.no_grad():
            noise = x * rate + 1
            seen.mul_(rate)
        return (weight.tanh() * noise).square().sum()

    compiled = preheat.compile(scale, options={"cache": False})
    for k in range(7):
        results = []
        for call in (scale, compiled):
            (grad,) = torch.autograd.grad(call(x, 0.5 + k), [weight], create_graph=True)
            results.append((grad.detach(), *torch.autograd.grad(grad.square().sum(), [weight])))
        alike(*results)


def test_sizes_and_numbers_that_change(told):
    eager, compiled = worlds(OPTIMIZERS["adamw"], lambda loss, h: (h.t() * 2, loss / 4))
    for rows in (5, 5, 7, 7, 4, 9, 9, 9, 9, 12):
        (x,) = batches(1, rows)
        expected, found = eager.step(x), compiled.step(x)
        alike_within(expected, found)
        alike_but_rounded(eager, compiled)
        assert gradients(found, compiled) == gradients(expected, eager) == "second time"
        if rows == 4:
            before = captures()
    assert captures() == before
    assert not told["fallback"]


def test_a_result_that_is_kept_does_not_hold_what_the_update_read():
    """As in eager, where the history of `loss / 4` has nothing to do with the optimizer."""
    _, compiled = worlds(OPTIMIZERS["adamw"], quarter)
    kept, grads = [], []
    for x in batches(6):
        kept.append(compiled.step(x))
        grads.append([weakref.ref(p.grad) for p in compiled.model.parameters()])
    compiled.optimizer.zero_grad()
    gc.collect()
    assert [sum(ref() is not None for ref in row) for row in grads] == [0] * 6
    assert all(one.requires_grad for one in kept)


@pytest.mark.parametrize("give", [quarter, lambda loss, h: loss.detach()], ids=["quarter", "detached"])
def test_a_second_process_learns_nothing_of_a_whole_step(give, tmp_path, monkeypatch, told):
    """What has been learned takes the place of what was stored before it; the kernels are the same."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    for number in range(2):
        world, before = World(OPTIMIZERS["adamw"], give), preheat.counters()
        world.step = preheat.compile(world.step)
        rows = [world.step(x).detach().clone() for x in batches(7)]
        after = preheat.counters()
        if number == 0:
            first, made = rows, after["compiles"] - before["compiles"]
        else:
            torch.testing.assert_close(rows, first, rtol=1e-4, atol=1e-6)
            assert made > 0 and not told["fallback"]
            assert after["captures"] == before["captures"]
            assert after["compiles"] == before["compiles"]


def test_once_all_is_learned_a_cold_and_a_warm_process_agree_in_every_bit(tmp_path, monkeypatch):
    """Before that the cold one runs eager, then torch's formulas op by op: three calls more for the part
    whose backward never comes."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    states, xs = [], batches(8)
    for number in range(2):
        world = World(OPTIMIZERS["adamw"], quarter)
        world.step = preheat.compile(world.step)
        for k, x in enumerate(xs):
            if number and k >= 6:
                put_back(world, states[k - 1])
            loss = world.step(x).detach().clone()
            if number == 0:
                states.append((loss, copied(world)))
            elif k >= 6:
                assert torch.equal(loss, states[k][0])
                for one, other in zip(copied(world), states[k][1], strict=True):
                    assert torch.equal(one, other)


def copied(world):
    kept = [t for state in world.optimizer.state.values() for t in state.values()]
    return [t.detach().clone() for t in (*world.model.parameters(), *kept)]


def put_back(world, state):
    kept = [t for state in world.optimizer.state.values() for t in state.values()]
    with torch.no_grad():
        for t, was in zip((*world.model.parameters(), *kept), state[1], strict=True):
            t.copy_(was)
