"""Kernels for a GPU without one: source text, binaries, and Triton's interpreter."""

import importlib.util
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from schedule.graphs import Make, last, on_gpu
from schedule.test_fusion import bert_layer
from schedule.test_folds import norm_backward
from schedule.test_fuzz import Program

from bench.models import MODELS
from preheat.base.errors import UserError
from preheat.capture.capture import capture
from preheat.generate import cubin
from preheat.generate.cubin import begin_gpu, binary, build_gpu, gpu_target, job_of
from preheat.generate.products import product_of
from preheat.generate.tiles import row_elems
from preheat.generate.triton_worker import halved, lowered, unpacked
from preheat.generate.triton import source_of
from preheat.generate.tuned import choices, tile_of
from preheat.ir.devices import DEVICES, device_of
from preheat.ir.graph import Builder
from preheat.ir.loop import NUMBER, Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.pack import decode, encode
from preheat.ir.plan import KernelCall, LibraryCall, Rounding, Target
from preheat.ir.types import contiguous_strides, tensor
from preheat.schedule.products import products_of, small_products
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from tests import processes

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="triton is not installed: pip install '.[dev]'")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Models are compiled for all of them by each run, single kernels for one: a binary costs 0.2 to 0.5 s of a processor.
ONE_OF_THEM = [pytest.param(arch, marks=() if arch == "sm_90" else pytest.mark.slow) for arch in ARCHITECTURES]
TARGET = Target("cuda", "sm_90")


def softmax(rows, columns, dtype="float32"):
    m = Make()
    x = m.input(rows, columns, dtype=dtype)
    wide = x if dtype == "float32" else m.cast(x, "float32")
    made = m.softmax(wide, 1)
    return m.graph(made if dtype == "float32" else m.cast(made, dtype))


def linear(rows, inner, columns, dtype="bfloat16"):
    """relu(x @ w.T + b + r)"""
    m = Make()
    x, w = m.input(rows, inner, dtype=dtype), m.input(columns, inner, dtype=dtype)
    y = m.matmul(x, m.permute(w, 1, 0))
    for added in (m.input(columns, dtype=dtype), m.input(rows, columns, dtype=dtype)):
        wide = (y, added) if dtype == "float32" else (m.cast(y, "float32"), m.cast(added, "float32"))
        y = m.op("add", *wide)
        y = y if dtype == "float32" else m.cast(y, dtype)
    return on_gpu(m.graph(m.op("maximum", y, (0.0,))))


def fused(graph, target=TARGET):
    return schedule(graph, target, products_of(graph))


def sources(graph, target=TARGET):
    return [source_of(kernel, target) for kernel in schedule(on_gpu(graph), target).kernels]


# ---------------------------------------------------------------------------- text
def test_a_row_is_loaded_once_and_unmasked_where_sizes_divide():
    (source,) = sources(softmax(32768, 4096))
    assert source.text.count("tl.load") == 1 and "mask" not in source.text
    assert (source.tile.rows, source.tile.columns, source.tile.is_looped) == (1, 4096, False)


def test_a_row_that_no_program_holds_is_walked_twice():
    (source,) = sources(softmax(256, 98_304))
    assert source.tile.is_looped and source.text.count("for start in") == 1
    assert source.text.count("for back in") == 1, "the second time from its end"


def test_a_walk_is_masked_in_its_last_block_alone():
    (source,) = sources(softmax(256, 100_000))
    assert source.tile.columns == 16384 and "full = 98304" in source.text
    whole, last = (re.findall(rf"for \w+ in range\({steps}.*\n((?: {{8}}.*\n)+)", source.text) for steps in (
        "0, full", "full, 100000"))
    assert len(whole) == len(last) == 2
    assert all("mask" not in body for body in whole) and all("mask=is_x" in body for body in last)


