"""Training at sizes that change: captured once with symbols, its backward recorded once, eager's gradients."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat
from preheat.base.events import subscribe
from preheat.ir.plan import LibraryCall
from preheat.run.sized import CALLS_BEFORE_PLAN
from preheat.run.sized_training import SizedTraining


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def events(kinds=("capture", "compile", "fallback")):
    seen = []
    return seen, subscribe(lambda event: seen.append((event.kind, event.data.get("why", ""))), set(kinds))


def grads_alike(model, eager, step, number, tolerance=2e-5):
    """One step of both: loss and gradients, at the scale of each tensor."""
    rows = []
    for one in (model, eager):
        torch.manual_seed(number)
        for p in one.parameters():
            p.grad = None
        loss = step(one)
        loss.backward()
        rows.append((loss.detach(), [p.grad for p in one.parameters()]))
    torch.testing.assert_close(rows[0][0], rows[1][0])
    largest = max(grad.abs().max() for grad in rows[1][1] if grad is not None)
    for found, expected in zip(rows[0][1], rows[1][1], strict=True):
        assert (found is None) is (expected is None)
        if found is not None:
            scale = torch.maximum(expected.abs().max(), 1e-3 * largest)  # a bias before a norm has none but rounding
            assert found.stride() == expected.stride()
            assert (found - expected).abs().max() <= tolerance * scale, number


def captures_of(model, steps, **settings):
    eager = copy.deepcopy(model)
    compiled = preheat.compile(model, options={"cache": False}, **settings)
    before, seen = preheat.counters(), []
    for number, step in enumerate(steps):
        grads_alike(compiled, eager, step, number)
        seen.append(preheat.counters()["captures"] - before["captures"])
    return seen, preheat.counters()["fallbacks"] - before["fallbacks"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gpt2_over_twenty_lengths(dropout):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=64, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0)
    chance = random.Random(3)
    lengths = chance.sample(range(4, 64), 20)

    def step(length):
        ids = torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(length))
        return lambda model: model(input_ids=ids, labels=ids).loss

    lengths += lengths[:2] * (CALLS_BEFORE_PLAN + 2)
    captures, fallbacks = captures_of(
        transformers.GPT2LMHeadModel(config).train(), list(map(step, lengths)))
    assert captures == [1, *[2] * (len(lengths) - 1)] and fallbacks == 0


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.group, self.second = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Linear(4, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.interpolate(self.up(F.silu(self.group(self.second(x)))), scale_factor=2, mode="bilinear")
        return self.out(F.avg_pool2d(x, 2).mean((2, 3)))


def test_images():
    torch.manual_seed(0)
    chance = random.Random(5)
    sizes = [(chance.randint(2, 4), chance.randint(12, 30), chance.randint(12, 30)) for _ in range(16)]

    def step(batch, height, width):
        chance = torch.Generator().manual_seed(batch * height * width)
        x, y = torch.randn(batch, 3, height, width, generator=chance), torch.arange(batch) % 5
        return lambda model: F.cross_entropy(model(x), y)

    captures, fallbacks = captures_of(Images().train(), [step(*size) for size in sizes])
    assert captures[-1] <= 4 and fallbacks == 0, captures


def test_an_encoder_layer_with_dropout_of_a_permuted_tensor():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def step(batch, length):
        x = torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(length))
        return lambda model: (model(x) * x.sin()).sum()

    sizes = [(4, 8), (7, 8), (5, 9), (6, 5), (3, 7), (1, 6), (5, 9)]
    captures, fallbacks = captures_of(model, [step(*size) for size in sizes])
    assert captures[-1] <= 4 and fallbacks == 0, captures


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(*sizes):
    return [lambda model, x=torch.randn(n, 6): (model(x) ** 2).sum() / x.shape[0] for n in sizes]


def test_dynamic_true_and_false():
    assert captures_of(perceptron(), batches(4, 5, 9, 2), dynamic=True) == ([1, 1, 1, 1], 0)
    assert captures_of(perceptron(), batches(4, 5, 9, 2), dynamic=False)[0] == [1, 2, 3, 4]


def holder(compiled):
    (found,) = [c.cell_contents for c in compiled.__closure__ if hasattr(c.cell_contents, "variants")]
    return found


def test_one_plan_serves_all_sizes_and_the_first_backward_is_recorded_once():
    w = torch.randn(6, 6, requires_grad=True)

    def program(x):
        return (x @ w).softmax(-1).square().sum()

    compiled, (seen, unsubscribe) = preheat.compile(program, options={"cache": False}), events()
    try:
        for n in (3, 4, 5, 5, *range(6, 12)):
            x = torch.randn(n, 6)
            (found,) = torch.autograd.grad(compiled(x), w)
            torch.testing.assert_close(found, torch.autograd.grad(program(x), w)[0])
    finally:
        unsubscribe()
    assert [kind for kind, _ in seen] == ["capture", "capture", "compile"]
    body = holder(compiled).variants[-1].executable
    assert isinstance(body, SizedTraining)
    (taught,) = body.lesson().training.taught
    assert len(taught.joints) == 1 and len(taught.templates) == 1
    assert [key for key, one in body._instances.items() if one.has_plan] == [(n,) for n in range(5, 12)]


def test_another_kind_of_backward_is_learned_for_all_sizes():
    w = torch.randn(6, 6, requires_grad=True)

    def program(x):
        h = (x @ w).tanh()
        return h, h.exp().sum(-1)

    compiled = preheat.compile(program, dynamic=True, options={"cache": False})
    before = preheat.counters()
    for n in (3, 4, 5, 7, 3, 8):
        x = torch.randn(n, 6)
        for chosen in ((0,), (1,), (0, 1)):
            for turn in (False, True):
                torch.manual_seed(n)
                tangents = [torch.randn(6, n).t() if turn else torch.randn(n, 6), torch.randn(n)]
                rows = []
                for call in (compiled, program):
                    results = call(x)
                    rows.append(torch.autograd.grad(
                        [results[k] for k in chosen], w, [tangents[k] for k in chosen])[0])
                torch.testing.assert_close(*rows)
    after = preheat.counters()
    assert (after["captures"] - before["captures"], after["fallbacks"] - before["fallbacks"]) == (1, 0)
    lesson = holder(compiled).variants[0].executable.lesson()
    assert len(lesson.training.taught) <= 2


def test_an_op_without_a_size_rule_pins_and_is_named():
    w = torch.randn(6, 6, requires_grad=True)

    def program(x):
        return torch.ormqr(x[:, :1], x[0, :1], x @ w).sum()

    compiled, (seen, unsubscribe) = preheat.compile(program, options={"cache": False}), events()
    try:
        for n in (3, 4, 5, 6):
            x = torch.randn(n, 6)
            (found,) = torch.autograd.grad(compiled(x), w)
            torch.testing.assert_close(found, torch.autograd.grad(program(x), w)[0])
    finally:
        unsubscribe()
    with_reason = preheat.explain(preheat.compile(program, dynamic=True))(torch.randn(3, 6))
    assert with_reason.pinned or any("no size rule" in why for _, why in seen)


def test_what_is_changed_before_the_backward_is_refused_as_in_eager():
    w = torch.randn(6, 6, requires_grad=True)

    def program(x):
        return ((x @ w) * x).sum()

    compiled = preheat.compile(program, dynamic=True, options={"cache": False})
    for n in (3, 4, 5, *[6] * 8):
        for call in (program, compiled):
            x = torch.randn(n, 6)
            result = call(x)
            x.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward()
        x = torch.randn(n, 6)
        (found,) = torch.autograd.grad(compiled(x), w)
        torch.testing.assert_close(found, torch.autograd.grad(program(x), w)[0])


def test_a_double_backward_and_a_retained_graph():
    w = torch.randn(6, 6, requires_grad=True)

    def program(x):
        return (x @ w).tanh().pow(3).sum()

    compiled = preheat.compile(program, dynamic=True, options={"cache": False})
    for n in (3, 4, 5, *[6] * 6):
        rows = []
        x = torch.randn(n, 6)
        for call in (program, compiled):
            result = call(x)
            (first,) = torch.autograd.grad(result, w, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), w)
            result = call(x)
            (again,) = torch.autograd.grad(result, w, retain_graph=True)
            torch.testing.assert_close(again, torch.autograd.grad(result, w)[0])
            rows.append((first.detach(), second, again))
        torch.testing.assert_close(*rows)


def test_views_writes_and_running_statistics():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            x = self.norm(self.fc(x))
            with torch.no_grad():
                self.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)
            x = x * 1
            x[1:].mul_(0.5)
            x[:, -1] = 0.25
            return x.chunk(2, -1)[0], x[:-1]

    torch.manual_seed(0)
    model = Net().train()
    eager = copy.deepcopy(model)
    compiled = preheat.compile(model, options={"cache": False})
    before = preheat.counters()["captures"]
    for n in (4, 5, 6, 9, 3, *[7] * 6):
        x = torch.randn(n, 6)
        rows = []
        for one in (compiled, eager):
            first, second = one(x)
            for p in one.parameters():
                p.grad = None
            (first.sin().sum() + second.square().sum()).backward()
            rows.append([p.grad for p in one.parameters()] + [b.clone() for b in one.buffers()])
        for found, expected in zip(*rows, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before <= 3


def plans_of_all_sizes(program, *weights):
    """The plans of the only template of a program whose gradients are eager's at some sizes."""
    compiled = preheat.compile(program, options={"cache": False})
    for n in (4, 5, 7, 9, 7):
        x = torch.randn(3, n, 6)
        found = torch.autograd.grad(compiled(x, *weights).sum(), weights)
        for a, b in zip(found, torch.autograd.grad(program(x, *weights).sum(), weights), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    (taught,) = holder(compiled).variants[-1].artifact.training.taught
    (template,) = taught.templates
    return [template.plan, *(stage.plan for half in template.backwards for stage in half.stages)]


def test_gradients_of_parts_are_kernels():
    """Of heads that are cut from one product: the step of a GPT-2 took 1.07 times as long as with sizes known."""
    def program(x, w):
        a, b, c = (torch.tanh(x) @ w).split(6, -1)
        return (a * b).square() * c[:, 2:, :].sum(1, True) * b[:, -1, :][:, None]

    plans = plans_of_all_sizes(program, torch.randn(6, 18, requires_grad=True))
    libraries = {call.op for plan in plans for call in plan.calls if isinstance(call, LibraryCall)}
    assert not {"aten.slice_backward.default", "aten.select_backward.default"} & libraries


def test_a_result_takes_the_place_of_what_dies_in_another_shape():
    """[B, T, C] that of [B * T, C], whatever B and T are."""
    def program(x, w, b, v):
        return F.linear(F.gelu(F.linear(x, w, b), approximate="tanh"), v)

    weights = [torch.randn(s, requires_grad=True) for s in ((32, 6), (32,), (6, 32))]
    plans = plans_of_all_sizes(program, *weights)
    assert all(any(p.role == "inout" for kernel in plan.kernels for p in kernel.params) for plan in plans)


def test_lessons_come_from_the_cache_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    w = torch.randn(6, 6, requires_grad=True)

    def program(x, w):
        return (x @ w).tanh().sum(-1)

    counts = []
    for sizes in (3, 4, 5, 6, 7), (3, 4, 9, 10, 11):
        compiled, before = preheat.compile(program), preheat.counters()
        for n in sizes:
            x = torch.randn(n, 6)
            (found,) = torch.autograd.grad(compiled(x, w).sum(), w)
            torch.testing.assert_close(found, torch.autograd.grad(program(x, w).sum(), w)[0])
        after = preheat.counters()
        counts.append(tuple(after[name] - before[name] for name in ("captures", "compiles")))
    assert counts == [(2, 1), (0, 0)]
    (taught,) = holder(compiled).variants[-1].artifact.training.taught
    assert len(taught.templates) == 1


def test_after_seal_no_plans_are_made():
    w = torch.randn(6, 6, requires_grad=True)
    compiled = preheat.compile(lambda x: (x @ w).tanh().sum(), options={"cache": False})
    for n in (3, 4, 5):
        torch.autograd.grad(compiled(torch.randn(n, 6)), w)
    preheat.seal(compiled)
    seen, unsubscribe = events(("capture", "compile"))
    try:
        for n in (3, 4, 5, 6, 7) * 6:
            x = torch.randn(n, 6)
            (found,) = torch.autograd.grad(compiled(x), w)
            torch.testing.assert_close(found, torch.autograd.grad((x @ w).tanh().sum(), w)[0])
    finally:
        unsubscribe()
    assert seen == []


def test_a_weight_that_is_frozen_and_a_size_that_is_one():
    model = perceptron()
    eager = copy.deepcopy(model)
    compiled = preheat.compile(model, options={"cache": False})
    for number, n in enumerate((4, 5, 1, 7, 1, 6, 2, 1)):
        for one in (model, eager):
            one[0].requires_grad_(number % 3 != 2)
        grads_alike(compiled, eager, batches(n)[0], number)


def test_a_write_to_a_tensor_without_symbols_keeps_its_history():
    w = torch.randn(6, requires_grad=True)

    def program(x):
        total = w * 2
        total.add_((x * w).sum(0))
        total.mul_(x.shape[0])
        total[1:].copy_((x * w).mean(0)[1:])
        return total * w

    compiled, before = preheat.compile(program, options={"cache": False}), preheat.counters()
    for n in (3, 4, 5, *[6] * 6, 7):
        x = torch.randn(n, 6)
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), w)[0], torch.autograd.grad(expected.sum(), w)[0])
    assert preheat.counters()["captures"] - before["captures"] == 2


