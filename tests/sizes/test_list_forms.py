"""Every way to go through a list of 1 to 20 tensors: few captures serve all lengths, bit by bit as in eager.

Elements are small whole numbers, so that kernels which round less often than eager round as little.
"""

import copy
import random

import pytest
import torch

import preheat

LENGTHS = random.Random(7).sample(range(1, 21), 20)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


# ---------------------------------------------------------------------------- by an index
def by_while(xs):
    i, y = 0, 0
    while i < len(xs):
        y = y + xs[i] * 2
        i += 1
    return y


def downward(xs):
    i, y = len(xs) - 1, 0
    while i >= 0:
        y = y - xs[i]
        i -= 1
    return y


def until_break(xs):
    i, made = 0, []
    while True:
        if i >= len(xs):
            break
        made.append(xs[i] + 1)
        i += 1
    return made, i


def until_error(xs):
    i, y = 0, xs[0] * 0
    while True:
        try:
            y = y + xs[i]
        except IndexError:
            return y, i
        i += 1


def by_range(xs):
    y = 0
    for i in range(len(xs)):
        y = y + xs[i] * 2
    return y


def neighbours(xs):
    y = xs[0] * 0
    for i in range(1, len(xs)):
        y = y + xs[i] * xs[i - 1]
    return y


def listed_by_range(xs):
    return [xs[i] * 3 for i in range(len(xs))]


def last(xs):
    return xs[-1] * 2 + xs[0]


# ---------------------------------------------------------------------------- a part of it
def all_but_last(xs):
    y = xs[-1]
    for x in xs[:-1]:
        y = y + x * 2
    return y


def all_but_first(xs):
    y = xs[0]
    for x in xs[1:]:
        y = y - x
    return y


def every_second(xs):
    return [x + 1 for x in xs[::2]]


def stacked_part(xs):
    return torch.stack(xs[-3:]).sum(0)


def mirrored(xs):
    y = 0
    for x in xs[::-1]:
        y = x - y
    return y


def in_reverse(xs):
    y = 0
    for x in reversed(xs):
        y = x - y
    return y


def pairs(xs):
    y = xs[0]
    for i, a in enumerate(xs):
        for b in xs[i + 1:]:
            y = y + a * b
    return y


# ---------------------------------------------------------------------------- with another
def neighbours_by_zip(xs):
    return [a * b for a, b in zip(xs, xs[1:])]


def of_two(xs, ys):
    y = 0
    for a, b in zip(xs, ys):
        y = y + a * b
    return y


def of_two_strictly(xs, ys):
    return [a + b for a, b in zip(xs, ys, strict=True)]


def numbered(xs):
    made = []
    for i, x in enumerate(xs):
        made.append(x + xs[i])
    return torch.stack(made)


def numbered_pairs(xs, ys):
    y = 0
    for _, (a, b) in enumerate(zip(xs, ys)):
        y = y + a * b
    return y


# ---------------------------------------------------------------------------- another made of it
def copied(xs):
    y = 0
    for x in list(xs):
        y = y + x
    return y


def as_tuple(xs):
    return torch.stack(tuple(xs) + (xs[0],))


def extended(xs):
    ys = [xs[0]]
    ys.extend(xs)
    ys += xs
    return torch.cat(ys)


def displayed(xs):
    return torch.stack([*xs, xs[0] * 2])


def emptied(xs):
    y, ys = 0, list(xs)
    while ys:
        y = y - ys.pop()
    return y


def handed_on(xs):
    return copied([*xs])


def ends(xs):
    first, *others = xs
    *firsts, last = xs
    return first - last, others, torch.stack(firsts + [first])


def by_generators(xs):
    ys = tuple(x * 2 for x in xs)
    return torch.stack(ys), list(y + 1 for y in ys), any(y is None for y in ys)


def in_place(xs):
    for i in range(len(xs)):
        xs[i].add_(1)
    return xs[-1] * 2


