"""One line that tells how far a search is, and how long it will take, on a terminal.

    preheat: tuning Net.forward: 41 of 120 steps, 9 s left
"""

import sys
from typing import TextIO

from preheat.base.events import Event


class Progress:
    """A listener that rewrites one line of `stream` and removes it at the end."""

    kinds = frozenset({"tune"})

    def __init__(self, stream: TextIO | None = None):
        self.stream, self.width = stream or sys.stderr, 0

    def __call__(self, event: Event) -> None:
        data = event.data
        if "seconds_left" not in data:
            return
        is_over = "choice" in data
        text = "" if is_over else (
            f"preheat: tuning {data.get('name', '?')}: {data['done']} of {data['total']} steps, "
            f"{data['seconds_left']:.0f} s left")
        if text or self.width:
            self.stream.write("\r" + text.ljust(self.width) + ("\r" if is_over else ""))
            self.stream.flush()
        self.width = len(text)
