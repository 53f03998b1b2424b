"""Interpret: what a graph means, op by op through torch. The oracle of every rewrite and kernel.

    run(graph, [x, weight])  ->  [outputs]        and writes to the inputs, as the graph says

At level aten each op is its overload. At level core each row of `ops.CORE` has its meaning in
`MEANINGS`, in plain torch and without a thought for speed; `library` ops call their overload on
operands of exactly the strides that their types state. Guarantees: outputs have the sizes, strides
and dtype of their types; aliased outputs share memory as `Graph.output_aliases` says; errors are
torch's own (index out of range, integer division by zero).
"""

from collections.abc import Callable, Sequence

import torch

from preheat.base.errors import InternalError
from preheat.bridge.ops import decode, dtype, overload
from preheat.bridge.uniform import numbers
from preheat.ir.sized import without_types
from preheat.ir.graph import Graph, Op, OutputAlias, Ref
from preheat.ir.types import TensorType

Tensor = torch.Tensor


def run(graph: Graph, inputs: Sequence) -> list:
    """The outputs of `graph` on `inputs`: tensors, or numbers where the type says so.

    A number may stand for a 0-d input of a level core graph too.
    """
    values: dict[int, object] = {
        i.id: as_tensor(value, i.type) if isinstance(i.type, TensorType) else value
        for i, value in zip(graph.inputs, inputs, strict=True)
    }
    if graph.symbols:
        graph = without_types(graph, {name: values[given] for name, given in graph.symbols})
    step = _run_aten if graph.level == "aten" else _run_core
    for op in graph.ops:
        if op.regions:
            raise InternalError(f"interpret: {op.name} has regions, which have no meaning here yet")
        step(op, values)
    if graph.level == "aten":
        return [values[output] for output in graph.outputs]
    return _finish(graph, inputs, values)


def as_tensor(value: object, type: TensorType) -> object:
    """`value`, or the 0-d tensor of `type` that holds it, if it is a number.

    Raises OverflowError or RuntimeError for an integer that torch does not take as a number either.
    """
    if isinstance(value, Tensor):
        return value
    return torch.full((), value, dtype=dtype(type.dtype))


def _finish(graph: Graph, inputs: Sequence, values: dict) -> list:
    """Writes to the inputs, then the outputs: fresh ones first, others may be views of them."""
    types = graph.types()
    aliases = graph.output_aliases or (OutputAlias(),) * len(graph.outputs)
    outputs: list = [None] * len(graph.outputs)
    for place, (value, alias) in enumerate(zip(graph.outputs, aliases)):
        if alias.kind == "fresh":
            found = values[value]
            outputs[place] = _fresh(found, types[value]) if isinstance(found, Tensor) else found
    # A value may be a view of an input that an earlier write changes: take every value first.
    stored = [(target, values[value].clone()) for target, value in graph.writes]
    for target, value in stored:
        values[target].copy_(value)
    for is_detached in (True, False):  # others may be views of the detached ones
        for place, (value, alias) in enumerate(zip(graph.outputs, aliases)):
            if alias.kind != "fresh" and alias.is_detached is is_detached:
                base = inputs[alias.base] if alias.kind == "input" else outputs[alias.base]
                type, start = types[value], base.storage_offset() + alias.offset
                view = base.as_strided(type.sizes, type.strides, start)
                outputs[place] = view.detach() if is_detached else view
    return outputs


def _fresh(value: Tensor, type: TensorType) -> Tensor:
    """A copy of `value` in memory of its own with the strides of `type`."""
    made = torch.empty_strided(type.sizes, type.strides, dtype=value.dtype, device=value.device)
    repeated = [
        axis for axis, (n, s) in enumerate(zip(type.sizes, type.strides)) if s == 0 and n > 1
    ]
    target, source = made, value
    for axis in repeated:  # one element stands for all along an expanded axis
        target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    target.copy_(source)
    return made


def _strided(value: object, type: object) -> object:
    """`value` with the strides of `type` (those of axes of one element do not matter)."""
    if not isinstance(value, Tensor) or not isinstance(type, TensorType):
        return value
    same = all(n <= 1 or a == b for n, a, b in zip(type.sizes, value.stride(), type.strides))
    return value if same or 0 in type.sizes else _fresh(value, type)


# ---------------------------------------------------------------------------- level aten
def _run_aten(op: Op, values: dict) -> None:
    args = [decode(a, values) for a in op.args]
    attrs = {key: decode(a, values) for key, a in op.attrs}
    with torch.set_grad_enabled(op.is_grad_enabled):
        define(op, overload(op.name)(*args, **attrs), values)


def define(op: Op, outcome: object, values: dict) -> None:
    """Names in `values` what the call of `op` gave."""
    flat = list(_flat(outcome))
    if len(flat) == 1 and flat[0] is None and not op.results:
        return
    for result, value in zip(op.results, flat, strict=True):
        if result != -1:
            values[result] = value


def _flat(outcome: object):
    if isinstance(outcome, (tuple, list)):
        for part in outcome:
            yield from _flat(part)
    else:
        yield outcome


# ---------------------------------------------------------------------------- level core
def _run_core(op: Op, values: dict) -> None:
    if op.name == "library":
        args = [decode(a, values) for a in op.args]
        attrs = {key: decode(a, values) for key, a in op.attrs if key != "op"}
        define(op, overload(op.attr("op"))(*args, **attrs), values)
    else:
        operands = [values[a.id] for a in op.args if isinstance(a, Ref)]
        made = MEANINGS[op.name](op, *operands)
        if tuple(made.shape) != op.type.sizes or made.dtype != dtype(op.type.dtype):
            raise InternalError(
                f"interpret: {op.name} gave {made.dtype} {tuple(made.shape)}, its type is {op.type}"
            )
        values[op.result] = made
    for result, type in zip(op.results, op.types):
        if result != -1:
            values[result] = _strided(values[result], type)


