"""Sizes of convolutions, pooling and upsampling.

Rules of `size_rules.py`. Source: `ATen/native/ConvUtils.h`, `ATen/native/Pool.h`.
"""

from collections.abc import Sequence
from typing import Any

from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, channels_last, images, is_channels_last, is_row_major, keeps_channels_last,
)
from preheat.ir.dims import normal
from preheat.ir.scalar import Dim, apply, product
from preheat.ir.types import TensorType


# ---------------------------------------------------------------------------- convolution, pooling
def _pair(values: Sequence[Any], count: int) -> list[Any]:
    return list(values) * count if len(values) == 1 else list(values)


def _convolution(call: Call) -> list[Shape]:
    type, weight = call.type("input"), call.type("weight")
    is_last = _makes_channels_last(call, type, weight)
    spatial = type.rank - 2
    stride, padding, dilation = (
        _pair(call.arg(name, ()), spatial) for name in ("stride", "padding", "dilation"))
    sizes: list[Dim] = [type.sizes[0]]
    groups, is_transposed = call.known(call.arg("groups", 1)), call.arg("transposed", False)
    if not call.equal(type.sizes[1], weight.sizes[0] if is_transposed else normal(weight.sizes[1] * groups)):
        raise NoRule("channels that the weights do not take")
    if groups > 1 and not call.holds("eq", normal(apply("mod", weight.sizes[0], groups)), 0):
        raise NoRule("weights of which groups have unequal numbers")
    if is_transposed:
        extra = _pair([call.known(n) for n in call.arg("output_padding", ())], spatial)
        sizes.append(normal(weight.sizes[1] * groups))
        for k in range(spatial):
            reach = dilation[k] * (call.known(weight.sizes[2 + k]) - 1) + 1
            sizes.append(normal(
                (type.sizes[2 + k] - 1) * stride[k] - 2 * padding[k] + reach + extra[k]))
    else:
        sizes.append(weight.sizes[0])
        for k in range(spatial):
            reach = dilation[k] * (call.known(weight.sizes[2 + k]) - 1) + 1
            span = normal(type.sizes[2 + k] + 2 * padding[k] - reach)
            if not call.holds("ge", span, 0):
                raise NoRule("a kernel larger than the image")
            sizes.append(normal(apply("floordiv", span, stride[k]) + 1))
    if not all(call.holds("gt", n, 0) for n in sizes):
        raise NoRule("an empty convolution")
    if call.arg("bias") is not None and not call.equal(call.type("bias").sizes[0], sizes[1]):
        raise NoRule("a bias of other channels")
    return [(tuple(sizes), channels_last(tuple(sizes)) if is_last else None)]


def _makes_channels_last(call: Call, type: TensorType, weight: TensorType) -> bool:
    """Whether one of a convolution's operands has its channels last, and the library computes so. Source:
    `determine_backend_memory_format` of ATen/native/Convolution.cpp; of a signal it takes a row-major copy."""
    if type.rank == 3 and not is_row_major(type) and call.is_contiguous(type):
        raise NoRule("a signal of one channel, of which no copy is taken")
    types = (weight,) if type.rank == 3 else (type, weight)
    if all(map(is_row_major, types)):
        return False
    if type.rank == 3:
        raise NoRule("a signal whose weights lie otherwise")
    if not any([is_channels_last(call, t) for t in types]):
        return False
    if type.rank == 5 and type.device == "cpu":
        ask_of_volumes(call, type, weight)
    return keeps_channels_last(call, type.rank)


def ask_of_volumes(call: Call, type: TensorType, weight: TensorType) -> None:
    """What a CPU asks before it gives volumes to oneDNN, which keeps channels last. Source: `use_mkldnn` of
    ATen/native/Convolution.cpp."""
    batch = type.sizes[0]
    if not call.holds("ge", batch, 16) and not call.holds("gt", batch, 1):
        call.holds("gt", normal(product(type.sizes[:4])), 20480)


def _pool(call: Call) -> list[Shape]:
    type = call.type("self")
    spatial = 2 if "2d" in call.name else 3 if "3d" in call.name else 1
    kernel = _pair(call.arg("kernel_size", ()), spatial)
    stride = _pair(call.arg("stride", ()), spatial) or kernel
    padding = _pair(call.arg("padding", (0,)), spatial)
    dilation = _pair(call.arg("dilation", (1,)), spatial)
    sizes = list(type.sizes[: type.rank - spatial])
    for k in range(spatial):
        size = type.sizes[type.rank - spatial + k]
        span = normal(size + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1)
        if call.arg("ceil_mode", False):
            made = normal(apply("floordiv", span + (stride[k] - 1), stride[k]) + 1)
            if call.holds("ge", normal((made - 1) * stride[k]), normal(size + padding[k])):
                made = normal(made - 1)
        else:
            if not call.holds("ge", span, 0):
                raise NoRule("an empty pooling")
            made = normal(apply("floordiv", span, stride[k]) + 1)
        if not call.holds("gt", made, 0):
            raise NoRule("an empty pooling")
        sizes.append(made)
    return [images(call, type, tuple(sizes), place=k) for k in range(len(call.real))]


def _adaptive_pool(call: Call) -> list[Shape]:
    type, wanted = call.type("self"), call.arg("output_size", ())
    sizes = (*type.sizes[: type.rank - len(wanted)], *wanted)
    return [images(call, type, sizes, place=k) for k in range(len(call.real))]


def _upsample(call: Call) -> list[Shape]:
    """Upsampling to sizes that are given; factors are used, too, and are numbers."""
    type, wanted = call.type("self"), call.args.get("output_size")
    if wanted is None:
        raise NoRule("upsampling")
    if not all(call.holds("gt", n, 0) for n in wanted):
        raise NoRule("an empty image")
    return [images(call, type, (*type.sizes[:2], *wanted))]


IMAGES: dict[Rule, str] = {
    _convolution: "convolution",
    _pool: "max_pool2d_with_indices avg_pool2d avg_pool1d avg_pool3d max_pool3d_with_indices",
    _adaptive_pool: """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d
        adaptive_max_pool3d""",
    _upsample: """upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
        upsample_linear1d upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
        _upsample_bicubic2d_aa""",
}
"""Rules, and the ops that they are of."""
