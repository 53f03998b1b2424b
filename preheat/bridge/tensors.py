"""What the nouns say of a live tensor: its type, its facts, the memory it covers.

    type_of(torch.zeros(8, 128)) == TensorType("float32", (8, 128), (128, 1), "cpu")

Reads metadata only, never an element. Works on exact tensors and parameters; `is_plain` says
whether a tensor is one, dense and unwrapped.
"""

import functools
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import torch

from preheat.ir.scalar import Scalar
from preheat.ir.trace import TensorFacts
from preheat.ir.types import TensorType

Tensor, Size, Device = torch.Tensor, torch.Size, torch.device
Parameter = torch.nn.Parameter
PLAIN_TENSORS = frozenset((Tensor, Parameter))  # classes without behaviour of their own

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


@functools.cache
def architecture(device: str) -> str:
    """The architecture of a GPU as code generators call it: "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def gpu_among(values: Iterable[object], depth: int = 3) -> str:
    """The device of the first tensor on a GPU among `values` and what lists, tuples and dicts of them hold,
    "" if there is none."""
    for value in values:
        found = ""
        if type(value) in _PLAIN_CLASSES:  # of others the user's code would answer
            found = str(value.device) if value.is_cuda else ""
        elif depth and type(value) in (list, tuple, dict):
            found = gpu_among(value.values() if type(value) is dict else value, depth - 1)
        if found:
            return found
    return ""


def dtype_name(dtype: torch.dtype) -> str:
    """"float32" of torch.float32."""
    return _DTYPE_NAMES[dtype]


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """Everything that a guard checks of `tensor`, which must be plain (see `is_plain`)."""
    return TensorFacts(
        type_of(tensor), tensor.requires_grad, tensor.is_inference(), tensor.is_conj(),
        tensor.is_neg(),
    )


class Marks(NamedTuple):
    """What a program has said of the sizes of a tensor: axes that change, with their bounds, and
    axes that do not."""

    dynamic: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    bounds: tuple[tuple[int, int | None, int | None], ...] = ()  # axis, least, greatest
    wanted: frozenset[int] = frozenset()  # of the dynamic ones, those that must be symbols


_MARKS = (
    "_preheat_sizes", "_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices",
    "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_static_indices",
)


def has_marks(tensor: torch.Tensor) -> bool:
    """Whether the program has said anything of the sizes of `tensor`."""
    namespace = tensor.__dict__
    return bool(namespace) and any(name in namespace for name in _MARKS)


def marks_of(tensor: torch.Tensor) -> Marks:
    """What the program has said of the sizes of `tensor`, to us or to torch.compile."""
    namespace = tensor.__dict__
    if not namespace:
        return Marks()
    own = namespace.get("_preheat_sizes", Marks())
    sets = [frozenset(namespace.get(name, ())) for name in _MARKS[1:]]
    ranges = tuple(
        (row.dim, row.min, row.max) for row in namespace.get("_dynamo_dynamic_range", ()))
    return Marks(
        own.dynamic.union(*sets[:4]), own.static | sets[4], (*own.bounds, *ranges),
        own.dynamic.union(*sets[:2]))


def mark(
    tensor: torch.Tensor, dynamic: Iterable[int] = (), static: Iterable[int] = (),
    bounds: tuple[tuple[int, int | None, int | None], ...] = (),
) -> None:
    """Notes on `tensor` what the program says of its sizes; the last word on an axis counts."""
    own = tensor.__dict__.get("_preheat_sizes", Marks())
    others = {axis for axis, _, _ in bounds}
    tensor._preheat_sizes = Marks(
        own.dynamic.difference(static).union(dynamic), own.static.difference(dynamic).union(static),
        (*(row for row in own.bounds if row[0] not in others), *bounds))


def _are(now: tuple, dims: tuple) -> bool:
    """Whether sizes or strides are those of a type, where they are numbers."""
    return now == dims or len(now) == len(dims) and all(
        a == b or isinstance(b, Scalar) for a, b in zip(now, dims))


def has_facts(tensor: torch.Tensor, facts: TensorFacts) -> bool:
    """Whether `tensor`, which must be plain, has exactly these facts: without making any."""
    type = facts.type
    return (
        _are(tensor.shape, type.sizes)
        and _are(tensor.stride(), type.strides)
        and _DTYPE_NAMES[tensor.dtype] == type.dtype
        and (_DEVICE_NAMES.get(tensor.device) or str(tensor.device)) == type.device
        and tensor.requires_grad is facts.requires_grad
        and tensor.is_inference() is facts.is_view_of_inference
        and tensor.is_conj() is facts.is_conj
        and tensor.is_neg() is facts.is_neg
        and facts.layout == "strided"
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it has all of its memory in some order of its axes, no element twice."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


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


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether `tensor` stands for many, one along each of an axis that is not among its own."""
    return (
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._C._functorch.is_legacy_batchedtensor(tensor))


