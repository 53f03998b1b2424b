"""Formulas: the derivatives of ops that are given numbers which change, as torch has them.

    with_formula(op, .., {"self": x, "negative_slope": v})      y = leaky_relu(x, v), a node of autograd of our own
    backward                                                    leaky_relu_backward(grad, x, v, False): v is an operand

Torch's own nodes save a number as it is, so a backward that is recorded would be that of this one number, and
what C computes with it (1 - weight) is not seen. Here each is a symbol (`bridge/symint.py`) in the forward and in the
formula, which is written in the very ops that torch's is. A row says which parameters of an op may change, and
what of the operands and results ("result1") the formula takes; nothing else is saved, so a change to other memory
is no error, as in eager.

Source: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from preheat.bridge.ops import functional, overload
from preheat.bridge.symint import unboxed


class Row(NamedTuple):
    """gradients   given all arguments that are no tensors, the saved tensors, `grad` (of the first result) and
    `needs` (the operands whose gradients are wanted), gives those by name; tests: (parameter, comparison, number):
    what the formula is for"""

    numbers: tuple[str, ...]
    saves: tuple[str, ...]
    gradients: Callable[[SimpleNamespace], dict[str, Any]]
    tests: tuple[tuple[str, str, float], ...] = ()


def row_of(name: str) -> Row | None:
    """That of an op, or of one that writes what it gives."""
    return ROWS.get(name) or (ROWS.get(functional(name) or "") if name.startswith("aten.") else None)


def with_formula(
    name: str, call: Callable[[dict], Any], given: dict[str, Any], is_symbolic: Callable[[], bool],
    differentiable: Sequence[bool],
) -> Any:
    """What `call(given)` gives, the op `name`, with a history of our own.

    is_symbolic      whether symbols are taken now; where not, ops are given plain numbers
    differentiable   which of the results are
    """
    operands = [key for key, value in given.items() if isinstance(value, torch.Tensor)]
    results = _Node.apply(
        _Call(ROWS[name], call, given, operands, is_symbolic, differentiable), *(given[key] for key in operands))
    return results if len(differentiable) > 1 else results[0]


class _Call(NamedTuple):
    row: Row
    call: Callable[[dict], Any]
    given: dict[str, Any]
    operands: list[str]
    is_symbolic: Callable[[], bool]
    differentiable: Sequence[bool]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple:
        ctx.set_materialize_grads(False)
        found = call.given | dict(zip(call.operands, tensors))
        made = call.call(found)
        results = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        ctx.mark_non_differentiable(*(r for r, is_own in zip(results, call.differentiable) if not is_own))
        found |= {f"result{k}" if k else "result": result for k, result in enumerate(results)}
        ctx.names = [key for key in call.row.saves if isinstance(found[key], torch.Tensor)]
        ctx.save_for_backward(*(found[key] for key in ctx.names))
        ctx.rest = {key: value for key, value in found.items() if not isinstance(value, torch.Tensor)}
        ctx.row, ctx.operands, ctx.is_symbolic = call.row, call.operands, call.is_symbolic
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        if grads[0] is None:
            return (None,) * (1 + len(ctx.operands))
        rest = ctx.rest if ctx.is_symbolic() else unboxed(ctx.rest)
        needs = {key for key, is_needed in zip(ctx.operands, ctx.needs_input_grad[1:]) if is_needed}
        found = ctx.row.gradients(SimpleNamespace(
            **dict(zip(ctx.names, ctx.saved_tensors)), **rest, grad=grads[0], needs=needs))
        return None, *(found.get(key) if key in needs else None for key in ctx.operands)


def _op(name: str) -> Callable:
    """The overload of this name, looked up when it is first called."""
    return lambda *args, **kwargs: overload(name)(*args, **kwargs)


def _aten(name: str) -> Callable:
    return _op(f"aten.{name}.default")


# ---------------------------------------------------------------------------- activations
def _activation(numbers: str, gradient: Callable, saves: str = "self") -> Row:
    return Row(tuple(numbers.split()), tuple(saves.split()), lambda c: {"self": gradient(c)})


_elu_backward = _aten("elu_backward")
_where, _zero = _op("aten.where.self"), _aten("scalar_tensor")


def _celu(c: Any) -> torch.Tensor:
    return _elu_backward(c.grad, c.alpha, 1, 1.0 / c.alpha, False, c.self)


def _inside(c: Any, is_inside: torch.Tensor) -> torch.Tensor:
    return _where(is_inside, c.grad, _zero(0.0, dtype=c.grad.dtype, device=c.grad.device))


def _clamp(c: Any) -> torch.Tensor:
    if c.min is None or c.max is None:
        return _inside(c, c.self <= c.max if c.min is None else c.self >= c.min)
    return _inside(c, (c.self >= c.min).logical_and_(c.self <= c.max))


_ACTIVATIONS = {
    "leaky_relu": _activation("negative_slope", lambda c: _aten("leaky_relu_backward")(
        c.grad, c.self, c.negative_slope, False)),
    "elu": _activation("alpha scale input_scale", lambda c: _elu_backward(
        c.grad, c.alpha, c.scale, c.input_scale, False, c.self)),
    "celu": _activation("alpha", _celu),
    "softplus": _activation("beta threshold", lambda c: _aten("softplus_backward")(
        c.grad, c.self, c.beta, c.threshold)),
    "threshold": _activation("threshold value", lambda c: _aten("threshold_backward")(c.grad, c.self, c.threshold)),
    "hardshrink": _activation("lambd", lambda c: _aten("hardshrink_backward")(c.grad, c.self, c.lambd)),
    "softshrink": _activation("lambd", lambda c: _aten("softshrink_backward")(c.grad, c.self, c.lambd)),
    "hardtanh": _activation("min_val max_val", lambda c: _aten("hardtanh_backward")(
        c.grad, c.self, c.min_val, c.max_val)),
    "clamp": _activation("min max", _clamp),
    "clamp_min": _activation("min", lambda c: _inside(c, c.self >= c.min)),
    "clamp_max": _activation("max", lambda c: _inside(c, c.self <= c.max)),
    "logit": _activation("eps", lambda c: _op("preheat.given_logit_backward.default")(c.grad, c.self, c.eps)),
    "nan_to_num": _activation("nan posinf neginf", lambda c: c.grad * _aten("isfinite")(c.self)),
    "constant_pad_nd": _activation("value", lambda c: _aten("constant_pad_nd")(c.grad, [-n for n in c.pad], 0), ""),
}


# ---------------------------------------------------------------------------- arithmetic
def _mul(c: Any) -> dict:
    return {"self": c.grad * c.other}


def _add(c: Any) -> dict:
    return {"self": c.grad, "other": _times(c.grad, c.alpha) if "other" in c.needs else None}


def _sub(c: Any) -> dict:
    return {"self": c.grad, "other": _times(-c.grad, c.alpha) if "other" in c.needs else None}


def _rsub(c: Any) -> dict:
    return {"self": _times(-c.grad, c.alpha) if "self" in c.needs else None, "other": c.grad}


def _times(grad: torch.Tensor, number: Any) -> torch.Tensor:
    return grad if type(number) in (int, float) and number == 1 else grad * number


def _pow(c: Any) -> dict:
    return {"self": c.grad * (c.self.pow(c.exponent - 1) * c.exponent)}


def _power_of_number(c: Any) -> dict:
    base = overload("aten.full.default")((), c.self, dtype=torch.float64, device="cpu")
    return {"exponent": c.grad * (c.result * base.log())}


def _copysign(c: Any) -> dict:
    return {"self": c.grad * (c.result / c.self).masked_fill_(c.self == 0, 0)}


def _lerp(c: Any) -> dict:
    return {"self": c.grad * (1 - c.weight) if "self" in c.needs else None,
            "end": c.grad * c.weight if "end" in c.needs else None}


def _addcmul(c: Any) -> dict:
    return {"self": c.grad,
            "tensor1": c.grad * (c.tensor2 * c.value) if "tensor1" in c.needs else None,
            "tensor2": c.grad * (c.tensor1 * c.value) if "tensor2" in c.needs else None}


def _addcdiv(c: Any) -> dict:
    return {"self": c.grad,
            "tensor1": c.grad * c.tensor2.reciprocal().mul_(c.value) if "tensor1" in c.needs else None,
            "tensor2": -c.grad * ((c.tensor1 * c.value) / (c.tensor2 * c.tensor2)) if "tensor2" in c.needs else None}


def _passing(numbers: str, operand: str = "self") -> Row:
    return Row(tuple(numbers.split()), (), lambda c: {operand: c.grad})


def _index_add(c: Any) -> dict:
    return {"self": c.grad, "source": _times(
        c.grad.index_select(c.dim, c.index), c.alpha) if "source" in c.needs else None}


_ARITHMETIC = {
    "mul.Tensor": Row(("other",), (), _mul),
    "mul.Scalar": Row(("other",), (), _mul),
    "div.Tensor": Row(("other",), (), lambda c: {"self": c.grad / c.other}),
    "div.Scalar": Row(("other",), (), lambda c: {"self": c.grad / c.other}),
    "div.Tensor_mode": Row(("other",), (), lambda c: {"self": torch.zeros_like(c.grad)}),
    "add.Tensor": Row(("other", "alpha"), (), _add),
    "add.Scalar": Row(("other", "alpha"), (), _add),
    "sub.Tensor": Row(("other", "alpha"), (), _sub),
    "sub.Scalar": Row(("other", "alpha"), (), _sub),
    "rsub.Tensor": Row(("other", "alpha"), (), _rsub),
    "rsub.Scalar": Row(("other", "alpha"), (), _rsub),
    "pow.Tensor_Scalar": Row(("exponent",), ("self",), _pow, (("exponent", "ne", 0),)),
    "pow.Scalar": Row(("self",), ("result",), _power_of_number, (("self", "gt", 0),)),
    "xlogy.Scalar_Self": Row(("self",), ("other",), lambda c: {"other": c.grad * c.self / c.other}),
    "copysign.Scalar": Row(("other",), ("self", "result"), _copysign),
    "lerp.Scalar": Row(("weight",), (), _lerp),
    "addcmul.default": Row(("value",), ("tensor1", "tensor2"), _addcmul),
    "addcdiv.default": Row(("value",), ("tensor1", "tensor2"), _addcdiv),
    "remainder.Scalar": _passing("other"), "fmod.Scalar": _passing("other"),
    "remainder.Tensor": _passing("other"), "fmod.Tensor": _passing("other"),
    "masked_fill.Scalar": Row(("value",), ("mask",), lambda c: {"self": c.grad.masked_fill(c.mask, 0)}),
    "index_fill.int_Scalar": Row(("value",), ("index",), lambda c: {
        "self": c.grad.index_fill(c.dim, c.index, 0)}),
    "scatter.value": Row(("value",), ("index",), lambda c: {"self": c.grad.scatter(c.dim, c.index, 0)}),
    "index_add.default": Row(("alpha",), ("index",), _index_add),
    "fill.Scalar": Row(("value",), (), lambda c: {"self": torch.zeros_like(c.grad)}),
}


# ---------------------------------------------------------------------------- products
def _of_product(grads: Callable[[Any], dict]) -> Callable[[Any], dict]:
    """Of beta * self + alpha * product: `grads` has functions that give those of the factors."""
    def gradients(c: Any) -> dict:
        found = {name: _times(make(), c.alpha) for name, make in grads(c).items() if name in c.needs}
        return found | {"self": _times(c.grad, c.beta) if "self" in c.needs else None}

    return gradients


def _is_turned(matrix: torch.Tensor) -> bool:
    return matrix.stride(0) == 1 and matrix.stride(1) == matrix.size(0)


def _addmm(c: Any) -> dict:
    def first() -> torch.Tensor:
        return c.mat2.mm(c.grad.t()).t() if _is_turned(c.mat1) else c.grad.mm(c.mat2.t())

    def second() -> torch.Tensor:
        return c.grad.t().mm(c.mat1).t() if _is_turned(c.mat2) else c.mat1.t().mm(c.grad)

    return {"mat1": first, "mat2": second}


def _baddbmm(c: Any, grad: Callable[[], torch.Tensor] | None = None) -> dict:
    grad = grad or (lambda: c.grad)
    return {"batch1": lambda: grad().bmm(c.batch2.transpose(1, 2)),
            "batch2": lambda: c.batch1.transpose(1, 2).bmm(grad())}


def _addbmm(c: Any) -> dict:
    return _baddbmm(c, lambda: c.grad.unsqueeze(0).expand(c.batch1.size(0), c.batch1.size(1), c.batch2.size(2)))


_PRODUCTS = {
    "addmm": (("mat1", "mat2"), _addmm),
    "baddbmm": (("batch1", "batch2"), _baddbmm),
    "addbmm": (("batch1", "batch2"), _addbmm),
    "addmv": (("mat", "vec"), lambda c: {
        "mat": lambda: c.grad.ger(c.vec), "vec": lambda: c.mat.t().mv(c.grad)}),
    "addr": (("vec1", "vec2"), lambda c: {
        "vec1": lambda: c.grad.mv(c.vec2), "vec2": lambda: c.grad.t().mv(c.vec1)}),
}


# ---------------------------------------------------------------------------- norms, losses, attention
def _mask(c: Any, *names: str) -> list[bool]:
    return [name in c.needs for name in names]


def _layer_norm(c: Any) -> dict:
    names = ("input", "weight", "bias")
    return dict(zip(names, _aten("native_layer_norm_backward")(
        c.grad, c.input, c.normalized_shape, c.result1, c.result2, c.weight, c.bias, _mask(c, *names))))


def _group_norm(c: Any) -> dict:
    names = ("input", "weight", "bias")
    return dict(zip(names, _aten("native_group_norm_backward")(
        c.grad.contiguous(), c.input.contiguous(), c.result1, c.result2, c.weight, c.N, c.C, c.HxW, c.group,
        _mask(c, *names))))


def _batch_norm(c: Any, mean: str = "result3", variance: str = "result4") -> dict:
    names, given = ("input", "weight", "bias"), vars(c)
    return dict(zip(names, _op("preheat.given_native_batch_norm_backward.default")(
        c.grad, c.input, c.weight, given[mean], given[variance], c.result1, c.result2, c.training, c.eps,
        _mask(c, *names))))


def _loss(name: str, number: str) -> Row:
    def gradients(c: Any) -> dict:
        backward = _op(f"preheat.given_{name}_backward.default")
        pairs = {"self": (c.self, c.target), "target": (c.target, c.self)}
        return {key: backward(c.grad, *pair, c.reduction, vars(c)[number])
                for key, pair in pairs.items() if key in c.needs}

    return Row((number,), ("self", "target"), gradients)


def _attention(c: Any) -> dict:
    return dict(zip(("query", "key", "value"), _op("preheat.given__scaled_dot_product_flash_attention_for_cpu_backward.default")(
        c.grad, c.query, c.key, c.value, c.result, c.result1, c.dropout_p, c.is_causal,
        attn_mask=c.attn_mask, scale=c.scale)))


_LAYERS = {
    "native_layer_norm": Row(("eps",), ("input", "weight", "bias", "result1", "result2"), _layer_norm),
    "native_group_norm": Row(("eps",), ("input", "weight", "result1", "result2"), _group_norm),
    "_native_batch_norm_legit_functional": Row(
        ("momentum", "eps"), ("input", "weight", "result1", "result2", "result3", "result4"), _batch_norm),
    "native_batch_norm": Row(
        ("momentum", "eps"), ("input", "weight", "result1", "result2", "running_mean", "running_var"),
        lambda c: _batch_norm(c, "running_mean", "running_var")),
    "huber_loss": _loss("huber_loss", "delta"),
    "smooth_l1_loss": _loss("smooth_l1_loss", "beta"),
    "multi_margin_loss": Row(("margin",), ("self", "target", "weight"), lambda c: {
        "self": _aten("multi_margin_loss_backward")(
            c.grad, c.self, c.target, c.p, c.margin, c.weight, c.reduction)}),
    "_scaled_dot_product_flash_attention_for_cpu": Row(
        ("scale",), ("query", "key", "value", "attn_mask", "result", "result1"), _attention),
}

ROWS: Mapping[str, Row] = {
    **{f"aten.{name}.default": row for name, row in (*_ACTIVATIONS.items(), *_LAYERS.items())},
    **{f"aten.{name}": row for name, row in _ARITHMETIC.items()},
    **{f"aten.{name}.default": Row(("beta", "alpha"), saves, _of_product(grads))
       for name, (saves, grads) in _PRODUCTS.items()},
}
