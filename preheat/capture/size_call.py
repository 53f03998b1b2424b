"""What a size rule is given: the op with the types of its operands, and what it may ask of sizes.

    call.type("self").sizes         (n3, 8)
    call.equal(n3, n5)              True, and a guard that it is so
    dense_like(call, sizes, x, y)   the strides that an elementwise op gives to its result

An answer that hangs on the sizes becomes a guard, so a rule says what torch says for all sizes with
the same answers. Sizes are at least 1 where they are symbols. Source: `TensorIterator.cpp`,
`MemoryFormat.h` and `Contiguity.h` of ATen and c10.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from preheat.base.dataclass import dataclass, field
from preheat.capture.numbers import Numbers
from preheat.ir.dims import is_size, normal
from preheat.ir.graph import Ref, Token
from preheat.ir.scalar import Dim, Scalar, apply, product, symbols
from preheat.ir.types import TensorType, Type, contiguous_strides

Shape = tuple[tuple[Dim, ...], tuple[Dim, ...] | None] | None  # None: as it is now, no symbols in it
_COMPARE = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


class NoRule(Exception):
    """It is not known what the op gives at other sizes."""


@dataclass(frozen=True)
class Call:
    """An op on tensors of `types`. `real`: the types of its results now. `pinned`: what a rule has pinned."""

    name: str
    args: dict[str, Any]
    types: dict[int, Type]
    real: Sequence[TensorType]
    numbers: Numbers
    pinned: list[Scalar] = field(default_factory=list)

    def arg(self, name: str, default: Any = None) -> Any:
        found = self.args.get(name, default)
        return default if found is None else found

    def type(self, name: str) -> TensorType:
        """The type of the tensor that parameter `name` got."""
        found = self.args.get(name)
        if not isinstance(found, Ref) or not isinstance(self.types[found.id], TensorType):
            raise NoRule(f"{name} is no tensor")
        return self.types[found.id]

    def tensors(self) -> list[TensorType]:
        """The types of all tensors, in the order of the parameters."""
        return [t for t in self.types.values() if isinstance(t, TensorType)]

    def of(self, refs: Any) -> list[TensorType]:
        return [self.types[ref.id] for ref in refs if isinstance(ref, Ref)]

    # ------------------------------------------------------------------ questions
    def holds(self, op: str, first: Dim, second: Dim) -> bool:
        """The answer of a comparison, guarded where it hangs on sizes."""
        value = self.numbers.value
        answer = _COMPARE[op](value(first), value(second))
        self.numbers.test(apply(op, first, second), answer)
        return answer

    def equal(self, first: Dim, second: Dim) -> bool:
        return first == second or self.holds("eq", first, second)

    def same(self, first: Dim, second: Dim) -> Dim:
        """The size that both are, as the op requires."""
        if not self.equal(first, second):
            raise NoRule(f"{first} and {second} differ")
        return first if not isinstance(first, Scalar) else second

    def is_one(self, size: Dim) -> bool:
        return self.equal(size, 1)

    def smaller(self, first: Dim, second: Dim) -> Dim:
        return first if self.holds("le", first, second) else second

    def known(self, value: Any) -> int:
        """A number that is no symbol: pinned if it was one."""
        if isinstance(value, Scalar):
            self.pinned.append(value)
            self.numbers.pin_scalar(value)
            return int(self.numbers.value(value))
        return value

    def axis(self, name: str = "dim", rank: int = -1, default: int = 0) -> int:
        rank = self.type("self").rank if rank < 0 else rank
        axis = self.known(self.arg(name, default))
        return axis % rank if rank else 0

    def is_contiguous(self, type: TensorType) -> bool:
        """Row-major, as torch says: axes of one element do not count."""
        step: Dim = 1
        for size, stride in zip(reversed(type.sizes), reversed(type.strides)):
            if type.sizes and 0 in type.sizes:
                return True
            if stride != normal(step) and not self.is_one(size) and not self.equal(stride, step):
                return False
            step = step * size
        return True


Rule = Callable[[Call], list[Shape]]



# ---------------------------------------------------------------------------- layouts
def type_is(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def broadcast(call: Call, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The sizes that all of `shapes` are broadcast to."""
    rank = max(map(len, shapes), default=0)
    made: list[Dim] = []
    for place in range(-rank, 0):
        size: Dim = 1
        for shape in shapes:
            if -place > len(shape):
                continue
            other = shape[place]
            if other == size or type(other) is int and other == 1:
                continue
            if type(size) is int and size == 1:
                size = other
            elif not call.equal(size, other):
                if call.is_one(size):
                    size = other
                elif not call.is_one(other):
                    raise NoRule(f"{size} and {other} are not broadcast")
            elif isinstance(size, Scalar):
                size = other if not isinstance(other, Scalar) else size
        made.append(size)
    return tuple(made)


