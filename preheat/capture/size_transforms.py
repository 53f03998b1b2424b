"""Sizes of Fourier transforms.

Rules of `size_rules.py`, of the library that a CPU has for them (MKL): it puts the axes that are transformed
innermost, and before them all others in the order of the operand's strides. Source: `_exec_fft` and `_sort_dims`
of aten/src/ATen/native/mkl/SpectralOps.cpp.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from preheat.capture.size_call import Call, NoRule, Rule, Shape, row_major
from preheat.ir.dims import normal
from preheat.ir.scalar import Dim, apply
from preheat.ir.types import TensorType


def _real_to_complex(call: Call) -> list[Shape]:
    """The last of the axes is half, and one more, unless both sides are asked for."""
    type, axes = _operand(call)
    sizes = list(type.sizes)
    if call.arg("onesided", True):
        sizes[axes[-1]] = normal(apply("floordiv", sizes[axes[-1]], 2) + 1)
    return [_laid_out(call, type, tuple(sizes), [*_sorted(call, type, axes[:-1]), axes[-1]])]


def _complex_to_complex(call: Call) -> list[Shape]:
    type, axes = _operand(call)
    return [_transformed(call, type, axes)]


def _transformed(call: Call, type: TensorType, axes: Sequence[int]) -> Shape:
    return _laid_out(call, type, type.sizes, _sorted(call, type, axes))


def _complex_to_real(call: Call) -> list[Shape]:
    """All axes but the last as complex numbers, then the last one to the size that is asked for."""
    type, (*others, last) = _operand(call)
    if others:
        sizes, strides = _transformed(call, type, others)
        type = replace(type, sizes=sizes, strides=strides)
    sizes = tuple(call.arg("last_dim_size") if k == last else n for k, n in enumerate(type.sizes))
    return [_laid_out(call, type, sizes, [last])]


def _operand(call: Call) -> tuple[TensorType, list[int]]:
    type = call.type("self")
    axes = [call.known(axis) % max(type.rank, 1) for axis in call.arg("dim", ())]
    if type.device != "cpu" or not axes or len(set(axes)) < len(axes):
        raise NoRule("a transform that MKL does not make")
    return type, axes


def _laid_out(call: Call, type: TensorType, sizes: tuple[Dim, ...], axes: Sequence[int]) -> Shape:
    """A result of these sizes, `axes` innermost, the last one of them fastest."""
    batch = _partitioned(range(type.rank), lambda axis: axis not in axes)
    order = [*_sorted(call, type, batch), *axes]
    dense = row_major(tuple(sizes[axis] for axis in order))
    by_axis = dict(zip(order, dense))
    return sizes, tuple(by_axis[axis] for axis in range(type.rank))


def _sorted(call: Call, type: TensorType, axes: Sequence[int]) -> list[int]:
    """From the largest stride to the smallest, equal ones as they come: std::sort of few elements."""
    made: list[int] = []
    for axis in axes:
        place = len(made)
        while place and _is_larger(call, type.strides[axis], type.strides[made[place - 1]]):
            place -= 1
        made.insert(place, axis)
    return made


def _is_larger(call: Call, first: Dim, second: Dim) -> bool:
    return first != second and call.holds("gt", first, second)


def _partitioned(axes: Sequence[int], is_first: Callable[[int], bool]) -> list[int]:
    """The axes that go first, in the order that std::partition leaves them in: it swaps from both ends."""
    order, low, high = list(axes), 0, len(axes)
    while True:
        while low < high and is_first(order[low]):
            low += 1
        high -= 1
        while low < high and not is_first(order[high]):
            high -= 1
        if low >= high:
            return order[:low]
        order[low], order[high] = order[high], order[low]
        low += 1


TRANSFORMS: dict[Rule, str] = {
    _real_to_complex: "_fft_r2c",
    _complex_to_complex: "_fft_c2c",
    _complex_to_real: "_fft_c2r",
}
"""Rules, and the ops that they are of."""
