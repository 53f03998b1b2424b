"""Errors, in three kinds: the user's, what we cannot do (runs eager), and our own faults.

Every message says where, what, why and one thing to do. `nearest` finds the name a person meant.
"""

import difflib
import os


class PreheatError(Exception):
    """Base of every error that Preheat raises on its own account."""


class UserError(PreheatError):
    """The caller asked for something that does not exist or does not fit; nothing was changed."""


class RecompileError(UserError, RuntimeError):
    """Under the stance "fail_on_recompile" a call came that no compiled code fits. (torch raises
    RuntimeError for it.)"""


class BackendError(UserError):
    """A backend from outside raised, or gave something else than a function of its graph."""


class Unsupported(PreheatError):
    """What we cannot compile. Caught inside: the program runs eager and the report names `reason`.

    `reason` is a row of `base/fallbacks.py`, or of `base/reasons.py`; `detail` holds the values of
    this one case.
    """

    def __init__(self, reason: str, detail: str = "", file: str = "", line: int = 0):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.file, self.line = reason, detail, file, line


class InternalError(PreheatError):
    """A fault of ours: an invariant of Preheat does not hold."""


def nearest(name: str, known) -> str:
    """A hint that names the closest of `known`, or lists them when none is close."""
    known = sorted(str(k) for k in known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(known)


def is_strict() -> bool:
    """PREHEAT_STRICT=1: graphs are verified between passes, and faults of ours raise instead of
    running eager."""
    return os.environ.get("PREHEAT_STRICT") == "1"
