"""Tensors that are conjugated or negated by a mark alone, at sizes that change: C sees the mark."""

import pytest
import torch

import preheat

PROGRAMS = {
    "a transform of conjugates": lambda x: torch.fft.irfft(torch.complex(x, x + 1).conj()),
    "elements as they lie": lambda x: torch.view_as_real(torch.complex(x, x).conj().resolve_conj()) * 1,
    "imaginary parts": lambda x: torch.complex(x, x + 1).conj().imag.contiguous(),
    "imaginary parts, negated": lambda x: torch.complex(x, x + 1).conj().imag.neg(),
    "a product": lambda x: torch.complex(x, x + 1) @ torch.complex(x, x + 1).mH,
    "a sum of products": lambda x: torch.einsum("ab,cb->ac", torch.complex(x, x).conj(), torch.complex(x, x + 1)),
    "put together": lambda x: torch.cat([torch.complex(x, x).conj(), torch.complex(x, x)]),
    "asked": lambda x: torch.complex(x, x) * torch.complex(x, x).conj().is_conj(),
    "given back": lambda x: torch.complex(x, x).conj(),
    "a turned copy": lambda x: torch.complex(x, x + 1).conj().t().reshape(-1),
}


@pytest.mark.parametrize("backend", ["eager", "preheat"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_eager_gives(name, backend):
    program = PROGRAMS[name]
    compiled = preheat.compile(program, backend=backend, options={"cache": False})
    for sizes in ((2, 3), (4, 5), (6, 7), (3, 9), (5, 5)):
        x = torch.randn(*sizes)
        with torch.no_grad():
            found, expected = compiled(x), program(x)
        assert found.is_conj() == expected.is_conj()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("first", ["as stored", "dense", "strided"])
def test_a_view_that_is_stored_negated_as_an_input(first):
    z, y = torch.randn(4, 2, dtype=torch.complex64), torch.randn(4, 2)
    plain = {"as stored": z.imag, "dense": y + 1, "strided": torch.randn(8, 4)[::2, ::2]}[first]
    kept = z.conj().imag
    for program in (lambda x: (y + 1) * 2 + x * 2, lambda x: x * kept):
        compiled = preheat.compile(program, options={"cache": False})
        for x in (plain, kept, kept, kept, plain, kept):
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
