"""The operands of `mismatched.py`: eager's results, and eager's errors in its words, by captures for any size."""

import pytest
import torch

import preheat
from tests.sizes.check import differs
from tests.sizes.mismatched import ROWS


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def outcome(function, args, has_grad):
    """Results and gradients, or the error."""
    args = [a.clone().requires_grad_(has_grad and a.is_floating_point()) for a in args]
    try:
        with torch.set_grad_enabled(has_grad):
            made = function(*args)
            made = made if isinstance(made, (tuple, type(None))) else (made,)
            leaves = [a for a in args if a.requires_grad]
            wanted = [m for m in made or () if m.requires_grad]
            grads = torch.autograd.grad([m.sum() for m in wanted], leaves, allow_unused=True) if wanted else ()
        return "value", tuple(m.detach() for m in made or ()), tuple(grads)
    except Exception as error:  # the program's own, whichever it is
        return "error", type(error).__name__, str(error)


def dropped(program):
    """The same, of which nothing is read but that it raises: no op of it is left in the plan."""
    def call(*args):
        program(*[a.clone() for a in args])
        return args[0].mul(2)

    return call


def check(name, backend, has_grad, is_dropped=False):
    row = ROWS[name]
    program = dropped(row.program) if is_dropped else row.program
    compiled = preheat.compile(
        program, dynamic=True, backend=backend, options={"cache": False, "recompile_limit": 30})
    for args in (*row.fitting, *row.fitting, *row.others):
        expected, found = (outcome(f, args, has_grad) for f in (program, compiled))
        shapes = [tuple(a.shape) for a in args]
        if "error" in (expected[0], found[0]):
            assert found == expected, shapes
        else:
            assert not differs(found[1:], expected[1:], False), shapes


@pytest.mark.parametrize("name", list(ROWS)[::4])
def test_operands_that_do_not_fit(name):
    check(name, "preheat", False)


@pytest.mark.parametrize("name", ROWS)
def test_what_nobody_reads_is_refused_too(name):
    check(name, "preheat", False, is_dropped=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("backend, has_grad", [
    ("eager", False), ("eager", True), ("preheat", False), ("preheat", True)])
def test_operands_that_do_not_fit_in_all_ways(name, backend, has_grad):
    check(name, backend, has_grad)
