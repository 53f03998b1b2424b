"""Ops whose parameters C takes as plain floats, as operators of ours that take symbols.

    layer_norm(x, (8,), w, b, v)   ->   preheat.given_native_layer_norm(x, (8,), w, b, v)
                                        recorded, and run, as aten.native_layer_norm

An operator of ours differs from torch's in its schema alone: `Scalar` for `float`, so torch hands on a symbol. It
stands below autograd, so only calls without a gradient become one. Where C chooses by the number, it is asked first
(`_Row.above`); a number beyond that, nan among them, is left to C, and is pinned.

Source: layer_norm.cpp, group_norm.cpp, Normalization.cpp, Loss.cpp, Dropout.cpp of ATen/native.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.bridge.operators import Operator
from preheat.bridge.ops import overload, private
from preheat.bridge.losses import COMPOSED, batch_norm
from preheat.bridge.symint import is_safe
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor

_OPS = {f"preheat.given_{name.split('.')[0]}.default": f"aten.{name}" for name in (
    "native_layer_norm.default", "native_batch_norm.default", "native_group_norm.default", "huber_loss.default",
    "smooth_l1_loss.default", "bernoulli_.float", "nan_to_num.default", "logit.default",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    # of backwards, see `formulas.py`
    "native_batch_norm_backward.default", "huber_loss_backward.default", "smooth_l1_loss_backward.default",
    "logit_backward.default", "_scaled_dot_product_flash_attention_for_cpu_backward.default")}
_GIVEN = {meaning: own for own, meaning in _OPS.items()}


def meant(func: Any) -> Any:
    """The op that an operator of ours stands for; any other op itself."""
    name = _OPS.get(str(func)) if func.namespace == "preheat" else None
    return func if name is None else overload(name)


def taking_symbols(name: str) -> Any:
    """The op `name`, or what stands for it, that takes symbols for numbers."""
    return overload(_GIVEN.get(name, name))


def _given(name: str, *args: Any) -> Any:
    return overload(f"preheat.given_{name}.default")(*args)


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    return _given("native_layer_norm", input, normalized_shape, weight, bias, eps)[0]


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    return _given("native_batch_norm", input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    batch, channels, *rest = input.shape
    elems = 1
    for size in rest:
        elems = elems * size
    return _given("native_group_norm", input, weight, bias, batch, channels, elems, num_groups, eps)[0]


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    axes = [input.dim() - k - 1 for k in range(len(normalized_shape))]
    made = input.mul(input.pow(2).mean(axes, True).add_(eps).rsqrt())
    return (made if weight is None else made.mul(weight)).contiguous()


def _huber_loss(input, target, reduction=1, delta=1.0):
    return _given("huber_loss", input, target, reduction, delta)


def _smooth_l1_loss(input, target, reduction=1, beta=1.0):
    return _given("smooth_l1_loss", input, target, reduction, beta)


def _logit(self, eps=None):
    return _given("logit", self, eps)


def _nan_to_num(input, nan=None, posinf=None, neginf=None):
    return _given("nan_to_num", input, nan, posinf, neginf)


detach, multiply = torch.detach, torch.mul


def noise(like: Any, p: Any) -> Any:
    """What dropout multiplies with, of the sizes of `like`: 0, or 1 / (1 - p)."""
    kept = 1 - p
    return _given("bernoulli_", torch.empty_like(like), kept).div_(kept)


@dataclass(frozen=True)
class _Row:
    """The call, which of its parameters may be symbols, above what these have to be, and at most. is_called: it may be
    made in place of the program's, where autograd has no part in it; else it only says what that consists of."""

    made: Callable
    numbers: tuple[str, ...]
    above: float | None = None
    is_fit: Callable[[dict], bool] = lambda given: True
    most: float | None = None
    is_called: bool = True


def _is_batch(given: dict) -> bool:
    x = given["input"]
    lines = [given[name] for name in ("weight", "bias", "running_mean", "running_var")]
    return x.is_cpu and x.dim() > 1 and x.numel() > 0 and all(
        line is None or tuple(line.shape) == (x.shape[1],) for line in lines) and (
        given["training"] is True or None not in lines[2:])


def _is_group(given: dict) -> bool:
    x, groups = given["input"], given["num_groups"]
    lines = given["weight"], given["bias"]
    return x.is_cpu and x.dim() > 1 and x.numel() > 0 and x.is_contiguous() and type(groups) is int and groups > 0 and (
        x.shape[1] % groups == 0) and all(line is None or tuple(line.shape) == (x.shape[1],) for line in lines)


