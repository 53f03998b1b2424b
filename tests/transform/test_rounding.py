"""16-bit values: every reader sees what eager's readers see, wherever kernels begin and end."""

import pytest
import torch

import preheat
from preheat.capture.capture import capture
from preheat.ir.plan import Target
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [8, 64, 1000, 5000])
@pytest.mark.parametrize("seen", ["", "x", "m", "product"])
def test_what_is_rounded_is_so_for_every_reader(dtype, columns, seen):
    def distance(a, b):
        x = torch.tanh(a * b)
        most = x.amax(-1, keepdim=True)
        found = [(most - x).sqrt(), x.gather(1, x.argmax(-1, keepdim=True)) == most]
        return found + {"": [], "x": [x], "m": [most], "product": [x @ x.t()]}[seen]

    torch.manual_seed(0)
    a, b = torch.randn(2, 16, columns).to(dtype)
    compiled = preheat.compile(distance, options={"cache": False})
    for _ in range(2):
        root, is_most = compiled(a, b)[:2]
        assert not root.isnan().any() and bool((root == 0).any(-1).all()) and bool(is_most.all())


SAME_TWICE = {
    "written twice": lambda x, w: (x * 1.3).amax(-1, keepdim=True) - x * 1.3,
    "turned": lambda x, w: (1.3 * x).amax(-1, keepdim=True) - x * 1.3,
    "product": lambda x, w: (x @ w).amax(-1, keepdim=True) - x @ w,
    "softmax": lambda x, w: (x * 0.5).softmax(-1).amax(-1, keepdim=True) - (x * 0.5).softmax(-1),
    "of the largest": lambda x, w: x.amax(-1, keepdim=True) * 1.3 - x * 1.3,
    "scaled": lambda x, w: (x.amax(-1, keepdim=True) - 0.3) * 1.7 - (x - 0.3) * 1.7,
    "gathered": lambda x, w: (x * 1.3).gather(-1, x.argmax(-1, keepdim=True)) - x * 1.3,
    "sorted": lambda x, w: (x * 1.3).sort().values[:, -1:] - x * 1.3,
    "magnitude": lambda x, w: (x * 1.3 - 0.1).abs() - (x * 1.3 - 0.1),
    "relu": lambda x, w: (x - x.mean()).relu() - (x - x.mean()),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("name", SAME_TWICE)
def test_what_is_at_most_another_value_stays_so(name, is_trained, dtype):
    def program(x, w):
        return (SAME_TWICE[name](x, w) + 0.001 * is_trained).sqrt()

    torch.manual_seed(0)
    x, w = torch.randn(6, 200).to(dtype).requires_grad_(is_trained), torch.randn(200, 200).to(dtype)
    compiled = preheat.compile(program, options={"cache": False})
    assert not program(x, w).isnan().any()
    for _ in range(4):
        found = compiled(x, w)
        assert not found.isnan().any()
        if is_trained:
            (gradient,) = torch.autograd.grad(found.sum(), x)
            assert not gradient.isnan().any()


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_a_largest_element_are_shared_by_its_equals(dtype):
    def program(a, b):
        return (a * b * 0.7).amax(-1)

    a, b = torch.randn(2, 16, 500).to(dtype)
    a.requires_grad_()
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        (found,) = torch.autograd.grad(compiled(a, b).sum(), a)
        assert bool((found != 0).any(-1).all())


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu, torch.abs])
def test_what_lies_between_two_kernels_is_narrow(activation):
    """A residual that a product and the next sum read: 16 bits in memory, and no second copy."""
    def block(x, y, w):
        total = activation(x + y)
        return (total + total @ w).tanh()

    given = [torch.randn(256, 256, dtype=torch.bfloat16) for _ in range(3)]
    (node,) = capture(block, given, {}, limits=None).nodes
    plan = schedule(lower(node.trace.nodes[0].body), Target("cpu", "x86_64", ("avx512f",), 64))
    assert {b.type.dtype for b in plan.buffers} == {"bfloat16"}
    assert sum(b.kind == "arena" for b in plan.buffers) <= 2


# What a CPU rounds to 16 bits before it computes: numbers, and tensors without axes, of sums and powers.
OF_NUMBERS = {
    "x + n": lambda x, n: x + n, "n + x": lambda x, n: n + x, "x - n": lambda x, n: x - n, "n - x": lambda x, n: n - x,
    "in place": lambda x, n: x.clone().add_(n), "alpha": lambda x, n: torch.sub(x, x.flip(0), alpha=0.1) + n,
    "no axes": lambda x, n: x + torch.tensor(n), "x ** n": lambda x, n: x.abs() ** n, "n ** x": lambda x, n: abs(n) ** x,
    "x * n": lambda x, n: x * n, "x / n": lambda x, n: x / n}


@pytest.mark.parametrize("program", OF_NUMBERS.values(), ids=OF_NUMBERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_are_rounded_where_eager_rounds_them(program, dtype):
    """Numbers that change, too; 1e5 is infinite in float16, so that a sum with it is."""
    torch.manual_seed(0)
    compiled = preheat.compile(program, options={"cache": False})
    large = (1e5, -1e5, 65519.0) if program is not OF_NUMBERS["x ** n"] else ()  # eager refuses them as exponents
    for n in (4.7, 4.7, 0.1, 0.3, *large):
        x = (torch.randn(257) * (3 if abs(n) < 100 else 4e4)).to(dtype)
        # an approximate function may round to the neighbour
        torch.testing.assert_close(compiled(x, n), program(x, n), rtol=torch.finfo(dtype).eps, atol=1e-6, equal_nan=True)


BINARY = {
    "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "add": lambda a, b: a + b, "sub": lambda a, b: a - b,
    "atan2": torch.atan2, "pow": lambda a, b: a ** b, "maximum": torch.maximum,
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", BINARY)
def test_tensors_without_axes_are_rounded_as_eagers(name, dtype):
    """Torch hands on the one element of the second operand of some ops, and rounds that of a first: an infinity."""
    x = torch.linspace(-2, 2, 40).to(dtype)
    for wide in (torch.float32, torch.float64, torch.int64):
        for value in (3.3, 1e5, 1e-8, 7.77):
            number = torch.tensor(value).to(wide)
            for operands in ((number, x), (x, number)):
                compiled = preheat.compile(BINARY[name], options={"cache": False})
                for _ in range(2):
                    torch.testing.assert_close(
                        compiled(*operands), BINARY[name](*operands), rtol=0, atol=0, equal_nan=True)
