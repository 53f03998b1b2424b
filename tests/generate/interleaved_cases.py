"""Products whose rows begin anywhere, in Triton's interpreter, by blocks that are small.

    python -m generate.interleaved_cases

A process that interprets kernels cannot compile them, so `test_interleaved` starts this one. Whole numbers are
multiplied, whose sums are exact; what nobody stores stays NaN. Raises at the first that differs.
"""

import itertools

from generate.interpreted import TritonRun  # first: it chooses Triton's interpreter

import random

import torch
from schedule.graphs import Make, on_gpu

from preheat.bridge.interpret import run
from preheat.generate.interleaved import tile_of
from preheat.generate.products import product_of
from preheat.ir.graph import Graph
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.schedule.products import products_of
from preheat.schedule.schedule import schedule

TARGET = Target("cuda", "sm_90")


class FewPrograms(TritonRun):
    """Fewer programs than blocks, as on a GPU."""

    def source_of(self, kernel, call):
        source, programs, sizes = super().source_of(kernel, call)
        return source, min(programs, 7), sizes


def product(rows: int, inner: int, columns: int, dtype: str = "float16", added: tuple[int, ...] | None = None, apart: int = 0) -> Graph:
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


def check(graph: Graph, rows: int, chunk: int) -> None:
    moved = on_gpu(graph)
    plan = schedule(moved, TARGET, products_of(moved))
    (kernel,) = plan.kernels
    assert len(plan.calls) == 1
    for ahead in (1, 2):
        tile = tile_of(product_of(kernel), rows, chunk, ahead, 16)
        ran = FewPrograms(plan, inputs(graph), random.Random(0), TARGET, tile)
        (found,), (expected,) = ran.run(), run(graph, inputs(graph))
        assert torch.equal(found, expected), graph
        assert found.stride() == expected.stride()


def main() -> None:
    for rows, columns in itertools.product((136, 131, 150), (97, 98, 100, 102, 103)):
        check(product(rows, 32, columns), 16, 16)
    check(product(700, 16, 61), 16, 16)  # blocks of rows in groups
    check(product(136, 48, 75, added=(75,)), 16, 16)
    check(product(133, 16, 75, added=(133, 75)), 16, 16)
    check(product(136, 16, 75, added=(1,), apart=8), 16, 16)


if __name__ == "__main__":
    main()
