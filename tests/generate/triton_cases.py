"""Graphs whose kernels Triton's interpreter runs, a group a process.

    python -m generate.triton_cases rows

A process that interprets kernels cannot compile them, so `test_triton` starts this one. Each graph
is scheduled for a GPU, and its plan must give what `bridge.interpret` gives. Raises at the first that
does not; prints how many did.
"""

import sys
from collections.abc import Iterator

from generate.interpreted import Fault, run_triton  # first: it chooses Triton's interpreter

import torch
from schedule.graphs import Make, on_gpu, random_input, same
from schedule.test_fusion import bert_layer
from schedule.test_folds import norm_backward
from schedule.test_fuzz import Program

from preheat.bridge.interpret import run
from preheat.generate import tiles
from preheat.ir.graph import Graph
from preheat.ir.ops import CORE, FUSABLE
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.schedule import cost
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")
DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
# Few rows, many; short, odd, and longer than a program holds: the interpreter is slow, so a program
# holds less here.
SIZES = ((5, 7), (3, 128), (90, 3), (2, 500), (2, 512))
tiles.BLOCK_ELEMS, tiles.ROW_BYTES, tiles.DEEP, tiles.FOLD_ELEMS = 64, 512, 16, 64
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


def graphs(first: int = 0) -> Iterator[Graph]:
    for seed in range(first, first + 32):
        yield Program(seed, 4 + seed % 14).graph()


def folds() -> Iterator[Graph]:
    for sizes in ((64, 24), (2, 32, 100), (128, 64)):
        yield norm_backward(Make(), *sizes)


GROUPS = {
    "rows": rows, "movement": movement, "elementwise": elementwise, "graphs": graphs, "folds": folds}


def given(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [random_input(i.type, generator, 2) for i in graph.inputs]


def check(graph: Graph, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """The plan's results are the graph's; both fault or neither does."""
    plan = schedule(on_gpu(graph), TARGET)
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


def main(group: str) -> None:
    count = 0
    for graph in GROUPS[group]():
        check(graph, given(graph), given(graph))
        count += 1
        if group == "rows" and any(op.name == "exp" for op in graph.ops):
            for odd in ODD:
                ours, theirs = given(graph), given(graph)
                for x in (ours[0], theirs[0]):
                    x[0], x[-1, 2] = odd, odd
                check(graph, ours, theirs)
    print(f"{count} graphs")


if __name__ == "__main__":
    main(sys.argv[1])
