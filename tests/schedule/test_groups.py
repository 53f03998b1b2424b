"""Equal groups are lowered once, and what only looks equal is not."""

import random

from schedule.graphs import Make, compare, tensor

from preheat.generate.build import build, host_target
from preheat.schedule.groups import Shapes
from preheat.schedule.links import Links
from preheat.schedule.schedule import schedule


def layers(count: int):
    """`count` equal layers: product, bias, gelu, product, residual, norm."""
    m = Make()
    x = m.input(8, 32)
    for _ in range(count):
        up, down = m.input(32, 64), m.input(64, 32)
        h = m.gelu(m.op("add", m.matmul(x, up), m.input(64)))
        x = m.layer_norm(m.op("add", m.matmul(h, down), x), m.input(32), m.input(32))
    return m.graph(x)


def count_lowerings(graph, monkeypatch) -> int:
    made: list[Shapes] = []
    monkeypatch.setattr(
        "preheat.schedule.fuse.Shapes", lambda target: made.append(Shapes(target)) or made[-1]
    )
    schedule(graph, host_target())
    (shapes,) = made
    return len(shapes.known)


def test_trials_do_not_grow_with_depth(monkeypatch):
    assert count_lowerings(layers(12), monkeypatch) == count_lowerings(layers(5), monkeypatch)


def test_equal_layers_share_their_kernels():
    few, many = (schedule(layers(n), host_target()) for n in (4, 9))
    assert len(few.kernels) == len(many.kernels)
    compare(layers(3))


def test_constants_that_are_equal_numbers_are_other_values():
    """-0.0 == 0.0: in one kernel, and in two kernels that differ in nothing else."""
    m = Make()
    x = m.input(8)
    zeros = [m.op("div", x, m.op("mul", m.op("abs", x), (zero,))) for zero in (0.0, -0.0)]
    apart = compare(m.graph(*zeros))
    entries = build(apart.kernels, host_target()).entries
    assert len({offset for _, offset in entries}) == len(entries) == 2
    compare(m.graph(m.op("maximum", *zeros), m.op("minimum", *zeros)))


def test_a_sum_that_is_written_turned_is_no_walk_over_memory():
    """Dense memory on both sides, in two orders: its rows are what is walked, and not the kernel of equal orders."""
    for is_turned_first in (True, False):
        m = Make()
        x, y, turned, plain = m.input(3, 3), m.input(3, 3), m.input(3, 3), m.input(3, 3)
        sums = m.add("add", [x, y], tensor("float32", (3, 3), (1, 3)))
        writes = [(turned, m.permute(sums, 1, 0)), (plain, m.op("add", x, y))]
        compare(m.graph(writes=writes if is_turned_first else writes[::-1]))


def test_links_keep_an_order_while_units_merge():
    for seed in range(40):
        chance = random.Random(seed)
        before = {
            k: {j for j in range(max(0, k - 8), k) if chance.random() < 0.2} for k in range(30)
        }
        links = Links(before, float)
        for merged in range(30, 45):
            pair = frozenset(chance.sample(sorted(links.before), 2))
            if any(links.before[k] & pair for k in links.above(pair)):
                continue
            links.join(pair, merged)
            assert sorted(links.rank) == sorted(links.before)
            for k, needs in links.before.items():
                assert all(links.rank[n] < links.rank[k] and k in links.after[n] for n in needs)
                assert links.order[links.rank[k]] == k
