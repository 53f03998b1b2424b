"""Footprint: the bytes that a call of a plan has taken from torch's allocator while each of its calls runs.

    live_bytes(executable(plan, image))     [102760448, 154140672, ...], one a call of the plan
    peak_bytes(executable(plan, image))     the most of them

Counted are the arena, results, what comes and goes, and inputs that are the call's own. Not seen are what a
library asks for while it runs, results that a frame of a GPU keeps (`KEPT_BYTES` at the most, arena
included), and that the allocator rounds up.

Requires a plan whose sizes are numbers. On a machine without the plan's device it may be without kernels.
"""

from preheat.run.buffers import extent_bytes, used_buffers
from preheat.run.executable import Executable


def live_bytes(executable: Executable) -> list[int]:
    """The bytes that are taken while each call of the plan runs."""
    plan, places = executable.plan, executable.places
    is_one = executable.keeps_arena or executable.has_block
    there = {k for k, place in enumerate(places) if place.root == k and (
        place.kind == "input" and executable.takes_inputs
        or place.kind == "output" and not executable.is_lean and k not in executable.library_results)}
    comes = {"owned", "output", *(() if is_one else ("arena",))}
    found: list[int] = []
    for number, call in enumerate(plan.calls):
        used = (*executable.made_before[number], *used_buffers(plan, call))
        there.update(root for root in (places[b].root for b in used) if places[root].kind in comes)
        taken = sum(extent_bytes(plan.buffers[root].type) for root in there)
        found.append(taken + executable.arena_bytes * is_one)
        there.difference_update(executable.free_after[number])
    return found


def peak_bytes(executable: Executable) -> int:
    """The most bytes that a call has taken at one time."""
    return max(live_bytes(executable), default=0)
