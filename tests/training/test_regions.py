"""Checkpoints as regions of a graph: values, gradients, random state and captures are as they shall be."""

import itertools
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

import preheat
from preheat.bridge import checkpoints
from preheat.capture.capture import capture
from preheat.differentiate import Lesson
from preheat.ir.plan import KernelCall, ProductCall

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) / 3
V = torch.randn(8, 8, generator=torch.Generator().manual_seed(2)) / 3


class Block(nn.Module):
    def __init__(self, width=8, p=0.0):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.p = p

    def forward(self, x, scale=1.0):
        h = self.b(F.gelu(self.a(self.norm(x)))) * scale
        return x + (F.dropout(h, self.p, self.training) if self.p else h)


def region(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def observed(call, x, parameters, use=lambda y: y.square().sum().backward()):
    """What one step gives: results, gradients, where the generator stands."""
    torch.manual_seed(5)
    for parameter in parameters:
        parameter.grad = None
    x = x.clone().requires_grad_()
    results = call(x)
    given = use(results)
    flat = results if isinstance(results, tuple) else (results,)
    return (
        [r.detach().clone() for r in flat if isinstance(r, torch.Tensor)],
        [p.grad for p in (x, *parameters)], given, torch.get_rng_state())


def assert_same(f, parameters, *, use=lambda y: y.square().sum().backward(), captures=1, steps=5,
                rows=itertools.repeat(4), settings=None):
    """`f` compiled does as eager does, within one graph and so many captures."""
    compiled = preheat.compile(f, **(settings or {"fullgraph": True}), **({} if settings and "options" in settings else {"options": {"cache": False}}))
    before = preheat.counters()["captures"]
    for step, count in zip(range(steps), rows):
        x = torch.randn(count, 8, generator=torch.Generator().manual_seed(step))
        expected = observed(f, x, parameters, use)
        found = observed(compiled, x, parameters, use)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert preheat.counters()["captures"] - before <= captures
    return compiled


def parameters(*names):
    return [nn.Parameter(t.clone()) for t in names]


def test_a_chain_of_regions_is_one_graph():
    w, v = parameters(W, V)

    def f(x):
        for _ in range(3):
            x = region(lambda x: torch.tanh(x @ w) @ v + x, x)
        return x

    assert_same(f, [w, v])


def test_modules_keywords_and_numbers():
    blocks = nn.ModuleList(Block() for _ in range(3))

    def f(x):
        for block in blocks:
            x = region(block, x, scale=0.5)
        return x

    assert_same(f, [*blocks.parameters()])


def test_a_function_without_gradient_and_one_under_no_grad():
    w, v = parameters(W, V)

    def f(x):
        with torch.no_grad():
            y = region(lambda x: (x @ w).exp(), x)
        z = region(lambda: torch.ones(4, 8).cumsum(0))
        return region(lambda a, b: (a @ v) * b, x * 2, y + z)

    assert_same(f, [v])


def test_results_that_are_tuples_views_and_arguments():
    w, v = parameters(W, V)

    def inner(x, pair, name="a"):
        h = torch.sigmoid(x @ w)
        return h, (h * pair[0]).view(2, -1), x, {"k": h @ v, name: 3}

    def f(x):
        a, b, c, d = region(inner, x, (x.sin(), None), name="q")
        return a + c, b.reshape(4, 8), d["k"] * d["q"]

    def use(results):
        sum(r.square().sum() for r in results).backward()

    assert_same(f, [w, v], use=use)


def test_some_of_the_results_are_used():
    w, v = parameters(W, V)

    def f(x):
        return region(lambda x: ((x @ w).tanh(), (x @ v).exp()), x)

    for use in (
        lambda r: r[0].sum().backward(), lambda r: r[1].sum().backward(),
        lambda r: torch.autograd.grad(r[1].sum(), [v]),
        lambda r: (torch.autograd.grad(r[0].sum(), [w], retain_graph=True), r[1].sum().backward()),
    ):
        assert_same(f, [w, v], use=use)


def test_a_gradient_twice_and_a_double_backward():
    w, v = parameters(W, V)

    def f(x):
        return region(lambda x: torch.tanh(x @ w) @ v, x * 2)

    def twice(y):
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()

    def double(y):
        first = torch.autograd.grad(y.square().sum(), [w, v], create_graph=True)
        sum(g.square().sum() for g in first).backward()

    def again(y):
        y.sum().backward()
        with pytest.raises(RuntimeError):
            y.sum().backward()

    assert_same(f, [w, v], use=twice)
    assert_same(f, [w, v], use=double)
    assert_same(f, [w, v], use=again)


def test_hooks_outside_see_what_they_see_in_eager():
    w, v = parameters(W, V)
    seen = []
    w.register_hook(lambda g: seen.append(g.sum().item()))

    def f(x):
        y = region(lambda x: torch.tanh(x @ w) @ v, x)
        return y, region(lambda y: y.exp() @ w, y)

    def use(results):
        del seen[:]
        results[0].register_hook(lambda g: g * 2)
        results[1].sum().backward()
        return torch.tensor(seen)

    assert_same(f, [w, v], use=use)


@pytest.mark.parametrize("is_inside", [True, False])
def test_autocast_inside_and_outside(is_inside):
    w, v = parameters(W, V)

    def inner(x):
        if is_inside:
            with torch.autocast("cpu", torch.bfloat16):
                return torch.tanh(x @ w) @ v
        return torch.tanh(x @ w) @ v

    def f(x):
        if is_inside:
            return region(inner, region(inner, x).float()).float()
        with torch.autocast("cpu", torch.bfloat16):
            y = region(inner, region(inner, x))
        return y.float()

    compiled = preheat.compile(f, fullgraph=True, options={"cache": False})
    for step in range(4):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        expected, found = observed(f, x, [w, v]), observed(compiled, x, [w, v])
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


def test_an_exception_inside_arises_as_in_eager():
    w, v = parameters(W, V)

    def inner(x):
        if x.shape[0] == 3:
            raise ValueError("three")
        return x @ w

    def f(x):
        try:
            return region(inner, x) @ v
        except ValueError as error:
            return x * len(str(error))

    assert_same(f, [w, v], rows=iter((4, 4, 3, 3, 4, 3, 4)), steps=7, captures=3)
    compiled = preheat.compile(lambda x: region(inner, x), options={"cache": False})
    for _ in range(3):
        with pytest.raises(ValueError, match="three"):
            compiled(torch.ones(3, 8))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        assert compiled(torch.ones(4, 8)).requires_grad


def test_writes_to_tensors_made_inside():
    w, v = parameters(W, V)

    def inner(x):
        h = torch.zeros(4, 8)
        h[1:] = (x @ w)[1:]
        return h.mul_(2).tanh() @ v

    assert_same(lambda x: region(inner, x * 2), [w, v])


def test_sizes_that_change():
    blocks = nn.ModuleList(Block() for _ in range(2))

    def f(x):
        for block in blocks:
            x = region(block, x)
        return x

    assert_same(f, [*blocks.parameters()], rows=iter((4, 6, 3, 9, 6, 12, 4, 4, 9)), steps=9, captures=2)


def test_checkpoint_sequential_comes_through_the_same_door():
    blocks = nn.Sequential(*(Block() for _ in range(4)))
    assert_same(
        lambda x: checkpoint_sequential(blocks, 2, x, use_reentrant=False), [*blocks.parameters()])


def test_nothing_from_inside_is_saved_and_no_kernel_reaches_over_a_region():
    w, v = parameters(W, V)
    keep = torch.randn(512, 8) > 0

    def f(x):
        for _ in range(3):  # what all have in common would draw them together
            x = region(lambda x: torch.where(keep, torch.tanh(x @ w), 0.0) @ v + x, x)
        return x

    x = torch.randn(512, 8)
    body = capture(f, (x,), {}, limits=None).captured.trace.nodes[0].body
    lesson = Lesson.of(body)
    weights, others = iter((w, v)), {"b8[512, 8]": keep, "f32[512, 8]": x}
    source = lesson.run([others.get(str(given.type)) if given.type.sizes[0] == 512 else next(weights)
                         for given in body.inputs])
    source.backward(0, [torch.ones(512, 8)], [], False)
    plan, _, training = lesson.compiled("f")
    assert [str(exit.type or plan.outputs[exit.given.index].type) for exit in training.values[1:]] == [
        "f32[512, 8]"] * 2
    (backward,) = training.backwards
    made = {call.out for call in backward.plan.calls if isinstance(call, ProductCall)}
    read = [made.intersection(c.buffers) for c in backward.plan.calls if isinstance(c, KernelCall)]
    assert max(map(len, read)) <= 2, "one product that is computed again, and one of its gradient"


# ---------------------------------------------------------------------------- what is no region
def breaks(f, x):
    return [(row.reason, row.detail) for row in preheat.explain(f)(x).breaks]


def test_effects_inside_are_done_twice_as_in_eager():
    w, v = parameters(W, V)
    log, norm = [], nn.BatchNorm1d(8)

    def written(x):
        log.append(len(log))
        return (x @ w).tanh() @ v

    def normed(x):
        return norm(x @ w) @ v

    made = []

    def into_made(x):
        made.clear()
        seen = []

        def inner(x):
            seen.append(x @ w)
            return seen[-1].exp()

        y = region(inner, x)
        made.append(seen)
        return y

    for f, count in ((lambda x: region(written, x), lambda: len(log)),
                     (lambda x: region(normed, x), lambda: norm.running_mean.clone()),
                     (into_made, lambda: len(made[0]))):
        compiled = preheat.compile(f, options={"cache": False})
        for step in range(5):
            del log[:]
            norm.reset_running_stats()
            x = torch.randn(4, 8)
            expected = *observed(f, x, [w, v]), count()
            del log[:]
            norm.reset_running_stats()
            found = *observed(compiled, x, [w, v]), count()
            torch.testing.assert_close(found, expected)
    assert preheat.counters()["breaks"]


def test_what_is_no_region_stays_a_host_step():
    w, v = parameters(W, V)

    def contexts():
        import contextlib
        return contextlib.nullcontext(), contextlib.nullcontext()

    def nested(x):
        return region(lambda x: region(lambda x: (x @ w).exp(), x) @ v, x)

    def stops(x):
        with set_checkpoint_early_stop(False):
            return region(lambda x: (x @ w).exp(), x)

    def changed(x):
        x = x * 2
        y = region(lambda x: (x @ w).exp(), x.detach())
        x.add_(1)
        return y @ v + x

    programs = {
        "reentrant": lambda x: checkpoint(lambda x: (x @ w).exp(), x, use_reentrant=True),
        "contexts": lambda x: region(lambda x: (x @ w).exp(), x, context_fn=contexts),
        "debug": lambda x: region(lambda x: (x @ w).exp(), x, debug=True),
        "print": lambda x: region(lambda x: (print("", end=""), (x @ w).exp())[1], x),
        "item": lambda x: region(lambda x: (x @ w).exp() * x.sum().item(), x),
        "argument": lambda x: region(lambda y: y.mul_(2) @ w, x * 2),
        "nested": nested, "stops": stops,
    }
    if not shutil.which("addr2line"):  # torch forks for it, and each child goes on in the program
        del programs["debug"]
    for name, f in programs.items():
        compiled = preheat.compile(f, options={"cache": False})
        for step in range(5):
            x = torch.randn(4, 8)
            try:
                expected = observed(f, x, [w, v])
            except RuntimeError as error:
                with pytest.raises(RuntimeError, match=str(error)[:30]):
                    observed(compiled, x, [w, v])
                continue
            torch.testing.assert_close(observed(compiled, x, [w, v]), expected, msg=name)
        reasons = {row.reason for row in compiled.__preheat__.breaks}
        assert "checkpoint" in reasons or "ambient_change" in reasons, (name, reasons)


def test_a_change_of_what_a_region_has_read_is_an_error():
    w, v = parameters(W, V)
    compiled = preheat.compile(lambda x: region(lambda x: (x @ w).exp() @ v, x), options={"cache": False})
    for step in range(4):
        y = compiled(torch.ones(4, 8))
        with torch.no_grad():
            w.mul_(1.0)
        if step:  # the first call is eager's own: it computes again from what is there then
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def written(how, w, v):
    """A function that writes to what it has made."""
    def over_a_result(x):
        h = torch.sigmoid(x @ w)
        h.mul_(2)
        return (h @ v).exp()

    def over_an_operand(x):
        h = x @ w
        y = h * h
        h.tanh_()
        return y + h

    def through_a_view(x):
        h = torch.sigmoid(x @ w)
        h.t()[1:].add_(1)
        return (h @ v).exp()

    def under_no_grad(x):
        h = torch.sigmoid(x @ w)
        with torch.no_grad():
            h.mul_(2)
        return (h @ v).exp()

    def out(x):
        h = torch.sigmoid(x @ w)
        torch.add(x.detach(), 1, out=h.detach())
        return (h @ v).exp()

    def before_it_is_saved(x):
        h = x @ w
        h.mul_(2)
        F.relu(h, inplace=True)
        return (h @ v).exp_()

    def after_all_is_saved(x):
        return ((x @ w).exp() @ v).exp_().add_(1)

    return {f.__name__: f for f in (
        over_a_result, over_an_operand, through_a_view, under_no_grad, out, before_it_is_saved, after_all_is_saved)}[how]


@pytest.mark.parametrize("how", ["over_a_result", "over_an_operand", "through_a_view", "under_no_grad", "out"])
def test_a_write_over_what_is_saved_inside_is_no_region(how):
    """Eager's backward takes what is there then for what was saved: from the first call to the last."""
    w, v = parameters(W, V)
    inner = written(how, w, v)

    def f(x):
        return region(inner, x)

    compiled = preheat.compile(f, options={"cache": False})
    for step in range(5):
        x = torch.randn(4, 8)
        torch.testing.assert_close(observed(compiled, x, [w, v]), observed(f, x, [w, v]))
    details = [row.detail for row in compiled.__preheat__.breaks if row.reason == "impure_region"]
    assert details and "writes to what a derivative has saved" in str(details), details


def in_two_states(x, w):
    result, view = region(lambda x: (h := (x @ w).softmax(-1), h[:]), x)
    view.detach().add_(0.5)
    return result * 1


def with_a_quiet_view(x, w):
    result = region(lambda x: (x @ w).softmax(-1), x)
    with torch.no_grad():
        view = result[:2]
    result.detach().add_(0.5)
    return result * 1, view


@pytest.mark.parametrize("program", [in_two_states, with_a_quiet_view])
def test_where_gradients_do_not_follow_from_the_ops_a_checkpoint_is_none_of_them(program):
    """Such a part runs as plain autograd, which would save what is inside, and refuse a change of it."""
    (w,) = parameters(W)

    def f(x):
        return program(x, w)

    def use(results):
        first = results[0] if isinstance(results, tuple) else results
        first.square().sum().backward()

    compiled = assert_same(f, [w], use=use, captures=2, settings={"options": {"cache": False}})
    assert {row.reason for row in compiled.__preheat__.breaks} == {"impure_region", "checkpoint"}


@pytest.mark.parametrize("name", ["_generator", "_top_hooks"])
def test_without_the_doors_to_torch_s_checkpoint_it_is_a_host_step(name, monkeypatch):
    w, v = parameters(W, V)
    monkeypatch.setattr(checkpoints, name, None)

    def f(x):
        return region(lambda x: (x @ w).exp() @ v, x)

    compiled = assert_same(f, [w, v], settings={"options": {"cache": False}})
    assert {row.reason for row in compiled.__preheat__.breaks} == {"checkpoint"}


@pytest.mark.parametrize("how", ["before_it_is_saved", "after_all_is_saved"])
def test_a_write_to_what_is_not_saved_or_not_computed_again_is_part_of_a_region(how):
    w, v = parameters(W, V)
    inner = written(how, w, v)
    assert_same(lambda x: region(inner, x), [w, v])


# ---------------------------------------------------------------------------- random numbers
def drawing(kind, w, v):
    def dropout(x):
        h = F.dropout(x @ w, 0.4)
        return F.dropout(torch.tanh(h), 0.3) @ v

    def several(x):
        a = torch.rand_like(x) + torch.randn(4, 8)
        b = torch.empty(4, 8).uniform_(0.5, 1.0) * torch.bernoulli(torch.full((4, 8), 0.5))
        return ((x @ w) * a).exp() * (torch.empty(4, 8).normal_() + b) * torch.rand(())

    def numbers(x):
        return (x @ w * torch.rand(())).exp() * torch.randn(())

    def unused(x):
        F.dropout(x, 0.5)
        return F.dropout((x @ w).tanh(), 0.5), torch.rand(3)

    def attention(x):
        q = (x @ w).view(1, 2, 2, 8)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).view(4, 8) @ v

    return {f.__name__: f for f in (dropout, several, numbers, unused, attention)}[kind]


