"""A relu after addmm on a GPU is part of the library's call, where nothing else wants what is between."""

import pytest
from schedule.graphs import Make, on_gpu

from preheat.ir.plan import KernelCall, LibraryCall, Target
from preheat.ir.types import tensor
from preheat.ir.verify import verify
from preheat.schedule.activations import with_activations
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


def addmm(m, bias, x, w):
    sizes = (m.type(x).sizes[0], m.type(w).sizes[1])
    return m.add("library", [bias, x, w], tensor(m.type(x).dtype, sizes), op="aten.addmm.default")


def layer(m, x, dtype, other=None):
    made = addmm(m, m.input(32, dtype=dtype), x, m.input(32, 32, dtype=dtype))
    if dtype == "float32":
        return made, m.op("maximum", made, (0.0,))
    wide = m.add("cast", [made], tensor("float32", (8, 32)), dtype="float32")
    most = m.op("maximum", wide, (0.0,))
    return made, m.add("cast", [most], tensor(dtype, (8, 32)), dtype=dtype)


def calls(graph):
    verify(with_activations(graph, TARGET))
    plan = schedule(graph, TARGET)
    library = [call.op for call in plan.calls if isinstance(call, LibraryCall)]
    return library, sum(isinstance(call, KernelCall) for call in plan.calls)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_layers_are_one_call_each(dtype):
    m = Make()
    x = m.input(8, 32, dtype=dtype)
    for _ in range(3):
        _, x = layer(m, x, dtype)
    assert calls(on_gpu(m.graph(x))) == (["aten._addmm_activation.default"] * 3, 0)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_what_is_between_may_be_wanted(dtype):
    m = Make()
    made, x = layer(m, m.input(8, 32, dtype=dtype), dtype)
    library, kernels = calls(on_gpu(m.graph(made, x)))
    assert library == ["aten.addmm.default"] and kernels == 1


def test_a_kernel_that_reads_the_relu_takes_it_along():
    m = Make()
    _, x = layer(m, m.input(8, 32), "float32")
    assert calls(on_gpu(m.graph(m.op("exp", x)))) == (["aten.addmm.default"], 1)


def test_other_bounds_and_the_cpu_are_left_alone():
    m = Make()
    made = addmm(m, m.input(32), m.input(8, 32), m.input(32, 32))
    assert calls(on_gpu(m.graph(m.op("maximum", made, (0.5,))))) == (["aten.addmm.default"], 1)
    m = Make()
    _, x = layer(m, m.input(8, 32), "float32")
    graph = m.graph(x)
    assert with_activations(graph, TARGET) is graph
