"""Sizes of what LAPACK computes of matrices [..., M, N]: decompositions, inverses, determinants, solutions.

Rules of `size_rules.py`. Matrices come back by columns, whatever the layout of the operand, but where torch composes
them of other ops. Source: the meta functions of aten/src/ATen/native/BatchLinearAlgebra.cpp.
"""

from collections.abc import Sequence

from preheat.capture.size_call import Call, NoRule, Rule, Shape, broadcast, is_row_major, row_major
from preheat.ir.dims import normal
from preheat.ir.scalar import Dim

_NOTHING: Shape = ((0,), None)  # what was not asked for


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


# ---------------------------------------------------------------------------- decompositions
def _inverse(call: Call) -> list[Shape]:
    """The matrix, and for each a flag."""
    batch, size = _square(call, "A" if "A" in call.args else "self")
    return [_by_columns(batch, size, size), (batch, None)][: len(call.real)]


def _determinant(call: Call) -> list[Shape]:
    """The determinant (its sign first, with its logarithm), the factors and the pivots."""
    batch, size = _square(call, "A")
    numbers: list[Shape] = [(batch, None)] * (len(call.real) - 2)
    return [*numbers, _by_columns(batch, size, size), ((*batch, size), None)]


def _factors(call: Call) -> list[Shape]:
    """Both factors in one matrix, the pivots, and for each matrix a flag."""
    batch, rows, columns = _matrix(call, "A" if "A" in call.args else "self")
    return [
        _by_columns(batch, rows, columns), ((*batch, call.smaller(rows, columns)), None), (batch, None)]


def _factors_apart(call: Call) -> list[Shape]:
    """P [.., M, M], L [.., M, K] and U [.., K, N], row-major."""
    batch, rows, columns = _matrix(call, "A" if "A" in call.args else "LU_data")
    count = call.smaller(rows, columns)
    made: list[Shape] = [((*batch, *sizes), None) for sizes in ((rows, rows), (rows, count), (count, columns))]
    if not (call.arg("pivot", True) and call.arg("unpack_pivots", True)):
        made[0] = _NOTHING
    return made if call.arg("unpack_data", True) else [made[0], _NOTHING, _NOTHING]


def _orthogonal(call: Call) -> list[Shape]:
    """Q and R, of as many columns as there are numbers on the diagonal, of all ("complete"), or R alone ("r")."""
    batch, rows, columns = _matrix(call, "A")
    count, mode = call.smaller(rows, columns), call.arg("mode", "reduced")
    inner = rows if mode == "complete" else count
    first = _NOTHING if mode == "r" else _by_columns(batch, rows, inner)
    return [first, _by_columns(batch, inner, columns)]


def _reflections(call: Call) -> list[Shape]:
    """As `geqrf` of LAPACK: the reflections in place of the matrix, and their lengths."""
    batch, rows, columns = _matrix(call, "self")
    return [_by_columns(batch, rows, columns), ((*batch, call.smaller(rows, columns)), None)]


def _as_given(call: Call) -> list[Shape]:
    batch, rows, columns = _matrix(call, "input")
    return [_by_columns(batch, rows, columns)]


def _eigen(call: Call) -> list[Shape]:
    batch, size = _square(call, "A")
    vectors = _by_columns(batch, size, size) if call.arg("compute_v", True) else _NOTHING
    return [((*batch, size), None), vectors]


def _any_eigen(call: Call) -> list[Shape]:
    """Complex values and vectors, or the values alone."""
    batch, size = _square(call, "self")
    return [((*batch, size), None), _by_columns(batch, size, size)][: len(call.real)]


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


# ---------------------------------------------------------------------------- solutions
def _solution(call: Call) -> list[Shape]:
    """The solution; the factors, the pivots and a flag for each matrix."""
    batch, size = _square(call, "A")
    is_left = bool(call.arg("left", True))
    if _is_vectors(call):
        sizes = (*broadcast(call, call.type("B").sizes[:-1], batch), size)
        made = _by_columns(sizes[:-2], *sizes[-2:]) if is_left and len(sizes) > 1 else (sizes, None)
    else:
        made = _of_right_sides(call, "B", batch, size, is_left, is_left)
    return [made, _by_columns(batch, size, size), ((*batch, size), None), (batch, None)]


def _is_vectors(call: Call) -> bool:
    """Whether the right side is one vector for each matrix: the sizes before the last are those of the matrices'."""
    matrices, sides = call.type("A").sizes[:-1], call.type("B").sizes
    if len(sides) == 1:
        return True
    return len(sides) == len(matrices) and all(call.equal(a, b) for a, b in zip(matrices, sides))


def _of_right_sides(
    call: Call, name: str, batch: Sequence[Dim], size: Dim, is_left: bool, by_columns: bool = True,
) -> Shape:
    """[.., size, K], or [.., K, size], of batches that are broadcast."""
    others, rows, columns = _matrix(call, name)
    call.same(rows if is_left else columns, size)
    batch = broadcast(call, others, tuple(batch))
    return _by_columns(batch, rows, columns) if by_columns else ((*batch, rows, columns), None)


def _from_factors(call: Call) -> list[Shape]:
    batch, size = _square(call, "LU" if "LU" in call.args else "LD")
    is_left = bool(call.arg("left", True))
    return [_of_right_sides(call, "B", batch, size, is_left, is_left)]


def _from_triangle(call: Call) -> list[Shape]:
    if call.type("self").dtype.startswith("complex"):
        raise NoRule("a triangle that may be conjugated")
    batch, size = _square(call, "self")
    return [_of_right_sides(call, "B", batch, size, bool(call.arg("left", True)))]


def _from_root(call: Call) -> list[Shape]:
    batch, size = _square(call, "input2")
    return [_of_right_sides(call, "self", batch, size, True)]


# ---------------------------------------------------------------------------- composed of other ops
def _pseudo_inverse(call: Call) -> list[Shape]:
    """A product of what a decomposition gives, row-major."""
    batch, rows, columns = _matrix(call, "self")
    return [((*batch, columns, rows), None)]


def _exponential(call: Call) -> list[Shape]:
    batch, size = _square(call, "self")
    if not is_row_major(call.type("self")) and call.is_one(size):
        raise NoRule("numbers in a layout of their own")
    return [((*batch, size, size), None)]


def _nothing(call: Call) -> list[Shape]:
    return []


LINALG: dict[Rule, str] = {
    _inverse: "linalg_inv_ex linalg_cholesky_ex cholesky cholesky_inverse",
    _determinant: "_linalg_det _linalg_slogdet",
    _factors: "linalg_lu_factor_ex linalg_ldl_factor_ex",
    _factors_apart: "linalg_lu lu_unpack",
    _orthogonal: "linalg_qr",
    _reflections: "geqrf",
    _as_given: "linalg_householder_product",
    _eigen: "_linalg_eigh",
    _any_eigen: "linalg_eig _linalg_eigvals",
    _singular: "_linalg_svd",
    _solution: "_linalg_solve_ex",
    _from_factors: "linalg_lu_solve linalg_ldl_solve",
    _from_triangle: "linalg_solve_triangular",
    _from_root: "cholesky_solve",
    _pseudo_inverse: "linalg_pinv",
    _exponential: "linalg_matrix_exp",
    _nothing: "_linalg_check_errors",
}
"""Rules, and the ops that they are of."""
