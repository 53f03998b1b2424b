"""The table from ATen overloads to core ops, one row an overload, grouped by subject.

    ROWS["aten.silu.default"](c, self=Ref(0))  ->  the value of the result

A row is a function of a `Lowering` and the overload's arguments by parameter name. It gives the
result's value (or one a result, None for a result it does not define), or raises `Declined`: the op
then stays a library call. An overload without a row stays one too, so every operator works.
"""

from preheat.transform.decompositions import (
    activations, arithmetic, creation, gradients, indexing, movement, normalization, pooling,
    products, reductions,
)

ROWS = {
    **arithmetic.ROWS, **activations.ROWS, **reductions.ROWS, **normalization.ROWS, **movement.ROWS,
    **creation.ROWS, **indexing.ROWS, **products.ROWS, **gradients.ROWS,
    **pooling.ROWS,
}
# The rows that may be given numbers that are only known at run time, as symbols.
NUMBER_ROWS = arithmetic.NUMBER_ROWS | creation.NUMBER_ROWS
