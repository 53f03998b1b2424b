"""Products of more than two axes, and norms: the ops that C makes of them, with symbols, whatever torch it is."""

import pytest
import torch
import torch.nn.functional as F

import preheat
from tests.sizes.check import outcome

SIZES = ((2, 3), (4, 5), (6, 7), (3, 9), (2, 2), (7, 7), (9, 4))
WEIGHT, BIAS = torch.randn(5, 8), torch.randn(5)


def rows(b, n):
    return (torch.randn(b, n, 8),)


def heads(b, n):
    return (torch.randn(b, n, 3, 8), torch.randn(b, n + 1, 3, 8))


PROGRAMS = {
    "rows by a matrix": (lambda x: x @ WEIGHT.t(), rows),
    "turned rows by a matrix": (lambda x: x.transpose(0, 1).matmul(WEIGHT.t()), rows),
    "rows by a vector": (lambda x: torch.matmul(x, WEIGHT[0]), rows),
    "turned rows by a vector": (lambda x: torch.matmul(x.transpose(0, 1), WEIGHT[0]), rows),
    "a matrix by columns": (lambda x: WEIGHT @ x.mT, rows),
    "a matrix, as a method, by columns": (lambda x: WEIGHT.matmul(x.mT), rows),
    "a vector by columns": (lambda x: torch.linalg.matmul(WEIGHT[0], x.mT), rows),
    "a layer": (lambda x: F.linear(x, WEIGHT), rows),
    "a layer with a bias": (lambda x: F.linear(x, WEIGHT, BIAS), rows),
    "a layer of turned rows": (lambda x: F.linear(x.transpose(0, 1), WEIGHT, BIAS), rows),
    "scores": (lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).mT, heads),
    "batches": (lambda q, k: q.flatten(1, 2) @ k.flatten(1, 2).mT, heads),
    "broadcast batches": (lambda q, k: q.transpose(1, 2) @ k[:1].transpose(1, 2).mT, heads),
    "one batch by many": (lambda q, k: q[:1].flatten(1, 2) @ k.flatten(1, 2).mT, heads),
    "a norm": (lambda x: F.rms_norm(x, (8,), WEIGHT[0]), rows),
    "a norm of turned rows": (lambda x: F.rms_norm(x.transpose(0, 1), (8,), eps=1e-6), rows),
    "a norm in 16 bits": (lambda x: F.rms_norm(x.bfloat16(), (8,), WEIGHT[0].bfloat16(), 1e-6).float(), rows),
    "a norm of two axes": (lambda q, k: F.rms_norm(q, (3, 8)) + k[:, :1], heads),
    "sizes behind the product": (lambda x: (x @ WEIGHT.t()).reshape(x.shape[0] * x.shape[1], -1) * x.shape[1], rows),
}


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_capture_serves_all_sizes_and_every_bit_is_eagers(name, has_grad):
    program, arguments = PROGRAMS[name]
    compiled = preheat.compile(program, backend="eager", options={"cache": False})
    before = preheat.counters()
    for sizes in SIZES:
        xs = [x.requires_grad_(has_grad) for x in arguments(*sizes)]
        own = [x.detach().clone().requires_grad_(has_grad) for x in xs]
        found, expected = compiled(*xs), program(*own)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
        if has_grad:
            for y in (found, expected):
                y.square().sum().backward()
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(xs, own))
    after = preheat.counters()
    assert [after[k] - before[k] for k in ("captures", "fallbacks", "breaks")] == [2, 0, 0]


def test_axes_of_one_element_and_of_none_as_in_eager():
    for program, arguments in PROGRAMS.values():
        compiled = preheat.compile(program, backend="eager", options={"cache": False})
        for sizes in ((3, 4), (2, 5), (1, 4), (4, 1), (1, 1), (5, 3), (0, 3), (4, 0), (0, 0)):
            xs = arguments(*sizes)
            found, expected = outcome(compiled, xs), outcome(program, xs)
            if expected[0] == "error":
                assert found == expected
            else:
                assert torch.equal(found[1], expected[1]) and found[1].stride() == expected[1].stride()


def test_inference_mode_in_which_products_come_whole():
    for name, (program, arguments) in PROGRAMS.items():
        compiled = preheat.compile(program, backend="eager", options={"cache": False})
        before = preheat.counters()["captures"]
        with torch.inference_mode():
            for sizes in SIZES:
                xs = arguments(*sizes)
                assert torch.equal(compiled(*xs), program(*xs))
        assert preheat.counters()["captures"] - before == 2, name


def test_operands_that_do_not_fit_raise_as_in_eager():
    def program(x, w):
        return x @ w

    compiled = preheat.compile(program, options={"cache": False})
    for n in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(2, n, 8), WEIGHT.t()), torch.ones(2, n, 8) @ WEIGHT.t())
    with pytest.raises(RuntimeError):
        compiled(torch.ones(2, 6, 8), WEIGHT)
    torch.testing.assert_close(compiled(torch.ones(2, 9, 8), WEIGHT.t()), torch.ones(2, 9, 8) @ WEIGHT.t())


@pytest.mark.parametrize("has_grad", [False, True])
def test_products_that_autocast_makes_in_16_bits(has_grad):
    def program(x, w, k):
        y = F.linear(x, w) + F.linear(x.transpose(0, 1), k).transpose(0, 1)
        return y @ y.mT

    compiled, weights = preheat.compile(program, backend="eager", options={"cache": False}), []
    for _ in range(2):
        weights.append(torch.randn(5, 8, requires_grad=has_grad))
    before = preheat.counters()["captures"]
    for sizes in SIZES:
        xs = rows(*sizes)
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = compiled(*xs, *weights), program(*xs, *weights)
        assert found.dtype is torch.bfloat16 and torch.equal(found, expected)
    assert preheat.counters()["captures"] - before == 2


def test_named_operands():
    def program(x):
        return torch.matmul(other=WEIGHT.t(), input=x) + F.linear(x, WEIGHT, bias=None)

    compiled = preheat.compile(program, backend="eager", options={"cache": False})
    before = preheat.counters()["captures"]
    for sizes in SIZES:
        (x,) = rows(*sizes)
        assert torch.equal(compiled(x), program(x))
    assert preheat.counters()["captures"] - before == 2
