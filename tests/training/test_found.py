"""The smallest programs of faults that random ones have found: gradients and refusals are eager's."""

import pytest
import torch

import preheat
from tests.training.check import check


def outcomes(fn, use, count=4):
    """What `use(results, y, number)` gives in each of some calls of `fn(x, y)`; of an error its start."""
    found = []
    for number in range(count):
        torch.manual_seed(number)
        x, leaf = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
        y = leaf * 1.5
        try:
            found.append(use(fn(x, y), y, leaf, number))
        except RuntimeError as error:
            found.append(str(error)[:60])
    return found


def agree(fn, use):
    eager = outcomes(fn, use)
    compiled = outcomes(preheat.compile(fn, options={"cache": False}), use)
    for expected, seen in zip(eager, compiled, strict=True):
        if isinstance(expected, str):
            assert seen == expected
        else:
            torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-5)
    return eager


def first_backward(results, y, leaf, number):
    results[0].backward(torch.ones(3, 3))
    return leaf.grad


def test_a_write_to_an_input_takes_what_another_write_to_it_has_saved():
    def f(x, y):
        y.tanh_()
        y.add_(1)
        return (y,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


def test_a_write_through_a_view_that_a_host_call_divides_from_its_base():
    def f(x, y):
        view = y.transpose(0, 1)
        view.retain_grad()
        view.tanh_()
        with torch.no_grad():
            view.mul_(0.5)
        return (view,)

    assert all(row.startswith("one of the variables") for row in agree(f, first_backward))


def test_a_differentiable_backward_of_what_no_backward_has_been_through():
    def f(x, y):
        result = (y * 1).softmax(-1)
        print(end="")
        with torch.no_grad():
            result[0] = 0.2
        return (result,)

    def use(results, y, leaf, number):
        return torch.autograd.grad(
            results[0], leaf, torch.ones(3, 3), create_graph=number == 3)[0].detach()

    assert all(row.startswith("one of the variables") for row in agree(f, use))


def test_a_view_of_another_result_whose_memory_is_written_to_later():
    def f(x, y):
        outer = y.unsqueeze(0)[0]
        inner = outer.unsqueeze(0)[0]
        outer.add_(outer)
        return inner, outer

    def use(results, y, leaf, number):
        tangents = [torch.ones(3, 3), torch.full((3, 3), float(number))]
        return torch.autograd.grad(results, [results[1], y], tangents)

    agree(f, use)


def test_a_constant_that_forward_and_backward_share():
    def f(x, y):
        result = y * 0.5
        result.diagonal().fill_(0.3)
        result[:, 1] = 0.25
        return (result,)

    def use(results, y, leaf, number):
        results[0].backward(torch.ones(3, 3), retain_graph=True)
        results[0].backward(torch.ones(3, 3))
        return leaf.grad

    agree(f, use)


def test_a_gradient_that_is_its_tangent_is_learned():
    def f(x, y):
        return (y - x,)

    agree(f, first_backward)
    before = preheat.counters()["compiles"]
    outcomes(preheat.compile(f, options={"cache": False}), first_backward, count=6)
    assert preheat.counters()["compiles"] == before + 1


@pytest.mark.parametrize("seed", [2056, 2376, 2582, 2875, 3543, 3616, 5329, 5906, 6838, 7919, 8156])
def test_seeds(seed):
    check(seed)
