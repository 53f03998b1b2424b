"""Tallies: numbers that native code counts up, where an event each time would cost more than the thing.

    tally = Tally(); tally.address      of an 8-byte word;  tally.value     what it holds
"""

import ctypes


class Tally:
    """A count that begins at 0."""

    def __init__(self) -> None:
        self._word = ctypes.c_int64(0)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._word)

    @property
    def value(self) -> int:
        return self._word.value


# CUDA graphs launched by this process in place of a plan's calls.
GRAPH_REPLAYS = Tally()
