"""Where a tensor keeps what guards ask for, and the addresses of torch's exported functions.

    tensor_layout()  -> TensorLayout(impl=16, keys=168, dtype=160, rank=56, sizes=64, ...)
    symbol("_ZN3c108GradMode10is_enabledEv")  -> 0x7f0c...

As in `run/layout`: offsets are found by experiment on tensors of known metadata, and every example
must agree; functions are found by their exported, fully qualified C++ names, and believed only if
they answer what torch's Python API answers. What is not found is checked in Python.
"""

import ctypes
import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from preheat.base.dataclass import dataclass
from preheat.run.layout import WORD, read, word, words_at

INLINE_RANK = 5  # sizes and strides of up to five axes lie inside the TensorImpl


@dataclass(frozen=True)
class TensorLayout:
    """Offsets in bytes.

    impl     of the pointer to the TensorImpl, in the Python object
    In the TensorImpl: keys, the dispatch key set (backend, autograd, conjugate, wrappers);
    dtype, the number of the dtype (2 bytes), with the device (type, index, a 1) behind it;
    rank (8 bytes), sizes and strides (8 bytes an axis; above INLINE_RANK a pointer at `sizes` to
    both);
    storage, the pointer to the StorageImpl; storage_offset, in elements.
    data     of the data pointer in the StorageImpl
    requires_grad   address of the function `bool (const TensorImpl*)` that torch itself asks
    grad            the same of `at::Tensor& (const TensorImpl*)`, the gradient; None if it is not known
    no_grad         the TensorImpl of a gradient that is None
    wrapper         in the TensorImpl: the pointer to its Python object, or 0; its lowest bit may be set
    """

    impl: int
    keys: int
    dtype: int
    rank: int
    sizes: int
    strides: int
    storage: int
    storage_offset: int
    data: int
    requires_grad: int
    grad: int | None = None
    no_grad: int = 0
    wrapper: int | None = None


@functools.lru_cache
def tensor_layout() -> TensorLayout | None:
    """The layout of tensors in this process, None if any part of it was not found."""
    examples = list(_examples())
    impl = _offset(examples, lambda t: id(t), lambda t: t._cdata, 6)
    if impl is None:
        return None
    inside = functools.partial(_offset, examples, lambda t: t._cdata)
    storages = functools.partial(_offset, examples, lambda t: t.untyped_storage()._cdata)
    found = {
        "impl": impl,
        "keys": inside(lambda t: torch._C._dispatch_keys(t).raw_repr()),
        "dtype": _dtype_offset(examples),
        "rank": inside(lambda t: t.dim()),
        "storage": inside(lambda t: t.untyped_storage()._cdata),
        "storage_offset": inside(lambda t: t.storage_offset()),
        "data": storages(lambda t: t.untyped_storage().data_ptr(), 6),
        **_sizes_and_strides(examples),
        "requires_grad": _requires_grad_function(),
    }
    if any(value is None for value in found.values()):
        return None
    return TensorLayout(**found, **_grad_layout())


def _grad_layout() -> dict[str, int | None]:
    """Where the gradient is, and the Python object of a tensor: {} unless all of it is as expected."""
    address = symbol("_ZNK3c1010TensorImpl4gradEv")
    if address is None:
        return {}
    ask = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)
    plain, leaf = torch.zeros(3, device="cpu"), torch.zeros(2, device="cpu", requires_grad=True)
    none = {word(ask(tensor._cdata)) for tensor in (plain, leaf)}
    leaf.grad = torch.ones(2, device="cpu")
    given = word(ask(leaf._cdata)) == leaf.grad._cdata
    leaf.grad = None
    none.add(word(ask(leaf._cdata)))
    common = set(range(_IMPL_WORDS))
    for tensor in (plain, leaf):
        here = words_at(tensor._cdata, _IMPL_WORDS)
        common = {place for place in common if here[place] & ~1 == id(tensor)}
    if not given or len(none) != 1 or len(common) != 1:
        return {}
    return {"grad": address, "no_grad": none.pop(), "wrapper": WORD * common.pop()}


_IMPL_WORDS = 24  # a TensorImpl is longer than this many words on every supported torch


