"""Batches: groups of a GPU that differ in their sizes alone, and need not wait for each other.

    kernel sqrt_1(b1, b2, b3, b4) over 64               kernel sqrt_0(b1, b2, b3, b4) over 64
    kernel mul_2(b9, b10) over 100                ->    kernel sqrt_0(b5, b6, b7, b8) over 4096
    kernel sqrt_3(b5, b6, b7, b8) over 4096             kernel mul_2(b9, b10) over 100

An optimizer updates hundreds of tensors of dozens of sizes. Each kernel would be compiled, and each
launch costs more than most updates do. So they become calls of one *flat* kernel (`groups`), for any
number of elements, one behind the other: what stands so is launched at once (`run/batches.py`), from
a table of addresses in the GPU's memory. A kernel of its own sizes is faster where there is much to do,
so groups become flat only here, and only where there are some.

Requires an order that agrees with what units wait for. Guarantees: so does the new one. Large values
of the plan's own are made and let go where they were.
"""

import heapq
from collections.abc import Mapping, Sequence

from preheat.base.identity import identity
from preheat.ir.hinted import estimate
from preheat.schedule.fuse import Unit
from preheat.schedule.groups import Group, Groups
from preheat.schedule.links import Links
from preheat.schedule.memory import span_bytes
from preheat.schedule.problem import Problem

LEAST = 4  # calls; their tables are written by a launch or two
MOST_ELEMS = 1 << 31  # of a tensor: positions in it have 32 bits
MOST_OWN_BYTES = 64 << 10  # of a value of the plan's own that is made or kept for others

Waits = Mapping[int, frozenset[int]]  # by identity of units, those that come before each


def waits_of(units: Sequence[Unit], waits: Sequence[frozenset[int]]) -> Waits:
    """What each unit waits for. waits: by place in `units`."""
    return {identity(unit): frozenset(identity(units[k]) for k in before) for unit, before in zip(units, waits)}


def batched(groups: Groups, units: Sequence[Unit], waits: Waits) -> list[Unit]:
    """`units` in which groups of a batch are flat and stand together."""
    alike: dict[int, list[int]] = {}  # by identity of their shape
    flat: dict[int, Group] = {}
    for place, unit in enumerate(units):
        made = _flat(groups, unit) if isinstance(unit, Group) else None
        if made is not None:
            flat[place] = made
            alike.setdefault(identity(made.shape), []).append(place)
    alike = {key: places for key, places in alike.items() if len(places) >= LEAST}
    if not alike:
        return list(units)
    place_of = {identity(unit): place for place, unit in enumerate(units)}
    before = {
        place: {place_of[k] for k in waits[identity(unit)]} for place, unit in enumerate(units)}
    links, members = Links(before, lambda number: number), {}
    for places in alike.values():
        for batch in _levels(links, places):
            if len(batch) >= LEAST:
                number = len(units) + len(members)
                links.join(frozenset(batch), number)
                members[number] = batch
    order = [
        place for number in _ordered(links.before, members) for place in members.get(number, (number,))]
    chosen = {place for batch in members.values() for place in batch}
    return [flat[place] if place in chosen else units[place] for place in order]


def _flat(groups: Groups, group: Group) -> Group | None:
    """`group` by a flat kernel, if it can be one of a batch."""
    if group.has_check or group.shape.is_on_host or not all(_may_wait(groups.problem, memory) for memory in group.memories):
        return None
    made = groups.flat(group)
    return made if made is not None and made.tiled.extent < MOST_ELEMS else None


def _may_wait(problem: Problem, memory: int) -> bool:
    """Whether it costs little that `memory` is there earlier, or longer."""
    if memory in problem.inputs or estimate(span_bytes(problem.types[memory])) <= MOST_OWN_BYTES:
        return True
    return memory in problem.outputs


def _levels(links: Links, places: Sequence[int]) -> list[list[int]]:
    """Parts of `places` of which no unit waits for another, however far."""
    wanted, level = set(places), {}
    found: list[list[int]] = []
    for number in links.order:
        if number is None:
            continue
        level[number] = max((level[k] + (k in wanted) for k in links.before[number]), default=0)
        if number in wanted:
            while len(found) <= level[number]:
                found.append([])
            found[level[number]].append(number)
    return found


def _ordered(before: Mapping[int, set[int]], members: Mapping[int, Sequence[int]]) -> list[int]:
    """All units and batches, each after what it waits for, else where its last one stood."""
    def stood(number: int) -> int:
        return max(members.get(number, (number,)))

    after: dict[int, list[int]] = {number: [] for number in before}
    for number, needs in before.items():
        for k in needs:
            after[k].append(number)
    waiting = {number: len(needs) for number, needs in before.items()}
    ready = [(stood(number), number) for number, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for k in after[number]:
            waiting[k] -= 1
            if not waiting[k]:
                heapq.heappush(ready, (stood(k), k))
    return order
