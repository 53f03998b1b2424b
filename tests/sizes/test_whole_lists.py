"""A list or tuple from outside that an op or a function of C is given whole: its sizes and numbers are symbols."""

import functools
import itertools

import pytest
import torch

import preheat
from tests.sizes.check import differs

SIZES = (5, 8, 3, 7, 9, 12, 2)
KINDS = pytest.mark.parametrize("kind", (list, tuple))


def captures_of(program, arguments):
    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    for n in SIZES:
        assert not differs(compiled(*arguments(n)), program(*arguments(n)), is_exact=True), n
    return preheat.counters()["captures"] - before


TENSORS = {
    "cat": lambda xs: torch.cat(xs) * 2,
    "cat by name": lambda xs: torch.cat(tensors=xs, dim=0) * 2,
    "stack": lambda xs: torch.stack(xs),
    "vstack": lambda xs: torch.vstack(xs),
    "hstack": lambda xs: torch.hstack(xs),
    "foreach": lambda xs: torch._foreach_mul(xs, 2.0),
    "foreach of two": lambda xs: torch._foreach_add(xs, xs),
    "block_diag": lambda xs: torch.block_diag(*xs),
    "pad_sequence": lambda xs: torch.nn.utils.rnn.pad_sequence(xs),
    "split again": lambda xs: torch.cat(xs).split([x.shape[0] for x in xs]),
}


@KINDS
@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name, kind):
    assert captures_of(TENSORS[name], lambda n: (kind([torch.arange(3.0 * n).view(n, 3), torch.ones(n, 3)]),)) <= 3


@KINDS
def test_tensors_that_require_grad(kind):
    def program(xs):
        loss = (torch.cat(xs) ** 2).sum()
        loss.backward()
        return [x.grad for x in xs]

    compiled = preheat.compile(program, options={"cache": False})
    for n in SIZES:
        made = [kind([torch.arange(1.0, n + 1).requires_grad_(), torch.ones(n + 1, requires_grad=True)]) for _ in "ab"]
        assert not differs(compiled(made[0]), program(made[1]), is_exact=True), n


NUMBERS = {
    "view": (lambda x, s: x.view(s) * 2, lambda n: (torch.arange(2.0 * n), [2, n])),
    "reshape": (lambda x, s: x.reshape(s) * 2, lambda n: (torch.arange(2.0 * n), [2, n])),
    "expand": (lambda x, s: x.expand(s) * 2, lambda n: (torch.ones(1, 1), [2, n])),
    "zeros": (lambda x, s: x.sum() + torch.zeros(s), lambda n: (torch.ones(3), [2, n])),
    "split": (lambda x, s: [t * 2 for t in x.split(s)], lambda n: (torch.arange(n + 2.0), [2, n])),
    "pad": (lambda x, p: torch.nn.functional.pad(x, p), lambda n: (torch.ones(4), [1, n])),
    "roll": (lambda x, s: x.roll(s, (0, 1)), lambda n: (torch.arange(120.0).view(4, 30), [1, n])),
    "tensor": (lambda x, s: x * torch.tensor(s).sum(), lambda n: (torch.ones(4), [100, n])),
    "min": (lambda x, s: x * min(s), lambda n: (torch.ones(4), [100, n])),
    "max": (lambda x, s: x * max(s), lambda n: (torch.ones(4), [1, n])),
    "sum": (lambda x, s: x * sum(s), lambda n: (torch.ones(4), [100, n])),
    "reduce": (lambda x, s: x * functools.reduce(lambda a, b: a * b, s), lambda n: (torch.ones(4), [100, n])),
    "list": (lambda x, s: [x * v for v in list(s)], lambda n: (torch.ones(4), [100, n])),
}


@KINDS
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name, kind):
    program, arguments = NUMBERS[name]
    assert captures_of(program, lambda n: (arguments(n)[0], kind(arguments(n)[1]))) <= 3


OF_TUPLES = {
    "interpolate": (
        lambda x, hw: torch.nn.functional.interpolate(x, size=hw),
        lambda n: (torch.arange(16.0).view(1, 1, 4, 4), (2, n))),
    "loop": (lambda x, s: [x * v for v in s], lambda n: (torch.ones(2), (100, n))),
    "zip": (lambda x, s: [a * b for a, b in zip(x, s)], lambda n: (torch.ones(2), (100, n))),
    "map": (lambda x, s: [x * v for v in map(float, s)], lambda n: (torch.ones(2), (100, n))),
    "chain": (lambda x, s: [x * v for v in itertools.chain(s, s)], lambda n: (torch.ones(2), (100, n))),
}


@pytest.mark.parametrize("name", OF_TUPLES)
def test_tuples_that_are_gone_through(name):
    assert captures_of(*OF_TUPLES[name]) <= 3


def written(x, rates):
    """A list may change while it is gone through: what comes then is what it holds then."""
    made = []
    for place, rate in enumerate(rates):
        made.append(x * rate)
        if place + 1 < len(rates):
            rates[place + 1] = rate + 1
    return made, rates


def extended(x, rates):
    doubled = map(lambda rate: rate * 2, rates)
    rates.append(7)
    return [x * v for v in doubled], rates


@pytest.mark.parametrize("program", (written, extended))
def test_lists_that_change_meanwhile(program):
    compiled = preheat.compile(program, options={"cache": False})
    for n in SIZES:
        given, expected = [[1, n, 3.5] for _ in "ab"]
        assert not differs(compiled(torch.ones(2), given), program(torch.ones(2), expected), is_exact=True)
        assert given == expected


def test_a_tuple_of_a_tuple_is_itself():
    compiled = preheat.compile(lambda x, s: (x * s[0], tuple(s) is s), options={"cache": False})
    assert all(compiled(torch.ones(2), (n, 2))[1] for n in SIZES)
