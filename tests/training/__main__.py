"""python -m tests.training START COUNT: that many random training programs; failures are printed."""

import sys
import traceback

from tests.training.check import check

if __name__ == "__main__":
    start, count = map(int, sys.argv[1:3])
    failed = []
    for seed in range(start, start + count):
        print(f"seed {seed}", end="\r", file=sys.stderr, flush=True)
        try:
            check(seed)
        except AssertionError as error:
            failed.append(seed)
            print(error, flush=True)
        except Exception:
            failed.append(seed)
            print(f"seed {seed} broke the check", flush=True)
            traceback.print_exc()
    print(f"{count} programs from seed {start}: {len(failed)} failed {failed}")
    sys.exit(bool(failed))
