"""What a forward keeps for its backward: few bytes, the right ones, and no longer than needed."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import preheat
from preheat.capture.capture import capture
from preheat.differentiate import Aims, Lesson
from preheat.run.executable import Executable
from tests.processes import printed
from tests.training.test_steps import near, trains_alike


ROOT = Path(__file__).parent.parent.parent


def learned(fn, *args, **aims):
    """The lesson of `fn` once its first backward has been seen, and what a compiled form saves: the
    types of the values that are none of the results."""
    body = capture(fn, args, {}, limits=None).captured.trace.nodes[0].body
    lesson = Lesson.of(body, aims=Aims(**aims))
    source = lesson.run(list(body_inputs(body, args)))
    (number,) = range(len(lesson.training.wiring.classes))
    source.backward(number, [torch.ones_like(v) for v in source.values[:1]], [], False)
    plan, _, training = lesson.compiled("test")
    own = len(training.forward.outputs)
    return training, [str(plan.outputs[exit.given.index].type) for exit in training.values[own:]]


def body_inputs(body, args):
    names = {given.name: tensor for given, tensor in zip(body.inputs, args)}
    return [names[given.name] for given in body.inputs]


def weights(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def test_what_is_cheap_is_computed_again():
    def mlp(x, v, w):
        return F.gelu(x @ v) @ w

    args = torch.randn(32, 16), weights(16, 64), weights(64, 4)
    training, saved = learned(mlp, *args)
    assert saved == ["f32[32, 64]"]  # eager keeps gelu's argument and its result
    assert [given.kind for given in training.backwards[0].takes].count("value") == 1


def test_draws_are_kept_as_bits():
    def dropped(x, w):
        return F.dropout(torch.tanh(x @ w), 0.25)

    _, saved = learned(dropped, torch.randn(8, 16), weights(16, 32))
    assert sorted(saved) == ["b8[8, 32]", "f32[8, 32]"]


def test_places_of_the_largest_are_short():
    def pooled(x, w):
        return F.max_pool2d(x * w, 2).square()

    _, saved = learned(pooled, torch.randn(2, 4, 8, 8), weights(2, 4, 8, 8))
    assert "i16[2, 4, 4, 4]" in saved and not any(name.startswith("i64") for name in saved)


def test_halves_are_read_as_they_were_rounded():
    def low(x, w):
        return torch.tanh(x @ w) * 2

    w = weights(16, 32).detach().bfloat16().requires_grad_()
    _, saved = learned(low, torch.randn(8, 16).bfloat16(), w)
    assert saved == ["bf16[8, 32]"]


@pytest.mark.parametrize("budget, saved", [(1, 4), (0.5, 2), (0, 1)])
def test_a_budget_bounds_the_bytes(budget, saved):
    def deep(x, a, b, c, d, e):
        for w in (a, b, c, d, e):
            x = torch.tanh(x @ w)
        return x

    args = [torch.randn(8, 8), *(weights(8, 8) for _ in range(5))]  # no formula saves the first weight
    _, found = learned(deep, *args, budget=float(budget))
    assert len(found) <= saved


def test_a_backward_that_may_read_any_keeps_no_copies():
    def loss(x, target):
        return F.cross_entropy(x, target)

    args = weights(64, 100), torch.randint(0, 100, (64,))
    kept = {reads: learned(loss, *args, reads_any=reads)[1] for reads in (False, True)}
    assert "f32[64, 100]" in kept[False]
    assert "f32[64, 100]" not in kept[True]


def test_what_a_backward_may_read_may_not_change():
    """Changes between the halves of what eager's formulas have not saved, argument or result."""
    def fn(x, w):
        return torch.sin(w + x), x * w

    def change(result, x, w):
        with torch.no_grad():
            w.mul_(2)

    options = {"cache": False, "backward_reads": "any"}
    for times in range(5):
        x, w = make_pair()
        result, _ = (compiled := preheat.compile(fn, options=options) if not times else compiled)(x, w)
        result.sum().backward()
        near(w.grad, torch.cos(w + x).detach(), 1e-5, "gradient")
    result, _ = compiled(x, w)
    change(result, x, w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("budget", [1, 0.5, 0.1, 0])
def test_gradients_are_eagers_at_every_budget(budget):
    trains_alike(options={"cache": False, "memory_budget": budget})


def test_an_op_of_which_one_result_is_kept():
    """Of max pooling the forward needs the values, the backward the places too."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.norm(self.conv(x.view(6, 1, 4, 4)))), 2)
            return self.out(x.flatten(1))

    def make():
        torch.manual_seed(0)
        return Net()

    for budget in (1.0, 0.0):
        before = preheat.counters()
        trains_alike(make, options={"cache": False, "memory_budget": budget})
        after = preheat.counters()
        assert after["fallbacks"] == before["fallbacks"] and after["compiles"] > before["compiles"]


def grads_after(change, fn, make, times=5):
    """The gradients of `fn`, or the error, when `change` happens between forward and backward; eager's
    and those of the compiled function's last call."""
    found = []
    for call in (fn, preheat.compile(fn, options={"cache": False})):
        for _ in range(times):
            args = make()
            result = call(*args)
            change(result, *args)
            try:
                result.sum().backward()
                seen = [arg.grad for arg in args if arg.is_leaf and arg.requires_grad]
            except RuntimeError as error:
                seen = str(error)[:30]
        found.append(seen)
    return found


def make_pair():
    torch.manual_seed(0)
    return torch.rand(8, 8), torch.rand(8, 8, requires_grad=True)


def test_an_input_that_no_formula_saved_may_change():
    def fn(x, w):
        return torch.sin(x + 1) * torch.cos(w + x)

    eager, compiled = grads_after(lambda result, x, w: x.mul_(3), fn, make_pair)
    assert isinstance(eager, list)
    near(compiled[0], eager[0], 1e-5, "gradient")


def test_a_result_that_no_formula_saved_may_change():
    def fn(x, w):
        return x.exp() * w + 1

    eager, compiled = grads_after(lambda result, x, w: result.detach().zero_(), fn, make_pair)
    near(compiled[0], eager[0], 1e-5, "gradient")


def test_what_a_formula_saved_may_not_change_even_if_it_is_not_read():
    def fn(x, w):
        return torch.sigmoid(w * x)

    def change(result, x, w):
        with torch.no_grad():
            result.mul_(2)

    eager, compiled = grads_after(change, fn, make_pair)
    assert isinstance(eager, str) and compiled == eager


def test_a_parameter_stepped_between_two_backwards():
    w = torch.rand(4, 4, requires_grad=True)
    compiled = preheat.compile(lambda x: torch.tanh(x @ w) @ w, options={"cache": False})
    for number in range(5):
        loss = compiled(torch.rand(3, 4)).sum()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
        w.grad = None
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_inputs_are_let_go_after_their_last_use():
    training, _ = learned(
        lambda x, v, w: torch.tanh(torch.tanh(x @ v) @ w), torch.randn(64, 64), weights(64, 64),
        weights(64, 64))
    (backward,) = training.backwards
    plan = backward.plan
    executable = Executable(plan, None, is_lean=True, takes_inputs=True)
    freed = {buffer for row in executable.free_after[:-1] for buffer in row}
    inputs = {k for k, buffer in enumerate(plan.buffers) if buffer.kind == "input"}
    assert freed & inputs, "nothing is let go before the end"
    assert not any(buffer.kind == "arena" for buffer in plan.buffers)  # 16 KB and more: on their own


@pytest.fixture(scope="module")
def peaks():
    return json.loads(printed(str(Path(__file__).with_name("peaks.py")), environment={
        **os.environ, "PYTHONPATH": str(ROOT)}).splitlines()[-1])


@pytest.mark.parametrize("kind", ["plain", "checkpoint", "reentrant"])
def test_peak_memory_is_at_most_eagers(peaks, kind):
    eager, compiled = peaks[kind]
    assert compiled <= eager * 1.01
    if kind != "reentrant":
        assert compiled < {"plain": 0.8, "checkpoint": 0.92}[kind] * eager


@pytest.mark.parametrize("kind, more", [
    ("tied", 2.0),  # both uses of the table have a gradient, but their sum has no memory of its own
    ("depthwise", 12.0),  # the library pads each weight to a block of 256
    ("narrow", 1.1),  # the gradient of the last weight comes when the convolution has let go of its room
])
def test_room_beside_the_gradients(peaks, kind, more):
    """Peak and held bytes of a step, as a share of the gradients' own."""
    peak, held, gradients = peaks[kind]
    assert held < 4096
    assert peak < more * gradients
