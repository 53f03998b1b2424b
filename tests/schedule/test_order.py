"""The order in which few bytes are there: one that agrees with what units wait for, and lower peaks."""

import random
from collections import Counter

import pytest
import torch

from preheat.bridge.interpret import run
from preheat.generate.build import build, host_target
from preheat.ir.plan import ProductCall
from preheat.run.executable import executable
from preheat.schedule.order import Flow, low_peak
from preheat.schedule.schedule import schedule
from schedule.graphs import Make


def some_flow(seed):
    """Units that make memory and use that of others, what they wait for, and how many may move."""
    chance = random.Random(seed)
    inputs = list(range(chance.randint(0, 4)))
    known, stays = list(inputs), {m for m in inputs if chance.random() < 0.3}
    makes, uses, waits, maker = [], [], [], {}
    for place in range(chance.randint(1, 24)):
        recent = known[-6:] if chance.random() < 0.7 else known
        used = set(chance.sample(recent, min(len(recent), chance.randint(0, 3))))
        fresh = [len(known) + k for k in range(chance.randint(0, 2))]
        known += fresh
        stays |= {m for m in fresh if chance.random() < 0.4}
        before = {maker[m] for m in used if m in maker}
        if place and chance.random() < 0.2:
            before.add(chance.randrange(place))
        maker |= dict.fromkeys(fresh, place)
        makes.append(tuple(fresh))
        uses.append(frozenset((*used, *fresh)))
        waits.append(before)
    bytes_ = {m: chance.choice((1, 8, 64, 512)) for m in known}
    users = Counter(m for used in uses for m in used if m not in stays)
    start = sum(bytes_[m] for m in inputs if m in users)
    flow = Flow(tuple(makes), tuple(uses), bytes_, users, start)
    return flow, waits, chance.choice((len(waits), len(waits) // 2))


def test_the_order_agrees_and_its_peak_is_no_higher():
    lowered = 0
    for seed in range(400):
        flow, waits, count = some_flow(seed)
        order = low_peak(flow, waits, count)
        place_of = {unit: place for place, unit in enumerate(order)}
        assert sorted(order) == list(range(len(waits)))
        assert order[count:] == list(range(count, len(waits)))
        for unit, before in enumerate(waits):
            assert all(place_of[one] < place_of[unit] for one in before)
        peak, plain = max(flow.profile(order)), max(flow.profile(range(len(waits))))
        assert peak <= plain
        lowered += peak < plain
    assert lowered > 40


def products(plan):
    return [plan.buffers[call.out].type.sizes for call in plan.calls if isinstance(call, ProductCall)]


def test_the_order_stays_where_all_is_there_at_the_end():
    m = Make()
    g, weights = m.input(16, 128), [m.input(128, 128) for _ in range(6)]
    saved, found = [m.input(16, 128) for _ in range(6)], []
    for w, x in zip(weights, saved):
        found.append(m.matmul(m.permute(x, 1, 0), g))
        g = m.matmul(g, w)
    graph = m.graph(*found, m.op("add", g, g))
    lean = schedule(graph, host_target(), passed=[0, *range(7, 13)])
    assert products(lean) == [(128, 128), (16, 128)] * 6


def peak_of(plan, passed):
    """Bytes that are there at the most: of results, of what comes and goes, and of inputs `passed`."""
    def used(call):
        return (call.a, call.b, call.out) if isinstance(call, ProductCall) else call.buffers

    roots = [k if b.kind != "view" else b.base for k, b in enumerate(plan.buffers)]
    first, last = {}, {}
    for number, call in enumerate(plan.calls):
        for buffer in used(call):
            first.setdefault(roots[buffer], number)
            last[roots[buffer]] = number
    live = Counter()
    for root, buffer in enumerate(plan.buffers):
        if root in first and (buffer.kind in ("output", "owned", "arena") or buffer.kind == "input" and buffer.index in passed):
            start = 0 if buffer.kind == "input" else first[root]
            stop = len(plan.calls) - 1 if buffer.kind == "output" else last[root]
            for number in range(start, stop + 1):
                live[number] += buffer.type.elems * buffer.type.itemsize
    return max(live.values())


@pytest.mark.parametrize("room", [1024, 4096])
def test_a_passing_need_comes_before_results_that_stay(room):
    """A large value that comes and goes, after a result that could be made before or after it."""
    m = Make()
    g, w, x = m.input(16, 512), m.input(512, 512), m.input(16, 512)
    wide = m.input(512, room)
    gradient = m.matmul(m.permute(x, 1, 0), g)
    passing = m.matmul(m.op("sin", wide), m.input(room, 512))
    moved = m.matmul(m.matmul(g, w), passing)
    graph = m.graph(gradient, m.op("add", moved, moved))
    target = host_target()
    lean, plain = schedule(graph, target, passed=[0, 2]), schedule(graph, target)
    assert products(plain)[0] == products(lean)[-1] == (512, 512)
    late = 512 * 512 * 4 - 16 * 512 * 4  # its result, without what it reads
    assert peak_of(lean, [0, 2]) == peak_of(plain, [0, 2]) - late
    torch.manual_seed(0)
    given = [torch.rand(i.type.sizes) for i in graph.inputs]
    results = executable(lean, build(lean.kernels, target), is_lean=True)(list(given))
    for made, expected in zip(results, run(graph, given), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)