def _function(function: Callable) -> Callable:
    return lambda op, *operands: function(*operands)


def _full(op: Op) -> Tensor:
    return torch.full(
        op.type.sizes, op.attr("value"), dtype=dtype(op.type.dtype), device=op.type.device
    )


def _iota(op: Op) -> Tensor:
    axis, sizes = op.attr("axis"), op.type.sizes
    line = torch.arange(sizes[axis], device=op.type.device, dtype=dtype(op.type.dtype))
    line = op.attr("start") + op.attr("step") * line
    return (
        line.reshape([-1 if i == axis else 1 for i in range(len(sizes))])
        .expand(sizes)
        .to(dtype(op.type.dtype))
    )


def _uniform(op: Op, seed: Tensor) -> Tensor:
    return numbers(seed, op.type.sizes, op.attr("stream"))


def _sum(op: Op, x: Tensor) -> Tensor:
    to = dtype(op.type.dtype)
    return (
        torch.sum(x, op.attr("axes"), op.attr("keepdim"), dtype=to) if op.attr("axes") else x.to(to)
    )


def _prod(op: Op, x: Tensor) -> Tensor:
    for axis in sorted(op.attr("axes"), reverse=True):
        x = torch.prod(x, axis, op.attr("keepdim"), dtype=dtype(op.type.dtype))
    return x


def _over_axes(function: Callable) -> Callable:
    return lambda op, x: (
        function(x, op.attr("axes"), op.attr("keepdim")) if op.attr("axes") else x.clone()
    )


def _arg(function: Callable) -> Callable:
    return lambda op, x: function(x, op.attr("axis"), op.attr("keepdim"))


def _region(axis: int, start: int, step: int, size: int) -> tuple:
    return (
        *(slice(None),) * axis,
        slice(start, start + max(size - 1, 0) * step + (size > 0), step),
    )


def _slice(op: Op, x: Tensor) -> Tensor:
    axis = op.attr("axis")
    return x[_region(axis, op.attr("start"), op.attr("step"), op.type.sizes[axis])]


def _window(op: Op, x: Tensor) -> Tensor:
    axis, strides = op.attr("axis"), list(x.stride())
    strides.append(strides[axis] * op.attr("dilation"))
    strides[axis] *= op.attr("step")
    return x.as_strided(op.type.sizes, strides, x.storage_offset())


def _tf32(x: Tensor) -> Tensor:
    bits = (x.view(torch.int32).long() + (1 << 12)) >> 13 << 13
    return torch.where(x.isnan(), x, bits.to(torch.int32).view(torch.float32))


def _place(op: Op, x: Tensor, part: Tensor) -> Tensor:
    axis, made = op.attr("axis"), x.clone()
    made[_region(axis, op.attr("start"), op.attr("step"), part.shape[axis])] = part
    return made


def _pad(op: Op, x: Tensor) -> Tensor:
    made = torch.full(op.type.sizes, op.attr("value"), dtype=x.dtype, device=x.device)
    made[tuple(slice(low, low + size) for low, size in zip(op.attr("low"), x.shape))] = x
    return made


def _take(op: Op, x: Tensor, index: Tensor) -> Tensor:
    axis = op.attr("axis")
    if op.attr("wrap"):
        index = torch.where(index < 0, index + x.shape[axis], index)
    picked = x.index_select(axis, index.reshape(-1))
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _index(op: Op, x: Tensor, *indices: Tensor) -> Tensor:
    where: list = [slice(None)] * x.dim()
    for axis, index in zip(op.attr("axes"), indices):
        where[axis] = index
    return x[tuple(where)]


MEANINGS: dict[str, Callable] = {
    **{
        name: _function(getattr(torch, name))
        for name in (
            "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin "
            "acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid floor ceil trunc round "
            "logical_not bitwise_not isnan isinf add sub mul div remainder fmod pow atan2 copysign "
            "maximum minimum "
            "fmax fmin eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
            "bitwise_xor where matmul"
        ).split()
    },
    # torch.sign(NaN) is 0; the row keeps NaN.
    "sign": lambda op, x: torch.where(torch.isnan(x), x, torch.sign(x)),
    "tf32": _function(_tf32), "times": _function(torch.mul),
    "cast": lambda op, x: x.to(dtype(op.attr("dtype"))),
    "bitcast": lambda op, x: x.view(dtype(op.attr("dtype"))),
    "floordiv": lambda op, x, y: torch.div(x, y, rounding_mode="floor"),
    "truncdiv": lambda op, x, y: torch.div(x, y, rounding_mode="trunc"),
    "shl": _function(torch.bitwise_left_shift), "shr": _function(torch.bitwise_right_shift),
    "full": _full, "iota": _iota, "uniform": _uniform,
    "sum": _sum, "prod": _prod, "max": _over_axes(torch.amax), "min": _over_axes(torch.amin),
    "any": _over_axes(torch.any), "all": _over_axes(torch.all),
    "argmax": _arg(torch.argmax), "argmin": _arg(torch.argmin),
    "reshape": lambda op, x: x.reshape(op.type.sizes),
    "permute": lambda op, x: x.permute(op.attr("axes")),
    "flip": lambda op, x: x.flip(op.attr("axes")),
    "expand": lambda op, x: x.expand(op.type.sizes),
    "slice": _slice, "window": _window, "place": _place, "pad": _pad,
    "cat": lambda op, *xs: torch.cat(xs, op.attr("axis")),
    "take": _take, "index": _index,
    "gather": lambda op, x, index: torch.gather(x, op.attr("axis"), index.long()),
}
