"""Matrix products as the BLAS wants them: column-major matrices with leading dimensions.

    out[b, m, n] = a[b, m, k] @ b[b, k, n]   ->   C (n x m) = op(B) (n x k) * op(A) (k x m)

A row-major matrix is its own transpose in column-major terms, so no operand is ever copied: each
one is taken plain or transposed. Batch axes are flattened; axes that step evenly for all operands
merge, and a batch that steps evenly along the rows of `a` and `out` with one `b` becomes more rows.

Requires: one unit stride a matrix (axes of size 1 count as any stride); sizes may be hinted.
Guarantees: `blas_form` covers exactly the elements of the three types; `None` when the BLAS cannot.
"""

import functools
import itertools
import struct
from collections.abc import Sequence

from preheat.base.dataclass import dataclass
from preheat.ir.hinted import Hinted, holds, longest
from preheat.ir.records import RECORDS
from preheat.ir.scalar import Dim, product
from preheat.ir.sized import builder, has_sizes
from preheat.ir.types import TensorType
from preheat.run.memory import Memory

BLAS_DTYPES = {"float32": "sgemm_", "float64": "dgemm_"}
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class BlasForm:
    """Arguments of ?gemm in its column-major terms, `batch` times.

    left, right   which of (a, b) = (0, 1) comes first; the transposition flag of each: "N" or "T"
    axes          of the batch: sizes, and the strides of (a, b, out)
    """

    routine: str
    left: int
    left_flag: str
    right_flag: str
    m: int
    n: int
    k: int
    left_leading: int
    right_leading: int
    out_leading: int
    axes: tuple[tuple[Dim, tuple[Dim, Dim, Dim]], ...]  # of the batch: size, strides of a, b, out

    @property
    def batch(self) -> int:
        return product(size for size, _ in self.axes)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def blas_form(a: TensorType, b: TensorType, out: TensorType) -> BlasForm | None:
    """How ?gemm computes out = a @ b, or None if it cannot (dtype, strides, sizes over 2**31).

    Cached: the layers of a model have the same products.
    """
    dims = (d for type in (a, b, out) for d in (*type.sizes, *type.strides))
    is_hinted = any(isinstance(d, Hinted) for d in dims)
    return _blas_form(a, b, out) if is_hinted else _cached_form(a, b, out)


def _blas_form(a: TensorType, b: TensorType, out: TensorType) -> BlasForm | None:
    if out.dtype not in BLAS_DTYPES or not (a.dtype == b.dtype == out.dtype):
        return None
    axes = _batch_axes(a, b, out)
    rows = (out.sizes[-2], a.strides[-2], out.strides[-2])
    merged_axes, merged_rows = _batch_into_rows(axes, rows)
    return _form(a, b, out, merged_axes, merged_rows) or _form(a, b, out, axes, rows)


_cached_form = functools.lru_cache(maxsize=1024)(_blas_form)


@functools.lru_cache(maxsize=1024)
def gemm_words(form: BlasForm, beta: int) -> tuple[int, ...]:
    """The words of a record "gemm"."""
    number = struct.Struct("<fxxxx" if form.routine == "sgemm_" else "<d")
    alpha, beta = (int.from_bytes(number.pack(float(x)), "little") for x in (1, beta))
    fields = {
        "left_flag": ord(form.left_flag),
        "right_flag": ord(form.right_flag),
        "m": form.m,
        "n": form.n,
        "k": form.k,
        "alpha": alpha,
        "left_leading": form.left_leading,
        "right_leading": form.right_leading,
        "beta": beta,
        "out_leading": form.out_leading,
        "group_count": 1,
        "group_size": form.batch,
    }
    return tuple(fields[name] for name in RECORDS["gemm"])


@functools.lru_cache(maxsize=1024)
def byte_offsets(axes: tuple, left: int, itemsize: int) -> tuple[int, ...]:
    """For each matrix where it begins: the left operand, the right one, the result, in bytes."""
    order = (0, 1, 2) if left == 0 else (1, 0, 2)
    return tuple(triple[k] * itemsize for triple in batch_offsets(axes) for k in order)


