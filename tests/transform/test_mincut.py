"""The network finds a cheapest cut, as trying all of them does."""

import random

import pytest

from preheat.transform.mincut import Network


def is_cut(cut, count, edges, given, wanted):
    reached = {k for k in given if k not in cut}
    stack = [*reached]
    while stack:
        one = stack.pop()
        for target in (b for a, b in edges if a == one and b not in cut and b not in reached):
            reached.add(target)
            stack.append(target)
    return reached.isdisjoint(wanted)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_networks(start):
    for seed in range(start, start + 50):
        draw = random.Random(seed)
        count = draw.randint(1, 8)
        prices = [draw.randint(1, 9) for _ in range(count)]
        edges = [
            (a, b) for a in range(count) for b in range(a + 1, count) if draw.random() < 0.35]
        given, wanted = ([k for k in range(count) if draw.random() < 0.4] for _ in range(2))
        network = Network()
        for price in prices:
            network.node(price)
        for a, b in edges:
            network.edge(a, b)
        for k in given:
            network.give(k)
        for k in wanted:
            network.want(k)
        found = network.solve()
        subsets = ({k for k in range(count) if bits >> k & 1} for bits in range(1 << count))
        cheapest = min(
            sum(prices[k] for k in cut) for cut in subsets
            if is_cut(cut, count, edges, given, wanted))
        assert is_cut(found, count, edges, given, wanted), seed
        assert sum(prices[k] for k in found) == cheapest, seed


def test_the_cut_is_the_one_nearest_to_what_is_wanted():
    network = Network()
    chain = [network.node(3) for _ in range(4)]
    for a, b in zip(chain, chain[1:]):
        network.edge(a, b)
    network.give(chain[0])
    network.want(chain[-1])
    assert network.solve() == {chain[-1]}
