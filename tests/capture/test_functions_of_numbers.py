"""Functions of numbers that change: two captures serve every number, and those that raise do so as in eager."""

import functools
import math
import operator

import pytest
import torch

import preheat
from tests.sizes.check import differs, outcome

X = torch.arange(4.0)
INTS = [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 12]
HARD_INTS = [*INTS[:3], 0, -1, -7, 1 << 31, -(1 << 31), 170, 1 << 40, True]
HARD_FLOATS = [0.5, 2.5, -0.5, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 1.0, -1.0, 710.0, 3]

OF_INTS = {
    "gcd": lambda n: math.gcd(n, 12), "gcd of three": lambda n: math.gcd(n, 12, 6), "lcm": lambda n: math.lcm(n, 12),
    "isqrt": math.isqrt, "comb": lambda n: math.comb(n, 2), "perm": lambda n: math.perm(n, 2),
    "factorial": lambda n: math.factorial(n) if n < 100 else n,
    "shift left": lambda n: 1 << n if n < 100 else n, "shift right": lambda n: n >> 1, "bits": lambda n: (n & 6) ^ (n | 1),
    "inverse": lambda n: ~n, "bit length": lambda n: n.bit_length(), "bit count": lambda n: n.bit_count(),
    "conjugate": lambda n: n.conjugate(), "ratio": lambda n: n.as_integer_ratio()[0],
    "power modulo": lambda n: pow(n, 3, 7), "inverse modulo": lambda n: pow(n, -1, 13),
    "tens": lambda n: round(n * 7, -1), "hash": hash, "sum of a list": lambda n: sum([n, 4, 6]),
    "sum from": lambda n: sum([n, 4], n), "product": lambda n: math.prod([n, 2, 3]), "least": lambda n: min([n, 4, 6]),
    "largest": lambda n: max((n, 4.5)), "reduced": lambda n: functools.reduce(operator.mul, [n, 2, 3]),
    "length of a text": lambda n: len(str(n)), "of a text": lambda n: int(str(n)), "float of a text": lambda n: float(f"{n}.5"),
    "text of bits": lambda n: len(bin(n) + hex(n) + oct(n)), "remainders": lambda n: divmod(n, 4)[0] + divmod(n, 4)[1],
    "sorted": lambda n: sorted([n, 4, 6])[1], "counted": lambda n: (operator.iand(n, 12), operator.ilshift(n, 1))[1],
}
WAYS = {"largest": 3, "reduced": 3, "sorted": 4}
OF_FLOATS = {
    "rounded": lambda v: round(v, 1), "whole": lambda v: round(v), "ceil": math.ceil, "floor": math.floor,
    "trunc": math.trunc, "int": int, "log with base": lambda v: math.log(v, 3), "log1p": math.log1p, "log2": math.log2,
    "copysign": lambda v: math.copysign(v, -1.0), "sign": lambda v: math.copysign(1, v), "fmod": lambda v: math.fmod(v, 3),
    "fmod by it": lambda v: math.fmod(3, v), "remainder": lambda v: math.remainder(v, 3), "hypot": lambda v: math.hypot(v, 3),
    "dist": lambda v: math.dist((v, 1), (2, 2)), "fsum": lambda v: math.fsum([v, 0.5, 1.5]), "asin": math.asin,
    "acos": math.acos, "atanh": math.atanh, "asinh": math.asinh, "acosh": math.acosh, "erf": math.erf, "gamma": math.gamma,
    "lgamma": math.lgamma, "degrees": math.degrees, "radians": math.radians, "ulp": math.ulp, "exp": math.exp,
    "fabs": math.fabs, "expm1": math.expm1, "sinh": math.sinh, "cosh": math.cosh, "sin": math.sin, "tan": math.tan, "tanh": math.tanh,
    "frexp": lambda v: math.frexp(v)[0] + math.frexp(v)[1], "ldexp": lambda v: math.ldexp(v, 3),
    "modf": lambda v: math.modf(v)[0] - math.modf(v)[1], "after": lambda v: math.nextafter(v, 7.0),
    "sum": lambda v: sum([v, 0.1, 0.2]), "sum of floats from": lambda v: sum([0.1, 0.2], v),
    "product": lambda v: math.prod([v, 2]), "hash": hash, "divmod": lambda v: divmod(v, 0.3)[1],
}
TESTS = {
    "is whole": lambda v: v.is_integer(), "is close": lambda v: math.isclose(v, 2.5), "is finite": math.isfinite,
    "odd": lambda v: round(v * 2) & 1, "even third": lambda v: int(v) % 3 == 0,
}


def times(x, function, n):
    return x * function(n)


def run(function, values, most, program=times, is_whole=True):
    """Compares `program` of each value, in turn, with eager; at most so many captures. `is_whole`: and no breaks."""
    def call(x, n):
        return program(x, function, n)

    compiled = preheat.compile(call, options={"cache": False, "recompile_limit": 100})
    before = preheat.counters()
    for value in values:
        expected, found = outcome(call, (X, value)), outcome(compiled, (X, value))
        assert found[0] == expected[0] and (found[0] == "value" or found == expected), (value, found, expected)
        wrong = expected[0] == "value" and differs(found[1], expected[1], True)
        assert not wrong, f"at {value!r}: {wrong}"
    after = preheat.counters()
    assert after["captures"] - before["captures"] <= most
    assert not is_whole or after["breaks"] == before["breaks"]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


