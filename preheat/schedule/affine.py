"""Index expressions: a base plus strides times loop axes (or times integer values of the kernel).

    i0*128 + j + 4      Affine(4, (("i0", 128), ("j", 1)))

Movement ops act on tuples of these, so that no movement op of a fused group touches memory. A
reshape divides: `i0*128 + j` by 128 is `i0` remainder `j` while j < 128. Where a loop axis itself
must be cut (`j` of 128 by 32) `SplitAxis` is raised and the caller starts again with two axes; what
no cut can divide becomes integer arithmetic in the kernel (`Space.divide`).

Sizes may be expressions (`ir/hinted.py`): what has to be true for all of them is decided by algebra.
Source: the index arithmetic of tinygrad's rangeify and of Halide's split and fuse.
"""

from collections.abc import Callable

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.ir.hinted import estimate, holds, quotient
from preheat.ir.scalar import Dim, Scalar, product

Key = str | int  # a loop axis by name, or a value of the kernel by number


@dataclass(frozen=True, slots=True)
class Affine:
    """base + sum of stride * key; `terms` are sorted and have no stride 0."""

    base: Dim = 0
    terms: tuple[tuple[Key, Dim], ...] = ()

    def __add__(self, other: "Affine | int") -> "Affine":
        if not isinstance(other, Affine):
            return Affine(self.base + other, self.terms)
        if not self.terms or not other.terms:  # most positions are one axis or a constant
            return Affine(self.base + other.base, self.terms or other.terms)
        strides = dict(self.terms)
        for key, stride in other.terms:
            strides[key] = strides.get(key, 0) + stride
        return affine(self.base + other.base, strides)

    def times(self, factor: Dim) -> "Affine":
        if type(factor) is int and factor == 1:
            return self
        return affine(self.base * factor, {key: stride * factor for key, stride in self.terms})

    def keys(self) -> tuple[Key, ...]:
        return tuple(key for key, _ in self.terms)


ZERO = Affine()


def affine(base: Dim, strides: dict[Key, Dim]) -> Affine:
    """The expression with canonical terms."""
    kept = [
        (key, stride)
        for key, stride in strides.items()
        if not (type(stride) is int and stride == 0)
    ]
    return Affine(base, tuple(sorted(kept, key=lambda term: (isinstance(term[0], int), term[0]))))


def axis(name: str) -> Affine:
    """The position along the loop axis `name`."""
    return Affine(0, ((name, 1),))


class SplitAxis(Exception):
    """Loop axis `name` must become two, the inner of extent `inner`, for a reshape to divide."""

    def __init__(self, name: str, inner: int):
        super().__init__(name, inner)
        self.name, self.inner = name, inner


@dataclass(frozen=True, slots=True)
class Space:
    """The extents of the keys in use, and how to divide what does not divide by itself.

    divide   (expression, divisor) -> (quotient, remainder), by arithmetic in the kernel
    """

    extents: dict[Key, Dim]
    divide: Callable[[Affine, int], tuple[Affine, Affine]]

    def bounds(self, index: Affine) -> tuple[Dim, Dim]:
        """The least and the greatest value `index` can take."""
        low = high = index.base
        for key, stride in index.terms:
            reach = (self.extents[key] - 1) * stride
            if stride > 0:
                high = high + reach
            else:
                low = low + reach
        return low, high

    def is_within(self, index: Affine, low: Dim, high: Dim) -> bool:
        """Whether low <= index < high, whatever the sizes are."""
        least, most = self.bounds(index)
        return holds("ge", least, low) and holds("lt", most, high)

    def divmod(self, index: Affine, divisor: Dim) -> tuple[Affine, Affine]:
        """(index // divisor, index % divisor) for a non-negative `index`."""
        if divisor == 1:
            return index, ZERO
        whole = {key: quotient(stride, divisor) for key, stride in index.terms}
        rest = {key: stride for key, stride in index.terms if whole[key] is None}
        whole = {key: count for key, count in whole.items() if count is not None}
        first = quotient(index.base, divisor)
        if first is None:
            first = 0 if isinstance(divisor, Scalar) else index.base // divisor
        remainder = affine(index.base - first * divisor, rest)
        if self.is_within(remainder, 0, divisor):
            return affine(first, whole), remainder
        for key, stride in rest.items():
            if isinstance(key, str) and stride > 0:
                inner = quotient(divisor, stride)
                outer = None if inner is None else quotient(self.extents[key], inner)
                if outer is not None and outer not in (0, 1):
                    raise SplitAxis(key, inner)
        return self.divide(index, divisor)


def flatten(index: tuple[Affine, ...], sizes: tuple[Dim, ...]) -> Affine:
    """The row-major position of `index` in a tensor of `sizes`."""
    total = ZERO
    step: Dim = 1
    for part, size in zip(reversed(index), reversed(sizes)):
        total = total + part.times(step)
        step = step * size
    return total


def unflatten(position: Affine, sizes: tuple[Dim, ...], space: Space) -> tuple[Affine, ...]:
    """The index in a tensor of `sizes` of the row-major `position`."""
    index: list[Affine] = []
    for number, size in enumerate(reversed(sizes)):
        if type(size) is int and size == 1:
            index.append(ZERO)
        elif all(type(s) is int and s == 1 for s in sizes[: len(sizes) - number - 1]):
            index.append(position)  # the outermost axis takes what is left
            position = ZERO
        else:
            position, part = space.divmod(position, size)
            index.append(part)
    return tuple(reversed(index))


def reshape_index(
    index: tuple[Affine, ...], old: tuple[Dim, ...], new: tuple[Dim, ...], space: Space
) -> tuple[Affine, ...]:
    """`index` into sizes `old` as the index of the same element in sizes `new`."""
    result: list[Affine] = []
    for first, second in common_groups(old, new):
        part = flatten(index[first.start : first.stop], old[first.start : first.stop])
        result += unflatten(part, new[second.start : second.stop], space)
    return tuple(result)


def common_groups(old: tuple[Dim, ...], new: tuple[Dim, ...]) -> list[tuple[range, range]]:
    """The finest runs of axes of `old` and `new` with equal numbers of elements, in order."""
    if old == new:
        return [(range(k, k + 1), range(k, k + 1)) for k in range(len(old))]
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        left: Dim = 1
        right: Dim = 1
        if i < len(old):
            left, i = left * old[i], i + 1
        if j < len(new):
            right, j = right * new[j], j + 1
        while left != right:
            if i == len(old) and j == len(new):
                raise Unsupported("symbolic", f"{left} and {right} are not the same for all sizes")
            if i < len(old) and (estimate(left) < estimate(right) or j == len(new)):
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        groups.append((range(start_i, i), range(start_j, j)))
    return groups
