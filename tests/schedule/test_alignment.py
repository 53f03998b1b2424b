"""Products of a GPU with columns that do not fill 16 bytes: which are cut, and that nothing changes."""

import pytest
import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.generate.cubin import build_gpu, gpu_target
from preheat.ir.graph import Op, Ref
from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.run.executable import Executable
from schedule.footprint import peak_bytes
from preheat.schedule import alignment
from preheat.schedule.alignment import aligned_products
from preheat.schedule.schedule import schedule

GPU = Target("cuda", "sm_90")


def linear(*batch, rows=4096, inner=768, columns=50257, dtype="bfloat16", bias=False, is_read=True):
    """x @ weight.t() (+ bias), and its double, if it `is_read`."""
    m = Make()
    x = m.input(*batch, rows, inner, dtype=dtype)
    w = m.input(*batch, columns, inner, dtype=dtype)
    axes = tuple(range(len(batch)))
    w = m.permute(w, *axes, len(batch) + 1, len(batch))
    if not bias:
        made = m.matmul(x, w)
    else:
        b = m.input(columns, dtype=dtype)
        made = m.builder.fresh()
        type = tensor(dtype, (rows, columns))
        attrs = (("op", "aten.addmm.default"),)
        m.builder.append(Op("library", (Ref(b), Ref(x), Ref(w)), (made,), (type,), attrs))
    return m.graph(made, m.op("mul", m.cast(made, "float32"), (2.0,))) if is_read else m.graph(made)


def products(plan):
    return [
        tuple(plan.buffers[arg.id].type for arg in call.args if isinstance(arg, Ref))
        for call in plan.calls if isinstance(call, LibraryCall)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_cut_where_rows_begin_at_16_bytes(dtype, bias):
    graph = linear(dtype=dtype, bias=bias)
    plan = schedule(on_gpu(graph), GPU)
    (operands,) = products(plan)
    assert operands[-1].sizes == (768, 50256) and operands[-1].strides == (1, 768)
    (call,) = (c for c in plan.calls if isinstance(c, LibraryCall))
    assert plan.buffers[call.results[0]].type.strides == (50256, 1)
    assert sum(isinstance(c, KernelCall) for c in plan.calls) <= 3


def test_logits_with_a_bias_that_are_given_out_are_there_once():
    """Block by block of their rows, each copied before the next."""
    plan = schedule(on_gpu(linear(bias=True, is_read=False)), GPU)
    calls = [type(call) for call in plan.calls]
    assert calls.count(LibraryCall) == 8 and calls[:4] == 2 * [LibraryCall, KernelCall]
    assert {operands[-2].sizes for operands in products(plan)} == {(512, 768)}
    logits = 4096 * 50257 * 2
    assert logits < peak_bytes(Executable(plan, None)) < logits * 1.13


@pytest.mark.parametrize("graph", [
    linear(columns=50264), linear(dtype="float32"), linear(rows=1), linear(inner=769),
    linear(columns=33)], ids=["aligned", "float32", "one row", "odd sum", "few columns"])
def test_others_are_left_whole(graph):
    assert aligned_products(graph, GPU).ops == graph.ops
    assert aligned_products(linear(), Target("cpu", "x86_64")).ops == linear().ops


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("columns", [65, 71, 79])
def test_the_parts_are_the_product(columns, batch, bias, is_read, monkeypatch):
    if batch and bias:
        return
    monkeypatch.setattr(alignment, "LAUNCHES_US", 0)
    monkeypatch.setattr(alignment, "FLOPS_PER_US", 2000)  # two blocks of five rows
    graph = linear(*batch, rows=5, inner=256, columns=columns, bias=bias, is_read=is_read)
    cut = aligned_products(graph, GPU)
    verify(cut)
    assert sum(op.name == "cat" for op in cut.ops) == (1 if is_read or batch else 2)
    generator = torch.Generator().manual_seed(0)
    given = [random_input(i.type, generator) for i in graph.inputs]
    plan = schedule(on_gpu(graph), GPU)
    verify(plan)
    for found in (run(cut, given), run_plan(plan, given)):
        for a, b in zip(found, run(graph, given), strict=True):
            same(a, b)
            assert a.stride() == b.stride()


def test_its_kernels_compile():
    pytest.importorskip("triton")
    plan = schedule(on_gpu(linear()), gpu_target("sm_90"))
    assert build_gpu(plan.kernels, gpu_target("sm_90")).binaries