def test_elements_are_masked_in_the_last_program_alone():
    """Where the mask may end anywhere: a load of several elements cannot be masked within."""
    for elems, is_asked in ((100_003, True), (100_008, False), (98_304, False)):
        m = Make()
        x = m.cast(m.input(elems, dtype="bfloat16"), "float32")
        (source,) = sources(m.graph(m.cast(m.op("exp", x), "bfloat16")))
        whole, _, last = source.text.partition("    else:")
        assert bool(last) is is_asked
        assert ("mask=" in whole) is (elems == 100_008) and ("mask=" in last) is is_asked


@pytest.mark.parametrize("columns, is_clamped", [(67, True), (64, False)])
def test_rows_that_are_not_there_are_not_stored(columns, is_clamped):
    """Whole rows are masked, too, where they are loaded; of others the last one is loaded again."""
    (source,) = sources(softmax(262_141, columns))
    (load,), (store,) = (re.findall(rf"tl.{what}\(.*", source.text) for what in ("load", "store"))
    assert ("tl.minimum(y, 262141 - 1)" in source.text) is is_clamped
    assert ("is_y" in load) is not is_clamped and "is_y" in store


@pytest.mark.parametrize("sizes", ((4093, 8191), (4096, 8192), (33_525_763,)))
def test_a_sum_of_all_has_many_programs_whatever_the_size(sizes):
    m = Make()
    x = m.input(*sizes)
    first, second = sources(on_gpu(m.graph(m.reduce("sum", m.op("mul", x, x), *range(len(sizes))))))
    assert first.tile.programs == 1024 and first.tile.is_looped and second.tile.programs == 1
    assert "//" not in first.text.replace("// 4096 * 4096", ""), "elements one after the other"


def test_columns_are_cut_in_parts_that_need_not_divide():
    """Each program has columns of one part, but where they would leave much of it empty."""
    for rows, columns, parts in ((262_141, 68, 256), (4093, 8191, 8), (32768, 1024, 64)):
        m = Make()
        first, _ = sources(on_gpu(m.graph(m.reduce("sum", m.input(rows, columns), 0))))
        grid, down = ([axis.extent for axis in axes] for axes in (first.tile.grid, first.tile.down))
        assert (grid, down) == (([], [parts, columns]) if columns == 68 else ([parts], [columns]))


@pytest.mark.parametrize("dtype, rows, columns, abreast", [
    ("bfloat16", 32767, 1021, 8), ("bfloat16", 262_141, 66, 4), ("float32", 262_141, 67, 4),
    ("float32", 32768, 1024, 1), ("bfloat16", 4093, 8191, 1)])
def test_rows_that_begin_anywhere_are_taken_several_at_a_time(dtype, rows, columns, abreast):
    """So that each begins where a thread loads 16 bytes."""
    m = Make()
    (kernel, _) = schedule(on_gpu(m.graph(m.reduce("sum", m.cast(m.input(rows, columns, dtype=dtype), "float32"), 0))), TARGET).kernels
    tile = source_of(kernel, TARGET).tile
    assert [axis.extent for axis in tile.down][-1:] == [columns * abreast] and len(tile.grid) == 1


@needs_triton
def test_rows_that_are_taken_together_are_loaded_sixteen_bytes_at_a_time():
    m, target = Make(), gpu_target("sm_90")
    x = m.cast(m.input(262_141, 67, dtype="bfloat16"), "float32")
    kernel = schedule(on_gpu(m.graph(m.reduce("sum", x, 0))), target).kernels[0]
    made, _ = lowered(job_of(source_of(kernel, target), target))
    walk = made["ptx"].split("cp.async.wait_group")[0]
    assert re.findall(r"cp\.async\.\S+ \[ \S+ \+ 0 \], \[ \S+ \+ 0 \], (0x\w+)", walk).count("0x10") >= 2


