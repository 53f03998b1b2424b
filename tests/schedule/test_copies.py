"""A plan that is made of few of a graph's equal parts is the one that the whole graph would get."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from schedule.test_batches import GPU, OPTIMIZERS, beside_gpu, check

import preheat
from preheat.capture.capture import capture
from preheat.generate.build import host_target
from preheat.ir.pack import digest
from preheat.ir.plan import KernelCall
from preheat.schedule.copies import with_copies
from preheat.schedule.schedule import schedule
from preheat.transform.alike import alike
from preheat.transform.pipeline import lower

COUNT = 20
TARGETS = {"cpu": (host_target(), 1), "gpu": (GPU, 4)}


def parameters(count=COUNT):
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.nn.Parameter(torch.randn(8 * (k % 9 + 1), *(1 + k % 2,) * (k % 3 == 0), generator=generator))
        for k in range(count)]
    for k, parameter in enumerate(made):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return made


def body_of(call, *args):
    return capture(call, args, {}, limits=None).captured.trace.nodes[0].body


def plans(body, where, host_ranks=(0,)):
    """The plan of the whole, and the one that is made of few parts."""
    target, kept = TARGETS[where]
    body = beside_gpu(body, host_ranks) if target.is_gpu else body
    found = alike(body, kept)
    assert found is not None
    return schedule(lower(body), target), with_copies(schedule(lower(found.few), target), found)


def calls(plan):
    kernels = [digest(replace(kernel, name="")) for kernel in plan.kernels]
    return Counter(
        (kernels[call.kernel], call.buffers, call.extent, call.bytes) for call in plan.calls
        if isinstance(call, KernelCall))


@pytest.mark.parametrize("where", TARGETS)
@pytest.mark.parametrize("way", ["foreach", "plain", "fused"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, way, where):
    kind, arguments = OPTIMIZERS[name]
    if way == "fused" and name not in ("SGD", "Adam", "AdamW", "Adagrad"):
        pytest.skip("torch has none")
    chosen = {"foreach": way == "foreach"} if way != "fused" else {"fused": True}
    optimizer = kind(parameters(), **arguments, **chosen)
    optimizer.step()
    body = body_of(optimizer.step)
    whole, made = plans(body, where)
    assert calls(made) == calls(whole)
    check(lower(body), made)


@pytest.mark.parametrize("where", TARGETS)
@pytest.mark.parametrize("foreach", (True, False))
def test_a_clip_is_a_number_that_all_parts_read(where, foreach):
    params = parameters()
    optimizer = torch.optim.AdamW(params)
    optimizer.step()

    def step():
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=foreach)
        optimizer.step()

    body = body_of(step)
    whole, made = plans(body, where, host_ranks=())
    assert len(made.kernels) == len(whole.kernels) <= 4 and len(made.calls) == len(whole.calls)


# ----------------------------------------------------------------------- what is no part, or not equal
def _each(xs, rows):
    for x, row in zip(xs, rows):
        x.mul_(0.5).add_(row)


def _norm_before(xs, rows):
    total = sum(x.sum() for x in xs)
    for x, row in zip(xs, rows):
        x.mul_(total.clamp(max=2.0)).add_(row)


def _norm_between(xs, rows):
    for x in xs:
        x.add_(1.0)
    total = sum(x.sum() for x in xs) / 1000
    for x, row in zip(xs, rows):
        x.mul_(total).add_(row)


def _first_counts(xs, rows):
    total = xs[0].sum() * xs[-1].mean()
    for x, row in zip(xs, rows):
        x.add_(total * row)


def _norm_each(xs, rows):
    for x, row in zip(xs, rows):
        x.div_(x.norm() + 1).add_(row)


def _neighbours(xs, rows):
    for x, y in zip(xs, xs[1:]):
        y[:8].add_(x[:8])


def _given_out(xs, rows):
    for x, row in zip(xs, rows):
        x.add_(row)
    return xs[3] * 2, xs[4]


def _draws(xs, rows):
    for x, row in zip(xs, rows):
        x.add_(torch.rand_like(x)).add_(row)


def _views(xs, rows):
    for x, row in zip(xs, rows):
        x[2:6].mul_(3.0)
        x.view(-1)[::2].add_(row[::2])


def _one_row(xs, rows):
    for x in xs:
        x.add_(rows[0][:8].sum()).sub_(rows[1].max())


def _counter(xs, rows):
    for x, row in zip(xs, rows):
        step = row[0] + 1
        x.mul_(step.exp().clamp(max=1.5)).add_(row, alpha=2)


def _integers(xs, rows):
    for x, row in zip(xs, rows):
        x[row.long().clamp(0, 7)] = 2.0


PROGRAMS = [
    _each, _norm_before, _norm_between, _first_counts, _norm_each, _neighbours, _given_out, _draws, _views, _one_row,
    _counter, _integers]


def lists(sizes):
    generator = torch.Generator().manual_seed(1)
    return tuple([torch.randn(size, generator=generator) for size in sizes] for _ in range(2))


@pytest.mark.parametrize("sizes", ([8 + 3 * (k % 5) for k in range(24)], [12] * 24, [8 + k for k in range(24)]))
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_over_lists(program, sizes):
    mine, theirs = lists(sizes), lists(sizes)
    compiled = preheat.compile(program, options={"cache": False})
    for k in range(3):
        torch.manual_seed(k)
        found = compiled(*mine)
        torch.manual_seed(k)
        expected = program(*theirs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(mine, theirs)


def test_what_a_copy_raises_is_raised():
    def looked_up(xs, rows, places):
        for x, row, place in zip(xs, rows, places):
            row.index_select(0, place)
            x.add_(row)

    compiled = preheat.compile(looked_up, options={"cache": False})
    xs, rows = lists([12] * 24)
    places = [torch.tensor([k % 12]) for k in range(24)]
    for _ in range(3):
        compiled(xs, rows, places)
    for bad in (2, 23, 0):
        wrong = [torch.tensor([99]) if k == bad else place for k, place in enumerate(places)]
        with pytest.raises((IndexError, RuntimeError)):
            compiled(xs, rows, wrong)


def test_memory_that_parts_share_makes_one_of_them():
    def halves(shared):
        xs = [shared[8 * k:8 * k + 12] for k in range(20)]
        return xs

    compiled = preheat.compile(_each, options={"cache": False})
    one, other = torch.arange(200.0), torch.arange(200.0)
    rows = [torch.ones(12) * k for k in range(20)]
    for _ in range(3):
        compiled(halves(one), rows)
        _each(halves(other), rows)
        torch.testing.assert_close(one, other)


def test_one_part_stands_for_all():
    xs, rows = lists([8 + k for k in range(24)])
    found = alike(body_of(_each, xs, rows), 1)
    assert len(found.few.ops) == 2 and len(found.few.inputs) == 2
    assert [len(copies.others) for copies in found.copies] == [23]
