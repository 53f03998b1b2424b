"""Buckets: padded runs give the results of the unpadded ones, or are refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat
from preheat.base.events import subscribe


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


class Reader(nn.Module):
    """Attention over a sequence with a mask; a mean over what is not masked."""

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids, mask, is_masked=True):
        x = self.embed(ids)
        hidden = ~mask.bool() if is_masked else torch.zeros_like(mask).bool()
        scores = (x @ x.transpose(1, 2)).masked_fill(hidden[:, None], float("-inf"))
        x = self.project(scores.softmax(-1) @ x)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"states": x, "mean": mean}


def inputs(batch, length):
    return torch.randint(0, 20, (batch, length)), torch.ones(batch, length, dtype=torch.long)


def test_results_are_those_of_the_unpadded_run():
    torch.manual_seed(0)
    model = Reader().eval()
    bucketed = preheat.bucketed(
        model, lengths=[16, 8, 32], dims={"ids": 1, "mask": 1}, fill={"mask": 0},
        options={"cache": False})
    before = preheat.counters()["captures"]
    with torch.no_grad():
        for length in (5, 8, 7, 3, 16, 9, 12, 31, 20, 6, 1):
            ids, mask = inputs(2, length)
            found, expected = bucketed(ids, mask=mask), model(ids, mask)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert preheat.counters()["captures"] - before == 3  # one for each bucket


def test_padding_that_reaches_the_results_is_refused():
    model = Reader().eval()
    bucketed = preheat.bucketed(
        lambda ids, mask: model(ids, mask, is_masked=False), lengths=[8],
        dims={"ids": 1, "mask": 1}, fill={"mask": 0}, options={"cache": False})
    with torch.no_grad(), pytest.raises(preheat.UserError, match="padding reaches the results"):
        bucketed(*inputs(2, 5))


def test_a_scan_backwards_is_refused():
    bucketed = preheat.bucketed(
        lambda x: x.flip(0).cumsum(0).flip(0), lengths=[8], dims={"x": 0}, options={"cache": False})
    with torch.no_grad(), pytest.raises(preheat.UserError, match="reaches the results"):
        bucketed(torch.randn(5))


def test_elementwise_programs_need_no_mask():
    bucketed = preheat.bucketed(
        lambda x: (F.gelu(x), x.sum(-1)), lengths=[4, 8], dims={"x": 0}, options={"cache": False})
    with torch.no_grad():
        for length in range(1, 9):
            x = torch.randn(length, 3)
            first, second = bucketed(x)
            torch.testing.assert_close(first, F.gelu(x))
            torch.testing.assert_close(second, x.sum(-1))


def test_beyond_the_last_bucket_sizes_are_symbols_and_reported():
    bucketed = preheat.bucketed(
        lambda x: x * 2, lengths=[4], dims={"x": 0}, options={"cache": False})
    reported = []
    unsubscribe = subscribe(lambda event: reported.append(event.data["why"]), {"fallback"})
    before = preheat.counters()["captures"]
    try:
        with torch.no_grad():
            for length in (5, 9, 17, 33):
                assert torch.equal(bucketed(torch.ones(length)), torch.full((length,), 2.0))
    finally:
        unsubscribe()
    assert len(reported) == 4 and "length 33 is beyond the last bucket, 4" in reported[-1]
    assert preheat.counters()["captures"] - before == 2


def test_what_is_asked_for_is_checked():
    with pytest.raises(preheat.UserError, match="positive integers"):
        preheat.bucketed(lambda x: x, lengths=[], dims={"x": 0})
    with pytest.raises(preheat.UserError, match="no argument 'ids'"):
        preheat.bucketed(lambda x: x, lengths=[4], dims={"ids": 0})
    bucketed = preheat.bucketed(
        lambda x, y: x, lengths=[4], dims={"x": 0, "y": 0}, options={"cache": False})
    with pytest.raises(preheat.UserError, match="need one length"):
        bucketed(torch.ones(2), torch.ones(3))