def row_major(sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides without gaps, in normal form."""
    return tuple(map(normal, contiguous_strides(sizes)))


def is_row_major(type: TensorType) -> bool:
    """Whether its strides are those for all sizes, axes of one element included."""
    return type.strides == row_major(type.sizes)


def dense_like(call: Call, sizes: tuple[Dim, ...], *models: TensorType) -> Shape:
    """What TensorIterator gives to an output: the order of the operands' axes, without gaps.

    Row-major operands, repeated or not, never ask for another order: of two axes with equal strides
    the inner one has one element. Zero strides have no say.
    """
    models = tuple(m for m in models if m.rank)
    if all(is_row_major(m) or _is_repeated_row_major(m) for m in models):
        return sizes, None
    full = [m for m in models if m.sizes == sizes]
    if len(full) == len(models):
        if all(call.is_contiguous(m) for m in full):
            return sizes, None
        first = full[0].strides
        if all(m.strides == first for m in full) and is_dense(call, full[0]):
            return sizes, first
    order = _order_of_iterator(call, sizes, models)
    strides: list[Dim] = [1] * len(sizes)
    step: Dim = 1
    for axis in order:
        strides[axis] = normal(step)
        step = step * sizes[axis]
    return sizes, tuple(strides)


def _is_repeated_row_major(type: TensorType) -> bool:
    """A row-major tensor in which some axes are expanded."""
    kept = [k for k, n in enumerate(type.strides) if not type_is(n, 0)]
    sizes = tuple(type.sizes[k] for k in kept)
    return tuple(type.strides[k] for k in kept) == row_major(sizes)


def _order_of_iterator(
    call: Call, sizes: tuple[Dim, ...], models: Sequence[TensorType],
) -> list[int]:
    """The axes from the fastest on, as `TensorIteratorBase::reorder_dimensions` sorts them."""
    rank = len(sizes)
    strides = []
    for model in models:
        shift = rank - model.rank
        strides.append([
            0 if axis < shift or (model.sizes[axis - shift] != sizes[axis]
                                  and call.is_one(model.sizes[axis - shift]))
            else model.strides[axis - shift] for axis in range(rank)
        ])
    order = list(range(rank - 1, -1, -1))

    def should_swap(first: int, second: int) -> int:
        for own in strides:
            a, b = own[first], own[second]
            if _is_zero(call, a) or _is_zero(call, b):
                continue
            if a != b and call.holds("lt", a, b):
                return -1
            if a != b and call.holds("gt", a, b):
                return 1
            if sizes[first] != sizes[second] and call.holds("gt", sizes[first], sizes[second]):
                return 1
        return 0

    for i in range(1, rank):
        place = i
        for j in range(i - 1, -1, -1):
            comparison = should_swap(order[j], order[place])
            if comparison > 0:
                order[j], order[place] = order[place], order[j]
                place = j
            elif comparison < 0:
                break
    return order


def _is_zero(call: Call, stride: Dim) -> bool:
    """Whether an axis is repeated. A stride that is made of sizes alone is not."""
    if not isinstance(stride, Scalar):
        return stride == 0
    return not all(map(is_size, symbols(stride))) and call.holds("eq", stride, 0)


def is_dense(call: Call, type: TensorType) -> bool:
    """No gaps and no overlaps, in some order of the axes; the order is that of the strides now."""
    value = call.numbers.value
    axes = [a for a in range(type.rank) if not (isinstance(type.sizes[a], int) and type.sizes[a] == 1)]
    step: Dim = 1
    for axis in sorted(axes, key=lambda a: (value(type.strides[a]), value(type.sizes[a]))):
        if not call.equal(type.strides[axis], normal(step)):
            return False
        step = step * type.sizes[axis]
    return True


def preserved(call: Call, type: TensorType) -> Shape:
    """`type` copied with torch.preserve_format."""
    if is_row_major(type):
        return type.sizes, None
    if is_dense(call, type):
        return type.sizes, type.strides
    return dense_like(call, type.sizes, type)


def formatted(call: Call, type: TensorType, default: str = "preserve_format") -> Shape:
    """`type` copied with the memory format of the call."""
    given = call.args.get("memory_format")
    name = given.name if isinstance(given, Token) else default
    if name == "contiguous_format":
        return type.sizes, None
    if name == "preserve_format":
        return preserved(call, type)
    if type.rank == len(_CHANNELS_LAST.get(name, ())):
        return type.sizes, channels_last(type.sizes)
    raise NoRule(f"memory format {name}")


def _asks_contiguous(call: Call, type: TensorType, memory_format: str) -> bool:
    if memory_format == "contiguous_format":
        return is_row_major(type) or call.is_contiguous(type)
    order = _CHANNELS_LAST.get(memory_format, ())
    if type.rank != len(order):
        return False
    step: Dim = 1
    for axis in order:
        if not call.is_one(type.sizes[axis]):
            if not call.equal(type.strides[axis], normal(step)):
                return False
            step = step * type.sizes[axis]
    return True


def _asks_strides_like(call: Call, type: TensorType, memory_format: str) -> bool:
    """`is_channels_last_strides_2d_s4` of c10/core/MemoryFormat.h."""
    order = _CHANNELS_LAST.get(memory_format, ())
    if type.rank != len(order) or call.equal(type.strides[1], 0):
        return False
    least: Dim = 0
    for axis in order:
        if 0 in type.sizes or call.holds("lt", type.strides[axis], least):
            return False
        if axis == 0 and call.equal(least, type.strides[1]):
            return False
        least = type.strides[axis]
        if call.holds("gt", type.sizes[axis], 1):
            least = normal(least * type.sizes[axis])
    return True


def _asks_dense(call: Call, type: TensorType, memory_format: str) -> bool:
    return is_row_major(type) or is_dense(call, type)


_CHANNELS_LAST = {"channels_last": (1, 3, 2, 0), "channels_last_3d": (1, 4, 3, 2, 0)}
LAYOUT_QUESTIONS: dict[str, Callable[[Call, TensorType, str], bool | None]] = {
    "aten::sym_is_contiguous": _asks_contiguous, "aten::is_contiguous": _asks_contiguous,
    "aten::is_strides_like_format": _asks_strides_like,
    "aten::is_non_overlapping_and_dense": _asks_dense,
    **{f"aten::{name}": lambda call, type, memory_format: None
       for name in ("sym_stride", "sym_size", "sym_numel", "sym_storage_offset", "stride", "size")},
}
"""What C++ asks about a tensor that is shown to it, by the op that the question comes as."""


def channels_last(sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of images whose channels lie together, in normal form."""
    strides: list[Dim] = [1] * len(sizes)
    step: Dim = 1
    for axis in _CHANNELS_LAST["channels_last" if len(sizes) == 4 else "channels_last_3d"]:
        strides[axis] = normal(step)
        step = step * sizes[axis]
    return tuple(strides)


def is_channels_last(call: Call, type: TensorType) -> bool:
    """Whether torch takes an image for one with channels last (`suggest_memory_format`)."""
    if type.rank not in (4, 5) or is_row_major(type):
        return False
    if type.strides == channels_last(type.sizes):  # then it is one unless an image is one number
        return call.holds("gt", normal(product(type.sizes[1:])), 1)
    return any(_asks_strides_like(call, type, name) for name in _CHANNELS_LAST)


def images(
    call: Call, type: TensorType, sizes: tuple[Dim, ...], is_dense_asked: bool = False, place: int = 0,
) -> Shape:
    """Images of these sizes, made of `type`: channels last if its are, and the op keeps that. `is_dense_asked`: C goes
    another way where they have gaps. `place`: which result it is."""
    is_last = is_channels_last(call, type)
    asked = "channels_last" if type.rank == 4 else "channels_last_3d"
    if is_dense_asked and not is_row_major(type) and is_last is not _asks_contiguous(call, type, asked):
        raise NoRule("an image with gaps, or of axes of one element")
    return sizes, channels_last(sizes) if is_last and keeps_channels_last(call, len(sizes), place) else None


def keeps_channels_last(call: Call, rank: int, place: int = 0) -> bool:
    """Whether an op makes images with channels last of such. All do on a CPU, of two axes. On a GPU, and of three axes,
    some do and some do not, for all sizes: what torch has given says which. Raises NoRule where that says nothing."""
    real = call.real[place]
    if real.device == "cpu" and rank == 4:
        return True
    pairs = [(a, b) for a, b, n in zip(channels_last(real.sizes), real.strides, real.sizes) if n != 1]
    is_last = all(a == b for a, b in pairs)
    is_row = all(a == b for a, b, n in zip(row_major(real.sizes), real.strides, real.sizes) if n != 1)
    if is_last is is_row:
        raise NoRule("an image of one channel, or of one number a channel")
    return is_last


def never_channels_last(call: Call, type: TensorType) -> None:
    """Raises NoRule for an image with channels last, of an op of which it is not known what it makes of that."""
    if is_channels_last(call, type):
        raise NoRule("channels last")