def _examples() -> Iterator[torch.Tensor]:
    """Strided tensors that differ in everything that is looked for."""
    memory = torch.zeros(1 << 16, device="cpu")
    yield memory.as_strided((11, 13, 17), (1009, 53, 3), 7)
    yield memory.as_strided((2, 3, 5, 7, 4), (9001, 601, 101, 23, 2), 12)
    yield memory.as_strided((6,), (19,), 100)
    yield torch.zeros(23, 29, dtype=torch.int64, device="cpu")[3:]
    yield torch.zeros(31, dtype=torch.complex64, device="cpu")[5:].conj()
    with torch.inference_mode():
        yield torch.zeros(37, 2, dtype=torch.bfloat16, device="cpu")[1:]


def _offset(examples, base: Callable, content: Callable, words: int = _IMPL_WORDS) -> int | None:
    """The one offset at which `content` of every example stands behind its `base` address."""
    common = set(range(words))
    for example in examples:
        wanted, here = content(example), words_at(base(example), words)
        common = {place for place in common if here[place] == wanted}
    return WORD * min(common) if common else None


def _sizes_and_strides(examples) -> dict[str, int | None]:
    inline = [e for e in examples if e.dim() <= INLINE_RANK]

    def start(numbers: Callable) -> int | None:
        common = set(range(0, WORD * (_IMPL_WORDS - INLINE_RANK), WORD))
        for example in inline:
            here = numbers(example)
            common = {
                o
                for o in common
                if all(word(example._cdata + o + WORD * i) == n for i, n in enumerate(here))
            }
        return min(common, default=None)

    sizes, strides = start(lambda t: tuple(t.shape)), start(lambda t: t.stride())
    long = torch.zeros(1 << 8, device="cpu").as_strided((2, 1, 2, 1, 2, 3), (3, 11, 5, 7, 2, 1))
    if sizes is not None:
        outside = read(word(long._cdata + sizes), 12 * WORD)
        if outside != b"".join(n.to_bytes(WORD, "little") for n in (*long.shape, *long.stride())):
            return {"sizes": None, "strides": None}
    return {"sizes": sizes, "strides": strides}


def _dtype_offset(examples) -> int | None:
    """Where two bytes tell dtypes apart and the next three are the device: type, index, 1."""
    dtypes = (
        torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16,
        torch.complex64,
    )
    tensors = [torch.empty(2, dtype=d, device="cpu") for d in dtypes]
    codes = {str(e.dtype): torch.empty(0, dtype=e.dtype, device="cpu") for e in examples}
    for offset in range(0, WORD * _IMPL_WORDS, WORD):
        words = [word(t._cdata + offset) & 0xFFFF for t in tensors]
        if len(set(words)) != len(dtypes) or not all(
            _has_device(t, offset) for t in (*tensors, *_elsewhere())
        ):
            continue
        if all(
            word(e._cdata + offset) & 0xFFFF == word(codes[str(e.dtype)]._cdata + offset) & 0xFFFF
            for e in examples
        ):
            return offset
    return None


_DEVICE_TYPES = types.MappingProxyType({"cpu": 0, "cuda": 1, "meta": 14})


def _has_device(tensor: torch.Tensor, offset: int) -> bool:
    index = -1 if tensor.device.index is None else tensor.device.index
    wanted = bytes((_DEVICE_TYPES[tensor.device.type], index & 0xFF, 1))
    return ctypes.string_at(tensor._cdata + offset + 2, 3) == wanted


def _elsewhere() -> Iterator[torch.Tensor]:
    """Tensors on every other device there is."""
    yield torch.empty(0, device="meta")
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            yield torch.empty(0, device=f"cuda:{index}")


def _requires_grad_function() -> int | None:
    address = symbol("_ZNK3c1010TensorImpl13requires_gradEv")
    if address is None:
        return None
    ask = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(address)
    plain, leaf = torch.zeros(2, device="cpu"), torch.zeros(2, device="cpu", requires_grad=True)
    with torch.enable_grad():
        made = leaf * 2
    examples = (plain, leaf, made, made.detach(), plain[1:], leaf.detach(), leaf[0:1])
    return address if all(ask(t._cdata) is t.requires_grad for t in examples) else None


# ---------------------------------------------------------------------------- exported functions
@functools.lru_cache
def symbol(name: str) -> int | None:
    """The address of an exported symbol of torch's libraries, None if there is none."""
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


@functools.lru_cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    return tuple(
        ctypes.CDLL(str(path))
        for name in ("c10", "torch_cpu")
        for path in folder.glob(f"lib{name}.so")
    )
