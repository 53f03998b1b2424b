"""The public functions: every form of compile, disable, explain, reset, and clear errors."""

import asyncio
import copy
import functools
import inspect
import io
import pickle
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import preheat
from preheat.base.options import MODES
from same import same
from tests.processes import printed


def plus(x, y=1, *, times=2):
    """Adds and multiplies."""
    return (x + y) * times


X = torch.arange(4.0)
NO_CACHE = {"cache": False}


def counted(call):
    """What `call()` returns, and the captures meanwhile."""
    before = preheat.counters()["captures"]
    with torch.no_grad():
        result = call()
    return result, preheat.counters()["captures"] - before


@pytest.mark.parametrize(
    "form",
    [
        lambda fn: preheat.compile(fn, options=NO_CACHE),
        lambda fn: preheat.compile(model=fn, options=NO_CACHE),
        lambda fn: preheat.compile(options=NO_CACHE)(fn),
        lambda fn: preheat.compile(
            fullgraph=True, dynamic=False, backend="preheat", mode="default", options=NO_CACHE
        )(fn),
        lambda fn: preheat.compile(fn, backend="eager", options=NO_CACHE),
        lambda fn: preheat.compile(preheat.compile(fn, options=NO_CACHE), options=NO_CACHE),
    ],
)
def test_forms_of_compile(form):
    compiled = form(plus)
    result, captures = counted(lambda: compiled(X, times=3))
    assert torch.equal(result, plus(X, times=3)) and captures == 1
    result, captures = counted(lambda: compiled(X + 1, times=3))
    assert torch.equal(result, plus(X + 1, times=3)) and captures == 0
    assert compiled.__name__ == "plus" and compiled.__doc__ == plus.__doc__
    assert inspect.signature(compiled) == inspect.signature(plus)


def test_decorators_below_and_above_those_of_python():
    """A staticmethod can be called, so it was compiled to a function, which is a method of the class."""
    wrap = preheat.compile(options=NO_CACHE)

    class Shape:
        factor = 2

        above = wrap(staticmethod(lambda x: x + 1))
        below = staticmethod(wrap(lambda x: x + 1))
        above_class = wrap(classmethod(lambda cls, x: x * cls.factor))
        below_class = classmethod(wrap(lambda cls, x: x * cls.factor))
        above_property = wrap(property(lambda self: X + self.factor, lambda self, value: None, doc="text"))
        below_property = property(wrap(lambda self: X + self.factor))

    shape = Shape()
    shape.above_property = 3
    for call, expected in (
            (lambda: shape.above(X), X + 1), (lambda: Shape.above(X), X + 1), (lambda: shape.below(X), X + 1),
            (lambda: shape.above_class(X), X * 2), (lambda: Shape.below_class(X), X * 2),
            (lambda: shape.above_property, X + 2), (lambda: shape.below_property, X + 2)):
        for number in range(3):
            result, captures = counted(call)
            assert torch.equal(result, expected) and (captures <= 1 if number == 0 else captures == 0)
    assert Shape.above_property.__doc__ == "text"
    assert isinstance(vars(Shape)["above"], staticmethod) and isinstance(vars(Shape)["above_class"], classmethod)


