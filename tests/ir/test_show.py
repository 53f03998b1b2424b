"""How plans and traces read: golden text, tests/golden/ir_*.txt."""

from preheat.ir.graph import Builder, Ref
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Output, Plan, ProductCall
from preheat.ir.text import show
from preheat.ir.trace import (
    At, Guard, Live, Named, Node, Recipe, Return, Signature, Source, Step, TensorFacts, Trace,
)
from preheat.ir.types import tensor


def test_a_plan_reads(golden):
    x, w, y = tensor("float32", (4, 8)), tensor("float32", (8, 6), (1, 8)), tensor("float32", (4, 6))
    load = LoopOp("load", 0, "float32", param=0, index=Index(0, (("i0", 1),)))
    store = LoopOp("store", -1, "float32", (1,), param=0, index=Index(0, (("i0", 1),)))
    kernel = Kernel("exp_0", (Param("float32", "inout"),), (Axis("i0", 24),),
                    (Stage((), (load, LoopOp("exp", 1, "float32", (0,)), store)),), 1, "i0")
    plan = Plan(
        (x, w), (Buffer("input", 0, x), Buffer("input", 1, w), Buffer("output", 0, y), Buffer("view", 2, y, 0),
                 Buffer("owned", 0, y)),
        (kernel,),
        (ProductCall(0, 1, 2), KernelCall(0, (2,), 24, 192), LibraryCall("aten.cumsum.default", (Ref(2), 0), (), (4,)),
         ProductCall(0, 1, 2, 1)),
        (Output(y, 2), Output(tensor("float32", (6,)), alias="input", base=0, offset=8)), 256,
    )
    golden("ir_plan", show(plan))


def test_a_trace_reads(golden):
    sources = (
        Source(-1, "entry"), Source(-1, "arg", 0), Source(0, "dict"), Source(2, "item", "layers"), Source(3, "dict"),
        Source(4, "item", "_modules"), Source(5, "item", "3"), Source(6, "dict"), Source(7, "item", "_parameters"),
        Source(8, "item", "weight"), Source(-1, "named", Named("torch.nn.functional", "relu")), Source(10, "attr", "__defaults__"),
        Source(10, "closure", 0), Source(12, "cell"), Source(-1, "live", Live(2)), Source(14, "len"), Source(1, "key", 0),
        Source(10, "globals"), Source(17, "item", "SCALE"), Source(1, "type"),
    )
    b = Builder("aten")
    p, q = b.input(tensor("float32", (4, 8)), "x"), b.input(tensor("float32", (8, 8)), "w")
    body = b.finish([b.add("aten.mm.default", [p, q], tensor("float32", (4, 8)))])
    guards = (
        Guard(-1, "ambient", ("grad_enabled", False)), Guard(1, "tensor", TensorFacts(tensor("float32", (4, 8)), False)),
        Guard(9, "tensor", TensorFacts(tensor("float32", (8, 8)), True)), Guard(0, "type", Named("model", "Net")),
        Guard(18, "value", 0.5), Guard(2, "absent", "hook"), Guard(11, "is", None), Guard(13, "is", At(1)), Guard(14, "isnot", Live(3)),
        Guard(10, "code", "ab12"), Guard(3, "keys", ("a", "b")), Guard(15, "value", 3), Guard(0, "class", ("forward", Named("model", "Net.forward"))),
        Guard(0, "isinstance", (Named("builtins", "int"), False)),
    )
    recipe = Recipe(
        (Step("value", (0,)), Step("const", ("logits",)), Step("source", (1,)), Step("list", (2, 0)), Step("append", (3, 0)),
         Step("const", (Named("collections", "OrderedDict"),)), Step("call", (5,)), Step("setitem", (6, 1, 3)), Step("dict", (1, 6)),
         Step("tuple", (8,))), 9,
    )
    node = Node(guards, (1, 9), body, Return(recipe))
    trace = Trace(Signature(1, ("mask",)), sources, (node,), python="3.11")
    golden("ir_trace", show(trace))
