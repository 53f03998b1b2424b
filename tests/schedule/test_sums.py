"""Products of few rows: sums in kernels of their own, with what follows, as exact as before."""

import random
from dataclasses import replace

import pytest
import torch
from schedule.graphs import Make, compare, on_gpu, random_input, same
from schedule.loop_interpret import run_plan
from schedule.test_native import execute

from preheat.bridge.interpret import run
from preheat.generate.build import build, host_target
from preheat.generate.products import product_of
from preheat.ir.graph import Graph
from preheat.ir.plan import KernelCall, LibraryCall, Plan, ProductCall, Rounding, Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.run.executable import Executable
from preheat.run.load import load
from preheat.schedule.products import products_of, small_products
from preheat.schedule.schedule import schedule


def calls(plan: Plan, kind: type) -> int:
    return sum(isinstance(call, kind) for call in plan.calls)


def linear(m: Make, x: int, columns: int, dtype: str = "float32") -> int:
    """x @ w.T + b, as `Linear` lays its weight."""
    w = m.input(columns, m.type(x).sizes[-1], dtype=dtype)
    made = m.matmul(x, m.permute(w, 1, 0))
    return m.op("add", made, m.input(columns, dtype=dtype))


def test_a_row_of_layers_is_a_kernel_each():
    m = Make()
    x = m.input(1, 48)
    for _ in range(3):
        x = m.op("maximum", linear(m, x, 48), (0.0,))
    plan = compare(m.graph(x))
    assert len(plan.calls) == calls(plan, KernelCall) == 3 and len(plan.kernels) == 1


@pytest.mark.parametrize("is_along,count", [(True, 2), (False, 1)])
def test_long_arithmetic_after_a_row_is_done_in_vectors(is_along, count):
    """A row's result is one value: gelu of 256 of them is cheaper in a kernel of its own. Columns
    have their results in vectors as it is."""
    m = Make()
    x, w = m.input(1, 256), m.input(256, 256)
    plan = compare(m.graph(m.gelu(m.matmul(x, m.permute(w, 1, 0) if is_along else w))))
    assert len(plan.calls) == calls(plan, KernelCall) == count


@pytest.mark.parametrize("rows,is_sum", [(1, True), (8, True), (9, False), (64, False)])
def test_many_rows_stay_a_product(rows, is_sum):
    m = Make()
    plan = compare(m.graph(linear(m, m.input(rows, 40), 24)))
    assert calls(plan, ProductCall) == (not is_sum)


@pytest.mark.parametrize("rows,width,is_sum", [(2, 900, True), (4, 200, True), (4, 900, False)])
def test_large_bfloat16_products_stay_with_the_library(rows, width, is_sum):
    m = Make()
    x, w = m.input(rows, width, dtype="bfloat16"), m.input(width, width, dtype="bfloat16")
    plan = schedule(m.graph(m.matmul(x, w)), host_target())
    assert calls(plan, LibraryCall) == (not is_sum)


@pytest.mark.parametrize("rows", [1, 40])
def test_few_columns_are_few_rows_of_the_transposed_product(rows):
    m = Make()
    plan = compare(m.graph(m.matmul(m.input(rows, 40), m.input(40, 1))))
    assert calls(plan, ProductCall) == 0


def test_an_outer_product_is_elementwise():
    m = Make()
    a, b = m.input(2, 30, 1), m.input(2, 1, 20)
    plan = compare(m.graph(m.op("exp", m.matmul(a, b))))
    assert len(plan.calls) == calls(plan, KernelCall) == 1


def test_weights_without_a_unit_stride_stay_a_product():
    m = Make()
    w = m.input(20, 40, strides=(120, 3))
    plan = compare(m.graph(m.matmul(m.input(1, 40), m.permute(w, 1, 0))))
    assert calls(plan, ProductCall) + calls(plan, LibraryCall) == 1


def test_what_each_row_needs_is_not_computed_for_each():
    """As many columns as elements of the row: its computation would fit the sum's own loops."""
    m = Make()
    x = m.op("mul", m.input(1, 32), m.input(1, 32))
    plan = compare(m.graph(linear(m, x, 32)))
    assert [len(k.params) for k in plan.kernels] == [3, 4]


