"""Real models, cut at every few ops as if these were host calls: bit for bit as without a cut.

Also gone on with from any of the points, as a call does that gets to a point where no node fits.
"""

import random

import pytest
import torch

from preheat.capture import native
from preheat.capture.observer import GiveUp
from tests.capture.chains import Chain
from test_zoo import ZOO

CUT = ("bert with a padding mask", "gpt2", "llama", "llama one token", "vit", "convnext")


@pytest.fixture(params=[4])
def every_few_ops(request, monkeypatch):
    count, record = [0], native.CALLS["op"]

    def op(watcher, function, args, kwargs, row):
        count[0] += 1
        if count[0] % request.param == 0:
            raise GiveUp("host_call", "forced")
        return record(watcher, function, args, kwargs, row)

    monkeypatch.setitem(native.CALLS, "op", op)


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [leaf for part in parts for leaf in leaves(part)] if isinstance(value, (dict, list, tuple)) else []


@pytest.mark.parametrize("name", CUT)
def test_a_model_in_pieces_is_the_model(name, every_few_ops):
    torch.manual_seed(0)
    model, args, kwargs = ZOO[name]()
    model.eval()
    chooser = random.Random(name)
    with torch.no_grad():
        expected = leaves(model(*args, **kwargs))
        chain = Chain(model, max_nodes=5000)
        for _ in range(4):
            found = leaves(chain(*args, **kwargs))
            assert len(found) == len(expected) and all(map(torch.equal, found, expected))
            assert not chain.breaks
            place = chooser.choice([p for p in chain.places if p is not None])
            chain.places[place].clear()  # the next call has to go on from here for real
    assert chain.captures > 1 and chain.replays > 10
