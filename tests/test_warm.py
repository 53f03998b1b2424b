"""The second process: right on its first call, without tracing, generating, or a compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_programs
from tests.processes import printed

SCRIPT = Path(warm_programs.__file__)


def run(name, folder, *arguments, **environment):
    """What the program found, in a fresh process with the cache in `folder`."""
    environment = {
        **os.environ,
        "PREHEAT_CACHE_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    found = json.loads(
        printed(str(SCRIPT), name, *arguments, environment=environment).strip().splitlines()[-1])
    for ours, theirs in zip(found["found"], found["expected"]):
        assert nearly(ours, theirs), (ours, theirs)
    return found


def nearly(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(nearly, a, b))
    return a == b if isinstance(a, (str, bool)) else a == pytest.approx(b, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", warm_programs.PROGRAMS)
def test_a_warm_process_has_no_compiler(name, tmp_path):
    cold = run(name, tmp_path)
    assert cold["counters"]["captures"] == 1 and cold["counters"]["breaks"] == 0
    assert [name for name in cold["loaded"] if name == "torch._dynamo"] == []
    warm = run(name, tmp_path)
    assert warm["counters"]["cache_hits"] >= 1 and warm["counters"]["captures"] == 0
    assert warm["counters"]["compiles"] == 0
    assert warm["loaded"] == []


def test_a_warm_process_trains_without_a_compiler(tmp_path):
    cold = run("training", tmp_path)
    assert cold["counters"]["captures"] == 1 and cold["counters"]["compiles"] == 1
    warm = run("training", tmp_path)
    assert warm["counters"]["captures"] == 0 and warm["counters"]["compiles"] == 0
    assert warm["loaded"] == []


def test_a_warm_process_has_the_random_numbers_of_a_cold_one(tmp_path):
    run("training", tmp_path)  # of another option: nothing of it fits
    cold = run("generated", tmp_path)
    assert cold["counters"]["captures"] == 1 and cold["counters"]["compiles"] == 1
    warm = run("generated", tmp_path)
    assert warm["counters"]["captures"] == 0 and warm["counters"]["compiles"] == 0
    assert warm["loaded"] == [] and nearly(warm["found"], cold["found"])


def test_a_warm_process_compiles_nothing_for_sizes_that_are_new(tmp_path):
    cold = run("sizes", tmp_path, "7", "9", "12")
    assert cold["counters"]["captures"] == 2 and cold["counters"]["compiles"] == 2
    warm = run("sizes", tmp_path, "11", "5", "23", "16", "40", "11")
    assert warm["counters"]["captures"] == 0 and warm["counters"]["compiles"] == 0
    assert warm["counters"]["fallbacks"] == 0 and warm["loaded"] == []


def test_a_warm_process_captures_nothing_for_lists_of_other_lengths(tmp_path):
    cold = run("lists", tmp_path, "3", "5", "2", "1", "4", "9")
    assert cold["counters"]["captures"] <= 12, cold["counters"]
    warm = run("lists", tmp_path, "8", "1", "20", "3", "13", "2", "6")
    assert warm["counters"]["captures"] == 0 and warm["counters"]["compiles"] == 0, warm["counters"]
    assert warm["counters"]["interpreted"] == 0 and warm["loaded"] == []


def test_a_damaged_entry_is_a_miss(tmp_path):
    run("plain", tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "fields":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(bytes(data))
    again = run("plain", tmp_path)
    assert again["counters"]["captures"] == 1 and again["counters"]["cache_hits"] == 0
    assert run("plain", tmp_path)["counters"]["cache_hits"] == 1


def test_another_program_under_the_same_name_is_a_miss(tmp_path):
    """The code is part of what is checked: an edited file does not get the old file's results."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, body in ((first, "x + 1"), (second, "x + 2")):
        folder.mkdir()
        (folder / "edited.py").write_text(f"def fn(x):\n    return {body}\n")
        (folder / "go.py").write_text(
            "import torch, preheat, edited\n"
            "fn = preheat.compile(edited.fn)\n"
            "with torch.no_grad():\n    print(fn(torch.zeros(2)).tolist())\n"
        )
    environment = {**os.environ, "PREHEAT_CACHE_DIR": str(tmp_path / "cache")}
    found = [
        printed(str(folder / "go.py"), environment=environment).strip()
        for folder in (first, second, first)
    ]
    assert found == ["[1.0, 1.0]", "[2.0, 2.0]", "[1.0, 1.0]"]


def test_a_read_only_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    found = run("plain", tmp_path / "file" / "below")
    assert found["counters"]["captures"] == 1


@pytest.mark.slow
def test_sixteen_processes_share_one_folder(tmp_path):
    environment = {**os.environ, "PREHEAT_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "block"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        found = json.loads(out.strip().splitlines()[-1])
        assert all(map(nearly, found["found"], found["expected"]))
    assert run("block", tmp_path)["counters"]["cache_hits"] >= 1


def test_importing_preheat_is_light():
    heavy = ("torch", "llvmlite", "numpy")
    program = f"import preheat, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
