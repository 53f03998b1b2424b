"""Sums over rows in the kernel that walks the rows, for a GPU's target."""

import pytest
import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.ir.plan import Plan, Target
from preheat.ir.text import parse, show
from preheat.ir.verify import verify
from preheat.schedule import cost
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


def planned(graph) -> Plan:
    """The plan of `graph` for a GPU, which gives what the graph gives."""
    verify(graph)
    plan = schedule(on_gpu(graph), TARGET)
    verify(plan)
    assert all(parse(show(kernel)) == kernel for kernel in plan.kernels)
    given = [
        [random_input(i.type, torch.Generator().manual_seed(k), 5) for k, i in enumerate(graph.inputs)]
        for _ in range(2)]
    for found, expected in zip(run_plan(plan, given[0]), run(graph, given[1]), strict=True):
        same(found, expected)
    return plan


def norm_backward(m: Make, *sizes: int, dtype: str = "float32"):
    """The gradients of a layer norm: of its input, weight and bias."""
    last = len(sizes) - 1
    x, grad, weight = m.input(*sizes, dtype=dtype), m.input(*sizes, dtype=dtype), m.input(sizes[-1])
    if dtype != "float32":
        x, grad = m.cast(x, "float32"), m.cast(grad, "float32")
    centred = m.op("sub", x, m.mean(x, last))
    scale = m.op("rsqrt", m.op("add", m.mean(m.op("mul", centred, centred), last), (1e-5,)))
    normal, scaled = m.op("mul", centred, scale), m.op("mul", grad, weight)
    along = m.op("mul", normal, m.mean(m.op("mul", scaled, normal), last))
    made = m.op("mul", m.op("sub", m.op("sub", scaled, m.mean(scaled, last)), along), scale)
    rows = tuple(range(last))
    sums = [m.reduce("sum", v, *rows, keepdim=False) for v in (m.op("mul", grad, normal), grad)]
    if dtype != "float32":
        made = m.cast(made, dtype)
    return m.graph(made, *sums)


def folds(plan: Plan) -> list[int]:
    """How many sums over rows each kernel holds."""
    return [
        sum(op.op == "store" and op.how == "sum" for stage in kernel.stages for op in stage.body)
        for kernel in plan.kernels]


@pytest.mark.parametrize("sizes", [(1024, 96), (4, 256, 96), (2048, 33), (8, 3, 64, 40)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backward_of_a_norm_walks_its_rows_once(sizes, dtype):
    plan = planned(norm_backward(Make(), *sizes, dtype=dtype))
    assert folds(plan)[0] == 2 and sum(folds(plan)) == 2
    whole = sizes[-1] * torch.Size(sizes[:-1]).numel()
    readers = [
        call for call in plan.calls
        if sum(plan.buffers[b].type.elems == whole for b in call.buffers) > 0]
    assert len(readers) == 1


@pytest.mark.parametrize("sizes", [
    (100, 96),  # too few rows to share
    (1024, cost.FOLDED_ELEMS + 8),  # rows that no program sums
    (1042, 96),  # few parts, or many
    (64, 64),
])
def test_what_no_program_holds_is_summed_apart(sizes):
    assert sum(folds(planned(norm_backward(Make(), *sizes)))) == 0


def test_columns_alone_are_no_fold():
    m = Make()
    assert sum(folds(planned(m.graph(m.reduce("sum", m.input(4096, 64), 0))))) == 0


def test_softmax_backward_with_sums_of_columns():
    m = Make()
    y, grad = m.input(1024, 128), m.input(1024, 128)
    weighted = m.op("mul", y, grad)
    made = m.op("sub", weighted, m.op("mul", y, m.reduce("sum", weighted, 1)))
    planned(m.graph(made, m.reduce("sum", made, 0, keepdim=False)))


def test_no_fold_for_a_cpu():
    plan = schedule(norm_backward(Make(), 512, 96), Target("cpu", "x86_64", ("avx512f",), 64))
    assert sum(folds(plan)) == 0
