"""What the nouns say of a live tensor: its type, its facts, the memory it covers.

    type_of(torch.zeros(8, 128)) == TensorType("float32", (8, 128), (128, 1), "cpu")

Reads metadata only, never an element. Works on exact tensors and parameters; `is_plain` says
whether a tensor is one, dense and unwrapped.
"""

import torch

from preheat.ir.trace import TensorFacts
from preheat.ir.types import TensorType

_DTYPE_NAMES: dict[torch.dtype, str] = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_DEVICE_NAMES: dict[torch.device, str] = {torch.device("cpu"): "cpu"}
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def type_of(tensor: torch.Tensor) -> TensorType:
    """dtype, sizes, strides and device of `tensor`."""
    device = tensor.device
    return TensorType(
        _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride(),
        _DEVICE_NAMES.get(device) or str(device),
    )


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """Everything that a guard checks of `tensor`, which must be plain (see `is_plain`)."""
    return TensorFacts(
        type_of(tensor), tensor.requires_grad, tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """A strided tensor of class Tensor or Parameter, with storage, no wrapper of any kind."""
    return (
        type(tensor) in _PLAIN_CLASSES
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def storage_key(tensor: torch.Tensor) -> int:
    """A number equal for two live tensors exactly if they share their storage."""
    return tensor.untyped_storage()._cdata


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte that elements of `tensor` occupy and the one after the last; empty: (0, 0)."""
    if tensor.numel() == 0:
        return 0, 0
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def overlaps(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether the extents of two tensors have a byte in common (strides may still keep them apart)."""
    (a, b), (c, d) = extent(first), extent(second)
    return a < d and c < b
