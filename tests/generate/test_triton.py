"""Kernels for a GPU without one: source text, binaries, and Triton's interpreter."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from schedule.graphs import Make, on_gpu
from schedule.test_fusion import bert_layer
from schedule.test_folds import norm_backward
from schedule.test_fuzz import Program

from bench.models import MODELS
from preheat.base.errors import UserError
from preheat.capture.capture import capture
from preheat.generate.cubin import build_gpu, compile_source, gpu_target
from preheat.generate.triton import source_of
from preheat.ir.devices import DEVICES, device_of
from preheat.ir.graph import Builder
from preheat.ir.loop import NUMBER, Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.pack import decode, encode
from preheat.ir.plan import KernelCall, Target
from preheat.ir.types import contiguous_strides, tensor
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="triton is not installed: pip install '.[dev]'")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
TARGET = Target("cuda", "sm_90")


def softmax(rows, columns, dtype="float32"):
    m = Make()
    x = m.input(rows, columns, dtype=dtype)
    wide = x if dtype == "float32" else m.cast(x, "float32")
    made = m.softmax(wide, 1)
    return m.graph(made if dtype == "float32" else m.cast(made, dtype))


def sources(graph, target=TARGET):
    return [source_of(kernel, target) for kernel in schedule(on_gpu(graph), target).kernels]


# ---------------------------------------------------------------------------- text
def test_a_row_is_loaded_once_and_unmasked_where_sizes_divide():
    (source,) = sources(softmax(32768, 4096))
    assert source.text.count("tl.load") == 1 and "mask" not in source.text
    assert (source.tile.rows, source.tile.columns, source.tile.is_looped) == (1, 4096, False)


def test_a_row_that_no_program_holds_is_walked_twice():
    (source,) = sources(softmax(512, 100_000))
    assert source.tile.is_looped and source.text.count("for start in") == 2


def test_short_rows_share_a_program():
    (source,) = sources(softmax(1 << 20, 64))
    assert source.tile.rows * source.tile.columns == 2048


def test_few_long_rows_are_split():
    m = Make()
    plan = schedule(on_gpu(m.graph(m.reduce("sum", m.input(4, 1 << 24), 1))), TARGET)
    assert len(plan.calls) == 2
    assert source_of(plan.kernels[0], TARGET).tile.programs >= 2 * device_of("sm_90").units


def test_offsets_beyond_two_to_the_31_have_64_bits():
    m = Make()
    (source,) = sources(m.graph(m.op("neg", m.input(1 << 16, 1 << 16))))
    assert ".to(tl.int64)" in source.text
    m = Make()
    (source,) = sources(m.graph(m.op("neg", m.input(1 << 10, 1 << 10))))
    assert "int64" not in source.text


def test_sixteen_bit_results_need_no_exact_division():
    (exact,) = sources(softmax(64, 512))
    (coarse,) = sources(softmax(64, 512, "bfloat16"))
    assert "divided(" in exact.text and "libdevice.exp(" in exact.text
    assert "divided(" not in coarse.text and "tl.exp(" in coarse.text


def test_a_quotient_that_is_rounded_to_an_integer_stays_exact():
    m = Make()
    x, y = (m.cast(m.input(100, dtype="bfloat16"), "float32") for _ in range(2))
    (source,) = sources(m.graph(m.cast(m.op("floor", m.op("div", x, y)), "bfloat16")))
    assert "divided(" in source.text


def test_the_turned_copy_goes_through_squares():
    m = Make()
    x = m.permute(m.input(1024, 2048), 1, 0)
    (source,) = sources(m.graph(m.add("neg", [x], x_type(m, x))))
    assert (source.tile.rows, source.tile.columns) == (32, 32)


def x_type(m, x):
    type = m.type(x)
    return replace(type, strides=contiguous_strides(type.sizes))


def test_an_architecture_without_a_row_is_an_error():
    with pytest.raises(UserError, match="sm_75"):
        device_of("sm_75")
    assert set(ARCHITECTURES) <= set(DEVICES)


# ---------------------------------------------------------------------------- binaries
def resources(binary):
    """(registers, bytes of stack) of a cubin, by the tool that Triton brings."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.code)
        file.flush()
        command = [tool, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(int(n) for n in re.search(r"REG:(\d+) STACK:(\d+)", told.stdout).groups())


def check_binaries(kernels, arch):
    target, device = gpu_target(arch), device_of(arch)
    image = build_gpu(kernels, target)
    assert decode(encode(image)) == image
    for name, number in image.entries:
        binary = image.binaries[number]
        registers, stack = resources(binary)
        # libdevice has a small array on the stack where it reduces the arguments of sine and cosine
        assert stack <= 48, f"{name} spills {stack} bytes on {arch}"
        assert registers * binary.threads <= device.registers, (name, registers)
        assert binary.shared_bytes <= device.shared_bytes and binary.threads <= 1024, name
        assert binary.scratch_words in (0, 1, 2) and binary.programs >= 1


@needs_triton
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("columns", (64, 1024, 4096, 32768, 131072))
def test_softmax_fits_the_registers(arch, columns):
    for dtype in ("float32", "bfloat16"):
        graph = softmax((1 << 27) // columns, columns, dtype)
        check_binaries(schedule(on_gpu(graph), gpu_target(arch)).kernels, arch)


@needs_triton
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_layer_and_random_graphs(arch):
    m = Make()
    graph = m.graph(bert_layer(m, m.input(2, 6, 32), 2, 6, 32, 4))
    check_binaries(schedule(on_gpu(graph), gpu_target(arch)).kernels, arch)
    for seed in range(4):
        graph = Program(seed, 12).graph()
        build_gpu(schedule(on_gpu(graph), gpu_target(arch)).kernels, gpu_target(arch))


@needs_triton
@pytest.mark.parametrize("name", ("memory_chain", "gpt2", "llama_decode", "convnext"))
def test_the_kernels_of_models(name):
    """Traced on the CPU, compiled as if their tensors were on a GPU."""
    subject = MODELS[name].make()
    with torch.no_grad():
        nodes = capture(subject.call, subject.args, subject.kwargs, limits=None).nodes
    for arch in ARCHITECTURES:
        for node in nodes:
            graph = on_gpu(lower(node.trace.nodes[0].body))
            plan = schedule(graph, gpu_target(arch))
            assert any(isinstance(call, KernelCall) for call in plan.calls)
            check_binaries(plan.kernels, arch)


@needs_triton
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("sizes", [(4096, 768), (8192, 4096), (4096, 8192), (2048, 1000)])
def test_sums_of_columns_fit_the_registers(arch, sizes):
    for dtype in ("float32", "bfloat16"):
        graph = norm_backward(Make(), *sizes, dtype=dtype)
        check_binaries(schedule(on_gpu(graph), gpu_target(arch)).kernels, arch)


@needs_triton
def test_equal_kernels_are_one_binary():
    at = Index(0, (("i0", 1),))
    body = (LoopOp("load", 0, "float32", param=0, index=at),
            LoopOp("store", -1, "float32", (0,), param=1, index=at))
    kernels = [
        Kernel(name, (Param("float32", "in"), Param("float32", "out")), (Axis("i0", 4096),),
               (Stage((), body),), 1, "i0")
        for name in ("first", "second")
    ]
    image = build_gpu(kernels, gpu_target("sm_90"))
    assert image.entries == (("first", 0), ("second", 0)) and len(image.binaries) == 1


@needs_triton
def test_a_number_of_the_host_is_passed_by_value():
    b = Builder("core")
    x = b.input(tensor("float32", (1000,), device="cuda:0"), "x")
    n = b.input(tensor("float64", ()), "n")
    rate = b.add("cast", [n], tensor("float32", (), device="cuda:0"), dtype="float32")
    wide = b.add("expand", [rate], tensor("float32", (1000,), (0,), device="cuda:0"))
    made = b.add("mul", [x, wide], tensor("float32", (1000,), device="cuda:0"))
    plan = schedule(b.finish((made,)), gpu_target("sm_90"))
    (kernel,) = plan.kernels
    assert [p.name for p in kernel.params].count(NUMBER) == 1
    assert "fp64" in source_of(kernel, gpu_target("sm_90")).signature
    compile_source(source_of(kernel, gpu_target("sm_90")), gpu_target("sm_90"))


# ---------------------------------------------------------------------------- the interpreter
@needs_triton
@pytest.mark.parametrize("group", ("rows", "movement", "elementwise", "graphs", "folds"))
def test_interpreted(group):
    folder = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "generate.triton_cases", group], cwd=folder, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
