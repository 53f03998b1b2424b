"""Rows that several programs share: which ones, what the kernels are, and that they wait for the right words."""

import re
from dataclasses import replace

import pytest
from generate.test_triton import ONE_OF_THEM, TARGET, check_binaries, interpret, needs_triton, softmax
from schedule.graphs import Make, on_gpu

from preheat.generate.cubin import build_gpu, gpu_target
from preheat.generate.triton import source_of
from preheat.generate.variants import sources_of
from preheat.ir.loop import WORDS
from preheat.ir.pack import decode, encode
from preheat.ir.text import parse, show
from preheat.ir.verify import verify
from preheat.schedule.schedule import schedule


def shared(graph, target=TARGET):
    return [kernel for kernel in schedule(on_gpu(graph), target).kernels if kernel.shared]


def rms_norm(rows, columns, dtype="bfloat16"):
    m = Make()
    x, weight = (m.cast(m.input(*sizes, dtype=dtype), "float32") for sizes in ((rows, columns), (columns,)))
    scale = m.op("rsqrt", m.op("add", m.mean(m.op("mul", x, x), 1), (1e-5,)))
    return m.graph(m.cast(m.op("mul", m.op("mul", x, scale), weight), dtype))


# ---------------------------------------------------------------------------- the schedule
@pytest.mark.parametrize("rows, columns, dtype, parts", [
    (64, 1 << 20, "bfloat16", 64), (256, 1 << 18, "float16", 16), (1024, 1 << 17, "bfloat16", 8),
    (64, 1 << 20, "float32", 128), (1024, 100_000, "bfloat16", 7), (1024, 100_000, "float32", 13),
    (2048, 1 << 16, "float32", 8), (16, 1 << 22, "bfloat16", 256)])
def test_few_long_rows_are_shared(rows, columns, dtype, parts):
    plan = schedule(on_gpu(softmax(rows, columns, dtype)), TARGET)
    zeros, call = plan.calls
    kernel = plan.kernels[call.kernel]
    assert kernel.shared == parts and kernel.params[-1].name == WORDS and kernel.is_behind == (dtype != "float32")
    assert zeros.buffers == call.buffers[-1:] and plan.kernels[zeros.kernel].name.startswith(WORDS)
    assert plan.buffers[zeros.buffers[0]].type.elems == 2 * rows * parts <= plan.arena_bytes // 8


@pytest.mark.parametrize("rows, columns, dtype, why", [
    (16, 1 << 22, "float32", "more parts than find room"), (8, 1 << 23, "bfloat16", "more parts than find room"),
    (16, 1 << 20, "bfloat16", "few rows"),
    (2048, 1 << 16, "bfloat16", "the second walk finds the row in the cache"),
    (4096, 32768, "bfloat16", "a program holds it"), (1024, 131_073, "bfloat16", "rows begin anywhere"),
    (1024, 1 << 17, "float64", "a word has no room for what a part gives")])
def test_other_rows_are_not(rows, columns, dtype, why):
    if dtype == "float64":
        m = Make()
        graph = m.graph(m.softmax(m.input(rows, columns, dtype=dtype), 1))
    else:
        graph = softmax(rows, columns, dtype)
    assert not shared(graph), why


def test_rows_that_are_only_reduced_are_read_once_as_it_is():
    m = Make()
    x = m.cast(m.input(64, 1 << 20, dtype="bfloat16"), "float32")
    largest = m.reduce("max", x, 1)
    total = m.reduce("sum", m.op("exp", m.op("sub", x, largest)), 1)
    graph = m.graph(m.op("add", m.op("log", total), largest))
    assert not shared(graph) and len(schedule(on_gpu(graph), TARGET).calls) == 2


def test_norms_of_long_rows_are_shared():
    (kernel,) = shared(rms_norm(256, 1 << 18))
    assert kernel.shared == 32
    m = Make()
    x = m.input(256, 1 << 18)
    (kernel,) = shared(m.graph(m.layer_norm(x, m.input(1 << 18), m.input(1 << 18))))
    assert kernel.shared == 64 and kernel.is_behind, "smaller parts, for weight and bias are held, too"
    assert source_of(kernel, TARGET).text.count("told_by(told") == 1, "the mean with what differs from it"


def test_rows_whose_programs_would_wait_twice_are_not():
    m = Make()
    x = m.input(256, 1 << 18)
    y = m.op("mul", x, m.reduce("sum", x, 1))
    assert not shared(m.graph(m.op("sub", y, m.reduce("max", m.op("abs", y), 1))))


