"""Accuracy of the mathematical functions in units of the last place (ulp), against wider arithmetic.

float32 is judged against 80-bit numpy, float64 too (its mantissa has 11 bits more), and erf and
erfc against mpmath, which sympy, and so torch, brings along.
"""

import mpmath
import numpy
import pytest
import torch
from generate.kernels import apply, targets

from preheat.ir.ops import FUSABLE

TARGETS = targets()
Long = numpy.longdouble
LIMIT = {"float32": 1.5, "float64": 2.0}
NUMPY = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
}
# where the result is neither zero nor infinite; float64 goes further by the second row
RANGE = {
    "exp": (-103, 88.7), "exp2": (-149, 127.9), "expm1": (-30, 88.7), "sigmoid": (-100, 30), "tanh": (-12, 12),
    "sinh": (-89, 89), "cosh": (-89, 89), "log": (0, 3e38), "log2": (0, 3e38), "log10": (0, 3e38), "log1p": (-1, 3e38),
    "asinh": (-1e30, 1e30), "acosh": (1, 1e30), "atanh": (-1, 1), "erf": (-6, 6), "erfc": (-6, 10),
    "sin": (-1e5, 1e5), "cos": (-1e5, 1e5), "tan": (-1e5, 1e5), "asin": (-1, 1), "acos": (-1, 1), "atan": (-1e6, 1e6),
    "rsqrt": (0, 3e38),
}
RANGE64 = {
    "exp": (-745, 709.7), "exp2": (-1074, 1023.9), "expm1": (-50, 709), "sigmoid": (-700, 40), "sinh": (-710, 710),
    "cosh": (-710, 710), "log": (0, 1e308), "log2": (0, 1e308), "log10": (0, 1e308), "log1p": (-1, 1e308),
}


def reference(op: str, x: numpy.ndarray) -> numpy.ndarray:
    """`op` of `x` (80-bit), correct to far below a float64's last place."""
    if op in ("erf", "erfc"):
        with mpmath.workdps(30):
            return numpy.array([Long(mpmath.nstr(getattr(mpmath, op)(mpmath.mpf(float(v))), 25)) for v in x])
    if op == "sigmoid":
        return 1 / (1 + numpy.exp(-x))
    if op == "rsqrt":
        return 1 / numpy.sqrt(x)
    return getattr(numpy, NUMPY.get(op, op))(x)


def samples(op: str, dtype: str) -> numpy.ndarray:
    """Values all over the range, near zero, near one, and of every magnitude."""
    low, high = RANGE64.get(op, RANGE[op]) if dtype == "float64" else RANGE[op]
    count = 1500 if op in ("erf", "erfc") else 20000
    random = numpy.random.default_rng(0)
    lowest = -1000 if dtype == "float64" else -140
    x = numpy.concatenate([
        random.uniform(max(low, -1e5), min(high, 1e5), count), random.uniform(max(low, -3), min(high, 3), count),
        numpy.exp2(random.uniform(lowest, 120, count)) * random.choice([-1, 1], count),
        1 + random.uniform(-1, 1, count // 2) * numpy.exp2(random.uniform(-30, -1, count // 2)),
    ]).astype(dtype)
    return x[(x > low) & (x < high)]


def ulps(found: numpy.ndarray, exact: numpy.ndarray) -> numpy.ndarray:
    """The distance in units of the last place that the exact value has in found's dtype."""
    facts = numpy.finfo(found.dtype)
    exponent = numpy.maximum(numpy.floor(numpy.log2(numpy.abs(exact))), facts.minexp)
    return numpy.abs(found.astype(Long) - exact) / Long(2) ** (exponent - facts.nmant)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", RANGE)
def test_accuracy(op, dtype):
    if dtype not in FUSABLE[op]:
        pytest.skip("a library call")
    x = samples(op, dtype)
    exact = reference(op, x.astype(Long))
    keep = numpy.isfinite(exact.astype(dtype)) & (exact != 0)
    x, exact = x[keep], exact[keep]
    for name, target in TARGETS.items():
        if name not in ("host", "v1"):
            continue
        found = apply(op, [torch.from_numpy(x)], getattr(torch, dtype), target).numpy()
        error = ulps(found, exact)
        worst = error.argmax()
        limit = 2.3 if op == "sigmoid" else LIMIT[dtype]
        assert error[worst] <= limit, (name, x[worst], found[worst], exact[worst], error[worst])


@pytest.mark.parametrize("dtype,limit", [("float32", 1.5), ("float64", 2.0)])
@pytest.mark.parametrize("op", ["sin", "cos"])
def test_angles_of_any_size(op, dtype, limit):
    largest = 127.9 if dtype == "float32" else 1023.9
    x = numpy.exp2(numpy.random.default_rng(1).uniform(10, largest, 400)).astype(dtype)
    with mpmath.workdps(400):
        exact = numpy.array([Long(mpmath.nstr(getattr(mpmath, op)(mpmath.mpf(float(v))), 25)) for v in x])
    found = apply(op, [torch.from_numpy(x)], getattr(torch, dtype)).numpy()
    assert ulps(found, exact).max() <= limit


@pytest.mark.parametrize("op", ["pow", "atan2"])
def test_two_operands(op):
    random = numpy.random.default_rng(2)
    x = numpy.exp2(random.uniform(-20, 20, 20000)).astype("float32")
    y = random.uniform(-6, 6, 20000).astype("float32")
    wide = {"pow": numpy.power, "atan2": numpy.arctan2}[op]
    exact = wide(x.astype(Long), y.astype(Long))
    keep = numpy.isfinite(exact.astype("float32")) & (numpy.abs(exact) > 1e-45)
    found = apply(op, [torch.from_numpy(x), torch.from_numpy(y)], torch.float32).numpy()
    assert ulps(found[keep], exact[keep]).max() <= 0.6


def test_powers_of_small_integers_are_exact():
    x = torch.arange(-40.0, 41.0)
    for exponent in (0, 1, 2, 3, 4, -1):
        y = torch.full_like(x, float(exponent))
        expected = (x.double() ** exponent).float()
        assert torch.equal(apply("pow", [x, y], torch.float32), expected)