def test_an_operator_of_the_users_runs_once_a_call():
    runs = []
    library = torch.library.Library("preheat_sizes", "DEF")
    library.define("twice(Tensor x, SymInt n) -> Tensor")

    def twice(x, n):
        runs.append(n)
        return x * 2

    library.impl("twice", twice, "CompositeImplicitAutograd")
    w = torch.randn(6, requires_grad=True)

    def program(x):
        return torch.ops.preheat_sizes.twice(x * w, x.shape[0]).sum()

    compiled = preheat.compile(program, options={"cache": False})
    for count, n in enumerate((3, 4, 5, 6), 1):
        x = torch.randn(n, 6)
        (found,) = torch.autograd.grad(compiled(x), w)
        torch.testing.assert_close(found, 2 * x.sum(0))
        assert len(runs) <= count


def test_gradients_that_are_views_of_one_tangent_leave_it_as_it_is():
    def program(x, w):
        return x + w.t() + w.t()

    compiled = preheat.compile(program, options={"cache": False})
    for n in (3, 4, 5, 6, *[7] * (CALLS_BEFORE_PLAN + 3)):
        x, w, tangent = torch.randn(n, 6), torch.randn(6, n, requires_grad=True), torch.randn(n, 6)
        given = tangent.clone()
        (found,) = torch.autograd.grad(compiled(x, w), w, tangent)
        (expected,) = torch.autograd.grad(program(x, w), w, given)
        assert torch.equal(found, expected) and torch.equal(tangent, given), n


