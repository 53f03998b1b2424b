"""Dims: the normal form keeps the value, equal expressions are one, and what is decided holds."""

import random

import pytest

from preheat.ir.dims import decide, divided, normal, size_symbol, solved, substitute
from preheat.ir.scalar import Scalar, apply, evaluate

N1, N2 = size_symbol(1), size_symbol(2)


def expression(chance, depth=3):
    """A random integer expression over two sizes, and small numbers."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice([N1, N2, N1, N2, chance.randint(-4, 9)])
    op = chance.choice(["add", "sub", "mul", "add", "floordiv", "mod", "min", "max", "neg"])
    if op == "neg":
        return apply("neg", expression(chance, depth - 1))
    if op == "floordiv" and chance.random() < 0.3:
        return apply(op, expression(chance, depth - 1), apply("max", expression(chance, depth - 1), 1))
    if op in ("floordiv", "mod"):
        return apply(op, expression(chance, depth - 1), chance.randint(1, 6))
    return apply(op, expression(chance, depth - 1), expression(chance, depth - 1))


@pytest.mark.parametrize("seed", range(40))
def test_normal_form_has_the_value_of_the_expression(seed):
    chance = random.Random(seed)
    for _ in range(40):
        value = expression(chance)
        form = normal(value)
        assert normal(form) == form
        for _ in range(8):
            sizes = {"n1": chance.randint(1, 40), "n2": chance.randint(1, 40)}
            assert evaluate(form, sizes) == evaluate(value, sizes), (value, form, sizes)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_decided_holds_for_all_sizes(seed):
    chance = random.Random(seed)
    for _ in range(40):
        first, second = normal(expression(chance)), normal(expression(chance))
        op = chance.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        known = decide(op, first, second)
        for _ in range(12):
            sizes = {"n1": chance.randint(1, 12), "n2": chance.randint(1, 12)}
            if known is not None:
                answer = evaluate(apply(op, first, second), sizes)
                assert answer is known, (op, first, second, sizes)


def test_equal_polynomials_are_one():
    assert normal(4 * N1 + N2 * 2 * N1 - N1) == normal(N1 * N2 + N1 * 3 + N2 * N1)
    assert normal((N1 * N2 * 64) // 64) == normal(N2 * N1)
    assert normal((N1 - 2) // 2 + 1) == normal(N1 // 2)
    assert normal(N1 // 2 // 3) == normal(N1 // 6)
    assert normal((N1 * 6 + 5) % 3) == 2


def test_quotients_and_solutions():
    assert divided(normal(N1 * N2 * 6), normal(N1 * 2)) == normal(N2 * 3)
    assert divided(normal(N1 * 6 + 1), 3) is None
    assert solved(N1 + 1, N2) == ("n2", normal(N1 + 1))
    assert solved(N1 * N2, N1) is None
    assert substitute(N1 * N2, {"n2": 4}) == normal(N1 * 4)
    assert isinstance(substitute(N1 * N2, {"n1": normal(N2 + 1)}), Scalar)


def test_maxima_within_maxima_are_looked_at_once_each():
    """Bounds of each ask for those of what it is made of: without a memory this does not end."""
    value = size_symbol(1)
    for k in range(1, 40):
        value = apply("max", apply("add", value, k), apply("mul", size_symbol(2), k))
    assert decide("ge", value, 1) is True and decide("gt", value, 1 << 20) is None
