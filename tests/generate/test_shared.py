"""Kernels that differ in sizes alone: one text, and what each launch passes to it."""

import importlib.util
import re
from dataclasses import replace

import pytest
import torch
from schedule.graphs import Make, on_gpu

from bench.models import MODELS
from preheat.capture.capture import capture
from preheat.generate import cubin
from preheat.generate.cubin import build_gpu, gpu_target
from preheat.generate.shared import shared
from preheat.generate.variants import sources_of
from preheat.ir.plan import Target
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

TARGET = Target("cuda", "sm_90")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install '.[dev]'")


def column_sum(rows, columns, factor=3.0):
    """x.sum(0) * factor: rows of memory lie `columns` apart."""
    m = Make()
    total = m.reduce("sum", m.input(rows, columns), 0, keepdim=False)
    (kernel,) = schedule(on_gpu(m.graph(m.op("mul", total, (factor,)))), TARGET).kernels
    return kernel


def own_text(source, numbers):
    """The text of a kernel that has `numbers` in it again."""
    names = re.findall(r"\bs\d+\b", source.text.split(f"def {source.name}(")[1].split("):")[0])
    assert len(names) == len(numbers)
    head, body = source.text.split(f"def {source.name}(")
    body = body.replace("".join(f", {name}" for name in names) + "):", "):", 1)
    for name, number in zip(names, numbers):
        body = re.sub(rf"\b{name}\b", repr(number), body)
    return f"{head}def kernel({body}"


def texts_of(kernels):
    sources = [source for kernel in kernels for source in sources_of(kernel, TARGET)]
    return sources, shared(sources)


def test_columns_of_several_widths_are_one_text():
    _, found = texts_of([column_sum(100, 1024), column_sum(100, 2048)])
    (first, numbers), (second, others) = found
    assert first.text == second.text and numbers == (1024,) and others == (2048,)
    assert "tl.load(p0 + (y + x * s0)" in first.text and "is_x = x < 100" in first.text
    assert first.signature == ("*fp32", "*fp32", "i32") and first.multiples == (16, 16, 16)


def test_a_kernel_alone_keeps_its_sizes():
    sources, found = texts_of([column_sum(100, 1024), column_sum(50, 1024)])
    assert [source for source, _ in found] == sources and not any(numbers for _, numbers in found)


def test_what_cannot_be_divided_alike_is_not_one():
    """Rows of 1032 floats begin at every eighth float, those of 1024 at every 16th."""
    for other, is_one in ((1024, True), (1032, False)):
        sources, found = texts_of([column_sum(100, 2048), column_sum(100, other)])
        assert (found[0][0].text == found[1][0].text) is is_one


def test_floats_that_differ_are_passed_and_powers_of_two_stay():
    for other, is_one in ((5.0, True), (4.0, False), (0.0, False)):
        _, found = texts_of([column_sum(100, 2048), column_sum(100, 2048, other)])
        assert (found[0][0].text == found[1][0].text) is is_one
        if is_one:
            assert [numbers for _, numbers in found] == [(3.0,), (5.0,)]
            assert found[0][0].signature[-1] == "fp64" and "tl.full([], s0, tl.float32)" in found[0][0].text


def test_loops_keep_their_bounds():
    _, found = texts_of([column_sum(rows, columns) for rows in (100, 200) for columns in (4096, 8192)])
    assert [numbers for _, numbers in found] == [(4096,), (8192,)] * 2
    texts = [source.text for source, _ in found]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert "range(full, 100, 64)" in texts[0] and "range(full, 200, 64)" in texts[2]


@pytest.mark.parametrize("name", ("gpt2", "convnext", "resnet"))
def test_a_shared_text_with_its_sizes_is_the_kernels_own(name):
    subject = MODELS[name].make()
    with torch.no_grad():
        (node,) = capture(subject.call, subject.args, subject.kwargs, limits=None).nodes
    plan = schedule(on_gpu(lower(node.trace.nodes[0].body)), TARGET)
    sources, found = texts_of(plan.kernels)
    assert len({source.text for source, _ in found}) <= len({source.text for source in sources})
    for source, (other, numbers) in zip(sources, found):
        assert own_text(other, numbers) == source.text.replace(f"def {source.name}(", "def kernel(")
        assert other.signature[:len(source.signature)] == source.signature
        assert len(other.multiples) == len(other.signature)
        for number, multiple in zip(numbers, other.multiples[len(source.multiples):]):
            assert isinstance(number, float) or number % multiple == 0


@needs_triton
def test_an_image_has_one_binary_a_kernel_and_its_numbers(monkeypatch):
    jobs = []
    submit = cubin.WORKERS.submit
    monkeypatch.setattr(cubin.WORKERS, "submit", lambda job: jobs.append(job) or submit(job))
    kernels = [replace(column_sum(100, n), name=f"of_{n}") for n in (1024, 2048)]
    image = build_gpu(kernels, gpu_target("sm_90"))
    assert len(jobs) == 1 and len({binary.code for binary in image.binaries}) == 1
    assert [binary.numbers for binary in image.binaries] == [(1024,), (2048,)]
    assert [binary.programs for binary in image.binaries] == [64, 128]
    known = {}  # a search times each kernel for itself
    build_gpu(kernels, gpu_target("sm_90"), known=known)
    assert all(not binary.numbers for binaries in known.values() for binary in binaries)
