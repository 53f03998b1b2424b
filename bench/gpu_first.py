"""First calls on a GPU, each in a process of its own: with empty caches, then with those that it left.

    python -m bench.gpu_first                                every model, Preheat and eager
    python -m bench.gpu_first ResNet "train GPT-2" --compile   torch.compile beside them
    python -m bench.gpu_first ViT --parts                    what Preheat's seconds are made of

The clock starts at `compile(...)` and stops when the device is done with the result; of training, with
the third step (torch.compile does everything in its first, Preheat records in two and compiles in the
third). CUDA is up by then, the model made. What is printed as "beyond" is less eager's own time, whose
process loads cuBLAS, cuDNN and torch's kernels, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

import preheat
from bench.gpu import Row, models, trained_models, training_step
from preheat.base.events import bus

FOLDERS = ("PREHEAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
STEPS = 3


def first(name: str, backend: str) -> dict[str, Any]:
    """Seconds of each first call of the row in this process, and what Preheat tells of them."""
    row = next(row for row in _rows() if row.name == name)
    torch.manual_seed(0)
    program, args = row.make()
    torch.cuda.synchronize()
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


def _in_its_own(name: str, backend: str, folder: str) -> dict[str, Any]:
    environment = {**os.environ, **{key: os.path.join(folder, key) for key in FOLDERS}}
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_first", "--one", backend, name], env=environment,
        capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def _seconds(found: dict[str, Any], eager: float) -> str:
    return "failed" if "failed" in found else f"{sum(found['calls']) - eager:.2f}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_first")
    parser.add_argument("words", nargs="*", help="rows whose names have one of these words")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("--parts", action="store_true", help="Preheat's events with their seconds")
    parser.add_argument("--json", help="writes everything that was measured to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(first(asked.words[0], asked.one)), flush=True)
        return 0
    backends = ["preheat"] + ["torch.compile"] * asked.compile
    print("| model | eager itself s | " + " | ".join(
        f"{name} {cache} s" for cache in ("cold", "warm") for name in backends) + " |", flush=True)
    results: dict[str, Any] = {}
    for row in _rows():
        if asked.words and not any(word in row.name for word in asked.words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = {("eager", ""): _in_its_own(row.name, "eager", folder)}
            for name in backends:
                for cache in ("cold", "warm"):
                    found[name, cache] = _in_its_own(row.name, name, os.path.join(folder, name))
        eager = sum(found["eager", ""].get("calls", ()))
        print(f"| {row.name} | {eager:.2f} | " + " | ".join(
            _seconds(found[name, cache], eager) for cache in ("cold", "warm") for name in backends) + " |",
            flush=True)
        results[row.name] = {" ".join(key).strip(): value for key, value in found.items()}
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
