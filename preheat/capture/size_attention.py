"""Sizes of attention on a GPU: its kernels there are operators of their own.

Rules of `size_rules.py`, for query [B, H, L, E], key [B, G, S, E], value [B, G, S, Ev]. Some of the operators
give the lengths as numbers, too, which autograd keeps for their backward: `NUMBERS` says which sizes these are.
Source: aten/src/ATen/native/transformers/cuda/attention.cu and its shape functions in
torch/_meta_registrations.py.
"""

from typing import Any

from preheat.bridge.calls import IDENTITY_TYPES
from preheat.capture.size_call import Call, NoRule, Rule, Shape, broadcast, preserved
from preheat.ir.dims import normal
from preheat.ir.graph import Ref
from preheat.ir.scalar import Dim, apply
from preheat.ir.types import TensorType

_LOG_SUMS = 32  # the efficient kernel's log sums: a multiple of so many for a row


def _operands(call: Call) -> tuple[TensorType, TensorType, TensorType]:
    """Query, key and value, once their sizes fit."""
    query, key, value = call.type("query"), call.type("key"), call.type("value")
    call.same(query.sizes[0], key.sizes[0])
    call.same(key.sizes[0], value.sizes[0])
    call.same(key.sizes[1], value.sizes[1])
    if call.known(query.sizes[1]) % call.known(key.sizes[1]):
        raise NoRule("heads")
    call.same(key.sizes[2], value.sizes[2])
    call.same(query.sizes[3], key.sizes[3])
    if isinstance(call.args.get("attn_bias"), Ref):
        want = (query.sizes[0], query.sizes[1], query.sizes[2], key.sizes[2])
        broadcast(call, call.type("attn_bias").sizes, want)
    return query, key, value


def _by_position(type: TensorType, width: Dim) -> Shape:
    """[B, H, L, width], in memory as [B, L, H, width]."""
    batch, heads, length, _ = type.sizes
    strides = (length * heads * width, width, heads * width, 1)
    return (batch, heads, length, width), tuple(map(normal, strides))


def _others(call: Call, made: list[Shape]) -> list[Shape | None]:
    """`made`, and what does not hang on sizes: states of the generator, an empty debug mask."""
    return [*made, *(None for _ in call.real[len(made):])]


def _efficient(call: Call) -> list[Shape | None]:
    query, _, value = _operands(call)
    batch, heads, length, _ = query.sizes
    rows: Dim = 0
    if call.arg("compute_log_sumexp", False):
        rows = normal(apply("floordiv", length + (_LOG_SUMS - 1), _LOG_SUMS) * _LOG_SUMS)
    return _others(call, [_by_position(query, value.sizes[3]), ((batch, heads, rows), None)])


def _efficient_gradient(call: Call) -> list[Shape]:
    query, _, value = _operands(call)
    mask = call.arg("grad_input_mask", (True,) * 4)
    if len(mask) > 3 and mask[3] and isinstance(call.args.get("attn_bias"), Ref):
        raise NoRule("the gradient of a mask, which is padded")
    made = (
        _by_position(query, query.sizes[3]), _by_position(call.type("key"), query.sizes[3]),
        _by_position(value, value.sizes[3]))
    return list(made)


def _flash(call: Call) -> list[Shape | None]:
    query, key, value = _in_layout_of_query(call)
    if call.known(query.sizes[3]) % 8:
        raise NoRule("a width that is padded")
    if query.sizes[1] != key.sizes[1] and call.is_one(query.sizes[2]):
        raise NoRule("one position of grouped heads, which are turned")
    batch, heads, length, _ = query.sizes
    return _others(call, [preserved(call, query), ((batch, heads, length), None)])


def _cudnn(call: Call) -> list[Shape | None]:
    query, _, _ = _in_layout_of_query(call)
    batch, heads, length, _ = query.sizes
    logs = [((batch, heads, length, 1), None)] if call.arg("compute_log_sumexp", False) else []
    return _others(call, [preserved(call, query), *logs])


def _in_layout_of_query(call: Call) -> tuple[TensorType, TensorType, TensorType]:
    if call.arg("return_debug_mask", False):
        raise NoRule("a debug mask")
    query, key, value = _operands(call)
    call.same(query.sizes[3], value.sizes[3])
    return query, key, value


def _gradient(call: Call) -> list[Shape]:
    """Each as its operand."""
    _operands(call)
    return [preserved(call, call.type(name)) for name in ("query", "key", "value")]


ATTENTION: dict[Rule, str] = {
    _efficient: "_scaled_dot_product_efficient_attention",
    _efficient_gradient: "_scaled_dot_product_efficient_attention_backward",
    _flash: "_scaled_dot_product_flash_attention",
    _cudnn: "_scaled_dot_product_cudnn_attention",
    _gradient: "_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention_backward",
}
"""Rules, and the ops that they are of."""
_LENGTHS = {4: ("query", 2), 5: ("key", 2)}
NUMBERS: dict[str, dict[int, tuple[str, int]]] = {
    "aten._scaled_dot_product_flash_attention.default": _LENGTHS,
    "aten._scaled_dot_product_cudnn_attention.default": _LENGTHS,
}
"""By the full name of an op: the places of its results that are sizes, and the parameter and axis of each."""


def lengths_apart(args: tuple, results: Any) -> Any:
    """The results of a call whose first argument is an overload, without the numbers among them that are
    sizes of its operands."""
    is_overload = type(results) is tuple and args and type(args[0]) in IDENTITY_TYPES
    places = NUMBERS.get(str(args[0])) if is_overload else None
    if places is None:
        return results
    return tuple([part for place, part in enumerate(results) if place not in places])
