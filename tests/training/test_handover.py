"""Gradients leave a compiled backward as they are ready: in stages, with hooks in between."""

import pytest
import torch
from torch import nn

import preheat
from preheat import differentiate
from preheat.capture.capture import capture
from preheat.differentiate import Aims, Lesson
from preheat.ir.artifact import artifact, from_bytes, packed
from preheat.run import trained
from preheat.run.autograd import Later
from tests.training.check import check
from tests.training.place import DEVICE
from tests.training.test_steps import near, trains_alike

ONE_BY_ONE = {"cache": False, "gradient_bucket_mb": 1e-6}
LAYERS = 6


def layers():
    torch.manual_seed(0)
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))]
    return nn.Sequential(*parts).to(DEVICE)


def nodes(result):
    """The names of the nodes of autograd behind `result`."""
    found, waiting = {}, [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting += [following for following, _ in node.next_functions]
    return [type(node).__name__ for node in found.values()]


def compiled_steps(net, options, steps=4):
    """The compiled `net` after some steps, and the input of the next."""
    compiled = preheat.compile(net, options=options)
    for seed in range(steps):
        torch.manual_seed(seed)
        x = torch.randn(8, 16, device=DEVICE)
        net.zero_grad()
        compiled(x).square().sum().backward()
    net.zero_grad()
    return compiled, x


@pytest.mark.parametrize("megabytes, least, most", [
    (0, 1, 1), (1e-6, 3 * LAYERS, 4 * LAYERS), (0.002, LAYERS // 2, LAYERS), (1, 1, 1)])
def test_a_stage_ends_where_enough_gradients_are_ready(megabytes, least, most):
    compiled, x = compiled_steps(layers(), {"cache": False, "gradient_bucket_mb": megabytes})
    assert least <= 1 + nodes(compiled(x)).count(f"{Later.__name__}Backward") <= most


def test_gradients_are_eagers():
    trains_alike(layers_of_two_inputs, options=ONE_BY_ONE)


class layers_of_two_inputs(nn.Module):
    """A weight that is used three times, another twice, and a part that is not used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.idle = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.first(x).tanh()
        h = self.second(self.first(h).sigmoid()).tanh()
        return self.first(self.second(h) + x)


def test_hooks_run_while_gradients_are_still_to_be_computed(monkeypatch):
    net, seen = layers(), []
    compiled, x = compiled_steps(net, ONE_BY_ONE)
    run = trained._Half.run

    def noted(half, *args):
        seen.append("stage")
        return run(half, *args)

    monkeypatch.setattr(trained._Half, "run", noted)
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    compiled(x).square().sum().backward()
    last = f"{3 * LAYERS - 1}.weight"  # of the last layer norm
    assert seen.index(last) < seen.index("3.weight") < seen.index("0.weight")
    assert "stage" in seen[seen.index(last):seen.index("3.weight")]
    assert {*seen} == {"stage", *(name for name, _ in net.named_parameters())}


def test_a_hook_that_changes_a_gradient_disturbs_no_later_one():
    """A gradient that later stages would read is copied for them."""
    def fn(x, w):
        h = x * w
        return h * 2, h.sin()

    def tripled(tensor):
        tensor.grad.mul_(3)

    found = []
    for call in (fn, preheat.compile(fn, options=ONE_BY_ONE)):
        for _ in range(4):
            x, w = (torch.full((4, 4), 0.5, device=DEVICE, requires_grad=True) for _ in range(2))
            w.register_post_accumulate_grad_hook(tripled)
            x.register_post_accumulate_grad_hook(tripled)
            a, b = call(x, w)
            (a.sum() + b.sum()).backward()
        found.append((x.grad, w.grad))
    for mine, eager in zip(found[1], found[0]):
        near(mine, eager, 1e-6, "gradient")


@pytest.mark.parametrize("in_place", [True, False])
def test_a_hook_that_updates_its_parameter_disturbs_no_later_gradient(in_place):
    """What reads the parameter runs before its gradient leaves."""
    def updated(parameter):
        with torch.no_grad():
            (parameter if in_place else parameter.data).zero_()

    net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)]).to(DEVICE)
    compiled = preheat.compile(net, options=ONE_BY_ONE)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(updated)
    for _ in range(5):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.eye(4))
                parameter.grad = None
        compiled(torch.ones(2, 4, device=DEVICE)).sum().backward()
        assert [p.grad.sum().item() for p in net.parameters()] == [32.0] * 3
    assert "LaterBackward" in nodes(compiled(torch.ones(2, 4, device=DEVICE)))


def test_only_what_is_asked_for_is_computed(monkeypatch):
    net, seen = layers(), []
    compiled, x = compiled_steps(net, ONE_BY_ONE)
    run = trained._Half.run
    monkeypatch.setattr(trained._Half, "run", lambda half, *args: seen.append(half) or run(half, *args))
    last = net[-1].weight
    (found,) = torch.autograd.grad(compiled(x).square().sum(), [last])
    few = len(seen)
    (expected,) = torch.autograd.grad(net(x).square().sum(), [last])
    near(found, expected, 1e-5, "gradient")
    compiled(x).square().sum().backward()
    assert 0 < few < len(seen) - few


def test_twice_with_a_retained_graph_and_double_backward():
    net = layers()
    compiled, x = compiled_steps(net, ONE_BY_ONE)
    parameters = list(net.parameters())
    for call in (net, compiled):
        result = call(x).square().sum()
        once = torch.autograd.grad(result, parameters, retain_graph=True)
        again = torch.autograd.grad(result, parameters)
        assert all(map(torch.equal, once, again))
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(result, parameters)
    second = []
    for call in (net, compiled):
        grads = torch.autograd.grad(call(x).square().sum(), parameters, create_graph=True)
        second.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), parameters[:4]))
    for mine, eager in zip(second[1], second[0]):
        near(mine, eager, 1e-4, "second derivative")


def test_stages_are_stored():
    def fn(x, v, w):
        return ((x @ v).tanh() @ w).sum()

    args = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    outcome = capture(fn, args, {}, limits=None)
    trace = outcome.captured.trace
    lesson = Lesson.of(trace.nodes[0].body, aims=Aims(handover=1))
    source = lesson.run(args)
    source.backward(0, [torch.ones(())], [], False)
    plan, image, training = lesson.compiled("test")
    (backward,) = training.backwards
    assert len(backward.stages) > 1
    stored = from_bytes(packed(artifact(trace, plan, image, training))[1])
    assert stored.training == training


def test_there_is_something_to_do_while_kernels_are_compiled(monkeypatch):
    def fn(x, w):
        return (x @ w).tanh().sum()

    told, real = [], differentiate.begin_image

    def begin(kernels, target, asked):
        wait = real(kernels, target, asked)
        return lambda: told.append("waits") or wait()

    monkeypatch.setattr(differentiate, "begin_image", begin)
    args = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    body = capture(fn, args, {}, limits=None).captured.trace.nodes[0].body
    lesson = Lesson.of(body, aims=Aims(meanwhile=lambda plan, device: told.append((plan, device))))
    lesson.run(args).backward(0, [torch.ones(())], [], False)
    plan, _, training = lesson.compiled("test")
    assert told == [(plan, "cpu"), (training.backwards[0].plan, "cpu"), "waits", "waits"]


@pytest.mark.parametrize("start", [40000, 40010])
def test_random_programs(start):
    for seed in range(start, start + 10):
        check(seed, {"options": ONE_BY_ONE})