@pytest.mark.parametrize("name", OF_INTS)
def test_two_captures_serve_every_int(name):
    run(OF_INTS[name], INTS, WAYS.get(name, 2), is_whole=name != "reduced")


@pytest.mark.parametrize("name", OF_FLOATS)
def test_two_captures_serve_every_float(name):
    run(OF_FLOATS[name], [n / 13 + (name == "acosh") for n in INTS], 2)


@pytest.mark.parametrize("name", TESTS)
def test_a_test_is_a_capture_for_each_answer(name):
    run(TESTS[name], [n / 2 for n in INTS], 4, lambda x, function, n: x * 2 if function(n) else x + n)


@pytest.mark.parametrize("name", OF_INTS)
@pytest.mark.parametrize("is_used", [True, False])
def test_hard_ints(name, is_used):
    """Also where nobody needs the result: what raises in eager raises."""
    run(OF_INTS[name], HARD_INTS * 2, 30, times if is_used else unused, False)


@pytest.mark.parametrize("name", OF_FLOATS)
@pytest.mark.parametrize("is_used", [True, False])
def test_hard_floats(name, is_used):
    run(OF_FLOATS[name], HARD_FLOATS * 2, 40, times if is_used else unused, False)


def unused(x, function, n):
    function(n)
    return x * 2


def decided(function):
    return lambda x, _, n: function(x, n)


# Programs in which a number made of one that changes decides something, and how many ways there are.
DECISIONS = {
    "axis": (lambda x, n: x[None].sum(n % 2), 2), "axes": (lambda x, n: x[None, None].sum((n % 2, 2)), 2),
    "transpose": (lambda x, n: x.view(1, 2, 2).transpose(0, n % 3), 3), "choice": (lambda x, n: x * (1.0, 2.5, 4.5)[n % 3], 3),
    "key": (lambda x, n: x * {"0": 1.5, "1": 2.5}[str(n % 2)], 2), "bit": (lambda x, n: x * 2 if n & 1 else x, 2),
    "turns": (lambda x, n: functools.reduce(lambda y, i: y * 1.5 + i, range(n // 4), x), 4),
    "text": (lambda x, n: x * {"%d" % 0: 1, "%d" % 1: 2}["%d" % (n // 7)], 2),
    "equal lists": (lambda x, n: x * 2 if [n // 7, 1] == [1, 1] else x, 2),
    "equal tuples": (lambda x, n: x * 2 if (n // 7, 1) == (1, 1) else x, 2), "other kinds": (lambda x, n: x * 2 if [n] == (n,) else x, 12),
    "float": (lambda x, n: x * {0.5: 2, 1.5: 3, 2.5: 4}[n // 5 + 0.5], 3),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_decides_is_guarded_and_not_what_it_comes_from(name):
    program, ways = DECISIONS[name]
    run(None, INTS * 2, ways + 1, decided(program), is_whole=name != "turns")  # a range is a host step at last


# What gives the length of a tensor, at numbers that no tensor has, too.
LENGTHS = {
    "half, up": lambda v: math.ceil(v / 2), "half": lambda v: math.floor(v / 2), "whole": int, "rounded": lambda v: round(v / 3),
    "root": lambda v: math.isqrt(int(v)), "bits": lambda v: int(v).bit_length(), "shift": lambda v: 1 << min(int(v), 70),
    "divisor": lambda v: math.gcd(int(v), 12), "log": lambda v: math.floor(math.log2(v)) + 1,
    "at least": lambda v: max(int(v), 1), "at most": lambda v: min(int(v), 5), "minus": lambda v: 5 - int(v),
}
HARD_LENGTHS = [3, 5, 2, 7, 0, 1, -1, -3, 9, 1 << 62, 1 << 64, -(1 << 70), 10 ** 400, 4, 6, True]
HARD_FLOAT_LENGTHS = [2.5, 3.5, 0.0, -0.0, 7.5, -0.5, -3.5, math.inf, -math.inf, math.nan, 1e19, 1e300, 1.0, 6.5]


@pytest.mark.parametrize("make", ["zeros", "expand", "arange", "slice"])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("values", [HARD_LENGTHS, HARD_FLOAT_LENGTHS], ids=["int", "float"])
def test_a_length_that_is_calculated(name, make, values):
    makers = {
        "zeros": lambda x, n: torch.zeros(n) + 1 if n < 1 << 20 else x,
        "expand": lambda x, n: x[:1].expand(n if n < 1 << 20 else 1) * 2,
        "arange": lambda x, n: torch.arange(n if n < 1 << 20 else 0) * 2, "slice": lambda x, n: x[:n] * 2,
    }
    run(LENGTHS[name], values * 2, 40, lambda x, function, n: makers[make](x, function(n)), False)


@pytest.mark.parametrize("name", LENGTHS)
def test_few_captures_serve_every_length(name):
    run(LENGTHS[name], [2.0 + n for n in INTS], 4, lambda x, function, n: torch.zeros(function(n) + 8) + 1)
