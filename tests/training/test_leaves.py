"""Tensors that require grad and are made inside: gradients end in them as in eager."""

import pytest
import torch

import preheat

MAKERS = {
    "zeros": lambda x: torch.zeros(3, requires_grad=True),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
    "randn": lambda x: torch.randn(3, requires_grad=True),
    "like": lambda x: torch.ones_like(x, requires_grad=True),
    "new": lambda x: x.new_zeros(3, requires_grad=True),
    "arange": lambda x: torch.arange(3.0, requires_grad=True),
    "asarray": lambda x: torch.asarray([1.0, 2.0, 3.0], requires_grad=True),
    "parameter": lambda x: torch.nn.Parameter(torch.zeros(3)),
    "later": lambda x: torch.zeros(3).requires_grad_(),
    "of a result": lambda x: (x * 2).detach().requires_grad_(),
    "without grad mode": torch.no_grad()(lambda x: torch.zeros(3, requires_grad=True)),
}


@pytest.mark.parametrize("has_break", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_leaf_that_is_made_inside(name, has_break):
    make = MAKERS[name]

    def program(x):
        w = make(x)
        if has_break:
            print(end="")
        return w * x, w

    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        result, w = compiled(torch.ones(3))
        assert w.is_leaf and w.requires_grad and result.requires_grad
        result.sum().backward()
        assert w.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_that_is_made_inside(kind):
    def fit(x, count):
        w = torch.zeros(3, requires_grad=True)
        optimizer = kind([w], lr=0.1)
        for _ in range(count):
            optimizer.zero_grad()
            ((x - w) ** 2).sum().backward()
            optimizer.step()
        return w

    compiled = preheat.compile(fit, options={"cache": False})
    for count in (2, 2, 2, 3, 2):
        torch.testing.assert_close(compiled(torch.ones(3), count), fit(torch.ones(3), count))


@pytest.mark.parametrize("write", [
    lambda w: w.add_(1), lambda w: w[0].mul_(2), lambda w: w.view(3).copy_(torch.ones(3)), torch.relu_,
])
def test_a_write_to_a_leaf_is_refused_at_the_users_line_and_leaves_nothing_done(write):
    """Also where it was captured for what is no leaf: `x` has not been written to when it is refused."""
    def program(x, w):
        write(w)
        x.add_(1)
        return (x * w).sum()

    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        compiled(torch.ones(3), torch.ones(3, requires_grad=True) * 1).backward()
    for _ in range(3):
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place") as caught:
            compiled(x, w)
        assert x.tolist() == [1.0] * 3
        assert any(entry.name == "program" for entry in caught.traceback)
    assert compiled(torch.ones(3), torch.ones(3)).item() is not None
