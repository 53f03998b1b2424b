"""Raising: which ops can raise for some values of their operands. Sizes and dtypes are guarded.

    can_raise(Op("gather", ...))                            True    an index may be out of range
    can_raise(Op("library", ..., op="aten.mm.default"))     False   it looks at sizes alone

What can raise is never dropped, and comes before every write to an input: when it does raise, the
call starts over as plain Python and must find its inputs as they were.
"""

from preheat.ir.graph import Op
from preheat.ir.types import DTYPES

# Library overloads that look only at sizes before they compute: they never raise for values.
TOTAL = frozenset(
    f"aten.{name}" for name in (
        "convolution.default", "addmm.default", "mm.default", "bmm.default", "baddbmm.default",
        "native_layer_norm.default", "embedding_dense_backward.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "convolution_backward.default", "max_pool2d_with_indices_backward.default",
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_cudnn_attention.default",
        "max_pool2d_with_indices.default", "avg_pool2d.default", "_adaptive_avg_pool2d.default",
        "cumsum.default",
        "sort.default", "sort.stable", "topk.default", "upsample_nearest2d.default",
        "upsample_bilinear2d.default",
        "upsample_nearest2d.vec", "upsample_bilinear2d.vec", "upsample_bicubic2d.default",
        "mkldnn_rnn_layer.default",
        "fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar", "as_strided.default",
        "clone.default",
        "_to_copy.default", "view.dtype", "diagonal.default", "unfold.default",
        "reflection_pad2d.default",
    )
)
_OWN = "preheat."  # operators of ours, see `bridge/regions.py`
_INTEGER_DIVISIONS = frozenset(("floordiv", "truncdiv", "remainder", "fmod"))
_GATHERS = frozenset(("take", "gather", "index"))


def can_raise(op: Op) -> bool:
    """Whether `op` can raise for some values of its operands (sizes are guarded)."""
    if op.name == "library":
        return op.attr("op") not in TOTAL and not op.attr("op").startswith(_OWN)
    return op.name in _GATHERS or (
        op.name in _INTEGER_DIVISIONS and DTYPES[op.type.dtype].kind in "iu"
    )
