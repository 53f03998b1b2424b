"""Sums of exponentials below a largest value, and of squares about a mean, where both are cut in parts: each part
has its own.

    m = max(x: [64, 1048576]); s = sum(exp(x - m))
      ->
    p = max(reshape(x): [64, 16, 65536]);  q = sum(exp(x - p))         one pass, 1024 rows
    m = max(p); s = sum(q * exp(p - m))                                16 of them for each row

So a softmax of few long rows reads them twice, once for both and once for its result, and not three
times. A part of which all is -inf adds nothing, unless all of the row is: then s is NaN, as it was.

    m = sum(x: [4096, 64]) / 4096; v = sum((x - m)^2)
      ->
    p = sum(reshape(x): [32, 128, 64]) / 128;  q = sum((x - p)^2)      one pass, 32 rows of parts
    m = sum(p * 128) / 4096;  v = sum(q + 128 * (p - m)^2)

So the statistics of a batch norm read its images once, and are no less exact than those of two passes.

Requires level core. Guarantees: the rounding of a scaled sum.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.hinted import quotient
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType, Type, tensor

FLOATS = ("float32", "float64")


class Cut(NamedTuple):
    """A reduction in parts. value: what the parts are of, with one axis as two; parts: the result of each; first,
    second: the axes that are reduced in the parts, and of these; each: elements of a part; size: of the axis, where
    it is padded: the last parts have fewer then. abreast: rows of columns that are one (`abreast`): so many parts
    lie one after the other in one of `parts`, and `size` is that of all columns."""

    value: int
    parts: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    each: Dim
    size: Dim | None = None
    abreast: int = 1


def exponentials(graph: Graph, types: Mapping[int, Type]) -> dict[int, int]:
    """The sums of exp(value - largest) along one axis, which all but the sum keep: the largest of
    each."""
    by_value = {op.results[0]: op for op in graph.ops if len(op.results) == 1}
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.name != "sum" or op.type.dtype not in FLOATS:
            continue
        power = by_value.get(op.args[0].id)
        below = by_value.get(power.args[0].id) if power is not None and power.name == "exp" else None
        if below is None or below.name != "sub" or not all(isinstance(a, Ref) for a in below.args):
            continue
        value, spread = (arg.id for arg in below.args)
        made = by_value.get(spread)
        largest = made.args[0].id if made is not None and made.name == "expand" else spread
        first = by_value.get(largest)
        is_pair = first is not None and first.name == "max" and first.attr("keepdim") and (
            first.args == (Ref(value),) and first.attr("axes") == op.attr("axes"))
        if is_pair and len(op.attr("axes")) == 1 and types[value].sizes == below.type.sizes:
            found[op.result] = largest
    return found


def write_parts(builder: Builder, op: Op, cut: Cut, largest: int) -> None:
    """Appends the sum `op` of exponentials below `largest`, which was cut as `cut` says."""
    whole, part = builder.type_of[cut.value], builder.type_of[cut.parts]
    (axis,) = (0,) if cut.abreast > 1 else cut.second

    def like(sizes: tuple, dtype: str = part.dtype) -> TensorType:
        return tensor(dtype, sizes, device=whole.device)

    spread = builder.add("expand", [cut.parts], _expanded(part, whole.sizes))
    below = builder.add("sub", [cut.value, spread], like(whole.sizes))
    power = builder.add("exp", [below], like(whole.sizes))
    sums = builder.add("sum", [power], part, axes=cut.first, keepdim=True)
    parts, sums = _rows_apart(builder, cut, cut.parts), _rows_apart(builder, cut, sums)
    part = builder.type_of[parts]
    one = (*part.sizes[:axis], 1, *part.sizes[axis + 1 :])
    most = builder.add("reshape", [largest], like(one))
    most = builder.add("expand", [most], _expanded(builder.type_of[most], part.sizes))
    scale = builder.add("exp", [builder.add("sub", [parts, most], part)], part)
    scaled = builder.add("mul", [sums, scale], part)
    least = builder.add("full", [], part, value=float("-inf"))
    is_nothing = builder.add("eq", [parts, least], like(part.sizes, "bool"))
    zero = builder.add("mul", [most, builder.add("full", [], part, value=0.0)], part)
    scaled = builder.add("where", [is_nothing, zero, scaled], part)  # NaN if all of the row is -inf
    total = builder.add("sum", [scaled], like(one), axes=(axis,), keepdim=True)
    builder.append(Op("reshape", (Ref(total),), op.results, op.types))


def _rows_apart(builder: Builder, cut: Cut, value: int) -> int:
    """`value`, which is one of each part, with the parts that lie one after the other below each other."""
    if cut.abreast == 1:
        return value
    type = builder.type_of[value]
    parts, _, wide = type.sizes
    sizes = parts * cut.abreast, quotient(wide, cut.abreast)
    return builder.add("reshape", [value], tensor(type.dtype, sizes, device=type.device))


def squares(graph: Graph, types: Mapping[int, Type]) -> dict[int, tuple[int, int]]:
    """The sums of (value - mean)^2 whose mean is a sum of `value` over the same axes, which it keeps, and a number:
    that sum and the mean of each."""
    by_value = {op.results[0]: op for op in graph.ops if len(op.results) == 1}

    def made(arg: object, name: str) -> Op | None:
        op = by_value.get(arg.id) if isinstance(arg, Ref) else None
        return op if op is not None and op.name == name else None

    found: dict[int, tuple[int, int]] = {}
    for op in graph.ops:
        if op.name != "sum" or op.type.dtype not in FLOATS:
            continue
        square = made(op.args[0], "mul")
        centred = made(square.args[0], "sub") if square is not None and square.args[0] == square.args[1] else None
        spread = made(centred.args[1], "expand") if centred is not None else None
        mean = by_value.get(spread.args[0].id) if spread is not None else None
        if mean is None or mean.name not in ("div", "mul") or made(mean.args[1], "full") is None:
            continue
        total = made(mean.args[0], "sum")
        is_pair = total is not None and total.attr("keepdim") and (
            total.args == centred.args[:1] and total.attr("axes") == op.attr("axes"))
        if is_pair and types[total.args[0].id].sizes == centred.type.sizes:
            found[op.result] = total.result, mean.result
    return found


def write_squares(builder: Builder, op: Op, cut: Cut, mean: int) -> None:
    """Appends the sum `op` of squares about `mean`, whose sum was cut as `cut` says: about the mean of each part, and
    those about the mean of all."""
    whole, part = builder.type_of[cut.value], builder.type_of[cut.parts]
    means, _ = _means(builder, cut, cut.parts)
    centred = builder.add("sub", [cut.value, builder.add("expand", [means], _expanded(part, whole.sizes))], whole)
    if cut.size is not None:
        centred = builder.add("mul", [centred, _there(builder, cut, whole)], whole)
    within = builder.add("sum", [builder.add("mul", [centred, centred], whole)], part, axes=cut.first, keepdim=True)
    within, second = _rows_apart(builder, cut, within), (0,) if cut.abreast > 1 else cut.second
    means, count = _means(builder, cut, _rows_apart(builder, cut, cut.parts))
    part = builder.type_of[within]
    total = tensor(part.dtype, tuple(1 if k in second else n for k, n in enumerate(part.sizes)), device=part.device)
    centre = builder.add("reshape", [mean], total)
    apart = builder.add("sub", [means, builder.add("expand", [centre], _expanded(total, part.sizes))], part)
    between = builder.add("mul", [builder.add("mul", [apart, apart], part), count], part)
    joined = builder.add("add", [within, between], part)
    value = builder.add("sum", [joined], total, axes=second, keepdim=True)
    builder.append(Op("reshape", (Ref(value),), op.results, op.types))


def _means(builder: Builder, cut: Cut, parts: int) -> tuple[int, int]:
    """The mean of each of the sums `parts`, and how many elements these are of."""
    part = builder.type_of[parts]
    if cut.size is None:
        count, share = (builder.add("full", [], part, value=value) for value in (float(cut.each), 1 / cut.each))
        return builder.add("mul", [parts, share], part), count  # about any number near the mean it would be right
    count = _counts(builder, cut, part)
    one = builder.add("full", [], part, value=1.0)
    return builder.add("div", [parts, builder.add("maximum", [count, one], part)], part), count


def _counts(builder: Builder, cut: Cut, part: TensorType) -> int:
    """How many elements that are not padding each part has, of a tensor of that type."""
    each, whole = cut.each, tensor("int64", part.sizes, device=part.device)

    def made(name: str, *args: int, **attrs: Any) -> int:
        return builder.add(name, args, whole, **attrs)

    if cut.abreast == 1:
        (axis,) = cut.second
        left = made("iota", axis=axis, start=cut.size, step=0 - each)
    else:  # the last row of those that are one has `last` places more than none: others have a row less there
        if part.rank == 2:
            rows, step = quotient(cut.size, part.sizes[1]), made("full", value=cut.abreast)
            place = made("iota", axis=0, start=0, step=1)
            part_of, place = made("floordiv", place, step), made("remainder", place, step)
            whole_rows, last = (rows - 1) // cut.abreast + 1, (rows - 1) % cut.abreast
            left = made("sub", made("full", value=whole_rows), made("mul", part_of, made("full", value=each)))
        else:
            wide, place = part.sizes[2], made("iota", axis=2, start=0, step=1)
            whole_rows, last = (cut.size - 1) // wide + 1, (cut.size - 1) % wide
            left = made("iota", axis=0, start=whole_rows, step=0 - each)
        is_less = builder.add("gt", [place, made("full", value=last)], tensor("bool", part.sizes, device=part.device))
        left = made("sub", left, builder.add("cast", [is_less], whole, dtype="int64"))
    most, none = made("full", value=each), made("full", value=0)
    count = made("maximum", made("minimum", left, most), none)
    return builder.add("cast", [count], part, dtype=part.dtype)


def _there(builder: Builder, cut: Cut, whole: TensorType) -> int:
    """1 for each element of the parts, 0 for padding."""
    sizes = whole.sizes
    if cut.abreast > 1:
        axis, before, after, length = 0, (), (), product(sizes)
    else:
        (axis,) = cut.second
        before, after, length = sizes[:axis], sizes[axis + 2 :], sizes[axis] * sizes[axis + 1]
    made = tensor(whole.dtype, (*before, cut.size, *after), device=whole.device)
    value = builder.add("full", [], made, value=1.0)
    ends = tuple(length - cut.size if k == axis else 0 for k in range(made.rank))
    padded = tensor(whole.dtype, (*before, length, *after), device=whole.device)
    value = builder.add("pad", [value], padded, low=(0,) * made.rank, high=ends, value=0.0)
    return builder.add("reshape", [value], tensor(whole.dtype, sizes, device=whole.device))


def _expanded(type: TensorType, sizes: tuple) -> TensorType:
    strides = tuple(s if n == m else 0 for n, m, s in zip(type.sizes, sizes, type.strides))
    return TensorType(type.dtype, sizes, strides, type.device)
