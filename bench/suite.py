"""The whole run: for each model a cold and a warm first call of each backend in processes of their
own, then the steady state of all backends in one process, in alternation.

    measure("bert", ("eager", "preheat"))     a Result
    run(names, backends)                      a Report: every Result, and the copy bandwidth

Each backend has a cache folder of its own that is empty before the cold call; the warm call and the
steady process find it filled. One thread. What failed is in the result, with the error's last line.
"""

import compileall
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import preheat
from bench import models

NAMES = ("eager", "torch.compile", "preheat")
_LIMIT_S = 420


@dataclass
class Result:
    """Of one model: per backend, seconds of first calls, median microseconds, error, in training peak
    memory, what broke."""

    model: str
    cold_s: dict[str, float] = field(default_factory=dict)
    warm_s: dict[str, float] = field(default_factory=dict)
    steady_us: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0


@dataclass
class Report:
    machine: dict[str, Any]
    results: list[Result]
    bandwidth: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def run(
    names: Iterable[str],
    backends: tuple[str, ...] = NAMES,
    *,
    with_bandwidth: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measures `names` one after the other. `progress` is told what runs now."""
    byte_compile()
    results = [measure(name, backends, progress=progress) for name in names]
    report = Report(machine(), results)
    if with_bandwidth and "preheat" in backends:
        progress("copy bandwidth")
        report.bandwidth = _bandwidth()
    return report


def measure(
    model: str,
    backends: tuple[str, ...] = NAMES,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """One model, all of `backends`."""
    result = Result(model)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="preheat_bench_") as folder:
        environment = _environment(Path(folder))
        for backend in backends:
            for phase, seconds in (("cold", result.cold_s), ("warm", result.warm_s)):
                progress(f"{model}: {phase} first call, {backend}")
                found = _worker(
                    ["first", model, backend], environment, result.failures, f"{phase} {backend}"
                )
                if found:
                    seconds[backend] = found["first_s"]
                    result.counters[f"{phase} {backend}"] = found["counters"]
        working = [backend for backend in backends if backend in result.warm_s]
        if working:
            progress(f"{model}: steady state, alternating")
            found = _worker(
                ["steady", model, ",".join(working)], environment, result.failures, "steady"
            )
            result.steady_us, result.error = found.get("median_us", {}), found.get("error", {})
            result.counters["steady"] = found.get("counters", {})
        for backend in working if models.MODELS[model].kind == "training" else ():
            progress(f"{model}: peak memory, {backend}")
            found = _worker(
                [model, backend], environment, result.failures, f"memory {backend}", "bench.memory")
            if found:
                result.peak_bytes[backend] = found["peak_bytes"]
    result.took_s = time.perf_counter() - began
    return result


def byte_compile() -> None:
    """Preheat's own bytecode, as an installer leaves it (and as torch's is): editable installations
    and PYTHONDONTWRITEBYTECODE leave none, and a first call would time Python's parser, 0.3 s."""
    compileall.compile_dir(Path(preheat.__file__).parent, quiet=2)


def has_cpp_compiler() -> bool:
    """Whether torch.compile can work here: on a CPU it needs a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++", "c++"))


def backends_here(with_torch_compile: bool = True) -> tuple[str, ...]:
    """The backends that can be measured on this machine."""
    wanted = with_torch_compile and has_cpp_compiler()
    return tuple(name for name in NAMES if wanted or name != "torch.compile")


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "preheat": preheat.__version__,
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


# ---------------------------------------------------------------------------- helpers
def _bandwidth() -> dict[str, Any]:
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="preheat_bench_") as folder:
        found = _worker(["bandwidth"], _environment(Path(folder)), failures, "bandwidth")
    return found or failures


def _environment(folder: Path) -> dict[str, str]:
    """One thread, and empty caches under `folder`."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "PREHEAT_CACHE_DIR": str(folder / "preheat"),
        "PYTHONWARNINGS": "ignore",
    }


def _worker(
    arguments: list[str],
    environment: dict[str, str],
    failures: dict[str, str],
    what: str,
    module: str = "bench.worker",
) -> dict[str, Any]:
    """The JSON that a worker process printed last; {}, with the reason in `failures`, if none."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        failures[what] = f"no result after {_LIMIT_S} s"
        return {}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        failures[what] = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
            -1
        ]
        return {}
    return json.loads(lines[-1])


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()
