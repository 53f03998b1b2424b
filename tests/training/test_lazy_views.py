"""Gradients through views that are resolved below autograd, conjugates and negatives, and what `detach_()` cuts off:
first and second ones, at one size and at sizes that change."""

import pytest
import torch

import preheat

def _apart(x):
    c = x.conj().clone()
    c.detach_()
    return c * x


PROGRAMS = {
    "times its conjugate": lambda x: x * x.conj(),
    "real part": lambda x: (x * x.conj()).real,
    "of two": lambda x: (x[:2] * 2) * x[:2].conj(),
    "plus": lambda x: x + x.conj(),
    "put together": lambda x: torch.cat([x, x.conj()]),
    "stacked": lambda x: torch.stack([x.conj(), x, x.conj()]),
    "quotient": lambda x: x / (2 + x.conj()),
    "twice": lambda x: x.conj() * x.conj() * x,
    "resolved": lambda x: x * x.conj().resolve_conj(),
    "physical": lambda x: x * torch.conj_physical(x),
    "imaginary part of a conjugate": lambda x: x.conj().imag * x.real,
    "negative view": lambda x: torch._neg_view(x.real) * x.real,
    "elements of a conjugate": lambda x: torch.view_as_real(x.conj().resolve_conj()) * torch.view_as_real(x),
    "adjoint": lambda x: (x[:, None] * 2) @ x[:, None].adjoint(),
    "turned": lambda x: x[:, None].mT.conj() * x[:, None],
    "H": lambda x: x[:, None].H * x[:, None],
    "outer": lambda x: torch.outer(x, x.conj()),
    "inner": lambda x: torch.vdot(x, x * 2),
    "sum of products": lambda x: torch.einsum("i,j->ij", x.conj(), x),
    "power of a transform": lambda x: torch.fft.fft(x) * torch.fft.fft(x).conj(),
    "power of a real transform": lambda x: (lambda y: (y * y.conj()).real)(torch.fft.rfft(x.real * 2)),
    "written to": lambda x: (x * 2).conj().mul_(x) * 3,
    "written to what is constant": lambda x: torch.ones_like(x).conj().mul_(x) * x,
    "a copy written to": lambda x: x.conj().clone().mul_(x) * x,
    "chosen": lambda x: torch.where(x.real > 0, x.conj(), x),
    "detached": lambda x: x * x.conj().detach(),
    "not followed": lambda x: x * _unfollowed(x),
    "detached in place": _apart,
}


def _unfollowed(x):
    with torch.no_grad():
        return x.conj() * 2


def _gradients(program, x, is_twice):
    x = x.detach().clone().requires_grad_()
    y = program(x)
    tangent = torch.linspace(1, 2, y.numel()).reshape(y.shape).to(y.dtype) * (1 + 0.5j if y.is_complex() else 1)
    if not is_twice:
        return torch.autograd.grad(y, x, tangent)[0]
    (first,) = torch.autograd.grad(y, x, tangent, create_graph=True)
    return torch.autograd.grad((first.abs() ** 2).sum(), x, allow_unused=True)[0] if first.requires_grad else first


@pytest.mark.parametrize("is_twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("sizes", [(5,) * 4, (5, 8, 3, 7, 9)], ids=["one size", "sizes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_eager_gives(name, sizes, is_twice):
    program = PROGRAMS[name]
    compiled = preheat.compile(program, options={"cache": False})
    for n in sizes:
        x = torch.randn(n, dtype=torch.complex64)
        expected, found = (_gradients(f, x, is_twice) for f in (program, compiled))
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, expected)


def test_an_input_that_is_read_as_a_conjugate_alone():
    compiled = preheat.compile(lambda x, y: (x * y.conj()).real.sum(), options={"cache": False})
    for _ in range(3):
        x, y = (torch.ones(3, dtype=torch.complex64, requires_grad=True) for _ in "xy")
        compiled(x, y).backward()
        torch.testing.assert_close(y.grad, torch.ones_like(y))


def test_what_is_detached_in_place_after_use():
    def program(x):
        c = x * 2
        d = c + x
        c.detach_()
        return c * d

    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(_gradients(compiled, x, False), _gradients(program, x, False))


def test_an_input_that_is_detached_in_place():
    compiled = preheat.compile(lambda x: torch.detach_(x) * 2, options={"cache": False})
    for _ in range(4):
        x = torch.ones(3, requires_grad=True) * 2
        assert not compiled(x).requires_grad and not x.requires_grad


def test_an_edge_that_the_record_has_not_is_no_silence(monkeypatch):
    monkeypatch.setattr("preheat.capture.recorder._RESOLVES", "")  # as if that mend were not there
    program = lambda x, y: (x * y.conj()).real.sum()
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        x, y = (torch.ones(3, dtype=torch.complex64, requires_grad=True) for _ in "xy")
        compiled(x, y).backward()
        torch.testing.assert_close(y.grad, torch.ones_like(y))
    assert [one.reason for one in preheat.explain(program)(x, y).breaks] == ["own_gradient"]
