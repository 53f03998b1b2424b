"""Modules that change while they are compiled: hooks, weights, parts, and what torch.func does inside."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import preheat
from same import Program, is_enabled, same_program

X = torch.linspace(-1.0, 1.2, 12).reshape(3, 4)


@preheat.disable
def note(*what):
    print(*what)


class Net(nn.Module):
    """Two layers with a host step, a counter and a branch between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.calls = 0

    def forward(self, x):
        y = self.first(x)
        self.calls += 1
        note("calls")
        if y.sum() > 100:
            y = y * 2
        return self.second(y) * self.scale


def check(change, undo=None, calls=6):
    """A net that is changed before call 2 and, with `undo`, changed back before call 4."""

    def make():
        net = Net()
        between = {2: lambda program: change(net)}
        if undo is not None:
            between[4] = lambda program: undo(net)
        return Program(net, (X.clone(),), between=between)

    seen = same_program(make, calls=calls)
    if is_enabled():
        assert seen.counters["captures"] >= 1 and seen.counters["fallbacks"] == 0
    return seen


HOOKS = {
    "forward_pre": lambda net: net.first.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "forward": lambda net: net.first.register_forward_hook(lambda m, args, out: out * 3),
    "forward with kwargs": lambda net: net.second.register_forward_hook(
        lambda m, args, kwargs, out: out + len(kwargs), with_kwargs=True),
    "pre with kwargs": lambda net: net.first.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True),
    "prepended": lambda net: net.first.register_forward_hook(
        lambda m, args, out: out - 1, prepend=True),
    "always called": lambda net: net.second.register_forward_hook(
        lambda m, args, out: note("always"), always_call=True),
    "of the root": lambda net: net.register_forward_hook(lambda m, args, out: (note("root"), out)[1]),
    "global": lambda net: nn.modules.module.register_module_forward_hook(
        lambda m, args, out: out * 2 if isinstance(m, nn.Linear) else None),
    "global pre": lambda net: nn.modules.module.register_module_forward_pre_hook(
        lambda m, args: (args[0] + 1,) if isinstance(m, nn.Linear) else None),
    "full backward": lambda net: net.first.register_full_backward_hook(lambda m, a, b: None),
    "state dict": lambda net: net.register_state_dict_post_hook(lambda m, state, *rest: None),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_registered_and_removed_between_calls(name):
    handles = []
    try:
        check(lambda net: handles.append(HOOKS[name](net)), lambda net: handles.pop().remove())
    finally:
        for handle in handles:
            handle.remove()


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(net):
    torch.manual_seed(5)
    net.first = Adapter(net.first)


def unadapt(net):
    net.first = net.first.base


def tie(net):
    net.second.weight = net.first.weight


def doubled(net):
    return {name: value * 2 for name, value in net.state_dict().items()}


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


CHANGES = {
    "load_state_dict": lambda net: net.load_state_dict(doubled(net)),
    "load_state_dict(assign=True)": lambda net: net.load_state_dict(doubled(net), assign=True),
    "forward replaced": lambda net: setattr(net.first, "forward", lambda x: x * 5),
    "class replaced": lambda net: setattr(net.first, "__class__", nn.Identity),
    "weights tied": tie,
    "parametrized": lambda net: parametrize.register_parametrization(
        net.first, "weight", Symmetric()),
    "weight norm": lambda net: nn.utils.parametrizations.weight_norm(net.first),
    "weight written": lambda net: net.first.weight.data.mul_(2),
    "weight's data replaced": lambda net: setattr(net.first.weight, "data", torch.ones(4, 4)),
    "buffer replaced": lambda net: setattr(net, "scale", torch.full((4,), 3.0)),
    "bias removed": lambda net: setattr(net.first, "bias", None),
    "to float64 and back": lambda net: net.double().float(),
    "train and eval": lambda net: net.train(not net.training),
    "part replaced": lambda net: setattr(net, "first", nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
    "frozen": lambda net: net.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_calls(name):
    check(CHANGES[name])


def test_adapters_swapped_in_and_out():
    seen = check(adapt, unadapt, calls=8)
    if is_enabled():
        assert seen.counters["interpreted"] == 0


def test_the_way_back_needs_no_new_capture():
    torch.manual_seed(0)
    net = Net()
    plain, compiled = net.first, preheat.compile(net, options={"cache": False})
    adapter = Adapter(plain)

    def call():
        for _ in range(3):
            found = compiled(X)
        torch.testing.assert_close(found, net.forward(X))
        return preheat.counters()["captures"]

    with torch.no_grad():
        call()
        net.first = adapter
        before = call()
        for part in (plain, adapter, plain):
            net.first = part
            assert call() == before


# ---------------------------------------------------------------------------- torch.func inside
def functional(x, net):
    weights = {name: value.detach() * 2 for name, value in net.named_parameters()}
    y = torch.func.functional_call(net, weights, (x,))
    note("called")
    return y + torch.func.functional_call(net, {"scale": torch.zeros(4)}, (x,))


def mapped(x, net):
    note("map")
    return torch.vmap(lambda row: row @ row)(x) + 1


def gradient(x, net):
    note("grad")
    return torch.func.grad(lambda y: (y * y).sum())(x) * 2


def jacobian(x, net):
    return torch.func.jacrev(torch.sin)(x[0]), torch.func.jvp(torch.cos, (x,), (x,))


@pytest.mark.parametrize("program", [functional, mapped, gradient, jacobian])
def test_torch_func_inside(program):
    def make():
        return Program(program, (X.clone(), Net()))

    same_program(make, calls=4)


class Tagged(torch.Tensor):
    """A subclass that tells what is called on it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        note(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses():
    def program(x):
        y = x * 2
        note(type(y).__name__)
        return y + 1, torch.relu(y)

    same_program(lambda: Program(program, (X.clone().as_subclass(Tagged),)), calls=4)


def test_deep_copies_are_compiled_apart():
    net = preheat.compile(Net(), options={"cache": False})
    with torch.no_grad():
        net(X)
        other = copy.deepcopy(net)
        other.first.weight.data.zero_()
        for one in (net, other, net):
            torch.testing.assert_close(one(X), one.forward(X))
