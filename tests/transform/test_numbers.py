"""Numbers that are inputs of a graph: every pass means what the recorded graph means."""

import pytest
import torch

from preheat.bridge.interpret import run
from preheat.bridge.ops import decode as as_torch
from preheat.bridge.ops import overload, schema
from preheat.bridge.tensors import type_of
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.pack import decode, encode
from preheat.ir.text import parse, show
from preheat.ir.types import ScalarType
from preheat.transform.pipeline import lower

X = torch.linspace(-3, 4, 12).reshape(3, 4)
OPS = {  # overload, arguments with "x" and "n"
    "mul": ("aten.mul.Tensor", ("x", "n")), "add": ("aten.add.Tensor", ("x", "n")),
    "rsub": ("aten.rsub.Scalar", ("x", "n")), "div": ("aten.div.Tensor", ("x", "n")),
    "lt": ("aten.lt.Scalar", ("x", "n")), "fill": ("aten.fill.Scalar", ("x", "n")),
    "full": ("aten.full.default", ((2, 2), "n")), "lerp": ("aten.lerp.Scalar", ("x", "x", "n")),
    "clamp": ("aten.clamp.default", ("x", "n")), "pow": ("aten.pow.Tensor_Scalar", ("x", "n")),
    "leaky": ("aten.leaky_relu.default", ("x", "n")), "base": ("aten.pow.Scalar", ("n", "x")),
    "foreach": ("aten._foreach_mul.ScalarList", (("x", "x"), ("n", "n"))),
    "in place": ("aten.mul_.Tensor", ("x", "n")),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]


def graph_of(name, args, x, n):
    b = Builder("aten")
    number = b.input(ScalarType(type(n).__name__), "n")
    value = b.input(type_of(x), "x")
    values = {number: n, value: x.clone()}

    def ref(arg):
        if isinstance(arg, tuple):
            return tuple(map(ref, arg))
        return {"x": Ref(value), "n": Ref(number)}.get(arg, arg)

    made = overload(name)(*(as_torch(ref(a), values) for a in args))
    made = made if isinstance(made, (list, tuple)) else [made]
    is_written = schema(name).is_mutable
    results = [value] if is_written else [b.fresh() for _ in made]
    b.append(Op(
        name, tuple(map(ref, args)), tuple(results), tuple(map(type_of, made)), (),
        (value,) if is_written else (), (value,) if is_written else (-1,) * len(made)))
    return b.finish(results), made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_the_core_graph_gives_what_torch_gives_at_other_numbers(name, dtype):
    x = (X * 2).to(dtype)
    for numbers in ([2, 3, 100], [0.5, 0.1, -2.0]):
        try:
            graph, _ = graph_of(*OPS[name], x, numbers[0])
        except RuntimeError:
            continue  # torch has no such op
        core = lower(graph, is_checked=True)
        assert show(parse(show(core))) == show(core) and decode(encode(core)) == core
        for n in numbers:
            expected = graph_of(*OPS[name], x, n)[1]
            for found, wanted in zip(run(core, [n, x.clone()]), expected):
                assert found.dtype == wanted.dtype
                tight = dtype is torch.float64 or not wanted.is_floating_point()
                rtol = 0 if tight else 1e-2 if wanted.itemsize == 2 else 1e-6
                torch.testing.assert_close(found, wanted, rtol=rtol, atol=0, equal_nan=True)
