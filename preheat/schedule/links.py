"""Links: which kernel or call waits for which, while fusion merges them.

    Links({0: set(), 1: {0}, 2: {1}}, int).above(frozenset((0, 2)))      [1]: it is between them

A merge contracts the units and orders anew only what stands between them, so that a deep model's
many merges stay cheap. Program order does not do in place of `rank`: a merged unit has early roots
that others wait for and late ones that wait for others. Source: Pearce and Kelly, A dynamic
topological sort algorithm for directed acyclic graphs (2006).
"""

import heapq
from collections.abc import Callable, Iterator, Mapping


class Links:
    """before[k]   the units that k waits for
    after[k]    the units that wait for k
    order       an order that agrees, without units in a knot; None where merged units were
    rank        the place of a unit in `order`
    """

    def __init__(self, before: Mapping[int, set[int]], position: Callable[[int], float]):
        """`position` breaks ties: units that are merged should not be far apart."""
        self.before = {k: set(needs) for k, needs in before.items()}
        self.after: dict[int, set[int]] = {k: set() for k in before}
        for number, needs in before.items():
            for k in needs:
                self.after[k].add(number)
        self.position = position
        self._sort()

    def join(self, numbers: frozenset[int], merged: int) -> None:
        """Makes of `numbers`, between which nothing stands (see `above`), the one unit `merged`."""
        above = set(self._above(numbers))
        self.before[merged] = set().union(*(self.before.pop(k) for k in numbers)) - numbers
        self.after[merged] = set().union(*(self.after.pop(k) for k in numbers)) - numbers
        for there, back in ((self.before, self.after), (self.after, self.before)):
            for k in there[merged]:
                back[k] -= numbers
                back[k].add(merged)
        if not self.rank.keys() >= numbers:
            self._sort()
            return
        places = [self.rank.pop(k) for k in numbers]
        low, high = min(places), max(places)
        between = [k for k in self.order[low : high + 1] if k is not None and k not in numbers]
        earlier = [k for k in between if k in above]
        later = [k for k in between if k not in above]
        unused = [None] * (high - low - len(between))
        self.order[low : high + 1] = [*earlier, merged, *later, *unused]
        for place in range(low, low + len(between) + 1):
            self.rank[self.order[place]] = place

    def above(self, numbers: frozenset[int]) -> list[int]:
        """The units that `numbers` wait for, in order, as far back as the first of `numbers`: what
        ranks before all of them waits for none. A unit in a knot has no rank and counts as late."""
        rank, late = self.rank, len(self.order)
        return sorted(self._above(numbers), key=lambda k: rank.get(k, late))

    def is_between(self, numbers: frozenset[int]) -> bool:
        """Whether one of `numbers` waits for a unit that waits for one of them."""
        before = self.before
        return any(not before[k].isdisjoint(numbers) for k in self._above(numbers))

    def _above(self, numbers: frozenset[int]) -> Iterator[int]:
        """The units of `above`, each once, as a walk meets them."""
        rank, late, before = self.rank, len(self.order), self.before
        first = min([rank.get(k, late) for k in numbers])
        met = set(numbers)
        pending = [k for number in numbers for k in before[number]]
        while pending:
            k = pending.pop()
            if k not in met and rank.get(k, late) >= first:
                met.add(k)
                yield k
                pending += before[k]

    def _sort(self) -> None:
        """Orders all units that are in no knot and wait for none that is."""
        self.order: list[int | None] = []
        waits = {k: len(needs) for k, needs in self.before.items()}
        ready = [(self.position(k), k) for k, count in waits.items() if count == 0]
        heapq.heapify(ready)
        while ready:
            _, k = heapq.heappop(ready)
            self.order.append(k)
            for number in self.after[k]:
                waits[number] -= 1
                if waits[number] == 0:
                    heapq.heappush(ready, (self.position(number), number))
        self.rank = {k: place for place, k in enumerate(self.order)}
