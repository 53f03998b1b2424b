"""Every operator that torch's own OpInfo table describes, forward, through `preheat.compile`.

For each operator, dtype (float32, bfloat16, int64, bool, as eager supports it) and sample: two
calls, of which the second runs the compiled program, equal eager as `same` means it. The whole
table is `make test-opinfo`; `make test` takes every 12th operator with one sample.
"""

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

import same as comparison
from opinfo.expected import EAGER, ELSEWHERE, UNDEFINED
from same import same

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 5
_NAMES = [op.name + (f".{op.variant_test_name}" if op.variant_test_name else "") for op in op_db]


def rows(step=1):
    """(name, operator, dtype) for every `step`-th operator."""
    for name, op in list(zip(_NAMES, op_db))[::step]:
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                yield pytest.param(
                    name, op, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}"
                )


@pytest.mark.opinfo
@pytest.mark.parametrize("name, op, dtype", rows())
def test_operator(name, op, dtype):
    check(name, op, dtype, SAMPLES)


@pytest.mark.parametrize("name, op, dtype", rows(step=12))
def test_operator_quickly(name, op, dtype):
    check(name, op, dtype, 1)


def check(name, op, dtype, count):
    short = str(dtype).removeprefix("torch.")
    if (name, short) in ELSEWHERE:
        pytest.skip(ELSEWHERE[name, short])
    torch.manual_seed(0)
    eager = []
    samples = spread(list(op.sample_inputs("cpu", dtype, requires_grad=False)), count)
    for sample in samples:

        def call(value, args, kwargs):
            return op.op(value, *args, **kwargs)

        if name in UNDEFINED:
            same_shape(call, sample)
            continue
        seen = same(call, sample.input, sample.args, sample.kwargs, calls=2)
        if not seen.is_captured:
            eager.append(seen.breaks)
    if name in UNDEFINED or not comparison.is_enabled():
        return
    reason, _ = EAGER.get(name, (None, ""))
    for breaks in eager:
        assert reason is not None, f"{len(eager)} of {len(samples)} samples ran eager: {breaks}"
        assert all(row.startswith(reason) for row in breaks), breaks


@pytest.fixture(autouse=True)
def no_seeds_of_the_table(monkeypatch):
    """The table wraps what is random in a reset of the generator; `same` seeds, and the op is bare."""
    monkeypatch.setattr(
        common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)
    )


def spread(samples, count):
    """At most `count` of `samples`, from the whole range."""
    if len(samples) <= count:
        return samples
    return [samples[i * len(samples) // count] for i in range(count)]


def same_shape(call, sample):
    compiled = comparison._compile(call, {})
    for _ in range(2):
        expected = call(sample.input, sample.args, sample.kwargs)
        found = compiled(sample.input, sample.args, sample.kwargs)
        assert (found.shape, found.stride(), found.dtype) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
        )
