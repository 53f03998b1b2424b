"""The compiled module is its model to everyone who looks: state, class, methods, hooks, copies."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from preheat.base.errors import UserError
from preheat.module import CompiledModule, compiled_module


class StandIn:
    """Calls its target and counts."""

    def __init__(self, target, settings):
        self.target, self.settings, self.count = target, settings, 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self.target(*args, **kwargs)


def make(target, settings):
    return StandIn(target, settings)


class Base(nn.Module):
    registered = []

    def __init_subclass__(cls, *, tag="none", **kwargs):
        Base.registered.append((cls.__name__, tag))
        super().__init_subclass__(**kwargs)

    def describe(self):
        return "base"


class Net(Base, tag="net"):
    """A model with what models have."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.calls = 0

    def forward(self, x, *, twice=False):
        self.calls += 1
        y = self.norm(self.inner(x)) * self.scale
        return y * 2 if twice else y

    def describe(self):
        return (
            super().describe()
            + " of "
            + type(self).__name__
            + " "
            + super(self.__class__, self).describe()
        )

    def run(self, x):
        return self(x)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = Net().eval()
    return model, compiled_module(model, {"mode": "default"}, make)


X = torch.arange(12.0).reshape(3, 4)


def test_same_class_names_and_text(pair):
    model, proxy = pair
    assert (
        isinstance(proxy, Net)
        and isinstance(proxy, nn.Module)
        and isinstance(proxy, CompiledModule)
    )
    assert (
        proxy.__class__ is Net
        and type(proxy).__name__ == "Net"
        and type(proxy).__doc__ == Net.__doc__
    )
    assert repr(proxy) == repr(model)
    assert [name for name, _ in Base.registered].count("Net") == 1
    assert not isinstance(model, CompiledModule)


def test_state_is_one(pair):
    model, proxy = pair
    assert list(proxy.state_dict()) == list(model.state_dict())
    assert [n for n, _ in proxy.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(proxy.parameters(), model.parameters()))
    proxy.extra = 3
    assert model.extra == 3
    del model.extra
    assert not hasattr(proxy, "extra")
    proxy.train()
    assert model.training and model.norm.training
    model.eval()
    assert not proxy.training
    proxy.to(torch.float64)
    assert model.scale.dtype == torch.float64 and proxy.inner[0].weight.dtype == torch.float64
    proxy.scale = torch.ones(4, dtype=torch.float64)
    assert torch.equal(model.get_buffer("scale"), torch.ones(4, dtype=torch.float64))
    proxy.inner = nn.Identity()
    assert isinstance(model.inner, nn.Identity)
    proxy.load_state_dict(model.state_dict())


def test_calls_and_methods_use_the_compiled_model(pair):
    model, proxy = pair
    assert torch.equal(proxy(X, twice=True), model(X, twice=True))
    compiled = proxy._preheat_call
    assert compiled.count == 1 and compiled.target is model
    proxy.run(X)
    assert compiled.count == 2
    assert torch.equal(proxy.forward(X), model.forward(X))
    assert compiled.count == 2 and proxy._preheat_forward.count == 1
    assert model.calls == 5
    assert proxy.describe() == "base of Net base"
    import inspect

    assert inspect.signature(proxy.forward) == inspect.signature(model.forward)


def test_hooks_registered_either_way(pair):
    model, proxy = pair
    seen = []
    first = proxy.register_forward_hook(lambda m, args, out: seen.append("late"))
    model.register_forward_pre_hook(lambda m, args: seen.append("early"))
    proxy(X)
    assert seen == ["early", "late"]
    first.remove()
    proxy(X)
    assert seen == ["early", "late", "early"]


def test_copies(pair):
    model, proxy = pair
    deep = copy.deepcopy(proxy)
    assert isinstance(deep, CompiledModule) and isinstance(deep, Net)
    assert deep.scale is not proxy.scale and torch.equal(deep(X), proxy(X))
    deep.scale.zero_()
    assert model.scale[0] == 2
    shallow = copy.copy(proxy)
    assert isinstance(shallow, CompiledModule) and shallow.scale is proxy.scale
    shallow.only_here = 1
    assert not hasattr(model, "only_here")
    holder = copy.deepcopy(nn.ModuleDict({"a": proxy, "b": proxy}))
    assert holder["a"] is holder["b"] and isinstance(holder["a"], CompiledModule)


def test_pickle_compiles_anew(pair):
    model, proxy = pair
    for back in (
        pickle.loads(pickle.dumps(proxy)),
        _through_torch_save(proxy),
    ):
        assert isinstance(back, CompiledModule) and isinstance(back, Net)
        assert CompiledModule.settings(back) == {"mode": "default"}
        assert torch.equal(back(X), model(X)) and back._preheat_call.count == 1


def _through_torch_save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_as_a_submodule(pair):
    model, proxy = pair
    whole = nn.Sequential(proxy, nn.Linear(4, 2))
    assert [n for n, _ in whole.named_parameters()][0] == "0.inner.0.weight"
    whole(X)
    assert proxy._preheat_call.count == 1


def test_parametrization_changes_the_class_of_both(pair):
    model, proxy = pair

    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    linear = nn.Linear(4, 4)
    compiled = compiled_module(linear, {}, make)
    before = linear.weight.detach().clone()
    nn.utils.parametrize.register_parametrization(compiled, "weight", Double())
    assert torch.equal(compiled.weight, before * 2) and torch.equal(linear.weight, before * 2)
    assert torch.equal(compiled(X), linear(X)) and isinstance(compiled, CompiledModule)


def test_instance_forward_wins(pair):
    model, proxy = pair
    proxy.forward = lambda x: x + 1
    assert torch.equal(model(X), X + 1) and torch.equal(proxy.forward(X), X + 1)


def test_module_with_its_own_slots_hash_and_getattr():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.name = "odd"

        def __getattr__(self, key):
            if key == "dynamic_value":
                return 42
            return super().__getattr__(key)

        def __eq__(self, other):
            return isinstance(other, Odd) and other.name == self.name

        def __hash__(self):
            return hash("odd")

        def __len__(self):
            return 0

        def forward(self, x):
            return x

    model = Odd()
    proxy = compiled_module(model, {}, make)
    assert (
        proxy.dynamic_value == 42
        and proxy == model
        and hash(proxy) == hash(model)
        and len(proxy) == 0
    )
    with pytest.raises(AttributeError):
        proxy.absent


def test_slots_are_refused_with_a_reason():
    class Slotted(nn.Module):
        __slots__ = ("hidden",)

    with pytest.raises(UserError, match="__slots__.*forward"):
        compiled_module(Slotted(), {}, make)