def _is_rms(given: dict) -> bool:
    x, shape = given["input"], tuple(given["normalized_shape"])
    weight = given["weight"]
    return x.is_cpu and x.dtype in (torch.float32, torch.float64) and len(shape) > 0 and (
        tuple(x.shape)[-len(shape):] == shape and (weight is None or weight.dtype is x.dtype and tuple(weight.shape) == shape))


_ROWS = {
    torch.layer_norm: _Row(_layer_norm, ("eps",)),
    torch.batch_norm: _Row(_batch_norm, ("momentum", "eps"), is_fit=_is_batch),
    torch.group_norm: _Row(_group_norm, ("eps",), is_fit=_is_group),
    torch.rms_norm: _Row(_rms_norm, ("eps",), is_fit=_is_rms),
    private("_C._nn.huber_loss"): _Row(_huber_loss, ("delta",), 0.0),
    private("_C._nn.smooth_l1_loss"): _Row(_smooth_l1_loss, ("beta",), 0.0),
    torch.logit: _Row(_logit, ("eps",), 0.0),
    torch.nan_to_num: _Row(_nan_to_num, ("nan", "posinf", "neginf")),
}
_ROWS |= {
    function: _Row(made, numbers, above, most=most, is_called=False)
    for function, (made, numbers, above, most) in COMPOSED.items() if function is not None}
_METHODS = {getattr(Tensor, f.__name__): f for f in (
    torch.logit, torch.nan_to_num, torch.float_power, torch.quantile, torch.nanquantile)}
_KINDS = frozenset(map(type, (*_ROWS, *_METHODS)))
_SIGNATURES = {function: inspect.signature(row.made) for function, row in _ROWS.items()}


def numbered(
    function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any], calculate: Callable,
) -> tuple[Any, tuple, dict] | None:
    """The call that does the same as `function` of `args` and takes symbols; None of any other function, or call.

    numbers     holds the ids of the objects that are runtime numbers
    calculate   answers a comparison of one, which holds from then on
    """
    row = _row_of(function)
    if row is None or not row.is_called or function is not torch.rms_norm and not is_safe(args, dict(kwargs)):
        return None  # an RMS norm consists of ops for autograd, too
    given = _given_to(function, row, args, kwargs, numbers, calculate)
    return None if given is None else (row.made, given.args, {})


def composed(
    function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any], calculate: Callable,
) -> Callable | None:
    """What does the same as `function` in ops that take symbols, as `numbered`, where it is not made in its place."""
    is_method = type(function) in _KINDS and function in _METHODS
    function = _METHODS[function] if is_method else function
    row = _row_of(function)
    if row is None or row.is_called and not is_method and is_safe(args, dict(kwargs)):
        return None
    made = batch_norm if function is torch.batch_norm else row.made
    return made if _given_to(function, row, args, kwargs, numbers, calculate) is not None else None


def _row_of(function: Any) -> _Row | None:
    return _ROWS.get(function) if type(function) in _KINDS else None


def _given_to(
    function: Any, row: _Row, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any], calculate: Callable,
) -> inspect.BoundArguments | None:
    try:
        bound = _SIGNATURES[function].bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    given = bound.arguments
    changing = [given[name] for name in row.numbers if identity(given[name]) in numbers and type(given[name]) is float]
    first = next(iter(given.values()))
    if not changing or type(first) not in PLAIN_TENSORS or not first.is_floating_point():
        return None
    if torch.is_autocast_enabled(first.device.type) or not row.is_fit(given):
        return None  # autocast knows the composite, which it casts for
    for test, bound_there in ((operator.gt, row.above), (operator.le, row.most)):
        if bound_there is not None and not all(calculate(test, (number, bound_there)) for number in changing):
            return None
    return bound


def dropped_out(function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Mapping[int, Any]) -> Any:
    """The probability of a dropout that changes, of one that is computed with a tensor of noise; else None."""
    if type(function) is not type(torch.dropout) or function != torch.dropout or kwargs or len(args) != 3:
        return None
    x, p, is_training = args
    is_known = type(x) is torch.Tensor and x.is_cpu and x.is_floating_point() and x.numel() > 0
    return p if is_known and is_training is True and identity(p) in numbers and type(p) is float else None


def _schema(name: str, op: Any) -> str:
    text = str(op._schema).split("::")[1]
    head, rest = text.split("(", 1)
    own = name.split(".")[1]
    given, results = rest.rsplit(") ->", 1)
    return f"{own}({given.replace('float? ', 'Scalar? ').replace('float ', 'Scalar ')}) ->{results}"


def _operator(name: str) -> Operator:
    op = overload(_OPS[name])
    return Operator(_schema(name, op), lambda *args, **kwargs: op(*args, **kwargs))


OPERATORS = {name: partial(_operator, name) for name in _OPS}