def test_what_is_stored_while_columns_are_reduced_has_wider_programs():
    m = Make()
    x = m.op("exp", m.cast(m.input(32768, 4096, dtype="bfloat16"), "float32"))
    y = m.cast(x, "bfloat16")
    graph = on_gpu(m.graph(y, m.reduce("sum", m.cast(y, "float32"), 0)))
    first, _ = sources(graph)
    assert (first.tile.rows, first.tile.warps, first.tile.programs) == (128, 8, 1024)
    m = Make()
    first, _ = sources(on_gpu(m.graph(m.reduce("sum", m.cast(m.input(32768, 4096, dtype="bfloat16"), "float32"), 0))))
    assert (first.tile.rows, first.tile.warps, first.tile.programs) == (64, 4, 1024)


def test_short_rows_share_a_program():
    (source,) = sources(softmax(1 << 20, 64))
    assert source.tile.rows * source.tile.columns == 2048


def test_few_long_rows_are_split():
    m = Make()
    plan = schedule(on_gpu(m.graph(m.reduce("sum", m.input(4, 1 << 24), 1))), TARGET)
    assert len(plan.calls) == 2
    assert source_of(plan.kernels[0], TARGET).tile.programs >= 2 * device_of("sm_90").units


def test_a_sum_over_leading_axes_is_split_as_one_over_rows():
    m = Make()
    plan = schedule(on_gpu(m.graph(m.reduce("sum", m.input(4, 8192, 64), 0, 1))), TARGET)
    assert len(plan.calls) == 2 and plan.calls[0].extent > 64


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
    assert "divided(" not in coarse.text and "near_exp(" in coarse.text and "= share(" in coarse.text


def test_a_quotient_by_a_sum_of_its_own_is_no_share():
    """Which may be zero, or so large that its inverse is."""
    m = Make()
    x = m.cast(m.input(64, 512, dtype="bfloat16"), "float32")
    powers = m.op("exp", x)
    (source,) = sources(m.graph(m.cast(m.op("div", powers, m.reduce("sum", powers, 1)), "bfloat16")))
    assert "near_exp(" in source.text and "share" not in source.text


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


def test_channels_in_groups_are_one_side_of_the_square():
    m = Make()
    x = m.op("sub", m.input(4, 32, 10, 4096), m.expand(m.input(4, 32, 1, 1), 4, 32, 10, 4096))
    x = m.reshape(x, 4, 320, 4096)
    turned = replace(m.type(x), strides=(320 * 4096, 1, 320))
    (source,) = sources(m.graph(m.add("neg", [x], turned)))
    tile = source.tile
    assert (tile.rows, tile.columns) == (32, 32)
    assert [[axis.extent for axis in axes] for axes in (tile.grid, tile.down, tile.along)] == [[4], [4096], [32, 10]]


def x_type(m, x):
    type = m.type(x)
    return replace(type, strides=contiguous_strides(type.sizes))


def test_an_architecture_without_a_row_is_an_error():
    with pytest.raises(UserError, match="sm_75"):
        device_of("sm_75")
    assert set(ARCHITECTURES) <= set(DEVICES)


def test_a_product_takes_its_epilogue_along():
    plan = fused(linear(128, 256, 256))
    (kernel,) = plan.kernels
    text = source_of(kernel, TARGET).text
    assert len(plan.calls) == 1 and text.count("tl.dot") == 1 and "mask" not in text
    loop, _, after = text.partition("tl.dot")
    assert loop.count("tl.load") == 2 and after.count("tl.load") == 2  # residual and bias come later
    assert loop.count("bfloat16") == 0, "operands are multiplied as they are in memory"
    assert kernel.name.startswith("product_relu")


def test_products_are_kernels_only_where_that_is_asked_for():
    graph = linear(128, 256, 256)
    assert any(isinstance(call, LibraryCall) for call in schedule(graph, TARGET).calls)
    assert len(set(products_of(graph).values())) == 1


