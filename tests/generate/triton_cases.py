"""Graphs whose kernels Triton's interpreter runs, a group a process.

    python -m generate.triton_cases rows

A process that interprets kernels cannot compile them, so `test_triton` starts this one. Each graph
is scheduled for a GPU, and its plan must give what `bridge.interpret` gives. Raises at the first that
does not; prints how many did.
"""

import sys
from collections.abc import Iterator

from generate.interpreted import Fault, interpreted, run_triton  # first: it chooses Triton's interpreter

import numpy
import torch
from schedule.graphs import Make, last, on_gpu, random_input, same
from schedule.test_fusion import bert_layer
from schedule.test_folds import norm_backward
from schedule.test_fuzz import Program

from preheat.bridge.interpret import run
from preheat.generate import tiles
from preheat.generate.products import product_of
from preheat.generate.sources import HEAD
from preheat.generate.triton import source_of
from preheat.generate.triton_ops import helpers_of
from preheat.generate.tuned import choices, tile_of
from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.loop import is_for_any
from preheat.ir.ops import CORE, FUSABLE
from preheat.ir.plan import KernelCall, Rounding, Target
from preheat.ir.types import TensorType, contiguous_strides, tensor
from preheat.schedule import abreast, cost, memory, split
from preheat.schedule.products import parts_of, products_as_kernels, products_of
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower

TARGET = Target("cuda", "sm_90")
DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
# Few rows, many; short, odd, and longer than a program holds: the interpreter is slow, so a program
# holds less here.
SIZES = ((5, 7), (3, 128), (90, 3), (2, 500), (2, 512))
tiles.BLOCK_ELEMS, tiles.ROW_BYTES, tiles.DEEP, tiles.FOLD_ELEMS, tiles.HELD_BYTES = 64, 512, 16, 64, 256
cost.LEAST_FOLDING = 4
ODD = (float("-inf"), float("inf"), float("nan"))


def rows() -> Iterator[Graph]:
    for sizes in SIZES:
        for axis in (0, 1):
            m = Make()
            yield m.graph(m.softmax(m.input(*sizes), axis))
        for axes in ((0,), (1,), (0, 1)):
            m = Make()
            x = m.input(*sizes)
            small = m.op("sigmoid", x)
            yield m.graph(
                m.reduce("sum", x, *axes), m.reduce("max", x, *axes),
                m.reduce("min", m.op("neg", x), *axes), m.reduce("prod", small, *axes))
        m = Make()
        x = m.input(*sizes)
        yield m.graph(*(
            m.add(how, [x], tensor("int64", (sizes[1 - axis],)), axis=axis, keepdim=False)
            for how in ("argmax", "argmin") for axis in (0, 1)))


def movement() -> Iterator[Graph]:
    for sizes in ((32, 64), (40, 200), (33, 65)):
        m = Make()
        x = m.input(*sizes)
        turned = m.add("cast", [m.permute(m.op("exp", x), 1, 0)],
                       tensor("float32", sizes[::-1]), dtype="float32")
        yield m.graph(turned, m.op("neg", x))
    for channels in (10, 7):  # channels in groups of few, made neighbours in memory
        m = Make()
        x = m.input(2, 6, channels, 70)
        x = m.reshape(m.op("sub", x, m.expand(m.input(2, 6, 1, 1), 2, 6, channels, 70)), 2, 6 * channels, 70)
        turned = tensor("float32", (2, 6 * channels, 70), (420 * channels, 1, 6 * channels))
        yield m.graph(m.add("neg", [x], turned))
    m = Make()
    yield m.graph(m.op("neg", m.permute(m.input(64, 16, 3), 2, 1, 0)))
    m = Make()
    yield m.graph(bert_layer(m, m.input(2, 6, 32), 2, 6, 32, 4))


    for strides in (None, (240, 1, 40, 5)):  # windows of 3 x 3, every second one, and channels last
        m = Make()
        x = m.op("add", m.input(2, 5, 6, 8, strides=strides), (1.0,))
        padded = m.pad(x, (0, 0, 1, 1), (0, 0, 1, 0), float("-inf"))
        parts = [
            m.slice(m.slice(padded, 2, i, i + 5, 2), 3, j, j + 7, 2)
            for i in range(3) for j in range(3)]
        made = parts[0]
        for part in parts[1:]:
            made = m.op("maximum", made, part)
        yield m.graph(made)


