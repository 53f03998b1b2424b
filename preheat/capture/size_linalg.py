"""Sizes of what LAPACK computes of matrices [..., M, N]: decompositions, inverses, determinants.

Rules of `size_rules.py`. Matrices come back by columns, whatever the layout of the operand. Source:
aten/src/ATen/native/BatchLinearAlgebra.cpp.
"""

from collections.abc import Sequence

from preheat.capture.size_call import Call, NoRule, Rule, Shape, row_major
from preheat.ir.dims import normal
from preheat.ir.scalar import Dim


def _by_columns(batch: Sequence[Dim], rows: Dim, columns: Dim) -> Shape:
    outer = [normal(step * rows * columns) for step in row_major(tuple(batch))]
    return (*batch, rows, columns), (*outer, 1, rows)


def _matrix(call: Call, name: str) -> tuple[tuple[Dim, ...], Dim, Dim]:
    sizes = call.type(name).sizes
    if len(sizes) < 2 or call.type(name).device != "cpu":
        raise NoRule("no matrix on a CPU")
    return sizes[:-2], sizes[-2], sizes[-1]


def _square(call: Call, name: str) -> tuple[tuple[Dim, ...], Dim]:
    batch, rows, columns = _matrix(call, name)
    return batch, call.same(rows, columns)


def _inverse(call: Call) -> list[Shape]:
    """The matrix, and for each a flag."""
    batch, size = _square(call, "A" if "A" in call.args else "self")
    return [_by_columns(batch, size, size), (batch, None)]


def _determinant(call: Call) -> list[Shape]:
    """The determinant (its sign first, with its logarithm), the factors and the pivots."""
    batch, size = _square(call, "A")
    numbers: list[Shape] = [(batch, None)] * (len(call.real) - 2)
    return [*numbers, _by_columns(batch, size, size), ((*batch, size), None)]


def _factors(call: Call) -> list[Shape]:
    batch, size = _square(call, "A")
    return [_by_columns(batch, size, size), ((*batch, size), None), (batch, None)]


def _eigen(call: Call) -> list[Shape]:
    batch, size = _square(call, "A")
    if not call.arg("compute_v", True):
        raise NoRule("no vectors")
    return [((*batch, size), None), _by_columns(batch, size, size)]


def _solution(call: Call) -> list[Shape]:
    """Of as many right sides as matrices; the factors, the pivots and a flag for each."""
    (batch, size), (others, rows, columns) = _square(call, "A"), _matrix(call, "B")
    if len(others) != len(batch) or not call.arg("left", True):
        raise NoRule("right sides that are broadcast, or stand on the left")
    batch = tuple(call.same(a, b) for a, b in zip(batch, others))
    call.same(rows, size)
    return [_by_columns(batch, size, columns), _by_columns(batch, size, size), ((*batch, size), None), (batch, None)]


def _singular(call: Call) -> list[Shape | None]:
    """U, the values and V^H, of a full set of vectors or of as many as there are values."""
    batch, rows, columns = _matrix(call, "A")
    count = call.smaller(rows, columns)
    if not call.arg("compute_uv", True):
        return [None, ((*batch, count), None), None]
    is_full = call.arg("full_matrices", False)
    return [
        _by_columns(batch, rows, rows if is_full else count), ((*batch, count), None),
        _by_columns(batch, columns if is_full else count, columns)]


def _nothing(call: Call) -> list[Shape]:
    return []


LINALG: dict[Rule, str] = {
    _inverse: "linalg_inv_ex linalg_cholesky_ex",
    _determinant: "_linalg_det _linalg_slogdet",
    _factors: "linalg_lu_factor_ex",
    _eigen: "_linalg_eigh",
    _solution: "_linalg_solve_ex",
    _singular: "_linalg_svd",
    _nothing: "_linalg_check_errors",
}
"""Rules, and the ops that they are of."""
