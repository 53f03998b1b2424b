"""Sizes and strides of views, and whether there is one.

Rules of `size_rules.py`. Source: `ATen/TensorUtils.cpp`, `ATen/native/TensorShape.cpp`.
"""

from collections.abc import Sequence
from typing import Any

from preheat.capture.numbers import Numbers
from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, is_row_major, preserved, row_major, type_is,
)
from preheat.ir.dims import divided, normal
from preheat.ir.scalar import Dim, Scalar, apply, product
from preheat.ir.types import TensorType


_INT_MAX = (1 << 63) - 1


# ---------------------------------------------------------------------------- views
def whole_size(call: Call, type: TensorType, size: Sequence[Dim]) -> tuple[Dim, ...]:
    """`size` with what -1 stands for."""
    made = list(size)
    unknown = [k for k, n in enumerate(made) if type_is(n, -1)]
    total = type.elems
    if not unknown:
        call.same(normal(total), normal(product(made)))
        return tuple(made)
    (place,) = unknown
    rest = normal(product(n for k, n in enumerate(made) if k != place))
    quotient = call.numbers.normal(_quotient(call, normal(total), rest))
    made[place] = quotient
    return tuple(made)


def _quotient(call: Call, total: Dim, by: Dim) -> Dim:
    """total / by, which is exact."""
    from_parts = divided(total, by)
    if from_parts is not None:
        if isinstance(by, Scalar) and not call.holds("ne", by, 0):
            raise NoRule("a size of 0")
        return from_parts
    if not call.holds("ne", by, 0) or not call.holds("eq", apply("mod", total, by), 0):
        raise NoRule(f"{total} is not divided by {by}")
    return apply("floordiv", total, by)


def view_strides(
    call: Call, type: TensorType, sizes: Sequence[Dim],
) -> tuple[Dim, ...] | None:
    """The strides of a view, None if there is none: `computeStride_impl` of ATen/TensorUtils.cpp."""
    if 0 in type.sizes or not type.sizes:
        return None if type.sizes else (1,) * len(sizes)
    old_sizes, old_strides = type.sizes, type.strides
    if tuple(sizes) == old_sizes:
        return old_strides
    made: list[Dim] = [1] * len(sizes)
    view_axis = len(sizes) - 1
    chunk_base: Dim = old_strides[-1]
    tensor_count: Dim = 1
    for axis in range(len(old_sizes) - 1, -1, -1):
        tensor_count = normal(tensor_count * old_sizes[axis])
        if axis > 0:
            expected = normal(tensor_count * chunk_base)
            if old_strides[axis - 1] == expected or call.is_one(old_sizes[axis - 1]):
                continue
            if call.equal(old_strides[axis - 1], expected):
                continue
        count = _taken(call, sizes[: view_axis + 1], tensor_count)
        if count is None:
            return None
        view_count: Dim = 1
        for _ in range(count):
            made[view_axis] = normal(view_count * chunk_base)
            view_count = view_count * sizes[view_axis]
            view_axis -= 1
        if axis > 0:
            chunk_base, tensor_count = old_strides[axis - 1], 1
    return tuple(made) if view_axis == -1 else None


def _taken(call: Call, sizes: Sequence[Dim], elems: Dim) -> int | None:
    """How many axes from the last one on have `elems` elements, those of one element included."""
    total: Dim = 1
    products = [total]
    for size in reversed(sizes):
        total = normal(total * size)
        products.append(total)
    if elems in products:
        return max(k for k, n in enumerate(products) if n == elems)
    for count, total in enumerate(products):
        if call.equal(total, elems):
            while count < len(sizes) and call.is_one(sizes[-1 - count]):
                count += 1
            return count
    return None


def can_view(call: Call, type: TensorType, sizes: Sequence[Dim]) -> bool:
    """Whether `reshape` to `sizes` is a view."""
    return view_strides(call, type, whole_size(call, type, sizes)) is not None


def _in_parts(call: Call, type: TensorType) -> list[Shape]:
    """Elements as others, of as many bytes or of fewer each; whether more may be read together hangs on where they lie."""
    ratio, rest = divmod(type.itemsize, call.real[0].itemsize)
    if rest or not ratio:
        raise NoRule("elements read together")
    if ratio == 1:
        return [(type.sizes, type.strides)]
    if not call.equal(type.strides[-1], 1):
        raise NoRule("elements that do not lie side by side")
    *sizes, last = type.sizes
    return [((*sizes, normal(last * ratio)), (*(normal(stride * ratio) for stride in type.strides[:-1]), 1))]


def _view(call: Call) -> list[Shape]:
    type = call.type("self")
    if "dtype" in call.args:
        return _in_parts(call, type)
    sizes = whole_size(call, type, call.arg("size", ()))
    strides = view_strides(call, type, sizes)
    if strides is None:
        raise NoRule("a view that is none")
    return [(sizes, strides)]