def elementwise() -> Iterator[Graph]:
    for dtype in DTYPES:
        for name, dtypes in FUSABLE.items():
            if dtype not in dtypes or name in ("cast", "bitcast", "where"):
                continue
            m = Make()
            values = [m.input(300, dtype=dtype) for _ in range(CORE[name].arity)]
            yield m.graph(m.op(name, *values))
        for target in DTYPES:
            m = Make()
            yield m.graph(m.cast(m.input(300, dtype=dtype), target))


def random() -> Iterator[Graph]:
    """Numbers that are drawn where they are used, in order and moved."""
    for sizes in SIZES:
        m = Make()
        seed, type = m.input(dtype="int64"), tensor("float32", sizes)
        u, v = (m.add("uniform", [seed], type, stream=stream) for stream in (0, 2**32 - 1))
        yield m.graph(
            m.op("mul", m.input(*sizes), m.cast(m.op("lt", u, (0.5,)), "float32")),
            m.reduce("max", m.op("add", u, v), 1), m.op("neg", m.permute(v, 1, 0)),
            m.op("neg", m.slice(u, 1, 1, sizes[1])), m.op("neg", m.pad(u, (1, 0), (0, 2))))


def graphs(first: int = 0) -> Iterator[Graph]:
    for seed in range(first, first + 32):
        yield Program(seed, 4 + seed % 14).graph()


def folds() -> Iterator[Graph]:
    for sizes in ((64, 24), (2, 32, 100), (128, 64)):
        yield norm_backward(Make(), *sizes)


def products() -> Iterator[Graph]:
    """Products as kernels: sizes that do not divide, operands and results turned, batches, epilogues
    and prologues."""
    for rows, inner, columns in ((16, 32, 32), (40, 70, 50), (3, 5, 90), (130, 16, 17), (2, 300, 2)):
        for turns_a, turns_b in ((False, True), (True, False)):
            m = Make()
            a = m.permute(m.input(inner, rows), 1, 0) if turns_a else m.input(rows, inner)
            b = m.permute(m.input(columns, inner), 1, 0) if turns_b else m.input(inner, columns)
            y = m.op("add", m.matmul(a, b), m.input(columns))
            yield m.graph(m.op("maximum", m.op("add", y, m.input(rows, columns)), (0.0,)), y)
        m = Make()
        y = m.matmul(m.op("mul", m.input(rows, inner), m.input(inner)), m.input(inner, columns))
        yield m.graph(m.op("neg", m.permute(y, 1, 0)))
        m = Make()
        a, b = m.input(3, rows, inner), m.permute(m.input(3, columns, inner), 0, 2, 1)
        yield m.graph(m.op("tanh", m.op("mul", m.matmul(a, b), m.input(3, rows, 1))))
    m = Make()  # one after the other, each with its activation
    x = m.input(20, 24)
    for _ in range(3):
        x = m.gelu(m.op("add", m.matmul(x, m.permute(m.input(24, 24), 1, 0)), m.input(24)))
    yield m.graph(x)
    m = Make()  # stored by heads
    y = m.reshape(m.matmul(m.input(2 * 10, 24), m.input(24, 24)), 2, 10, 3, 8)
    yield m.graph(m.op("exp", m.permute(y, 0, 2, 1, 3)))
    m = Make()  # two products of one operand, whose results meet
    x = m.input(20, 32)
    gate = m.op("sigmoid", m.matmul(x, m.input(32, 40)))
    yield m.graph(m.op("mul", gate, m.matmul(x, m.input(32, 40))))
    m = Make()  # long, with few results: in parts
    y = m.op("add", m.matmul(m.input(4, 1024), m.input(1024, 8)), m.input(8))
    yield m.graph(m.op("tanh", y))


def convolutions() -> Iterator[Graph]:
    """Over windows: of channels that blocks divide, and that they do not; strides, borders, images, epilogues."""
    for sizes, outer, taps, numbers in (
        ((1, 16, 7, 6), 20, 3, (1, 1)), ((3, 32, 6, 5), 17, 3, (2, 1)), ((5, 48, 5, 5), 16, 2, (1, 0)),
        ((2, 3, 12, 11), 16, 5, (2, 2)), ((1, 10, 9, 8), 16, 3, (1, 2, 2)), ((2, 24, 6, 6), 16, 1, (2, 0)),
        ((4, 40, 5, 4), 33, 1, (1, 0)),
    ):
        m = Make()
        x, w = m.input(*sizes, strides=last(sizes)), m.input(outer, sizes[1], taps, taps)
        y = m.convolution(x, w, *numbers)
        shape = m.type(y).sizes
        scaled = m.op("mul", m.op("sub", y, m.input(outer, 1, 1)), m.op("rsqrt", m.op("abs", m.input(outer, 1, 1))))
        joined = m.op("add", scaled, m.input(*shape, strides=last(shape)))
        strides = m.type(y).strides
        yield m.graph(m.add("maximum", [joined, m.full(0.0, *shape)], tensor("float32", shape, strides)))