def unusual_keys(tensor: torch.Tensor) -> str:
    """The dispatch key set of `tensor` as text, or "" if it is the one of an ordinary dense tensor.

    Zero tensors, functionalised and wrapped ones have class Tensor but other keys. Conjugate and
    negative bits are facts of their own and do not count here.
    """
    keys = torch._C._dispatch_keys(tensor)
    plain = keys.raw_repr() & ~_VIEW_BITS
    return "" if plain == _ordinary_keys(tensor.device.type, tensor.is_inference()) else str(keys)


@functools.lru_cache
def _ordinary_keys(device_type: str, is_inference: bool) -> int:
    """The raw key set of a dense tensor on a device of this type; 0 for a type we do not know."""
    backend = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type)
    if backend is None:
        return 0
    names = [backend, f"Autocast{backend}"]
    if not is_inference:
        names += ["ADInplaceOrView", f"Autograd{backend}"]
    return _raw_keys(*names)


def _raw_keys(*names: str) -> int:
    keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(names[0]))
    for name in names[1:]:
        keys = keys | torch._C.DispatchKeySet(torch._C._parse_dispatch_key(name))
    return keys.raw_repr()


_VIEW_BITS = _raw_keys("Conjugate", "Negative")


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
    """Whether the extents of two tensors have a byte in common (strides may still keep them
    apart)."""
    (a, b), (c, d) = extent(first), extent(second)
    return a < d and c < b


def call_facts(value: object, depth: int = 4) -> Iterator[Hashable]:
    """What tells kinds of calls apart, cheaply: type names and lengths of `value`'s containers,
    dtype, sizes and strides of its tensors. Decides no correctness; runs no user code."""
    cls = type(value)
    if isinstance(value, torch.Tensor):
        yield cls.__name__
        if is_plain(value):  # sizes of others may not exist, and asking a subclass runs its code
            yield tuple(value.shape), value.dtype, value.stride(), value.requires_grad
    elif depth and cls in (tuple, list):
        yield cls.__name__, len(value)
        for part in value:
            yield from call_facts(part, depth - 1)
    elif depth and cls is dict:
        for key, part in value.items():
            yield key if type(key) is str else type(key).__name__
            yield from call_facts(part, depth - 1)
    else:
        yield cls.__name__


def without_sizes(facts: Hashable) -> Hashable:
    """Facts (tuples of them, however deep) that are equal for tensors of one dtype and rank."""
    if not isinstance(facts, tuple):
        return facts
    if len(facts) == 4 and isinstance(facts[1], torch.dtype):
        return len(facts[0]), facts[1], facts[3]
    return tuple(map(without_sizes, facts))


def module_facts(target: object) -> tuple[Hashable, ...]:
    """The facts of a module's parameters, or () when `target` is no module."""
    if not isinstance(target, torch.nn.Module):
        return ()
    return tuple(fact for parameter in target.parameters() for fact in call_facts(parameter))


def overlap_in_part(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether elements of `read` may be changed by the op that writes `written` before it reads them."""
    if written is read or storage_key(written) != storage_key(read) or not overlaps(written, read):
        return False
    offset = read.storage_offset() - written.storage_offset()
    if offset == 0 and written.shape == read.shape and written.stride() == read.stride():
        return False
    return written.dtype != read.dtype or _share_elements(written, read, offset)


def _share_elements(written: torch.Tensor, read: torch.Tensor, offset: int) -> bool:
    """Whether two views meet in an element: the columns of a matrix are interleaved and do not."""
    elems = [1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) for t in (written, read)]
    marks = torch.zeros(abs(offset) + max(elems), dtype=torch.bool, device="cpu")
    marks.as_strided(written.shape, written.stride(), max(0, -offset)).fill_(True)
    return bool(marks.as_strided(read.shape, read.stride(), max(0, offset)).any())
