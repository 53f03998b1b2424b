"""Kernels for a GPU compiled side by side, by processes; by threads where there can be none.

    WORKERS.start("cuda", 90, 32)        a process begins to import Triton, while the program is recorded
    WORKERS.submit(job).result()         -> Made, as `triton_worker.compiled(job)`

There is one process at most, `triton_worker.serve`, which forks as often as kernels are compiled at a time. It is talked to by two
pipes, needs nothing of the user's `__main__`, ends with this process or after a minute without work, and is
waited for. PREHEAT_COMPILE_WORKERS bounds how many kernels are compiled at a time; 1: one after the other,
in the thread that asks.

Guarantees: each job is answered. Where no process can be started, or one is lost with work undone, this
process does the work, reported. A kernel in which Triton or LLVM crashes is an InternalError and not tried
here.
"""

import atexit
import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from preheat.base.errors import InternalError, UserError
from preheat.base.events import emit
from preheat.generate import triton_worker
from preheat.generate.triton_worker import Job, Made, Messages, send

MOST = 16  # kernels at a time; each takes 50 to 100 MB
IDLE_S, GOODBYE_S = 60.0, 2.0
# glibc's: pages of 2 MB where the system gives them when asked, and room for more at once. LLVM and ptxas touch new memory all the
# time: 85 kernels take 79 thousand page faults so, not 294 thousand, a third of the system's processor time less.
MEMORY = {"MALLOC_TOP_PAD_": str(16 << 20)}
HUGE_PAGES = "glibc.malloc.hugetlb=1"


class Workers:
    """See the module docstring. Threads may call at once; a child of a fork begins anew.

    idle_s   how long a process waits for more
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self.idle_s = idle_s
        self._why = ""  # there are no processes here
        self._begin_anew()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)

    def _begin_anew(self) -> None:
        self._lock, self._lock_of_threads = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: dict[int, tuple[Job, Future]] = {}
        self._count = 0

    def start(self, maker: str, arch: int, warp: int) -> None:
        """Begins a process for such a GPU, if there is none and there may be one."""
        with self._lock:
            self._started((maker, arch, warp))

    def submit(self, job: Job) -> "Future[Made]":
        """The answer to `job`, an InternalError if Triton refuses it."""
        with self._lock:
            process = self._started((job.maker, job.arch, job.warp))
            if process is not None:
                self._count += 1
                answer: Future[Made] = Future()
                self._waiting[self._count] = job, answer
                try:
                    send(process.stdin.fileno(), (self._count, tuple(job)))
                    return answer
                except OSError:  # it has just ended
                    if self._waiting.pop(self._count, None) is None:  # and its reader has seen that
                        return answer
        return self._here(job)

    def close(self) -> None:
        """Ends the process, and waits until it has ended."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.stdin.close()
            try:
                process.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # ------------------------------------------------------------------ in processes
    def _started(self, gpu: tuple[str, int, int]) -> subprocess.Popen | None:
        most = bound()
        if self._process is not None or self._why or most == 1:
            return self._process
        if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
            return self._given_up(f"{sys.executable!r} is no Python")
        command = [sys.executable, "-P", triton_worker.__file__]
        try:
            self._process = process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=_environment())
            send(process.stdin.fileno(), ([*map(str, sys.path)], most, self.idle_s, *gpu))
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._process = None
            return self._given_up(str(error))
        return process

    def _given_up(self, why: str) -> None:
        if not self._why:
            self._why = why
            emit("fallback", what="compiling kernels in processes of their own", why=why)

    def _read(self, process: subprocess.Popen) -> None:
        """Takes the answers of `process` until it ends."""
        messages = Messages()
        while data := process.stdout.read(1 << 20):
            for number, what, value in messages.fed(data):
                if number < 0:
                    if what == "failed":
                        self._given_up(value)
                    continue
                job, answer = self._waiting.pop(number)
                if what == "made":
                    answer.set_result(Made(*value))
                elif what == "refused":
                    answer.set_exception(_refused(job, value))
                elif value in (0, signal.SIGKILL):  # nothing that the kernel has done
                    self._pass_on(job, answer)
                else:
                    why = f"the compiler crashed ({signal.Signals(value).name})"
                    answer.set_exception(_refused(job, why))
        with self._lock:
            if self._process is process:
                self._process = None
            lost, self._waiting = self._waiting, {}
        code = process.wait()
        if lost and code:
            self._given_up(f"the process has ended with {code}")
        for job, answer in lost.values():
            self._pass_on(job, answer)

    def _forked(self) -> None:
        """In a child of a fork: the process is the parent's."""
        process = self._process
        self._begin_anew()
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # nothing to wait for

    # ------------------------------------------------------------------ in this process
    def _here(self, job: Job) -> "Future[Made]":
        _import_triton()
        most = bound()
        if most == 1:
            answer: Future[Made] = Future()
            try:
                answer.set_result(_compiled(job))
            except InternalError as error:
                answer.set_exception(error)
            return answer
        with self._lock_of_threads:  # not the other one, which is held while a job is sent
            if self._threads is None:
                self._threads = ThreadPoolExecutor(most)
            return self._threads.submit(_compiled, job)

    def _pass_on(self, job: Job, answer: Future) -> None:
        def told(made: Future) -> None:
            error = made.exception()
            if error is None:
                answer.set_result(made.result())
            else:
                answer.set_exception(error)

        self._here(job).add_done_callback(told)


def _environment() -> dict[str, str]:
    """That of a process that compiles; what the user has set stays."""
    tunables = [*filter(None, [os.environ.get("GLIBC_TUNABLES")])]
    if not any("hugetlb" in text for text in tunables):
        tunables.append(HUGE_PAGES)
    return {**MEMORY, **os.environ, "GLIBC_TUNABLES": ":".join(tunables)}


def bound() -> int:
    """How many kernels are compiled at a time: PREHEAT_COMPILE_WORKERS, else this process's share of the
    processors that it may run on. Raises UserError for what is no such number."""
    given = os.environ.get("PREHEAT_COMPILE_WORKERS", "")
    if given:
        if not given.isdecimal() or int(given) < 1:
            raise UserError(f"PREHEAT_COMPILE_WORKERS must be a whole number from 1 on, got {given!r}")
        return int(given)
    here = os.environ.get("LOCAL_WORLD_SIZE", "")  # processes like this one, by torchrun
    share = len(os.sched_getaffinity(0)) // (int(here) if here.isdecimal() and int(here) else 1)
    return max(1, min(MOST, share))


def _compiled(job: Job) -> Made:
    try:
        return triton_worker.compiled(job)
    except Exception as error:
        raise _refused(job, f"{type(error).__name__}: {error}") from error


def _refused(job: Job, why: str) -> InternalError:
    return InternalError(f"Triton refused the kernel {job.name}: {why}")


@functools.cache
def _import_triton() -> None:
    """Not from several threads at once."""
    importlib.import_module("triton")


WORKERS = Workers()