def few() -> Iterator[Graph]:
    """Products of few rows as sums: rows side by side, several products of one operand, epilogues."""
    for rows, inner, columns in ((1, 32, 40), (1, 200, 17), (3, 48, 20), (4, 130, 33), (20, 64, 2)):
        m = Make()
        x, w, v = m.input(rows, inner), m.input(columns, inner), m.input(columns, inner)
        first, second = (m.matmul(x, m.permute(k, 1, 0)) for k in (w, v))
        gate = m.op("mul", first, m.op("sigmoid", first))
        yield m.graph(m.op("mul", gate, second), m.op("add", second, m.input(columns)))
        m = Make()
        y = m.matmul(m.input(rows, inner), m.permute(m.input(columns, inner), 1, 0))
        yield m.graph(m.op("maximum", m.op("add", y, m.input(rows, columns)), (0.0,)))
    m = Make()  # written as sums, along columns and along rows
    x, w = m.input(3, 70, 1), m.input(70, 40)
    yield m.graph(m.reduce("sum", m.op("mul", x, w), 1), m.reduce("max", m.op("mul", x, w), 1))
    m = Make()
    x, w = m.input(4, 1, 70), m.input(40, 70)
    yield m.graph(m.op("exp", m.reduce("max", m.op("mul", x, w), 2)))
    m = Make()
    a, b = m.input(3, 2, 40), m.permute(m.input(3, 24, 40), 0, 2, 1)
    yield m.graph(m.op("tanh", m.matmul(a, b)))


def parts() -> Iterator[Graph]:
    """Softmaxes whose rows are cut in parts, and reductions whose parts are padded."""
    cost.GPU_ROW_ELEMS, split.GPU_PART_ELEMS, split.GPU_PART_ROWS, split.GPU_STEPS = 64, 128, 16, (4, 16)
    abreast.KNOWN_ROWS, abreast.LEAST_COLUMNS = 40, 3
    for sizes, axis in (((2, 1024), 1), ((96, 3), 0), ((2, 256, 2), 1), ((2, 1021), 1), ((97, 3), 0)):
        m = Make()
        yield m.graph(m.softmax(m.input(*sizes), axis))
        m = Make()
        x = m.input(*sizes)
        below = m.op("sub", x, m.reduce("max", x, axis))
        yield m.graph(m.op("log", m.reduce("sum", m.op("exp", below), axis)))
    for sizes in ((2, 1021), (97, 3), (53, 47), (6, 7, 37), (1, 1031)):  # no number of parts divides them
        for axes in (tuple(range(len(sizes))), (0,), (len(sizes) - 1,)):
            m = Make()
            x = m.input(*sizes)
            y = m.op("exp", m.op("mul", x, x))
            yield m.graph(*(m.reduce(how, y, *axes) for how in ("sum", "max", "min")), y)
            m = Make()
            x = m.op("add", m.input(*sizes), m.input(sizes[-1]))  # no sum over memory as it lies
            yield m.graph(m.reduce("sum", x, *axes), m.reduce("any", m.op("gt", x, (3.0,)), *axes))


def in_place() -> Iterator[Graph]:
    """What is stored in the place of a product's result: elementwise, beside what lies turned, in another shape."""
    memory.GPU_LARGE_BYTES = 1 << 12
    for rows, columns in ((64, 32), (100, 33), (40, 200)):
        m = Make()
        y = m.matmul(m.input(rows, 20), m.input(20, columns))
        y = m.op("add", m.op("tanh", y), m.permute(m.input(columns, rows), 1, 0))
        z = m.op("mul", m.reshape(m.matmul(m.input(columns, 20), m.input(20, rows)), rows, columns), y)
        yield m.graph(m.matmul(z, m.input(columns, 8)))