@pytest.mark.parametrize("kind", ["dropout", "several", "numbers", "unused", "attention"])
def test_the_same_numbers_are_drawn_again(kind):
    w, v = parameters(W, V)
    inner = drawing(kind, w, v)

    def f(x):
        x = F.dropout(x, 0.2)
        for _ in range(2):
            x = region(inner, x)
            x = x[0] if isinstance(x, tuple) else x
        return x * torch.rand_like(x)

    def use(y):
        with torch.no_grad():
            torch.rand(3)  # the backward leaves the generator where it is
        y.square().sum().backward()

    assert_same(f, [w, v], use=use)

    def double(y):
        first = torch.autograd.grad(y.sin().sum(), [w], create_graph=True)
        sum(g.square().sum() for g in first).backward()

    assert_same(f, [w, v], use=double)


@pytest.mark.parametrize("kind", ["dropout", "several", "numbers", "attention"])
def test_generated_numbers_are_made_again(kind):
    w, v = parameters(W, V)
    inner = drawing(kind, w, v)
    compiled = preheat.compile(
        lambda x: region(inner, region(inner, x)), fullgraph=True,
        options={"cache": False, "random": "generated"})
    plain = preheat.compile(
        lambda x: inner(inner(x)), fullgraph=True, options={"cache": False, "random": "generated"})
    for step in range(5):
        x = torch.randn(4, 8)
        expected, found = observed(plain, x, [w, v]), observed(compiled, x, [w, v])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_other_numbers_each_time_are_no_region():
    w, v = parameters(W, V)
    inner = drawing("dropout", w, v)

    def f(x):
        return region(inner, x, preserve_rng_state=False)

    compiled = preheat.compile(f, options={"cache": False})
    for step in range(5):
        x = torch.randn(4, 8)
        torch.testing.assert_close(observed(compiled, x, [w, v]), observed(f, x, [w, v]))
    assert {row.reason for row in compiled.__preheat__.breaks} == {"checkpoint", "impure_region"}
    assert_same(lambda x: region(lambda x: (x @ w).exp(), x, preserve_rng_state=False), [w])


def test_dropout_with_sizes_that_change():
    w, v = parameters(W, V)
    inner = drawing("dropout", w, v)
    assert_same(
        lambda x: region(inner, region(inner, x)), [w, v],
        rows=iter((4, 6, 3, 9, 6, 12, 4, 4, 9)), steps=9, captures=2)


def test_a_double_backward_after_a_change_of_what_a_region_gave_is_refused():
    w, v = parameters(W, V)

    def inner(x):
        h = x @ w
        return h, h[:], (h @ h.t()) / 3

    def f(x):
        _, view, result = region(inner, x)
        print(end="")
        view.mul_(0.5)
        return result * 1

    compiled = preheat.compile(f, options={"cache": False})
    for step in range(5):
        y = compiled(torch.ones(4, 8))
        if not step:  # eager's own
            (first,) = torch.autograd.grad(y.sum(), [w], create_graph=True)
            torch.autograd.grad(first.square().sum(), [w])
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (first,) = torch.autograd.grad(y.sum(), [w], create_graph=True)
            torch.autograd.grad(first.square().sum(), [w])
