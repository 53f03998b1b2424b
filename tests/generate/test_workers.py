"""Kernels compiled by processes of their own: the same binaries, and nobody notices."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preheat.base.errors import InternalError, UserError
from preheat.base.events import bus
from preheat.generate import triton_worker
from preheat.generate.triton_worker import Job, compiled, lowered
from preheat.generate.workers import Workers, bound

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install '.[dev]'")
TEXT = """
import triton
import triton.language as tl
from triton.language.extra import libdevice
@triton.jit
def scaled(p0, p1):
    x = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(p1 + x, libdevice.erf(tl.load(p0 + x)) * {factor})
"""
ROOT = Path(__file__).parents[2]


def job(factor=2.0, text=""):
    return Job(
        "scaled", text or TEXT.format(factor=factor), f"<scaled {factor}>", ("*fp32",) * 2, (16, 16), 4, 0,
        False, False, "cuda", 90, 32)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setenv("PREHEAT_COMPILE_WORKERS", "2")
    made = Workers()
    yield made
    made.close()


@pytest.fixture
def fallbacks():
    told = []
    stop = bus.subscribe(told.append, {"fallback"})
    yield told
    stop()


def is_alive(process):
    """Neither ended nor a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_both_ways_through_triton_and_both_processes_give_one_binary(workers, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    jobs = [job(float(k)) for k in range(5)]
    answers = [workers.submit(each) for each in jobs]
    for each, answer in zip(jobs, answers):
        assert answer.result() == compiled(each)
    texts, metadata = lowered(jobs[0], is_direct=False)
    assert texts["cubin"] == answers[0].result().cubin
    assert metadata["shared"] == answers[0].result().shared_bytes
    assert any(tmp_path.rglob("*.cubin"))  # it was the other way


def test_stages_that_take_something_else_are_left_to_triton(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    expected = compiled(job())
    monkeypatch.setattr(triton_worker, "_is_known", lambda *types: False)
    assert not any(tmp_path.rglob("*.cubin"))
    assert compiled(job()) == expected
    assert any(tmp_path.rglob("*.cubin"))


def test_what_triton_refuses_is_an_error_and_no_more(workers, fallbacks):
    with pytest.raises(InternalError, match="(?s)scaled: .*no_such_thing"):
        workers.submit(job(text=TEXT.format(factor="no_such_thing"))).result()
    assert workers.submit(job()).result().cubin and not fallbacks


def test_a_crash_is_that_kernels_alone(workers, fallbacks):
    text = "import os\nos.kill(os.getpid(), 11)"
    with pytest.raises(InternalError, match="crashed .SIGSEGV"):
        workers.submit(job(text=text)).result()
    assert workers.submit(job()).result().cubin and not fallbacks


def test_a_job_that_the_system_has_killed_is_done_here(workers):
    text = f"import os\nif os.getpid() != {os.getpid()}:\n    os.kill(os.getpid(), 9)\n"
    dying = job(text=text + TEXT.format(factor=2.0))
    assert workers.submit(dying).result() == compiled(dying)


def test_jobs_share_a_process_and_a_killed_one_is_replaced(workers, fallbacks, monkeypatch):
    """While others are at work, a process waits for the next job; nobody needs it."""
    told = "raise ValueError(f'process {__import__(\"os\").getpid()}')"
    answers = [workers.submit(job(text=told)) for _ in range(6)]
    found = [re.search(r"process (\d+)", str(answer.exception()))[1] for answer in answers]
    assert len(set(found)) <= 2 and not {str(os.getpid()), str(workers._process.pid)} & set(found)
    slow = workers.submit(job(text="import time\ntime.sleep(0.5)\n" + TEXT.format(factor=2.0)))
    process = int(re.search(r"process (\d+)", str(workers.submit(job(text=told)).exception()))[1])
    os.kill(process, signal.SIGKILL)
    assert workers.submit(job(4.0)).result() == compiled(job(4.0))
    assert slow.result().cubin and not fallbacks


def test_a_process_that_was_killed_is_reported_and_its_work_done_here(workers, fallbacks):
    workers.submit(job()).result()
    process = workers._process
    slow = f"import os, time\nif os.getpid() != {os.getpid()}:\n    time.sleep(60)\n"
    lost = job(text=slow + TEXT.format(factor=2.0))
    answer = workers.submit(lost)
    process.kill()
    assert answer.result() == compiled(lost)
    assert [event.data["why"] for event in fallbacks] == ["the process has ended with -9"]
    assert workers.submit(job(3.0)).result() == compiled(job(3.0)) and workers._process is None


def test_where_nothing_can_be_started_the_work_is_done_here(workers, fallbacks, monkeypatch):
    for executable in ("/usr/bin/service", "/nowhere/python3", None):
        monkeypatch.setattr(sys, "executable", executable)
        alone = Workers()
        answers = [alone.submit(job(float(k))) for k in range(3)]
        assert [answer.result() for answer in answers] == [compiled(job(float(k))) for k in range(3)]
    assert len(fallbacks) == 3 and "no Python" in fallbacks[0].data["why"]


def test_a_process_without_triton_says_so(workers, fallbacks, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    assert workers.submit(job()).result() == compiled(job())
    assert "No module named 'triton'" in fallbacks[0].data["why"]


def test_it_ends_when_there_is_nothing_to_do_and_begins_again(monkeypatch, fallbacks):
    monkeypatch.setenv("PREHEAT_COMPILE_WORKERS", "2")
    workers = Workers(idle_s=0.2)
    workers.submit(job()).result()
    process = workers._process.pid if workers._process else 0
    wait_until(lambda: workers._process is None)
    wait_until(lambda: not process or not Path(f"/proc/{process}").exists())  # no zombie either
    assert workers.submit(job(3.0)).result() == compiled(job(3.0)) and not fallbacks
    workers.close()


def test_a_child_of_a_fork_has_processes_of_its_own(workers):
    workers.submit(job()).result()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            made = workers.submit(job(5.0)).result(timeout=60)
            os.write(writer, made.cubin)
            workers.close()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == compiled(job(5.0)).cubin
    os.waitpid(child, 0)
    assert workers.submit(job(6.0)).result() == compiled(job(6.0))


def test_how_many_is_for_the_user_to_say(monkeypatch):
    monkeypatch.setenv("PREHEAT_COMPILE_WORKERS", "1")
    alone = Workers()
    alone.start("cuda", 90, 32)
    assert bound() == 1 and alone.submit(job()).result() == compiled(job()) and alone._process is None
    with pytest.raises(InternalError, match="no_such_thing"):
        alone.submit(job(text=TEXT.format(factor="no_such_thing"))).result()
    for text in ("0", "many", "-1", "1.5"):
        monkeypatch.setenv("PREHEAT_COMPILE_WORKERS", text)
        with pytest.raises(UserError, match="PREHEAT_COMPILE_WORKERS"):
            bound()
    monkeypatch.delenv("PREHEAT_COMPILE_WORKERS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(96)))
    assert bound() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert bound() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "512")
    assert bound() == 1


SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {here!r}]
from preheat.generate.workers import WORKERS
from generate.test_workers import job
WORKERS.submit(job()).result()
print(WORKERS._process.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "import time; time.sleep(600)", "import os; os._exit(0)"])
def test_nothing_is_left_behind(end):
    """By a program from standard input, without a `__main__` guard, that ends, is killed, or just stops."""
    text = SCRIPT.format(root=str(ROOT), here=str(ROOT / "tests")) + end
    program = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PREHEAT_COMPILE_WORKERS": "2"})
    program.stdin.write(text)
    program.stdin.close()
    process = int(program.stdout.readline())
    if "sleep" in end:
        assert is_alive(process)
        program.send_signal(signal.SIGKILL)
    program.wait(60)
    program.stdout.close()
    wait_until(lambda: not is_alive(process))
