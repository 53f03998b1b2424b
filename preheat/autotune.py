"""What the modes "max-autotune" ask for: a bench to search with, and a place of their own in the cache.

    search_settings("max-autotune", "preheat", options)     {"search": True, ..}
    bench_of("Net.forward", "max-autotune", ..)             Bench(..); None for modes that do not search
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from preheat.base.later import later
from preheat.base.options import MODES, OPTIONS
from preheat.bridge.ambient import AMBIENT
from preheat.ir.bench import Bench
from preheat.ir.plan import Image
from preheat.store.disk import Disk
from preheat.store.tuned import tuned_table

measure = later("preheat.run.measure")


def bench_of(
    name: str, mode: str | None, backend: str | Callable, options: Mapping[str, Any], disk: Disk | None,
    runtime: Callable[[], Image | None],
) -> Bench | None:
    """The bench for graphs of `name`; None where the mode does not search."""
    settings = search_settings(mode, backend, options)
    if not settings:
        return None
    is_deterministic = settings["deterministic"] or AMBIENT["deterministic"]()[0]
    return Bench(
        name, lambda device: measure.measure_on(device, runtime()), functools.partial(tuned_table, disk),
        _option(options, "autotune_seconds"), is_deterministic, settings["graphed"])


def search_settings(mode: str | None, backend: str | Callable, options: Mapping[str, Any]) -> dict[str, Any]:
    """What tells apart code that was searched for; {} where the mode does not search."""
    row = MODES[mode or "default"]
    if backend != "preheat" or not row.searches:
        return {}
    return {
        "search": True, "deterministic": _option(options, "deterministic"), "graphed": row.graphs}


def _option(options: Mapping[str, Any], name: str) -> Any:
    return options.get(name, OPTIONS[name].default)
