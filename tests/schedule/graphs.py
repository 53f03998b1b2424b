"""Core graphs for tests: a builder that computes types as the rows of CORE say."""

from dataclasses import replace

import torch
from schedule.loop_interpret import run_plan

from preheat.bridge.interpret import run
from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.ops import COMPARISONS
from preheat.ir.plan import Plan, Target
from preheat.ir.types import TensorType, tensor
from preheat.ir.verify import verify
from preheat.schedule.schedule import schedule

TARGET = Target("cpu", "x86_64", ("avx512f",), 64)


def last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of [N, C, *S] with consecutive channels."""
    step, strides = sizes[1], []
    for size in reversed(sizes[2:]):
        strides.append(step)
        step *= size
    return (step, 1, *reversed(strides))


class Make:
    """m = Make(); x = m.input(8, 16); m.graph(m.softmax(x, 1))"""

    def __init__(self):
        self.builder = Builder("core")

    def type(self, value: int) -> TensorType:
        return self.builder.type_of[value]

    def input(self, *sizes: int, dtype: str = "float32", strides=None) -> int:
        return self.builder.input(tensor(dtype, sizes, strides), f"x{len(self.builder.inputs)}")

    def add(self, name: str, refs, type: TensorType, **attrs) -> int:
        return self.builder.add(name, refs, type, **attrs)

    def full(self, value, *sizes: int, dtype: str = "float32") -> int:
        return self.add("full", [], tensor(dtype, sizes), value=value)

    def op(self, name: str, *refs) -> int:
        """An elementwise op; operands broadcast, numbers become constants."""
        tensors = [r for r in refs if not isinstance(r, tuple)]
        sizes = torch.broadcast_shapes(*(self.type(r).sizes for r in tensors))
        like = self.type(tensors[-1]).dtype
        values = [
            self.full(r[0], *sizes, dtype=like) if isinstance(r, tuple) else self.expand(r, *sizes)
            for r in refs
        ]
        dtype = "bool" if name in COMPARISONS else self.type(values[-1]).dtype
        return self.add(name, values, tensor(dtype, sizes))

    def cast(self, x: int, dtype: str) -> int:
        return self.add("cast", [x], tensor(dtype, self.type(x).sizes), dtype=dtype)

    def expand(self, x: int, *sizes: int) -> int:
        old = self.type(x)
        if old.sizes == tuple(sizes):
            return x
        new = len(sizes) - old.rank
        strides = (0,) * new + tuple(
            0 if n != m else s for n, m, s in zip(old.sizes, sizes[new:], old.strides)
        )
        return self.add("expand", [x], tensor(old.dtype, sizes, strides))

    def reduce(self, name: str, x: int, *axes: int, keepdim: bool = True) -> int:
        old = self.type(x)
        sizes = [1 if k in axes else n for k, n in enumerate(old.sizes) if keepdim or k not in axes]
        if name.startswith("arg"):
            return self.add(name, [x], tensor("int64", sizes), axis=axes[0], keepdim=keepdim)
        is_wide = name in ("sum", "prod") and old.kind in "iub"
        dtype = "bool" if name in ("any", "all") else "int64" if is_wide else old.dtype
        return self.add(name, [x], tensor(dtype, sizes), axes=axes, keepdim=keepdim)

    def reshape(self, x: int, *sizes: int) -> int:
        return self.add("reshape", [x], tensor(self.type(x).dtype, sizes))

    def permute(self, x: int, *axes: int) -> int:
        old = self.type(x)
        moved = tensor(old.dtype, [old.sizes[a] for a in axes], [old.strides[a] for a in axes])
        return self.add("permute", [x], moved, axes=axes)

    def slice(self, x: int, axis: int, start: int, stop: int, step: int = 1) -> int:
        old = self.type(x)
        sizes = [len(range(start, stop, step)) if k == axis else n for k, n in enumerate(old.sizes)]
        strides = [s * step if k == axis else s for k, s in enumerate(old.strides)]
        return self.add(
            "slice", [x], tensor(old.dtype, sizes, strides), axis=axis, start=start, step=step
        )

    def flip(self, x: int, *axes: int) -> int:
        return self.add("flip", [x], tensor(self.type(x).dtype, self.type(x).sizes), axes=axes)

    def pad(self, x: int, low, high, value=0.0) -> int:
        sizes = [n + a + b for n, a, b in zip(self.type(x).sizes, low, high)]
        return self.add(
            "pad",
            [x],
            tensor(self.type(x).dtype, sizes),
            low=tuple(low),
            high=tuple(high),
            value=value,
        )

    def cat(self, axis: int, *parts: int) -> int:
        sizes = list(self.type(parts[0]).sizes)
        sizes[axis] = sum(self.type(p).sizes[axis] for p in parts)
        return self.add("cat", parts, tensor(self.type(parts[0]).dtype, sizes), axis=axis)

    def place(self, x: int, part: int, axis: int, start: int, step: int = 1) -> int:
        return self.add(
            "place",
            [x, part],
            tensor(self.type(x).dtype, self.type(x).sizes),
            axis=axis,
            start=start,
            step=step,
        )

    def take(self, x: int, index: int, axis: int = 0, wrap: bool = False) -> int:
        sizes = list(self.type(x).sizes)
        sizes[axis : axis + 1] = self.type(index).sizes
        return self.add("take", [x, index], tensor(self.type(x).dtype, sizes), axis=axis, wrap=wrap)

    def matmul(self, a: int, b: int) -> int:
        sizes = (*self.type(a).sizes[:-1], self.type(b).sizes[-1])
        return self.add("matmul", [a, b], tensor(self.type(a).dtype, sizes))

    def convolution(self, x: int, w: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
        """The library's, without a bias; channels are consecutive in the result."""
        given, filters = self.type(x), self.type(w)
        space = given.rank - 2
        out = [
            (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
            for n, k in zip(given.sizes[2:], filters.sizes[2:])]
        sizes = (given.sizes[0], filters.sizes[0], *out)
        numbers = ((n,) * space for n in (stride, padding, dilation))
        op = Op("library", (Ref(x), Ref(w), None, *numbers, False, (0,) * space, 1), (self.builder.fresh(),),
                (tensor(given.dtype, sizes, last(sizes)),), (("op", "aten.convolution.default"),))
        self.builder.append(op)
        return op.result

    # ------------------------------------------------------------------ compositions
    def gelu(self, x: int) -> int:
        e = self.op("erf", self.op("mul", x, (0.7071067811865476,)))
        return self.op("mul", self.op("mul", x, (0.5,)), self.op("add", e, (1.0,)))

    def softmax(self, x: int, axis: int) -> int:
        e = self.op("exp", self.op("sub", x, self.reduce("max", x, axis)))
        return self.op("div", e, self.reduce("sum", e, axis))

    def mean(self, x: int, *axes: int) -> int:
        count = 1
        for axis in axes:
            count *= self.type(x).sizes[axis]
        return self.op("mul", self.reduce("sum", x, *axes), (1.0 / count,))

    def layer_norm(self, x: int, weight: int, bias: int) -> int:
        axis = self.type(x).rank - 1
        centred = self.op("sub", x, self.mean(x, axis))
        variance = self.mean(self.op("mul", centred, centred), axis)
        scale = self.op("rsqrt", self.op("add", variance, (1e-5,)))
        return self.op("add", self.op("mul", self.op("mul", centred, scale), weight), bias)

    def graph(self, *outputs: int, writes=(), **fields) -> Graph:
        graph = self.builder.finish(outputs, writes)
        return replace(graph, **fields) if fields else graph


def random_input(type: TensorType, generator: torch.Generator, high: int = 5) -> torch.Tensor:
    """A tensor of exactly `type` with small random values."""
    dtype = getattr(torch, type.dtype)
    made = torch.empty_strided(type.sizes, type.strides, dtype=dtype)
    if dtype.is_floating_point:
        values = torch.randn(type.sizes, generator=generator)
    else:
        values = torch.randint(
            0, 2 if dtype == torch.bool else high, type.sizes, generator=generator
        )
    repeated = made
    for axis, (n, s) in enumerate(zip(type.sizes, type.strides)):
        if s == 0 and n > 1:
            repeated, values = repeated.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    repeated.copy_(values)
    return made


def compare(graph: Graph, seed: int = 0, high: int = 5) -> Plan:
    """Schedules `graph`, runs plan and graph on equal random inputs and compares everything."""
    verify(graph)
    plan = schedule(graph, TARGET)
    verify(plan)
    generator = torch.Generator().manual_seed(seed)
    inputs = [random_input(i.type, generator, high) for i in graph.inputs]
    generator = torch.Generator().manual_seed(seed)
    copies = [random_input(i.type, generator, high) for i in graph.inputs]
    expected = run(graph, copies)
    found = run_plan(plan, inputs, seed)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        same(a, b)
        assert all(n <= 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride()))
    for a, b in zip(inputs, copies):
        same(a, b)
    return plan


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal up to the rounding that another order of summation makes."""
    tolerance = {
        torch.bfloat16: 2e-2,
        torch.float16: 4e-3,
        torch.float32: 3e-5,
        torch.float64: 1e-12,
    }
    within = tolerance.get(a.dtype, 0.0)
    torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)


def kernel_bytes(plan: Plan) -> int:
    """Bytes that the kernels of one run move."""
    return sum(getattr(call, "bytes", 0) for call in plan.calls)


def on_gpu(graph: Graph, device: str = "cuda:0") -> Graph:
    """`graph` with all its tensors on a GPU, for what only plans or generates; or on another device."""
    def moved(type):
        return replace(type, device=device) if isinstance(type, TensorType) else type

    return replace(
        graph,
        inputs=tuple(replace(i, type=moved(i.type)) for i in graph.inputs),
        ops=tuple(replace(op, types=tuple(map(moved, op.types))) for op in graph.ops),
    )
