"""Numbers beyond what a dtype holds, after others that it holds: refused where eager refuses them, never cut."""

import pytest
import torch
import torch.nn.functional as F

import preheat

FLOATS = {
    "fill_": lambda x, n: x.clone().fill_(n), "full_like": torch.full_like, "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n), "where": lambda x, n: torch.where(x > 0, x, n),
    "clamp": lambda x, n: x.clamp(max=n), "clamp min": lambda x, n: x.clamp(min=n), "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n), "lerp": lambda x, n: torch.lerp(x, x + 1, n),
    "fill_diagonal_": lambda x, n: x.clone().fill_diagonal_(n), "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "x[0] = n": lambda x, n: x.clone().index_put_((torch.tensor([0]),), torch.full((), n, dtype=x.dtype)),
    "add": lambda x, n: x + n, "mul": lambda x, n: x * n, "pow": lambda x, n: x ** n, "gt": lambda x, n: x > n,
}
BEYOND = {torch.float16: (65504.0, 1e5, -1e30), torch.bfloat16: (1e38, 1e39), torch.float32: (3e38, -1e300), torch.float64: (1e300,)}
INTS = {
    "tensor": lambda x, n: torch.tensor(n, dtype=torch.int8) + x, "of a list": lambda x, n: torch.tensor([n, 1], dtype=torch.int16)[:1] + x,
    "as_tensor": lambda x, n: torch.as_tensor(n, dtype=torch.int8) + x, "asarray": lambda x, n: torch.asarray([n], dtype=torch.int16) + x,
    "new_tensor": lambda x, n: x.new_tensor([n]) + x, "new_tensor of a dtype": lambda x, n: x.new_tensor(n, dtype=torch.int8) + x,
    "new": lambda x, n: x.new([n]) + x, "bool": lambda x, n: torch.tensor([n, 0], dtype=torch.bool)[:1] & (x > 0),
    "fill_": lambda x, n: x.clone().fill_(n), "full": lambda x, n: torch.full((4,), n, dtype=torch.int8) + x[0],
    "by a size": lambda x, n: torch.tensor([x.shape[0] * n], dtype=torch.int8) + x, "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
}


def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def agree(call, calls):
    """`call` compiled does what eager does, in each of the calls; the number of its captures."""
    compiled, before = preheat.compile(call, options={"cache": False, "recompile_limit": 40}), preheat.counters()["captures"]
    for args in calls:
        expected, found = outcome(call, *args), outcome(compiled, *args)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    return preheat.counters()["captures"] - before


@pytest.mark.parametrize("dtype", BEYOND)
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name, dtype):
    x = torch.tensor([[-1.5, 0.5], [0.25, 2.0]], dtype=dtype)
    agree(FLOATS[name], [(x, n) for n in (0.5, 0.25, *BEYOND[dtype], float("inf"), -float("inf"), float("nan"), 0.75)])


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("grows", [False, True])
def test_ints(name, grows):
    numbers = (3, 2, 100, 200, 300, -300, 1 << 31, 1 << 40, (1 << 40) + 5, 1 << 63, 7)
    for dtype in (torch.int8, torch.int64):
        agree(INTS[name], [(torch.ones(4 + grows * k, dtype=dtype), n) for k, n in enumerate(numbers)])


def test_what_is_within_the_bounds_is_one_capture():
    """Infinities and nan are, too."""
    x, inf = torch.randn(3, 3), float("inf")
    assert agree(FLOATS["masked_fill"], [(x, n) for n in (0.5, 0.25, -1e30, inf, float("nan"), -inf, 3e38)]) == 2


@pytest.mark.parametrize("op", ["x * n", "x + n", "x / n", "n / x", "n - x", "torch.where(x > n, x * n, x)"])
def test_operands_beyond_float32_under_autograd(op):
    """Autograd is given no tensor of such a number: C makes none."""
    def call(values, n):
        x = torch.tensor(values, requires_grad=True)
        made = program(x, n)
        return made, *torch.autograd.grad(made.sum(), x)

    program, eager = preheat.compile(eval(f"lambda x, n: {op}"), options={"cache": False}), eval(f"lambda x, n: {op}")
    for n in (2.0, 3.0, 1e39, 4.0, -1e300, float("inf"), 5):
        found, program_ = call([1.0, -2.0], n), program
        program = eager
        expected, program = call([1.0, -2.0], n), program_
        torch.testing.assert_close(found, expected, equal_nan=True)
