"""Lists of tensors whose length changes from call to call: few captures serve every length."""

import copy
import random

import pytest
import torch

import preheat

LENGTHS = (1, 4, 2, 9, 3, 20, 5, 1, 2, 7, 13, 4)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def stacked(xs):
    return torch.stack(xs).sum(0) * 2


def concatenated(xs):
    return torch.cat(xs, -1).relu()


def added(xs):
    y = xs[0] * 0
    for x in xs:
        y = y + x * 2
    return y


def summed(xs):
    return sum(x.sin() for x in xs)


def of_means(xs):
    return torch.stack([x.mean() for x in xs]).sum() / len(xs)


def each(xs):
    return [x * 2 + 1 for x in xs]


def numbered(xs):
    y = 0
    for i, x in enumerate(xs):
        y = y + x * i
    return y


def joined(xs):
    made = []
    for x in xs:
        for k in range(2):
            made.append(x + k)
    return torch.cat(made), len(made)


def in_place(xs):
    for x in xs:
        x.add_(1)
    return torch.stack(xs).sum()


def first_again(xs):
    y = xs[0]
    for x in xs:
        y = x if x is y else y + x
    return y


def by_generator(xs):
    def parts():
        for x in xs:
            yield x * 3
    return [y + 1 for y in parts()]


def counted(xs):
    n, y = 0, xs[0]
    for x in xs:
        n += 1
        y = y * 0.5 + x * n
    return y, n


def of_two(xs):
    y = 0
    for a, b in zip(xs, xs[::-1]):
        y = y + a * b
    return y


def running(xs):
    made = [xs[0]]
    for x in xs:
        made.append(made[-1] + x)
    return made


def early(xs):
    for k, x in enumerate(xs):
        if x.sum() > 4:
            return k
    return torch.stack(xs).mean(0)


def ends(xs):
    first, *others = xs
    return first * 2, others


def same(found, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for pair in zip(found, expected):
            same(*pair)
    else:
        assert type(found) is type(expected) and found == expected


def run(function, lengths, backend="preheat", seed=0, **settings):
    """Compares with eager, results and arguments; what the calls cost, by counter."""
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    compiled = preheat.compile(
        function, backend=backend, options={"cache": False}, **settings)
    before = preheat.counters()
    with torch.no_grad():
        for length in lengths:
            xs = [torch.randn(4, generator=generator) for _ in range(length)]
            if length > 2 and chance.random() < 0.3:
                xs[chance.randrange(length)] = xs[0]
            own = copy.deepcopy(xs)
            expected, found = function(own), compiled(xs)
            same(found, expected)
            same(xs, own)
    after = preheat.counters()
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("function, most", [
    (stacked, 4), (concatenated, 4), (added, 4), (summed, 4), (of_means, 6), (each, 4),
    (numbered, 6), (joined, 6), (in_place, 6), (first_again, 6), (by_generator, 5),
])
def test_few_captures_serve_every_length(function, most):
    cost = run(function, LENGTHS)
    assert cost["captures"] <= most and not cost["interpreted"] and not cost["fallbacks"], cost


@pytest.mark.parametrize("function", [counted, of_two, running, early, ends])
@pytest.mark.parametrize("backend", ["preheat", "eager"])
def test_what_hangs_on_the_length_is_as_in_eager(function, backend):
    run(function, LENGTHS, backend, seed=3)


def test_two_lengths_are_a_variant_each_without_a_break():
    cost = run(stacked, [3, 5, 3, 5, 5])
    assert cost["captures"] == 2 and not cost["breaks"], cost


def test_tensors_of_other_sizes_in_it():
    compiled = preheat.compile(each, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for length in LENGTHS:
            xs = [torch.randn(k + 2) for k in range(length)]
            same(compiled(xs), each(xs))
    assert preheat.counters()["captures"] - before <= 6


def test_a_whole_graph_has_a_variant_for_each_length():
    cost = run(stacked, [1, 2, 3, 4, 5], fullgraph=True)
    assert cost["captures"] == 5 and not cost["breaks"], cost


def test_an_iterator_from_outside_is_advanced_by_host_calls():
    compiled = preheat.compile(added_up, options={"cache": False})
    before = preheat.counters()
    with torch.no_grad():
        for length in LENGTHS:
            xs = [torch.randn(4) for _ in range(length)]
            given = iter(xs)
            same(compiled(given), added_up(iter(xs)))
            assert next(given, None) is None
    after = preheat.counters()
    assert after["captures"] - before["captures"] <= 3
    assert after["interpreted"] == before["interpreted"]


def added_up(given):
    y = torch.zeros(4)
    for x in given:
        y = y + x
    return y


def test_a_list_that_holds_none_at_last_is_not_at_its_end():
    def until(xs):
        y = 0
        for x in xs:
            y = y + 1 if x is None else y + x
        return y

    compiled = preheat.compile(until, options={"cache": False})
    with torch.no_grad():
        for length in LENGTHS:
            same(compiled([torch.ones(2)] * length), until([torch.ones(2)] * length))
        mixed = [torch.ones(2), None, torch.ones(2)]
        same(compiled(mixed), until(mixed))


def test_sum_over_a_generator_adds_as_c_does():
    def sums(x):
        return (
            sum(0.1 for _ in range(10)), sum((float(k) for k in range(4)), 1),
            sum(k for k in range(5)), sum(([k] for k in range(3)), []), sum((x for _ in range(3)), x),
            sum((True for _ in range(3))))

    def refused(x):
        try:
            sum((c for c in "ab"), "")
        except TypeError as error:
            return str(error), x
        return "", x

    for function in (sums, refused):
        compiled = preheat.compile(function, options={"cache": False})
        for _ in range(3):
            same(compiled(torch.ones(2)), function(torch.ones(2)))
