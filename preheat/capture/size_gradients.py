"""Sizes of what the derivative formulas of torch compute.

Rules of `size_rules.py`. Source: `tools/autograd/derivatives.yaml` and the shape functions of
aten/src/ATen/native.
"""

from preheat.capture.size_call import (
    Call, NoRule, Rule, Shape, broadcast, channels_last, images, is_channels_last, is_row_major, keeps_channels_last,
    preserved,
)
from preheat.capture.size_images import ask_of_volumes
from preheat.ir.dims import normal
from preheat.ir.graph import Ref
from preheat.ir.types import TensorType


def _wanted(call: Call, *shapes: Shape) -> list[Shape]:
    """Those of `shapes` that `output_mask` asks for."""
    mask = call.arg("output_mask", (True,) * len(shapes))
    return [shape for shape, is_wanted in zip(shapes, mask) if is_wanted]


def _plain(type: TensorType) -> Shape:
    return type.sizes, None


def _of_grad(call: Call) -> list[Shape]:
    """As the gradient that comes in, row-major."""
    return [_plain(call.type("grad_output"))]


def _of_sizes(call: Call) -> list[Shape]:
    """Zeros of given sizes, of which a part is set."""
    return [(tuple(call.arg("input_sizes", ())), None)]


def _of_mask(call: Call) -> list[Shape]:
    return [(tuple(call.arg("sizes", ())), None)]


def _distances(call: Call) -> list[Shape]:
    first, second = call.type("x1"), call.type("x2")
    if 0 in (*call.type("grad").sizes, *first.sizes):  # then C leaves before it broadcasts
        return [_plain(first)]
    return [((*broadcast(call, first.sizes[:-2], second.sizes[:-2]), *first.sizes[-2:]), None)]


def _glu(call: Call) -> list[Shape]:
    return [_plain(call.type("self"))]


def _of_input_size(call: Call) -> list[Shape]:
    return [images(call, call.type("grad_output"), tuple(call.arg("input_size", ())))]


def _of_self(call: Call) -> list[Shape]:
    """As what was pooled or padded."""
    type = call.type("self")
    return [images(call, type, type.sizes)]


def _as_self(call: Call) -> list[Shape]:
    """As what the gradient is of, row-major."""
    return [_plain(call.type("self"))]


def _dropout(call: Call) -> list[Shape]:
    return [preserved(call, call.type("grad_output"))]


def _layer_norm(call: Call) -> list[Shape]:
    weight = call.type("weight") if isinstance(call.args.get("weight"), Ref) else None
    of_weight = _plain(weight) if weight is not None else (tuple(call.arg("normalized_shape", ())), None)
    return _wanted(call, _plain(call.type("input")), of_weight, of_weight)


def _rms_norm(call: Call) -> list[Shape]:
    weight = _plain(call.type("weight")) if isinstance(call.args.get("weight"), Ref) else None
    return _wanted(call, _plain(call.type("input")), weight)


def _group_norm(call: Call) -> list[Shape]:
    type = call.type("input")
    channels = ((call.same(call.arg("C"), type.sizes[1]),), None)
    return _wanted(call, images(call, type, type.sizes, True), channels, channels)


def _batch_norm(call: Call) -> list[Shape]:
    type = call.type("input")
    channels = ((type.sizes[1],), None)
    return _wanted(call, images(call, type, type.sizes, True), channels, channels)


def _convolution(call: Call) -> list[Shape]:
    names = ("grad_output", "input", "weight")
    grad, type, weight = (call.type(name) for name in names)
    bias = (tuple(call.arg("bias_sizes", ())), None)
    if all(map(is_row_major, (grad, type, weight))):
        return _wanted(call, _plain(type), _plain(weight), bias)
    if type.rank == 3:  # see `size_images`: of a signal a row-major copy is taken
        if not is_row_major(weight) or not is_row_major(type) and call.is_contiguous(type):
            raise NoRule("a signal whose weights lie otherwise, or of one channel")
        return _wanted(call, _plain(type), _plain(weight), bias)
    is_last = any([is_channels_last(call, t) for t in (type, weight)])
    if is_last and type.rank == 5 and type.device == "cpu":
        ask_of_volumes(call, type, weight)
    made = [
        (t.sizes, channels_last(t.sizes) if is_last and keeps_channels_last(call, type.rank, place) else None)
        for place, t in enumerate(_wanted(call, type, weight))]
    return [*made, *_wanted(call, None, None, bias)[len(made):]]


def _embedding(call: Call) -> list[Shape]:
    return [((call.arg("num_weights"), call.type("grad_output").sizes[-1]), None)]


def _bags(call: Call) -> list[Shape]:
    return [((call.arg("num_weights"), call.type("grad").sizes[-1]), None)]


def _bag_weights(call: Call) -> list[Shape]:
    """A number for each index."""
    return [((call.type("indices").sizes[0],), None)]


def _attention(call: Call) -> list[Shape]:
    """Each as its operand, in memory as [B, L, H, E]."""
    def seen(type: TensorType) -> Shape:
        batch, heads, length, width = type.sizes
        strides = (length * heads * width, width, heads * width, 1)
        return type.sizes, tuple(map(normal, strides))

    return [seen(call.type(name)) for name in ("query", "key", "value")]


def _grid_sampler(call: Call) -> list[Shape]:
    """The gradient of the grid is made whether it is asked for or not."""
    return [*_wanted(call, _plain(call.type("input"))), _plain(call.type("grid"))]


GRADIENTS: dict[Rule, str] = {
    _of_grad: "_softmax_backward_data _log_softmax_backward_data",
    _of_sizes: "select_backward slice_backward diagonal_backward unfold_backward",
    _of_mask: "masked_scatter_backward",
    _distances: "_cdist_backward",
    _glu: "glu_backward",
    _of_input_size: """upsample_nearest1d_backward upsample_nearest2d_backward
        upsample_nearest3d_backward _upsample_nearest_exact1d_backward
        _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
        upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
        upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward
        _upsample_bicubic2d_aa_backward""",
    _of_self: """fractional_max_pool2d_backward fractional_max_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward""",
    _as_self: """nll_loss_backward nll_loss2d_backward _pdist_backward multi_margin_loss_backward
        multilabel_margin_loss_backward""",
    _dropout: "native_dropout_backward",
    _layer_norm: "native_layer_norm_backward",
    _rms_norm: "_fused_rms_norm_backward",
    _group_norm: "native_group_norm_backward",
    _batch_norm: "native_batch_norm_backward cudnn_batch_norm_backward",
    _convolution: "convolution_backward",
    _embedding: "embedding_dense_backward",
    _bags: "_embedding_bag_backward _embedding_bag_dense_backward",
    _bag_weights: "_embedding_bag_per_sample_weights_backward",
    _attention: "_scaled_dot_product_flash_attention_for_cpu_backward",
    _grid_sampler: "grid_sampler_2d_backward grid_sampler_3d_backward",
}
"""Rules, and the ops that they are of."""
