"""Activations and the losses that are elementwise.

    aten.gelu.default(x, approximate='none')   ->   0.5 * x * (1 + erf(x / sqrt(2)))

Written as eager computes them (aten/src/ATen/native/cpu/Activation.cpp), NaN in, NaN out, in
float32 for 16-bit floats with one rounding at the end.
"""

import math
from collections.abc import Callable

from preheat.ir.graph import Arg
from preheat.ir.scalar import Number
from preheat.transform.lowering import Lowering, Value, decline_if, is_float, is_known


def activation(body: Callable) -> Callable:
    """A row whose `body(c, x, **arguments)` is computed in the result's dtype and rounded once."""

    def row(c: Lowering, self: Value, **arguments: Arg) -> Value:
        decline_if(not is_float(c.result.dtype), f"activation of {c.result.dtype}")
        return c.down(body(c, c.up(self, c.result.dtype), **arguments))

    return row


def relu(c: Lowering, self: Value) -> Value:
    return c.down(c.binary("maximum", c.up(self), 0)) if self.dtype != "bool" else self


def gelu(c: Lowering, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (c.unary("tanh", inner) + 1)
    return 0.5 * x * (c.unary("erf", x * math.sqrt(0.5)) + 1)


def silu(c: Lowering, x: Value) -> Value:
    return x * c.unary("sigmoid", x)


def elu(
    c: Lowering, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    negative = c.unary("expm1", x * input_scale) * (alpha * scale)
    return c.where(x <= 0, negative, x * scale)


def celu(c: Lowering, x: Value, alpha: Number = 1) -> Value:
    decline_if(not is_known(alpha), "a number that is computed at run time")
    return elu(c, x, alpha, 1, 1 / alpha)


def leaky_relu(c: Lowering, x: Value, negative_slope: Number = 0.01) -> Value:
    return c.where(x > 0, x, x * negative_slope)


def prelu(c: Lowering, self: Value, weight: Value) -> Value:
    x, w = c.up(self), c.up(weight)
    return c.down(c.where(x > 0, x, w * x))


def _between(c: Lowering, x: Value, low: Number, high: Number) -> Value:
    return c.binary("minimum", c.binary("maximum", x, low), high)


def hardtanh(c: Lowering, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    return _between(c, x, min_val, max_val)


def hardsigmoid(c: Lowering, x: Value) -> Value:
    return _between(c, x + 3, 0, 6) / 6


def hardswish(c: Lowering, x: Value) -> Value:
    return x * _between(c, x + 3, 0, 6) / 6


def softplus(c: Lowering, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    scaled = x * beta
    return c.where(scaled > threshold, x, c.unary("log1p", c.unary("exp", scaled)) / beta)


def mish(c: Lowering, x: Value) -> Value:
    return x * c.unary("tanh", c.unary("log1p", c.unary("exp", x)))


def _log_sigmoid(c: Lowering, x: Value) -> tuple[Value, Value]:
    decayed = c.unary("exp", -c.unary("abs", x))
    return c.binary("minimum", x, 0) - c.unary("log1p", decayed), decayed


def log_sigmoid_forward(c: Lowering, self: Value) -> tuple:
    """The buffer holds exp(-|x|) on the CPU and nothing elsewhere."""
    made, decayed = _log_sigmoid(c, c.up(self))
    buffer = c.op.types[1]
    if buffer.sizes != self.sizes:
        decline_if(0 not in buffer.sizes, "a buffer of other sizes")
        return c.down(made), c.full(0, buffer.sizes, buffer.dtype)
    return c.down(made), c.down(decayed, buffer.dtype)


def logit(c: Lowering, x: Value, eps: Number | None = None) -> Value:
    if eps is not None:
        high = c.where(x > 1 - eps, 1 - eps, x)
        x = c.where(x < eps, eps, high)  # which may be above the other bound
    return c.unary("log", x / (1 - x))


def softshrink(c: Lowering, self: Value, lambd: Number = 0.5) -> Value:
    x = c.cast(self, "float32") if self.dtype in ("float16", "bfloat16") else self
    shrunk = c.where(x > lambd, x - lambd, c.where(x < -lambd, x + lambd, x * 0))
    return c.down(shrunk)


def hardshrink(c: Lowering, self: Value, lambd: Number = 0.5) -> Value:
    x = c.cast(self, "float32") if self.dtype in ("float16", "bfloat16") else self
    inside = c.binary("logical_and", x >= -lambd, x <= lambd)
    return c.down(c.where(inside, 0, x))


def threshold(c: Lowering, self: Value, threshold: Number, value: Number) -> Value:
    x = c.cast(self, "float32") if self.dtype in ("float16", "bfloat16") else self
    return c.down(c.where(x <= threshold, value, x))


def glu(c: Lowering, self: Value, dim: int = -1) -> Value:
    axis = c.axis(dim, self)
    half = self.sizes[axis] // 2
    x, gate = c.up(c.slice(self, axis, 0, half)), c.up(c.slice(self, axis, half, half))
    return c.down(x * c.unary("sigmoid", gate))


# ---------------------------------------------------------------------------- losses
def loss(body: Callable) -> Callable:
    """A row of an elementwise loss: reduction 0 none, 1 mean, 2 sum."""

    def row(c: Lowering, self: Value, target: Value, reduction: int = 1, **arguments: Arg) -> Value:
        decline_if(not is_float(c.result.dtype), "loss of integers")
        wide = c.up(self, c.result.dtype), c.up(target, c.result.dtype)
        made = body(c, *wide, **arguments)
        axes = range(made.rank)
        if reduction:
            made = (
                c.mean(made, axes, False) if reduction == 1 else c.reduce("sum", made, axes, False)
            )
        return c.down(made)

    return row


def squared_error(c: Lowering, x: Value, y: Value) -> Value:
    return (x - y) * (x - y)


def smooth_l1(c: Lowering, x: Value, y: Value, beta: Number = 1.0) -> Value:
    distance = c.unary("abs", x - y)
    if beta == 0:
        return distance
    return c.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta)


def huber(c: Lowering, x: Value, y: Value, delta: Number = 1.0) -> Value:
    distance = c.unary("abs", x - y)
    return c.where(distance <= delta, 0.5 * distance * distance, (distance - 0.5 * delta) * delta)


ROWS: dict[str, Callable] = {
    "aten.relu.default": relu, "aten.gelu.default": activation(gelu),
    "aten.silu.default": activation(silu),
    "aten.elu.default": activation(elu), "aten.celu.default": activation(celu),
    "aten.leaky_relu.default": activation(leaky_relu),
    "aten._prelu_kernel.default": prelu, "aten.hardtanh.default": activation(hardtanh),
    "aten.hardsigmoid.default": activation(hardsigmoid),
    "aten.hardswish.default": activation(hardswish),
    "aten.softplus.default": activation(softplus), "aten.mish.default": activation(mish),
    "aten.log_sigmoid_forward.default": log_sigmoid_forward,
    "aten.logit.default": activation(logit),
    "aten.softshrink.default": softshrink, "aten.hardshrink.default": hardshrink,
    "aten.threshold.default": threshold, "aten.glu.default": glu,
    "aten.mse_loss.default": loss(squared_error), "aten.smooth_l1_loss.default": loss(smooth_l1),
    "aten.huber_loss.default": loss(huber),
}
