"""Preheat makes PyTorch programs fast: `preheat.compile(model)` instead of `torch.compile(model)`.

    model = preheat.compile(model)      a module that computes the same, faster
    @preheat.compile                    or a decorator, with or without arguments
    print(preheat.explain(f)(x))        what was compiled, what was not and why

Importing this package loads neither torch nor the compiler; the names below load what they need.
"""

import importlib
from typing import TYPE_CHECKING, Any

from preheat.base.collector import paused_collector
from preheat.base.errors import InternalError, PreheatError, RecompileError, UserError
from preheat.base.marks import is_compiling
from preheat.base.stance import stance
from preheat.report.counters import counters
from preheat.report.start import start

if TYPE_CHECKING:
    from preheat.face import compile, disable, explain, options, reset

__version__ = "0.1.0"
__all__ = [
    "InternalError",
    "PreheatError",
    "RecompileError",
    "UserError",
    "bucketed",
    "compile",
    "counters",
    "disable",
    "explain",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "options",
    "reset",
    "seal",
    "stance",
    "warmup",
]

_FACE = (
    "bucketed", "compile", "disable", "explain", "mark_dynamic", "mark_static", "options", "reset",
    "seal", "warmup",
)


def __getattr__(name: str) -> Any:
    """The names of `preheat.face`, loaded at their first use (PEP 562)."""
    if name not in _FACE:
        raise AttributeError(f"module 'preheat' has no attribute {name!r}")
    with paused_collector(is_lasting=True):
        face = importlib.import_module("preheat.face")
    for known in _FACE:
        globals()[known] = getattr(face, known)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


start()