def test_two_products_of_one_operand_are_two_kernels():
    m = Make()
    x = m.input(64, 64)
    graph = on_gpu(m.graph(*(m.matmul(x, m.input(64, 64)) for _ in range(3))))
    plan = fused(graph)
    assert len(plan.calls) == 3 and len(plan.kernels) == 1
    assert len(set(products_of(graph).values())) == 1


def test_a_wide_sum_of_the_users_own_is_rounded_as_written():
    """A float32 operand that meets a 16-bit one stays float32."""
    m = Make()
    x, w = m.input(64, 1, 32), m.cast(m.input(48, 32, dtype="bfloat16"), "float32")
    total = m.reduce("sum", m.op("mul", x, m.reshape(w, 1, 48, 32)), 2, keepdim=False)
    (kernel,) = schedule(on_gpu(m.graph(total)), TARGET).kernels
    product = product_of(kernel)
    assert product is None or product.dtype == "float32"


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


def check_binaries(kernels, arch, most_stack=48):
    target, device = gpu_target(arch), device_of(arch)
    image = build_gpu(kernels, target)
    assert decode(encode(image)) == image
    for name, number in image.entries:
        binary = image.binaries[number]
        registers, stack = resources(binary)
        # libdevice has a small array on the stack where it reduces the arguments of sine and cosine
        assert stack <= most_stack, f"{name} spills {stack} bytes on {arch}"
        assert registers * binary.threads <= device.registers, (name, registers)
        assert binary.shared_bytes <= device.shared_bytes and binary.threads <= 1024, name
        assert binary.scratch_words in (0, 1, 2) and (binary.programs >= 1 or binary.sizing is not None)


