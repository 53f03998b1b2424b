"""Which call serves an op that is no kernel: the BLAS, or an ATen overload.

    matmul f32[8, 768] @ f32[768, 3072]{1, 768}     ProductCall: the transposed weight is a stride
    matmul bf16[4, 8, 64] @ bf16[4, 64, 8]          LibraryCall aten.bmm.default
    library op=aten.convolution.default             LibraryCall with the arguments as they are
    library op=aten.unfold.default                  of memory that changes: aten.unfold_copy.default

A ProductCall takes float32 and float64 matrices with one unit stride each and any batch strides;
everything else goes to the library, which copies what it must.
"""

from preheat.ir.graph import Op
from preheat.ir.scalar import Dim, product
from preheat.ir.types import TensorType

BLAS_DTYPES = ("float32", "float64")
# The overload that computes a core op when no kernel can; operands as the core op has them.
OVERLOADS: dict[str, str] = {
    **{
        name: f"aten.{name}.default"
        for name in (
            "neg abs sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan "
            "asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid floor ceil trunc "
            "round logical_not bitwise_not isnan isinf atan2 maximum minimum fmax fmin "
            "logical_and logical_or logical_xor"
        ).split()
    },
    **{
        name: f"aten.{name}.Tensor"
        for name in (
            "add sub mul div remainder fmod copysign eq ne lt le gt ge "
            "bitwise_and bitwise_or bitwise_xor"
        ).split()
    },
    "times": "aten.mul.Tensor", "floordiv": "aten.floor_divide.default",
    "pow": "aten.pow.Tensor_Tensor",
    "shl": "aten.bitwise_left_shift.Tensor",
    "shr": "aten.bitwise_right_shift.Tensor",
    "where": "aten.where.self",
}
# The overload that takes a view's arguments and gives memory of its own. None: torch has no such
# overload, or one that finds its elements by an offset that is not the operand's.
COPIES: dict[str, str | None] = {
    **{
        f"aten.{name}.{variant}": f"aten.{name}_copy.{variant}"
        for name, variant in (
            row.split(".")
            for row in (
                "alias.default detach.default lift_fresh.default _reshape_alias.default "
                "view.default view.dtype expand.default permute.default t.default transpose.int "
                "unsqueeze.default squeeze.default squeeze.dim squeeze.dims slice.Tensor "
                "select.int diagonal.default unfold.default view_as_real.default "
                "view_as_complex.default"
            ).split()
        )
    },
    "aten.reshape.default": "aten._reshape_copy.default",
    "aten._unsafe_view.default": "aten.view_copy.default",
    "aten.flatten.using_ints": None,
    "aten.contiguous.default": None,
    "aten.as_strided.default": None,
}
# Calls whose result is memory that nothing else is in, and that keep none of their operands.
FRESH = frozenset((
    "aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default",
    "aten._addmm_activation.default", "aten.convolution.default"))


def product_overload(op: Op) -> str:
    """The ATen overload that serves the core op `matmul` on operands of its rank."""
    return {2: "aten.mm.default", 3: "aten.bmm.default"}.get(op.type.rank, "aten.matmul.default")


def is_blas(a: TensorType, b: TensorType, out: TensorType) -> bool:
    """A ProductCall can compute out = a @ b as these types lie in memory."""
    if (
        out.device != "cpu"
        or out.dtype not in BLAS_DTYPES
        or {a.dtype, b.dtype} != {out.dtype}
        or product((*out.sizes, a.sizes[-1])) == 0
    ):
        return False
    return all(_is_matrix(t) for t in (a, b, out))


def _is_matrix(type: TensorType) -> bool:
    """The last two axes are a BLAS matrix: one unit stride, the other at least the row's length."""
    (rows, columns), (down, across) = type.sizes[-2:], type.strides[-2:]
    return _leads(rows, columns, down, across) or _leads(columns, rows, across, down)


def _leads(rows: Dim, columns: Dim, down: Dim, across: Dim) -> bool:
    is_unit = across == 1 or columns == 1
    return is_unit and (rows == 1 or (down >= columns and down >= 1))
