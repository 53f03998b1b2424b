"""Biases of convolutions on a GPU as additions: there the library adds them in another pass.

    %3: f16[8, 64, 56, 56] = library(%0, %1, %2, ..., op='aten.convolution.default'); %4 = relu(%3)
      ->
    %5: f16[8, 64, 56, 56] = library(%0, %1, None, ...)
    %3: f16[8, 64, 56, 56] = add(%5, expand(reshape(%2)));  %4 = relu(%3)         one kernel

So they are of grouped ones: ConvNeXt's depthwise convolutions, 32 images in 16 bits, had 180 us of such passes of 2468
(H200). Only those of one group a channel whose images are not channels last stay whole: they have a kernel that adds
the bias itself.

Requires and gives level core. Guarantees: the result of the convolution is rounded before the
addition, and the sum after it, as in the library.
Source: aten/src/ATen/native/Convolution.cpp, at::_convolution: `output.add_(reshape_bias(..))`.
"""

from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref, with_replaced
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import HALVES, TensorType, tensor

CONVOLUTION = "aten.convolution.default"
DTYPES = ("float32", "float64", *HALVES)


def biases_apart(graph: Graph, target: Target) -> Graph:
    """`graph` with the bias of each convolution added by an op of its own."""
    if not target.is_gpu:
        return graph
    types = graph.types()
    return with_replaced(graph, lambda op: _has_bias(op, types), _append)


def _has_bias(op: Op, types: dict[int, TensorType]) -> bool:
    if op.name != "library" or op.attr("op") != CONVOLUTION or len(op.args) != 9:
        return False
    bias = op.args[2]
    if not isinstance(bias, Ref) or op.type.dtype not in DTYPES or _adds_itself(op, types):
        return False
    is_known = not any(isinstance(n, Scalar) for n in op.type.sizes)
    return is_known and op.type.rank > 2 and types[bias.id].sizes == op.type.sizes[1:2]


def _adds_itself(op: Op, types: dict[int, TensorType]) -> bool:
    """The library has a kernel for a convolution of one group a channel, which adds the bias: `_conv_depthwise2d`."""
    x, groups = types[op.args[0].id], op.args[8]
    is_last = x.rank == 4 and x.strides[1] == 1 and x.sizes[1] != 1
    return groups != 1 and groups == x.sizes[1] and not is_last


def _append(builder: Builder, op: Op) -> None:
    """Appends the convolution and the addition, which gives the op's own value."""
    type, add = op.type, builder.add
    made = builder.fresh()
    args = (*op.args[:2], None, *op.args[3:])
    builder.append(Op("library", args, (made,), (type,), op.attrs))
    value, bias = (_wide(builder, v) for v in (made, op.args[2].id))
    wide = builder.type_of[value]
    apart = (1, type.sizes[1], *(1 for _ in type.sizes[2:]))
    bias = add("reshape", [bias], tensor(wide.dtype, apart, device=type.device))
    repeated = (0, 1, *(0 for _ in type.sizes[2:]))
    bias = add("expand", [bias], replace(wide, strides=repeated))
    if type.dtype not in HALVES:
        builder.append(Op("add", (Ref(value), Ref(bias)), op.results, op.types))
        return
    total = add("add", [value, bias], wide)
    builder.append(Op("cast", (Ref(total),), op.results, op.types, (("dtype", type.dtype),)))


def _wide(builder: Builder, value: int) -> int:
    """16-bit floats as float32."""
    type = builder.type_of[value]
    if type.dtype not in HALVES:
        return value
    wide = replace(type, dtype="float32")
    return builder.add("cast", [value], wide, dtype="float32")
