"""Gradients of depthwise convolutions on a CPU, channels first where the library wants room for more.

    %5, %6, %7 = library(%g, %x, %w, ..., op='aten.convolution_backward.default')     channels last
      ->
    %8 = cast(%g); %9 = cast(%x)                                                      channels first
    %10, %6, %7 = library(%8, %9, %w, ...); %5 = cast(%10)                            as it was

With channels last the library pads the weight of each channel to a block of 16 x 16 of them: 39 MB for
768 channels of 7 x 7, which it fills and reads whatever the size of the images; beyond 32 MB of memory
that is the system's on each call. Measured (Zen 4, one thread, float32, process time, images x side x
side of c channels, kernel 7 x 7; with channels last, and first with the turning):

    2 x 7 x 7, 768      21.7 ms    3.9        2 x 4 x 4, 128     0.27    0.36
    1 x 7 x 7, 768      19.6       2.0        2 x 8 x 8, 64      0.28    0.44
    2 x 2 x 2, 256       0.80      0.43       32 x 7 x 7, 384   15.2    30.3

A kernel of 3 x 3 goes another way, and stays. Requires and gives level core. Guarantees: results keep their
strides; they are sums of the same products in another order.
"""

from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref, with_replaced
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import TensorType, tensor
from preheat.schedule.layouts import is_channels_last

_BACKWARD = "aten.convolution_backward.default"
_BLOCK = 16 * 16  # weights that stand for one, in the library's form
_FRESH_BYTES = 32 << 20  # allocations beyond are new to the process (glibc's largest threshold)
# Nanoseconds: of a product of the sum, and of a channel; and a byte of padded weights.
_LAST_NS, _FIRST_NS, _FIRST_CHANNEL_NS = 0.45, 0.96, 900
_BYTE_NS, _FRESH_BYTE_NS = 0.04, 0.4


def channels_first(graph: Graph, target: Target) -> Graph:
    """`graph` with the gradients of depthwise convolutions over few positions channels first."""
    if target.is_gpu:
        return graph
    types = graph.types()
    return with_replaced(graph, lambda op: _is_chosen(op, types), _append)


def _is_chosen(op: Op, types: dict[int, TensorType]) -> bool:
    """A gradient of weights of a depthwise convolution, channels last, that is faster otherwise."""
    if op.name != "library" or op.attr("op") != _BACKWARD or len(op.args) != 11:
        return False
    tangent, x, weight = (types[arg.id] for arg in op.args[:3])
    groups, wants_weight = op.args[9], op.args[10][1]
    known = (*tangent.sizes, *x.sizes, *weight.sizes)
    if x.rank != 4 or op.args[7] or not wants_weight or any(isinstance(n, Scalar) for n in known):
        return False
    if not groups == x.sizes[1] == weight.sizes[0] > 1 or 0 in known:
        return False
    is_last = any(is_channels_last(type) and not type.is_contiguous for type in (tangent, x))
    return is_last and _gain_ns(tangent, weight) > 0


def _gain_ns(tangent: TensorType, weight: TensorType) -> float:
    """How much faster the call is channels first, about."""
    images, channels, *side = tangent.sizes
    kernel = weight.sizes[2] * weight.sizes[3]
    if max(weight.sizes[2:]) <= 3:
        return 0
    padded_bytes = channels * kernel * _BLOCK * 4
    a_byte_ns = _FRESH_BYTE_NS if padded_bytes > _FRESH_BYTES else _BYTE_NS
    products = channels * kernel * images * side[0] * side[1]
    first_ns = products * _FIRST_NS + channels * _FIRST_CHANNEL_NS
    return products * _LAST_NS + padded_bytes * a_byte_ns - first_ns


def _append(builder: Builder, op: Op) -> None:
    """Appends the call on turned operands, and the gradient of its input turned back."""
    def turned(value: int) -> Ref:
        type = builder.type_of[value]
        plain = tensor(type.dtype, type.sizes, device=type.device)
        return Ref(value if type == plain else builder.add("cast", [value], plain, dtype=type.dtype))

    args = (turned(op.args[0].id), turned(op.args[1].id), *op.args[2:])
    result, type = op.results[0], op.types[0]
    if result == -1 or not isinstance(type, TensorType):
        builder.append(replace(op, args=args))
        return
    plain = tensor(type.dtype, type.sizes, device=type.device)
    made = builder.fresh()
    builder.append(replace(
        op, args=args, results=(made, *op.results[1:]), types=(plain, *op.types[1:])))
    builder.append(Op("cast", (Ref(made),), (result,), (type,), (("dtype", type.dtype),)))
