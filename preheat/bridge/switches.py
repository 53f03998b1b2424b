"""Switches: settings of numerics that library calls read anew on each call.

    for reader, value in library_switches({"float32"}, convolves=False):
        reader() is value                        as long as nothing was set

Calls that are made again read them again. A graph of calls was recorded under some values, and is
right only while they stand. Switches between implementations that are equally right (the preferred
BLAS, cuDNN's benchmarking) are none of these. Names here are private to torch: where one is absent,
there is no such switch.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from preheat.bridge.ops import private

_PRODUCTS: dict[str, tuple[str, ...]] = {  # by dtype: names of torch._C
    "float32": ("_get_cublas_allow_tf32",),
    "float16": (
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation"),
    "bfloat16": ("_get_cublas_allow_bf16_reduced_precision_reduction",),
}
_CONVOLUTIONS = ("_get_cudnn_allow_tf32", "_get_cudnn_deterministic")
# What says how float32 is multiplied where the older switch contradicts it and gives an error.
_PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"))


def library_switches(
    dtypes: Collection[str], convolves: bool
) -> tuple[tuple[Callable[[], Any], Any], ...]:
    """Functions without arguments, each with what it gives now: while the switch is not set again, the
    same object, which costs 30 to 300 ns to ask; set to a contradiction, it may raise.

    dtypes   of the operands;  convolves   whether there are convolutions among the calls
    """
    names = [name for dtype in sorted(dtypes) for name in _PRODUCTS.get(dtype, ())]
    names += _CONVOLUTIONS if convolves else ()
    readers = [reader for name in names if (reader := private(f"_C.{name}")) is not None]
    if any(isinstance(_read(reader), Contradiction) for reader in readers):
        getter = private("_C._get_fp32_precision_getter")
        readers += [partial(getter, *of) for of in _PRECISIONS] if getter is not None else []
    return tuple(_fixed(reader) for reader in readers)


def float32_rounding() -> tuple[bool, bool]:
    """Whether libraries of a GPU may round float32 operands to tf32 now: of products, and of convolutions."""
    getter = private("_C._get_fp32_precision_getter")
    if getter is not None:
        products, convolutions = (getter(*of) == "tf32" for of in _PRECISIONS)
        return products, convolutions
    readers = (private("_C._get_cublas_allow_tf32"), private("_C._get_cudnn_allow_tf32"))
    products, convolutions = (reader is not None and _read(reader) is True for reader in readers)
    return products, convolutions


class Contradiction(str):
    """The error of a switch that another one contradicts."""


def _fixed(reader: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    first = _read(reader)
    if first is _read(reader):
        return reader, first
    known = {first: first}  # it gives equal objects, or an error

    def read() -> Any:
        value = _read(reader)
        return known.get(value, value)

    return read, first


def _read(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except RuntimeError as error:
        return Contradiction(error)
