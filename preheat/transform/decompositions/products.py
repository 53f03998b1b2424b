"""Products of matrices.

    aten.addmm.default(bias: [N], x: [M, K], w: [K, N])   ->   add(expand(bias), matmul(x, w))

A product with an addend is split, so that the sum can join a later kernel. Where the split would
round twice (16-bit floats) or change an integer's meaning, the library keeps it whole.
"""

from collections.abc import Callable

from preheat.ir.scalar import Number, product
from preheat.ir.types import HALVES
from preheat.transform.lowering import Lowering, Value, decline_if, is_float


def matmul(c: Lowering, a: Value, b: Value) -> Value:
    """a: [*B, M, K] @ b: [*B, K, N]."""
    decline_if(a.dtype == "bool", "product of bools")
    return c.emit("matmul", [a, b], a.dtype, (*a.sizes[:-1], b.sizes[-1]))


def mm(c: Lowering, self: Value, mat2: Value) -> Value:
    return matmul(c, self, mat2)


def mv(c: Lowering, self: Value, vec: Value) -> Value:
    return c.reshape(matmul(c, self, c.reshape(vec, (*vec.sizes, 1))), c.result.sizes)


def dot(c: Lowering, self: Value, tensor: Value) -> Value:
    decline_if(not is_float(self.dtype), "dot of integers")
    return c.down(c.reduce("sum", c.up(self) * c.up(tensor), (0,), keepdim=False))


def plus_product(
    c: Lowering, addend: Value, a: Value, b: Value, beta: Number, alpha: Number
) -> Value:
    """beta * addend + alpha * (a @ b); the addend is not read when beta is 0."""
    decline_if(a.dtype in HALVES, "one rounding")
    decline_if(a.type.device != "cpu", "the library of a GPU adds in its epilogue")
    decline_if(not is_float(a.dtype) and (beta, alpha) != (1, 1), "integer factors")
    made = matmul(c, a, b)
    made = made if alpha == 1 else made * alpha
    if beta == 0:
        return made
    return made + (addend if beta == 1 else addend * beta)


def addmm(
    c: Lowering, self: Value, mat1: Value, mat2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    return plus_product(c, self, mat1, mat2, beta, alpha)


def baddbmm(
    c: Lowering, self: Value, batch1: Value, batch2: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    return plus_product(c, self, batch1, batch2, beta, alpha)


def addmv(
    c: Lowering, self: Value, mat: Value, vec: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    column = c.reshape(vec, (*vec.sizes, 1))
    addend = c.reshape(self, (*self.sizes, 1)) if self.rank == 1 else self
    return c.reshape(plus_product(c, addend, mat, column, beta, alpha), c.result.sizes)


def linear(c: Lowering, input: Value, weight: Value, bias: Value | None = None) -> Value:
    decline_if(weight.rank != 2 or input.rank == 0, "vector weight")
    decline_if(bias is not None and input.dtype in HALVES, "one rounding")
    decline_if(bias is not None and input.type.device != "cpu", "as plus_product")
    rows = product(input.sizes[:-1])
    flat = c.reshape(input, (rows, input.sizes[-1]))
    made = matmul(c, flat, c.transpose(weight, 0, 1))
    made = made if bias is None else made + bias
    return c.reshape(made, c.result.sizes)


ROWS: dict[str, Callable] = {
    "aten.mm.default": mm, "aten.bmm.default": mm, "aten.mv.default": mv, "aten.dot.default": dot,
    "aten.addmm.default": addmm, "aten.baddbmm.default": baddbmm, "aten.addmv.default": addmv,
    "aten.linear.default": linear,
}
