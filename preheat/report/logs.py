"""Logs: events as lines that a person reads, through Python's logging.

    PREHEAT_LOGS=graph_breaks,recompiles python train.py
    [preheat graph_breaks] model.py:12: host_call: print(x)  (in forward)
        print("loss", x)
        move it out of the compiled function

`CHANNELS` says which events a channel shows and how. Each channel is the logger
`preheat.<channel>`, so `logging` configures it as any other; where no handler is set, standard
error gets the lines.
"""

import logging
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

from preheat.base.errors import UserError, nearest
from preheat.base.events import Event
from preheat.base.fallbacks import with_hint


class Channel(NamedTuple):
    """Events of `kind` that `shows` accepts, as the text that `line` makes."""

    kind: str
    line: Callable[[dict, float], str]
    shows: Callable[[dict], bool] = lambda data: True


def _break(data: dict, seconds: float) -> str:
    place = f"{data.get('file') or '?'}:{data.get('line', 0)}"
    text = (
        f"{place}: {data.get('reason', '')}: {data.get('detail', '')}  (in {data.get('name', '?')})"
    )
    for key in ("code", "hint"):
        if data.get(key):
            text += "\n" + textwrap.indent(str(data[key]).strip(), "    ")
    return text


def _recompile(data: dict, seconds: float) -> str:
    hint = f"; {data['hint']}" if data.get("hint") else ""
    return f"{data.get('name', '?')}: a new variant, since {data.get('why', '')}{hint}"


def _block(data: dict, seconds: float) -> str:
    return f"{data.get('name', '?')}\n{data.get('text', '')}"


def _guards(data: dict, seconds: float) -> str:
    found = guard_lines(str(data.get("text", "")))
    return f"{len(found)} guards\n" + "\n".join(f"    {line}" for line in found)


def _cache(data: dict, seconds: float) -> str:
    what = {True: "hit", False: "miss", None: "note"}[data.get("hit")]
    return f"{what} {data.get('name', '?')} {data.get('why', '')}".rstrip() + _took(seconds)


def _compile(data: dict, seconds: float) -> str:
    counts = ", ".join(f"{data[key]} {key}" for key in ("kernels", "calls", "bytes") if key in data)
    return f"{data.get('name', '?')}: {counts}{_took(seconds)}"


def _fallback(data: dict, seconds: float) -> str:
    what = data.get("what", data.get("name", "?"))
    return f"{what} runs op by op: {with_hint(data.get('why', ''))}"


def _tuned(data: dict, seconds: float) -> str:
    rows = "".join(f"\n    {text}: {us:.1f} us" for text, us in data.get("table", {}).items())
    return f"{data.get('name', '?')}: {data.get('choice', '')}{rows}"


def _direct(data: dict, seconds: float) -> str:
    return f"{data.get('name', '?')} has no CUDA graph, it is {data.get('why', '')}"


def _took(seconds: float) -> str:
    return f" ({seconds * 1e3:.1f} ms)" if seconds else ""


_GRAPHS = ("trace", "reinplace")  # as recorded, and after the last pass
CHANNELS: dict[str, tuple[Channel, ...]] = {
    "graph_breaks": (Channel("break", _break),),
    "recompiles": (Channel("guard_failed", _recompile),),
    "guards": (Channel("stage", _guards, lambda data: data.get("name") == "trace"),),
    "graph": (
        Channel("stage", _block, lambda data: data.get("name") in _GRAPHS),
        Channel("graph", _block),
    ),
    "output_code": (
        Channel("kernel", _block),
        Channel("stage", _block, lambda data: data.get("name") == "llvm"),
    ),
    "fusion": (Channel("stage", _block, lambda data: data.get("name") == "plan"),),
    "autotune": (Channel("tune", _tuned, lambda data: "choice" in data),),
    "cache": (Channel("cache", _cache),),
    "fallbacks": (Channel("fallback", _fallback),),
    "perf_hints": (
        Channel("fallback", _fallback), Channel("direct", _direct), Channel("compile", _compile)),
}


class Logs:
    """A listener that logs `channels`, names of `CHANNELS`."""

    def __init__(self, channels: Iterable[str]):
        self.channels = tuple(channels)
        self.kinds = frozenset(row.kind for name in self.channels for row in CHANNELS[name])
        for name in self.channels:
            _ready(logging.getLogger(f"preheat.{name}"), name)

    def __call__(self, event: Event) -> None:
        for name in self.channels:
            for row in CHANNELS[name]:
                if row.kind == event.kind and row.shows(event.data):
                    logging.getLogger(f"preheat.{name}").info(row.line(event.data, event.seconds))


def checked_channels(text: str) -> tuple[str, ...]:
    """The channels named in `text`, separated by commas; "all" is all of them.

    Raises UserError for an unknown one, naming the nearest.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if "all" in names:
        return tuple(CHANNELS)
    for name in names:
        if name not in CHANNELS:
            raise UserError(f"PREHEAT_LOGS: unknown channel {name!r}: {nearest(name, CHANNELS)}")
    return names


def guard_lines(trace_text: str) -> list[str]:
    """The guards of a printed trace, one a line."""
    lines = (line.strip() for line in trace_text.splitlines())
    return [line.removeprefix("guard ") for line in lines if line.startswith("guard ")]


def _ready(logger: logging.Logger, name: str) -> None:
    """Lets `logger` speak: by the handlers that the program set, else to standard error."""
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"[preheat {name}] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
