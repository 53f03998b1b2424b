"""Programs that make tensors of rows of several lengths: known reasons, and no capture for each length."""

import pytest
import torch
from torch import nn

import preheat

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def test_an_encoder_with_its_defaults_and_a_mask_of_padding():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    compiled = preheat.compile(model, options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for n in (5, 8, 3, 7, 9, 5):
            x, mask = torch.randn(2, n, 8), torch.zeros(2, n, dtype=torch.bool)
            mask[0, -1] = True
            found, expected = (f(x, src_key_padding_mask=mask) for f in (compiled, model))
            torch.testing.assert_close(found, expected)
        told = preheat.explain(model)(x, src_key_padding_mask=mask)
    assert preheat.counters()["captures"] - before <= 4
    assert {one.reason.partition(":")[0] for one in told.breaks} == {"data_dependent_number", "tensor_subclass"}


def test_an_op_that_gives_a_tensor_of_rows():
    def program(x, y):
        return torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x * 2, y]) * 2, 0.0) + 1

    compiled = preheat.compile(program, options={"cache": False})
    for n in (3, 5, 4, 6):
        x, y = torch.randn(n, 2), torch.randn(n + 1, 2)
        torch.testing.assert_close(compiled(x, y), program(x, y))
    assert "fault" not in {one.reason for one in preheat.explain(program)(x, y).breaks}
