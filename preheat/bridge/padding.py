"""Padding: tensors made longer along axes, results cut back, and whether that changed anything.

    padded(x, 1, 64, 0)               x: [B, T] with zeros behind, [B, 64]
    grown(result, other, 50, 64)      the axes of each tensor in it that are 64 long instead of 50
    cut(other, axes, 50)              `other` with these axes cut to 50
    grads_of(result)                  gradients of a result for random tangents, by leaf
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from preheat.base.errors import UserError
from preheat.bridge.history import nodes

Axes = Any  # a tuple of axes for a tensor, None for anything else, containers of those
Tensor = torch.Tensor


def padded(tensor: Tensor, axis: int, size: int, value: float | bool | None) -> Tensor:
    """`tensor` with `value` behind it along `axis`, `size` long in all. None: random elements."""
    axis %= tensor.dim()
    sizes = list(tensor.shape)
    sizes[axis] = size - sizes[axis]
    behind = _random(tensor, sizes) if value is None else tensor.new_full(sizes, value)
    return torch.cat([tensor, behind], axis)


def _random(tensor: Tensor, sizes: list[int]) -> Tensor:
    """Elements like those of `tensor`: normal ones of its scale, or some of its own."""
    generator = torch.Generator().manual_seed(0)  # the program's own draws stay what they are
    detached = tensor.detach()
    if tensor.is_floating_point() or tensor.is_complex():
        made = torch.randn(sizes, generator=generator, dtype=torch.float64)
        return (made * (1 + detached.abs().nan_to_num(0, 0, 0).max().double().cpu())).to(tensor)
    own = detached.flatten()
    return own[torch.randint(len(own), sizes, generator=generator).to(own.device)]


def resized(tensor: Tensor, axis: int, size: int, value: float | bool | None) -> Tensor:
    """`tensor` cut or padded to `size` along `axis`."""
    if tensor.shape[axis] < size:
        return padded(tensor, axis, size, value)
    made = tensor.narrow(axis, 0, size)
    return made.clone(memory_format=torch.contiguous_format) if tensor.is_contiguous() else made


def grown(short: Any, long: Any, length: int, bucket: int) -> Axes:
    """For each tensor in a result the axes that are `bucket` long in that of a longer call.

    Raises UserError for results that differ in anything else, and for objects that cannot be cut.
    """
    if isinstance(short, Tensor):
        if not isinstance(long, Tensor) or short.dim() != long.dim():
            raise UserError("a result is another one when its input is longer")
        axes = tuple(axis for axis, n in enumerate(short.shape) if long.shape[axis] != n)
        for axis in axes:
            if (short.shape[axis], long.shape[axis]) != (length, bucket):
                raise UserError(
                    f"axis {axis} of a result is {short.shape[axis]} long at length {length} and "
                    f"{long.shape[axis]} at {bucket}: it cannot be cut back. Return it with the "
                    f"length as an axis of its own")
        return axes
    if _is_sequence(short):
        return [grown(*pair, length, bucket) for pair in zip(short, long, strict=True)]
    if isinstance(short, Mapping) and type(short) is type(long):
        return {key: grown(part, long[key], length, bucket) for key, part in short.items()}
    if isinstance(short, (int, float, bool, str, type(None))) and short == long:
        return None
    raise UserError(f"a result of type {type(short).__name__} cannot be cut")


def cut(result: Any, axes: Axes, size: int) -> Any:
    """`result` with the axes that `grown` found cut to `size`."""
    if axes is None:
        return result
    if isinstance(result, Tensor):
        for axis in axes:
            result = result.narrow(axis, 0, size)
        return result
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
        id(leaf): leaf for node in nodes(outputs, ())
        if (leaf := getattr(node, "variable", None)) is not None}
    if not leaves:
        return {}
    generator = torch.Generator().manual_seed(0)
    tangents = [torch.randn(t.shape, generator=generator).to(t) for t in outputs]
    found = torch.autograd.grad(outputs, [*leaves.values()], tangents, allow_unused=True)
    return {key: grad for key, grad in zip(leaves, found) if grad is not None}


def state_of(target: Any) -> list[tuple[Tensor, Tensor]]:
    """The buffers of a module (or of the one that a method is bound to), each with a copy."""
    owner = getattr(target, "__self__", target)
    buffers: Sequence[Tensor] = [*owner.buffers()] if isinstance(owner, torch.nn.Module) else ()
    return [(buffer, buffer.detach().clone()) for buffer in buffers]


def put_back(state: list[tuple[Tensor, Tensor]]) -> None:
    """Gives the buffers of `state_of` their elements again."""
    with torch.no_grad():
        for buffer, value in state:
            buffer.copy_(value)


def draw_state() -> Tensor:
    """Where the random generator of the CPU stands."""
    return torch.get_rng_state()


def set_draw_state(state: Tensor) -> None:
    torch.set_rng_state(state)


def is_same_state(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first, second)


def is_grad_on() -> bool:
    return torch.is_grad_enabled()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)
