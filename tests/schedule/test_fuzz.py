"""Random core graphs: every plan computes what the interpreter computes, writes included."""

import random

import pytest
from schedule.graphs import Make, compare
from schedule.loop_interpret import Fault

from preheat.transform.reinplace import reinplace

UNARY = ("neg", "abs", "tanh", "exp", "floor", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
SIZES = (1, 2, 3, 4, 6)


class Program:
    """Grows a graph by random ops on values that are there; sizes stay small."""

    def __init__(self, seed: int, ops: int):
        self.random, self.m = random.Random(seed), Make()
        self.inputs = [self.input() for _ in range(self.random.randint(1, 3))]
        self.index = self.m.input(self.random.choice(SIZES), dtype="int64")
        self.values = list(self.inputs)
        for _ in range(ops):
            made = self.grow(self.pick())
            if self.m.type(made).elems <= 400:
                self.values.append(made)

    def input(self) -> int:
        sizes = [self.random.choice(SIZES) for _ in range(self.random.randint(1, 3))]
        strides = None
        if self.random.random() < 0.3:
            order = self.random.sample(range(len(sizes)), len(sizes))
            strides, step = [0] * len(sizes), 1
            for axis in order:
                strides[axis], step = step, step * sizes[axis]
        return self.m.input(*sizes, strides=strides)

    def pick(self) -> int:
        return (
            self.random.choice(self.values[-6:])
            if self.random.random() < 0.8
            else self.random.choice(self.values)
        )

    def grow(self, x: int) -> int:
        return getattr(
            self,
            self.random.choice(
                (
                    "unary",
                    "binary",
                    "binary",
                    "reduce",
                    "reduced_use",
                    "permute",
                    "reshape",
                    "slice",
                    "flip",
                    "pad",
                    "cat",
                    "place",
                    "take",
                    "product",
                    "softmax",
                    "half",
                )
            ),
        )(x)

    def unary(self, x: int) -> int:
        name = self.random.choice(UNARY)
        return self.m.op("tanh", self.m.op(name, x)) if name == "exp" else self.m.op(name, x)

    def binary(self, x: int) -> int:
        sizes = self.m.type(x).sizes
        others = [v for v in self.values if self._fits(self.m.type(v).sizes, sizes)]
        return self.m.op(
            "tanh", self.m.op(self.random.choice(BINARY), x, self.random.choice(others))
        )

    def _fits(self, small, sizes) -> bool:
        return len(small) <= len(sizes) and all(
            a in (1, b) for a, b in zip(small[::-1], sizes[::-1])
        )

    def axes(self, x: int) -> tuple[int, ...]:
        rank = self.m.type(x).rank
        return (
            tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))
            if rank
            else ()
        )

    def reduce(self, x: int) -> int:
        axes = self.axes(x)
        name = self.random.choice(("sum", "max", "min", "sum"))
        return self.m.reduce(name, x, *axes, keepdim=self.random.random() < 0.5) if axes else x

    def reduced_use(self, x: int) -> int:
        axes = self.axes(x)
        return self.m.op("sub", x, self.m.mean(x, *axes)) if axes else x

    def softmax(self, x: int) -> int:
        axes = self.axes(x)
        return self.m.softmax(x, axes[0]) if axes else x

    def permute(self, x: int) -> int:
        rank = self.m.type(x).rank
        return self.m.permute(x, *self.random.sample(range(rank), rank))

    def reshape(self, x: int) -> int:
        count, sizes = self.m.type(x).elems, []
        while count > 1 and len(sizes) < 3:
            sizes.append(self.random.choice([k for k in range(1, count + 1) if count % k == 0]))
            count //= sizes[-1]
        return self.m.reshape(x, *sizes, count)

    def slice(self, x: int) -> int:
        axes = self.axes(x)
        if not axes:
            return x
        size = self.m.type(x).sizes[axes[0]]
        start = self.random.randrange(size)
        return self.m.slice(
            x, axes[0], start, self.random.randint(start + 1, size), self.random.choice((1, 1, 2))
        )

    def flip(self, x: int) -> int:
        return self.m.flip(x, *self.axes(x))

    def pad(self, x: int) -> int:
        rank = self.m.type(x).rank
        low, high = ([self.random.choice((0, 0, 1, 2)) for _ in range(rank)] for _ in range(2))
        return self.m.pad(x, low, high, 0.5)

    def cat(self, x: int) -> int:
        axes = self.axes(x)
        if not axes:
            return x
        sizes = self.m.type(x).sizes
        others = [
            v
            for v in self.values
            if len(self.m.type(v).sizes) == len(sizes)
            and all(
                k == axes[0] or a == b for k, (a, b) in enumerate(zip(sizes, self.m.type(v).sizes))
            )
        ]
        return self.m.cat(axes[0], x, self.random.choice(others), x)

    def place(self, x: int) -> int:
        axes = self.axes(x)
        if not axes:
            return x
        size = self.m.type(x).sizes[axes[0]]
        start = self.random.randrange(size)
        part = self.m.slice(x, axes[0], 0, self.random.randint(1, size - start))
        return self.m.place(x, self.m.op("neg", part), axes[0], start)

    def take(self, x: int) -> int:
        axes = self.axes(x)
        return self.m.take(x, self.index, axes[0], wrap=True) if axes else x

    def product(self, x: int) -> int:
        if self.m.type(x).rank < 2:
            return x
        rank = self.m.type(x).rank
        other = self.m.permute(x, *range(rank - 2), rank - 1, rank - 2)
        return self.m.op("tanh", self.m.matmul(x, other))

    def half(self, x: int) -> int:
        return self.m.cast(self.m.cast(x, "float64"), "float32")

    def graph(self):
        count = self.random.randint(1, 3)
        outputs = self.random.sample(self.values, min(count, len(self.values)))
        if self.values[-1] not in outputs:
            outputs.append(self.values[-1])
        writes = []
        for target in self.inputs:
            same = [
                v
                for v in self.values
                if self.m.type(v).sizes == self.m.type(target).sizes and v != target
            ]
            if same and self.random.random() < 0.5:
                writes.append((target, self.random.choice(same)))
        graph = self.m.graph(*outputs, writes=writes)
        return reinplace(graph) if self.random.random() < 0.5 else graph


def attempt(seed: int, ops: int) -> None:
    """One program; the index input has values in 0 or 1, so only axes of size 1 may fault."""
    graph = Program(seed, ops).graph()
    try:
        compare(graph, seed, high=2)
    except (IndexError, RuntimeError, Fault) as error:
        if not isinstance(error, Fault) and "out of" not in str(error):
            raise


@pytest.mark.parametrize("block", range(10))
def test_random_graphs(block):
    for seed in range(block * 12, block * 12 + 12):
        attempt(seed, 4 + seed % 14)


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(60))
def test_many_random_graphs(block):
    for seed in range(10_000 + block * 50, 10_050 + block * 50):
        attempt(seed, 4 + seed % 22)
