"""`torch.autograd.Function` in a compiled call: its halves run as the program's Python, what is around is compiled."""

import pytest
import torch
from torch import nn

import preheat
from same import is_enabled
from tests.training.place import DEVICE

LOG = []


class Round(torch.autograd.Function):
    """Straight through: the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        LOG.append("round")
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        LOG.append("straight")
        return grad


class Scaled(torch.autograd.Function):
    """Two results, a number, saved tensors, a gradient that is not asked for."""

    @staticmethod
    def forward(ctx, x, w, scale=2.0):
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        LOG.append(("scaled", scale, tuple(ctx.needs_input_grad)))
        made = x * w * scale
        ctx.mark_non_differentiable(mask := made > 0)
        return made, mask

    @staticmethod
    def backward(ctx, grad, of_mask):
        x, w = ctx.saved_tensors
        LOG.append(("back", tuple(ctx.needs_input_grad)))
        return grad * w * ctx.scale, (grad * x * ctx.scale).sum(0) if ctx.needs_input_grad[1] else None, None


class Apart(torch.autograd.Function):
    """With its context set up apart from its forward."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class Doubled(torch.autograd.Function):
    """In place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.b(Round.apply(torch.relu(self.a(x)))))


def chosen(x, w):
    made, mask = Scaled.apply(torch.tanh(x), w, 3.0)
    return torch.where(mask, made, made * 0.5).exp()


PROGRAMS = {
    "rounded": lambda x, w: Round.apply(torch.tanh(x) * w).exp() + 1,
    "chosen": chosen,
    "apart": lambda x, w: Apart.apply(x * w).sin() * 2,
    "in place": lambda x, w: Doubled.apply(x * w + 1).sin() * 2,
    "two": lambda x, w: Round.apply(Apart.apply(x * w) * 3) * torch.sigmoid(x),
}


def step(call, x, w, needs):
    x, w = x.clone().requires_grad_(needs[0]), w.clone().requires_grad_(needs[1])
    del LOG[:]
    made = call(x, w)
    if any(needs):
        made.square().sum().backward()
    return made.detach(), x.grad, w.grad, list(LOG)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_gradients_and_calls_of_both_halves_are_eagers(name):
    program, torch_gen = PROGRAMS[name], torch.Generator().manual_seed(0)
    compiled = preheat.compile(program, options={"cache": False})
    for needs in [(True, True)] * 4 + [(True, False), (False, True), (False, False), (True, True)]:
        x, w = (torch.randn(sizes, generator=torch_gen).to(DEVICE) for sizes in ((4, 8), (8,)))
        expected, found = step(program, x, w, needs), step(compiled, x, w, needs)
        torch.testing.assert_close(found[:3], expected[:3])
        assert found[3] == expected[3]
    if is_enabled():
        assert {row.reason for row in compiled.__preheat__.breaks} == {"autograd_function"}


def test_a_module_is_compiled_around_it():
    torch.manual_seed(0)
    net = Layer().to(DEVICE)
    compiled = preheat.compile(net, options={"cache": False})
    before = preheat.counters()["compiles"]
    for mode in (*[True] * 5, *[False] * 5):
        x = torch.randn(4, 8, device=DEVICE)
        with torch.set_grad_enabled(mode):
            torch.testing.assert_close(compiled(x), net(x))
    if is_enabled():
        assert preheat.counters()["compiles"] - before == 4  # two segments, each of two kinds


def test_a_second_derivative_goes_through_it():
    def program(x):
        return (Apart.apply(x * 2).sin() * x).sum()

    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(4):
        x = torch.randn(5, device=DEVICE, requires_grad=True)
        twice = []
        for call in (program, compiled):
            first, = torch.autograd.grad(call(x), x, create_graph=True)
            twice.append(torch.autograd.grad(first.sum(), x)[0])
        torch.testing.assert_close(twice[1], twice[0])
