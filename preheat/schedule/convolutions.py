"""Convolutions as sums of products over windows, so that kernels of a GPU may compute them.

    %3: bf16[8, 128, 28, 28]{..} = library(%x, %w, None, (2, 2), (1, 1), .., op='aten.convolution.default')
      ->
    %4 = pad(%x, low=(0, 0, 1, 1), ..)                              bf16[8, 64, 58, 58]
    %5 = window(%4, axis=2, step=2); %6 = window(%5, axis=3, step=2)    bf16[8, 64, 28, 28, 3, 3]
    %7 = sum(times(expand(cast(permute(%6))), expand(cast(permute(%w)))))   f32[8, 128, 28, 28]
    %3 = cast(%7)

No window is ever made: positions of the sum are affine in those of the result and of the filter, and the border
is a mask of the load. With one tap and stride 1 it is the product of the pixels and the weights. What follows
(batch norm, an activation, what is joined) is the kernel's epilogue, as of any product (`products`).

Taken are convolutions that are not grouped, not transposed and of known sizes, whose bias is apart (`biases`), in
channels last; in other layouts those of one tap. Requires and gives level core. Guarantees: 16-bit operands are
multiplied and added in float32, and the sum is rounded once, as the library does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from preheat.ir.graph import Builder, Op, Ref
from preheat.ir.scalar import Scalar
from preheat.ir.types import TensorType, Type, tensor
from preheat.schedule.biases import CONVOLUTION
from preheat.schedule.sums import factor, permuted, repeated, windows, write_total


class Convolution(NamedTuple):
    """`op`: x [N, C, *S] by weight [O, C, *K]; a stride, a padding and a dilation for each axis of space."""

    op: Op
    x: int
    weight: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def is_pointwise(self, types: Mapping[int, Type]) -> bool:
        """One tap, at each position: a product."""
        taps = types[self.weight].sizes[2:]
        return set((*taps, *self.stride)) == {1} and not any(self.padding)


def convolution_in(op: Op, types: Mapping[int, Type]) -> Convolution | None:
    """The convolution that `op` is, if it is one of those that are taken."""
    if op.name != "library" or op.attr("op") != CONVOLUTION or len(op.args) != 9 or len(op.results) != 1:
        return None
    x, weight, bias, stride, padding, dilation, is_transposed, _, groups = op.args
    if isinstance(bias, Ref) or is_transposed or groups != 1:
        return None
    given, filters = types[x.id], types[weight.id]
    numbers = (stride, padding, dilation)
    known = (*given.sizes, *filters.sizes, *op.type.sizes, *(n for part in numbers for n in part))
    space = given.rank - 2
    if space < 1 or any(isinstance(n, Scalar) for n in known) or {given.dtype, filters.dtype} != {op.type.dtype}:
        return None
    spread = (tuple(part) * space if len(part) == 1 else tuple(part) for part in numbers)
    found = Convolution(op, x.id, weight.id, *spread)
    return found if _is_last(given) and _is_last(op.type) or found.is_pointwise(types) else None


def _is_last(type: TensorType) -> bool:
    """Channels are consecutive."""
    return type.strides[1] == 1 or type.sizes[1] == 1


def write_convolution(builder: Builder, found: Convolution, rounds_float32: bool = False) -> None:
    """Appends the sum; it gives the op's own value. rounds_float32: operands of float32 to tf32."""
    taps = builder.type_of[found.weight].sizes[2:]
    walked = [k for k, count in enumerate(taps) if count > 1]
    left = factor(builder, _windows(builder, found, taps), rounds_float32)
    space, rank = len(taps), builder.type_of[left].rank
    left = permuted(builder, left, (0, *range(2, rank), 1))  # [N, *out, *taps, C]
    images, channels, *out = found.op.type.sizes
    inner = builder.type_of[left].sizes[1 + space:]
    sizes = (images, channels, *out, *inner)
    left = repeated(builder, left, 1, sizes)
    right = factor(builder, found.weight, rounds_float32)
    right = permuted(builder, right, (0, *range(2, space + 2), 1))
    right = _everywhere(builder, right, sizes)
    write_total(builder, found.op, left, right, tuple(range(2 + space, 3 + space + len(walked))))


def _windows(builder: Builder, found: Convolution, taps: tuple[int, ...]) -> int:
    """x as [N, C, *out, *those taps that are more than one]."""
    value, type = found.x, builder.type_of[found.x]
    out = found.op.type.sizes[2:]
    if any(found.padding):
        low = (0, 0, *found.padding)
        sizes = tuple(n + 2 * k for n, k in zip(type.sizes, low))
        value = builder.add(
            "pad", [value], tensor(type.dtype, sizes, device=type.device), low=low, high=low, value=0)
    for axis, (positions, count, step, dilation) in enumerate(zip(out, taps, found.stride, found.dilation), 2):
        type = builder.type_of[value]
        if count > 1:
            value = windows(builder, value, axis, positions, step, count, dilation)
        elif (step, positions) != (1, type.sizes[axis]):
            sizes, strides = list(type.sizes), list(type.strides)
            sizes[axis], strides[axis] = positions, strides[axis] * step
            made = replace(type, sizes=tuple(sizes), strides=tuple(strides))
            value = builder.add("slice", [value], made, axis=axis, start=0, step=step)
    return value


def _everywhere(builder: Builder, weight: int, sizes: tuple[int, ...]) -> int:
    """[O, *K, C] at each position of [N, O, *out, *taps, C], of which taps of one are no axes."""
    type = builder.type_of[weight]
    channels, *rest = zip(type.sizes, type.strides)
    inner = [(n, step) for n, step in rest[:-1] if n > 1] + rest[-1:]
    kept = len(sizes) - 2 - len(inner)
    apart = [(1, 0), channels, *((1, 0) for _ in range(kept)), *inner]
    thin, strides = (tuple(part) for part in zip(*apart))
    value = builder.add("reshape", [weight], replace(type, sizes=thin, strides=strides))
    if thin == sizes:
        return value
    return builder.add("expand", [value], replace(type, sizes=sizes, strides=strides))
