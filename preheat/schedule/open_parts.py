"""Parts of long reductions over axes whose sizes are not known: how many there are is an expression, of the sizes of
each call.

    max of [n2, n3] along n3        n2 rows in n3 // (4096 * max(2, n2*n3 // 4M)) parts each, 1056 in all at the most
    sum of [n2, n3] down n2         parts of max(256, ..) rows

Whether there are parts at all is decided by the sizes of the real call, with some room: few long rows in parts, and
many rows, which one kernel has in its registers, are different plans. Where the sizes of a call are far on the
other side, the plan is right, and not preferred (`ir/hinted.py`).
"""

from preheat.ir.hinted import estimate, least, longest, prefer
from preheat.ir.scalar import Dim, Scalar, product
from preheat.ir.types import TensorType
from preheat.schedule import cost

GPU_COLUMNS = 64  # that one program takes
OPEN_ROWS, OPEN_PARTS = 256, 1024  # the fewest rows of a part across; the parts along of what is one row
PROGRAMS = 4 * cost.GPU_FEW_PROGRAMS  # the most parts along of all rows: so many that all are done at about the same time
LEAST_STEPS = 2  # of a part along
MOST_ROWS_OF_PARTS = 256  # across: the second step walks them
# How many times as long or as short as expected a reduction may be; the same of few rows, and how many these are.
ROOM, ROW_ROOM = 8, 2


def parts_along(
    type: TensorType, axes: tuple[int, ...], axis: int, step: int,
) -> tuple[Dim, Dim] | None:
    """How many parts `axis`, the longest of `axes`, is cut into for each row, and the elements of one: a multiple of
    `step`, so that they may have more than the axis. None to leave it whole."""
    size, rows = type.sizes[axis], product(n for k, n in enumerate(type.sizes) if k not in axes)
    count, few = product(type.sizes[a] for a in axes), cost.GPU_FEW_PROGRAMS // 2
    is_one = not isinstance(rows, Scalar) and rows == 1
    longest_whole = step if is_one else cost.GPU_ROW_ELEMS
    if estimate(rows) >= few or estimate(count) <= longest_whole:
        prefer(("ge", rows, few // ROW_ROOM), ("le", count, (ROOM if is_one else ROW_ROOM) * longest_whole))
        return None
    if is_one:
        each = ceiling(size, OPEN_PARTS * step) * step
        return least((OPEN_PARTS, ceiling(size, each))), each
    prefer(("le", rows, ROW_ROOM * few))
    prefer(("ge", count, longest_whole // ROW_ROOM))
    each = longest((LEAST_STEPS, ceiling(type.elems, PROGRAMS * step))) * step
    return least((PROGRAMS, ceiling(size, each))), each


def parts_across(
    type: TensorType, axes: tuple[int, ...], axis: int, step: int, most: Dim = MOST_ROWS_OF_PARTS,
) -> tuple[Dim, Dim] | None:
    """As `parts_along`, of columns, in `most` parts at the most."""
    size, count = type.sizes[axis], product(type.sizes[a] for a in axes)
    columns, many = product(n for k, n in enumerate(type.sizes) if k not in axes), cost.GPU_FEW_PROGRAMS // 2 * GPU_COLUMNS
    if estimate(columns) >= many or estimate(count) <= OPEN_ROWS:
        prefer(("ge", columns, many // ROOM), ("le", count, ROOM * OPEN_ROWS))
        return None
    prefer(("ge", count, OPEN_ROWS // ROOM))
    enough = 4 * cost.GPU_FEW_PROGRAMS * GPU_COLUMNS * step  # elements of all programs, a step for each
    few = ceiling(size, most * step), ceiling(type.elems, enough)
    each = longest((OPEN_ROWS, *(steps * step for steps in few)))
    return ceiling(size, each), each


def ceiling(size: Dim, each: Dim) -> Dim:
    """size / each, rounded up."""
    return (size + (each - 1)) // each