def test_decorators_on_functions_methods_and_classes():
    @preheat.compile
    def bare(x):
        return x + 1

    class Shape:
        def __init__(self, scale):
            self.scale = scale

        @preheat.compile(options=NO_CACHE)
        def grow(self, x):
            return x * self.scale

        @staticmethod
        @preheat.compile(options=NO_CACHE)
        def fixed(x):
            return x - 1

        @classmethod
        @preheat.compile(options=NO_CACHE)
        def named(cls, x):
            return x, cls.__name__

    @preheat.compile(options=NO_CACHE)
    class Net(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return x * self.scale

    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(bare(X), X + 1)
            for scale in (2.0, 5.0):
                assert torch.equal(Shape(scale).grow(X), X * scale)
                assert torch.equal(Net(scale)(X), X * scale)
            assert torch.equal(Shape.fixed(X), X - 1)
            assert Shape.named(X)[1] == "Shape"
    assert isinstance(Net(1.0), nn.Module) and isinstance(Net, type)


def test_bound_methods_partials_and_callable_objects():
    model = nn.Linear(4, 4)

    class Call:
        def __init__(self):
            self.big = torch.ones(4)

        def __call__(self, x):
            return x + self.big

    for target in (model.forward, functools.partial(plus, y=3), Call(), torch.relu):
        compiled = preheat.compile(target, options=NO_CACHE)
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(compiled(X), target(X))
        assert not hasattr(compiled, "big")


def test_module_comes_back_as_a_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = preheat.compile(model, options=NO_CACHE)
    assert isinstance(compiled, nn.Sequential) and list(compiled.state_dict()) == list(
        model.state_dict()
    )
    result, captures = counted(lambda: compiled(X))
    assert captures == 1 and torch.allclose(result, model(X))
    again, captures = counted(lambda: compiled(X))
    assert captures == 0 and torch.equal(again, result)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        result, captures = counted(lambda: other(X))
        assert (
            captures == 1 and torch.allclose(result, model(X)) and isinstance(other, nn.Sequential)
        )
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    nn.Sequential(nn.Linear(4, 4), nn.ReLU()).load_state_dict(torch.load(file))


def test_disable(monkeypatch):
    assert preheat.compile(plus, disable=True) is plus
    monkeypatch.setenv("PREHEAT_DISABLE", "1")
    assert preheat.compile(plus) is plus and preheat.compile(disable=True)(plus) is plus


def test_disabled_functions_run_natively_inside():
    calls = []

    @preheat.disable
    def outside(x):
        calls.append(preheat.is_compiling())
        return x + len(calls)

    @preheat.disable(reason="talks to a service")
    def named(x):
        return x

    def fn(x):
        return outside(x * 2) + named(x)

    compiled = preheat.compile(fn, options=NO_CACHE)
    assert named.__name__ == "named" and preheat.compile(outside) is outside
    with torch.no_grad():
        for number in (1, 2, 3):
            assert torch.equal(compiled(X), X * 2 + number + X)
    assert calls == [False] * 3
    module = preheat.disable(nn.ReLU())
    assert isinstance(module, nn.ReLU) and torch.equal(module(X - 1), torch.relu(X - 1))
    with pytest.raises(preheat.UserError, match="recursive"):
        preheat.disable(plus, recursive=False)


def test_is_compiling():
    def fn(x):
        return x + 1 if preheat.is_compiling() else x - 1

    assert preheat.is_compiling() is False
    compiled = preheat.compile(fn, options=NO_CACHE)
    with torch.no_grad():
        results = [compiled(X) for _ in range(3)]
    assert all(torch.equal(result, X + 1) for result in results)
    assert torch.compiler.is_compiling() is False


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"backend": "inductr"}, ["unknown backend", "inductr"]),
        ({"mode": "max_autotune"}, ["unknown mode", "did you mean 'max-autotune'"]),
        ({"options": {"cach": True}}, ["unknown option 'cach'", "did you mean 'cache'"]),
        ({"fullgraph": "yes"}, ["fullgraph", "'yes'"]),
        ({"dynamic": 3}, ["dynamic", "3"]),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(preheat.UserError) as error:
        preheat.compile(plus, **arguments)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("target", [3, "model", torch.ones(2)])
def test_wrong_targets(target):
    with pytest.raises(preheat.UserError, match="cannot compile"):
        preheat.compile(target)


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    compiled = preheat.compile(plus, mode=mode, options=NO_CACHE)
    with torch.no_grad():
        assert torch.equal(compiled(X), plus(X))


def test_explain_tells_captures_and_breaks():
    with torch.no_grad():
        whole = preheat.explain(lambda x: torch.relu(x) + 1)(X)
        broken = preheat.explain(_with_a_print)(X)
    assert whole.graph_count == 1 and whole.break_count == 0 and whole.kernels >= 1 and whole.guards
    assert "1 graph" in str(whole) and torch.equal(whole.result, torch.relu(X) + 1)
    assert broken.break_count == 2 and broken.graph_count == 3
    assert [row.kind for row in broken.breaks] == ["path", "host"]
    row = broken.breaks[0]
    assert row.file == __file__ and 'print("value"' in row.code and row.hint and row.reason
    assert row.line == _with_a_print.__code__.co_firstlineno + 2


def _with_a_print(x):
    y = x + 1
    print("value", y.sum().item())
    return y


