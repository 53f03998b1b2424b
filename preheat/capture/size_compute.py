"""Sizes of what is computed: elementwise, reductions, normalisation, products, attention.

Rules of `size_rules.py`. Source: the shape functions of aten/src/ATen/native.
"""

from collections.abc import Sequence

from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, broadcast, dense_like, formatted, images,
    preserved, row_major, type_is,
)
from preheat.ir.dims import normal
from preheat.ir.graph import Ref
from preheat.ir.scalar import Dim, apply


# ---------------------------------------------------------------------------- elementwise
def pointwise(call: Call) -> list[Shape]:
    operands = call.tensors()
    sizes = broadcast(call, *(t.sizes for t in operands))
    name = call.name.split(".")[1]
    if name.endswith("_"):
        first = call.type("self")
        return [(first.sizes, first.strides)] * len(call.real)
    return [dense_like(call, sizes, *operands)] * len(call.real)


def _like_self(call: Call) -> list[Shape]:
    """As `self` in size, row-major."""
    return [(call.type("self").sizes, None)] * len(call.real)


def _itself(call: Call) -> list[Shape]:
    type = call.type("self")
    return [(type.sizes, type.strides)] * len(call.real)


def _scattered(call: Call) -> list[Shape]:
    """A copy of `self` in its very layout; of one that is expanded as any copy: `clone_preserve_strides`."""
    type = call.type("self")
    if any(type_is(step, 0) and not call.is_one(size) for size, step in zip(type.sizes, type.strides)):
        return [preserved(call, type)]
    return _itself(call)


def _masked_fill(call: Call) -> list[Shape]:
    """Row-major, whatever the layout of the operands."""
    return [(broadcast(call, call.type("self").sizes, call.type("mask").sizes), None)]


def _kept(call: Call) -> list[Shape]:
    """A clone of `self`, into which something is written."""
    return [preserved(call, call.type("self"))]


def _into_self(call: Call) -> list[Shape]:
    """Others are broadcast to `self`, which is written."""
    type = call.type("self")
    if not is_now(call, broadcast(call, *(t.sizes for t in call.tensors())), type.sizes):
        raise NoRule("a write of more than there is")
    return _itself(call)


def _like(call: Call) -> list[Shape]:
    return [formatted(call, call.type("self"))]


def _dropout(call: Call) -> list[Shape]:
    return [preserved(call, call.type("input"))] * len(call.real)


def is_now(call: Call, first: Sequence[Dim], second: Sequence[Dim]) -> bool:
    """Whether sizes are the same, by what the guards say by now."""
    normal_now = call.numbers.normal
    return tuple(map(normal_now, first)) == tuple(map(normal_now, second))


# ---------------------------------------------------------------------------- reductions
def _reduced(sizes: Sequence[Dim], axes: set[int], keepdim: bool) -> tuple[Dim, ...]:
    return tuple(1 if k in axes else n for k, n in enumerate(sizes) if keepdim or k not in axes)


def _axes(call: Call, name: str = "dim") -> set[int]:
    """The axes that are reduced: none given means all."""
    rank = call.type("self").rank
    given = call.args.get(name)
    if given is None or given == ():
        return set(range(rank))
    given = given if isinstance(given, tuple) else (given,)
    return {call.known(axis) % max(rank, 1) for axis in given}


def _reduction(call: Call) -> list[Shape]:
    """Row-major, whatever the layout of the input."""
    sizes = _reduced(call.type("self").sizes, _axes(call), bool(call.arg("keepdim", False)))
    return [(sizes, None)] * len(call.real)


def full_reduction(call: Call) -> list[Shape]:
    return [((), None)] * len(call.real)


def _row_reduction(call: Call) -> list[Shape]:
    """Values and places along one axis (max.dim, mode)."""
    type = call.type("self")
    axes = {call.axis(default=-1 if call.name.startswith("aten.mode") else 0)} if type.rank else set()
    sizes = _reduced(type.sizes, axes, bool(call.arg("keepdim", False)))
    return [(sizes, None)] * len(call.real)


def _argreduce(call: Call) -> list[Shape]:
    if call.args.get("dim") is None:
        if call.arg("keepdim", False):
            return [((1,) * call.type("self").rank, None)]
        return [((), None)]
    return _row_reduction(call)


