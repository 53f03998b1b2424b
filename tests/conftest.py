"""One cache folder a test session, away from the user's; few threads."""

import os
import tempfile

import pytest

_FOLDER = tempfile.TemporaryDirectory(prefix="preheat_tests_")
os.environ["PREHEAT_CACHE_DIR"] = _FOLDER.name
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache for this test alone."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