FORMS = {function: most for function, most in (
    (by_while, 6), (downward, 6), (until_break, 7), (until_error, 6), (by_range, 6), (neighbours, 6),
    (listed_by_range, 6), (last, 4), (all_but_last, 6), (all_but_first, 6), (every_second, 6), (stacked_part, 5),
    (mirrored, 5), (in_reverse, 5), (pairs, 9), (neighbours_by_zip, 6), (of_two, 5), (of_two_strictly, 5),
    (numbered, 7), (numbered_pairs, 6), (copied, 5), (as_tuple, 5), (extended, 5), (displayed, 5), (emptied, 6),
    (handed_on, 5), (ends, 7), (by_generators, 15), (in_place, 6),
)}


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        assert found.requires_grad == expected.requires_grad and torch.equal(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            same(*pair)
    else:
        assert found == expected


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)


def whole(generator, *sizes, has_grad=False):
    return torch.randint(-3, 4, sizes, generator=generator).float().requires_grad_(has_grad)


def called(function, xs):
    """The result, or the type and the text of what is raised."""
    try:
        return function(*xs)
    except Exception as error:
        return type(error).__name__, str(error)


def lists_of(function, length, make):
    """As many lists as `function` takes."""
    return tuple([make(k) for k in range(length)] for _ in range(function.__code__.co_argcount))


def run(function, given, has_grad=False, backend="preheat", eager=None, **settings):
    """Compares with eager (of a function with state: of another one like it) results, arguments and gradients of
    calls with the arguments `given`, bit by bit; what the calls cost, by counter."""
    eager = eager or function
    compiled = preheat.compile(function, backend=backend, options={"cache": False}, **settings)
    before = preheat.counters()
    with torch.set_grad_enabled(has_grad):
        for lists in given:
            own = copy.deepcopy(lists)
            expected, found = called(eager, own), called(compiled, lists)
            same(found, expected)
            same(lists, own)
            wanted = [leaf for leaf in leaves(expected) if leaf.requires_grad]
            if wanted:
                sum(leaf.sum() for leaf in wanted).backward()
                sum(leaf.sum() for leaf in leaves(found) if leaf.requires_grad).backward()
                for leaf, ours in zip(leaves(own), leaves(lists)):
                    assert (leaf.grad is None) == (ours.grad is None)
                    if leaf.grad is not None:
                        same(ours.grad, leaf.grad)
    after = preheat.counters()
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("function", FORMS)
def test_few_captures_serve_every_length(function):
    generator = torch.Generator().manual_seed(0)
    given = [lists_of(function, length, lambda k: whole(generator, 4)) for length in LENGTHS * 2]
    cost = run(function, given)
    assert cost["captures"] <= FORMS[function] and not cost["interpreted"] and not cost["fallbacks"], cost


@pytest.mark.parametrize("function", [f for f in FORMS if f is not in_place])
def test_few_captures_serve_every_length_in_training(function):
    generator = torch.Generator().manual_seed(0)
    given = [
        lists_of(function, length, lambda k: whole(generator, 4, has_grad=True)) for length in LENGTHS * 2]
    cost = run(function, given, has_grad=True)
    assert cost["captures"] <= FORMS[function] + 2 and not cost["interpreted"] and not cost["fallbacks"], cost


def mixed(generator, chance, length, shape, has_grad):
    """A list whose elements differ in dtype and strides, some of them twice, some of which require grad."""
    xs = []
    for _ in range(length):
        kind = chance.randrange(5)
        x = whole(generator, *shape)
        if kind == 0:
            x = x.double()
        elif kind == 1:
            x = whole(generator, *shape[::-1]).t()
        elif kind == 2 and has_grad:
            x.requires_grad_()
        elif kind == 3 and xs:
            x = chance.choice(xs)
        elif kind == 4:
            x = whole(generator, shape[0], 2 * shape[1])[:, ::2]
        xs.append(x)
    return xs


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("function", FORMS)
@pytest.mark.parametrize("has_grad", [False, True])
def test_elements_of_all_kinds(function, has_grad):
    generator, chance = torch.Generator().manual_seed(1), random.Random(1)
    given = []
    for length in [3, 5, 2, 7, 1, 4, 0, 6, 9, 0, 2, 5, 8, 1]:
        shape = chance.choice([(3, 3), (2, 2), (3, 3)])
        given.append(tuple(
            mixed(generator, chance, length, shape, has_grad and function is not in_place)
            for _ in range(function.__code__.co_argcount)))
    run(function, given, has_grad)
