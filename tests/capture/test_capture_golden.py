"""One small capture as text: what a person reads of a trace."""

import re
import sys

import pytest
import torch
from torch import nn

from preheat.ir.text import show
from tests.capture.replay import captured


class Scale(nn.Module):
    """A weight, a flag, a dict and a result with structure."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.is_on, self.table = True, {"gain": 2.0}

    def forward(self, x, *, bias=None):
        y = x * self.weight * self.table["gain"]
        if self.is_on and bias is None:
            y = torch.relu(y)
        return {"y": y, "x": x, "rows": x.shape[0]}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the order of guards is that of one Python's bytecode")
def test_trace_as_text(golden):
    with torch.no_grad():
        made = captured(Scale().eval(), torch.ones(2, 4), bias=None)
    text = show(made.trace)
    text = re.sub(r"'[0-9a-f]{32}'", "'...'", text)  # digests of torch's own code
    text = "\n".join(line for line in text.splitlines() if "guard ambient" not in line)
    golden("capture_scale", text + "\n")