def _form(a: TensorType, b: TensorType, out: TensorType, axes, row_axis) -> BlasForm | None:
    routine, inner, columns = BLAS_DTYPES[out.dtype], a.sizes[-1], out.sizes[-1]
    rows, a_step, out_step = row_axis
    a_order, a_leading = _matrix(rows, inner, a_step, a.strides[-1])
    b_order, b_leading = _matrix(inner, columns, *b.strides[-2:])
    out_order, out_leading = _matrix(rows, columns, out_step, out.strides[-1])
    if not (a_order and b_order and out_order):
        return None
    counts = (rows, inner, columns, a_leading, b_leading, out_leading)
    if any(count > _INT32_MAX for count in counts):
        return None
    axes = tuple(axes)
    if out_order == "R":  # row-major out is out^T = b^T a^T in column-major
        return BlasForm(
            routine,
            1,
            "N" if b_order == "R" else "T",
            "N" if a_order == "R" else "T",
            columns,
            rows,
            inner,
            b_leading,
            a_leading,
            out_leading,
            axes,
        )
    return BlasForm(
        routine,
        0,
        "T" if a_order == "R" else "N",
        "T" if b_order == "R" else "N",
        rows,
        columns,
        inner,
        a_leading,
        b_leading,
        out_leading,
        axes,
    )


def _matrix(rows: int, columns: int, row_step: int, column_step: int) -> tuple[str, int]:
    """("R" row-major or "C" column-major, leading dimension) of a matrix; ("", 0) if neither."""
    has_columns, has_rows = (not holds("le", count, 1) for count in (columns, rows))
    if column_step == 1 or not has_columns:
        if not has_rows:
            return "R", longest((columns, 1))
        if row_step >= longest((columns, 1)):
            return "R", row_step
    if row_step == 1 or not has_rows:
        if not has_columns:
            return "C", longest((rows, 1))
        if column_step >= longest((rows, 1)):
            return "C", column_step
    return "", 0


def _batch_axes(
    a: TensorType, b: TensorType, out: TensorType
) -> list[tuple[int, tuple[int, int, int]]]:
    """(size, strides of a, b, out) of the batch axes, outermost first, merged where even."""
    merged: list[tuple[int, tuple[int, int, int]]] = []
    for axis, size in enumerate(out.sizes[:-2]):
        steps = (a.strides[axis], b.strides[axis], out.strides[axis])
        if size == 1:
            continue
        if merged:
            outer_size, outer = merged[-1]
            if all(o == s * size for o, s in zip(outer, steps)):
                merged[-1] = (outer_size * size, steps)
                continue
        merged.append((size, steps))
    return merged


def _batch_into_rows(axes, row_axis):
    """The innermost batch axes as more rows, as long as `b` is the same for all of them."""
    rows, a_step, out_step = row_axis
    while axes:
        size, (next_a, next_b, next_out) = axes[-1]
        steps_on = rows == 1 or (next_a, next_out) == (a_step * rows, out_step * rows)
        if next_b != 0 or not steps_on:
            break
        if rows == 1:
            a_step, out_step = next_a, next_out
        axes, rows = axes[:-1], rows * size
    return axes, (rows, a_step, out_step)


def batch_offsets(axes) -> tuple[tuple[int, int, int], ...]:
    """Of each matrix of a, b and out, in elements."""
    ranges = [range(size) for size, _ in axes]
    steps = [s for _, s in axes]
    return tuple(
        tuple(sum(i * s[operand] for i, s in zip(place, steps)) for operand in range(3))
        for place in itertools.product(*ranges)
    )


def offsets_of(memory: Memory, form: BlasForm, itemsize: int) -> int:
    """The address of the byte offsets of `form`."""
    if not has_sizes(form.axes):
        return memory.words(byte_offsets(form.axes, form.left, itemsize))

    build = builder(form.axes, memory.value)

    def at_sizes(words: Sequence[int], kept: list) -> tuple[int]:
        offsets = Memory()
        kept.append(offsets)
        return offsets.words(byte_offsets(build(words), form.left, itemsize)),

    return memory.made(at_sizes)[0]
