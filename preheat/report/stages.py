"""PREHEAT_COMPILE_DEBUG=1: every stage of every compile as a text file, in one folder.

preheat_debug/process_4711/
  000_capture.txt   001_trace.txt   002_aten.txt   003_core.txt   004_plan.txt   005_llvm.txt
"""

import logging
import re
from pathlib import Path

from preheat.base.events import Event

_log = logging.getLogger("preheat.debug")


class StageFolder:
    """A listener that writes each stage, and a line for what happened between, under `folder`."""

    kinds = frozenset({"stage", "kernel", "graph", "capture", "compile", "break"})

    def __init__(self, folder: Path):
        self.folder = folder
        self.count = 0

    def __call__(self, event: Event) -> None:
        if self.count == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            _log.warning("stages are written to %s", self.folder)
        name = event.data.get("name", "") if event.kind in ("stage", "kernel") else event.kind
        path = (
            self.folder / f"{self.count:03d}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', str(name))[:80]}.txt"
        )
        path.write_text(_text(event), encoding="utf-8")
        self.count += 1


def _text(event: Event) -> str:
    """The event's own text, or its data as lines."""
    if "text" in event.data:
        return str(event.data["text"]) + "\n"
    lines = [f"{key}: {value}" for key, value in event.data.items()]
    if event.seconds:
        lines.append(f"seconds: {event.seconds:.6f}")
    return "\n".join(lines) + "\n"
