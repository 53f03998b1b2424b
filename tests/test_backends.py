"""Backends from outside: the graphs they are given, what they may give, and that results are eager's."""

import copy
import pickle
import random
import shutil

import pytest
import torch

import preheat
from preheat.base.errors import BackendError, UserError
from preheat.bridge import fx
from same import Program, same, same_program
from tests.fuzz.__main__ import program
from tests.fuzz.check import check as check_effects
from tests.processes import printed
from tests.sizes import grammar
from tests.sizes.check import check as check_sizes
from tests.training.check import check as check_gradients


def forward(gm, inputs):
    return gm.forward


class Counting:
    """A backend that keeps what it was given: the names of the ops, and the sizes of the examples."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, inputs):
        ops = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
        self.graphs.append((ops, [tuple(one.shape) for one in inputs]))
        return gm.forward


def layer(x, w):
    return torch.relu(x @ w) * 2


def test_a_callable_is_given_the_graph_once():
    seen = Counting()
    compiled = preheat.compile(layer, backend=seen)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    for _ in range(4):
        assert torch.equal(compiled(x, w), layer(x, w))
    assert seen.graphs == [
        (["aten.mm.default", "aten.relu.default", "aten.mul.Tensor"], [(3, 4), (4, 5)])]
    assert compiled(x.double(), w.double()).dtype is torch.float64
    assert len(seen.graphs) == 2


def test_breaks_writes_and_views():
    seen = Counting()

    def f(x, bias):
        y = (x + bias).split(2, -1)
        print("middle")
        bias.add_(1)
        return y[1][0], bias, x.t()

    x = torch.arange(12.0).reshape(3, 4)
    same(f, x, torch.ones(4), settings={"backend": seen})
    assert [ops for ops, _ in seen.graphs] == [
        ["aten.add.Tensor", "aten.split.Tensor", "<built-in function getitem>", "<built-in function getitem>"],
        ["aten.add_.Tensor", "aten.select.int", "aten.t.default"]]


def test_gradients_and_regions_without():
    def f(x, w):
        with torch.no_grad():
            scale = w.abs().max()
        return (x @ w / scale).tanh(), scale

    seen = Counting()
    compiled = preheat.compile(f, backend=seen)
    for _ in range(3):
        sides = []
        for call in (f, compiled):
            w = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
            y, scale = call(torch.ones(4, 2), w)
            assert not scale.requires_grad and torch.is_grad_enabled()
            y.sum().backward()
            sides.append((y, scale, w.grad))
        assert all(map(torch.equal, *sides))
    (ops, _), = seen.graphs
    assert sum("set_grad_enabled" in name for name in ops) == 2


def test_numbers_and_sizes_are_constants_of_a_graph():
    seen = Counting()
    compiled = preheat.compile(lambda x, k: x * k + x.shape[0], backend=seen)
    for n, k in ((2, 1.5), (3, 2.5), (4, 3.5), (4, 3.5), (4, -0.0), (4, 0.0)):
        found = compiled(torch.ones(n), k)
        assert torch.equal(found, torch.ones(n) * k + n)
    assert 3 <= len(seen.graphs) <= 6
    before, graphs = preheat.counters()["fallbacks"], len(seen.graphs)
    for n in range(5, 25):  # more than are given to a backend run op by op
        assert torch.equal(compiled(torch.ones(n), 1.5), torch.ones(n) * 1.5 + n)
    assert len(seen.graphs) <= graphs + 8 and preheat.counters()["fallbacks"] > before
    preheat.seal(compiled)
    graphs = len(seen.graphs)
    assert torch.equal(compiled(torch.ones(40), 1.5), torch.full((40,), 41.5))
    assert len(seen.graphs) == graphs


def test_examples_are_copies_of_what_is_written():
    def runs(gm, inputs):
        gm(*inputs)
        return gm.forward

    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), torch.randn(5, 4)
    same_program(
        lambda: Program(copy.deepcopy(model), (x,)),
        calls=3, settings={"backend": runs})


@pytest.mark.parametrize("made, words", [
    (lambda gm, inputs: lambda *args: (*gm(*args), 1), "gave 2 results for the graph of layer, which has 1"),
    (lambda gm, inputs: lambda *args: gm(*args)[0], "gave a Tensor"),
    (lambda gm, inputs: lambda *args: (gm(*args)[0].double(),), r"torch.float64 \[3, 5\] on cpu as result 0"),
    (lambda gm, inputs: lambda *args: (gm(*args)[0][:1],), r"torch.float32 \[1, 5\] on cpu as result 0"),
    (lambda gm, inputs: lambda *args: (gm(*args)[0][None],), r"torch.float32 \[1, 3, 5\] on cpu as result 0"),
    (lambda gm, inputs: lambda *args: (gm(*args)[0].to("meta"),), r"\[3, 5\] on meta as result 0"),
    (lambda gm, inputs: lambda *args: (gm(*args)[0].to_sparse(),), r"torch.sparse_coo torch.float32 \[3, 5\] on cpu"),
    (lambda gm, inputs: lambda *args: (None,), "gave a NoneType as result 0"),
    (lambda gm, inputs: None, "gave None for the graph of layer: it has to give a function of the graph's 2"),
    (lambda gm, inputs: inputs[9], "raised IndexError for the graph of layer: list index"),
])
def test_what_is_no_function_of_the_graph_is_an_error(made, words):
    compiled = preheat.compile(layer, backend=made)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    for _ in range(2):
        with pytest.raises(BackendError, match=words):
            for _ in range(2):  # the first call runs the program, and may bind the node later
                compiled(x, w)


def test_results_are_compared_with_the_graph_at_each_size():
    """Sizes are constants of each graph that a backend is given, so its results have them, too."""
    def shorter(gm, inputs):
        return lambda *args: (gm(*args)[0][:3],)

    compiled = preheat.compile(lambda x: torch.cat([x, x]), backend=shorter, dynamic=True)
    compiled(torch.ones(2))
    with pytest.raises(BackendError, match=r"torch.float32 \[3\] on cpu as result 0 .*, which is f32\[8\]"):
        compiled(torch.ones(4))


def test_a_function_that_raises_changes_nothing_and_is_told():
    def breaks(gm, inputs):
        def function(*args):
            gm(*args)
            raise ValueError("mine")

        return function

    def f(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(2)
    compiled = preheat.compile(f, backend=breaks)
    compiled(x)
    with pytest.warns(UserWarning, match="the function of backend breaks raised ValueError.'mine'., where the program does not"):
        assert torch.equal(compiled(x), torch.full((2,), 4.0))
    assert torch.equal(x, torch.full((2,), 2.0))


@pytest.mark.filterwarnings("error")
def test_an_error_of_the_program_is_its_own():
    same_program(
        lambda: Program(
            lambda x, i: x.index_select(0, i), (torch.arange(4.0), torch.tensor([1])),
            between={2: lambda one: one.args[1].fill_(9)}),
        calls=4, settings={"backend": forward})


def test_a_compiled_module_keeps_its_backend():
    model = preheat.compile(torch.nn.Linear(2, 2), backend=forward)
    x = torch.ones(2)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x), model(x)) and torch.equal(again(x), model(x))


def test_names_and_modes():
    with pytest.raises(UserError, match="did you mean 'inductor'"):
        preheat.compile(layer, backend="inductr")
    with pytest.raises(UserError, match="name or a callable"):
        preheat.compile(layer, backend=3)
    with pytest.raises(UserError, match="mode='max-autotune' is for the backend 'preheat'"):
        preheat.compile(layer, backend=forward, mode="max-autotune")


def test_dynamo_is_loaded_on_request_alone():
    text = (
        "import sys, torch, preheat\n"
        "f = preheat.compile(lambda x: x * 2, backend=lambda gm, inputs: gm.forward)\n"
        "assert f(torch.ones(2)).sum() == f(torch.ones(2)).sum() == 4\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "preheat.compile(lambda x: x, backend='aot_eager')\n"
        "assert 'torch._dynamo' in sys.modules\n")
    printed("-c", text)


def test_a_name_is_the_function_that_torch_compile_calls():
    """Also one that the user has registered with torch."""
    text = (
        "import torch, preheat, torch._dynamo\n"
        "seen = []\n"
        "@torch._dynamo.register_backend(name='mine')\n"
        "def own(gm, inputs):\n"
        "    seen.append([tuple(one.shape) for one in inputs])\n"
        "    return gm.forward\n"
        "f = preheat.compile(lambda x: x * 2, backend='mine')\n"
        "assert f(torch.ones(2)).sum() == f(torch.ones(2)).sum() == 4\n"
        "assert seen == [[(2,)]]\n")
    printed("-c", text)


def test_a_torch_that_gives_no_backend_by_name(monkeypatch):
    monkeypatch.setattr(fx, "_NAMED", None)
    with pytest.raises(UserError, match="gives no backend by its name: pass the one that 'eager_noexcept' names"):
        preheat.compile(layer, backend="eager_noexcept")


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    check_gradients(seed, {"backend": forward})
    script, _ = program(seed)
    verdict = check_effects(script, forward)
    assert verdict.kind == "same", verdict.message


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes(seed):
    chance = random.Random(seed)
    check_sizes(grammar.write(chance, (2, 3)), [(2, 3), (4, 3), (4, 5), (1, 3)], forward)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aot_eager", "inductor"])
def test_a_backend_of_torch_compile(name):
    if name == "inductor" and not shutil.which("g++"):
        pytest.skip("it needs a C++ compiler")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    twin = pickle.loads(pickle.dumps(model))
    compiled = preheat.compile(model, backend=name)
    for n in (5, 6, 6, 6):
        x = torch.randn(n, 4)
        for one in (compiled, twin):
            one.zero_grad()
            one(x).square().sum().backward()
        for found, expected in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(found.grad, expected.grad)
        for found, expected in zip(model.buffers(), twin.buffers()):
            torch.testing.assert_close(found, expected)
