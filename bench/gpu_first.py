"""First calls on a GPU, each in a process of its own: with empty caches, then with those that it left.

    python -m bench.gpu_first                                every model, Preheat and eager
    python -m bench.gpu_first ResNet ViT --compile           torch.compile beside them, cold and warm
    python -m bench.gpu_first "train ResNet-50 32 amp"       the row of that name alone
    python -m bench.gpu_first ViT --parts                    what Preheat's seconds are made of

The clock starts at `compile(...)` and stops when the device is done with the result; of training, with
the third step (torch.compile does everything in its first, Preheat records in two and compiles in the
third). CUDA is up by then, the model made, and Preheat's modules are compiled to bytecode, as those of what is
installed are. What is printed is less eager's own time, whose process loads cuBLAS, cuDNN and torch's kernels, too;
eager's first process on a machine reads these from the disk, so the second counts. Warm: another process, with the
caches that the first has filled, torch.compile's of graphs and of kernels among them. With --ahead 12 so many processes
import torch and make their model at once, before the first of them is told to measure; they measure one after the other.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import preheat
from bench.gpu import Row, models, trained_models, training_step
from preheat.base.events import bus

FOLDERS = ("PREHEAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
BACKENDS = ("preheat", "torch.compile")
STEPS = 3
READY = "ready\n"


def first(name: str, backend: str) -> dict[str, Any]:
    """Seconds of each first call of the row in this process, and what Preheat tells of them."""
    row = next(row for row in _rows() if row.name == name)
    torch.manual_seed(0)
    program, args = row.make()
    torch.cuda.synchronize()
    print(READY, end="", flush=True)
    sys.stdin.readline()
    parts: list[tuple[str, float, dict]] = []
    bus.subscribe(
        lambda e: parts.append((e.kind, e.seconds, {k: str(v)[:200] for k, v in e.data.items()})),
        {"capture", "compile", "cache", "fallback", "break"})
    calls = []
    with torch.set_grad_enabled(row.trains):
        step = training_step(program, args) if row.trains else lambda call: call
        for number in range(STEPS if row.trains else 1):
            began = time.perf_counter()
            if not number:
                call = step(_compiled(program, backend))
            call(*args)
            torch.cuda.synchronize()
            calls.append(time.perf_counter() - began)
        began = time.perf_counter()
        call(*args)
        torch.cuda.synchronize()
    return {"calls": calls, "next": time.perf_counter() - began, "parts": parts}


def _compiled(program: Any, backend: str) -> Any:
    if backend == "eager":
        return program
    return torch.compile(program) if backend == "torch.compile" else preheat.compile(program)


def _rows() -> list[Row]:
    return [*models(), *trained_models()]


class Process:
    """One measurement in a process of its own, which has been started and waits for its turn."""

    def __init__(self, name: str, backend: str, folder: str):
        environment = {**os.environ, **{key: os.path.join(folder, key) for key in FOLDERS}}
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu_first", "--one", backend, name], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)

    def wait(self) -> None:
        """Until it is ready, or has failed."""
        for line in self.process.stdout:
            if line == READY:
                return

    def result(self) -> dict[str, Any]:
        out, _ = self.process.communicate("go\n")
        if self.process.returncode:
            self.errors.seek(0)
            return {"failed": self.errors.read()[-2000:]}
        return json.loads(out.splitlines()[-1])


def _measured(asked: list[tuple[str, str, str]], ahead: int) -> list[dict[str, Any]]:
    """Results for names of rows, backends and folders, in order."""
    results = []
    for begin in range(0, len(asked), ahead):
        processes = [Process(*one) for one in asked[begin:begin + ahead]]
        for process in processes:
            process.wait()
        for process, (name, backend, _) in zip(processes, asked[begin:]):
            results.append(process.result())
            print(f"    {name}, {backend}:", [round(s, 3) for s in results[-1].get("calls", ())], flush=True)
    return results


def _has_word(name: str, words: list[str]) -> bool:
    """Whether a row is meant: by its name, or by a word of it that is no row's name."""
    names = {row.name for row in _rows()}
    return not words or any(word == name if word in names else word in name for word in words)


def _seconds(found: dict[str, Any], eager: float) -> str:
    return "failed" if "failed" in found else f"{sum(found['calls']) - eager:.2f}"


def _ratio(found: dict[tuple[str, str], dict[str, Any]], cache: str, eager: float) -> str:
    """How many times as long torch.compile takes beyond eager."""
    ours, others = (found.get((name, cache), {}).get("calls") for name in BACKENDS)
    return f"{(sum(others) - eager) / max(sum(ours) - eager, 1e-9):.1f}" if ours and others else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_first")
    parser.add_argument("words", nargs="*", help="rows whose names have one of these words")
    parser.add_argument("--compile", nargs="*", help="torch.compile, too, of rows with one of these words")
    parser.add_argument("--parts", action="store_true", help="Preheat's events with their seconds")
    parser.add_argument("--json", help="writes everything that was measured to this file")
    parser.add_argument("--ahead", type=int, default=1, help="processes that are started at once")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(first(asked.words[0], asked.one)), flush=True)
        return 0
    compileall.compile_dir(Path(preheat.__file__).parent, quiet=2)
    rows = [row.name for row in _rows() if _has_word(row.name, asked.words)]
    kinds = [("eager", "first"), ("eager", ""), *((name, cache) for name in BACKENDS for cache in ("cold", "warm"))]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        order = [
            (row, *kind) for kind in kinds for row in rows if kind[0] != BACKENDS[1]
            or asked.compile is not None and _has_word(row, asked.compile)]
        measured = dict(zip(order, _measured(
            [(row, name, os.path.join(folder, name, row.replace("/", " "))) for row, name, _ in order],
            asked.ahead)))
    print("| model | eager itself s | " + " | ".join(
        f"{name} {cache} s" for name, cache in kinds[2:]) + " | ratio cold | ratio warm |")
    for row in rows:
        found = {kind: measured[row, *kind] for kind in kinds if (row, *kind) in measured}
        eager = sum(found["eager", ""].get("calls", ()))
        print(f"| {row} | {eager:.2f} | " + " | ".join(
            _seconds(found[kind], eager) if kind in found else "" for kind in kinds[2:])
            + f" | {_ratio(found, 'cold', eager)} | {_ratio(found, 'warm', eager)} |", flush=True)
        results[row] = {" ".join(key).strip(): value for key, value in found.items()}
        for key, value in found.items():
            if "failed" in value:
                print(*key, value["failed"])
            elif asked.parts and key[0] == "preheat":
                print("   ", key[1], "calls", [round(s, 3) for s in value["calls"]], "next",
                      round(value["next"], 4))
                for kind, seconds, data in value["parts"]:
                    print(f"        {kind} {seconds:.3f}", data)
        if asked.json:
            with open(asked.json, "w") as file:
                json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
