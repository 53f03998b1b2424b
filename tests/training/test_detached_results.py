"""Results in memory of others, without their history: autograd knows them as it does in eager.

A detached result is no view of what it was detached from: a write that autograd sees gives only it a
history. Memory and the counter of changes in place are shared all the same.
"""

import contextlib

import pytest
import torch

import preheat
from preheat.base.events import bus
from preheat.generate.build import host_target
from preheat.run.executable import executable
from preheat.schedule.schedule import schedule
from preheat.capture.capture import capture
from preheat.targets import image_of
from preheat.transform.pipeline import lower

W = torch.full((3, 3), 2.0)


def plain():
    return torch.arange(9.0).reshape(3, 3)


def weight():
    return plain().requires_grad_()


def product():
    return weight() * 2


def picture(tensor):
    return (
        tensor.requires_grad, tensor.grad_fn is not None, tensor._is_view(), tensor._version,
        tensor.stride(), tensor.storage_offset(), tensor.detach().clone())


def written(results, given, write):
    """What everything is like after `write(results)`, or the error that it raises."""
    tensors = [*results, given]
    shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in tensors for b in tensors]
    try:
        write(results)
        return [*map(picture, tensors), tuple(shared)]
    except RuntimeError as error:
        return [str(error)[:50], tuple(shared)]


def quiet(view):
    with torch.no_grad():
        return view()


def changed_quietly(x):
    view = x.reshape(3, 3)
    with torch.no_grad():
        view.add_(1)
    return view, x.detach()


def of_fresh(x):
    y = x * 2 if not x.requires_grad else x.detach() * 2
    return y, y.detach(), y.detach()[1]


PROGRAMS = {
    "whole": lambda x: (x.detach(), x.detach()),
    "part of it": lambda x: (x.detach()[0], x.detach()[1:]),
    "of a part": lambda x: (x[1].detach(), x.t().detach()),
    "views of one": lambda x: (lambda d: (d[1], d[0:2], x.detach()))(x.detach()),
    "itself and views": lambda x: (lambda d: (d[1], d, d.t()))(x.detach()),
    "twice": lambda x: (lambda d: (d[1:].detach()[0], d))(x.detach()),
    "of a result": of_fresh,
    "beside a view": lambda x: (x.detach() * 2, (x if not x.requires_grad else x.detach())[:]),
    "with gradient": lambda x: ((x * W).sum(), x.detach(), x.detach()[0]),
    "of what has one": lambda x: (lambda h: (h.sum(), h.detach(), h.detach()[0]))(x * W),
    "changed without grad": changed_quietly,
    "made without grad": lambda x: (x.detach() * 2, quiet(lambda: x[0] if x.requires_grad else x * 1)),
}
WRITES = {
    "none": lambda results: None,
    "quiet": lambda results: [result.detach().add_(1) for result in results],
    "first": lambda results: results[0].mul_(torch.ones(results[0].shape, requires_grad=True)),
    "second": lambda results: results[1].mul_(torch.ones(results[1].shape, requires_grad=True)),
    "last": lambda results: results[-1].mul_(torch.ones(results[-1].shape, requires_grad=True)),
}


def same(expected, found):
    assert len(expected) == len(found)
    for one, other in zip(expected, found):
        if isinstance(one, tuple) and isinstance(one[-1], torch.Tensor):
            assert one[:-1] == other[:-1]
            torch.testing.assert_close(other[-1], one[-1])
        else:
            assert one == other


@contextlib.contextmanager
def nothing_falls_back():
    told = []
    stop = bus.subscribe(lambda event: told.append(event.data), {"fallback"})
    try:
        yield
    finally:
        stop()
    assert not told


@pytest.mark.parametrize("make", [plain, weight, product])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_autograd_knows_of_them(make, program):
    compiled = preheat.compile(program, options={"cache": False})
    with nothing_falls_back():
        for write in WRITES.values():
            for _ in range(3):
                given, other = make(), make()
                same(written(program(given), given, write), written(compiled(other), other, write))


@pytest.mark.parametrize("make", [plain, weight])
@pytest.mark.parametrize("name", ["part of it", "views of one", "itself and views", "of a result", "beside a view"])
def test_a_plan_that_python_runs_gives_the_same(make, name):
    program, x = PROGRAMS[name], make()
    body = capture(program, (x,), {}, limits=None).captured.trace.nodes[0].body
    plan = schedule(lower(body), host_target())
    run = executable(plan, image_of(plan.kernels, host_target()), is_grad_off=x.requires_grad)
    for write in WRITES.values():
        given, other = make(), make()
        expected, found = program(given), run([other])
        same(written(expected, given, write), written(found[:len(expected)], other, write))


@pytest.mark.parametrize("needs_grad", [False, True])
def test_at_sizes_that_change_views_are_views_from_the_second_one_on(needs_grad):
    def views(x):
        d = x.detach()
        return d[1:], d.t(), (d * 2)[1:], x.t().detach()

    compiled = preheat.compile(views, options={"cache": False})
    for size in (3, 5, 7, 7, 4):
        given, other = (torch.ones(size, 4, requires_grad=needs_grad) for _ in range(2))
        same(
            written(views(given), given, WRITES["second"]), written(compiled(other), other, WRITES["second"]))
