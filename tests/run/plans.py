"""Plans built by hand, with scalar kernels in LLVM text, for tests of the executors."""

import functools

import torch

from preheat.generate.build import host_target, image
from preheat.ir.graph import Ref, Token
from preheat.ir.loop import Kernel, Param
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Output, Plan, ProductCall
from preheat.ir.types import TensorType, tensor
from preheat.run.load import Loaded, load

# Each kernel walks [begin, end) of float32 elements; `body` computes %r from the loaded %v<k>.
_BODIES = {
    "add": ("in in out", "%r = fadd float %v0, %v1"),
    "double": ("in out", "%r = fadd float %v0, %v0"),
    "relu": ("inout", "%c = fcmp olt float %v0, 0.0\n  %r = select i1 %c, float 0.0, float %v0"),
    "accumulate": ("inout in", "%r = fadd float %v0, %v1"),
    # raises bit 1 of the flag where the value is negative
    "checked": (
        "in out",
        "%c = fcmp olt float %v0, 0.0\n  %bit = zext i1 %c to i64\n  %old = load i64, ptr %flag\n"
        "  %new = or i64 %old, %bit\n  store i64 %new, ptr %flag\n  %r = fmul float %v0, 2.0",
    ),
}


@functools.cache
def hand_kernels() -> Loaded:
    """The kernels of `_BODIES`, loaded."""
    return load(image("\n".join(_text(name, *row) for name, row in _BODIES.items()), host_target()))


def kernel(name: str) -> Kernel:
    """The noun of a hand-written kernel."""
    roles = _BODIES[name][0].split()
    return Kernel(
        name, tuple(Param("float32", role, f"p{k}") for k, role in enumerate(roles)), (), ()
    )


def f32(*sizes: int, strides=None) -> TensorType:
    return tensor("float32", sizes, strides)


def plan(inputs, buffers, kernels, calls, outputs, arena_bytes=0) -> Plan:
    """A plan from its parts; `kernels` by name, outputs as Output or buffer numbers."""
    buffers = tuple(Buffer(*b) for b in buffers)
    made = tuple(o if isinstance(o, Output) else Output(buffers[o].type, o) for o in outputs)
    return Plan(
        tuple(inputs), buffers, tuple(map(kernel, kernels)), tuple(calls), made, arena_bytes
    )


def add_plan(n: int = 1000) -> Plan:
    """out = (x + y) + (x + y), through an arena."""
    x = f32(n)
    return plan(
        (x, x),
        [("input", 0, x), ("input", 1, x), ("arena", 64, x), ("output", 0, x)],
        ["add"],
        [KernelCall(0, (0, 1, 2), n, 12 * n), KernelCall(0, (2, 2, 3), n, 12 * n)],
        [3],
        64 + 4 * n,
    )


def strided_output_plan() -> Plan:
    """out = -x by the library, in a layout that the library does not choose."""
    x, turned = f32(4, 6), f32(4, 6, strides=(1, 4))
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, turned)],
        [],
        [LibraryCall("aten.neg.default", (Ref(0),), (), (1,))],
        [1],
    )


def alias_plan(base: str) -> Plan:
    """(x + x, a view of x or of that)."""
    x = f32(4, 6)
    alias = Output(f32(2, 4, strides=(1, 6)), alias=base, base=0, offset=2)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        ["double"],
        [KernelCall(0, (0, 1), 24, 192)],
        [1, alias],
    )


def write_plan() -> Plan:
    """x + x, then x becomes relu(x)."""
    x = f32(10)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        ["relu", "double"],
        [KernelCall(1, (0, 1), 10, 80), KernelCall(0, (0,), 10, 80)],
        [1],
    )


def row_write_plan() -> Plan:
    """Row 2 of x grows by y, through a view; gives nothing back but y + y."""
    x, row = f32(4, 6), f32(6)
    return plan(
        (x, row),
        [("input", 0, x), ("input", 1, row), ("view", 12, row, 0), ("output", 0, row)],
        ["accumulate", "double"],
        [KernelCall(1, (1, 3), 6, 48), KernelCall(0, (2, 1), 6, 72)],
        [3],
    )


def checked_write_plan() -> Plan:
    """A kernel that may raise the flag, then a write to x."""
    x = f32(10)
    return plan(
        (x,),
        [("input", 0, x), ("arena", 0, x)],
        ["checked", "relu"],
        [KernelCall(0, (0, 1), 10, 80), KernelCall(1, (0,), 10, 80)],
        [],
        40,
    )


def late_check_plan() -> Plan:
    """What a scheduler must not do: a write to x, then a kernel that may raise the flag."""
    x = f32(10)
    calls = [KernelCall(1, (0,), 10, 80), KernelCall(0, (1, 2), 10, 80)]
    buffers = [("input", 0, x), ("input", 1, x), ("output", 0, x)]
    return plan((x, x), buffers, ["checked", "relu"], calls, [2])


def checked_plan() -> Plan:
    """x * 2 where no element is negative."""
    x = f32(10)
    return plan(
        (x,), [("input", 0, x), ("output", 0, x)], ["checked"], [KernelCall(0, (0, 1), 10, 80)], [1]
    )


