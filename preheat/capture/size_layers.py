"""Sizes of what layers do besides products, convolution and pooling: padding, folding, sampling,
shuffling, bags of embeddings, losses.

Rules of `size_rules.py`. Source: the shape functions of aten/src/ATen/native.
"""

from typing import Any

from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, images, is_channels_last, preserved, row_major,
)
from preheat.capture.size_compute import pointwise
from preheat.ir.dims import divided, normal
from preheat.ir.scalar import Dim, apply
from preheat.ir.types import TensorType


# ---------------------------------------------------------------------------- padding, folding
def _padded(call: Call) -> list[Shape]:
    """Constants, reflection and replication: pairs of lengths, the last axis first."""
    type, padding = call.type("self"), call.arg("padding" if "padding" in call.args else "pad", ())
    sizes = list(type.sizes)
    for place in range(len(padding) // 2):
        axis = type.rank - 1 - place
        before, behind = padding[2 * place], padding[2 * place + 1]
        if "reflection" in call.name and not (
                call.holds("lt", before, sizes[axis]) and call.holds("lt", behind, sizes[axis])):
            raise NoRule("a reflection of more than there is")
        sizes[axis] = normal(sizes[axis] + before + behind)
        if not call.holds("gt", sizes[axis], 0):
            raise NoRule("an axis that is padded away")
    return [images(call, type, tuple(sizes))]


def _places(call: Call, size: Dim, axis: int) -> Dim:
    """How many places a kernel has along an axis of this size."""
    kernel, dilation, padding, stride = (
        _of_axis(call, name, axis) for name in ("kernel_size", "dilation", "padding", "stride"))
    span = normal(size + 2 * padding - dilation * (kernel - 1) - 1)
    if not call.holds("ge", span, 0):
        raise NoRule("a kernel larger than the image")
    return normal(apply("floordiv", span, stride) + 1)


def _of_axis(call: Call, name: str, axis: int) -> Dim:
    values = call.arg(name, ())
    return values[axis] if len(values) > 1 else values[0]


def _unfolded(call: Call) -> list[Shape]:
    """[N, C, H, W] to [N, C * kernel, places]."""
    type = call.type("self")
    kernel = [_of_axis(call, "kernel_size", axis) for axis in (0, 1)]
    places = [_places(call, type.sizes[type.rank - 2 + axis], axis) for axis in (0, 1)]
    channels = normal(type.sizes[-3] * (kernel[0] * kernel[1]))
    return [((*type.sizes[: type.rank - 3], channels, normal(places[0] * places[1])), None)]


def _folded(call: Call) -> list[Shape]:
    type, wanted = call.type("self"), call.arg("output_size", ())
    area = call.known(_of_axis(call, "kernel_size", 0)) * call.known(_of_axis(call, "kernel_size", 1))
    channels = _exact(call, type.sizes[type.rank - 2], area)
    places = [_places(call, size, axis) for axis, size in enumerate(wanted)]
    call.same(type.sizes[-1], normal(places[0] * places[1]))
    return [((*type.sizes[: type.rank - 2], channels, *wanted), None)]


# ---------------------------------------------------------------------------- sampling, shuffling
def _grid_sampled(call: Call) -> list[Shape]:
    """[N, C, ...] at [N, ..., coordinates]."""
    type, grid = call.type("input"), call.type("grid")
    batch = call.same(type.sizes[0], grid.sizes[0])
    return [((batch, type.sizes[1], *grid.sizes[1:-1]), None)]


def _unpooled(call: Call) -> list[Shape]:
    type, wanted = call.type("self"), call.arg("output_size", ())
    return [images(call, type, (*type.sizes[: type.rank - len(wanted)], *wanted))]


def _pooled_at_random(call: Call) -> list[Shape]:
    type, wanted = call.type("self"), tuple(call.arg("output_size", ()))
    for size, kernel in zip(type.sizes[type.rank - len(wanted):], call.arg("kernel_size", ())):
        if not call.holds("ge", size, kernel):
            raise NoRule("a kernel larger than the image")
    if is_channels_last(call, type):
        raise NoRule("channels last")
    return [((*type.sizes[: type.rank - len(wanted)], *wanted), None)] * 2


def _pixels(call: Call) -> list[Shape]:
    """Channels to pixels of the image, or back."""
    type = call.type("self")
    batch, (channels, height, width) = type.sizes[:-3], type.sizes[-3:]
    if "unshuffle" in call.name:
        by = call.known(call.arg("downscale_factor"))
        sizes = (normal(channels * (by * by)), _exact(call, height, by), _exact(call, width, by))
    else:
        by = call.known(call.arg("upscale_factor"))
        sizes = (_exact(call, channels, by * by), normal(height * by), normal(width * by))
    return [images(call, type, (*batch, *sizes))]


def _exact(call: Call, size: Dim, by: int) -> Dim:
    found = divided(size, by)
    if found is not None:
        return found
    if not call.holds("eq", apply("mod", size, by), 0):
        raise NoRule(f"{size} is no multiple of {by}")
    return normal(apply("floordiv", size, by))


def _kept(call: Call) -> list[Shape]:
    type = call.type("self")
    return [images(call, type, type.sizes)]


def _glu(call: Call) -> list[Shape]:
    type, axis = call.type("self"), call.axis(default=-1)
    half = _exact(call, type.sizes[axis], 2)
    return [(tuple(half if k == axis else n for k, n in enumerate(type.sizes)), None)]


def _log_sigmoid(call: Call) -> list[Shape]:
    return [preserved(call, call.type("self"))] * 2


# ---------------------------------------------------------------------------- bags, losses
def _bags(call: Call) -> list[Shape]:
    """Bags of rows of `weight`, and what the derivative needs: which of these has elements follows
    from the mode."""
    indices, offsets, weight = (call.type(name) for name in ("indices", "offsets", "weight"))
    bags = offsets.sizes[0]
    if call.arg("include_last_offset", False):
        bags = normal(apply("sub", bags, 1))
    made: list[Shape] = [((bags, weight.sizes[1]), None)]
    for real, size in zip(call.real[1:], (indices.sizes[0], bags, bags)):
        made.append(((0,), None) if real.sizes == (0,) else _bag_part(real, size, weight))
    return made


def _bag_part(real: TensorType, size: Dim, weight: TensorType) -> Shape:
    return ((size,), None) if real.rank == 1 else ((size, weight.sizes[1]), None)


def _nll_loss(call: Call) -> list[Shape]:
    """A loss for each row (reduction 0) or one for all, and the total weight."""
    type = call.type("self")
    is_whole = call.known(call.arg("reduction")) != 0 or type.rank == 1
    if type.rank == 2:
        call.same(type.sizes[0], call.type("target").sizes[0])
    return [((), None) if is_whole else ((type.sizes[0], *type.sizes[2:]), None), ((), None)]


def _loss(call: Call) -> list[Shape]:
    """A loss for each element (reduction 0) or one for all."""
    if call.known(call.arg("reduction", 1)) != 0:
        return [((), None)]
    return pointwise(call)


def _margin_loss(call: Call) -> list[Shape]:
    """A loss for each row (reduction 0) or one for all; whether each number is a target."""
    return [*_row_loss(call), (call.type("target").sizes, None)]


def _row_loss(call: Call) -> list[Shape]:
    """A loss for each row (reduction 0) or one for all."""
    type = call.type("self")
    return [((), None) if call.known(call.arg("reduction", 1)) != 0 else (type.sizes[:-1], None)]


# ---------------------------------------------------------------------------- search, chance
def _found(call: Call) -> list[Shape]:
    """A place for each element."""
    return [(call.type("self").sizes, None)]


def _drawn(call: Call) -> list[Shape]:
    type = call.type("self")
    return [((*type.sizes[:-1], call.arg("num_samples")), None)]


def _drawn_around(call: Call) -> list[Shape]:
    if not any(_is_tensor(call, name) for name in ("mean", "std")):
        return [(tuple(call.arg("size", ())), None)]
    return [(_one_of(call, "mean", "std").sizes, None)]


def _one_of(call: Call, *names: str) -> TensorType:
    found = [call.type(name) for name in names if _is_tensor(call, name)]
    if len(found) == 2:
        for a, b in zip(found[0].sizes, found[1].sizes, strict=True):
            call.same(a, b)
    return found[0]


def _is_tensor(call: Call, name: str) -> bool:
    try:
        return bool(call.type(name))
    except NoRule:
        return False


def _permutation(call: Call) -> list[Shape]:
    return [((call.arg("n"),), None)]


def _number(call: Call) -> list[Shape]:
    return [((), None)]


def _recurrent(call: Call) -> list[Shape]:
    """One layer, one way, of [T, B, I] to [T, B, H]; the last states. What it keeps for its derivative is of a size
    that oneDNN alone knows."""
    type = call.type("input")
    if len(call.real) != 3:
        raise NoRule("what oneDNN keeps for the derivative")
    made: Shape = (*type.sizes[:2], call.known(call.arg("hidden_size"))), None
    return [made, *((call.type(name).sizes, None) for name in ("hx_", "cx_"))]


def _steps(call: Call) -> list[Shape]:
    """A whole recurrent layer, [T, B, I] to [T, B, W], the batch first or not: it lies by steps. The last states."""
    type, states = call.type("input"), call.of(call.arg("states", ()))
    width = states[0].sizes[2] * (2 if call.arg("bidirectional") else 1)
    sizes = (*type.sizes[:2], width)
    strides = (width, normal(sizes[0] * width), 1) if call.arg("batch_first") else None
    return [(sizes, strides), *((state.sizes, None) for state in states)]


def _steps_backward(call: Call) -> list[Shape]:
    """As the input, whose gradient may lie by steps, the states and the weights; of each what is wanted."""
    operands = call.of((call.args["input"], *call.arg("states", ()), *call.arg("weights", ())))
    wanted = [type for type, is_wanted in zip(operands, call.arg("wanted", ())) if is_wanted]
    made: list[Shape] = []
    for type, real in zip(wanted, call.real):
        order = list(range(type.rank))
        if type is operands[0] and call.arg("batch_first"):
            order[:2] = [1, 0]
        elif type.rank == 2 and not real.is_contiguous:
            order = [1, 0]
        dense = dict(zip(order, row_major(tuple(type.sizes[axis] for axis in order))))
        made.append((type.sizes, tuple(dense[axis] for axis in range(type.rank))))
    return made


def _encoder_layer(call: Call) -> list[Shape]:
    """A whole layer of torch.nn.TransformerEncoder in one op, [B, T, E] to the same."""
    type = call.type("src")
    if not type.is_contiguous:
        raise NoRule("rows that lie apart, of which the norm that comes first decides the layout")
    return [(type.sizes, None)]


def _heads(call: Call) -> list[Shape]:
    """Self-attention of torch.nn.MultiheadAttention in one op, [B, T, E] to the same; its weights, if they are asked for."""
    batch, length, _ = call.type("query").sizes
    made: Shape = call.type("query").sizes, None
    if not call.arg("need_weights", True):
        return [made]
    heads = () if call.arg("average_attn_weights", True) else (call.known(call.arg("num_head")),)
    return [made, ((batch, *heads, length, length), None)]


def _grid(call: Call) -> list[Shape]:
    """[N, C, *sizes] to coordinates [N, *sizes, their number]."""
    batch, _, *sizes = call.arg("size", ())
    return [((batch, *sizes, len(sizes)), None)]


def _spaced(call: Call) -> list[Shape]:
    return [((call.arg("steps"),), None)]


# ---------------------------------------------------------------------------- by strides
def _strided(call: Call) -> list[Shape]:
    return [(tuple(call.arg("size", ())), tuple(call.arg("stride", ())))]


def _as_strided(call: Call) -> list[Shape]:
    """Within the memory of `self`: what lies around it nobody knows at other sizes."""
    type, sizes, strides = call.type("self"), call.arg("size", ()), call.arg("stride", ())
    end = normal(_last(sizes, strides) + call.arg("storage_offset", 0))
    is_empty = 0 in type.sizes
    if 0 not in sizes and (is_empty or not call.holds("le", end, _last(type.sizes, type.strides))):
        raise NoRule("as_strided beyond its argument")
    return [(tuple(sizes), tuple(strides))]


def _last(sizes: Any, strides: Any) -> Any:
    """The offset of the last element."""
    last: Any = 0
    for size, step in zip(sizes, strides, strict=True):
        last = last + (size - 1) * step
    return normal(last)


def _as_real(call: Call) -> list[Shape]:
    type = call.type("self")
    return [((*type.sizes, 2), (*(normal(step * 2) for step in type.strides), 1))]


def _as_complex(call: Call) -> list[Shape]:
    type = call.type("self")
    return [(type.sizes[:-1], tuple(_exact(call, step, 2) for step in type.strides[:-1]))]


def _diagonals(call: Call) -> list[Shape]:
    """A matrix with a row of `self` on a diagonal."""
    type, offset = call.type("self"), call.known(call.arg("offset", 0))
    axes = [call.known(call.arg(name, default)) % (type.rank + 1)
            for name, default in (("dim1", -2), ("dim2", -1))]
    size = normal(type.sizes[-1] + abs(offset))
    sizes: list[Any] = list(type.sizes[:-1])
    for axis in sorted(axes):
        sizes.insert(axis, size)
    return [(tuple(sizes), None)]


LAYERS: dict[Rule, str] = {
    _padded: """constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d""",
    _unfolded: "im2col",
    _folded: "col2im",
    _grid_sampled: "grid_sampler_2d grid_sampler_3d",
    _unpooled: "max_unpool2d max_unpool3d",
    _pooled_at_random: "fractional_max_pool2d fractional_max_pool3d",
    _pixels: "pixel_shuffle pixel_unshuffle",
    _kept: "channel_shuffle",
    _glu: "glu",
    _log_sigmoid: "log_sigmoid_forward",
    _bags: "_embedding_bag _embedding_bag_forward_only",
    _nll_loss: "nll_loss_forward nll_loss2d_forward",
    _loss: """mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
        binary_cross_entropy_with_logits""",
    _margin_loss: "multilabel_margin_loss_forward",
    _row_loss: "multi_margin_loss",
    _found: "bucketize searchsorted",
    _drawn: "multinomial",
    _drawn_around: "normal",
    _permutation: "randperm",
    _spaced: "linspace logspace",
    _number: "scalar_tensor",
    _recurrent: "mkldnn_rnn_layer",
    _encoder_layer: "_transformer_encoder_layer_fwd",
    _heads: "_native_multi_head_attention",
    _steps: "steps",
    _steps_backward: "steps_backward",
    _grid: "affine_grid_generator",
    _as_strided: "as_strided",
    _strided: "new_empty_strided empty_strided",
    _as_real: "view_as_real",
    _as_complex: "view_as_complex",
    _diagonals: "diag_embed",
}
"""Rules, and the ops that they are of."""