@needs_triton
@pytest.mark.parametrize("arch", ONE_OF_THEM)
@pytest.mark.parametrize("columns", (64, 1024, 4096, 32768, 131072))
def test_softmax_fits_the_registers(arch, columns):
    for dtype in ("float32", "bfloat16"):
        graph = softmax((1 << 27) // columns, columns, dtype)
        check_binaries(schedule(on_gpu(graph), gpu_target(arch)).kernels, arch)


@needs_triton
@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32"))
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_products_fit_the_device(arch, dtype):
    for sizes in ((100, 70, 50), (2048, 768, 3072)):
        plan = fused(linear(*sizes, dtype), gpu_target(arch))
        assert not any(isinstance(call, LibraryCall) for call in plan.calls)
        check_binaries(plan.kernels, arch, most_stack=64)  # a few registers of a masked float32 one


def convolution(dtype, channels=64, taps=3):
    """On a GPU: 32 images of 28 x 28 with as many channels as given, 128 from them, a bias and a relu."""
    m = Make()
    sizes = (32, channels, 28, 28)
    x = m.input(*sizes, dtype=dtype, strides=last(sizes))
    w = m.input(128, channels, taps, taps, dtype=dtype, strides=last((128, channels, taps, taps)))
    y = m.convolution(x, w, 1, taps // 2)
    wide = m.op("add", m.cast(y, "float32"), m.cast(m.input(128, 1, 1, dtype=dtype), "float32"))
    relu = m.op("maximum", wide, (0.0,))
    return on_gpu(m.graph(m.add("cast", [relu], m.type(y), dtype=dtype)))


@needs_triton
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_convolutions_fit_the_device(arch, dtype):
    for taps in (1, 3):
        plan = fused(convolution(dtype, taps=taps), gpu_target(arch))
        assert len(plan.calls) == 1
        check_binaries(plan.kernels, arch, most_stack=64)


@needs_triton
def test_the_memory_of_a_convolution_is_on_its_way_ahead():
    """Sixteen bytes at once: a block stays at one tap, and Triton sees how its positions divide."""
    (kernel,) = fused(convolution("bfloat16", taps=3), gpu_target("sm_90")).kernels
    made, _ = lowered(job_of(source_of(kernel, TARGET), gpu_target("sm_90")))
    assert made["ttgir"].count("ttg.async_copy_global_to_local") >= 2
    assert re.search(r"cp\.async\.cg\.shared\.global .*0x10", made["ptx"])
    assert not re.search(r"cp\.async\.ca", made["ptx"])


@needs_triton
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_products_of_few_rows_fit_the_device(arch, dtype):
    for sizes in ((1, 2048, 5632), (1, 14336, 4096), (2, 4096, 1000), (4, 2000, 70)):
        plan = schedule(linear(*sizes, dtype), gpu_target(arch))
        assert len(plan.calls) == len(plan.kernels) == 1
        check_binaries(plan.kernels, arch)


def test_a_row_of_weights_is_loaded_once_for_all_rows():
    (kernel,) = schedule(linear(4, 2048, 512), TARGET).kernels
    text = source_of(kernel, TARGET).text
    assert text.count("y * 2048 + x") == 1 and text.count("tl.sum(") == 4


def test_a_row_that_is_walked_again_stays_in_the_cache():
    (kernel,) = schedule(on_gpu(softmax(256, 98_304)), TARGET).kernels
    first, second = re.split("for (?:start|back) in", source_of(kernel, TARGET).text)[1:]
    assert first.count("evict_last") == 1 and "evict_first" not in first
    assert second.count("evict_first") == 2  # the load and the store
    (kernel,) = schedule(on_gpu(softmax(512, 1000)), TARGET).kernels
    assert "evict" not in source_of(kernel, TARGET).text


def test_erf_is_near_only_where_one_is_added():
    m = Make()
    x = m.cast(m.input(4096, dtype="bfloat16"), "float32")
    graph = m.graph(m.cast(m.gelu(x), "bfloat16"), m.cast(m.op("erf", m.op("neg", x)), "bfloat16"))
    texts = [source.text for source in sources(graph)]
    assert sum(text.count("= near_erf(") for text in texts) == 1
    assert sum(text.count("= libdevice.erf(") for text in texts) == 1
    m = Make()
    (exact,) = sources(m.graph(m.gelu(m.input(4096))))
    assert "near_erf" not in exact.text


@needs_triton
def test_blocks_of_a_float32_product_are_added_up_apart():
    """4096 products in a row would be off by ten times what the library is."""
    (kernel,) = fused(linear(16, 4096, 16, "float32"), gpu_target("sm_90")).kernels
    tile = next(tile for tile in choices(kernel, TARGET).values() if tile.depth and not tile.is_sum)
    made = lowered(job_of(source_of(kernel, TARGET, tile), gpu_target("sm_90")))[0]["ttgir"]
    (product,) = re.findall(r"(%\S+) = tt\.dot", made)
    assert re.search(rf"arith\.addf %\w+, {re.escape(product)} ", made)


def test_small_float32_products_are_added_up_as_rows():
    target = gpu_target("sm_90")
    (kernel,) = fused(linear(128, 256, 256, "float32"), target).kernels
    source = source_of(kernel, target)
    assert source.tile.is_sum and "tl.dot" not in source.text and source.text.count("tl.sum(") == 1
    for rows, dtype in ((128, "bfloat16"), (1024, "float32")):
        (kernel,) = fused(linear(rows, 256, 256, dtype), target).kernels
        assert not tile_of(kernel, target).is_sum


@needs_triton
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float32_is_rounded_before_the_matrix_units_would_cut_it_off(arch):
    target = gpu_target(arch)
    graph = linear(512, 512, 512, "float32")
    for rounding, precision in ((Rounding(), "ieee"), (Rounding(products=True), "tf32")):
        (kernel,) = schedule(graph, target, products_of(graph), rounding=rounding).kernels
        source = source_of(kernel, target)
        assert (precision == "tf32") == ("rounded_tf32(" in source.text)
        assert f'input_precision="{precision}"' in source.text
    assert "cvt.rna.tf32" in lowered(job_of(source, target))[0]["ptx"]
    check_binaries((kernel,), arch)
    small = linear(128, 256, 256, "float32")
    assert small_products(small) == small_products(small, Rounding(products=True)) == products_of(small).keys()


@needs_triton
def test_only_what_a_product_of_matrices_multiplies_is_added_unrounded():
    target, m = gpu_target("sm_90"), Make()
    x, y = m.input(64, 256), m.input(64, 256)
    graph = on_gpu(m.graph(m.op("sub", m.op("mul", x, x), m.op("mul", y, y))))
    (kernel,) = schedule(graph, target).kernels
    ptx = lowered(job_of(source_of(kernel, target), target))[0]["ptx"]
    assert "mul.rn.f32" in ptx and "fma" not in ptx
    m = Make()
    x, w, y = m.input(128, 256), m.input(256, 256), m.input(128, 256)
    graph = on_gpu(m.graph(m.op("sub", m.op("mul", m.matmul(x, w), y), y)))
    (kernel,) = schedule(graph, target, products_of(graph)).kernels
    source = source_of(kernel, target)
    ptx = lowered(job_of(source, target))[0]["ptx"]
    assert "libdevice.mul_rn(" in source.text and "mul.rn.f32" in ptx and "fma.rn.f32" in ptx


@needs_triton
def test_no_sum_of_two_integers_in_a_word_reaches_the_assembler():
    """ptxas loses a constant of such a sum: here the right border of 3 x 3 taps at every second position."""
    m = Make()
    x = m.input(3, 64, 15, 15, strides=last((3, 64, 15, 15)))
    w = m.input(96, 64, 3, 3, strides=last((96, 64, 3, 3)))
    graph, target = on_gpu(m.graph(m.convolution(x, w, 2, 1))), gpu_target("sm_90")
    (kernel,) = schedule(graph, target, products_of(graph), rounding=Rounding(convolutions=True)).kernels
    job = job_of(source_of(kernel, target), target)
    for is_direct in (True, False, False):  # the last one finds what it compiled in Triton's own cache
        made, _ = lowered(job, is_direct)
        assert not re.search(r"\b(add|min|max)\.[su]16x2", made["ptx"])
    text = "add.s16x2 \t%r552, %r551, %r7;"
    assert "add.s16 %a0, %a0, %b0; add.s16 %a1, %a1, %b1;" in unpacked(text) and "%r552, {%a0, %a1}" in unpacked(text)


WORDS = """
\t.reg .b16 \t%rs<9>;
\tld.global.b32 \t%r1, [%rd1];
\tmov.b32 \t{%rs1, %rs2}, %r1;
\tcvt.f32.bf16 \t%r2, %rs1;
\tcvt.f32.bf16 \t%r3, %rs2;
\tcvt.rn.bf16.f32 \t%rs3, %r2;
\tcvt.rn.bf16.f32 \t%rs4, %r3;
\tcvt.f32.bf16 \t%r4, %rs3;
\tcvt.f32.bf16 \t%r5, %rs4;
"""


def test_halves_of_a_word_are_rounded_and_widened_by_one_instruction_each():
    made = halved(f".visible .entry kernel(\n{WORDS}")
    assert made.splitlines()[2:] == [
        "\t.reg .b32 \t%pair<1>;", "\t.reg .b16 \t%rs<9>;", "\tld.global.b32 \t%r1, [%rd1];",
        "\tmov.b32 \t{%rs1, %rs2}, %r1;", "\tshl.b32 \t%r2, %r1, 16;", "\tand.b32 \t%r3, %r1, -65536;",
        "\tcvt.rn.bf16x2.f32 \t%pair0, %r3, %r2;", "\tmov.b32 \t{%rs3, %rs4}, %pair0;",
        "\tshl.b32 \t%r4, %pair0, 16;", "\tand.b32 \t%r5, %pair0, -65536;"]


@pytest.mark.parametrize("before, after", [
    ("\tmov.b32 \t{%rs1, %rs2}, %r1;", "\tmov.b32 \t{%rs1, %rs2}, %r1;\n\tadd.s32 \t%r1, %r1, 1;"),  # another word
    ("\tcvt.f32.bf16 \t%r2", "\tmov.b16 \t%rs1, %rs7;\n\tmov.b16 \t%rs2, %rs7;\n\tcvt.f32.bf16 \t%r2"),
    ("\tmov.b32 \t{%rs1", "$L__BB0_1:\n\tmov.b32 \t{%rs1"),  # another block
])
def test_what_is_no_half_of_its_word_any_more_is_widened_as_it_is(before, after):
    made = halved(f".visible .entry kernel(\n{WORDS.replace(before, after)}")
    assert made.count("cvt.f32.bf16 \t%r2, %rs1") == made.count("cvt.f32.bf16 \t%r3, %rs2") == 1


@needs_triton
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sixteen_bits_cost_an_instruction_to_widen_and_half_a_one_to_round(arch):
    m = Make()
    x = m.cast(m.input(4096, dtype="bfloat16"), "float32")
    y = m.cast(m.cast(m.op("mul", x, (3.1,)), "bfloat16"), "float32")
    (kernel,) = schedule(on_gpu(m.graph(m.cast(m.op("mul", y, (0.7,)), "bfloat16"))), gpu_target(arch)).kernels
    made, _ = lowered(job_of(source_of(kernel, gpu_target(arch)), gpu_target(arch)))
    found = re.findall(r"(cvt\.\S+|(?:shl|and)\.b32)", made["ptx"])
    assert "cvt.f32.bf16" not in found and "cvt.rn.bf16.f32" not in found and "cvt.rn.bf16x2.f32" in found


@needs_triton
def test_every_tile_that_is_worth_trying_compiles():
    target, device = gpu_target("sm_90"), device_of("sm_90")
    for graph in (linear(2048, 768, 768), on_gpu(softmax(4096, 1024, "bfloat16"))):
        for kernel in fused(graph, target).kernels:
            found = choices(kernel, target)
            assert 1 < len(found) <= 12 and next(iter(found.values())) == tile_of(kernel, target)
            for tile in found.values():
                made = binary(source_of(kernel, target, tile), target)
                assert made.shared_bytes <= device.shared_bytes, tile


@needs_triton
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_updates_of_many_sizes_are_one_kernel_and_its_table(arch):
    m, made = Make(), []
    for size in (64, 100, 4096, 65536):
        value, slope, mean, square = (m.input(size) for _ in range(4))
        numbers = [m.expand(m.input(dtype="float64"), size) for _ in range(2)]
        mean = m.op("add", mean, m.op("mul", m.op("sub", slope, mean), (0.1,)))
        square = m.op("add", m.op("mul", square, (0.999,)), m.op("mul", slope, m.op("mul", slope, (0.001,))))
        first, second = (m.cast(number, "float32") for number in numbers)
        root = m.op("add", m.op("div", m.op("sqrt", square), second), (1e-8,))
        made += [mean, square, m.op("add", value, m.op("div", m.op("mul", mean, first), root))]
    graph = on_gpu(m.graph(*made))
    graph = replace(graph, inputs=tuple(
        replace(i, type=replace(i.type, device="cpu")) if i.type.rank == 0 else i for i in graph.inputs))
    plan = schedule(graph, gpu_target(arch))
    assert len(plan.kernels) == 1 and len(plan.calls) == 4
    check_binaries(plan.kernels, arch)
    image = build_gpu(plan.kernels, gpu_target(arch))
    assert [name for name, _ in image.entries] == [plan.kernels[0].name, plan.kernels[0].name + "_table"]


@needs_triton
@pytest.mark.parametrize("arch", ONE_OF_THEM)
def test_a_layer_and_random_graphs(arch):
    m = Make()
    graph = on_gpu(m.graph(bert_layer(m, m.input(2, 6, 32), 2, 6, 32, 4)))
    check_binaries(schedule(graph, gpu_target(arch)).kernels, arch)
    check_binaries(fused(graph, gpu_target(arch)).kernels, arch)
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
@pytest.mark.parametrize("arch", ONE_OF_THEM)
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
def test_images_that_are_made_together_share_texts(monkeypatch):
    """The halves of a training step compute what is equal in both."""
    jobs, asked = [], {}
    submit = cubin.WORKERS.submit
    monkeypatch.setattr(cubin.WORKERS, "submit", lambda job: jobs.append(job.name) or submit(job))
    target = gpu_target("sm_90")
    m = Make()
    x = m.input(4096, 64)
    (first,) = schedule(on_gpu(m.graph(m.op("maximum", x, (0.0,)))), target).kernels
    wait = [begin_gpu([replace(first, name=name)], target, asked=asked) for name in ("first", "second")]
    images = [image() for image in wait]
    assert jobs == ["first"] and images[0].binaries == images[1].binaries
    assert [image.entries for image in images] == [(("first", 0),), (("second", 0),)]
    begin_gpu([first], gpu_target("sm_80"), asked=asked)()
    assert len(jobs) == 2


@pytest.mark.parametrize("count, length, elems", [(2, 768, 32), (6, 768, 16), (12, 768, 8), (12, 4096, 16)])
def test_a_fold_that_holds_many_rows_has_more_threads(count, length, elems):
    """Else they would spill, or take long to compile."""
    m = Make()
    total, *others = [m.input(4096, length) for _ in range(count)]
    for other in others:
        total = m.op("add", total, other)
    made = m.op("sub", total, m.mean(total, 1))
    kernel = schedule(on_gpu(m.graph(made, m.reduce("sum", made, 0, keepdim=False))), TARGET).kernels[0]
    tile = tile_of(kernel, TARGET)
    assert tile.steps > 1 and tile.rows * tile.columns == 32 * tile.warps * elems


def test_sums_of_a_row_that_is_folded_are_last_and_one_reduction():
    kernel = schedule(on_gpu(norm_backward(Make(), 4096, 8192, dtype="bfloat16")), TARGET).kernels[0]
    source = source_of(kernel, TARGET)
    assert source.text.count("tl.reduce((") == 1 and source.text.count("= tl.sum(") == 2, "waits of a row"
    assert source.tile.ahead == 3, "what all rows have in common is on its way for none of them"
    walk = source.text.split("for step in")[1]
    assert walk.index("a3 = a3 + ") < walk.index("tl.reduce((") and walk.index("a4 = a4 + ") < walk.rindex("tl.sum(")


def test_a_thread_has_more_of_narrow_and_of_very_long_rows():
    """Of 16 rows of 67 floats, which begin anywhere, 16 elements a thread would lie across warps."""
    assert [row_elems(*tile) for tile in ((16, 128), (8, 256), (4, 512), (1, 8192), (1, 16384))] == [32, 32, 16, 16, 32]


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
    assert binary(source_of(kernel, gpu_target("sm_90")), gpu_target("sm_90")).scratch_words == 2


# ---------------------------------------------------------------------------- the interpreter
def slow(case: str):
    """A case that Triton interprets for a quarter of a minute and more."""
    return pytest.param(case, marks=pytest.mark.slow)


def interpret(module: str, case: str) -> None:
    """Runs `module` for a case in a process of its own, in which Triton interprets its kernels."""
    folder = Path(__file__).parent.parent
    done = processes.run(
        "-m", module, case, folder=folder, limit_s=600, loaded="generate.interpreted",
        environment={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
@pytest.mark.parametrize(
    "group", (
        "batches", "few", "in_place", slow("parts"), "products", "convolutions", "rows", "movement", "elementwise",
        "graphs", "folds", "norms", "random"))
def test_interpreted(group):
    interpret("generate.triton_cases", group)