def product_plan(a, a_strides, b, b_strides, out_strides, beta=0, dtype="float32") -> Plan:
    """a @ b, and with `beta` once more on top of it."""
    a, b = tensor(dtype, a, a_strides), tensor(dtype, b, b_strides)
    out = tensor(dtype, (*a.sizes[:-1], b.sizes[-1]), out_strides)
    buffers = [("input", 0, a), ("input", 1, b), ("output", 0, out)]
    calls = [ProductCall(0, 1, 2)] + ([ProductCall(0, 1, 2, beta)] if beta else [])
    return plan((a, b), buffers, [], calls, [2])


def library_plan() -> Plan:
    """Several results, one of them unused; owned memory; constants of every kind."""
    x, picked = f32(4, 6), tensor("int64", (4, 2))
    return plan(
        (x,),
        [
            ("input", 0, x),
            ("owned", 0, f32(4, 2)),
            ("owned", 1, picked),
            ("output", 0, tensor("float64", (4, 2))),
        ],
        [],
        [
            LibraryCall("aten.topk.default", (Ref(0), 2), (), (-1, 2)),
            LibraryCall("aten.gather.default", (Ref(0), 1, Ref(2)), (), (1,)),
            LibraryCall(
                "aten._to_copy.default", (Ref(1),), (("dtype", Token("dtype", "float64")),), (3,)
            ),
        ],
        [3],
    )


def mixed_plan() -> Plan:
    """Kernel, library and product on arena memory and on views of every kind of memory."""
    x, half, square = f32(8, 8), f32(4, 8), f32(8, 8)
    buffers = [
        ("input", 0, x),
        ("arena", 0, x),
        ("view", 32, half, 1),
        ("owned", 0, half),
        ("view", 8, f32(8), 3),
        ("arena", 256, f32(8)),
        ("arena", 320, square),
        ("output", 0, square),
        ("view", 0, f32(4, 8), 7),
        ("output", 1, half),
        ("view", 0, f32(8, 8, strides=(1, 8)), 0),
    ]
    calls = [
        KernelCall(0, (0, 1), 64, 512),
        LibraryCall("aten.sigmoid.default", (Ref(2),), (), (3,)),
        KernelCall(0, (4, 5), 8, 64),
        ProductCall(0, 10, 6),
        KernelCall(0, (6, 7), 64, 512),
        LibraryCall("aten.add.Tensor", (Ref(8), Ref(3)), (("alpha", 2),), (9,)),
    ]
    return plan((x,), buffers, ["double"], calls, [7, 9], 576)


def bfloat16_linear_plan() -> Plan:
    """relu(x @ w.t()) @ v + 2 b by the library: operands are views, results owned and output."""
    x, w, v = (tensor("bfloat16", sizes) for sizes in ((4, 6), (8, 6), (8, 3)))
    hidden, out = tensor("bfloat16", (4, 8)), tensor("bfloat16", (4, 3))
    buffers = [
        ("input", 0, x),
        ("input", 1, w),
        ("input", 2, v),
        ("view", 0, tensor("bfloat16", (6, 8), (1, 6)), 1),
        ("owned", 0, hidden),
        ("owned", 0, hidden),
        ("output", 0, out),
    ]
    calls = [
        LibraryCall("aten.mm.default", (Ref(0), Ref(3)), (), (4,)),
        LibraryCall("aten.relu.default", (Ref(4),), (), (5,)),
        LibraryCall("aten.addmm.default", (Ref(7), Ref(5), Ref(2)), (("beta", 2),), (6,)),
    ]
    buffers.append(("input", 3, tensor("bfloat16", (3,))))
    return plan((x, w, v, buffers[-1][2]), buffers, [], calls, [6])


def attention_plan(with_mask: bool) -> Plan:
    """Attention as recorded on the CPU: heads are a permuted view, so is the result."""
    x = f32(2, 5, 3, 4)
    heads = f32(2, 3, 5, 4, strides=(60, 4, 12, 1))
    mask = f32(2, 1, 5, 5)
    inputs, buffers = (x,), [("input", 0, x), ("view", 0, heads, 0), ("output", 0, heads)]
    attrs = (("scale", 0.7),)
    if with_mask:
        inputs, attrs = (x, mask), (("attn_mask", Ref(3)),)
        buffers.append(("input", 1, mask))
    args = (Ref(1), Ref(1), Ref(1), 0.0, not with_mask)
    call = LibraryCall(
        "aten._scaled_dot_product_flash_attention_for_cpu.default", args, attrs, (2, -1)
    )
    return plan(inputs, buffers, [], [call], [2])


def convolution_plan(with_bias: bool) -> Plan:
    x, w, bias, out = f32(2, 3, 8, 8), f32(4, 3, 3, 3), f32(4), f32(2, 4, 4, 8)
    buffers = [("input", 0, x), ("input", 1, w), ("output", 0, out)] + [
        ("input", 2, bias)
    ] * with_bias
    args = (Ref(0), Ref(1), Ref(3) if with_bias else None, (2, 1), (1, 1), (1, 1), False, (0, 0), 1)
    call = LibraryCall("aten.convolution.default", args, (), (2,))
    return plan((x, w, bias)[: 2 + with_bias], buffers, [], [call], [2])


