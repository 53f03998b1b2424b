"""Dispatch: which variant a call gets, what runs eager, and that neither costs more than it must."""

import traceback
import warnings

import pytest
import torch

import preheat
from preheat.base.events import subscribe
from preheat.dispatch import CAPTURE_ATTEMPTS, RAISED_AN_ATTEMPT, Compiled
from preheat.run.breaks import BREAKS_AT_ONE_PLACE


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def made(function, dynamic=False, **options):
    return Compiled(function, dynamic=dynamic, options={"cache": False, **options})


def test_beyond_the_limit_one_warning_and_plain_python():
    compiled = made(lambda x: x * 2, recompile_limit=3)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for size in range(1, 9):
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(compiled.variants) == 3
    assert [str(w.message).count("3 variants exist") for w in heard] == [1]
    assert {row.reason for row in compiled.breaks} == {"recompile_limit"}


def test_a_kind_of_call_keeps_its_variant_among_others():
    compiled = made(lambda x: x * 2)
    for size in (1, 2, 3, 1, 2, 3):
        compiled(torch.ones(size))
    assert len(compiled.variants) == 3


def test_a_break_that_no_shape_avoids_is_not_tried_for_ever():
    before = preheat.counters()["breaks"]

    def program(x):
        with torch.inference_mode():
            return x.sum().item()

    compiled = made(program)
    for size in range(1, 40):
        assert compiled(torch.ones(size)) == size
    assert preheat.counters()["breaks"] - before <= BREAKS_AT_ONE_PLACE + CAPTURE_ATTEMPTS


def test_a_call_that_raises_is_interpreted_a_bounded_number_of_times():
    captures, breaks = [], []
    unsubscribe = subscribe(lambda event: (captures if event.kind == "capture" else breaks).append(event), ["capture", "break"])

    def program(x):
        raise KeyError("always")

    compiled = made(program)
    try:
        for _ in range(CAPTURE_ATTEMPTS * RAISED_AN_ATTEMPT + 4):
            with pytest.raises(KeyError, match="always"):
                compiled(torch.ones(3))
    finally:
        unsubscribe()
    assert len(captures) == CAPTURE_ATTEMPTS * RAISED_AN_ATTEMPT
    (row,), (event,) = compiled.breaks, breaks
    assert (row.reason, row.detail, row.file, row.code) == ("raises", "KeyError", __file__, 'raise KeyError("always")')
    assert row.line == program.__code__.co_firstlineno + 1 and event.data["reason"] == "raises"


def test_errors_where_one_graph_is_asked_for_are_the_programs_own():
    """Where it goes on without, it is compiled: errors are no breaks, and close nothing."""
    def program(x, n):
        if n < 0:
            raise KeyError("negative")
        return x * 2

    compiled = Compiled(program, fullgraph=True, dynamic=False, options={"cache": False})
    for _ in range(CAPTURE_ATTEMPTS * RAISED_AN_ATTEMPT + 1):
        with pytest.raises(KeyError, match="negative"):
            compiled(torch.ones(3), -1)
    assert compiled(torch.ones(3), 1).sum() == 6
    assert len(compiled.variants) == 1 and not compiled.breaks


def test_a_program_whose_first_calls_raise_is_compiled():
    def program(x, n):
        y = x * 2
        if n > 100:
            raise ValueError("too many")
        return y + n

    compiled, before = made(program), preheat.counters()["captures"]
    for n in (101, 102, 103):
        with pytest.raises(ValueError, match="too many"):
            compiled(torch.ones(3), n)
    for n in (1, 1, 1):
        assert torch.equal(compiled(torch.ones(3), n), program(torch.ones(3), n))
    assert preheat.counters()["captures"] - before == 1


def test_the_traceback_of_a_first_call_shows_no_frame_of_the_machine():
    def program(x):
        return x[9]

    with pytest.raises(IndexError) as raised:
        made(program)(torch.ones(3))
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert not [file for file in files if "/preheat/capture/" in file]
    assert files[-1] == __file__


def test_a_program_without_tensors_is_native_too():
    compiled = made(lambda x: (x.device, x.dtype, x.shape))
    x = torch.ones(2, 3)
    assert compiled(x) == compiled(x) == (x.device, x.dtype, x.shape)
    assert compiled.variants[0].is_native


def test_globals_of_the_module_may_change_between_calls():
    space = {"torch": torch, "weight": torch.ones(3), "step": 0}
    exec("def program(x): return torch.tanh(x * weight)", space)
    compiled = made(space["program"])
    x = torch.ones(3)
    for step in range(20):
        space["step"] = step
        assert torch.allclose(compiled(x), torch.tanh(x * space["weight"]))
    for step in range(20):
        space["weight"] = torch.full((3,), float(step))
        assert torch.allclose(compiled(x), torch.tanh(x * space["weight"]))
    assert len(compiled.variants) == 1