def test_explain_of_compiled_things_leaves_them_alone():
    compiled = preheat.compile(nn.Linear(4, 4), options=NO_CACHE)
    with torch.no_grad():
        assert preheat.explain(compiled)(X).graph_count == 1
        _, captures = counted(lambda: compiled(X))
    assert captures == 1


def test_fullgraph_raises_where_it_breaks():
    compiled = preheat.compile(_with_a_print, fullgraph=True, options=NO_CACHE)
    with torch.no_grad(), pytest.raises(preheat.UserError, match="fullgraph.*test_face.py"):
        compiled(X)


def test_reset_forgets():
    compiled = preheat.compile(plus, options=NO_CACHE)
    counted(lambda: compiled(X))
    preheat.reset()
    assert counted(lambda: compiled(X))[1] == 1


def test_a_backward_that_eager_refuses_is_reported():
    def spoils(x):
        y = x.exp()
        y.add_(1)
        return y

    compiled = preheat.compile(spoils, options=NO_CACHE)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(X.clone().requires_grad_()).sum().backward()
    assert "modified_saved" in str(preheat.explain(spoils)(X.clone().requires_grad_()))


def test_options_table():
    for name, option in preheat.options().items():
        assert name and option.meaning and type(option.default) is option.type
    assert set(preheat.__all__) <= set(dir(preheat))


def test_coroutines_and_threads():
    async def later(x):
        return x + 1

    assert torch.equal(asyncio.run(preheat.compile(later, options=NO_CACHE)(X)), X + 1)
    compiled = preheat.compile(lambda x: torch.softmax(x * 2, 0), options=NO_CACHE)
    wrong = []

    def work(seed):
        x = torch.randn(32, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(compiled(x), torch.softmax(x * 2, 0)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_compiled_inside_compiled():
    inner = preheat.compile(lambda x: x * 2, options=NO_CACHE)
    module = preheat.compile(nn.ReLU(), options=NO_CACHE)
    same(lambda x: inner(x) + module(x - 1), X)
    same(nn.Sequential(nn.Linear(4, 4), module), X)


def test_compile_stays_a_function_after_the_compiler_is_loaded():
    program = (
        "import torch, preheat\n"
        "f = preheat.compile(lambda x: x + 1, options={'cache': False})\n"
        "with torch.no_grad(): f(torch.ones(2))\n"
        "assert callable(preheat.compile) and callable(preheat.options), preheat.compile\n"
    )
    printed("-c", program)


def test_other_compilers_around_and_inside():
    script = Path(__file__).with_name("inside_torch_compile.py")
    printed(str(script))


def test_explain_counts_what_a_loop_does():
    def fn(x):
        for _ in range(5):
            x = torch.tanh(x)
            seen.append(outside(x))
        return x

    @preheat.disable
    def outside(x):
        return len(seen)

    seen = []
    with torch.no_grad():
        found = preheat.explain(fn)(X)
    assert len(seen) == 5
    assert sum(row.count for row in found.breaks if row.reason == "disabled_function") == 5


def test_fullgraph_raises_before_the_call_that_breaks():
    done = []

    @preheat.disable
    def outside(x):
        done.append("outside")

    def fn(x):
        y = x * 2
        outside(y)
        done.append("after")
        return y

    compiled = preheat.compile(fn, fullgraph=True, options=NO_CACHE)
    for _ in range(4):
        with torch.no_grad(), pytest.raises(preheat.UserError) as error:
            compiled(X)
        text = str(error.value)
        assert f"{__file__}:{fn.__code__.co_firstlineno + 2} calls" in text
        assert "\n    outside(y)\n" in text and "[disabled_function]" in text
    assert done == []


def test_fullgraph_says_the_rewrite_and_takes_none_from_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    with torch.no_grad():
        broken = preheat.compile(_with_a_branch)
        for _ in range(2):
            assert torch.allclose(broken(X), _with_a_branch(X))
        whole = preheat.compile(_with_a_branch, fullgraph=True)
        for _ in range(2):
            with pytest.raises(preheat.UserError, match="instead: x = torch.where\\(x.max"):
                whole(X)


def _with_a_branch(x):
    for _ in range(20):
        x = torch.tanh(x)
    if x.max() > 0.1:
        x = x * 2
    return x
