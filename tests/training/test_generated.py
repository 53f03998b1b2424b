"""Option "random": "generated": other numbers than eager's, but reproducible, of the same distribution,
and the same ones wherever they are computed: in the first call, in compiled code, in the backward."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import preheat
from preheat.capture.capture import capture
from preheat.compiler import compile_trace
from preheat.transform.pipeline import lower

F = nn.functional
OPTIONS = {"random": "generated", "cache": False}


def compiled(program):
    return preheat.compile(program, options=OPTIONS)


def counted(program):
    """(the compiled program, how many captures and fallbacks it has had)"""
    before = preheat.counters()
    return compiled(program), lambda: [
        preheat.counters()[name] - before[name] for name in ("captures", "fallbacks")]


DRAWS = {
    "dropout": (lambda x: F.dropout(x, 0.3, True), lambda x: (x != 0).double(), 0.7, 0.21),
    "native_dropout": (
        lambda x: torch.native_dropout(x, 0.3, True)[0], lambda x: (x != 0).double(), 0.7, 0.21),
    "feature_dropout": (
        lambda x: F.dropout2d(x.reshape(20, 50, 5, 10), 0.25, True)[..., 0, 0],
        lambda x: (x != 0).double(), 0.75, 0.1875),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.4), None, 0.4, 0.24),
    "bernoulli_p": (lambda x: torch.bernoulli(x, 0.4), None, 0.4, 0.24),
    "bernoulli_half": (lambda x: torch.empty_like(x).bernoulli_(), None, 0.5, 0.25),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(x * 0.4), None, 0.4, 0.24),
    "rand": (lambda x: torch.rand(x.shape), None, 0.5, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x), None, 0.5, 1 / 12),
    "uniform_": (lambda x: x.clone().uniform_(-1, 3), None, 1.0, 16 / 12),
    "randn": (lambda x: torch.randn(x.shape), None, 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x), None, 0.0, 1.0),
    "normal_": (lambda x: x.clone().normal_(2.0, 3.0), None, 2.0, 9.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", DRAWS)
def test_each_op_draws_from_its_distribution(name, dtype):
    program, seen, mean, variance = DRAWS[name]
    call, count = counted(program)
    torch.manual_seed(11)
    with torch.no_grad():
        runs = [call(torch.ones(500, 100, dtype=dtype)) for _ in range(3)]
    assert count() == [1, 0]
    eager = program(torch.ones(500, 100, dtype=dtype))
    for found in runs:
        assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
        values = found.double() if seen is None else seen(found)
        error = 5 * (variance / values.numel()) ** 0.5
        assert abs(values.mean() - mean) < error
        assert values.var().item() == pytest.approx(variance, rel=0.15 if values.numel() < 9999 else 0.03)
    assert not torch.equal(runs[0], runs[1]) and not torch.equal(runs[1], runs[2])
    if name.startswith("rand") and name[4:6] != "n" and "n" not in name[4:]:
        assert min(r.min() for r in runs) >= 0 and max(r.max() for r in runs) < 1


def test_uniform_numbers_fill_their_range_evenly():
    """Chi-square over 256 cells, and over pairs of neighbours in 16 x 16."""
    call = compiled(lambda x: torch.rand(x.shape))
    torch.manual_seed(3)
    with torch.no_grad():
        call(torch.empty(1000, 256))
        found = call(torch.empty(1000, 256)).double().reshape(-1)
    cells = (found * 256).long()
    pairs = (found * 16).long().reshape(-1, 2)
    for counts in (cells.bincount(minlength=256), (pairs[:, 0] * 16 + pairs[:, 1]).bincount(minlength=256)):
        expected = counts.sum() / 256
        chi = ((counts - expected) ** 2 / expected).sum()
        assert 160 < chi < 370  # 255 degrees of freedom: 255, deviation 22.6


def test_normal_numbers_have_normal_tails():
    call = compiled(lambda x: torch.randn(x.shape))
    torch.manual_seed(3)
    with torch.no_grad():
        call(torch.empty(1000, 256))
        found = call(torch.empty(1000, 256)).double()
    for bound, share in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        assert (found.abs() > bound).double().mean().item() == pytest.approx(share, rel=0.1)
    assert abs((found**3).mean()) < 0.03 and (found**4).mean().item() == pytest.approx(3, abs=0.06)


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 64), nn.Linear(64, width), nn.LayerNorm(width)

    def forward(self, x):
        h = F.dropout(F.gelu(self.up(x)), 0.3, self.training)
        return self.norm(x + F.dropout(self.down(h), 0.2, self.training))


def step(model, call, x, seed):
    torch.manual_seed(seed)
    model.zero_grad()
    y = call(x)
    (y**3).sum().backward()
    return y.detach(), [p.grad.clone() for p in model.parameters()], torch.get_rng_state()


def near(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_step_is_reproducible_from_its_first_call_on():
    """The first call is captured, the second learned, later ones compiled: the same numbers in all."""
    torch.manual_seed(0)
    model, x = Block(), torch.randn(8, 32)
    call, count = counted(model)
    first = step(model, call, x, 7)
    for _ in range(4):
        again = step(model, call, x, 7)
        near(again[:2], first[:2])
        assert torch.equal(again[2], first[2])
    assert not torch.equal(step(model, call, x, 8)[0], first[0])
    assert count() == [1, 0]


@pytest.mark.parametrize("program", [
    lambda x: F.dropout(x, 0.5, True) * 3, lambda x: torch.native_dropout(x, 0.5, True)[0] * 3])
@pytest.mark.parametrize("sizes", [(64, 48), (7, 33), (5,), (1,)])
def test_the_backward_has_the_mask_of_the_forward(program, sizes):
    call = compiled(program)
    x = torch.ones(sizes, requires_grad=True)
    for _ in range(5):
        x.grad = None
        y = call(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())


def test_the_backward_keeps_a_seed_and_no_mask():
    """What the forward gives beside its result."""
    x, w = torch.randn(256, 64), torch.randn(64, 64, requires_grad=True)

    def program(x, w):
        return F.dropout(x @ w, 0.1, True)

    outcome = capture(program, (x, w), {}, limits=OPTIONS)
    from preheat.differentiate import Lesson

    lesson = Lesson.of(outcome.captured.trace.nodes[0].body)
    lesson.run([x, w]).backward(0, [torch.ones(256, 64)], [], False)
    plan, _, training = lesson.compiled("program")
    kept = [plan.outputs[exit.given.index].type for exit in training.values[1:]]
    assert [str(type) for type in kept] == ["i64[]"]


def test_a_half_is_dropped_with_the_scale_of_a_whole():
    """1 / 0.9 is no number of 16 bits."""
    call = compiled(lambda x: torch.native_dropout(x, 0.1, True)[0])
    x = torch.ones(4096, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(4):
        x.grad = None
        y = call(x)
        y.backward(torch.full_like(y, 0.9))
        kept = x.grad[y.detach() != 0]
        assert torch.equal(kept, torch.full_like(kept, 0.9 / 0.9))


def test_numbers_depend_on_the_seed_alone_however_the_graphs_are_cut():
    def whole(x):
        a = F.dropout(x, 0.5, True)
        return a, torch.rand(9), F.dropout(x, 0.5, True)

    def cut(x):
        a = F.dropout(x, 0.5, True)
        str(a.sum().item()).encode()
        b = torch.rand(9)
        print(end="")
        return a, b, F.dropout(x, 0.5, True)

    def drawn(call):
        torch.manual_seed(4)
        return [*call(x), torch.get_rng_state()]

    x = torch.ones(40, 3)
    with torch.no_grad():
        calls = [compiled(whole), compiled(cut)]
        first = drawn(calls[0])
        for call in calls * 3:
            for a, b in zip(drawn(call), first, strict=True):
                assert torch.equal(a, b)


def test_generators_move_and_stay_as_the_program_asks():
    call = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(1000)
    with torch.no_grad():
        call(x)
        torch.manual_seed(5)
        with torch.random.fork_rng():
            inside = call(x)
        state = torch.get_rng_state()
        assert torch.equal(call(x), inside)
        assert not torch.equal(torch.get_rng_state(), state)
        torch.set_rng_state(state)
        assert torch.equal(call(x), inside)


def test_what_is_not_covered_is_eagers():
    """float64, integers, and a generator of the program's own."""
    def program(x):
        return torch.rand(5, dtype=torch.float64), torch.randint(0, 9, (5,)), torch.randperm(7), x + 1

    call = compiled(program)
    with torch.no_grad():
        for _ in range(3):
            torch.manual_seed(2)
            found = call(torch.zeros(2))
            torch.manual_seed(2)
            for a, b in zip(found, program(torch.zeros(2))):
                assert torch.equal(a, b)

    own = torch.Generator()
    call = compiled(lambda x: x + torch.rand(4, generator=own))
    with torch.no_grad():
        for _ in range(3):
            own.manual_seed(1)
            found = call(torch.zeros(4))
            assert torch.equal(found, torch.rand(4, generator=own.manual_seed(1)))


