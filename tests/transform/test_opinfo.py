"""Every operator of torch's own operator database, lowered and interpreted: `pytest -m opinfo`."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from preheat.base.errors import Unsupported
from transform.check import check

# They seed a generator inside the call, give uninitialised memory, or need another device or layout.
SKIPPED = ("empty", "rand", "dropout", "bernoulli", "normal", "multinomial", "uniform", "cauchy", "exponential", "geometric",
           "pca_lowrank", "svd_lowrank", "scaled_dot_product", "fractional_max_pool", "multi_head_attention", "chalf", "rrelu",
           "jiterator", "to_sparse")
SAMPLES = 5


def _programs(op, dtype):
    """(fn, tensors) of some samples: fn calls the operator on its tensors."""
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=False))[:SAMPLES]:
        leaves = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.layout != torch.strided or t.is_complex() for t in leaves):
            continue

        def fn(*given, sample=sample, leaves=leaves):
            known = {id(t): x for t, x in zip(leaves, given)}
            x, args, kwargs = tree_map(lambda a: known.get(id(a), a) if isinstance(a, torch.Tensor) else a,
                                       (sample.input, sample.args, sample.kwargs))
            return op.op(x, *args, **kwargs)

        yield fn, leaves


@pytest.mark.opinfo
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool), ids=str)
@pytest.mark.parametrize("op", op_db, ids=lambda op: op.formatted_name)
def test_operator(op, dtype):
    if dtype not in op.supported_dtypes("cpu") or any(word in op.name for word in SKIPPED):
        pytest.skip("not for this dtype, or draws")
    for fn, inputs in _programs(op, dtype):
        try:
            check(fn, *inputs, factor=16)
        except Unsupported:
            continue  # runs eager, with the reason
