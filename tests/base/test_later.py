"""Modules that load when a name of theirs is first used."""

import sys

import pytest

from preheat.base.later import later
from tests.processes import printed


def test_a_module_loads_when_it_is_first_looked_at(tmp_path, monkeypatch):
    (tmp_path / "loaded_later.py").write_text("number = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = later("loaded_later")
    assert not hasattr(module, "__wrapped__") and "loaded_later" not in sys.modules
    assert module.number == 3
    sys.modules["loaded_later"].number = 4
    assert module.number == 4  # as it is now
    with pytest.raises(AttributeError, match="loaded_later.*absent"):
        module.absent


def test_a_first_call_without_gradients_loads_what_it_needs():
    text = (
        "import sys, torch, preheat\n"
        "with torch.no_grad():\n"
        "    preheat.compile(lambda x: x * 2 + 1, options={'cache': False})(torch.ones(3))\n"
        "print(*(name for name in sys.modules if name.startswith('preheat.')))\n")
    loaded = set(printed("-c", text).split())
    assert "preheat.schedule.fuse" in loaded
    assert loaded.isdisjoint({
        "preheat.differentiate", "preheat.capture.joint", "preheat.transform.partition",
        "preheat.generate.triton", "preheat.generate.workers", "preheat.tuning",
        "preheat.capture.size_rules", "preheat.run.trained", "preheat.run.measure",
        "preheat.base.rewrites"})
