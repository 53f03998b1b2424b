"""Links: which kernel or call waits for which, while fusion merges them.

    Links({0: set(), 1: {0}, 2: {1}}).above(frozenset((0, 2)))      [1]: it is between them

Immutable: a merge makes new links by contraction. Program order does not do in place of `rank`: a
merged unit has early roots that others wait for and late ones that wait for others.
"""

from collections.abc import Mapping


class Links:
    """`before[k]`: the units that k waits for. `rank`: an order that agrees, without knots."""

    def __init__(self, before: Mapping[int, set[int]]):
        self.before = before
        self.rank: dict[int, int] = {}
        after: dict[int, list[int]] = {k: [] for k in before}
        for number, needs in before.items():
            for k in needs:
                after[k].append(number)
        waits = {k: len(needs) for k, needs in before.items()}
        ready = [k for k, count in waits.items() if count == 0]
        while ready:
            k = ready.pop()
            self.rank[k] = len(self.rank)
            for number in after[k]:
                waits[number] -= 1
                if waits[number] == 0:
                    ready.append(number)

    def joined(self, numbers: frozenset[int], merged: int) -> "Links":
        """The links when `numbers` have become unit `merged`."""
        before: dict[int, set[int]] = {merged: set()}
        for k, needs in self.before.items():
            if k in numbers:
                before[merged] |= needs - numbers
            else:
                before[k] = (needs - numbers) | {merged} if needs & numbers else needs
        return Links(before)

    def above(self, numbers: frozenset[int]) -> list[int]:
        """The units that `numbers` wait for, in order, as far back as the first of `numbers`: what
        ranks before all of them waits for none. A unit in a knot has no rank and counts as late."""
        late = len(self.rank)
        first = min(self.rank.get(k, late) for k in numbers)
        pending = [k for number in numbers for k in self.before[number]]
        above: set[int] = set()
        while pending:
            k = pending.pop()
            if k not in above and k not in numbers and self.rank.get(k, late) >= first:
                above.add(k)
                pending += self.before[k]
        return sorted(above, key=lambda k: self.rank.get(k, late))
