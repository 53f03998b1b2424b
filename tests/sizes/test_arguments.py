"""Calls with 1 to 20 tensors, `def f(*xs)`: few captures serve every number of them, bit by bit as in eager."""

import functools
import random

import pytest
import torch

import preheat
from .test_list_forms import LENGTHS, mixed, same, whole
from .test_list_forms import run as compare


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def added(*xs):
    y = 0
    for x in xs:
        y = y + x * 2
    return y


def stacked(*xs):
    return torch.stack(xs).sum(0)


def each(*xs):
    return tuple(x + 1 for x in xs), [*xs]


def by_index(*xs):
    i, y = 0, 0
    while i < len(xs):
        y = y - xs[i]
        i += 1
    return y


def first_and_others(first, *others):
    y = first * 3
    for other in reversed(others):
        y = other - y
    return y, len(others)


def with_default(first, second=None, *others, sign=-1):
    y = first if second is None else first * second
    return y + sum(others) * sign if others else y


def passed_on(*xs):
    return first_and_others(*xs)


def passed_on_in_parts(*xs):
    return first_and_others(xs[-1], *xs[:-1])


def passed_on_behind(*xs):
    return added(xs[0] * 2, *xs)


def in_two_ways(*xs, **named):
    return with_default(*xs, **named), named


def with_names(*xs):
    return in_two_ways(*xs, sign=1)


def given_back(*xs):
    return xs


class Method:
    def __init__(self):
        self.gain = torch.full((4,), 2.0)

    def scaled(self, *xs):
        return [x * self.gain for x in xs]

    def __call__(self, first, *xs):
        return self.scaled(first, *xs), first


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 3.0))

    def forward(self, *xs):
        return added(*xs) * self.weight


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Sum(), Sum()

    def forward(self, x, *xs):
        return self.first(*xs, x) - self.second(x, *xs)


def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs) + 1
    return call


FORMS = {
    "added": (lambda: added, 5), "stacked": (lambda: stacked, 4), "each": (lambda: each, 7),
    "by_index": (lambda: by_index, 7), "first_and_others": (lambda: first_and_others, 6),
    "with_default": (lambda: with_default, 8), "passed_on": (lambda: passed_on, 7),
    "passed_on_in_parts": (lambda: passed_on_in_parts, 7), "passed_on_behind": (lambda: passed_on_behind, 5),
    "with_names": (lambda: with_names, 8), "given_back": (lambda: given_back, 3),
    "method": (lambda: Method().scaled, 5), "instance": (Method, 8),
    "module": (Sum, 6), "blocks": (Blocks, 9), "decorated": (lambda: wrapped(added), 5),
}


def run(make, given, *more, **settings):
    """As `test_list_forms.run`, of calls of what `make` gives with these positional arguments."""
    return compare(make(), given, *more, eager=make(), **settings)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("has_grad", [False, True])
def test_few_captures_serve_every_number_of_arguments(name, has_grad):
    make, most = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    given = [
        [whole(generator, 4, has_grad=has_grad) for _ in range(count)] for count in LENGTHS * 2]
    cost = run(make, given, has_grad)
    assert cost["captures"] <= most + 2 * has_grad and not cost["interpreted"] and not cost["fallbacks"], cost


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("method", "instance", "module", "blocks")])
@pytest.mark.parametrize("has_grad", [False, True])
def test_arguments_of_all_kinds(name, has_grad):
    generator, chance = torch.Generator().manual_seed(1), random.Random(1)
    given = [
        mixed(generator, chance, count, chance.choice([(3, 3), (2, 2)]), has_grad)
        for count in [3, 5, 2, 7, 1, 4, 0, 6, 9, 0, 2, 5, 8, 1]]
    run(FORMS[name][0], given, has_grad)


def test_arguments_are_written_to():
    def written(*xs):
        for x in xs:
            x.add_(1)
        xs[0].mul_(2)
        return xs[-1]

    generator = torch.Generator().manual_seed(0)
    given = []
    for count in LENGTHS:
        xs = [whole(generator, 4) for _ in range(count)]
        given.append([*xs, xs[0]] if count % 3 == 0 else xs)
    assert run(lambda: written, given)["interpreted"] == 0


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
def test_arguments_that_are_no_tensors():
    def scaled(*args):
        y = 0
        for arg in args:
            y = y + arg
        return y

    generator = torch.Generator().manual_seed(0)
    given = [[*(whole(generator, 4) for _ in range(count)), count % 3, True] for count in LENGTHS]
    run(lambda: scaled, given)


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
def test_tensors_passed_on_behind_a_number_are_a_variant_each():
    def passed_on(*xs):
        return added(3, *xs)

    generator = torch.Generator().manual_seed(0)
    given = [[whole(generator, 4) for _ in range(count)] for count in LENGTHS]
    assert run(lambda: passed_on, given)["captures"] <= 12


def test_a_whole_graph_has_a_variant_for_each_number():
    generator = torch.Generator().manual_seed(0)
    given = [[whole(generator, 4) for _ in range(count)] for count in range(1, 6)]
    cost = run(lambda: stacked, given, fullgraph=True)
    assert cost["captures"] == 5 and not cost["breaks"], cost


def test_a_fault_in_a_kernel_calls_the_function_with_all_arguments():
    table = torch.arange(12.0).reshape(6, 2)

    def looked_up(index, *xs):
        return table[index] + torch.stack(xs).sum()

    def given(index, count):
        return [torch.tensor(index), *(torch.ones(2) for _ in range(count))]

    compiled = preheat.compile(looked_up, options={"cache": False})
    with torch.no_grad():
        for count in (1, 2, 3, 4, 5):
            same(compiled(*given([1, 5], count)), looked_up(*given([1, 5], count)))
        with pytest.raises(IndexError):
            compiled(*given([1, 6], 4))
