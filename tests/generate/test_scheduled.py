"""What `schedule` makes, as machine code: equal to the interpreter's results, on every target."""

import pytest
import torch
from generate.kernels import targets
from generate.native import Fault, run_native
from schedule.graphs import Make, random_input, same
from schedule.test_fuzz import Program

from preheat.bridge.interpret import run
from preheat.ir.graph import Graph
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from transform.record import record

TARGETS = targets()


def compare(graph: Graph, target, seed: int = 0, high: int = 5) -> None:
    """Results of the plan in machine code and of the graph, on equal inputs."""
    plan = schedule(graph, target)
    inputs, copies = (
        [random_input(i.type, generator, high) for i in graph.inputs]
        for generator in (torch.Generator().manual_seed(seed) for _ in range(2))
    )
    expected = run(graph, copies)
    for found, wanted in zip(run_native(plan, inputs, target, seed), expected, strict=True):
        same(found, wanted)
    for found, wanted in zip(inputs, copies, strict=True):
        same(found, wanted)


def softmax(m: Make):
    return m.softmax(m.input(5, 3, 131), 2)


def softmax_of_columns(m: Make):
    return m.softmax(m.input(4, 131, 7), 1)


def layer_norm(m: Make):
    x = m.op("add", m.input(9, 200), m.input(9, 200))
    return m.layer_norm(x, m.input(200), m.input(200))


def gelu_and_bias(m: Make):
    return m.gelu(m.op("add", m.input(33, 70), m.input(70)))


def bfloat16_gate(m: Make):
    x, y = (m.cast(m.input(17, 45, dtype="bfloat16"), "float32") for _ in range(2))
    return m.cast(m.op("mul", m.op("mul", x, m.op("sigmoid", x)), y), "bfloat16")


def float16_softmax(m: Make):
    return m.cast(m.softmax(m.cast(m.input(3, 77, dtype="float16"), "float32"), 1), "float16")


def embedding(m: Make):
    rows = m.take(m.input(11, 40), m.input(6, 5, dtype="int64"))
    return m.layer_norm(m.op("add", rows, m.input(5, 40)), m.input(40), m.input(40))


def transposed(m: Make):
    return m.op("neg", m.permute(m.input(65, 50), 1, 0))


def squares(m: Make):
    x, y = m.input(64, 96), m.input(96, 64)
    return m.op("add", m.permute(x, 1, 0), y)


def squares_of_bfloat16(m: Make):
    x = m.cast(m.permute(m.input(2, 64, 80, dtype="bfloat16"), 0, 2, 1), "float32")
    return m.cast(m.op("exp", x), "bfloat16")


def squares_of_bools(m: Make):
    return m.op("logical_not", m.permute(m.input(32, 128, dtype="bool"), 1, 0))


def squares_of_int64(m: Make):
    return m.op("neg", m.permute(m.input(48, 80, dtype="int64"), 1, 0))


def sums_over_all_axes(m: Make):
    x = m.input(13, 37)
    return m.op("add", m.reduce("sum", x, 0, keepdim=False), m.reduce("sum", x, 0, 1, keepdim=False))


def arg_reductions(m: Make):
    x = m.input(9, 83)
    return m.op("add", m.reduce("argmax", x, 1), m.reduce("argmin", x, 1))


def padded_and_joined(m: Make):
    x = m.input(7, 50)
    return m.cat(1, m.pad(x, (0, 3), (0, 5), 0.5), m.flip(x, 1), m.slice(x, 1, 1, 50, 3))


def reshaped_index(m: Make):
    return m.op("tanh", m.reshape(m.permute(m.input(6, 10, 14), 2, 0, 1), 35, 24))


def integers(m: Make):
    x, y = m.input(5, 61, dtype="int64"), m.input(5, 61, dtype="int32")
    return m.op("maximum", m.op("mul", x, m.cast(y, "int64")), m.op("sub", x, (3,)))


PROGRAMS = (
    softmax, softmax_of_columns, layer_norm, gelu_and_bias, bfloat16_gate, float16_softmax, embedding, transposed,
    squares, squares_of_bfloat16, squares_of_bools, squares_of_int64, sums_over_all_axes, arg_reductions, padded_and_joined, reshaped_index, integers,
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program, target):
    m = Make()
    compare(m.graph(program(m)), TARGETS[target])


@pytest.mark.parametrize("block", range(4))
def test_random_graphs(block):
    for seed in range(block * 10, block * 10 + 10):
        graph = Program(seed, 4 + seed % 14).graph()
        try:
            compare(graph, TARGETS["host"], seed, high=2)
        except (IndexError, RuntimeError, Fault) as error:
            if not isinstance(error, Fault) and "out of" not in str(error):
                raise


LONG = {
    "mean": lambda x, axis: x.mean(axis),
    "variance": lambda x, axis: x.var(axis),
    "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis),
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "logsumexp": lambda x, axis: torch.logsumexp(x, axis),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", LONG)
def test_long_reductions_are_as_exact_as_eager(name, axis, target):
    """Terms are two numbers by turns: rounding errors of equal terms point the same way."""
    terms = 0.1 + torch.arange(60_000).remainder(2) * 0.2
    x = terms.expand(5, -1).contiguous() if axis else terms[:, None].expand(-1, 5).contiguous()
    fn = LONG[name]
    graph, _, _ = record(lambda x: fn(x, axis), [x])
    plan = schedule(lower(graph), TARGETS[target])
    found, exact = run_native(plan, [x.clone()], TARGETS[target])[0], fn(x.double(), axis)
    errors = [((value - exact).abs() / exact).max() for value in (found.double(), fn(x, axis).double())]
    units = 6 if name == "variance" else 1  # eager adds up variances in float64
    assert errors[0] <= 2 * errors[1] + units * torch.finfo(torch.float32).eps, errors
