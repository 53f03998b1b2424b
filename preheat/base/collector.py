"""The garbage collector, paused while the compiler works.

    with paused_collector():
        plan = schedule(core, target)

Compiling makes tens of thousands of small immutable objects without cycles. Each few hundred of
them start a collection, some of which walk everything that torch and the program have made: 0.1 to
0.2 s each beside a transformers model, a third of a compilation. Not for code of users: when
their cycles are collected is theirs to decide.
"""

import contextlib
import gc
from collections.abc import Iterator

_was_frozen = False


@contextlib.contextmanager
def paused_collector(is_lasting: bool = False) -> Iterator[None]:
    """No automatic collection inside, in any thread. Nests; the first to enter decides what is
    restored, so a collector that was off stays off.

    is_lasting   what is made inside stays (modules): it counts as old at once, or the first
                 allocation afterwards would walk it all, and soon everything else
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_lasting and not _is_frozen():  # else someone keeps objects out on purpose
            gc.freeze()  # all generations join the permanent one, and their counts are zero,
            gc.unfreeze()  # and from there the oldest: nothing is walked
        if was_enabled:
            gc.enable()


def _is_frozen() -> bool:
    """Whether someone has frozen objects. To count them is to walk them, 10 ms a million, so it is not asked again."""
    global _was_frozen
    _was_frozen = _was_frozen or gc.get_freeze_count() > 0
    return _was_frozen
