"""Products whose rows begin anywhere, in Triton's interpreter, by blocks that are small.

    python -m generate.interleaved_cases

A process that interprets kernels cannot compile them, so `test_interleaved` starts this one. Whole numbers are
multiplied, whose sums are exact; what nobody stores stays NaN. Raises at the first that differs.
"""

import itertools
import random

from generate.interpreted import TritonRun  # first: it chooses Triton's interpreter

import torch
from generate.sized_cases import SizedRun
from generate.sized_programs import planned
from schedule.graphs import Make, on_gpu

from preheat.bridge.interpret import run
from preheat.generate.products import product_of
from preheat.generate.tiles import Tile
from preheat.ir.graph import Graph
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.schedule import interleave
from preheat.schedule.products import products_of
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


class FewPrograms(TritonRun):
    """Fewer programs than blocks, as on a GPU."""

    def source_of(self, kernel, call):
        source, programs, sizes = super().source_of(kernel, call)
        return source, min(programs, 7), sizes


def product(
    rows: int, inner: int, columns: int, dtype: str = "float16", added: tuple[int, ...] | None = None, apart: int = 0,
) -> Graph:
    """x @ weight.t(), plus a tensor of the sizes `added`; x and the weight have rows that are `apart` elements longer."""
    m = Make()
    x, w = (m.input(n, inner, dtype=dtype, strides=(inner + apart, 1)) for n in (rows, columns))
    if added is None:
        return m.graph(m.matmul(x, m.permute(w, 1, 0)))
    refs = [m.input(*added, dtype=dtype), x, m.permute(w, 1, 0)]
    return m.graph(m.add("library", refs, tensor(dtype, (rows, columns)), op="aten.addmm.default"))


def inputs(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for type in (given.type for given in graph.inputs):
        size = sum((n - 1) * step for n, step in zip(type.sizes, type.strides)) + 1
        numbers = torch.randint(-3, 4, (size,), generator=generator).to(getattr(torch, type.dtype))
        made.append(numbers.as_strided(type.sizes, type.strides))
    return made


def check(graph: Graph, rows: int = 16, columns: int = 64) -> None:
    moved = on_gpu(graph)
    plan = schedule(moved, TARGET, products_of(moved))
    (kernel,) = plan.kernels
    assert len(plan.calls) == 1
    for ahead in (1, 2):
        found = product_of(kernel)
        tile = Tile((), found.down, found.along, rows, columns, False, 4, 1, ahead, 16, 3, is_interleaved=True)
        ran = FewPrograms(plan, inputs(graph), random.Random(0), TARGET, tile)
        (found,), (expected,) = ran.run(), run(graph, inputs(graph))
        assert torch.equal(found, expected), graph
        assert found.stride() == expected.stride()


def check_any_number() -> None:
    """One plan for all numbers of rows: the blocks that a launch takes, and their values."""
    interleave.LEAST_WORK = 1
    w, bias = torch.randn(1031, 64).half(), torch.randn(1031).half()
    made, used = planned(torch.nn.functional.linear, (torch.randn(2100, 64).half(), w, bias), (64, 1031)), set()
    for rows in (2053, 600):
        args = torch.randn(rows, 64).half(), w, bias
        found, = SizedRun(made.sources, used, *made.at(args), random.Random(0), TARGET).run()
        torch.testing.assert_close(found, torch.nn.functional.linear(*args), rtol=1e-3, atol=2e-2)
    assert len(used) == 2


def main() -> None:
    for rows, columns in itertools.product((136, 131, 150), (97, 98, 100, 102, 103)):
        check(product(rows, 32, columns))
    check(product(700, 16, 75))  # blocks of rows in groups
    check(product(136, 48, 75, added=(75,)))
    check(product(133, 16, 75, added=(133, 75)))
    check(product(136, 16, 75, added=(1,), apart=8))
    check_any_number()


if __name__ == "__main__":
    main()
