"""Programs in which a size decides something in each way that people write: what is recorded at one size never answers
wrongly at another one.

Each is captured with symbols at one of `HINTS`, then called at all of `SIZES`: values, shapes, dtypes, strides and errors are
eager's bit by bit. `ways` bounds the captures of all these calls: as many as there are ways that the program goes and layouts
that it makes; None for one that unrolls, which is a program of its own at each size.
"""

import itertools

import pytest
import torch

import preheat
from tests.sizes.check import outcome
from tests.sizes.programs import chunked, loop, padded, size_if

HINTS = ((4, 6), (6, 6), (5, 12))
SIZES = tuple(itertools.product((2, 3, 4, 5, 6, 8, 12), (2, 3, 4, 6, 7, 9, 12)))
EDGES = ((0, 6), (6, 0), (0, 0), (1, 6), (6, 1), (1, 1), (13, 6), (6, 13), (13, 17), (64, 8), (17, 17), (0, 1), (1, 0))

# The program; its ways at SIZES, and at EDGES behind these.
PROGRAMS = {
    "add_T": (lambda x: x + x.t(), 1, 6), "square_mm": (lambda x: x @ x, 1, 2), "view6": (lambda x: x.view(-1, 6), 2, 7),
    "size_if": (size_if, 2, 6), "pyloop": (loop, None, None),
    "flat": (lambda x: x.reshape(-1) * 2, 1, 4), "half": (lambda x: x[: x.shape[0] // 2], 1, 6),
    "last": (lambda x: x[-1], 1, 2), "first3": (lambda x: x[:3], 2, 6), "t_view": (lambda x: x.t().reshape(-1), 1, 6),
    "meanscale": (lambda x: x.sum() / x.shape[0], 1, 4), "arange": (lambda x: x + torch.arange(x.shape[1]), 1, 4),
    "cat_self": (lambda x: torch.cat([x, x + 1], 0), 1, 4), "eye": (lambda x: x + torch.eye(x.shape[1])[:1], 1, 4),
    "chunked": (chunked, None, None), "pad": (padded, 2, 5),
    "perm": (lambda x: x.unsqueeze(0).permute(2, 0, 1).contiguous().view(x.shape[1], -1), 1, 5),
    "tslice": (lambda x: x.t()[:2].sum(0), 1, 6), "sqrt": (lambda x: x * (x.shape[1] ** 0.5), 1, 4),
    "softmax": (lambda x: (x @ x.t()).softmax(-1), 1, 4), "expand": (lambda x: x[:1].expand(x.shape[0], -1) + x, 1, 4),
    "unbindsum": (lambda x: sum(x.unbind(0)), None, None),
    "strideuse": (lambda x: x.t() * x.t().stride(0) + x.t().is_contiguous(), 1, 6), "scalar": (lambda x: x * x.shape[0], 1, 4),
    "topk": (lambda x: x.topk(2, 0)[0], 1, 2), "flatten_cmp": (lambda x: x.reshape(-1)[: x.shape[0] * 2], 1, 5),
    "maxdim": (lambda x: x.max(1)[0], 1, 2), "new": (lambda x: x.new_zeros(x.shape[0], 2) + 1, 1, 4),
}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def bits(tensor):
    return tensor.contiguous().view(torch.int32 if tensor.dtype is torch.float32 else tensor.dtype)


def same(found, expected, where, is_exact=True):
    """Nothing that can be seen of two outcomes differs, of kernels but the rounding; strides of axes that nothing is read by do not count."""
    assert found[0] == expected[0], (where, found, expected)
    if expected[0] == "error":
        assert found == expected, where
        return
    one, other = found[1], expected[1]
    if not isinstance(other, torch.Tensor):  # of no tensors
        assert (type(one), one) == (type(other), other), where
        return
    assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape, (where, one, other)
    strides = [(a, b) for a, b, n in zip(one.stride(), other.stride(), other.shape) if n > 1]
    assert not other.numel() or all(a == b for a, b in strides), (where, one.stride(), other.stride())
    assert not is_exact or torch.equal(bits(one), bits(other)), (where, one, other)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


def captures_at(program, sizes, compiled, is_exact):
    before = preheat.counters()["captures"]
    for size in sizes:
        x = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
        same(outcome(compiled, (x,)), outcome(program, (x,)), size, is_exact)
    return preheat.counters()["captures"] - before


@pytest.mark.parametrize("backend", ["eager", "preheat"])
@pytest.mark.parametrize("hint", HINTS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_size_is_answered_wrongly(name, hint, backend):
    program, ways, ways_at_edges = PROGRAMS[name]
    compiled = preheat.compile(
        program, dynamic=True, backend=backend, options={"cache": False, "recompile_limit": 100})
    captures = captures_at(program, (hint, *SIZES), compiled, backend == "eager")
    assert captures <= (ways or len(SIZES)), captures
    captures += captures_at(program, EDGES, compiled, backend == "eager")
    assert captures <= (ways_at_edges or len(SIZES) + len(EDGES)), captures


def test_there_are_28_of_them():
    assert len(PROGRAMS) == 28
