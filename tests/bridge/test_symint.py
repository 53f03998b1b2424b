"""Symbolic numbers: they reach the op unseen, and whoever looks at one pins it."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from preheat.bridge import symint
from preheat.ir.scalar import EVALUATE, Scalar, evaluate, symbol, symbols

N, F = symbol("s0", "int"), symbol("s1", "float")


class Seen(TorchDispatchMode):
    pass


def _dispatch(mode, function, types, args=(), kwargs=None):
    kwargs = kwargs or {}
    everything = (*args, *kwargs.values())
    mode.numbers += [symint.scalar_of(a) for a in everything if symint.is_box(a)]
    args = [symint.plain(a) if symint.is_box(a) else a for a in args]
    kwargs = {k: symint.plain(v) if symint.is_box(v) else v for k, v in kwargs.items()}
    return function(*args, **kwargs)


Seen.__torch_dispatch__ = _dispatch


class Owner:
    """Notes which expressions are pinned."""

    def __init__(self):
        self.pinned, self.tests = [], []

    def pin_scalar(self, scalar):
        self.pinned.append(scalar)

    def test(self, scalar, answer):
        self.tests.append((scalar, answer))
        self.pinned.append(scalar)

    def normal(self, scalar):
        return scalar


def through(function, n=3, f=0.5):
    """(result, numbers that reached ops, expressions that were pinned)."""
    owner = Owner()
    mode = Seen()
    mode.numbers = []
    with torch.no_grad(), mode:
        result = function(symint.box(N, n, owner), symint.box(F, f, owner))
    return result, mode.numbers, owner.pinned


def test_torch_has_what_this_needs():
    assert symint.is_available()


X = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("function, expected", [
    (lambda n, f: X * f, F), (lambda n, f: X + n, N), (lambda n, f: n - X, N),
    (lambda n, f: f / X, F), (lambda n, f: X.add(X, alpha=f), F), (lambda n, f: X > f, F),
    (lambda n, f: X.clone().fill_(n), N), (lambda n, f: torch.full((2,), f), F),
    (lambda n, f: X ** f, F), (lambda n, f: X.clamp(min=f), F), (lambda n, f: X.lerp(X + 1, f), F),
    (lambda n, f: torch.where(X > 1, X, f), F),
])
def test_an_op_gets_the_expression_and_the_value(function, expected):
    result, numbers, pinned = through(function)
    assert numbers == [expected] and not pinned
    assert torch.equal(result, function(3, 0.5))


@pytest.mark.parametrize("function, expected", [
    (lambda n, f: X.sum(n - 3), N), (lambda n, f: torch.tensor(f), F),
    (lambda n, f: X.narrow(0, 0, n - 1), N),
    (lambda n, f: torch.nn.functional.layer_norm(X, (2,), eps=f), F),
])
def test_what_torch_must_know_is_pinned(function, expected):
    result, _, pinned = through(function)
    assert pinned and set(symbols_of(pinned)) == {expected.args[0]}
    assert torch.equal(result, function(3, 0.5))


def symbols_of(scalars):
    return [name for scalar in scalars for name in symbols(scalar)]


VALUES = [0, 1, -1, 7, -3, 2**70, 0.0, -0.0, 0.5, -2.25, math.inf, -math.inf, math.nan, True]


@pytest.mark.parametrize("op", sorted(
    {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "min", "max", "fpow"}))
def test_expressions_have_the_type_and_value_of_python(op):
    values = [v for v in VALUES if op != "pow" or abs(v) != 2**70]
    for left in values:
        for right in values:
            for is_constant in (False, True):
                check_expression(op, values, left, right, is_constant)


def check_expression(op, values, left, right, is_constant):
    """Made at (left, right), the expression gives Python's result, bits and type, at all values."""
    function = EVALUATE[op]
    a = symbol("a", type(left).__name__)
    b = right if is_constant else symbol("b", type(right).__name__)
    try:
        now = function(left, right)
    except (ArithmeticError, ValueError):
        return
    made = symint.combined(op, [a, b], [left, right], now)
    if made is None:
        return
    for other in values:
        for second in [right] if is_constant else values:
            if type(other) is not type(left) or type(second) is not type(right):
                continue
            try:
                expected = function(other, second)
            except (ArithmeticError, ValueError):
                continue
            found = evaluate(made, {"a": other, "b": second})
            assert repr(found) == repr(expected) and type(found) is type(expected)
            if isinstance(made, Scalar):
                assert made.type == type(expected).__name__


def test_a_comparison_is_a_test():
    assert symint.combined("lt", [N, 4], [3, 4], True) is None