@pytest.mark.parametrize("program", [
    lambda x: torch.empty_like(x).bernoulli_(1.5), lambda x: x.clone().uniform_(2, 1),
    lambda x: x.clone().normal_(0, -1)])
def test_what_eager_refuses_is_refused(program):
    call = compiled(program)
    for _ in range(3):
        with pytest.raises(RuntimeError), torch.no_grad():
            call(torch.ones(3))


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_checkpoint_sees_the_same_numbers(is_reentrant, is_inside):
    """Around a compiled region and inside of a compiled program: the gradient by the weight is what
    the result shows of the mask."""
    weight = torch.ones(48, requires_grad=True)

    def region(x):
        return F.dropout(torch.sin(x * weight).asin(), 0.5, True)

    if is_inside:
        call = compiled(lambda x: checkpoint(region, x, use_reentrant=is_reentrant) * 2)
    else:
        made = compiled(region)
        call = lambda x: checkpoint(made, x, use_reentrant=is_reentrant) * 2  # noqa: E731
    for seed in range(6):
        torch.manual_seed(seed)
        weight.grad = None
        x = (torch.rand(33, 48) + 0.1).requires_grad_()
        y = call(x)
        y.sum().backward()
        near(weight.grad, y.detach().sum(0))


def test_threads_draw_from_one_generator():
    call = compiled(lambda x: F.dropout(x, 0.5, True))
    x, found = torch.ones(5000), []
    with torch.no_grad():
        call(x), call(x)

    def work():
        with torch.no_grad():
            for _ in range(20):
                found.append(call(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple((made != 0).nonzero().reshape(-1).tolist()) for made in found}) == 80
    assert all(abs((made != 0).double().mean() - 0.5) < 0.04 for made in found)


