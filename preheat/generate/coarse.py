"""Which float32 values need not be exact, since memory gets them as 16-bit floats.

    v1 = cast v0: f32; v2 = exp v1; v3 = cast v2: bf16; store v3         v1 and v2 are coarse

`triton_ops` says what is computed otherwise for them, and how far off that is.
"""

from preheat.generate.triton_ops import SMOOTH
from preheat.ir.loop import Kernel, LoopOp
from preheat.ir.types import HALVES


def coarse_values(kernel: Kernel) -> frozenset[int]:
    """The values that reach memory only as 16-bit floats, by smooth ops and reductions."""
    body = [op for stage in kernel.stages for op in stage.body]
    dtypes = {op.id: op.dtype for op in body}
    exact: set[int] = set()
    for op in reversed(body):
        is_half = op.dtype in HALVES
        if op.op == "store":
            exact |= set() if is_half else set(op.args)
        elif op.op == "cast":
            is_kept = is_half or (op.dtype == "float32" and op.id not in exact)
            exact |= set() if is_kept else set(op.args)
        elif op.op == "reduce":
            is_kept = op.how in ("sum", "max", "min") and op.id not in exact
            exact |= set() if is_kept else set(op.args)
        elif op.op not in SMOOTH or op.id in exact:
            exact |= set(op.args)
        elif op.op == "where":
            exact.add(op.args[0])
        exact |= {t for t, _ in op.index.terms if isinstance(t, int)} if op.index else set()
        exact |= set() if op.mask is None else {op.mask}
    alone = _read_alone(body)
    return frozenset(
        op.id for op in body if dtypes.get(op.id) == "float32" and op.id not in exact
        and (op.op != "erf" or op.id not in alone))


def _read_alone(body: list[LoopOp]) -> set[int]:
    """The values that something reads but to add a constant of 1 or -1 to."""
    ones = {op.id for op in body if op.op == "const" and op.other in (1.0, -1.0)}
    return {
        arg for op in body for arg in op.args
        if op.op not in ("add", "sub") or ones.isdisjoint(op.args)}
