"""One cache folder a test session, away from the user's; few threads."""

import functools
import gc
import os
import tempfile
import types
from pathlib import Path

import pytest
import torch

from preheat.dispatch import Compiled
from preheat.generate import build

_FOLDER = tempfile.TemporaryDirectory(prefix="preheat_tests_")
os.environ["PREHEAT_CACHE_DIR"] = _FOLDER.name
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# `torch.manual_seed` keeps the stack of its caller for each kind of device that has not begun: a tenth of the suite's time.
for devices in (torch.cuda, torch.xpu, torch.mtia):
    devices.traceback = types.SimpleNamespace(format_stack=list)


def pytest_collection_finish():
    """Fifteen thousand tests and what they import stay: hundreds of collections would walk them, half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    """Hundreds of tests have the same small kernels, and what LLVM makes of a text is always the same."""
    made, build.compile_text = build.compile_text, functools.cache(build.compile_text)
    yield
    build.compile_text = made


@pytest.fixture(autouse=True)
def no_fault_of_ours(request, monkeypatch):
    """A fault of the compiler runs eager and would look like success: only tests that are marked `faults` may have one."""
    told, faults = Compiled._report_fault, []

    def report(self, place, fault):
        faults.append(fault)
        told(self, place, fault)

    monkeypatch.setattr(Compiled, "_report_fault", report)
    yield
    if not request.node.get_closest_marker("faults"):
        assert not faults, f"a fault of the compiler: {faults[0]!r}"


def pytest_addoption(parser):
    parser.addoption(
        "--bless",
        action="store_true",
        help="rewrite the golden files; read the diff before you commit it",
    )


@pytest.fixture
def golden(request):
    """`golden("name", text)`: the text equals tests/golden/name.txt, or becomes it under --bless."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        text = text.rstrip() + "\n"
        if request.config.getoption("--bless"):
            path.write_text(text)
        assert path.exists(), f"no golden file {path.name}: make it with --bless"
        assert text == path.read_text(), (
            f"{path.name} differs: read both, then --bless if the new one is right"
        )

    return compare


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache for this test alone."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
