"""The gradient of every operator that torch's own OpInfo table has one for, through `preheat.compile`.

For each operator and sample in float32: four calls, each with a backward under tangents of its own,
of which the last ones run both compiled halves. Gradients are None where eager's are and as accurate
against float64 as eager's, within the factor of `same`. The whole table is `make test-opinfo`;
`make test` takes every 24th operator with one sample.
"""

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

import preheat
from opinfo.expected import UNDEFINED
from tests.training.place import DEVICE

NAMES = [op.name + (f".{op.variant_test_name}" if op.variant_test_name else "") for op in op_db]
CALLS = 4
# name -> why its gradient is not compared
ELSEWHERE = {
    "nn.functional.rrelu": "draws in backward what eager draws in forward",
    "linalg.eig": "its formula refuses an ill-defined loss only where no dispatch mode is active",
    **dict.fromkeys(("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"), "sparse layouts"),
}

if DEVICE != "cpu":
    ELSEWHERE |= {
        "nn.functional.layer_norm": "of one element eager's gradient is exactly 0, ours its rounding",
        "torch.ops.aten._efficient_attention_forward": "has no float64 to be judged by",
    }


def rows(step=1):
    for name, op in list(zip(NAMES, op_db))[::step]:
        if op.supports_autograd and torch.float32 in op.supported_dtypes(DEVICE.partition(":")[0]):
            if name not in UNDEFINED and name not in ELSEWHERE:
                yield pytest.param(op, id=name)


@pytest.mark.opinfo
@pytest.mark.parametrize("op", rows())
def test_gradient(op):
    check(op, 3)


@pytest.mark.parametrize("op", rows(step=24))
def test_gradient_quickly(op):
    check(op, 1)


def check(op, count):
    torch.manual_seed(0)
    samples = list(op.sample_inputs(DEVICE, torch.float32, requires_grad=True))
    for sample in samples[::max(1, len(samples) // count)][:count]:
        def call(value, args, kwargs):
            return op.op(value, *args, **kwargs)

        compiled = preheat.compile(call, options={"cache": False})
        for number in range(CALLS):
            expected = run(call, sample, number)
            found = run(compiled, sample, number)
            compare(expected, found, lambda: run(call, sample, number, torch.float64), number)


def run(call, sample, number, dtype=torch.float32):
    """Results and gradients, or the exception, of one call and one backward."""
    leaves = []

    def fresh(value):
        if isinstance(value, torch.Tensor):
            is_float = value.is_floating_point() or value.is_complex()
            made = value.detach().clone()
            if value.dtype is torch.float32:
                made = made.to(dtype)
            if is_float and value.requires_grad:
                leaves.append(made.requires_grad_())
                return made * 1 if value.requires_grad else made
            return made
        return mapped(fresh, value)

    given = fresh(sample.input), fresh(sample.args), fresh(sample.kwargs)
    torch.manual_seed(number)
    try:
        results = [t for t in flat(call(*given)) if isinstance(t, torch.Tensor)]
    except Exception as error:
        return type(error), ()
    outputs = [t for t in results if t.requires_grad]
    if not outputs:
        return [t.detach() for t in results], [None] * len(leaves)
    generator = torch.Generator().manual_seed(number)
    tangents = [
        torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t) for t in outputs]
    try:
        grads = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True)
    except RuntimeError as error:
        return [t.detach() for t in results], [type(error)]
    return [t.detach() for t in results], list(grads)


def mapped(change, value):
    """`value`, a container or not, with its parts changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(change, value))
    if isinstance(value, dict):
        return {key: change(part) for key, part in value.items()}
    return value


def flat(value):
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from flat(part)
    else:
        yield value


def compare(expected, found, reference, number):
    for kind, (ours, theirs) in enumerate(zip(found, expected)):
        if not isinstance(theirs, (list, tuple)):
            assert ours == theirs, (number, ours, theirs)
            continue
        assert len(ours) == len(theirs), number
        for place, (a, b) in enumerate(zip(ours, theirs)):
            where = f"call {number}, {('result', 'gradient')[kind]} {place}"
            if not isinstance(b, torch.Tensor):
                assert a is b, f"{where}: {a} for {b}"
                continue
            assert isinstance(a, torch.Tensor), f"{where}: {a}"
            assert (a.shape, a.dtype) == (b.shape, b.dtype), where
            if torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                continue
            exact = reference()[kind][place].to(b.dtype)
            worst = (b - exact).abs().nan_to_num().max()
            error = (a - exact).abs().nan_to_num().max()
            assert error <= 2 * worst + 1e-5, f"{where}: error {error}, eager's {worst}"
