"""Gradients of the weights of depthwise convolutions on a CPU as sums of products.

    %5, %6, %7 = library(%g, %x, %w, ..., op='aten.convolution_backward.default')
      ->
    %5, _, _ = library(%g, %x, %w, ..., (True, False, False), op=..)
    %8 = pad(%x)                                          channels last, as %g is then
    %9 = window(window(%8, axis=2), axis=3)               [N, C, H, W, kernel, kernel]
    %6 = reshape(sum(times(expand(%g), %9), axes=(0, 2, 3)))
    %7 = sum(%g, axes=(0, 2, 3))

A weight is a sum over all positions, of which neighbouring channels are a vector. The library, too,
takes its time for it, and with channels last room: the weight of each channel as a block of 16 x 16
of them, 39 MB for 768 channels of 7 x 7, whatever the size of the images. Measured (Zen 4, one thread,
float32, process time, gradients of weights and biases in ms, images x side x side of c channels, kernel
7 x 7; the library's and these sums, with channels last and first):

    2 x 8 x 8, 64        0.28   0.054        0.39   0.07
    2 x 16 x 16, 32      0.38   0.046        1.01   0.067
    2 x 2 x 2, 256       0.54   0.033        0.38   0.052
    1 x 7 x 7, 768      20.0    0.16         1.70   0.27
    32 x 7 x 7, 384     13.1    1.9         24.9    4.8
    32 x 28 x 28, 96    41.4   16.6         95.3   22.9

Kernels of 3 x 3 stay with the library, whose way for them takes about as long (8 x 28 x 28, 144: 0.38 and
0.52 ms).

Requires and gives level core. Guarantees: results keep their strides; they are sums of the same
products in another order.
"""

from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref, with_replaced
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import TensorType, tensor
from preheat.schedule.layouts import channels_last_strides
from preheat.schedule.sums import Sums, windows

_BACKWARD = "aten.convolution_backward.default"
LEAST_CHANNELS = 8  # that are a vector
LEAST_SIDE = 4  # of a kernel; one of 3 x 3 is padded by no library, and as fast there


def depthwise_sums(graph: Graph, target: Target) -> Sums:
    """`graph` with the gradients of weights and biases of depthwise convolutions as sums."""
    if target.is_gpu:
        return Sums(graph, frozenset())
    types, operands = graph.types(), set[int]()
    made = with_replaced(
        graph, lambda op: _is_chosen(op, types), lambda builder, op: _append(builder, op, operands))
    return Sums(made, frozenset(operands))


def _is_chosen(op: Op, types: dict[int, TensorType]) -> bool:
    """A gradient of weights of a depthwise convolution of images."""
    if op.name != "library" or op.attr("op") != _BACKWARD or len(op.args) != 11:
        return False
    tangent, x, weight = (types[arg.id] for arg in op.args[:3])
    groups, wants_weight = op.args[9], op.args[10][1] and op.results[1] != -1
    sizes, window = (*tangent.sizes, *x.sizes, *weight.sizes), (*op.args[4], *op.args[5], *op.args[6])
    is_known = not any(isinstance(n, Scalar) for n in (*sizes, *window))
    if x.rank != 4 or op.args[7] or not wants_weight or not is_known:
        return False
    if {type.dtype for type in (tangent, x, weight)} != {"float32"} or 0 in sizes:
        return False
    if max(weight.sizes[2:]) < LEAST_SIDE:
        return False
    return groups == x.sizes[1] == weight.sizes[0] >= LEAST_CHANNELS


def _append(builder: Builder, op: Op, operands: set[int]) -> None:
    """Appends the sums, and the call for the gradient of the input. `operands`: what must be in memory."""
    (made, weight_value, bias_value), mask = op.results, op.args[10]
    if mask[0] and made != -1:
        args = (*op.args[:10], (True, False, False))
        builder.append(replace(op, args=args, results=(made, -1, -1)))
    tangent, x = op.args[0].id, op.args[1].id
    g, kernel = builder.type_of[tangent], builder.type_of[op.args[2].id].sizes[2:]
    if g != _last(g, g.sizes):
        g = _last(g, g.sizes)
        tangent = builder.add("cast", [tangent], g, dtype=g.dtype)
    padded = _padded(builder, op, x, g.sizes[2:], kernel)
    operands.update((padded, tangent))
    seen = padded
    for axis, step, dilation, taps in zip((2, 3), op.args[4], op.args[6], kernel):
        seen = windows(builder, seen, axis, g.sizes[axis], step, taps, dilation)
    wide = builder.type_of[seen].sizes
    spread = builder.add(
        "reshape", [tangent], tensor(g.dtype, (*g.sizes, 1, 1), (*g.strides, 1, 1)))
    spread = builder.add("expand", [spread], tensor(g.dtype, wide, (*g.strides, 0, 0)))
    product = builder.add("times", [spread, seen], tensor(g.dtype, wide))
    total = builder.add(
        "sum", [product], tensor(g.dtype, (g.sizes[1], *kernel)), axes=(0, 2, 3), keepdim=False)
    builder.append(Op("reshape", (Ref(total),), (weight_value,), op.types[1:2]))
    if mask[2] and bias_value != -1:
        attrs = (("axes", (0, 2, 3)), ("keepdim", False))
        builder.append(Op("sum", (Ref(tangent),), (bias_value,), op.types[2:], attrs))


def _padded(
    builder: Builder, op: Op, x: int, counts: tuple[int, ...], kernel: tuple[int, ...],
) -> int:
    """The input `x` with zeros around, channels last, as far as `counts` places of the kernel reach."""
    type, (steps, lows, dilations) = builder.type_of[x], op.args[4:7]
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(counts, steps, kernel, dilations)]
    sides = type.sizes[2:]
    highs = [max(0, n - size - low) for n, size, low in zip(reach, sides, lows)]
    sizes = (*type.sizes[:2], *(sum(parts) for parts in zip(lows, sides, highs)))
    return builder.add(
        "pad", [x], _last(type, sizes), low=(0, 0, *lows), high=(0, 0, *highs), value=0.0)


def _last(type: TensorType, sizes: tuple[int, ...]) -> TensorType:
    """A tensor of `sizes` that lies channels last."""
    return tensor(type.dtype, sizes, channels_last_strides(sizes), device=type.device)
