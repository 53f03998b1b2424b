"""Size rules: what sizes and strides an op gives, for any sizes that it is given.

    RULES["mm"](call)      [((n3, 8), None)]      one pair a result; strides None: row-major

A rule computes with expressions (`ir/dims.py`) and asks `call` for what it must know of them; each
answer becomes a guard. So it says what torch says for all sizes with the same answers. `NoRule` means
that it does not know, and the sizes are pinned: what a rule gives is compared with what torch gave at
the sizes of the capture, but at other sizes nobody compares. Every rule is fuzzed against eager
(`tests/sizes`).

Sizes are at least 1 where they are symbols. """

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from preheat.capture.size_attention import ATTENTION
from preheat.capture.size_compute import COMPUTED, full_reduction, pointwise
from preheat.capture.size_gradients import GRADIENTS
from preheat.capture.size_images import IMAGES
from preheat.capture.size_layers import LAYERS
from preheat.capture.size_linalg import LINALG
from preheat.capture.size_transforms import TRANSFORMS
from preheat.capture.size_views import VIEWS
from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, broadcast, channels_last, dense_like, is_channels_last, is_row_major,
    never_channels_last,
)
from preheat.ir.dims import divided, normal
from preheat.ir.graph import Ref
from preheat.ir.scalar import Dim, apply, type_of
from preheat.ir.types import TensorType


# ---------------------------------------------------------------------------- creation
def _filled(call: Call) -> list[Shape]:
    return [(tuple(call.arg("size", ())), None)]


def _uniform(call: Call) -> list[Shape]:
    return [(call.type("like").sizes, None)]


def _arange(call: Call) -> list[Shape]:
    """ceil((end - start) / step) elements, of ints."""
    given = call.arg("start", 0), call.arg("end"), call.arg("step", 1)
    start, end, step = (_number(call, n) for n in given)
    if any(type_of(n) == "float" for n in (start, end, step)) or call.equal(step, 0):
        raise NoRule("arange of floats")
    if call.holds("lt", step, 0):
        start, end, step = end, start, normal(apply("neg", step))
    if not call.holds("ge", end, start):
        raise NoRule("an empty arange")
    length = normal(apply("sub", end, start))
    whole = divided(length, step)
    if whole is None:
        whole = normal(apply("floordiv", apply("sub", length + step, 1), step))
    return [((whole,), None)]


def _number(call: Call, value: Any) -> Any:
    if isinstance(value, Ref):
        raise NoRule("a number that is an input")
    return value


def _eye(call: Call) -> list[Shape]:
    rows = call.arg("n")
    return [((rows, call.arg("m", rows)), None)]


def _made(call: Call) -> list[Shape]:
    """Windows, frequencies, and rows and columns of triangles: see `bridge/factories.py`."""
    name, sizes, others = (call.arg(key) for key in ("name", "sizes", "others"))
    if name == "fft.rfftfreq":
        return [((normal(apply("floordiv", sizes[0], 2) + 1),), None)]
    if "_indices" not in name:
        return [(tuple(sizes), None)]
    rows, columns, offset = sizes
    if name == "tril_indices":
        return [((2, _below(call, rows, columns, offset)), None)]
    return [((2, normal(rows * columns - _below(call, rows, columns, normal(offset - 1)))), None)]


def _below(call: Call, rows: Dim, columns: Dim, offset: Dim) -> Dim:
    """The elements on the diagonal `offset` and below it. Source: `get_tril_size` of ATen/native/TensorFactories.h."""
    if call.equal(rows, 0) or call.equal(columns, 0):
        return 0
    if call.holds("gt", offset, 0):
        first = call.smaller(columns, normal(offset + 1))
    else:
        first = int(call.holds("gt", normal(rows + offset), 0))
    reach = normal(rows + offset)
    last = call.smaller(columns, reach) if call.holds("gt", reach, 0) else 0
    some = call.smaller(rows, reach) if call.holds("gt", reach, 0) else 0
    sloped = normal(last - first + 1)
    size = apply("floordiv", normal((first + last) * sloped), 2)
    over = normal(some - sloped)
    return normal(size + over * columns) if call.holds("gt", over, 0) else normal(size)


# ---------------------------------------------------------------------------- indexing
def _embedding(call: Call) -> list[Shape]:
    indices = call.type("indices")
    return [((*indices.sizes, call.type("weight").sizes[1]), None)]


def _gather(call: Call) -> list[Shape]:
    return [(call.type("index").sizes, None)]


def _index_select(call: Call) -> list[Shape]:
    type, index = call.type("self"), call.type("index")
    if not type.rank:
        raise NoRule("index_select")
    axis = call.axis()
    length = index.sizes[0] if index.rank else 1
    return [(tuple(length if k == axis else n for k, n in enumerate(type.sizes)), None)]


