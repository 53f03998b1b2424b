"""The long run: `make fuzz COUNT=20000 START=0`, or `python -m fuzz START COUNT` in tests/.

Every hundred programs run in a process of their own, so that a crash costs one program: its seed is
told and the rest go on. A failure prints its seed, the smallest program that still fails and what
differs; the last lines count what was compiled and what broke. The exit status is 1 if any failed.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz.check import Tally, check
from fuzz.grammar import Script, write
from fuzz.shrink import shrink

BATCH = 100
SHRINK_SECONDS = float(os.environ.get("SHRINK_SECONDS", "30"))


def main(start: int, count: int) -> int:
    """Prints failures as they come; how many there were."""
    tally, failed, began = Tally(), [], time.monotonic()
    for first in range(start, start + count, BATCH):
        last = min(first + BATCH, start + count)
        while first < last:
            first = _batch(first, last, tally, failed)
        seconds = time.monotonic() - began
        print(f"{last - start} programs, {len(failed)} failed, {seconds:.0f} s", flush=True)
    print(tally)
    print(f"failed: {failed}")
    return len(failed)


def _batch(first: int, last: int, tally: Tally, failed: list[int]) -> int:
    """Runs programs `first` to `last` in a child; the number to go on with."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-W", "ignore", "-m", "fuzz", "--child"]
        status = subprocess.run([*command, str(first), str(last), str(report)]).returncode
        rows = [json.loads(row) for row in _lines(report)]
    begun = first
    for row in rows:
        begun = row["seed"]
        if row["kind"] == "begun":
            continue
        tally.programs += 1
        tally.whole += row["whole"]
        tally.calls += row["calls"]
        tally.plain += row["plain"]
        tally.counters.update(row["counters"])
        tally.breaks.update(row["breaks"])
        if row["kind"] != "same":
            failed.append(begun)
    if status == 0:
        return last
    print(f"seed {begun}: the process ended with status {status}", flush=True)
    print(program(begun)[0].text, flush=True)
    failed.append(begun)
    return begun + 1


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def child(first: int, last: int, report: Path) -> None:
    """Runs and tells; one line of JSON before and after each program."""
    with report.open("w") as out:
        for seed in range(first, last):
            print(json.dumps({"seed": seed, "kind": "begun"}), file=out, flush=True)
            script, backend = program(seed)
            verdict = check(script, backend)
            if verdict.kind != "same":
                _tell(seed, script, backend, verdict)
            one = Tally()
            one.add(verdict)
            row = {
                "seed": seed, "kind": verdict.kind, "whole": one.whole, "calls": one.calls,
                "plain": one.plain, "counters": dict(one.counters), "breaks": dict(one.breaks),
            }
            print(json.dumps(row), file=out, flush=True)


def program(seed: int) -> tuple[Script, str]:
    """The program of a seed, and the backend that it is tried on."""
    return write(random.Random(seed)), "eager" if seed % 3 else "preheat"


def _tell(seed: int, script: Script, backend: str, verdict) -> None:
    kind = verdict.kind
    small = shrink(script, lambda one: check(one, backend).kind == kind, SHRINK_SECONDS)
    again = check(small, backend)
    print(f"---- seed {seed}, backend {backend}: {kind}\n{small.text}calls = {small.calls}\n"
          f"{again.message[-2500:]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
