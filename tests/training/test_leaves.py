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
