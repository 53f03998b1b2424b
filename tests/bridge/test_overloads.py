"""What overloads of torch say of themselves, in any version of it."""

import pytest
import torch

from preheat.bridge.overloads import facts_of

A = torch.ops.aten


@pytest.mark.parametrize("op, expected", [
    (A.mul.Tensor, True), (A._conj_physical.default, True), (A.leaky_relu.default, True), (A.leaky_relu_.default, True),
    (A.celu_.default, True), (A.elu_.default, True), (A.selu_.default, True), (A.hardtanh_.default, True),
    (A.hardsigmoid_.default, True), (A.mm.default, False), (A.sum.default, False),
], ids=str)
def test_whether_each_element_is_computed_by_itself(op, expected):
    assert facts_of(op).is_pointwise is expected