def test_two_uses_of_a_value_that_is_saved_and_passed_on():
    def program(x, w):
        h = (x * w).exp()
        return h, h.t() @ (x * w), (h * h).sum()

    compiled = preheat.compile(program, options={"cache": False})
    for n in (3, 4, 5, *[6] * (CALLS_BEFORE_PLAN + 3)):
        x, w = torch.randn(n, 6), torch.randn(6, requires_grad=True)
        rows = []
        for one in (compiled, program):
            h, product, total = one(x, w)
            rows.append(torch.autograd.grad(product.sum() + total + h.mean(), (w, h), allow_unused=True))
        for found, expected in zip(*rows, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_a_budget_of_memory_holds_at_all_sizes(budget):
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    eager = copy.deepcopy(model)
    compiled = preheat.compile(model, options={"cache": False, "memory_budget": budget})
    for number, n in enumerate((3, 4, 5, *[6] * (CALLS_BEFORE_PLAN + 3))):
        x = torch.randn(n, 8)
        grads_alike(compiled, eager, lambda one: one(x).square().sum(), number)


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_a_body_writes_is_written_at_every_size(dynamic):
    """Buffers, arguments and tensors from outside, once the backward is known for all sizes, too."""
    def make():
        torch.manual_seed(0)
        norm, total = torch.nn.BatchNorm1d(3), torch.zeros(3)

        def fn(x, rest):
            total.add_(x.sum(0))
            rest[: x.shape[0]] = x
            return norm(x).mul(2).sum(1).square().mean()

        return norm, total, fn

    sides = make(), make()
    compiled = preheat.compile(sides[1][2], dynamic=dynamic, options={"cache": False})
    for number, size in enumerate((8, 8, 8, 3, 8, 8, 5, 6, 8, 3, 3, 3, 3, 3)):
        seen = []
        for (norm, total, fn), call in zip(sides, (sides[0][2], compiled)):
            generator = torch.Generator().manual_seed(number)
            rest = torch.zeros(9, 3)
            call(torch.randn(size, 3, generator=generator), rest).backward()
            seen.append((total.clone(), rest, *(buffer.clone() for buffer in norm.buffers())))
        for mine, eager in zip(*seen):
            torch.testing.assert_close(mine, eager)


def test_a_step_that_reads_its_gradients_at_every_size():
    w = torch.ones(3, requires_grad=True)

    def step(x):
        if w.grad is not None:
            w.grad.zero_()
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    compiled = preheat.compile(step, options={"cache": False})
    for size in (2, 3, 4, 5, 3, 3, 3, 7):
        assert compiled(torch.ones(size, 3)).item() == 3 * size
        assert w.grad.tolist() == [size] * 3


def test_hooks_within_the_function_are_one_break_at_any_size():
    seen = []

    def program(x, w):
        h = (x * w).relu()
        h.register_hook(lambda grad: seen.append(tuple(grad.shape)) or grad * 2)
        return (h @ w).sum()

    compiled = preheat.compile(program, options={"cache": False})
    before, w = preheat.counters(), torch.randn(4, requires_grad=True)
    for length in (3, 4, 5, 6, 7, 8, 1, 12):
        x, grads = torch.randn(length, 4), []
        for function in (compiled, program):
            grads += torch.autograd.grad(function(x, w), w)
        torch.testing.assert_close(*grads)
        assert seen[-2:] == [(length, 4)] * 2
    after = preheat.counters()
    assert after["captures"] - before["captures"] <= 4
    assert after["breaks"] - before["breaks"] <= 3
