"""Text: what is shown reads back equal, for graphs and kernels drawn at random."""

import math
import random

import pytest

from preheat.base.errors import UserError
from preheat.ir.graph import Graph, Input, Op, OutputAlias, Ref, Store, Token
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.scalar import apply, symbol
from preheat.ir.text import parse, show
from preheat.ir.types import DTYPES, NoneType, ScalarType, TensorType, tensor
from preheat.ir.words import is_same


class Draw:
    """Random nouns, seeded."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices):
        return self.random.choice(choices)

    def dim(self):
        s = symbol(self.one("s0", "s1"))
        return self.one(0, 1, 7, 128, s, apply("mul", s, 8), apply("floordiv", apply("add", s, 3), 2), apply("max", s, 1))

    def type(self):
        rank = self.random.randrange(4)
        sizes = tuple(self.dim() for _ in range(rank))
        strides = self.one(None, tuple(self.dim() for _ in range(rank)))
        return tensor(self.one(*DTYPES), sizes, strides, self.one("cpu", "cuda:0", "meta"))

    def result_type(self):
        return self.one(self.type(), self.type(), ScalarType("int"), NoneType())

    def arg(self, depth=0):
        leaf = [
            Ref(self.random.randrange(9)), Token("dtype", "float32"), Token("device", "cuda:1"),
            Token("memory_format", "channels_last"), 1, -3, True, False, None, 0.5, -0.0, 1e-30, 2.5e300, math.inf, -math.inf,
            math.nan, "none", "it's \"quoted\"\n", complex(1, -2), symbol("s0"), symbol("lr", "float"),
            apply("sub", symbol("s0"), 1), 10**30,
        ]
        if depth < 2 and self.random.random() < 0.3:
            return tuple(self.arg(depth + 1) for _ in range(self.random.randrange(4)))
        return self.one(*leaf)

    def op(self, number):
        count = self.one(0, 1, 1, 1, 2)
        names = self.random.sample(["axis", "op", "value", "keepdim", "dtype"], self.random.randrange(3))
        return Op(
            self.one("add", "library", "aten.add.Tensor", "aten._foo_.out"), tuple(self.arg() for _ in range(self.random.randrange(4))),
            tuple(range(number, number + count)), tuple(self.result_type() for _ in range(count)),
            tuple((n, self.arg()) for n in names),
            aliases=self.one((), (3, -1)) if count == 2 else (), writes=self.one((), (1, 2)), is_grad_enabled=self.one(True, False),
        )

    def graph(self):
        inputs = tuple(
            Input(i, self.result_type(), self.one("", "self.layers[0].weight"), self.one(-1, 2)) for i in range(self.random.randrange(1, 4))
        )
        ops = tuple(self.op(10 * i + 10) for i in range(self.random.randrange(5)))
        outputs = tuple(self.random.randrange(9) for _ in range(self.random.randrange(4)))
        aliases = tuple(self.one(OutputAlias(), OutputAlias("input", 0, self.dim())) for _ in outputs)
        if all(a.kind == "fresh" for a in aliases):
            aliases = ()
        writes = self.one((), ((0, 10),), ((0, 10), (1, 20)))
        in_place = (0,) if writes and self.random.random() < 0.5 else ()
        stores = (Store(0, 10, 11, self.dim(), (self.dim(), 1)),) if in_place else ()
        grads = self.one((), (0,), (0, 10))
        grad_outputs = tuple(k for k in range(len(outputs)) if self.one(True, False))
        return Graph(
            self.one("core", "aten"), inputs, ops, outputs, writes, aliases, in_place, stores,
            grads=grads, grad_outputs=grad_outputs)

    def index(self):
        terms = tuple((self.one("i0", "j", 4), self.one(1, 128, -2, symbol("s0"))) for _ in range(self.random.randrange(3)))
        return Index(self.one(0, 5, -3, symbol("s1")), terms)

    def loop_op(self, number):
        dtype = self.one("float32", "bfloat16", "int64", "bool")
        mask = self.one(None, 2)
        return self.one(
            LoopOp("load", number, dtype, param=1, index=self.index(), mask=mask, other=None if mask is None else 0.0, keep=self.one(True, False)),
            LoopOp("store", -1, dtype, (3,), param=0, index=self.index(), mask=mask),
            LoopOp("const", number, dtype, other=self.one(1.5, -math.inf, 3, True)), LoopOp("axis", number, "int64", axis="j"),
            LoopOp("reduce", number, dtype, (1,), how="sum"), LoopOp("check", -1, "bool", (2,), how="index"),
            LoopOp("mul", number, dtype, (1, 2), keep=self.one(True, False)), LoopOp("cast", number, dtype, (1,)),
        )

    def kernel(self):
        params = tuple(Param(self.one("float32", "int64"), self.one("in", "out", "inout"), self.one("", "w")) for _ in range(2))
        axes = tuple(Axis(f"i{i}", self.dim()) for i in range(self.random.randrange(3)))
        stages = tuple(
            Stage(self.one((), (Axis("j", self.dim()),)), tuple(self.loop_op(10 * s + k) for k in range(self.random.randrange(4))))
            for s in range(self.random.randrange(1, 3))
        )
        lane = self.one(None, axes[0].name) if axes else None
        return Kernel("mul_softmax_2", params, axes, stages, self.random.randrange(len(axes) + 1), lane)


def _equal(a, b) -> bool:
    """Equality that takes NaN for NaN and tells 1 from True."""
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(_equal(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_equal, a, b))
    return is_same(a, b)


@pytest.mark.parametrize("seed", range(300))
def test_graphs_read_back(seed):
    graph = Draw(seed).graph()
    assert _equal(parse(show(graph)), graph), show(graph)


@pytest.mark.parametrize("seed", range(300))
def test_kernels_read_back(seed):
    kernel = Draw(seed).kernel()
    assert _equal(parse(show(kernel)), kernel), show(kernel)


@pytest.mark.parametrize("text", ["", "plan", "graph core (%0: f32[8]):", "graph core (%0: f32[8]) return", "graph core ():\n  %1 f32 = neg()"])
def test_bad_text_is_an_error_with_its_line(text):
    with pytest.raises(UserError):
        parse(text)