def test_shared_work_has_the_same_numbers_as_one_thread():
    call = compiled(lambda x: F.dropout(x, 0.5, True))
    x, count = torch.ones(1 << 20), torch.get_num_threads()
    with torch.no_grad():
        call(x)
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)
            found.append(call(x))
    torch.set_num_threads(count)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_sizes_that_change():
    """One capture for all sizes but the first; the numbers are those of a static one."""
    call, count = counted(lambda x: F.dropout(x + torch.rand_like(x), 0.5, True).relu())
    for sizes in ((6, 8), (5, 8), (9, 8), (3, 8), (31, 8), (64, 8)):
        torch.manual_seed(9)
        with torch.no_grad():
            found = call(torch.ones(sizes))
        torch.manual_seed(9)
        with torch.no_grad():
            static = preheat.compile(
                lambda x: F.dropout(x + torch.rand_like(x), 0.5, True).relu(), dynamic=False,
                options=OPTIONS)(torch.ones(sizes))
        assert torch.equal(found, static)
    assert count()[0] == 2 + 6


def test_sizes_that_change_in_training():
    torch.manual_seed(0)
    model = Block()
    call = compiled(model)
    for rows in (4, 6, 9, 5, 7, 5, 7, 5, 7):
        x = torch.randn(rows, 32)
        found = step(model, call, x, rows)
        near(found[:2], step(model, compiled(lambda x: model(x)), x, rows)[:2])


def test_the_graph_has_a_seed_and_kernels_have_the_numbers():
    with torch.no_grad():
        outcome = capture(lambda x: F.dropout(x, 0.5, True), (torch.ones(64, 64),), {}, limits=OPTIONS)
    trace = outcome.captured.trace
    core = lower(trace.nodes[0].body)
    names = [op.name for op in core.ops]
    assert names.count("library") == names.count("uniform") == 1
    plan = compile_trace(trace, "dropout").plan
    assert len(plan.kernels) == 1 and len(plan.calls) == 2


def test_the_option_is_checked():
    with pytest.raises(preheat.UserError, match="'random' is one of eager, generated"):
        preheat.compile(lambda x: x, options={"random": "generate"})
