"""Normalization: layer, RMS, group and batch norm.

    aten.native_layer_norm.default(x: [B, D], (D,), w, b, eps)
      ->  mean = sum(x, 1) / D;  c = x - mean;  rstd = rsqrt(sum(c * c, 1) / D + eps)
          out = c * rstd * w + b

Statistics in float32 for 16-bit floats, the output rounded once. Batch norm that trains gives its running
statistics anew; on a CPU it is one kernel with what is done to its output.
"""

from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number
from preheat.transform.lowering import Lowering, Value, count, decline_if, is_float


_ULP = {"float32": 2.0 ** -23, "float64": 2.0 ** -52}


def _standardise(
    c: Lowering, x: Value, axes: tuple[int, ...], eps: Number
) -> tuple[Value, Value, Value]:
    """x with mean 0 and variance 1 over `axes`; the mean; 1 / standard deviation."""
    mean = c.mean(x, axes)
    if c.result.device == "cpu":
        mean = _or_first(c, x, axes, mean)
    centred = x - mean
    rstd = c.unary("rsqrt", c.mean(centred * centred, axes) + eps)
    return centred * rstd, mean, rstd


def _or_first(c: Lowering, x: Value, axes: tuple[int, ...], mean: Value) -> Value:
    """The mean of x; the first element, where that is within 4 ulp of it.

    A sum rounds, so the mean of elements that are all equal may be another number than they are, by an ulp or two, and
    what is left of them is multiplied by up to 1 / sqrt(eps). With eager, which takes means by Welford's method, nothing
    is left. To take another mean within its own error changes no other row more than that error does.
    """
    first = x
    for axis in axes:
        first = c.first(first, axis)
    is_mean = c.unary("abs", first - mean) <= c.unary("abs", first) * (4 * _ULP[x.dtype])
    return c.where(is_mean, first, mean)


def _affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _statistic(c: Lowering, place: int, value: Value) -> Value:
    """A mean or rstd in the recorded sizes and dtype."""
    type = c.op.types[place]
    return c.down(c.reshape(value, type.sizes), type.dtype)


def _up(c: Lowering, x: Value | None, dtype: str) -> Value | None:
    return None if x is None else c.up(x, dtype)


def layer_norm(
    c: Lowering,
    input: Value,
    normalized_shape: Arg,
    weight: Value | None,
    bias: Value | None,
    eps: Number,
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes, "operand")
    x = c.up(input)
    axes = tuple(range(input.rank - len(normalized_shape), input.rank))
    normal, mean, rstd = _standardise(c, x, axes, eps)
    out = _affine(normal, _up(c, weight, x.dtype), _up(c, bias, x.dtype))
    return c.down(out), _statistic(c, 1, mean), _statistic(c, 2, rstd)


def rms_norm(
    c: Lowering, input: Value, normalized_shape: Arg, weight: Value | None, eps: Number | None
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes or eps is None, "operand")
    x = c.up(input)
    axes = tuple(range(input.rank - len(normalized_shape), input.rank))
    rstd = c.unary("rsqrt", c.mean(x * x, axes) + eps)
    return c.down(_affine(x * rstd, _up(c, weight, x.dtype), None)), _statistic(c, 1, rstd)


def group_norm(
    c: Lowering,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Number,
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes, "operand")
    x = c.reshape(c.up(input), (N, group, (C // group) * HxW))
    normal, mean, rstd = _standardise(c, x, (2,), eps)
    channels = (1, C) + (1,) * (input.rank - 2)
    weight, bias = (
        None if v is None else c.reshape(c.up(v, x.dtype), channels) for v in (weight, bias)
    )
    out = _affine(c.reshape(normal, input.sizes), weight, bias)
    return c.down(out), _statistic(c, 1, mean), _statistic(c, 2, rstd)


def batch_norm(
    c: Lowering, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, eps: Number, training: bool = False, **_: Arg,
) -> tuple:
    if training:
        decline_if(running_mean is not None or running_var is not None, "running statistics")
        return _batch_statistics(c, input, weight, bias, eps)[0]
    decline_if(running_mean is None or running_var is None, "no statistics")
    decline_if(not is_float(input.dtype), "operand")
    x = c.up(input)
    channels = (1, input.sizes[1]) + (1,) * (input.rank - 2)
    # One factor a channel, as eager has it; the mean is taken off first, which rounds less.
    scale = c.unary("rsqrt", c.up(running_var, x.dtype) + eps)
    scale = scale if weight is None else scale * c.up(weight, x.dtype)
    centred = x - c.reshape(c.up(running_mean, x.dtype), channels)
    shift = None if bias is None else c.reshape(c.up(bias, x.dtype), channels)
    out = _affine(centred, c.reshape(scale, channels), shift)
    return c.down(out), *(_empty(c, place) for place in range(1, len(c.op.types)))


def batch_norm_functional(
    c: Lowering, input: Value, weight: Value | None, bias: Value | None, running_mean: Value,
    running_var: Value, training: bool, momentum: Number, eps: Number,
) -> tuple:
    """As batch norm that trains, with its running statistics anew."""
    decline_if(not training, "inference")
    results, mean, variance = _batch_statistics(c, input, weight, bias, eps)
    elems = count(input, _all_but_channels(input))
    updated = (
        c.down(c.binary("mul", momentum, c.reshape(new, old.sizes))
               + c.binary("mul", 1 - momentum, c.up(old, new.dtype)), old.dtype)
        for new, old in ((mean, running_mean), (variance * (elems / (elems - 1)), running_var)))
    return *results, *updated


def _batch_statistics(
    c: Lowering, input: Value, weight: Value | None, bias: Value | None, eps: Number,
) -> tuple[tuple, Value, Value]:
    """The results of a batch norm by the statistics of its input; and these: mean and variance."""
    decline_if(not is_float(input.dtype), "operand")
    x, axes = c.up(input), _all_but_channels(input)
    decline_if(count(x, axes) < 2, "no variance")
    mean = c.mean(x, axes)
    centred = x - mean
    variance = c.mean(centred * centred, axes)
    rstd = c.unary("rsqrt", variance + eps)
    channels = (1, input.sizes[1]) + (1,) * (input.rank - 2)
    weight, bias = (
        None if v is None else c.reshape(c.up(v, x.dtype), channels) for v in (weight, bias))
    out = _affine(centred * rstd, weight, bias)
    return (c.down(out), _statistic(c, 1, mean), _statistic(c, 2, rstd)), mean, variance


def _all_but_channels(x: Value) -> tuple[int, ...]:
    return 0, *range(2, x.rank)


def _empty(c: Lowering, place: int) -> Value | None:
    """The saved statistics of inference: tensors without elements, on a GPU some that nobody reads.
    Others are left undefined."""
    type = c.op.types[place]
    if not c.is_read(place):
        return None
    decline_if(0 not in type.sizes, "saved statistics in inference")
    return c.full(0, type.sizes, type.dtype)


ROWS: dict[str, Callable] = {
    "aten.native_layer_norm.default": layer_norm,
    "aten._fused_rms_norm.default": rms_norm,
    "aten.native_group_norm.default": group_norm,
    "aten.native_batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    "aten._native_batch_norm_legit.default": batch_norm,
    "aten._batch_norm_no_update.default": batch_norm,
    "aten._native_batch_norm_legit_functional.default": batch_norm_functional,
}
