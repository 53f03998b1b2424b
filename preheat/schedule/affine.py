"""Index expressions: a base plus strides times loop axes (or times integer values of the kernel).

    i0*128 + j + 4      Affine(4, (("i0", 128), ("j", 1)))

Movement ops act on tuples of these, so that no movement op of a fused group touches memory. A
reshape divides: `i0*128 + j` by 128 is `i0` remainder `j` while j < 128. Where a loop axis itself
must be cut (`j` of 128 by 32) `SplitAxis` is raised and the caller starts again with two axes; what
no cut can divide becomes integer arithmetic in the kernel (`Space.divide`).

Requires extents of axes that are compared to be known numbers; raises Unsupported for a symbol.
Source: the index arithmetic of tinygrad's rangeify and of Halide's split and fuse.
"""

from collections.abc import Callable

from preheat.base.dataclass import dataclass
from preheat.base.errors import Unsupported
from preheat.ir.scalar import Dim, Scalar, product

Key = str | int  # a loop axis by name, or a value of the kernel by number


def known(dim: Dim) -> int:
    """`dim` as a number. Raises Unsupported where only the running program knows it."""
    if isinstance(dim, Scalar):
        raise Unsupported("symbolic", f"the schedule must know {dim}")
    return int(dim)


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

    def bounds(self, index: Affine) -> tuple[int, int]:
        """The least and the greatest value `index` can take."""
        low = high = known(index.base)
        for key, stride in index.terms:
            reach = (known(self.extents[key]) - 1) * known(stride)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def divmod(self, index: Affine, divisor: Dim) -> tuple[Affine, Affine]:
        """(index // divisor, index % divisor) for a non-negative `index`."""
        divisor = known(divisor)
        if divisor == 1:
            return index, ZERO
        whole = {key: known(s) // divisor for key, s in index.terms if known(s) % divisor == 0}
        rest = {key: known(s) for key, s in index.terms if known(s) % divisor}
        remainder = affine(known(index.base) % divisor, rest)
        low, high = self.bounds(remainder)
        if 0 <= low and high < divisor:
            return affine(known(index.base) // divisor, whole), remainder
        for key, stride in rest.items():
            extent = known(self.extents[key])
            if stride > 0 and divisor % stride == 0 and isinstance(key, str):
                inner = divisor // stride
                if inner < extent and extent % inner == 0:
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
            if known(left) < known(right) and i < len(old):
                left, i = left * old[i], i + 1
            elif j < len(new):
                right, j = right * new[j], j + 1
            else:
                left, i = left * old[i], i + 1
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


def elems(sizes: tuple[Dim, ...]) -> int:
    """The number of elements, known."""
    return known(product(sizes))
