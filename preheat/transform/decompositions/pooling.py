"""Pooling over small windows: one slice of the image a place of the window, joined elementwise.

    aten.max_pool2d_with_indices.default(x: [N, C, 8, 8], (2, 2), (2, 2))
      ->  maximum(x[.., ::2, ::2], x[.., ::2, 1::2], x[.., 1::2, ::2], x[.., 1::2, 1::2])

The image is padded with what changes no result, so a kernel masks those loads. Places where windows
overlap are loaded again, from a near cache, and an image that is dear to compute gets memory first.
Stays with the library: a maximum whose places are read, windows of more than `MOST_PLACES`, averages
over windows of different sizes. Averages are summed in float32 for 16-bit floats, in the library's
order. Source: aten/src/ATen/native/Pool.h, cuda/DilatedMaxPool2d.cu, cuda/AveragePool2d.cu.
"""

from collections.abc import Callable, Sequence
from functools import reduce

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number, Scalar
from preheat.transform.lowering import Lowering, Value, decline_if, is_float

MOST_PLACES = 25  # of a window: each is a load


def max_pool(
    c: Lowering, self: Value, kernel_size: Arg, stride: Arg = (), padding: Arg = 0,
    dilation: Arg = 1, ceil_mode: bool = False,
) -> tuple:
    decline_if(len(c.op.results) > 1 and c.is_read(1), "the places of the largest are read")
    _decline(c, self)
    kernel = _pair(kernel_size)
    places = _places(
        c, c.up(self), kernel, _pair(stride) or kernel, _pair(padding), _pair(dilation),
        float("-inf"))
    return c.down(reduce(lambda x, y: c.binary("maximum", x, y), places)), None


def average_pool(
    c: Lowering, self: Value, kernel_size: Arg, stride: Arg = (), padding: Arg = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Number | None = None,
) -> Value:
    _decline(c, self)
    kernel = _pair(kernel_size)
    stride, padding = _pair(stride) or kernel, _pair(padding)
    for axis in (0, 1):
        reach = (c.result.sizes[axis - 2] - 1) * stride[axis] + kernel[axis]
        decline_if(
            divisor_override is None and (
                reach > self.sizes[axis - 2] + 2 * padding[axis]
                or (padding[axis] > 0 and not count_include_pad)),
            "windows of different sizes")
    return _average(c, self, kernel, stride, padding, divisor_override)


def adaptive_average_pool(c: Lowering, self: Value, output_size: Arg) -> Value:
    _decline(c, self)
    sizes = self.sizes[-2:]
    decline_if(any(n % made for n, made in zip(sizes, output_size)), "windows of different sizes")
    kernel = tuple(n // made for n, made in zip(sizes, output_size))
    if kernel[0] * kernel[1] <= MOST_PLACES:
        return _average(c, self, kernel, kernel, (0, 0), None)
    (down, across), (high, wide), rank = output_size, kernel, self.rank
    apart = c.reshape(c.up(self), (*self.sizes[:-2], down, high, across, wide))
    return c.down(c.mean(apart, (rank - 1, rank + 1), keepdim=False))


def _average(
    c: Lowering, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    divisor: Number | None,
) -> Value:
    total = reduce(Value.__add__, _places(c, c.up(x), kernel, stride, padding, (1, 1), 0.0))
    return c.down(total / float(kernel[0] * kernel[1] if divisor is None else divisor))


def _decline(c: Lowering, x: Value) -> None:
    known = (*x.sizes, *c.result.sizes, *(n for arg in c.op.args if isinstance(arg, tuple) for n in arg))
    decline_if(any(isinstance(n, Scalar) for n in known) or 0 in (*x.sizes, *c.result.sizes), "sizes")
    decline_if(not is_float(x.dtype) or x.rank < 3, "operand")


def _places(
    c: Lowering, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], value: float,
) -> list[Value]:
    """For each place of the window, what all windows have there; `value` outside the image."""
    decline_if(kernel[0] * kernel[1] > MOST_PLACES, "a large window")
    first, made = x.rank - 2, c.result.sizes[-2:]
    reaches = [
        (made[k] - 1) * stride[k] + dilation[k] * (kernel[k] - 1) + 1 for k in (0, 1)]
    high = [max(0, reaches[k] - x.sizes[first + k] - padding[k]) for k in (0, 1)]
    if any(padding) or any(high):
        decline_if(
            x.type.device == "cpu" and x.type.strides[first - 1] == 1 and x.sizes[first - 1] > 1,
            "the library's vectors along the channels are faster than masks")
        none = (0,) * first
        sizes = (*x.sizes[:first], *(x.sizes[first + k] + padding[k] + high[k] for k in (0, 1)))
        x = c.emit("pad", [x], x.dtype, sizes, low=(*none, *padding), high=(*none, *high),
                   value=value)
    rows = [
        c.slice(x, first, row * dilation[0], made[0], stride[0]) for row in range(kernel[0])]
    return [
        c.slice(row, first + 1, column * dilation[1], made[1], stride[1])
        for row in rows for column in range(kernel[1])]


def _pair(values: Arg) -> tuple[int, ...]:
    """One number for both axes; none where none is given."""
    values = values if isinstance(values, tuple) else (values,)
    return values * 2 if len(values) == 1 else values


ROWS: dict[str, Callable] = {
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.avg_pool2d.default": average_pool,
    "aten._adaptive_avg_pool2d.default": adaptive_average_pool,
}