def test_a_plan_is_as_before_where_one_kernel_cannot_share():
    """A second reader of the rows that needs places, which are 64 bits."""
    m = Make()
    x = m.cast(m.input(64, 1 << 20, dtype="bfloat16"), "float32")
    made = m.cast(m.softmax(x, 1), "bfloat16")
    graph = m.graph(made, m.reduce("sum", m.op("mul", x, x), 1))
    plan = schedule(on_gpu(graph), TARGET)
    assert all(not kernel.shared or kernel.shared in (64, 128) for kernel in plan.kernels)
    lone = [stage for kernel in plan.kernels if not kernel.shared for stage in kernel.stages]
    assert all(axis.extent < 1 << 20 for stage in lone for axis in stage.axes), "nothing of few programs is left"


def test_the_text_says_it(golden):
    plan = schedule(on_gpu(softmax(64, 1 << 20, "bfloat16")), TARGET)
    text = show(plan)
    assert "over i0:64 parallel by 64 behind" in text and '%p2: i64 inout "words"' in text
    assert parse(show(plan.kernels[0])) == plan.kernels[0] and decode(encode(plan)) == plan
    verify(plan)
    golden("schedule_shared_softmax", f"{text}\n\n{sources_of(plan.kernels[0], TARGET)[0].text}")


# ---------------------------------------------------------------------------- the kernels
def test_a_row_is_loaded_once():
    (kernel,) = shared(softmax(64, 1 << 20, "float32"))
    first, second = sources_of(kernel, TARGET)
    assert first.text.count("tl.load") == 1 and first.text.count("libdevice.exp(") == 3  # of an element, and of two parts
    assert (first.tile.parts, second.tile.parts, first.signature) == (128, 0, second.signature)


@pytest.mark.parametrize("graph, each", [(softmax(64, 1 << 20, "bfloat16"), 16384), (rms_norm(256, 1 << 18), 8192)])
def test_a_row_is_stored_behind_the_next_one(graph, each):
    """It is held in pairs, and told of before the one before it is waited for."""
    (kernel,) = shared(graph)
    first, second = sources_of(kernel, TARGET)
    function, turn = re.split(r"def \w+_0\(", first.text)
    _, turn = turn.split("for row in")
    assert "told_by(told" not in turn and function.count("told_by(told") == 1
    assert turn.index("publish") < turn.index("store_row(") < turn.index("held_q0 = q0")
    assert "tl.store(" not in turn and "tl.load(" not in function.split("def store_row")[1]
    assert (first.tile.columns, first.tile.warps, first.tile.registers) == (each, 8, 128)
    assert (second.tile.parts, second.tile.is_behind, second.tile.registers) == (0, False, 0)


def test_what_is_read_as_it_is_is_no_pair():
    m = Make()
    half = m.input(256, 1 << 18, dtype="float16")
    x = m.cast(half, "float32")
    made = m.op("mul", x, m.op("rsqrt", m.mean(m.op("mul", x, x), 1)))
    (kernel,) = shared(m.graph(m.op("add", m.cast(made, "float16"), half)))
    assert kernel.is_behind and "widened" not in source_of(kernel, TARGET).text


def test_what_is_costly_is_not_computed_twice():
    m = Make()
    x = m.cast(m.input(256, 1 << 18, dtype="bfloat16"), "float32")
    x = m.op("tanh", x)
    (kernel,) = shared(m.graph(m.cast(m.op("mul", x, m.op("rsqrt", m.mean(m.op("mul", x, x), 1))), "bfloat16")))
    assert not kernel.is_behind


def test_what_all_rows_have_in_common_is_loaded_before_the_first():
    (kernel,) = shared(rms_norm(256, 1 << 18))
    before, _, walk = source_of(kernel, TARGET).text.partition("for row in")
    assert before.count("tl.load") == walk.count("tl.load") == 1


def test_another_number_of_programs_is_another_kernel():
    (kernel,) = shared(softmax(64, 1 << 20, "bfloat16"))
    assert encode(kernel) != encode(replace(kernel, shared=32))


@needs_triton
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_enough_programs_run_at_once(arch):
    """By registers and shared memory: three groups of those that wait for each other, one where rows are stored behind."""
    target = gpu_target(arch)
    for dtype in ("bfloat16", "float32"):
        for graph in (softmax(1024, 1 << 17, dtype), rms_norm(1024, 1 << 17, dtype)):
            for kernel in shared(graph, target):
                check_binaries([kernel], arch)
                image = build_gpu([kernel], target)
                assert [number for _, number in image.entries] == [0, 1]
                assert [binary.waiting for binary in image.binaries] == [kernel.shared, 0]
                assert [binary.least_groups for binary in image.binaries] == [1 if kernel.is_behind else 3, 0]


@needs_triton
@pytest.mark.parametrize("group", ("softmax", "log_softmax", "norms", "behind", "reductions"))
def test_interpreted(group):
    interpret("generate.shared_cases", group)
