"""warmup and seal: after them no call captures or compiles anything, and misses say so."""

import warnings

import pytest
import torch
from torch import nn

import preheat
from preheat.base.events import subscribe


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def events(call):
    """The kinds of events during a call."""
    seen = []
    unsubscribe = subscribe(lambda event: seen.append(event.kind), {"capture", "compile", "fallback"})
    try:
        call()
    finally:
        unsubscribe()
    return seen


def program(x, scale=1.0):
    return (x * scale).softmax(-1)


SIZES = [(2, 6), (3, 6), (5, 8), (1, 8)]


def test_nothing_is_compiled_after_warmup_and_seal():
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        preheat.warmup(compiled, [(torch.randn(size),) for size in SIZES])
        preheat.seal(compiled)
        assert events(lambda: [compiled(torch.randn(size)) for size in SIZES * 8]) == []
        assert events(lambda: [compiled(torch.randn(7, k)) for k in range(2, 20)]) == []


@pytest.mark.parametrize("is_module", [False, True])
def test_a_miss_runs_eager_and_warns_once(is_module):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()) if is_module else program
    compiled = preheat.compile(model, options={"cache": False})
    with torch.no_grad():
        preheat.warmup(compiled, [torch.randn(2, 4), {("input" if is_module else "x"): torch.randn(3, 4)}])
        preheat.seal(compiled)
        x = torch.randn(2, 3, 4)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for _ in range(3):
                assert torch.equal(compiled(x), model(x))
        assert [str(w.message).count("is sealed") for w in heard] == [1]
        assert "capture" not in events(lambda: compiled(x))


def test_a_miss_is_an_error_if_that_is_wanted():
    compiled = preheat.compile(program, options={"cache": False, "on_miss": "error"})
    with torch.no_grad():
        preheat.warmup(compiled, [torch.randn(2, 4)])
        preheat.seal(compiled)
        compiled(torch.randn(2, 4))
        with pytest.raises(preheat.RecompileError, match="is sealed"):
            compiled(torch.randn(2, 4).double())


def test_only_what_is_compiled_can_be_prepared():
    with pytest.raises(preheat.UserError, match="is not compiled"):
        preheat.warmup(program, [])
    with pytest.raises(preheat.UserError, match="is not compiled"):
        preheat.seal(program)
