"""Gradients: the overloads that torch's derivative formulas are written in.

    aten.tanh_backward.default(grad, y)                      ->  grad * (1 - y * y)
    aten.native_layer_norm_backward.default(grad, x, ...)    ->  rows of w * grad, their means taken off;
                                                                 sums over all rows for weight and bias

Formulas are those of torch (tools/autograd/derivatives.yaml and the kernels behind it), 16-bit floats
in float32 with one rounding at the end.
"""

import math
from collections.abc import Callable, Sequence

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number
from preheat.transform.decompositions.movement import slice_start
from preheat.transform.lowering import Lowering, Value, count, decline_if, is_float, is_known


# ---------------------------------------------------------------------------- activations
def elementwise(body: Callable) -> Callable:
    """A row of a gradient that follows from one position of each tensor operand."""

    def row(c: Lowering, **arguments: Arg) -> Value:
        decline_if(not is_float(c.result.dtype), "gradient of integers")
        wide = {
            name: c.up(arg) if isinstance(arg, Value) and is_float(arg.dtype) else arg
            for name, arg in arguments.items()}
        return c.down(body(c, **wide))

    return row


def tanh(c: Lowering, grad_output: Value, output: Value) -> Value:
    return grad_output * (1 - output * output)


def sigmoid(c: Lowering, grad_output: Value, output: Value) -> Value:
    return grad_output * ((1 - output) * output)


def silu(c: Lowering, grad_output: Value, self: Value) -> Value:
    share = c.unary("sigmoid", self)
    return grad_output * (share * (1 + self * (1 - share)))


