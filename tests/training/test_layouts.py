"""Memory and layout of results in training."""

import torch

import preheat


def trained(program, make, calls=5):
    compiled = preheat.compile(program, options={"cache": False})
    for number in range(calls):
        torch.manual_seed(number)
        given = make()
        found, expected = compiled(*given), program(*given)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        found[0].sum().backward()


def test_what_is_written_in_another_layout_keeps_its_own():
    def program(y, w, x):
        turned = (y * 1).transpose(0, 1)
        value = x / (x.abs() + 1)
        turned.copy_(value)
        return torch.sigmoid(w), value

    trained(program, lambda: (
        torch.randn(3, 3, requires_grad=True) * 1.5, torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)))


def test_memory_that_a_library_call_reads_is_not_given_away():
    """The sum is in the place of the product; it is read once more, behind what comes in between."""
    def program(w, b):
        v0 = torch.nn.functional.linear(w, w, b[0]) / 2
        v1 = v0.cumsum(0) / 2
        v1[torch.tensor([2, 0, 0])]  # may raise: it is computed, and takes memory
        return (v1 - 0.5 * v1 - 0.5 * v0,)

    trained(program, lambda: (torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)))
