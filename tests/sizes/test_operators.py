"""The operators of `operators.py`: one capture for all sizes, and what eager gives, forward and backward."""

import pytest
import torch

import preheat
from tests.sizes.check import differs
from tests.sizes.operators import LINEAR_ALGEBRA, NOTHING, ROWS, SIZES


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def parts(made):
    return list(made) if isinstance(made, tuple) else [made]


def loss_of(results):
    found = [r for r in results if r.requires_grad]
    return sum((r.abs() if r.is_complex() else r).square().mul(0.5).sum() for r in found)


def run(function, tensors, has_grad):
    """The results, and the gradients of the arguments."""
    tensors = [t.clone().requires_grad_(has_grad and t.is_floating_point()) for t in tensors]
    with torch.set_grad_enabled(has_grad):
        results = parts(function(*tensors))
        leaves = [t for t in tensors if t.requires_grad]
        grads = torch.autograd.grad(loss_of(results), leaves, allow_unused=True) if has_grad else ()
    return [r.detach() for r in results], list(grads)


def same(found, expected, is_exact):
    for kind, own, other in zip(("results", "gradients"), found, expected):
        assert len(own) == len(other)
        for a, b in zip(own, other):
            if b is None:
                assert a is None
                continue
            if not is_exact and b.numel():
                scale = b.abs().max().clamp(min=1)
                a, b = a / scale, b / scale
            if kind == "gradients":  # where two meet, the layout may be the other one's
                a, b = a.contiguous(), b.contiguous()
            wrong = differs(a, b, is_exact)
            assert not wrong, f"{kind}: {wrong}"


def check(row, backend, has_grad, is_served=True):
    """`is_served`: nothing is reported on the way."""
    compiled = preheat.compile(row.program, backend=backend, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()
    for place, size in enumerate(SIZES):
        torch.manual_seed(place)
        tensors = row.arguments(*size)
        found, expected = (run(f, tensors, has_grad) for f in (compiled, row.program))
        same(found, expected, row.is_exact and backend == "eager")
    after = preheat.counters()
    assert after["breaks"] == before["breaks"]
    assert after["fallbacks"] == before["fallbacks"] or not is_served
    captures = after["captures"] - before["captures"]
    assert captures <= row.captures, f"{captures} captures"
    for size in NOTHING if backend == "preheat" else ():
        check_nothing(row, compiled, size, row.is_exact and backend == "eager", has_grad)


def check_nothing(row, compiled, size, is_exact, has_grad):
    """Where there are no elements the program gives what eager gives, or fails as eager does."""
    seen = []
    for function in (compiled, row.program):
        torch.manual_seed(0)
        try:
            seen.append(run(function, row.arguments(*size), has_grad))
        except Exception as error:
            seen.append(type(error))
    if isinstance(seen[1], type):
        assert seen[0] is seen[1], (size, seen)
    else:
        assert not isinstance(seen[0], type), (size, seen)
        same(*seen, is_exact)


IS_OLD = torch.__version__ < "2.13"
# torch 2.11 looks whether each of several `q` is within 0 and 1, which is a break
BROKEN = {"quantiles"} if IS_OLD else set()


@pytest.mark.parametrize("backend", ["eager", "preheat"])
@pytest.mark.parametrize("name", [name for name in ROWS if name not in BROKEN])
def test_one_capture_serves_all_sizes(name, backend):
    check(ROWS[name], backend, False)


@pytest.mark.parametrize("backend", ["eager", "preheat"])
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.has_gradient and name not in BROKEN])
def test_one_capture_serves_all_sizes_in_training(name, backend):
    # in torch 2.11 products of more than two axes, within a derivative, take no symbols
    is_served = not IS_OLD or name not in LINEAR_ALGEBRA and name != "norms of matrices"
    check(ROWS[name], backend, True, is_served)
