"""Products whose rows begin anywhere as kernels of a GPU, without one: which, by which blocks, text, binaries, values."""

import re

import pytest
import torch
import torch.nn.functional as F
from generate.sized_programs import planned
from generate.test_triton import ONE_OF_THEM, check_binaries, interpret, needs_triton
from schedule.footprint import peak_bytes
from schedule.graphs import Make, on_gpu
from schedule.loop_interpret import run_plan
from schedule.test_interleave import logits

from preheat.bridge.interpret import run
from preheat.generate.cubin import build_gpu, gpu_target, job_of
from preheat.generate.triton import source_of
from preheat.generate.triton_worker import lowered
from preheat.generate.tuned import choices, text_of, tile_of
from preheat.ir.interleaved import block_of, excess
from preheat.ir.plan import KernelCall, LibraryCall, ProductCall, Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.run.executable import Executable
from preheat.schedule import interleave
from preheat.schedule.products import products_by_rule, products_of
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


def biased(rows, inner, columns, dtype="bfloat16", added=None):
    """addmm of what is `added`, a bias by default."""
    m = Make()
    bias, x, w = m.input(*(added or (columns,)), dtype=dtype), m.input(rows, inner, dtype=dtype), m.input(columns, inner, dtype=dtype)
    type = tensor(dtype, (rows, columns))
    return m.graph(m.add("library", [bias, x, m.permute(w, 1, 0)], type, op="aten.addmm.default"))


def by_rule(graph, target=TARGET):
    moved = on_gpu(graph)
    plan = schedule(moved, target, products_by_rule(moved, target))
    verify(plan)
    return plan


def is_one_kernel(plan):
    """Whether the plan is a product by blocks of every eighth row, alone."""
    return len(plan.calls) == len(plan.kernels) == 1 and tile_of(plan.kernels[0], TARGET).is_interleaved


# ---------------------------------------------------------------------------- which
@pytest.mark.parametrize("graph", [
    logits(4096, 768, 50257, (8, 512, 50257)), logits(4096, 768, 50257, dtype="float16"), logits(4088, 768, 50258),
    logits(4096, 1024, 9001, is_part=True), biased(2048, 768, 30522), biased(1536, 4096, 32001),
    biased(2048, 768, 30522, added=(2048, 30522)), biased(512, 1024, 50257)])
def test_large_ones_are_one_kernel_that_stores_in_place(graph):
    plan = by_rule(graph)
    assert is_one_kernel(plan) and plan.arena_bytes == 0
    assert peak_bytes(Executable(plan, None)) == graph.types()[graph.outputs[0]].elems * 2


@pytest.mark.parametrize("graph", [
    logits(4096, 2048, 32003), logits(4096, 96, 50257), logits(4100, 768, 50257), logits(1100, 768, 50257),
    logits(16384, 768, 50257), logits(4096, 768, 50260)],
    ids=["a long sum", "a sum in other steps", "blocks that are not full", "many more blocks", "many rows", "every second row"])
def test_others_are_stored_by_pieces(graph):
    assert all(isinstance(call, ProductCall) for call in by_rule(graph).calls)


@pytest.mark.parametrize("arch", ["sm_80", "sm_120", "sm_100"])
def test_so_they_are_where_no_engine_copies_tiles_ahead_of_a_block_s_end(arch):
    plan = by_rule(logits(4096, 768, 50257), Target("cuda", arch))
    assert all(isinstance(call, ProductCall) for call in plan.calls)
    has_kernel = by_rule(biased(2048, 768, 30522), Target("cuda", arch)).kernels[0].name.startswith("product")
    assert has_kernel is (arch == "sm_100")


@pytest.mark.parametrize("graph", [
    biased(2048, 768, 30528), biased(2048, 768, 30522, "float32"), biased(256, 768, 30522), biased(2048, 768, 1001)],
    ids=["aligned", "float32", "few rows", "few columns"])
def test_the_library_has_the_rest(graph):
    assert not any(isinstance(call, ProductCall) for call in by_rule(graph).calls)
    assert any(isinstance(call, LibraryCall) for call in by_rule(graph).calls)


def test_what_is_multiplied_is_in_memory():
    m = Make()
    x, w = m.input(4096, 768, dtype="bfloat16"), m.input(50257, 768, dtype="bfloat16")
    relu = m.cast(m.op("maximum", m.cast(x, "float32"), (0.0,)), "bfloat16")
    plan = by_rule(m.graph(m.matmul(relu, m.permute(w, 1, 0))))
    assert [tile_of(kernel, TARGET).is_interleaved for kernel in plan.kernels] == [False, True]
    assert all(isinstance(call, KernelCall) for call in plan.calls)


@pytest.mark.parametrize("step", [0, 8, 64])
def test_rows_that_overlap_are_none(step):
    m = Make()
    x, w = m.input(4096, 128, dtype="bfloat16", strides=(step, 1)), m.input(50257, 128, dtype="bfloat16")
    graph = on_gpu(m.graph(m.matmul(x, m.permute(w, 1, 0))))
    assert not products_by_rule(graph, TARGET)
    (kernel,) = schedule(graph, TARGET, products_of(graph)).kernels
    assert not tile_of(kernel, TARGET).is_interleaved


