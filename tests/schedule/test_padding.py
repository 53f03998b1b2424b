"""16-bit products of odd sums are padded for a GPU, and all else is as it was."""

import pytest
import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.ir.plan import LibraryCall, Target
from preheat.ir.verify import verify
from preheat.schedule import padding
from preheat.schedule.padding import padded_products
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Products of a size that a test can compute."""
    monkeypatch.setattr(padding, "LEAST_SIZE", 16)
    monkeypatch.setattr(padding, "LEAST_TERMS", 1 << 12)


def planned(graph):
    """The plan of `graph` for a GPU, which gives what the graph gives."""
    verify(graph)
    padded = padded_products(graph, TARGET)
    verify(padded)
    plan = schedule(on_gpu(graph), TARGET)
    given = [
        [random_input(i.type, torch.Generator().manual_seed(k), 5) for k, i in enumerate(graph.inputs)]
        for _ in range(3)]
    expected = run(graph, given[0])
    for found in (run(padded, given[1]), run_plan(plan, given[2])):
        for a, b in zip(found, expected, strict=True):
            same(a, b)
            assert a.stride() == b.stride()
    return plan


def sizes(plan):
    """Of each product: its operands and its result."""
    return [
        tuple(plan.buffers[b].type.sizes for b in (call.args[0].id, call.args[1].id, call.results[0]))
        for call in plan.calls if isinstance(call, LibraryCall)]


def linear(m, rows, columns, inner, dtype="bfloat16"):
    x, w = m.input(rows, inner, dtype=dtype), m.input(columns, inner, dtype=dtype)
    return m.matmul(x, m.permute(w, 1, 0))


@pytest.mark.parametrize("columns", [51, 56])
def test_the_terms_of_a_sum(columns):
    m = Make()
    (found,) = sizes(planned(m.graph(linear(m, 32, columns, 51))))
    assert found == ((32, 56), (56, columns), (32, columns))


def test_one_padded_gradient_serves_all_products():
    m = Make()
    grad, w = m.input(2, 32, 51), m.input(51, 24, dtype="bfloat16")
    narrow = m.reshape(m.cast(m.op("mul", grad, (2.0,)), "bfloat16"), 64, 51)
    x = m.input(64, 24, dtype="bfloat16")
    total = m.reduce("sum", m.cast(narrow, "float32"), 0)
    plan = planned(m.graph(m.matmul(narrow, w), m.matmul(m.permute(narrow, 1, 0), x), total))
    assert sizes(plan) == [((64, 56), (56, 24), (64, 24)), ((51, 64), (64, 24), (51, 24))]
    assert not any(buffer.type.sizes in ((64, 51), (2, 32, 51)) for buffer in plan.buffers[3:]
                   if buffer.kind in ("arena", "owned"))


@pytest.mark.parametrize("m, dtype", [((32, 51, 56), "bfloat16"), ((32, 56, 51), "float32"), ((8, 56, 51), "bfloat16")])
def test_what_is_not_padded(m, dtype):
    made = Make()
    graph = made.graph(linear(made, *m, dtype=dtype))
    assert padded_products(graph, TARGET) is graph


def test_nothing_is_padded_for_a_cpu():
    m = Make()
    graph = m.graph(linear(m, 32, 56, 51))
    assert padded_products(graph, Target("cpu", "x86_64", ("avx512f",), 64)) is graph


def test_what_a_library_call_reads_keeps_its_strides():
    m = Make()
    x, w = m.input(32, 51, dtype="bfloat16"), m.input(51, 24, dtype="bfloat16")
    double = m.op("mul", x, (2.0,))
    shown = m.add("library", [double], m.type(double), op="aten.cumsum.default", dim=0)
    planned(m.graph(shown, m.matmul(double, w)))
