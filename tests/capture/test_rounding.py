"""Which captures hang on the switches that let a GPU round float32, and what kernels may do for it."""

import pytest
import torch

from preheat import compiler
from preheat.bridge.ambient import AMBIENT, ROUNDING
from preheat.bridge.switches import float32_rounding
from preheat.capture.capture import capture
from preheat.capture.nodes import _multiplies_float32
from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.plan import Rounding
from preheat.ir.trace import Guard, Node, Recipe, Return
from preheat.ir.types import tensor


def body(name, dtype, device):
    b = Builder("aten")
    x, y = (b.input(tensor(dtype, (4, 4), device=device)) for _ in range(2))
    made = b.fresh()
    b.append(Op(name, (Ref(x), Ref(y)), (made,), (tensor(dtype, (4, 4), device=device),)))
    return b.finish([made])


@pytest.mark.parametrize("name,dtype,device,hangs", [
    ("aten.mm.default", "float32", "cuda:0", True), ("aten.convolution.default", "float32", "cuda:1", True),
    ("aten.mm.default", "float32", "cpu", False), ("aten.mm.default", "bfloat16", "cuda:0", False),
    ("aten.add.Tensor", "float32", "cuda:0", False)])
def test_products_of_float32_on_a_gpu_hang_on_it(name, dtype, device, hangs):
    assert _multiplies_float32(body(name, dtype, device)) is hangs


def test_a_capture_on_a_cpu_does_not_hang_on_it():
    captured = capture(lambda x: x @ x, (torch.ones(3, 3),), {}, limits=None).captured
    guards = captured.trace.nodes[0].guards
    names = [guard.expected[0] for guard in guards if guard.kind == "ambient"]
    assert "library_choice" in names and ROUNDING not in names


def test_kernels_round_what_the_node_guards_alone():
    end = Return(Recipe((), 0))
    guards = (Guard(-1, "ambient", ("grad_enabled", False)), Guard(-1, "ambient", (ROUNDING, (True, False))))
    assert compiler._rounding(Node(guards, (), None, end)) == Rounding(products=True)
    assert compiler._rounding(Node(guards[:1], (), None, end)) == Rounding()


def test_every_way_to_allow_it_is_seen():
    assert AMBIENT[ROUNDING]() == float32_rounding() == (False, True)
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert float32_rounding() == (True, True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_float32_matmul_precision("high")
        assert float32_rounding() == (True, True)
        torch.set_float32_matmul_precision("highest")
        torch._C._set_cudnn_allow_tf32(False)  # torch's test helpers freeze the flag's own setter
        assert float32_rounding() == (False, False)
        torch._C._set_cudnn_allow_tf32(True)
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # which the older switch contradicts
        assert float32_rounding() == (True, True)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.cuda.matmul.allow_tf32 = False
        torch._C._set_cudnn_allow_tf32(True)
        torch.set_float32_matmul_precision("highest")
    assert float32_rounding() == (False, True)
