"""Padding: tensors made longer along axes, results cut back, and whether that changed anything.

    padded(x, 1, 64, 0)               x: [B, T] with zeros behind, [B, 64]
    grown(result, other, 50, 64)      the axes of each tensor in it that are 64 long instead of 50
    cut(other, axes, 50)              `other` with these axes cut to 50
    grads_of(result)                  gradients of a result for random tangents, by leaf
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from preheat.base.errors import UserError
from preheat.base.identity import identity
from preheat.bridge.bounds import is_within
from preheat.bridge.history import nodes
from preheat.bridge.tensors import is_dense

Axes = Any  # a tuple of axes for a tensor, None for anything else, containers of those
Tensor = torch.Tensor


def padded(tensor: Tensor, axis: int, size: int, value: float | bool | None) -> Tensor:
    """`tensor` with `value` behind it along `axis`, `size` long in all. None: random elements.

    Raises UserError for a value that its dtype does not hold.
    """
    axis %= tensor.dim()
    if value is not None:
        _check_fits(tensor.dtype, value)
    sizes = list(tensor.shape)
    sizes[axis] = size - sizes[axis]
    behind = _random(tensor, sizes) if value is None else tensor.new_full(sizes, value)
    return torch.cat([tensor, behind], axis)


@functools.lru_cache(maxsize=256, typed=True)
def _check_fits(dtype: torch.dtype, value: float | complex | bool) -> None:
    if dtype.is_complex:
        return
    if isinstance(value, complex):
        fits = False
    elif dtype.is_floating_point:
        fits = is_within(value, dtype)
    elif dtype is torch.bool:
        fits = value in (0, 1)
    else:
        limits = torch.iinfo(dtype)
        fits = math.isfinite(value) and value == int(value) and limits.min <= value <= limits.max
    if not fits:
        name = str(dtype).removeprefix("torch.")
        raise UserError(f"the fill value {value!r} is none of {name}, which the padded argument holds")


def _random(tensor: Tensor, sizes: list[int]) -> Tensor:
    """Elements like those of `tensor`: normal ones of its scale, or some of its own."""
    if not tensor.numel():
        return tensor.new_zeros(sizes)
    generator = torch.Generator().manual_seed(0)  # the program's own draws stay what they are
    detached = tensor.detach()
    if tensor.is_floating_point() or tensor.is_complex():
        made = torch.randn(sizes, generator=generator, dtype=torch.float64)
        return (made * (1 + detached.abs().nan_to_num(0, 0, 0).max().double().cpu())).to(tensor)
    own = detached.flatten()
    return own[torch.randint(len(own), sizes, generator=generator).to(own.device)]


def beyond(tensor: Tensor, value: float | complex | bool, sign: int) -> Tensor | None:
    """Random elements of the scale of `tensor`, all below (sign -1) or above (1) `value`.

    None for what is no floating tensor, for a value that stands for infinity, far from all elements, and for a mask: of
    at most two values.
    """
    if not tensor.is_floating_point() or isinstance(value, complex):
        return None
    own = tensor.detach()
    if len(own.unique()) <= 2 or abs(value) > 10 * own.abs().nan_to_num(0, 0, 0).max():
        return None
    made = value + sign * _random(tensor, list(tensor.shape)).abs().clamp(min=0.01)
    return made.requires_grad_(tensor.requires_grad)


def resized(tensor: Tensor, axis: int, size: int, value: float | bool | None) -> Tensor:
    """`tensor` cut or padded to `size` along `axis`."""
    if tensor.shape[axis] < size:
        return padded(tensor, axis, size, value)
    made = tensor.narrow(axis, 0, size)
    return made.clone(memory_format=torch.contiguous_format) if tensor.is_contiguous() else made


def grown(short: Any, long: Any, length: int, bucket: int, path: str = "the result") -> Axes:
    """For each tensor in a result the axes that are `bucket` long in that of a longer call.

    Raises UserError for results that differ in anything else, and for objects that cannot be cut.
    """
    where = f"{path} at length {length} and at {bucket}"
    if isinstance(short, Tensor):
        if not isinstance(long, Tensor) or short.dim() != long.dim():
            raise UserError(f"{where} is {_kind(short)} and {_kind(long)}: it cannot be cut back")
        axes = tuple(axis for axis, n in enumerate(short.shape) if long.shape[axis] != n)
        for axis in axes:
            if (short.shape[axis], long.shape[axis]) != (length, bucket):
                raise UserError(
                    f"axis {axis} of {where} is {short.shape[axis]} and {long.shape[axis]} long: it "
                    f"cannot be cut back. Return it with the length as an axis of its own")
        return axes
    if type(short) is not type(long):
        raise UserError(f"{where} is {_kind(short)} and {_kind(long)}: it cannot be cut back")
    if _is_sequence(short) or isinstance(short, Mapping):
        keys = range(len(short)) if _is_sequence(short) else [*short]
        if len(short) != len(long) or not _is_sequence(short) and keys != [*long]:
            raise UserError(f"{where} has other parts ({len(short)} and {len(long)}): it cannot be cut back")
        parts = {key: grown(short[key], long[key], length, bucket, f"{path}[{key!r}]") for key in keys}
        return [*parts.values()] if _is_sequence(short) else parts
    if isinstance(short, (int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, type(None))):
        if short == long or short != short and long != long:
            return None
        raise UserError(
            f"{where} is {short!r} and {long!r}: what follows from the length cannot be cut back. Return "
            f"tensors, and take their sizes where they are used")
    raise UserError(
        f"{path} is {_kind(short)}, which cannot be cut back: return tensors, in tuples, lists or dicts")


def _kind(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def cut(result: Any, axes: Axes, size: int) -> Any:
    """`result` with the axes that `grown` found cut to `size`: dense where it was, as it is without
    padding."""
    if axes is None:
        return result
    if isinstance(result, Tensor):
        made = result
        for axis in axes:
            made = made.narrow(axis, 0, size)
        if axes and not made.is_contiguous() and is_dense(result):
            return made.clone(memory_format=torch.preserve_format)
        return made
    if _is_sequence(result):
        parts = [cut(part, own, size) for part, own in zip(result, axes, strict=True)]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    parts = {key: cut(part, axes[key], size) for key, part in result.items()}
    return parts if type(result) is dict else type(result)(**parts)


def largest_difference(found: Any, expected: Any) -> float:
    """The largest difference of elements of two results, against the size of the elements."""
    if isinstance(expected, Tensor):
        if not isinstance(found, Tensor) or found.shape != expected.shape:
            return float("inf")
        if not expected.numel():
            return 0.0
        if not expected.is_floating_point():
            return 0.0 if torch.equal(found, expected) else float("inf")
        found, expected = found.detach(), expected.detach()
        error = (found.double() - expected.double()).abs().nan_to_num(0.0)
        same_nan = torch.equal(found.isnan(), expected.isnan())
        scale = expected.double().abs().nan_to_num(0.0).max().clamp(min=1.0)
        return float(error.max() / scale) if same_nan else float("inf")
    if _is_sequence(expected):
        pairs = zip(found, expected, strict=True)
        return max((largest_difference(*pair) for pair in pairs), default=0.0)
    if isinstance(expected, Mapping):
        if found.keys() != expected.keys():
            return float("inf")
        return max((largest_difference(found[k], part) for k, part in expected.items()), default=0.0)
    return 0.0


def tolerance(result: Any) -> float:
    """How far two runs of one program may be apart: by the narrowest dtype in its result."""
    return max((
        {1: 0.0, 2: 2e-2, 4: 1e-4}.get(tensor.itemsize, 1e-9) if tensor.is_floating_point() else 0.0
        for tensor in tensors_of(result)), default=0.0)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """The tensors in a result, containers deep."""
    if isinstance(result, Tensor):
        yield result
    elif _is_sequence(result) or isinstance(result, Mapping):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors_of(part)


def grads_of(result: Any) -> dict[int, Tensor]:
    """The gradients of the tensors in `result` for random tangents, by the id of each leaf that the
    program has computed from."""
    outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
    leaves = {
        identity(leaf): leaf for node in nodes(outputs, ())
        if (leaf := getattr(node, "variable", None)) is not None}
    if not leaves:
        return {}
    generator = torch.Generator().manual_seed(0)
    tangents = [torch.randn(t.shape, generator=generator).to(t) for t in outputs]
    found = torch.autograd.grad(outputs, [*leaves.values()], tangents, allow_unused=True)
    return {key: grad for key, grad in zip(leaves, found) if grad is not None}


def state_of(target: Any, arguments: Any) -> list[tuple[Tensor, Tensor]]:
    """The buffers of a module (or of the one that a method is bound to) and the tensors among
    `arguments`, each with a copy."""
    owner = getattr(target, "__self__", target)
    buffers = owner.buffers() if isinstance(owner, torch.nn.Module) else ()
    return [(tensor, tensor.detach().clone()) for tensor in (*buffers, *tensors_of(arguments))]


def put_back(state: list[tuple[Tensor, Tensor]]) -> None:
    """Gives the tensors of `state_of` that were written to their elements again."""
    with torch.no_grad():
        for tensor, value in state:
            if not is_same_state(tensor, value):
                tensor.copy_(value)


def written(state: list[tuple[Tensor, Tensor]]) -> frozenset[int]:
    """The ids of the tensors of `state_of` that have other elements now."""
    return frozenset(identity(tensor) for tensor, value in state if not is_same_state(tensor, value))


def draw_state() -> Tensor:
    """Where the random generator of the CPU stands."""
    return torch.get_rng_state()


def set_draw_state(state: Tensor) -> None:
    torch.set_rng_state(state)


def is_same_state(first: Tensor, second: Tensor) -> bool:
    """Whether all elements are the same, bit by bit; where that cannot be asked, they are not."""
    if first.layout is not torch.strided or first.shape != second.shape:
        return False
    bits = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (first, second)]
    return torch.equal(*bits)


def is_grad_on() -> bool:
    return torch.is_grad_enabled()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)
