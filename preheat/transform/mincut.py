"""Minimum cuts: the cheapest values that separate what is given from what is wanted.

    cut = Network(); a, b = cut.node(4), cut.node(1)
    cut.give(a); cut.edge(a, b); cut.want(b)
    cut.solve()   ->  {b}

A node may be cut at its price; edges say what is computed from what and are never cut. Of several
cuts of one price the one nearest to what is wanted.

Source: Dinic's algorithm on a network in which each node is an edge (Dinitz, 1970).
"""

NEVER = 1 << 60  # the price of a node that must not be cut


class Network:
    """Nodes with prices. Feasible only if no path leads from given to wanted along NEVER alone."""

    def __init__(self) -> None:
        # 0 gives, 1 wants; node k enters at 2k + 2 and leaves at 2k + 3
        self._edges: list[list[int]] = [[], []]  # of each place: numbers of edges, even ones forward
        self._to: list[int] = []
        self._left: list[int] = []  # what may still flow

    def node(self, price: int) -> int:
        """A node that is cut for `price`."""
        place = len(self._edges)
        self._edges += [[], []]
        self._add(place, place + 1, price)
        return place // 2 - 1

    def edge(self, source: int, target: int) -> None:
        """`target` is computed from `source`."""
        self._add(2 * source + 3, 2 * target + 2, NEVER)

    def give(self, node: int) -> None:
        """`node` is there, whatever else is not."""
        self._add(0, 2 * node + 2, NEVER)

    def want(self, node: int) -> None:
        """`node` is needed."""
        self._add(2 * node + 3, 1, NEVER)

    def solve(self) -> set[int]:
        """The nodes to cut."""
        while (levels := self._levels())[1] >= 0:
            following = [0] * len(self._edges)
            while self._push(levels, following):
                pass
        near = self._near()
        return {k for k in range(len(near) // 2 - 1) if near[2 * k + 3] and not near[2 * k + 2]}

    def _add(self, source: int, target: int, capacity: int) -> None:
        self._edges[source].append(len(self._to))
        self._edges[target].append(len(self._to) + 1)
        self._to += [target, source]
        self._left += [capacity, 0]

    def _levels(self) -> list[int]:
        """How many edges each place is from the giver; -1 where nothing flows any more."""
        found = [-1] * len(self._edges)
        found[0] = 0
        reached = [0]
        for place in reached:  # which grows meanwhile
            for edge in self._edges[place]:
                target = self._to[edge]
                if self._left[edge] and found[target] < 0:
                    found[target] = found[place] + 1
                    reached.append(target)
        return found

    def _push(self, levels: list[int], following: list[int]) -> int:
        """What flows along one more path of rising levels; 0 if there is none. `following`: the next
        edge to try of each place."""
        path: list[int] = []
        place = 0
        while place != 1:
            edges = self._edges[place]
            while following[place] < len(edges):
                edge = edges[following[place]]
                if self._left[edge] and levels[self._to[edge]] == levels[place] + 1:
                    break
                following[place] += 1
            else:
                if not path:
                    return 0
                place = self._to[path.pop() ^ 1]
                following[place] += 1
                continue
            path.append(edge)
            place = self._to[edge]
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return flow

    def _near(self) -> list[bool]:
        """The places from which something could still flow to the one that wants."""
        found = [False] * len(self._edges)
        found[1] = True
        reached = [1]
        for place in reached:
            for edge in self._edges[place]:
                source = self._to[edge]
                if self._left[edge ^ 1] and not found[source]:
                    found[source] = True
                    reached.append(source)
        return found
