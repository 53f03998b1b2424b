"""What the environment asks to be reported, from the first moment on.

PREHEAT_LOGS=graph_breaks,recompiles     lines through Python logging, see report/logs.py
PREHEAT_COMPILE_DEBUG=1                  every stage as a text file, see report/stages.py

Where standard error is a terminal, a search tells there how far it is: report/progress.py.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from preheat.base.events import bus
from preheat.report.logs import Logs, checked_channels
from preheat.report.progress import Progress
from preheat.report.stages import StageFolder


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Subscribes what `environment` asks for. Raises UserError for an unknown log channel."""
    channels = checked_channels(environment.get("PREHEAT_LOGS", ""))
    if channels:
        logs = Logs(channels)
        bus.subscribe(logs, logs.kinds)
    if sys.stderr is not None and sys.stderr.isatty():
        bus.subscribe(Progress(), Progress.kinds)
    if environment.get("PREHEAT_COMPILE_DEBUG") == "1":
        folder = environment.get("PREHEAT_COMPILE_DEBUG_DIR") or "preheat_debug"
        stages = StageFolder(Path(folder) / f"process_{os.getpid()}")
        bus.subscribe(stages, stages.kinds)
