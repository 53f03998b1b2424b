"""Norms of rows whose elements are all equal."""

import pytest
import torch
import torch.nn.functional as F

import preheat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [3, 7, 96, 1000, 50001])
def test_rows_of_equal_elements_are_zero(length, dtype):
    """Their mean was an ulp off, which came out multiplied by 1 / sqrt(eps): 0.02 for a thousand elements of some hundred."""
    rows = (torch.randn(16, 1, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 4, 16)[:, None]).to(dtype)
    x = rows.expand(16, length).contiguous()
    for call in (lambda x: F.layer_norm(x, (length,)), lambda x: F.group_norm(x.view(16, 1, length), 1)):
        compiled = preheat.compile(call, options={"cache": False})
        with torch.no_grad():
            found = [compiled(x) for _ in range(2)][-1]
        assert not found.any()


def test_a_first_element_that_is_almost_the_mean_is_no_other_mean():
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) + 3
    x[:, 0] = x[:, 1:].mean(1) * (1 + 2e-7)
    compiled = preheat.compile(lambda x: F.layer_norm(x, (256,)), options={"cache": False})
    with torch.no_grad():
        found = [compiled(x) for _ in range(2)][-1]
    wanted = F.layer_norm(x.double(), (256,))
    assert (found - wanted).abs().max() <= 2 * (F.layer_norm(x, (256,)) - wanted).abs().max() + 1e-6
