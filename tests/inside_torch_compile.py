"""A program for test_face: torch.compile, torch.jit and torch.export around what Preheat compiled."""

import torch
from torch import nn

import preheat

SETTINGS = {"cache": False}
X = torch.arange(8.0).reshape(2, 4)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
module = preheat.compile(model, options=SETTINGS)


@preheat.compile(options=SETTINGS)
def function(x):
    return torch.softmax(x, -1)


def outer(x):
    return function(x * 2) + module(x) * 3


def main() -> None:
    keys, expected = set(vars(model)), outer(X)
    before = preheat.counters()
    for target in (module, function, outer):
        around = torch.compile(target, backend="eager")
        for _ in range(3):
            torch.testing.assert_close(around(X), target(X))
    after = preheat.counters()
    assert after["captures"] == before["captures"], "compiled code is used"
    preheat.reset()
    torch._dynamo.reset()
    around = torch.compile(outer, backend="eager")
    for _ in range(3):  # the first call compiles within
        torch.testing.assert_close(around(X), expected)
    assert preheat.counters()["captures"] == after["captures"] + 2
    for made in (torch.jit.trace(module, X), torch.export.export(module, (X,)).module(),
                 torch.fx.symbolic_trace(module), torch.jit.script(module)):
        torch.testing.assert_close(made(X), model(X))
    torch.testing.assert_close(outer(X), expected)
    assert type(module).__name__ == "Sequential" and not keys - set(vars(model))
    # Preheat around torch.compile, too
    for target in (model, function):
        around = preheat.compile(torch.compile(target, backend="eager"), options=SETTINGS)
        for _ in range(2):
            torch.testing.assert_close(around(X), target(X))
    around = preheat.compile(torch.compile(model, backend="eager"), options=SETTINGS)
    assert isinstance(around, type(model)) and [*around.state_dict()] == [*model.state_dict()]


with torch.no_grad():
    main()
