"""Nodes end inside generators and context managers: what is called there is called every time."""

import contextlib
import functools
import io

import pytest
import torch

from tests.capture.chains import Chain
from tests.same import same


def numbers(n):
    for i in range(n):
        print("before", i)
        yield i
        print("after", i)
    print("done")
    return 7


def loop(x):
    for i in numbers(3):
        x = x * 2 + i
        print("body", i)
    return x


def loop_in_loop(x):
    for k, i in enumerate(numbers(2)):
        for j in numbers(2):
            x = x + i * j + k
            if x.sum() > 1e9:
                break
    return x


def by_next(x):
    made = numbers(2)
    x = x + next(made)
    print("between")
    return x + made.__next__() + next(made, 5)


def doubled(x):
    factor = yield x
    print("factor", factor)
    return x * factor


def delegating(x):
    first = yield from doubled(x)
    print("first", first.sum().item())
    return (yield from doubled(first))


def by_send(x):
    made = delegating(x)
    y = next(made)
    y = made.send(y + 1)
    try:
        made.send(3.0)
    except StopIteration as stop:
        return stop.value


@contextlib.contextmanager
def timed(name, x):
    print("enter", name)
    y = x * 2
    try:
        yield y
    finally:
        print("leave", name, y.sum().item())


def managed(x):
    with timed("a", x) as y:
        z = y + 1
        print("inside")
    with timed("b", z) as y, timed("c", y):
        y = y + x
    return y


@timed("decorated", torch.ones(1))
def decorated(x):
    return x + 1


def closed():
    try:
        for i in range(3):
            print("give", i)
            yield i
    finally:
        print("closed")


def left_early(x):
    for i in closed():
        x = x + i
        if x.sum() > 5:
            break
    return x


def closed_by_name(x):
    made = closed()
    x = x + next(made) + next(made)
    made.close()
    return x


def waiting(x):
    made, other = numbers(2), closed()
    x = x + next(made) + next(other)
    for i in made:
        x = x * next(other) + i
    return x


def in_turn(x):
    made = {}

    def each():
        for i in range(2):
            try:
                next(made["self"])
            except ValueError as error:
                said.append(str(error))
            print("in turn", i)
            yield i

    said = []
    made["self"] = each()
    for i in made["self"]:
        x = x + i
    return x, said


def batches(x):
    yield from (x[i] for i in range(2))


def consumed_by_c(x):
    return sum(numbers(2), x), list(batches(x))


CUT = {
    loop: 1, loop_in_loop: 1, by_next: 1, by_send: 1, managed: 1, decorated: 1,
}
# Inside of C, of a generator that dies, or that raises again what its handler has shown to others.
LEFT = (waiting, left_early, consumed_by_c, in_turn, closed_by_name)


def outcome(call, x):
    printed = io.StringIO()
    with torch.no_grad(), contextlib.redirect_stdout(printed):
        result = call(x)
    return result, printed.getvalue()


@functools.singledispatch
def equal(a, b):
    return a == b


@equal.register
def _(a: torch.Tensor, b):
    return torch.equal(a, b)


@equal.register(tuple)
@equal.register(list)
def _(a, b):
    return len(a) == len(b) and all(map(equal, a, b))


@pytest.mark.parametrize("is_closing", [True, False])
@pytest.mark.parametrize("program", [*CUT, *LEFT])
def test_prints_in_turn(program, is_closing):
    chain = Chain(program, is_closing)
    for k in range(6):
        x = torch.ones(2, 2) * (1 + k // 3)
        expected, found = outcome(program, x), outcome(chain, x)
        assert expected[1] == found[1]
        assert equal(expected[0], found[0])
        if program in CUT and k == 2:
            assert (chain.captures, chain.breaks) == (CUT[program], [])


@pytest.mark.parametrize("program", [*CUT, *LEFT])
def test_compiled(program):
    seen = same(program, torch.ones(2, 2), calls=5)
    if program in CUT:
        assert seen.counters["captures"] <= CUT[program] + 1
