"""Batches: what differs in its sizes alone is one kernel of a GPU, and stands together."""

from dataclasses import replace
from itertools import groupby

import pytest
import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.capture.capture import capture
from preheat.ir.graph import Graph
from preheat.ir.loop import is_for_any, is_on_host
from preheat.ir.plan import KernelCall, Target
from preheat.ir.types import TensorType
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

GPU = Target("cuda", "sm_90")
COUNT = 6


def beside_gpu(graph: Graph, host_ranks=(0,)) -> Graph:
    """`graph` with all tensors on a GPU but those of 0 axes, counters and numbers."""
    def moved(type):
        is_there = not isinstance(type, TensorType) or type.rank in host_ranks
        return type if is_there else replace(type, device="cuda:0")

    return replace(
        graph, inputs=tuple(replace(i, type=moved(i.type)) for i in graph.inputs),
        ops=tuple(replace(op, types=tuple(map(moved, op.types))) for op in graph.ops))


def step_of(make) -> Graph:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(8 * (k % 9 + 1), 1 + k % 2)) for k in range(COUNT)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = make(weights)
    optimizer.step()  # makes the state
    return lower(capture(optimizer.step, (), {}, limits=None).captured.trace.nodes[0].body)


def stretches(plan):
    """(kernel, how many calls of it stand together) in order."""
    return [(plan.kernels[k], sum(1 for _ in calls)) for k, calls in groupby(c.kernel for c in plan.calls)]


def check(graph, plan):
    ours, theirs = (
        [random_input(i.type, generator) for i in graph.inputs]
        for generator in (torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)))
    for a, b in zip([*run_plan(plan, ours), *ours], [*run(graph, theirs), *theirs], strict=True):
        same(a, b)


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "NAdam": (torch.optim.NAdam, {}),
}


@pytest.mark.parametrize("way", ["foreach", "plain", "fused"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_one_launch_and_counters_of_the_host(name, way):
    kind, arguments = OPTIMIZERS[name]
    if way == "fused" and name not in ("SGD", "Adam", "AdamW", "Adagrad"):
        pytest.skip("torch has none")
    chosen = {"foreach": way == "foreach"} if way != "fused" else {"fused": True}
    core = step_of(lambda weights: kind(weights, **arguments, **chosen))
    plan = schedule(beside_gpu(core), GPU)
    launches = [(kernel, count) for kernel, count in stretches(plan) if not is_on_host(kernel)]
    assert [count for _, count in launches] == [COUNT] and is_for_any(launches[0][0])
    assert all(isinstance(call, KernelCall) for call in plan.calls)
    check(core, plan)


def test_counters_on_the_gpu_are_one_launch_more():
    core = step_of(torch.optim.AdamW)
    moved = on_gpu(core)
    moved = replace(moved, inputs=tuple(
        replace(i, type=replace(i.type, device="cpu")) if i.type.dtype == "float64" else i for i in moved.inputs))
    plan = schedule(moved, GPU)
    assert [count for _, count in stretches(plan)] == [COUNT, COUNT]
    assert all(map(is_for_any, plan.kernels))
    check(core, plan)


def test_what_waits_for_another_of_its_kind_is_another_batch():
    m = Make()
    rows = [m.input(10 + k) for k in range(5)]
    made = []
    for x in rows:
        y = m.op("exp", x)
        total = m.reduce("sum", y, 0)
        made += [y, m.op("exp", m.op("sub", m.op("exp", m.op("mul", y, total)), (1.0,)))]
    graph = m.graph(*made)
    plan = schedule(on_gpu(graph), GPU)
    check(graph, plan)
    for kernel, count in stretches(plan):
        assert count == (5 if is_for_any(kernel) else count)


def test_few_and_large_ones_of_the_plans_own_keep_their_sizes():
    m = Make()
    graph = m.graph(*(m.op("exp", m.input(10 + k)) for k in range(3)))
    assert not any(map(is_for_any, schedule(on_gpu(graph), GPU).kernels))
    m = Make()
    made = [m.matmul(m.op("exp", m.input(300 + k, 200)), m.input(200, 8)) for k in range(5)]
    graph = m.graph(*made)
    assert not any(map(is_for_any, schedule(on_gpu(graph), GPU).kernels))


def test_a_tensor_that_lies_turned_is_one_of_them():
    m = Make()
    made = []
    for k in range(4):
        x, y = (m.input(3, 4 + k, strides=(1, 3)) for _ in range(2))
        made.append(m.add("add", [x, y], m.type(x)))
    graph = m.graph(*made)
    plan = schedule(on_gpu(graph), GPU)
    assert [count for _, count in stretches(plan)] == [4]
    check(graph, plan)


def test_a_number_that_the_host_writes_is_read_by_a_launch_behind_it():
    m = Make()
    count, x = m.input(), m.input(64)
    more = m.op("add", count, (1.0,))
    graph = m.graph(more, m.op("mul", x, more))
    plan = schedule(beside_gpu(graph), GPU)
    assert [is_on_host(kernel) for kernel, _ in stretches(plan)].count(True) == 1
    check(graph, plan)
