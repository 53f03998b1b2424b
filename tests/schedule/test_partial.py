"""A largest value and the sum of exponentials below it, both in parts, for a GPU's target."""

import pytest
import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.ir.plan import Plan, Target
from preheat.ir.verify import verify
from preheat.schedule import abreast, cost, split
from preheat.schedule.schedule import schedule
from preheat.schedule.split import split_reductions

TARGET = Target("cuda", "sm_90")
INF = float("inf")


@pytest.fixture(autouse=True)
def short_rows(monkeypatch):
    """Rows of 64 elements are long here."""
    monkeypatch.setattr(cost, "GPU_ROW_ELEMS", 64)
    monkeypatch.setattr(split, "GPU_PART_ELEMS", 32)
    monkeypatch.setattr(split, "GPU_PART_ROWS", 32)


def planned(graph, *changes) -> Plan:
    """The plan of `graph`, which gives what the graph gives; changes: what some places of its input are."""
    verify(split_reductions(graph, TARGET))
    plan = schedule(on_gpu(graph), TARGET)
    verify(plan)
    for k in range(2):
        given = []
        for i in graph.inputs:
            x = random_input(i.type, torch.Generator().manual_seed(k), 5)
            for place, value in changes:
                x[place] = value
            given.append(x)
        copies = [x.clone() for x in given]
        for found, expected in zip(run_plan(plan, given), run(graph, copies), strict=True):
            same(found, expected)
    return plan


def softmax(*sizes, axis=1, dtype="float32"):
    m = Make()
    x = m.input(*sizes, dtype=dtype)
    made = m.softmax(x if dtype == "float32" else m.cast(x, "float32"), axis)
    return m.graph(made if dtype == "float32" else m.cast(made, dtype))


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("sizes,axis", [((3, 512), 1), ((2, 256, 2), 1), ((512,), 0)])
def test_two_passes_over_what_is_long(sizes, axis, dtype):
    graph = softmax(*sizes, axis=axis, dtype=dtype)
    plan = planned(graph)
    whole = torch.Size(sizes).numel()
    readers = [
        call for call in plan.calls if any(
            plan.buffers[b].type.elems == whole and plan.buffers[b].kind == "input"
            for b in call.buffers)]
    assert len(plan.calls) == 3 and len(readers) == 2
    assert not any(b.kind == "arena" and b.type.elems == whole for b in plan.buffers)


@pytest.mark.parametrize("value", (-INF, INF, float("nan")))
@pytest.mark.parametrize("place", [(0, slice(0, 100)), (0, slice(None)), (1, 7)])
def test_what_is_not_finite_stays_what_it_was(place, value):
    planned(softmax(3, 512), (place, value))


def test_the_sum_itself_of_a_row_of_minus_infinity():
    m = Make()
    x = m.input(2, 512)
    power = m.op("exp", m.op("sub", x, m.reduce("max", x, 1)))
    planned(m.graph(m.reduce("sum", power, 1)), ((0, slice(None)), -INF), ((1, slice(0, 300)), -INF))


def test_other_sums_of_exponentials_are_cut_as_sums():
    """The largest of something else is no largest value of these."""
    m = Make()
    x, y = m.input(2, 512), m.input(2, 512)
    power = m.op("exp", m.op("sub", x, m.reduce("max", y, 1)))
    planned(m.graph(m.reduce("sum", power, 1)))
    m = Make()
    x = m.input(2, 512)
    power = m.op("exp", m.op("sub", x, m.reduce("max", x, 0)))
    planned(m.graph(m.reduce("sum", power, 1)))


def test_rows_that_are_not_cut_stay_as_they_are():
    graph = softmax(400, 512)
    assert split_reductions(on_gpu(graph), TARGET) == on_gpu(graph)


@pytest.mark.parametrize("value", (None, -INF, float("nan")))
@pytest.mark.parametrize("rows", (512, 509))
def test_columns_in_rows_abreast(rows, value, monkeypatch):
    """What is cut with its largest value is so in the same parts: of 7 columns four rows are one."""
    monkeypatch.setattr(abreast, "KNOWN_ROWS", 64)
    monkeypatch.setattr(abreast, "LEAST_COLUMNS", 4)
    graph = softmax(rows, 7, axis=0)
    wide = [op for op in split_reductions(on_gpu(graph), TARGET).ops if op.name in ("max", "sum") and op.type.sizes[-1] == 28]
    assert [op.name for op in wide] == ["max", "sum"]
    planned(graph, *([] if value is None else [((slice(None), 3), value), ((slice(0, 200), 5), value)]))


@pytest.mark.parametrize("rows", (512, 509, 511))
def test_squares_of_columns_in_rows_abreast(rows, monkeypatch):
    """The last part of some columns has a row less: their mean is of as many as there are."""
    monkeypatch.setattr(abreast, "KNOWN_ROWS", 64)
    monkeypatch.setattr(abreast, "LEAST_COLUMNS", 4)
    m = Make()
    x = m.input(rows, 7)
    mean = m.op("div", m.reduce("sum", x, 0), (float(rows),))
    centred = m.op("sub", x, mean)
    graph = m.graph(m.reduce("sum", m.op("mul", centred, centred), 0))
    wide = [op for op in split_reductions(on_gpu(graph), TARGET).ops if op.name == "sum" and op.type.sizes[-1] == 28]
    assert len(wide) == 2
    planned(graph, ((slice(None), slice(None)), 1000.0), ((slice(None, None, 2), slice(None)), 1001.0), ((rows - 1, slice(None)), 999.0))