def _unsafe_view(call: Call) -> list[Shape]:
    """Of a tensor without gaps, in most cases: then nothing need be asked."""
    return [(whole_size(call, call.type("self"), call.arg("size", ())), None)] if is_row_major(
        call.type("self")) else _view(call)


def _expand(call: Call) -> list[Shape]:
    type, size = call.type("self"), call.arg("size", ())
    shift = len(size) - type.rank
    sizes: list[Dim] = []
    strides: list[Dim] = []
    for place in range(len(size) - 1, -1, -1):
        own = place - shift
        have = type.sizes[own] if own >= 0 else 1
        step = type.strides[own] if own >= 0 else normal(sizes[0] * strides[0]) if sizes else 1
        wanted = size[place]
        if type_is(wanted, -1):
            wanted = have
        if type_is(have, 1) and not type_is(wanted, 1):
            step = 0  # where `wanted` is 1, a stride says nothing
        elif have != wanted and not call.equal(have, wanted):
            if not call.is_one(have):
                raise NoRule("expand")
            step = 0
        sizes.insert(0, wanted)
        strides.insert(0, step)
    return [(tuple(sizes), tuple(strides))]


def _permuted(type: TensorType, order: Sequence[int]) -> list[Shape]:
    return [(tuple(type.sizes[k] for k in order), tuple(type.strides[k] for k in order))]


def _permute(call: Call) -> list[Shape]:
    type = call.type("self")
    return _permuted(type, [call.known(k) % type.rank for k in call.arg("dims", ())])


