"""The programs of `programs.py` at 64 pairs of sizes, and at five without elements: eager's results, and few captures."""

import pytest
import torch

import preheat
from tests.sizes.check import differs, outcome
from tests.sizes.programs import NOTHING, PROGRAMS, SIZES


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "preheat"])
def test_every_size_gives_what_eager_gives(name, backend):
    program, most = PROGRAMS[name]
    compiled = preheat.compile(
        program, dynamic=True, backend=backend, options={"cache": False, "recompile_limit": 70})
    before = preheat.counters()["captures"]
    for size in (*SIZES, *NOTHING):
        if size == NOTHING[0]:
            captures = preheat.counters()["captures"] - before
            assert captures <= (most or len(SIZES)), captures
        x = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
        expected, found = outcome(program, (x,)), outcome(compiled, (x,))
        assert found[0] == expected[0], f"{size}: {found} instead of {expected}"
        if expected[0] == "value":
            wrong = differs(found[1], expected[1], backend == "eager")
            assert not wrong, f"{size}: {wrong}"
        else:
            assert found == expected