def _index(call: Call) -> list[Shape]:
    """The sizes of the indices in place of the axes that they are of, in front if these are not
    neighbours; in the order of axes that TensorIterator finds for `self` and the indices. Source:
    `AdvancedIndex` of aten/src/ATen/native/TensorAdvancedIndexing.cpp."""
    type, indices = call.type("self"), call.arg("indices", ())
    taken = [k for k, index in enumerate(indices) if isinstance(index, Ref)]
    given = [call.types[indices[k].id] for k in taken]
    if any(t.dtype in ("bool", "uint8") for t in given) or not taken:
        raise NoRule("a mask")
    shape = broadcast(call, *(t.sizes for t in given))
    is_together = taken == list(range(taken[0], taken[0] + len(taken)))
    kept = [k for k in range(type.rank) if k not in taken]
    before = [k for k in kept if is_together and k < taken[0]]
    after = kept[len(before):]
    sizes = (*(type.sizes[k] for k in before), *shape, *(type.sizes[k] for k in after))
    if before and type.device != "cpu":
        raise NoRule("an index behind other axes, on a GPU")
    if not before and all(map(is_row_major, (type, *given))):
        return [(sizes, None)]
    if type.device != "cpu":
        raise NoRule("an index of another layout, on a GPU")
    source = replace(type, sizes=sizes, strides=(
        *(type.strides[k] for k in before), *[0] * len(shape), *(type.strides[k] for k in after)))
    models = [_stretched(call, index, shape, len(before), len(after)) for index in given]
    return [dense_like(call, sizes, source, *models)]


def _stretched(
    call: Call, index: TensorType, shape: Sequence[Dim], before: int, after: int,
) -> TensorType:
    """An index broadcast to `shape`, between axes that it says nothing of."""
    missing = len(shape) - index.rank
    strides = [
        0 if size != own and call.is_one(own) else step
        for size, own, step in zip(shape[missing:], index.sizes, index.strides)]
    return replace(
        index, sizes=(*[1] * before, *shape, *[1] * after),
        strides=(*[0] * (before + missing), *strides, *[0] * after))


# ---------------------------------------------------------------------------- putting together
def _cat(call: Call) -> list[Shape]:
    tensors = [t for t in call.of(call.arg("tensors", ())) if t.sizes != (0,)]
    if not tensors:
        raise NoRule("nothing to concatenate")
    is_last = not any(map(is_row_major, tensors)) and all([is_channels_last(call, t) for t in tensors])
    axis = call.known(call.arg("dim", 0)) % tensors[0].rank
    sizes = list(tensors[0].sizes)
    for other in tensors[1:]:
        for k, n in enumerate(other.sizes):
            sizes[k] = sizes[k] + n if k == axis else call.same(sizes[k], n)
    sizes[axis] = normal(sizes[axis])
    return [(tuple(sizes), channels_last(tuple(sizes)) if is_last else None)]


def _block_diagonal(call: Call) -> list[Shape]:
    """Rows and columns add up; a vector is one row, a number one of one."""
    rows: Dim = 0
    columns: Dim = 0
    for type in call.of(call.arg("tensors", ())):
        own = (1, 1, *type.sizes)[-2:]
        rows, columns = rows + own[0], columns + own[1]
    return [((normal(rows), normal(columns)), None)]


def _stack(call: Call) -> list[Shape]:
    tensors = call.of(call.arg("tensors", ()))
    sizes = list(tensors[0].sizes)
    for other in tensors[1:]:
        sizes = [call.same(a, b) for a, b in zip(sizes, other.sizes, strict=True)]
    axis = call.known(call.arg("dim", 0)) % (len(sizes) + 1)
    sizes.insert(axis, len(tensors))
    return [(tuple(sizes), None)]


def _histogram(call: Call) -> list[Shape]:
    return [((call.arg("bins", 100),), None)]


def _repeat(call: Call) -> list[Shape]:
    type, repeats = call.type("self"), call.arg("repeats", ())
    own = (1,) * (len(repeats) - type.rank) + type.sizes
    return [(tuple(normal(n * r) for n, r in zip(own, repeats, strict=True)), None)]


def _rolled(call: Call) -> list[Shape]:
    """Two parts put together in another order."""
    never_channels_last(call, call.type("self"))
    return [(call.type("self").sizes, None)]


_OTHERS: dict[Rule, str] = {
    _filled: "zeros ones empty full scalar_tensor new_zeros new_ones new_empty new_full rand randn randint",
    _arange: "arange",
    _made: "made",
    _eye: "eye",
    _embedding: "embedding",
    _gather: "gather take",
    _index_select: "index_select",
    _index: "index",
    _cat: "cat",
    _block_diagonal: "block_diag",
    _stack: "stack",
    _histogram: "histc",
    _repeat: "repeat",
    _rolled: "roll",
}


_TABLES = (ATTENTION, COMPUTED, VIEWS, IMAGES, LAYERS, LINALG, TRANSFORMS, GRADIENTS, _OTHERS)
RULES: dict[str, Rule] = {
    name: rule for table in _TABLES for rule, names in table.items() for name in names.split()
} | {
    "aten.max.default": full_reduction, "aten.min.default": full_reduction,
    "aten.median.default": full_reduction, "aten.nanmedian.default": full_reduction,
    "aten.max.other": pointwise, "aten.min.other": pointwise,
    "preheat.uniform.default": _uniform,
}
"""By full name, or by the name of the op without overload."""
