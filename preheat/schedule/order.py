"""The order of a plan's kernels and calls in which few bytes are there at once.

    %3 = matmul(%g, %w)             128 KB            %3 = matmul(%g, %w)
    %4 = matmul(%x, %g) returned    1 MB       ->     %5 = matmul(%3, %v)
    %5 = matmul(%3, %v) ...                           ...; %4 = matmul(%x, %g)

A *tail* is a unit that gives results of the plan, with what is computed for it alone: nobody waits
for it (most are gradients of weights). It comes where it lets go of as much as it makes, or at the
end. Where there is room below the peak that this has, it keeps its place in the program, where what
it reads has just been made. Where it lowers no peak the order stays as it is.

Requires units in an order that agrees with what they wait for. Guarantees: so does the new order, and
units that write inputs stay the last.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from preheat.base.dataclass import dataclass
from preheat.ir.graph import Graph
from preheat.ir.hinted import estimate
from preheat.schedule.fuse import Unit
from preheat.schedule.groups import Group
from preheat.schedule.memory import made, read, span_bytes
from preheat.schedule.problem import Problem

LEAST_GAIN = 1 / 64  # of the peak, that is worth another order
Tail = tuple[int, ...]  # places in order


def with_low_peak(
    graph: Graph, problem: Problem, units: Sequence[Unit], waits: Sequence[Collection[int]],
    passed: Collection[int],
) -> list[Unit]:
    """`units` in an order with a low peak of memory.

    waits    for each unit the places of those that come before it
    passed   places of inputs that are let go after their last use
    """
    writers = [k for k, unit in enumerate(units) if _writes(unit, problem)]
    flow = flow_of(graph, problem, units, passed)
    return [units[k] for k in low_peak(flow, waits, min(writers, default=len(units)))]


@dataclass(frozen=True)
class Flow:
    """What units do to memory.

    makes, uses    of each unit the memories that it brings into being, and all that it touches
    bytes          of each memory
    users          of a memory that is let go, how many units use it; absent for what stays
    start          bytes that are there before the first unit
    """

    makes: tuple[tuple[int, ...], ...]
    uses: tuple[frozenset[int], ...]
    bytes: Mapping[int, int]
    users: Mapping[int, int]
    start: int = 0

    def profile(self, order: Sequence[int]) -> list[int]:
        """The bytes that are there while each unit of `order` runs."""
        left, live, found = dict(self.users), self.start, []
        for place in order:
            live += self.made_bytes((place,))
            found.append(live)
            for memory in self.uses[place]:
                if memory in left:
                    left[memory] -= 1
                    if not left[memory]:
                        live -= self.bytes[memory]
        return found

    def made_bytes(self, places: Collection[int]) -> int:
        """Of all that the units make."""
        return sum(self.bytes[m] for place in places for m in self.makes[place])

    def growth(self, tail: Tail, done: Mapping[int, int]) -> int:
        """By how many bytes there are more when `tail` has run than before. `done`: how many users of a
        memory have run."""
        own = Counter(m for place in tail for m in self.uses[place] if m in self.users)
        freed = sum(self.bytes[m] for m in own if done.get(m, 0) + own[m] == self.users[m])
        return self.made_bytes(tail) - freed


def flow_of(
    graph: Graph, problem: Problem, units: Sequence[Unit], passed: Collection[int],
) -> Flow:
    """What `units` do to memory; arguments as of `with_low_peak`."""
    makes: list[tuple[int, ...]] = []
    uses: list[frozenset[int]] = []
    seen = {given.id for given in graph.inputs}
    for unit in units:
        fresh = tuple(m for m in dict.fromkeys(made(unit, problem)) if m not in seen)
        seen.update(fresh)
        makes.append(fresh)
        uses.append(frozenset((*read(unit, problem), *made(unit, problem))))
    own = {given.id for place, given in enumerate(graph.inputs) if place in passed}
    stays = {*problem.outputs, *(given.id for given in graph.inputs)} - own
    users = Counter(m for memories in uses for m in memories if m not in stays)
    bytes_ = {m: estimate(span_bytes(problem.types[m])) for m in (*seen, *users)}
    return Flow(tuple(makes), tuple(uses), bytes_, users, sum(bytes_[m] for m in own))


def _writes(unit: Unit, problem: Problem) -> bool:
    return isinstance(unit, Group) and any(root in problem.written for root in unit.roots)


def low_peak(flow: Flow, waits: Sequence[Collection[int]], count: int) -> list[int]:
    """An order of the units with a low peak, of which only the first `count` move."""
    plain = list(range(len(waits)))
    tails = _tails(waits, count)
    late = [*_late(count, tails, flow), *plain[count:]]
    profile = flow.profile(late)
    before, peak = max(flow.profile(plain), default=0), max(profile, default=0)
    if not plain or peak > before * (1 - LEAST_GAIN):
        return plain
    return _early_again(late, profile, tails, flow)


def _tails(waits: Sequence[Collection[int]], count: int) -> list[Tail]:
    """The tails among the first `count` units."""
    after: list[set[int]] = [set() for _ in waits]
    for place, needs in enumerate(waits):
        for before in needs:
            after[before].add(place)
    end: dict[int, int] = {}  # of a unit in a tail, the last one of it
    for place in reversed(range(count)):
        ends = {end.get(k, -1) for k in after[place]}
        if not ends:
            end[place] = place
        elif len(ends) == 1 and -1 not in ends:
            end[place] = ends.pop()
    found: dict[int, list[int]] = {}
    for place in sorted(end):
        found.setdefault(end[place], []).append(place)
    return [tuple(places) for _, places in sorted(found.items())]


def _late(count: int, tails: Sequence[Tail], flow: Flow) -> list[int]:
    """The first `count` units, every tail where it lets go of what it makes, else at the end."""
    tail_of = {place: tail for tail in tails for place in tail}
    readers: dict[int, list[Tail]] = {}
    for tail in tails:
        for memory in {m for place in tail for m in flow.uses[place]}:
            readers.setdefault(memory, []).append(tail)
    order: list[int] = []
    done: Counter[int] = Counter()
    waiting: dict[Tail, None] = {}
    for place in range(count):
        tail = tail_of.get(place)
        if tail is not None and place != tail[-1]:
            continue
        if tail is None:
            ran = [place]
            order.append(place)
        else:
            ran, waiting[tail] = [], None
        pending = [tail] if tail is not None else []
        while ran or pending:
            for memory in (m for k in ran for m in flow.uses[k]):
                done[memory] += 1
                pending += readers.get(memory, ())
            ran = []
            while pending and not ran:
                tail = pending.pop(0)
                if tail in waiting and flow.growth(tail, done) <= 0:
                    del waiting[tail]
                    order += tail
                    ran = list(tail)
    for tail in sorted(waiting, key=lambda tail: flow.growth(tail, done)):
        order += tail
    return order


def _early_again(
    late: Sequence[int], profile: Sequence[int], tails: Sequence[Tail], flow: Flow,
) -> list[int]:
    """`late` with the tails in their places again for which there is room below its peak."""
    order, bytes_, peak = list(late), list(profile), max(profile)
    inside = {place for tail in tails for place in tail}
    for tail in tails:
        now = order.index(tail[0])
        then = next((k for k, p in enumerate(order) if p not in inside and p > tail[-1]), now)
        if then >= now:
            continue
        growth = flow.growth(tail, Counter(m for k in order[:then] for m in flow.uses[k]))
        most = bytes_[then] + flow.made_bytes(tail)
        if most > peak or max(bytes_[then:now]) + growth > peak:
            continue
        end = now + len(tail)
        bytes_[then:end] = [*[most] * len(tail), *(one + growth for one in bytes_[then:now])]
        order[then:end] = [*tail, *order[then:now]]
    return order
