"""Plans as machine code: the same graphs, built, loaded and executed, against the interpreter."""

import pytest
import torch
from schedule.graphs import Make, random_input, same
from schedule.test_fusion import bert_layer
from schedule.test_fuzz import Program

from preheat.bridge.interpret import run
from preheat.generate.build import build, host_target
from preheat.ir.graph import Graph
from preheat.run.executable import Executable, Fault
from preheat.run.load import load
from preheat.schedule.schedule import schedule


def execute(graph: Graph, high: int = 5) -> None:
    """Runs `graph` natively and by the interpreter; both fault or both agree."""
    target = host_target()
    plan = schedule(graph, target)
    executable = Executable(plan, load(build(plan.kernels, target)) if plan.kernels else None)
    ours, theirs = ([*given(graph, high)] for _ in range(2))
    try:
        expected = run(graph, theirs)
    except (IndexError, RuntimeError):
        with pytest.raises(Fault):
            executable(ours)
        return
    for a, b in zip([*executable(ours), *ours], [*expected, *theirs], strict=True):
        same(a, b)


def given(graph: Graph, high: int):
    generator = torch.Generator().manual_seed(0)
    return (random_input(i.type, generator, high) for i in graph.inputs)


def test_a_bert_layer():
    m = Make()
    execute(m.graph(bert_layer(m, m.input(2, 6, 32), 2, 6, 32, 4)))


def test_a_transposed_copy():
    m = Make()
    execute(
        m.graph(
            m.permute(m.op("exp", m.input(32, 64)), 1, 0),
            m.op("neg", m.permute(m.input(64, 16, 3), 2, 1, 0)),
        )
    )


@pytest.mark.parametrize(
    "sizes,axes", [((65536,), (0,)), ((4800, 3), (0,)), ((64, 20, 60), (0, 1, 2))]
)
def test_long_reductions(sizes, axes):
    m = Make()
    x = m.input(*sizes)
    execute(m.graph(m.reduce("sum", x, *axes), m.reduce("max", x, *axes)))


@pytest.mark.parametrize("block", range(4))
def test_random_graphs(block):
    for seed in range(block * 8, block * 8 + 8):
        execute(Program(seed, 4 + seed % 14).graph(), high=2)


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(20))
def test_many_random_graphs(block):
    for seed in range(20_000 + block * 20, 20_020 + block * 20):
        execute(Program(seed, 4 + seed % 22).graph(), high=2)