def _transpose(call: Call) -> list[Shape]:
    type = call.type("self")
    order = list(range(type.rank))
    if order:
        first, second = (call.known(call.arg(name, 0)) % type.rank for name in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    return _permuted(type, order)


def _t(call: Call) -> list[Shape]:
    type = call.type("self")
    return _permuted(type, list(reversed(range(type.rank))))


def _squeeze(call: Call) -> list[Shape]:
    type = call.type("self")
    given = call.args.get("dim")
    if given is None:
        axes = set(range(type.rank))
    else:
        axes = {call.known(k) % max(type.rank, 1)
                for k in (given if isinstance(given, tuple) else (given,))}
    gone = {k for k in axes if k < type.rank and call.is_one(type.sizes[k])}
    return _permuted(type, [k for k in range(type.rank) if k not in gone])


def _unsqueeze(call: Call) -> list[Shape]:
    type = call.type("self")
    axis = call.axis(rank=type.rank + 1)
    step = normal(type.sizes[axis] * type.strides[axis]) if axis < type.rank else 1
    sizes, strides = list(type.sizes), list(type.strides)
    sizes.insert(axis, 1)
    strides.insert(axis, step)
    return [(tuple(sizes), tuple(strides))]


def _select(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis()
    size, index = type.sizes[axis], call.arg("index", 0)
    if not (call.holds("ge", index, apply("neg", size)) and call.holds("lt", index, size)):
        raise NoRule("select out of range")
    return _permuted(type, [k for k in range(type.rank) if k != axis])


def _bound(call: Call, given: Any, size: Dim, default: Dim) -> Dim:
    """A bound of a slice: from the end where it is negative, clamped to the axis."""
    if given is None:
        return default
    if type(given) is int and given == _INT_MAX:
        return size
    if call.holds("lt", given, 0):
        given = normal(given + size)
        if call.holds("lt", given, 0):
            return 0
    return given if call.holds("le", given, size) else size


_LARGEST_STEP = 1 << 31  # beyond it strides are no words


def _slice(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis()
    size, step = type.sizes[axis], call.arg("step", 1)
    if not (call.holds("gt", step, 0) and call.holds("le", step, _LARGEST_STEP)):
        step = call.known(step)
    start = _bound(call, call.args.get("start"), size, 0)
    end = _bound(call, call.args.get("end"), size, size)
    if not call.holds("ge", end, start):
        end = start
    length = normal(apply("sub", end, start))
    if isinstance(step, Scalar) and not call.holds("gt", length, 0):
        step = call.known(step)  # strides of what has no elements follow from it, and those of what is made of that
    if not type_is(step, 1):
        length = normal(apply("floordiv", apply("add", length, step) - 1, step))
    sizes, strides = list(type.sizes), list(type.strides)
    sizes[axis], strides[axis] = length, normal(strides[axis] * step)
    return [(tuple(sizes), tuple(strides))]


def are_slices_apart(numbers: Numbers, type: TensorType, first: dict, second: dict) -> bool:
    """Whether two slices of a tensor of this type, by their arguments, have no element in common."""
    call = Call("", {}, {}, (), numbers)
    axis, other = (call.known(given["dim"]) % type.rank for given in (first, second))
    if axis != other or not all(type_is(given["step"], 1) for given in (first, second)):
        return False
    size = type.sizes[axis]
    (start, end), (begin, stop) = (
        (_bound(call, given["start"], size, 0), _bound(call, given["end"], size, size)) for given in (first, second))
    return call.holds("le", end, begin) or call.holds("le", stop, start)


def _parts(call: Call, lengths: Sequence[Dim]) -> list[Shape]:
    type, axis = call.type("self"), call.axis()
    return [
        (tuple(n if k == axis else m for k, m in enumerate(type.sizes)), type.strides)
        for n in lengths
    ]


def _split(call: Call) -> list[Shape]:
    """Pieces of equal size, the last may be shorter: how many there are is guarded."""
    size, length = call.type("self").sizes[call.axis()], call.arg("split_size")
    count = len(call.real)
    if not call.holds("gt", length, 0):
        raise NoRule("split of size 0")
    before = normal(length * (count - 1))
    if count > 1 and not call.holds("gt", size, before):
        raise NoRule("split")
    if not call.holds("le", size, normal(before + length)):
        raise NoRule("split")
    last = normal(apply("sub", size, before))
    return _parts(call, [*(length for _ in range(count - 1)), last])


def _split_with_sizes(call: Call) -> list[Shape]:
    lengths = call.arg("split_sizes", ())
    size = call.type("self").sizes[call.axis()]
    total: Dim = 0
    for length in lengths:
        total = total + length
    call.same(normal(total), size)
    return _parts(call, lengths)


def _unbind(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis()
    call.known(type.sizes[axis])
    return _permuted(type, [k for k in range(type.rank) if k != axis]) * len(call.real)


def _unfold(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis("dimension")
    size, step = call.arg("size"), call.arg("step")
    if not type.rank:
        raise NoRule("windows of a number")
    if not call.holds("le", size, type.sizes[axis]):
        raise NoRule("unfold")
    count = normal(apply("floordiv", type.sizes[axis] - size, step) + 1)
    sizes, strides = list(type.sizes), list(type.strides)
    sizes[axis], strides[axis] = count, normal(strides[axis] * step)
    return [((*sizes, size), (*strides, type.strides[axis]))]


def _diagonal(call: Call) -> list[Shape]:
    type = call.type("self")
    first, second = call.axis("dim1", default=0), call.axis("dim2", default=1)
    offset = call.known(call.arg("offset", 0))
    rows, columns = type.sizes[first], type.sizes[second]
    if offset >= 0:
        columns = normal(apply("sub", columns, offset))
    else:
        rows = normal(rows + offset)
    length = call.smaller(rows, columns)
    if not call.holds("ge", length, 0):
        raise NoRule("an empty diagonal")
    kept = [k for k in range(type.rank) if k not in (first, second)]
    sizes = tuple(type.sizes[k] for k in kept) + (length,)
    step = normal(type.strides[first] + type.strides[second])
    return [(sizes, tuple(type.strides[k] for k in kept) + (step,))]


def _rotated(call: Call) -> list[Shape]:
    """A quarter turn flips one axis and changes places of two; half a turn flips both."""
    type = call.type("self")
    sizes, strides = preserved(call, type)
    strides = row_major(sizes) if strides is None else strides
    order = list(range(type.rank))
    if call.known(call.arg("k", 1)) % 2:
        first, second = (call.known(axis) % type.rank for axis in call.arg("dims", (0, 1)))
        order[first], order[second] = order[second], order[first]
    return [(tuple(sizes[k] for k in order), tuple(strides[k] for k in order))]


def _copied(call: Call) -> list[Shape]:
    """A row-major copy of what the view is."""
    made = _BY_NAME[call.name.split(".")[1].removesuffix("_copy")](call)
    return [(sizes, None) for sizes, _ in made]


VIEWS: dict[Rule, str] = {
    _copied: """expand_copy view_copy permute_copy transpose_copy t_copy squeeze_copy unsqueeze_copy select_copy slice_copy
        split_copy split_with_sizes_copy unbind_copy unfold_copy diagonal_copy""",
    _rotated: "rot90",
    _view: "view",
    _unsafe_view: "_unsafe_view",
    _expand: "expand",
    _permute: "permute",
    _transpose: "transpose",
    _t: "t",
    _squeeze: "squeeze",
    _unsqueeze: "unsqueeze",
    _select: "select",
    _slice: "slice",
    _split: "split unsafe_split",
    _split_with_sizes: "split_with_sizes unsafe_split_with_sizes",
    _unbind: "unbind",
    _unfold: "unfold",
    _diagonal: "diagonal",
}
"""Rules, and the ops that they are of."""
_BY_NAME = {name: rule for rule, names in VIEWS.items() for name in names.split()}
