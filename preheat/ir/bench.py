"""Bench: what a search over kernels and plans has at hand, from floors that do not know each other.

    Bench("Net.forward", measure=.., table=.., seconds=120, is_deterministic=False)
"""

from collections.abc import Callable
from typing import Any

from preheat.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Bench:
    """measure(device)           measures there (`run.measure.Measure`); None where nothing can be
    table(device name, versions) what has been measured (`store.tuned.Tuned`)
    seconds                      that the search for one graph may take
    is_deterministic             only choices that do not change bits are searched
    is_graphed                   plans will be launched as graphs: the host's time does not count
    """

    name: str
    measure: Callable[[str], Any]
    table: Callable[[str, str], Any]
    seconds: float
    is_deterministic: bool = False
    is_graphed: bool = False
