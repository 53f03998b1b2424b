"""Operators of torch's OpInfo table on a GPU, forward, through `compile`: `make test-gpu`.

Every third operator, two samples a dtype; `OPINFO_STEP=1` takes them all.
"""

import os

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from opinfo.expected import ELSEWHERE, UNDEFINED
from opinfo.test_opinfo import _NAMES, no_seeds_of_the_table, spread
from same import same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
# What eager itself does not repeat: sums in the order in which atomics arrive, and the like.
# Integer division by zero: torch leaves the value undefined (docs/differences.md).
NO_FLOAT64 = ("_softmax_backward_data",)  # its dtype is an argument: 16 bits have nothing to be judged by
UNREPEATABLE = ("__rmod__", "empty_like", "new_empty", "linalg.lstsq", "svd_lowrank", "pca_lowrank")
__all__ = ["no_seeds_of_the_table"]


def rows():
    for name, op in list(zip(_NAMES, op_db))[:: int(os.environ.get("OPINFO_STEP", "3"))]:
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cuda"):
                yield pytest.param(name, op, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")


@pytest.mark.parametrize("name, op, dtype", rows() if torch.cuda.is_available() else [])
def test_operator(name, op, dtype):
    short = str(dtype).removeprefix("torch.")
    if (name, short) in ELSEWHERE or name in UNDEFINED or name.startswith(UNREPEATABLE):
        pytest.skip("undefined, or not the same twice in eager")
    if name.startswith(NO_FLOAT64) and dtype is torch.bfloat16:
        pytest.skip("nothing to judge 16 bits by")
    torch.manual_seed(0)
    for sample in spread(list(op.sample_inputs("cuda", dtype, requires_grad=False)), 2):

        def call(value, args, kwargs):
            return op.op(value, *args, **kwargs)

        same(call, sample.input, sample.args, sample.kwargs, calls=2)