def _topk(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis(default=-1)
    count = call.arg("k")
    if not type.rank or not call.holds("le", count, type.sizes[axis]):
        raise NoRule("topk")
    sizes = tuple(count if k == axis else n for k, n in enumerate(type.sizes))
    return [(sizes, None)] * 2


def _found_in(call: Call) -> list[Shape]:
    if not isinstance(call.args.get("elements"), Ref):
        return [((), None)]
    return [preserved(call, call.type("elements"))]


def _preserved(call: Call) -> list[Shape]:
    """As `self`, axes in the same order: sort, flip."""
    return [preserved(call, call.type("self"))] * len(call.real)


# ---------------------------------------------------------------------------- normalisation
def _layer_norm(call: Call) -> list[Shape]:
    type, shape = call.type("input"), call.arg("normalized_shape", ())
    count = len(shape)
    for have, wanted in zip(type.sizes[type.rank - count :], shape):
        call.same(have, wanted)
    kept = type.sizes[: type.rank - count] + (1,) * count
    return [(type.sizes, None), (kept, None), (kept, None)]


def _rms_norm(call: Call) -> list[Shape]:
    made, kept, *_ = _layer_norm(call)
    return [made, kept]


def _batch_norm(call: Call) -> list[Shape]:
    type = call.type("input")
    channels = type.sizes[1]
    return [images(call, type, type.sizes, True), *(((0,) if real.sizes == (0,) else (channels,), None) for real in call.real[1:])]


def _batch_norm_of_cudnn(call: Call) -> list[Shape]:
    """What it reserves for its backward is of a size that cuDNN alone knows: see `transform/norms.py`."""
    type = call.type("input")
    channels = ((type.sizes[1],), None)
    return [images(call, type, type.sizes, True), channels, channels, None]


def _group_norm(call: Call) -> list[Shape]:
    type = call.type("input")
    for name, expected in (("N", type.sizes[0]), ("C", type.sizes[1])):
        call.same(call.arg(name), expected)
    kept = (type.sizes[0], call.known(call.arg("group")))
    return [images(call, type, type.sizes, True), (kept, None), (kept, None)]


# ---------------------------------------------------------------------------- products
def _mm(call: Call) -> list[Shape]:
    a, b = call.type("self"), call.type("mat2")
    call.same(a.sizes[1], b.sizes[0])
    return [((a.sizes[0], b.sizes[1]), None)]


def _addmm(call: Call) -> list[Shape]:
    a, b = call.type("mat1"), call.type("mat2")
    call.same(a.sizes[1], b.sizes[0])
    sizes = (a.sizes[0], b.sizes[1])
    if not is_now(call, broadcast(call, call.type("self").sizes, sizes), sizes):
        raise NoRule("addmm of a larger bias")
    return [(sizes, None)]


def _bmm(call: Call) -> list[Shape]:
    a, b = call.type("self"), call.type("mat2")
    batch = call.same(a.sizes[0], b.sizes[0])
    call.same(a.sizes[2], b.sizes[1])
    return [((batch, a.sizes[1], b.sizes[2]), None)]


def _baddbmm(call: Call) -> list[Shape]:
    a, b = call.type("batch1"), call.type("batch2")
    sizes = (call.same(a.sizes[0], b.sizes[0]), a.sizes[1], b.sizes[2])
    call.same(a.sizes[2], b.sizes[1])
    broadcast(call, call.type("self").sizes, sizes)
    return [(sizes, None)]


def _mv(call: Call) -> list[Shape]:
    a, b = call.type("self"), call.type("vec")
    call.same(a.sizes[1], b.sizes[0])
    return [((a.sizes[0],), None)]


def _dot(call: Call) -> list[Shape]:
    a, b = call.tensors()[:2]
    call.same(a.sizes[0], b.sizes[0])
    return [((), None)]


def _attention(call: Call) -> list[Shape]:
    """query [B, H, L, E], key [B, H, S, E], value [B, H, S, E]: output in the layout of the query (of
    [B, L, H, E] permuted in an older torch), and log sums [B, H, L]."""
    query, key, value = call.type("query"), call.type("key"), call.type("value")
    call.same(query.sizes[0], key.sizes[0])
    call.same(key.sizes[0], value.sizes[0])
    call.same(key.sizes[1], value.sizes[1])
    if query.sizes[1] != key.sizes[1] and call.known(query.sizes[1]) % call.known(key.sizes[1]):
        raise NoRule("heads")
    call.same(key.sizes[2], value.sizes[2])
    call.same(query.sizes[3], key.sizes[3])
    if isinstance(call.args.get("attn_mask"), Ref):
        mask = call.type("attn_mask")
        want = (query.sizes[0], query.sizes[1], query.sizes[2], key.sizes[2])
        broadcast(call, mask.sizes, want)
    batch, heads, length, _ = query.sizes
    width = call.same(value.sizes[3], query.sizes[3])
    strides = preserved(call, query)[1] or row_major(query.sizes)
    real = call.real[0]
    if any(call.numbers.value(step) != now for step, now, n in zip(
            strides, real.strides, real.sizes) if n != 1):
        strides = (length * heads * width, width, heads * width, 1)
    logs = (length * heads, 1, heads)
    return [
        ((batch, heads, length, width), tuple(map(normal, strides))),
        ((batch, heads, length), tuple(map(normal, logs))),
    ]


def _addmv(call: Call) -> list[Shape]:
    a = call.type("mat")
    call.same(a.sizes[1], call.type("vec").sizes[0])
    return [((a.sizes[0],), None)]


def _addr(call: Call) -> list[Shape]:
    return [((call.type("vec1").sizes[0], call.type("vec2").sizes[0]), None)]


def _addbmm(call: Call) -> list[Shape]:
    a, b = call.type("batch1"), call.type("batch2")
    call.same(a.sizes[0], b.sizes[0])
    call.same(a.sizes[2], b.sizes[1])
    return [((a.sizes[1], b.sizes[2]), None)]


def _distances(call: Call) -> list[Shape]:
    """[.., P, M] and [.., R, M] to [.., P, R]."""
    a, b = call.type("x1"), call.type("x2")
    call.same(a.sizes[-1], b.sizes[-1])
    batch = broadcast(call, a.sizes[:-2], b.sizes[:-2])
    return [((*batch, a.sizes[-2], b.sizes[-2]), None)]


def _distances_within(call: Call) -> list[Shape]:
    """[N, M] to a distance for each of N * (N - 1) / 2 pairs."""
    rows = call.type("self").sizes[0]
    return [((normal(apply("floordiv", rows * (rows - 1), 2)),), None)]


def _trilinear(call: Call) -> list[Shape]:
    """Sums of products of three operands, each of which lacks the axes that it is expanded by: [*axes that are not
    summed]."""
    given = [(call.type(f"i{k}"), call.arg(f"expand{k}", ())) for k in (1, 2, 3)]
    rank = given[0][0].rank + len(given[0][1])
    sizes: list[Dim | None] = [None] * rank
    for type, expanded in given:
        own = [axis for axis in range(rank) if axis not in expanded]
        for axis, size in zip(own, type.sizes, strict=True):
            sizes[axis] = size if sizes[axis] is None else call.same(sizes[axis], size)
    summed = call.arg("sumdim", ())
    return [(tuple(n for axis, n in enumerate(sizes) if axis not in summed), None)]


def _cross(call: Call) -> list[Shape]:
    return [(broadcast(call, call.type("self").sizes, call.type("other").sizes), None)]


def _extremes(call: Call) -> list[Shape]:
    """The least and the greatest along an axis, or of all."""
    if call.args.get("dim") is None:
        is_kept = bool(call.arg("keepdim", False))
        return [((1,) * call.type("self").rank if is_kept else (), None)] * 2
    return _row_reduction(call)


COMPUTED: dict[Rule, str] = {
    pointwise: """rsub hardswish complex polar floor_divide _prelu_kernel elu_backward
        hardtanh_backward leaky_relu_backward softshrink_backward hardshrink_backward
        hardsigmoid_backward hardswish_backward mish_backward softplus_backward
        threshold_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
        soft_margin_loss_backward binary_cross_entropy_backward log_sigmoid_backward
        _prelu_kernel_backward""",
    full_reduction: "dist trace _is_all_true _is_any_true",
    _addmv: "addmv",
    _addr: "addr",
    _addbmm: "addbmm",
    _distances: "_cdist_forward _euclidean_dist",
    _distances_within: "_pdist_forward",
    _trilinear: "_trilinear",
    _cross: "linalg_cross",
    _extremes: "aminmax",
    _masked_fill: "masked_fill masked_scatter",
    _like_self: """_softmax _log_softmax _safe_softmax tril triu cumsum cumprod logcumsumexp cummax
        cummin scatter scatter_add scatter_reduce index_add index_copy index_reduce bernoulli""",
    _into_self: "copy_ masked_fill_",
    _kept: "index_put _unsafe_index_put copy",
    _scattered: "slice_scatter select_scatter diagonal_scatter as_strided_scatter",
    _itself: """alias detach fill_ zero_ bernoulli_ uniform_ normal_ random_ exponential_
        scatter_ scatter_add_ index_add_ index_copy_ index_fill_ index_put_ tril_ triu_
        cumsum_ masked_scatter_ _unsafe_index_put_ scatter_reduce_ log_normal_
        geometric_ cauchy_ conj _conj lift lift_fresh""",
    _like: """zero fill index_fill zeros_like ones_like empty_like full_like rand_like randn_like randint_like
        clone _to_copy exponential geometric cauchy log_normal uniform random normal_functional""",
    _dropout: "native_dropout",
    _reduction: """sum mean amax amin prod any all std var logsumexp nansum linalg_vector_norm norm
        var_mean std_mean count_nonzero""",
    _row_reduction: "max min mode median nanmedian kthvalue",
    _argreduce: "argmax argmin",
    _topk: "topk",
    _found_in: "isin",
    _preserved: "sort flip rrelu_with_noise renorm put",
    _layer_norm: "native_layer_norm",
    _rms_norm: "_fused_rms_norm",
    _group_norm: "native_group_norm",
    _batch_norm: """native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit
        _batch_norm_with_update""",
    _batch_norm_of_cudnn: "cudnn_batch_norm",
    _mm: "mm",
    _addmm: "addmm _addmm_activation",
    _bmm: "bmm",
    _baddbmm: "baddbmm",
    _mv: "mv",
    _dot: "dot vdot",
    _attention: "_scaled_dot_product_flash_attention_for_cpu",
}
"""Rules, and the ops that they are of."""