def batches() -> Iterator[Graph]:
    """Updates that differ in their sizes alone, of numbers and of single elements too, and what stays apart."""
    for dtype in ("float32", "float64"):
        m = Make()
        rate = m.input(dtype=dtype)
        sizes = ((5,), (7, 300), (3000,), (1, 1), (1024,), (2048,), (1025,), (4, 4), (2, 1))
        made = []
        for size in sizes:
            value, slope, mean = (m.input(*size, dtype=dtype) for _ in range(3))
            mean = m.op("add", m.op("mul", mean, (0.9,)), m.op("mul", slope, (0.1,)))
            made += [mean, m.op("sub", value, m.op("mul", mean, m.expand(rate, *size)))]
        made += [m.op("add", m.input(dtype=dtype), (1.0,)) for _ in range(5)]
        made.append(m.op("exp", made[-1]))
        yield m.graph(*made)


def norms() -> Iterator[Graph]:
    """Batch norms that train, and their backwards: images with channels last in parts of images or some of them each,
    with channels first, rows; statistics beside what is done to the results."""
    split.IMAGE_ROWS, split.MOST_IMAGE_PARTS, tiles.HELD_COLUMNS, tiles.CHANNEL_ELEMS = (8, 16), 24, 512, 128
    cost.GPU_ROW_ELEMS, split.GPU_PART_ELEMS = 64, 128
    for sizes in ((3, 32, 8, 6), (5, 40, 7, 7), (2, 33, 16, 12), (16, 6, 3, 5), (2, 64, 31, 2), (90, 20)):
        for strides in dict.fromkeys((contiguous_strides(sizes), last(sizes) if len(sizes) == 4 else None)):
            if strides is None:
                continue
            image, channel = tensor("float32", sizes, strides), tensor("float32", sizes[1:2])
            yield lower(normed(image, channel))
            yield lower(normed_backward(image, channel))


def normed(image: TensorType, channel: TensorType) -> Graph:
    """Level aten: relu of a batch norm and a residual, saved and running statistics."""
    b = Builder("aten")
    x, residual = b.input(image, "x"), b.input(image, "r")
    weight, bias, mean, variance = [b.input(channel, name) for name in "wbmv"]
    refs, made = tuple(map(Ref, (x, weight, bias, mean, variance))), [b.fresh() for _ in range(5)]
    b.append(Op(
        "aten._native_batch_norm_legit_functional.default", (*refs, True, 0.1, 1e-5), tuple(made),
        (image, *(channel,) * 4)))
    total = b.add("aten.add.Tensor", [made[0], residual], image)
    return b.finish([b.add("aten.relu.default", [total], image), *made[1:]])


def normed_backward(image: TensorType, channel: TensorType) -> Graph:
    """Level aten: the backward of a relu and of a batch norm."""
    b = Builder("aten")
    grad, y, x = (b.input(image, name) for name in "gyx")
    weight, mean, rstd = (b.input(channel, name) for name in "wmr")
    masked, made = b.fresh(), [b.fresh() for _ in range(3)]
    b.append(Op("aten.threshold_backward.default", (Ref(grad), Ref(y), 0), (masked,), (image,)))
    args = (*map(Ref, (masked, x, weight)), None, None, Ref(mean), Ref(rstd), True, 1e-5, (True,) * 3)
    b.append(Op("aten.native_batch_norm_backward.default", args, tuple(made), (image, channel, channel)))
    return b.finish(made)


GROUPS = {
    "batches": batches, "norms": norms,
    "few": few, "in_place": in_place, "parts": parts,
    "products": products, "convolutions": convolutions, "rows": rows, "movement": movement, "elementwise": elementwise,
    "graphs": graphs, "folds": folds, "random": random}


