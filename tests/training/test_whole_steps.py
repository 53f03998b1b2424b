"""Whole training steps as one function: two graphs around the backward, as in eager."""

import copy
import warnings

import pytest
import torch
from torch import nn

import preheat
from preheat.base.events import bus
from preheat.capture.capture import capture
from preheat.generate.build import host_target
from preheat.run.rows import Rows
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from tests.training.place import DEVICE
from tests.training.twins import SIZES, Twins, adamw, alike, captures, settled


def training(make, net=None):
    """Model, optimizer and the step that trains it, twice, from the same start."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        optimizer, loss_of = make(model.parameters()), torch.nn.CrossEntropyLoss()

        def step(x, y, model=model, optimizer=optimizer, loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        found.append((model, optimizer, step))
    return found


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
], ids=["sgd", "nesterov", "amsgrad", "foreach", "fused", "rmsprop"])
def test_the_whole_step_as_one_function(make):
    (model, optimizer, step), (same, other, same_step) = training(make)
    compiled = preheat.compile(same_step, options={"cache": False})
    generator = torch.Generator().manual_seed(1)
    scheduler, twin = (torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, other))
    for k in range(8):
        x = torch.randn(5, 6, generator=generator)
        y = torch.randint(0, 3, (5,), generator=generator)
        alike(step(x, y).detach(), compiled(x, y).detach())
        for pair in zip(model.parameters(), same.parameters()):
            torch.testing.assert_close(pair[1], pair[0], rtol=2e-4, atol=2e-5)
        if k % 2 and not optimizer.defaults.get("fused"):  # its numbers are pinned
            for one in (scheduler, twin):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    one.step()
        if k == 5:
            before = captures()
    assert captures() == before
    assert list(optimizer.state_dict()) == list(other.state_dict())


def test_the_whole_step_breaks_at_the_backward_alone():
    _, (_, _, step) = training(lambda p: torch.optim.AdamW(p, lr=0.01))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    step(x, y)
    explanation = preheat.explain(step)(x, y)
    assert [(row.reason, row.code) for row in explanation.breaks] == [
        ("backward", "loss.backward()")]
    assert explanation.graph_count == 2


@pytest.mark.parametrize("give", [
    lambda loss, h, seen: seen.add_(loss.detach()),
    lambda loss, h, seen: {"loss": loss.detach() * 1},
    lambda loss, h, seen: loss.detach(),
    lambda loss, h, seen: h.detach()[0],
    lambda loss, h, seen: h.data,
    lambda loss, h, seen: [h.t().detach(), h, {"first": h[0].detach()}],
    lambda loss, h, seen: (torch.no_grad()(lambda: h[0])(), loss.detach()),
], ids=["sum", "dict", "itself", "part", "data", "views", "quiet"])
def test_a_loss_that_is_detached_leaves_the_update_compiled(give):
    """No gradient leaves the graph behind the backward, though the loss requires grad."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)))

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters())
        seen = torch.zeros(())

        def step(x):
            optimizer.zero_grad()
            h = model(x)
            loss = h.square().mean()
            loss.backward()
            optimizer.step()
            return give(loss, h, seen)

        return step

    eager, compiled = step_of(models[0]), preheat.compile(step_of(models[1]), options={"cache": False})
    told = []
    stop = bus.subscribe(lambda event: told.append(event.data), {"fallback"})
    try:
        for k in range(6):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(k))
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-6)
    finally:
        stop()
    assert not told
    for one, other in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(other, one, rtol=2e-4, atol=2e-5)


def test_two_hundred_parameters_are_two_kernels():
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64 + 7 * k)) for k in range(200)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, foreach=False)
    optimizer.step()
    outcome = capture(optimizer.step, (), {}, limits=None)
    (node,) = outcome.nodes
    plan = schedule(lower(node.trace.nodes[0].body), host_target())
    assert len(plan.kernels) == 2 and len(plan.calls) == 400
    assert plan.arena_bytes == 0 and not plan.outputs  # all is written in place


def test_all_guards_of_a_step_are_native():
    twins = Twins(lambda params: adamw(params, foreach=False))
    bound = []
    make = Rows.__init__

    def noting(self, *args, **kwargs):
        make(self, *args, **kwargs)
        bound.append(self)

    Rows.__init__ = noting
    try:
        settled(twins)
    finally:
        Rows.__init__ = make
    in_python = [guard.expected[0] for guard in bound[-1].in_python]
    assert in_python == ([] if DEVICE == "cpu" else ["stream_capture"])
    assert len(bound[-1].words) == 2 * len(SIZES)


# ---------------------------------------------------------------------------- what people do around it
def clip_norm(net, shadow, optimizer, x, y):
    loss = backward(net, x, y)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def clip_value(net, shadow, optimizer, x, y):
    loss = backward(net, x, y)
    nn.utils.clip_grad_value_(net.parameters(), 0.01)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss


def accumulate(net, shadow, optimizer, x, y):
    for shift in range(2):
        loss = backward(net, x + shift, y)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def moving_average(net, shadow, optimizer, x, y):
    optimizer.zero_grad()
    loss = backward(net, x, y)
    optimizer.step()
    with torch.no_grad():
        for kept, now in zip(shadow.parameters(), net.parameters()):
            kept.lerp_(now, 0.1)
        torch._foreach_mul_(list(shadow.parameters()), 0.999)
    return loss


def by_hand(net, shadow, optimizer, x, y):
    for p in net.parameters():
        p.grad = None
    loss = backward(net, x, y)
    with torch.no_grad():
        for p in net.parameters():
            p.grad.add_(p, alpha=0.1)
            p -= 0.05 * p.grad
    return loss, net[0].weight.grad


def given_gradients(net, shadow, optimizer, x, y):
    params = list(net.parameters())
    loss = nn.functional.cross_entropy(net(x), y)
    for p, gradient in zip(params, torch.autograd.grad(loss, params)):
        p.grad = gradient * 2
    optimizer.step()
    return loss


def backward(net, x, y):
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return loss


@pytest.mark.parametrize("step", [
    clip_norm, clip_value, accumulate, moving_average, by_hand, given_gradients,
], ids=lambda step: step.__name__)
def test_steps_as_people_write_them(step):
    worlds = []
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        shadow = copy.deepcopy(net)
        worlds.append((net, shadow, torch.optim.AdamW(net.parameters(), lr=0.01)))
    plain, compiled = (lambda x, y, w=world: step(*w, x, y) for world in worlds)
    compiled = preheat.compile(compiled, options={"cache": False})
    generator = torch.Generator().manual_seed(0)
    for k in range(8):
        if k == 5:
            before = captures()
        x = torch.randn(5, 6, generator=generator)
        y = torch.randint(0, 3, (5,), generator=generator)
        close(plain(x, y), compiled(x, y))
        for first, second in zip(worlds[0][:2], worlds[1][:2]):
            close(list(first.parameters()), list(second.parameters()))
            close([p.grad for p in first.parameters()], [p.grad for p in second.parameters()])
    assert captures() == before


def close(expected, found):
    if isinstance(expected, (list, tuple)):
        assert len(expected) == len(found)
        for pair in zip(expected, found):
            close(*pair)
    elif expected is None:
        assert found is None
    else:
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=2e-4, atol=2e-5)
