"""Random programs in several processes: each batch of seeds runs in a child of its own.

    python -m tests.sizes.check 0 20000 -j 16        failures as they come, then one line that sums up

A batch that dies costs its programs: its seeds are told and counted as faults. A child prints what fails, and
its counts as its last line.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BATCH = 50
_MARK = "counts "


def main(module: str, run: Callable[..., Counter], names: tuple[str, ...], options: tuple[str, ...] = ()) -> int:
    """Runs `python -m module START COUNT [-j N]`; returns the exit status.

    run(start, count, *options)   checks these programs, prints failures, and counts; "wrong" and "faults"
                                  among it are failures
    names                         what the last line tells, besides
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("start", type=int)
    parser.add_argument("count", type=int)
    for option in options:
        parser.add_argument(option, nargs="?")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    rest = [value for option in options if (value := getattr(given, option)) is not None]
    if given.child:
        print(_MARK + json.dumps(run(given.start, given.count, *rest)), flush=True)
        return 0
    began, total = time.monotonic(), Counter()
    ends = given.start + given.count
    batches = [(first, min(BATCH, ends - first)) for first in range(given.start, ends, BATCH)]
    with ThreadPoolExecutor(given.jobs) as pool:
        for counts, text in pool.map(lambda batch: _batch(module, *batch, rest), batches):
            total.update(counts)
            print(text, end="", flush=True)
    told = ", ".join(f"{total[name]} {name}" for name in ("programs", *names, "wrong", "faults"))
    print(f"{' '.join([module, *rest])} from seed {given.start}: {told}; {time.monotonic() - began:.0f} s")
    return bool(total["wrong"] or total["faults"])


def _batch(module: str, first: int, count: int, rest: list[str]) -> tuple[dict[str, int], str]:
    """The counts of some programs, and what was printed besides."""
    command = [sys.executable, "-W", "ignore", "-m", module, str(first), str(count), *rest, "--child"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    text, _, counts = done.stdout.rpartition(_MARK)
    if done.returncode or not counts:
        told = f"seeds {first} to {first + count - 1}: status {done.returncode}\n{done.stderr[-2000:]}\n"
        return {"programs": count, "faults": count}, done.stdout + told
    return json.loads(counts), text
