"""What a value is: dtype, sizes, strides, device.

    f32[8, 128]                 contiguous, on the CPU
    bf16[8, 128]{1, 8}          explicit strides, in elements
"""

import functools
from typing import NamedTuple

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.ir.dims import decide, normal
from preheat.ir.scalar import Dim, Scalar, product


class DTypeFacts(NamedTuple):
    short: str
    itemsize: int
    kind: str  # f float, c complex, i signed, u unsigned, b bool, q other


DTYPES: dict[str, DTypeFacts] = {
    "float64": DTypeFacts("f64", 8, "f"), "float32": DTypeFacts("f32", 4, "f"),
    "bfloat16": DTypeFacts("bf16", 2, "f"), "float16": DTypeFacts("f16", 2, "f"),
    "complex64": DTypeFacts("c64", 8, "c"), "complex128": DTypeFacts("c128", 16, "c"),
    "complex32": DTypeFacts("c32", 4, "c"),
    "int64": DTypeFacts("i64", 8, "i"), "int32": DTypeFacts("i32", 4, "i"),
    "int16": DTypeFacts("i16", 2, "i"), "int8": DTypeFacts("i8", 1, "i"),
    "uint8": DTypeFacts("u8", 1, "u"), "uint16": DTypeFacts("u16", 2, "u"),
    "uint32": DTypeFacts("u32", 4, "u"), "uint64": DTypeFacts("u64", 8, "u"),
    "bool": DTypeFacts("b8", 1, "b"),
    "float8_e4m3fn": DTypeFacts("f8e4m3fn", 1, "q"), "float8_e5m2": DTypeFacts("f8e5m2", 1, "q"),
    "float8_e4m3fnuz": DTypeFacts("f8e4m3fnuz", 1, "q"),
    "float8_e5m2fnuz": DTypeFacts("f8e5m2fnuz", 1, "q"),
    "float8_e8m0fnu": DTypeFacts("f8e8m0fnu", 1, "q"),
}
SHORT = {facts.short: name for name, facts in DTYPES.items()}
HALVES = ("bfloat16", "float16")  # 16-bit floats
NUMBER_DTYPES = {"int": "int64", "float": "float64", "bool": "bool"}  # of a number as a tensor without axes


@dataclass(frozen=True, slots=True)
class TensorType:
    """`dtype` is torch's name without the prefix; `strides` count elements; `device` as "cpu"."""

    dtype: str
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    device: str = "cpu"

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize if self.dtype in DTYPES else 1

    @property
    def kind(self) -> str:
        return DTYPES[self.dtype].kind if self.dtype in DTYPES else "q"

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def elems(self) -> Dim:
        return product(self.sizes)

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps; strides of axes with one element do not matter."""
        expected: Dim = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides)):
            if size == 0:
                return True
            if size != 1:
                if stride != expected:
                    return False
                expected = expected * size
                if is_unhinted(expected):
                    expected = normal(expected)
        return True

    @property
    def is_dense(self) -> bool:
        """No gaps and no overlaps, in some order of the axes. Raises Unsupported where sizes decide."""
        order = by_stride(self)
        return TensorType(
            self.dtype, tuple(self.sizes[a] for a in reversed(order)), tuple(self.strides[a] for a in reversed(order)),
        ).is_contiguous

    def __str__(self) -> str:
        name = DTYPES[self.dtype].short if self.dtype in DTYPES else self.dtype
        text = f"{name}[{', '.join(map(str, self.sizes))}]"
        if self.strides != contiguous_strides(self.sizes):
            text += "{" + ", ".join(map(str, self.strides)) + "}"
        return text if self.device == "cpu" else f"{text}@{self.device}"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number that an op yields: "int", "float" or "bool"."""

    type: str

    def __str__(self) -> str:
        return self.type


@dataclass(frozen=True, slots=True)
class NoneType:
    """A result that is absent (an op that returned None, or an undefined tensor)."""

    def __str__(self) -> str:
        return "none"


Type = TensorType | ScalarType | NoneType


def is_unhinted(dim: Dim) -> bool:
    """Whether a size is an expression of which no value is known (see `ir/hinted.py`)."""
    return dim.__class__ is Scalar


def by_stride(type: TensorType) -> list[int]:
    """The axes by stride, then by size, the smallest first. Raises Unsupported where that hangs on
    sizes."""
    def compare(first: int, second: int) -> int:
        for dims in (type.strides, type.sizes):
            a, b = dims[first], dims[second]
            if a != b:
                if decide("le", a, b):
                    return -1
                if decide("le", b, a):  # where they are equal, one of the axes has one element
                    return 1
                raise Unsupported("symbolic", f"the order of the axes of {type}")
        return 0

    if not any(map(is_unhinted, (*type.strides, *type.sizes))):
        return sorted(range(type.rank), key=lambda axis: (type.strides[axis], type.sizes[axis]))
    return sorted(range(type.rank), key=functools.cmp_to_key(compare))


def contiguous_strides(sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides as torch gives them: axes of size 0 count as 1."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))


def tensor(dtype: str, sizes, strides=None, device: str = "cpu") -> TensorType:
    """A TensorType, contiguous unless `strides` says otherwise."""
    sizes = tuple(sizes)
    return TensorType(dtype, sizes, contiguous_strides(sizes) if strides is None else tuple(strides), device)