@needs_triton
def test_results_of_one_byte_begin_elsewhere():
    """The search may have a kernel of such a product, but no block's columns would begin at 16 bytes."""
    m = Make()
    y = m.matmul(m.input(4096, 128, dtype="bfloat16"), m.permute(m.input(5001, 128, dtype="bfloat16"), 1, 0))
    for last, is_one in ((lambda v: m.op("gt", v, (0.0,)), False), (lambda v: m.op("mul", v, (2.0,)), True)):
        graph = on_gpu(m.graph(last(m.cast(y, "float32"))))
        plan = schedule(graph, TARGET, products_of(graph))
        assert is_one_kernel(plan) is is_one
        check_binaries(plan.kernels, "sm_90")


def test_blocks_are_those_that_waste_least():
    assert [block_of(rows).rows for rows in (512, 1023, 1024, 1030, 4096, 4100)] == [64, 64, 128, 64, 128, 64]
    assert block_of(511) is None and excess(511) == float("inf")
    assert excess(4096) == excess(1024) == 1.0 and excess(4100) > 1.2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernel_is_the_product(dtype, monkeypatch):
    for name in ("LEAST_WORK", "LEAST_COLUMNS", "LEAST_ROWS"):
        monkeypatch.setattr(interleave, name, 1)
    monkeypatch.setattr(interleave, "excess", lambda rows: 1.0)
    for graph in (logits(20, 64, 27, dtype=dtype), biased(20, 64, 27, dtype)):
        plan = by_rule(graph)
        assert len(plan.kernels) == 1 and plan.kernels[0].name.startswith("product")
        given = [torch.randint(-2, 3, i.type.sizes).to(getattr(torch, dtype)) for i in graph.inputs]
        assert torch.equal(run_plan(plan, given)[0], run(graph, given)[0])


# ---------------------------------------------------------------------------- text and binaries
def test_programs_do_one_block_after_another():
    (kernel,) = by_rule(biased(2048, 768, 30522)).kernels
    source = source_of(kernel, TARGET)
    assert "tl.range(tl.program_id(0), blocks, programs, flatten=True)" in source.text
    assert source.text.count("make_tensor_descriptor") == 3 and source.text.count("out.store(") == 4
    assert "tl.store(p3 + (y.to(tl.int64) * 30522 + x), v9, mask=is_edge)" in source.text
    assert (source.tile.rows, source.tile.columns, source.tile.stages, source.tile.warps) == (128, 256, 4, 8)
    blackwell = source_of(kernel, Target("cuda", "sm_100"))
    assert "flatten" not in blackwell.text, "Triton 3.6 makes nothing of it there"


def test_the_search_may_take_other_tiles():
    moved = on_gpu(logits(4096, 768, 50257))
    (kernel,) = schedule(moved, TARGET, products_of(moved)).kernels
    first, *others = choices(kernel, TARGET).items()
    assert first[0] == "128x256x64 of every eighth row warps 8 stages 4" == text_of(tile_of(kernel, TARGET))
    assert others and not any(tile.is_interleaved for _, tile in others)


@needs_triton
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_they_fit_the_device(arch, dtype):
    target = gpu_target(arch)
    for graph in (biased(2048, 768, 30522, dtype), biased(512, 1024, 50257, dtype), logits(70000, 128, 3001, dtype=dtype)):
        moved = on_gpu(graph)
        plan = schedule(moved, target, products_by_rule(moved, target) if arch == "sm_80" else products_of(moved))
        check_binaries(plan.kernels, arch)
        if arch == "sm_80":
            assert not any(tile_of(kernel, target).is_interleaved for kernel in plan.kernels)
            continue
        (kernel,) = plan.kernels
        image = build_gpu(plan.kernels, target)
        assert image.binaries[0].is_persistent and image.binaries[0].memory_bytes == 3 * 128
        ptx = lowered(job_of(source_of(kernel, target), target))[0]["ptx"]
        loads, stores = (len(re.findall(rf"cp\.async\.bulk\.tensor\.2d\.{way}", ptx)) for way in (r"shared", r"global"))
        assert loads >= 2 and stores == 4
        assert ("wgmma.mma_async" in ptx) is (arch == "sm_90")


# ---------------------------------------------------------------------------- any number of rows
def test_one_plan_has_blocks_for_any_number_of_rows(monkeypatch):
    monkeypatch.setattr(interleave, "LEAST_WORK", 1)
    w, bias = torch.randn(1539, 64).bfloat16(), torch.randn(1539).bfloat16()
    made = planned(F.linear, (torch.randn(3, 700, 64).bfloat16(), w, bias), (64, 1539))
    (kernel,) = made.plan.kernels
    assert [str(made) for made in made.conditions] == ["((n2 * n3) >= 512)", "((n2 * n3) < 2147483648)"]
    assert [(s.tile.rows, s.sizing.least[0][1]) for s in made.sources[kernel.name]] == [(128, 1024), (64, 512)]
    few = planned(F.linear, (torch.randn(3, 7, 64).bfloat16(), w, bias), (64, 1539))
    assert not few.plan.kernels and list(map(str, few.conditions)) == ["not(((n2 * n3) >= 512))"]


@needs_triton
def test_their_launches_have_as_many_programs_as_the_device_has_units(monkeypatch):
    monkeypatch.setattr(interleave, "LEAST_WORK", 1)
    made = planned(F.linear, (torch.randn(2100, 64).bfloat16(), torch.randn(1539, 64).bfloat16()), (64, 1539))
    image = build_gpu(made.plan.kernels, gpu_target("sm_90"))
    assert [(b.programs, b.is_persistent, b.memory_bytes) for b in image.binaries] == [(132, True, 384)] * 2


# ---------------------------------------------------------------------------- the interpreter
@needs_triton
def test_interpreted():
    interpret("generate.interleaved_cases", "")