def test_a_computed_weight_is_stored_once():
    m = Make()
    w = m.op("exp", m.input(24, 32))
    plan = compare(m.graph(m.matmul(m.input(1, 32), m.permute(w, 1, 0))))
    assert calls(plan, KernelCall) == 2 and calls(plan, ProductCall) == 0


def test_a_state_written_in_place_is_read_by_the_sum_before():
    m = Make()
    w, x = m.input(24, 32), m.input(1, 32)
    y = m.matmul(x, m.permute(w, 1, 0))
    compare(m.graph(y, writes=[(w, m.op("mul", w, (0.5,)))]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("addend", [(24,), (1, 24), (2, 1), (2, 24), (1,)])
def test_a_product_with_an_addend_that_the_library_kept(dtype, addend):
    graph = addmm(dtype, addend)
    plan = compare(graph)
    assert len(plan.calls) == calls(plan, KernelCall) == 1
    execute(graph)


@pytest.mark.parametrize("factors", [{"beta": 2}, {"alpha": 0.5}])
def test_an_addend_with_factors_stays_with_the_library(factors):
    assert calls(compare(addmm("bfloat16", (24,), **factors)), LibraryCall) == 1


def addmm(dtype: str, addend: tuple[int, ...], **factors) -> Graph:
    m = Make()
    b, x, w = (m.input(*sizes, dtype=dtype) for sizes in (addend, (2, 32), (24, 32)))
    refs, type = [b, x, m.permute(w, 1, 0)], tensor(dtype, (2, 24))
    return m.graph(m.op("neg", m.add("library", refs, type, op="aten.addmm.default", **factors)))


def test_a_sum_rounds_as_often_as_addmm():
    """256.75 + 0.5 rounds to 258; rounded in between it would stay at 256."""
    m = Make()
    b, x, w = (m.input(*n, dtype="bfloat16") for n in ((1,), (1, 16), (1, 16)))
    refs, type = [b, x, m.permute(w, 1, 0)], tensor("bfloat16", (1, 1))
    graph = m.graph(m.add("library", refs, type, op="aten.addmm.default"))
    given = [torch.full(i.type.sizes, 1.0, dtype=torch.bfloat16) for i in graph.inputs]
    given[1].fill_(16.0), given[0].fill_(0.5)
    given[2][0, 0] = 1.046875
    plan = schedule(graph, host_target())
    (found,) = Executable(plan, load(build(plan.kernels, host_target())))(given)
    assert found.item() == 258


SIZES = (1, 2, 3, 16, 17, 31, 64, 100, 130)


@pytest.mark.parametrize("seed", range(40))
def test_random_products(seed):
    graph = random_product(random.Random(seed))
    compare(graph, seed)
    execute(graph)


def random_product(choose: random.Random) -> Graph:
    """Few rows or columns, batches, tails; weights transposed, sliced, repeated; an epilogue."""
    m = Make()
    dtype = choose.choice(("float32", "float32", "float64", "bfloat16", "float16"))
    few = choose.choice((1, 1, 2, 3, 5, 8, 9))
    many, inner = choose.choice(SIZES), choose.choice(SIZES)
    batch = choose.choice(((), (), (2,), (2, 3)))
    a = matrix(m, choose, batch, few, inner, dtype)
    b = matrix(m, choose, batch, inner, many, dtype)
    if choose.random() < 0.3:
        a, b = transposed(m, b), transposed(m, a)
    made = m.matmul(a, b)
    if choose.random() < 0.5:
        made = m.op("tanh", m.op("add", made, m.input(m.type(made).sizes[-1], dtype=dtype)))
    return m.graph(made, *([m.op("neg", a)] if choose.random() < 0.3 else []))


def transposed(m: Make, x: int) -> int:
    rank = m.type(x).rank
    return m.permute(x, *range(rank - 2), rank - 1, rank - 2)


def matrix(m: Make, choose: random.Random, batch, rows: int, columns: int, dtype: str) -> int:
    """[*batch, rows, columns] as one of the ways in which a matrix lies in memory."""
    kind = choose.choice(("plain", "transposed", "part", "strided", "computed", "repeated"))
    if kind == "transposed":
        return transposed(m, m.input(*batch, columns, rows, dtype=dtype))
    if kind == "part":
        axis = len(batch) + choose.randrange(2)
        sizes = [*batch, rows, columns]
        sizes[axis] += 5
        return m.slice(m.input(*sizes, dtype=dtype), axis, 3, sizes[axis] - 2)
    if kind == "strided":
        whole = m.input(*batch, rows, 2 * columns, dtype=dtype)
        return m.slice(whole, len(batch) + 1, 0, 2 * columns, 2)
    if kind == "computed":
        given = m.input(*batch, rows, columns, dtype=dtype)
        return m.op("mul", given, m.input(columns, dtype=dtype))
    if kind == "repeated" and batch:
        return m.expand(m.input(*batch[1:], rows, columns, dtype=dtype), *batch, rows, columns)
    return m.input(*batch, rows, columns, dtype=dtype)


@pytest.mark.parametrize("sizes", [(1, 0, 5), (0, 3, 5), (1, 3, 0), (2, 0, 0)])
def test_products_without_elements(sizes):
    rows, inner, columns = sizes
    m = Make()
    graph = m.graph(linear(m, m.input(rows, inner), columns))
    compare(graph)
    execute(graph)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_long_sums_are_more_exact_than_eager(is_transposed):
    m = Make()
    inner, columns = 5000, 20
    x, w = m.input(1, inner), m.input(*((columns, inner) if is_transposed else (inner, columns)))
    plan = schedule(m.graph(m.matmul(x, m.permute(w, 1, 0) if is_transposed else w)), host_target())
    generator = torch.Generator().manual_seed(0)
    values = [torch.rand(i.type.sizes, generator=generator) for i in m.builder.inputs]
    (found,) = Executable(plan, load(build(plan.kernels, host_target())))(values)
    given, weights = values[0], values[1].t() if is_transposed else values[1]
    exact = given.double() @ weights.double()
    assert (found - exact).abs().max() <= (given @ weights - exact).abs().max()
    assert calls(plan, ProductCall) == 0


def test_infinities_and_nans_stay_in_their_columns():
    m = Make()
    x, w = m.input(1, 40), m.input(3, 40)
    plan = schedule(m.graph(m.matmul(x, m.permute(w, 1, 0))), host_target())
    values = [torch.ones(1, 40), torch.ones(3, 40)]
    values[1][1, 39], values[1][2, 0] = float("inf"), float("nan")
    (found,) = Executable(plan, load(build(plan.kernels, host_target())))(values)
    assert found[0, 0] == 40 and found[0, 1] == float("inf") and found[0, 2].isnan()


@pytest.mark.parametrize("vector_bytes", [64, 32])
def test_as_many_rows_together_as_registers_hold(vector_bytes):
    """Two results a row: 24 registers hold those of 8 rows, 12 do not."""
    m = Make()
    x, w, v = m.input(8, 64), m.input(64, 128), m.input(64, 128)
    made = m.op("mul", m.matmul(x, w), m.matmul(x, v))
    target = replace(host_target(), arch="x86_64", vector_bytes=vector_bytes)
    plan = schedule(m.graph(made), target)
    (kernel,) = plan.kernels
    assert tuple(a.extent for a in kernel.axes[kernel.parallel :]) == (8,) * (vector_bytes == 64)


# ---------------------------------------------------------------------------- on a GPU
GPU = Target("cuda", "sm_90")


def gpu_plan(graph: Graph) -> Plan:
    """The plan of `graph` for a GPU, which gives what the graph gives."""
    verify(graph)
    plan = schedule(on_gpu(graph), GPU)
    verify(plan)
    given = [
        [random_input(i.type, torch.Generator().manual_seed(k)) for k, i in enumerate(graph.inputs)]
        for _ in range(2)]
    for found, expected in zip(run_plan(plan, given[0]), run(graph, given[1]), strict=True):
        same(found, expected)
    return plan


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
@pytest.mark.parametrize("rows,is_sum", [(1, True), (3, True), (4, True), (5, False)])
def test_few_rows_are_a_kernel_on_a_gpu(rows, is_sum, dtype):
    m = Make()
    x = m.input(rows, 64, dtype=dtype)
    plan = gpu_plan(m.graph(m.op("maximum", linear(m, x, 48, dtype), (0.0,))))
    assert (calls(plan, KernelCall), calls(plan, LibraryCall)) == (1, 0 if is_sum else 1)
    if 1 < rows and is_sum:  # a row of weights is loaded for all rows of the product
        (kernel,) = plan.kernels
        assert [axis.extent for axis in kernel.axes[kernel.parallel :]] == [rows]


def test_few_columns_are_few_rows_of_the_transposed():
    m = Make()
    plan = gpu_plan(m.graph(linear(m, m.input(200, 32), 2)))
    assert calls(plan, KernelCall) == len(plan.calls) == 1


def test_products_of_one_row_share_a_kernel():
    m = Make()
    x = m.input(1, 64, dtype="bfloat16")
    q, k, v = (linear(m, x, 48, "bfloat16") for _ in range(3))
    gate = m.op("mul", m.op("sigmoid", q), k)
    plan = gpu_plan(m.graph(gate, v))
    assert calls(plan, KernelCall) == len(plan.calls) == 1


def test_no_kernel_has_more_rows_than_registers_hold():
    m = Make()
    x = m.input(4, 64)
    plan = gpu_plan(m.graph(*(linear(m, x, 48) for _ in range(3))))
    assert calls(plan, KernelCall) == len(plan.calls) == 2


def test_weights_along_columns_stay_with_the_library_on_a_gpu():
    m = Make()
    plan = gpu_plan(m.graph(m.matmul(m.input(1, 64), m.input(64, 48))))
    assert calls(plan, LibraryCall) == len(plan.calls) == 1


def test_what_the_row_is_made_of_is_computed_once():
    """A norm before the product is a kernel of its own: else each column would compute it again."""
    m = Make()
    x = m.input(1, 64)
    plan = gpu_plan(m.graph(linear(m, m.layer_norm(x, m.input(64), m.input(64)), 48)))
    assert calls(plan, KernelCall) == len(plan.calls) == 2


def test_products_that_are_asked_for_as_kernels_are_no_sums():
    m = Make()
    graph = on_gpu(m.graph(m.matmul(m.input(4, 64), m.permute(m.input(48, 64), 1, 0))))
    for fused in (products_of(graph), ()):
        (kernel,) = schedule(graph, GPU, fused).kernels
        assert product_of(kernel) is not None


def test_small_products_are_kernels_by_rule():
    m = Make()
    x = m.input(128, 256, dtype="bfloat16")
    y = m.matmul(x, m.permute(m.input(256, 256, dtype="bfloat16"), 1, 0))
    z = m.matmul(m.input(4096, 256, dtype="bfloat16"), m.permute(x, 1, 0))
    few = m.matmul(m.input(2, 64), m.permute(m.input(48, 64), 1, 0))
    graph = on_gpu(m.graph(y, z, few))
    assert small_products(graph) == {y}
    m = Make()
    y = m.matmul(m.input(64, 128), m.input(128, 64))
    assert small_products(on_gpu(m.graph(y))) == {y}
    larger = m.matmul(m.input(128, 512), m.input(512, 512))
    rounded = on_gpu(m.graph(y, larger))
    assert small_products(rounded) == {y}
    assert small_products(rounded, Rounding(products=True)) == {y, larger}
    assert calls(schedule(graph, GPU, small_products(graph)), KernelCall) == 2


def test_a_layer_after_another_does_its_epilogue_first():
    """The activation between two products is done once, where the first stores."""
    m = Make()
    x = m.input(32, 64, dtype="bfloat16")
    for _ in range(3):
        x = m.cast(m.op("maximum", m.cast(linear(m, x, 64, "bfloat16"), "float32"), (0.0,)), "bfloat16")
    graph = on_gpu(m.graph(x))
    plan = schedule(graph, GPU, products_of(graph))
    assert len(plan.calls) == 3 and len(plan.kernels) == 1
    assert all(b.type.dtype == "bfloat16" for b in plan.buffers)


@pytest.mark.parametrize("rows", (1, 3))
def test_a_long_sum_with_few_results_is_cut(rows):
    m = Make()
    x, w = m.input(rows, 1 << 16), m.input(5, 1 << 16)
    plan = schedule(on_gpu(m.graph(m.matmul(x, m.permute(w, 1, 0)))), GPU)
    assert calls(plan, LibraryCall) == (rows > 1) and len(plan.calls) == (2 if rows == 1 else 1)
    assert rows > 1 or plan.calls[0].extent == 40
