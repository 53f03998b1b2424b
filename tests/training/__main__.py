"""python -m tests.training START COUNT [regions] [-j N]: that many random training programs, or such with
checkpoints; failures are printed."""

import sys
import traceback
from collections import Counter

from tests import spread
from tests.training.check import check


def run(start: int, count: int, parts: str = "") -> Counter:
    """Checks the programs of these seeds; prints and counts failures."""
    counts = Counter(programs=count)
    for seed in range(start, start + count):
        try:
            check(seed, has_regions=parts == "regions")
        except AssertionError as error:
            counts["wrong"] += 1
            print(error, flush=True)
        except Exception:
            counts["faults"] += 1
            print(f"seed {seed} broke the check\n{traceback.format_exc()}", flush=True)
    return counts


if __name__ == "__main__":
    sys.exit(spread.main("tests.training", run, (), ("parts",)))
