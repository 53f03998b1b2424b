"""Products of a GPU whose rows begin anywhere: stored by pieces that are aligned, each element where it belongs."""

from math import gcd

import pytest
import torch
from schedule.footprint import peak_bytes
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.ir.plan import KernelCall, LibraryCall, ProductCall, Target
from preheat.ir.verify import verify
from preheat.run.executable import Executable
from preheat.schedule import interleave
from preheat.schedule.interleave import pieces
from preheat.schedule.schedule import schedule
from preheat.schedule.views import View

GPU = Target("cuda", "sm_90")


def logits(rows, inner, columns, shape=(), dtype="bfloat16", is_part=False):
    """x @ weight.t(), in another shape; x and the weight are parts of others if `is_part`."""
    m = Make()
    x, w = (m.input(n + 8 * is_part, inner, dtype=dtype) for n in (rows, columns))
    if is_part:
        x, w = (m.slice(v, 0, 8, 8 + n) for v, n in ((x, rows), (w, columns)))
    made = m.matmul(x, m.permute(w, 1, 0))
    return m.graph(m.reshape(made, *shape) if shape else made)


def test_logits_are_stored_once_by_two_products():
    plan = schedule(on_gpu(logits(4096, 768, 50257, (8, 512, 50257))), GPU)
    verify(plan)
    assert [type(call) for call in plan.calls] == 2 * [ProductCall]
    (*_, (a, b, out)) = ((plan.buffers[k] for k in (c.a, c.b, c.out)) for c in plan.calls)
    assert (a.type.sizes, a.type.strides) == ((8, 512, 768), (768, 6144, 1))
    assert (b.type.sizes, b.type.strides) == ((8, 768, 50208), (5376, 1, 768))
    assert (out.type.sizes, out.type.strides) == ((8, 512, 50208), (50264, 402056, 1))
    assert plan.buffers[out.base].kind == "output" and plan.arena_bytes == 0
    assert peak_bytes(Executable(plan, None)) == 4096 * 50257 * 2


@pytest.mark.parametrize("columns", [1025, 1026, 1028, 1030, 1031])
@pytest.mark.parametrize("rows", [512, 517])
def test_each_element_is_stored_and_what_is_large_begins_at_16_bytes(rows, columns):
    counts = torch.zeros(rows * columns, dtype=torch.int64)
    made = list(pieces(
        View(0, 0, (rows, 64), (64, 1)), View(1, 0, (64, columns), (1, 64)),
        View(2, 0, (rows, columns), (columns, 1))))
    for a, b, out in made:
        counts.as_strided(out.sizes, out.strides, out.offset).add_(1)
        if out.sizes[2] > columns // 2:
            assert not any(n % 8 for view in (a, b, out) for n in (view.offset, *view.strides) if n != 1)
    assert counts.min() == 1
    assert len(made) == (2 if rows % (8 // gcd(columns, 8)) == 0 else 3)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("shape", [(), (2, -1)])
@pytest.mark.parametrize("columns", [65, 66, 68, 70, 71])
@pytest.mark.parametrize("rows", [32, 38])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_pieces_are_the_product(rows, columns, shape, dtype, is_part, monkeypatch):
    monkeypatch.setattr(interleave, "LEAST_ROWS", 1)
    monkeypatch.setattr(interleave, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(interleave, "LEAST_WORK", 1)
    shape = shape and (2, rows // 2, columns)
    graph = logits(rows, 32, columns, shape, dtype, is_part)
    plan = schedule(on_gpu(graph), GPU)
    verify(plan)
    assert all(isinstance(call, ProductCall) for call in plan.calls)
    generator = torch.Generator().manual_seed(0)
    given = [random_input(i.type, generator) for i in graph.inputs]
    for found, expected in zip(run_plan(plan, given), run(graph, given), strict=True):
        same(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("graph", [
    logits(4096, 768, 50264), logits(4096, 768, 50257, dtype="float32"), logits(256, 768, 50257),
    logits(4096, 768, 1001), logits(512, 64, 1025)], ids=["aligned", "float32", "few rows", "few columns", "little work"])
def test_others_are_not(graph):
    plan = schedule(on_gpu(graph), GPU)
    assert not any(isinstance(call, ProductCall) for call in plan.calls)


def test_a_sum_whose_length_is_odd_is_padded_first():
    plan = schedule(on_gpu(logits(4096, 769, 50257)), GPU)
    products = [call for call in plan.calls if isinstance(call, ProductCall)]
    assert [plan.buffers[call.a].type.sizes[-1] for call in products] == 2 * [776]


def test_what_kernels_read_is_cut():
    m = Make()
    x, w = m.input(4096, 768, dtype="bfloat16"), m.input(50257, 768, dtype="bfloat16")
    made = m.matmul(x, m.permute(w, 1, 0))
    plan = schedule(on_gpu(m.graph(m.op("mul", m.cast(made, "float32"), (2.0,)))), GPU)
    assert {type(call) for call in plan.calls} == {KernelCall, LibraryCall}
