"""Compiled programs that do not check one kind of guard: what the fuzzers must notice.

    with without("len"):
        compiled(x)          every guard of kind "len" is left out of what is bound in the block

Captures record the guards as ever; only what is checked on later calls changes. Use the backend
"eager": its guards are checked from Python, and a tensor of other sizes meets no generated code.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import preheat.run.variant as variant
from preheat.ir.trace import Trace
from preheat.run.check import CLAIMS, Checker

KINDS = tuple(CLAIMS)


@contextlib.contextmanager
def without(kind: str) -> Iterator[None]:
    """Drops the guards of one kind; of "signature", there is none to drop."""

    def checker(trace: Trace, *args: Any, **kwargs: Any) -> Checker:
        nodes = tuple(
            dataclasses.replace(
                node, guards=tuple(guard for guard in node.guards if guard.kind != kind))
            for node in trace.nodes
        )
        return Checker(dataclasses.replace(trace, nodes=nodes), *args, **kwargs)

    variant.Checker = checker
    try:
        yield
    finally:
        variant.Checker = Checker