def gelu(c: Lowering, grad_output: Value, self: Value, approximate: str = "none") -> Value:
    x = self
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        inner = scale * (x + 0.044715 * (x * x * x))
        bent = c.unary("tanh", inner)
        slope = scale * (1 + 3 * 0.044715 * (x * x))
        return grad_output * (0.5 * (1 + bent) + 0.5 * x * ((1 - bent * bent) * slope))
    below = 0.5 * (1 + c.unary("erf", x * math.sqrt(0.5)))
    density = c.unary("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (below + x * density)


def threshold(c: Lowering, grad_output: Value, self: Value, threshold: Number) -> Value:
    return c.where(self <= threshold, 0, grad_output)


def leaky_relu(
    c: Lowering, grad_output: Value, self: Value, negative_slope: Number, self_is_result: bool,
) -> Value:
    return c.where(self > 0, grad_output, grad_output * negative_slope)


def hardtanh(
    c: Lowering, grad_output: Value, self: Value, min_val: Number, max_val: Number,
) -> Value:
    inside = c.binary("logical_and", self > min_val, self < max_val)
    return c.where(inside, grad_output, 0)


def hardswish(c: Lowering, grad_output: Value, self: Value) -> Value:
    sloped = c.where(self >= 3, grad_output, grad_output * (self / 3 + 0.5))
    return c.where(self <= -3, 0, sloped)


def hardsigmoid(c: Lowering, grad_output: Value, self: Value) -> Value:
    inside = c.binary("logical_and", self > -3, self < 3)
    return c.where(inside, grad_output * (1 / 6), 0)


def elu(
    c: Lowering, grad_output: Value, alpha: Number, scale: Number, input_scale: Number,
    is_result: bool, self_or_result: Value,
) -> Value:
    x = self_or_result
    if is_result:
        below = grad_output * input_scale * (x + alpha * scale)
    else:
        below = grad_output * (input_scale * alpha * scale) * c.unary("exp", x * input_scale)
    return c.where(x > 0, grad_output * scale, below)


def dropout(c: Lowering, grad_output: Value, mask: Value, scale: Number) -> Value:
    return grad_output * c.cast(mask, grad_output.dtype) * scale


def squared_error(
    c: Lowering, grad_output: Value, self: Value, target: Value, reduction: int,
) -> Value:
    decline_if(0 in self.sizes, "loss of nothing")
    factor = 2 / math.prod(self.sizes) if reduction == 1 else 2
    return factor * (self - target) * grad_output


# ---------------------------------------------------------------------------- softmax and losses
def softmax(
    c: Lowering, grad_output: Value, output: Value, dim: int, input_dtype: Arg = None,
) -> Value:
    decline_if(output.rank == 0 or 0 in output.sizes, "operand")
    grad, y, axes = c.up(grad_output), c.up(output), (c.axis(dim, output),)
    weighted = grad * y
    return c.down(weighted - y * c.reduce("sum", weighted, axes))


def log_softmax(
    c: Lowering, grad_output: Value, output: Value, dim: int, input_dtype: Arg = None,
) -> Value:
    decline_if(output.rank == 0 or 0 in output.sizes, "operand")
    grad, y, axes = c.up(grad_output), c.up(output), (c.axis(dim, output),)
    return c.down(grad - c.unary("exp", y) * c.reduce("sum", grad, axes))


def nll_loss(
    c: Lowering, grad_output: Value, self: Value, target: Value, weight: Value | None,
    reduction: int, ignore_index: int, total_weight: Value,
) -> Value:
    """For each row minus the tangent where the class is the target's, 0 elsewhere."""
    decline_if(weight is not None or self.rank != 2 or 0 in self.sizes, "weights")
    grad = c.up(grad_output, c.result.dtype)
    if reduction == 1:
        grad = grad / c.up(total_weight, grad.dtype)
    rows, classes = self.sizes
    grad = c.expand(c.reshape(grad, (rows, 1) if reduction == 0 else (1, 1)), self.sizes)
    wanted = c.reshape(c.cast(target, "int64"), (rows, 1))
    is_target = c.binary("eq", c.iota(1, self.sizes), c.expand(wanted, self.sizes))
    if 0 <= ignore_index < classes:
        is_counted = c.binary("ne", c.expand(wanted, self.sizes), ignore_index)
        is_target = c.binary("logical_and", is_target, is_counted)
    return c.down(c.where(is_target, -grad, 0))


# ---------------------------------------------------------------------------- norms
def _normal(c: Lowering, grad: Value, normal: Value, rstd: Value, axes: Sequence[int]) -> Value:
    """The gradient of x for x_hat = (x - mean) * rstd, given that of x_hat."""
    along = c.mean(grad * normal, axes)
    return (grad - c.mean(grad, axes) - normal * along) * rstd


def _sum_into(c: Lowering, x: Value, axes: Sequence[int], place: int) -> Value:
    return _result(c, c.reduce("sum", x, axes, False), place)


def _result(c: Lowering, value: Value, place: int) -> Value:
    """`value` in the recorded sizes and dtype of a result."""
    type = c.op.types[place]
    return c.down(c.reshape(value, type.sizes), type.dtype)


def layer_norm(
    c: Lowering, grad_out: Value, input: Value, normalized_shape: Arg, mean: Value, rstd: Value,
    weight: Value | None, bias: Value | None, output_mask: Arg,
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes, "operand")
    grad, x = c.up(grad_out), c.up(input)
    first = input.rank - len(normalized_shape)
    rows, axes = tuple(range(first)), tuple(range(first, input.rank))
    mean, rstd = c.up(mean, x.dtype), c.up(rstd, x.dtype)
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * c.up(weight, x.dtype)
    return (
        c.down(_normal(c, scaled, normal, rstd, axes)) if output_mask[0] else None,
        _sum_into(c, grad * normal, rows, 1) if output_mask[1] else None,
        _sum_into(c, grad, rows, 2) if output_mask[2] else None,
    )


def rms_norm(
    c: Lowering, grad_out: Value, input: Value, normalized_shape: Arg, rstd: Value,
    weight: Value | None, output_mask: Arg,
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes, "operand")
    grad, x = c.up(grad_out), c.up(input)
    first = input.rank - len(normalized_shape)
    rows, axes = tuple(range(first)), tuple(range(first, input.rank))
    rstd = c.up(rstd, x.dtype)
    normal = x * rstd
    scaled = grad if weight is None else grad * c.up(weight, x.dtype)
    along = c.mean(scaled * normal, axes)
    return (
        c.down((scaled - normal * along) * rstd) if output_mask[0] else None,
        _sum_into(c, grad * normal, rows, 1) if output_mask[1] else None,
    )


def batch_norm(
    c: Lowering, grad_out: Value, input: Value, weight: Value | None, running_mean: Value | None,
    running_var: Value | None, save_mean: Value | None, save_invstd: Value | None, train: bool,
    eps: Number, output_mask: Arg,
) -> tuple:
    decline_if(not is_float(input.dtype) or 0 in input.sizes, "operand")
    grad, x = c.up(grad_out), c.up(input)
    channels = (1, input.sizes[1]) + (1,) * (input.rank - 2)
    axes = (0, *range(2, input.rank))

    def each(value: Value) -> Value:
        return c.reshape(c.up(value, x.dtype), channels)

    if train:
        mean, rstd = each(save_mean), each(save_invstd)
    else:
        mean, rstd = each(running_mean), c.unary("rsqrt", each(running_var) + eps)
    centred = x - mean
    total, along = c.reduce("sum", grad, axes), c.reduce("sum", grad * centred, axes)
    scale = rstd if weight is None else rstd * each(weight)
    elems = count(x, axes)
    own = grad - total / elems - centred * (along * (rstd * rstd) / elems) if train else grad
    return (
        c.down(own * scale) if output_mask[0] else None,
        _result(c, along * rstd, 1) if output_mask[1] else None,
        _result(c, total, 2) if output_mask[2] else None,
    )


# ---------------------------------------------------------------------------- views
def slice_(
    c: Lowering, grad_output: Value, input_sizes: Arg, dim: int, start: int, end: int, step: int,
) -> Value:
    decline_if(not all(map(is_known, input_sizes)) or 0 in grad_output.sizes, "symbolic sizes")
    axis = dim % len(input_sizes)
    first = slice_start(input_sizes[axis], start)
    return c.place(c.full(0, input_sizes, c.result.dtype), grad_output, axis, first, step)


def select(
    c: Lowering, grad_output: Value, input_sizes: Arg, dim: int, index: int,
) -> Value:
    decline_if(not all(map(is_known, (*input_sizes, index))) or 0 in input_sizes, "symbolic sizes")
    axis = dim % len(input_sizes)
    part = c.reshape(grad_output, (*input_sizes[:axis], 1, *input_sizes[axis + 1:]))
    first = index + input_sizes[axis] if index < 0 else index
    return c.place(c.full(0, input_sizes, c.result.dtype), part, axis, first)


ROWS: dict[str, Callable] = {
    "aten.tanh_backward.default": elementwise(tanh),
    "aten.sigmoid_backward.default": elementwise(sigmoid),
    "aten.silu_backward.default": elementwise(silu),
    "aten.gelu_backward.default": elementwise(gelu),
    "aten.threshold_backward.default": elementwise(threshold),
    "aten.leaky_relu_backward.default": elementwise(leaky_relu),
    "aten.hardtanh_backward.default": elementwise(hardtanh),
    "aten.hardswish_backward.default": elementwise(hardswish),
    "aten.hardsigmoid_backward.default": elementwise(hardsigmoid),
    "aten.elu_backward.default": elementwise(elu),
    "aten.native_dropout_backward.default": elementwise(dropout),
    "aten.mse_loss_backward.default": elementwise(squared_error),
    "aten._softmax_backward_data.default": softmax,
    "aten._log_softmax_backward_data.default": log_softmax,
    "aten.nll_loss_backward.default": nll_loss,
    "aten.native_layer_norm_backward.default": layer_norm,
    "aten._fused_rms_norm_backward.default": rms_norm,
    "aten.native_batch_norm_backward.default": batch_norm,
    "aten.slice_backward.default": slice_,
    "aten.select_backward.default": select,
}
