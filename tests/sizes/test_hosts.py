"""Host steps that take a tensor whose sizes change: the call is the host's, its sizes stay symbols."""

import numpy
import pytest
import torch

import preheat

SIZES = (5, 8, 3, 7, 9, 12, 20)
PROGRAMS = {
    "length of a list": lambda x: x * len(x.tolist()), "list": lambda x: (x * 2, (x + 1).tolist())[0] + 1,
    "array": lambda x: x + torch.from_numpy(numpy.asarray(x[:, 0].numpy().cumsum()))[:, None],
    "number of an array": lambda x: x * float(x.numpy().sum()), "address": lambda x: x * 2 if x.data_ptr() else x,
    "offset": lambda x: x * 2 + x.storage_offset(), "bytes": lambda x: x * 2 + x.nbytes + x[0].nbytes, "iterated": lambda x: ([float(row.sum()) for row in x[:2]], x + 1)[1],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_not_pin_what_it_takes(name):
    compiled = preheat.compile(PROGRAMS[name], options={"cache": False})
    captures = []
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x.clone()), PROGRAMS[name](x.clone()))
        captures.append(preheat.counters()["captures"])
    assert captures[1] == captures[-1]