def given(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [random_input(i.type, generator, 2) for i in graph.inputs]


def check(group: str, graph: Graph, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """The plan's results are the graph's; both fault or neither does."""
    moved = on_gpu(graph)
    fused, cut = ({}, {}) if group in ("few", "in_place") else (products_of(moved), parts_of(moved, 132))
    is_whole = group != "few" and not fused
    assert is_whole or all(isinstance(call, KernelCall) for call in schedule(moved, TARGET, fused).calls)
    plan = schedule(moved, TARGET, fused, {value: counts[-1] for value, counts in cut.items()})
    assert group != "batches" or sum(map(is_for_any, plan.kernels)) == 2
    assert group != "in_place" or any(p.role == "inout" for kernel in plan.kernels for p in kernel.params)
    divides = any(op.name in ("floordiv", "truncdiv", "remainder", "fmod") for op in graph.ops)
    try:
        expected = run(graph, theirs)
    except (IndexError, RuntimeError) as error:
        if "not implemented" in str(error):  # eager has no such op
            return
        try:
            run_triton(plan, ours, TARGET)
        except Fault:
            return
        assert divides, error  # a GPU divides by zero without one
        return
    for a, b in zip([*run_triton(plan, ours, TARGET), *ours], [*expected, *theirs], strict=True):
        same(a, b)


def check_rounded(graph: Graph) -> None:
    """Float32 operands rounded to tf32: the results are those of the rounded graph, and not of the exact one."""
    moved, rounding = on_gpu(graph), Rounding(True, True)
    chosen = products_of(moved)
    plan = schedule(moved, TARGET, chosen, rounding=rounding)
    rounded = on_gpu(products_as_kernels(moved, chosen, rounding=rounding).graph, "cpu")
    found = run_triton(plan, given(graph), TARGET)
    for a, b, exact in zip(found, run(rounded, given(graph)), run(graph, given(graph)), strict=True):
        same(a, b)
        assert not torch.equal(b, exact)
    for kernel in plan.kernels:
        if product_of(kernel) is not None and tile_of(kernel, TARGET).depth:
            assert 'input_precision="tf32"' in source_of(kernel, TARGET).text


def check_tiles() -> None:
    """Every tile of a product that is worth trying gives the same."""
    m = Make()
    y = m.matmul(m.input(50, 70), m.permute(m.input(33, 70), 1, 0))
    graph = m.graph(m.op("maximum", m.op("add", y, m.input(33)), (0.0,)))
    moved = on_gpu(graph)
    plan = schedule(moved, TARGET, products_of(moved))
    (kernel,) = plan.kernels
    assert product_of(kernel) is not None and len(plan.calls) == 1
    found = choices(kernel, TARGET)
    assert len(found) > 4
    for tile in found.values():
        for a, b in zip(run_triton(plan, given(graph), TARGET, tile=tile), run(graph, given(graph))):
            same(a, b)


def check_coarse() -> None:
    """The functions of coarse values are as near as `triton_ops` says, for results below 2**-126, too."""
    spread = torch.linspace(-104, 104, 4092).tolist()
    x, made = torch.tensor([*spread, 0.0, *ODD]), torch.empty(4, 4096)
    body = """    x = tl.arange(0, 4096)
    v = tl.load(p0 + x)
    tl.store(p1 + x, near_exp(v))
    tl.store(p1 + 4096 + x, near_sigmoid(v))
    tl.store(p1 + 8192 + x, near_erf(v))
    tl.store(p1 + 12288 + x, share(v, tl.full([4096], 3.0, tl.float32)))
"""
    text = f"{HEAD}{helpers_of(body)}\n\n@triton.jit\ndef coarse(p0, p1):\n{body}\n"
    with numpy.errstate(all="ignore"):
        interpreted("coarse", text)[(1,)](x, made)
    wide, ulp, least = x.double(), 2.0**-23, 2.0**-148
    sigmoid = torch.where(x < -88.72, 0, wide.sigmoid())  # as in float32, where exp(-x) has no number
    for found, true, bound in (
        (made[0], wide.exp(), (wide.abs() / 2 + 5) * ulp * wide.exp() + least),
        (made[1], sigmoid, (wide.abs() / 2 + 5) * ulp * wide.sigmoid() + least),
        (made[2], wide.erf(), 5e-7), (made[3], wide / 3, 2 * ulp * wide.abs())):
        is_near = (found.double() - true).abs() <= bound
        is_near |= (found == true) | (true.isnan() & found.isnan()) | ((true > 3.4e38) & found.isinf())
        assert is_near.all(), (x[~is_near], found[~is_near])


def main(group: str) -> None:
    count = 0
    if group == "elementwise":
        check_coarse()
    if group == "products":
        check_tiles()
    for graph in GROUPS[group]():
        check(group, graph, given(graph), given(graph))
        count += 1
        if group in ("products", "convolutions"):
            check_rounded(graph)
        if group in ("rows", "parts") and any(op.name == "exp" for op in graph.ops):
            for odd in ODD:
                ours, theirs = given(graph), given(graph)
                for x in (ours[0], theirs[0]):
                    x[0], x[-1, 2] = odd, odd
                check(group, graph, ours, theirs)
    print(f"{count} graphs")


if __name__ == "__main__":
    main(sys.argv[1])