def failing_plan() -> Plan:
    """A library call that raises before anything was written."""
    x = f32(4, 6)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        [],
        [LibraryCall("aten.view.default", (Ref(0), (5, 5)), (), (1,))],
        [1],
    )


def failing_after_write_plan() -> Plan:
    """A library call that raises after x was written."""
    x = f32(4, 6)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        ["relu"],
        [KernelCall(0, (0,), 24, 96), LibraryCall("aten.view.default", (Ref(0), (5, 5)), (), (1,))],
        [1],
    )


def empty_plan() -> Plan:
    x = f32(0, 3)
    return plan(
        (x,), [("input", 0, x), ("output", 0, x)], ["double"], [KernelCall(0, (0, 1), 0, 0)], [1]
    )


def wide_plan(n: int = 1 << 20) -> Plan:
    """x + x on enough memory for a team of threads without the GIL."""
    x = f32(n)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        ["double"],
        [KernelCall(0, (0, 1), n, 8 * n)],
        [1],
    )


PRODUCTS = [
    ((5, 7), None, (7, 3), None, None),
    ((5, 7), None, (7, 3), (1, 7), None),
    ((5, 7), (1, 5), (7, 3), None, (1, 5)),
    ((5, 7), (1, 9), (7, 3), (1, 11), (8, 1)),
    ((2, 5, 7), None, (2, 7, 3), None, None),
    ((2, 4, 5, 7), (140, 7, 28, 1), (2, 4, 7, 3), (84, 3, 12, 1), None),
    ((2, 5, 7), None, (2, 7, 3), (0, 3, 1), None),
    ((3, 2, 1, 7), None, (3, 2, 7, 4), (28, 0, 4, 1), None),
    ((1, 7), None, (7, 3), None, None),
    ((7, 1), None, (1, 3), None, None),
    ((5, 0), None, (0, 3), None, None),
    ((0, 7), None, (7, 3), None, None),
    ((0, 4, 7), None, (0, 7, 3), None, None),
    ((3, 5, 1), None, (3, 1, 4), None, None),
    ((5, 7), (14, 2), (7, 3), None, None),  # no unit stride: not for the BLAS
    ((5, 7), (0, 1), (7, 3), None, None),
]

ZOO = {
    "add": add_plan(),
    "strided output": strided_output_plan(),
    "alias of input": alias_plan("input"),
    "alias of output": alias_plan("output"),
    "write": write_plan(),
    "row write": row_write_plan(),
    "checked write": checked_write_plan(),
    "checked": checked_plan(),
    "library": library_plan(),
    "mixed": mixed_plan(),
    "empty": empty_plan(),
    "wide": wide_plan(),
    "bf16 linear": bfloat16_linear_plan(),
    "attention": attention_plan(False),
    "masked attention": attention_plan(True),
    "convolution": convolution_plan(False),
    "convolution with bias": convolution_plan(True),
    **{f"product {k}": product_plan(*case) for k, case in enumerate(PRODUCTS)},
    **{f"product {k} twice": product_plan(*case, beta=1) for k, case in enumerate(PRODUCTS)},
    "product f64": product_plan(*PRODUCTS[1], dtype="float64"),
    "product bf16": product_plan(*PRODUCTS[1], dtype="bfloat16"),
    "product i64": product_plan(*PRODUCTS[0], dtype="int64"),
}


def filled(type: TensorType) -> torch.Tensor:
    """Random values in the layout of `type`; an axis of stride 0 is expanded."""
    dense = [1 if step == 0 else size for size, step in zip(type.sizes, type.strides)]
    value = torch.empty_strided(
        dense, [step or 1 for step in type.strides], dtype=getattr(torch, type.dtype)
    )
    return value.copy_(torch.randn(dense).abs() * 3).as_strided(type.sizes, type.strides)


def _text(name: str, roles: str, body: str) -> str:
    params = roles.split()
    lines = []
    for k, role in enumerate(params):
        lines += [
            f"  %s{k} = getelementptr ptr, ptr %args, i64 {k}",
            f"  %p{k} = load ptr, ptr %s{k}",
        ]
    loads = []
    for k, role in enumerate(params):
        loads.append(f"  %a{k} = getelementptr float, ptr %p{k}, i64 %i")
        if role != "out":
            loads.append(f"  %v{k} = load float, ptr %a{k}")
    target = next(k for k, role in enumerate(params) if role != "in")
    return f"""
define void @{name}(ptr %args, i64 %begin, i64 %end) {{
entry:
{chr(10).join(lines)}
  %sf = getelementptr ptr, ptr %args, i64 {len(params)}
  %flag = load ptr, ptr %sf
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{chr(10).join(loads)}
  {body}
  store float %r, ptr %a{target}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
