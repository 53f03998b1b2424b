"""Steps of slices and lists of numbers that change: few captures serve all, elements, layouts and errors as in eager."""

import pytest
import torch

import preheat
from tests.sizes.check import differs, outcome

X = torch.arange(120.0).reshape(10, 12)
VALUES = [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 12]
HARD = [3, 5, 2, 0, -1, -3, 40, 1 << 40, 1 << 62, 1 << 63, -(1 << 64), 4, True]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def put(place, value=0.5):
    def program(x, n):
        y = x.clone()
        y[place(n)] = value
        return y
    return program


def added(place):
    def program(x, n):
        y = x.clone()
        y[place(n)] += 1
        return y
    return program


# Programs, and the captures that they take: the bounds of a slice may come to be others.
PROGRAMS = {
    "step": (lambda x, n: x[::n], 3), "steps of columns": (lambda x, n: x[1:, ::n] * 2, 4),
    "step from the end": (lambda x, n: x[-6::n] * 2, 4), "step and start": (lambda x, n: x[n % 4::n] + 1, 4),
    "both steps": (lambda x, n: x[::n, ::n].sum(0), 3), "flat": (lambda x, n: x.view(-1)[::n] * 2, 3),
    "transposed": (lambda x, n: x.t()[::n] * 2, 4), "step of a step": (lambda x, n: x[::2][::n] + 1, 3),
    "slice object": (lambda x, n: x[slice(None, None, n)] + 1, 4), "step beside an index": (lambda x, n: x[2, ::n] + 1, 4),
    "step of a product": (lambda x, n: x[::n] @ x.t(), 3), "step reshaped": (lambda x, n: x[:, ::n].reshape(-1) * 2, 4),
    "written": (put(lambda n: slice(None, None, n)), 3), "added to": (added(lambda n: (slice(None), slice(1, None, n))), 3),
    "list": (lambda x, n: x.view(-1)[[n, 2]], 2), "list of rows": (lambda x, n: x.t()[[n - 1, 2]] + 1, 2),
    "from the end": (lambda x, n: x.view(-1)[[-n, n, -1]] + 1, 2), "two lists": (lambda x, n: x.t()[[n - 1, 2], [0, n % 3]], 2),
    "list and slice": (lambda x, n: x[:, [n - 1, 2]] * 2, 2), "list and bound": (lambda x, n: x[[0, n % 4], :n] * 2, 3),
    "list, written": (put(lambda n: [n % 5, 2]), 2), "list, added to": (added(lambda n: [n % 5, 7]), 2),
    "index": (lambda x, n: x.view(-1)[torch.tensor([n, 2])] + 1, 2),
    "tensor": (lambda x, n: torch.tensor([n, 2]) * 2, 2), "tensor of floats": (lambda x, n: torch.tensor([n / 3, 2.0]) * 2, 2),
    "mixed": (lambda x, n: torch.tensor([n, 0.5, True]), 2), "nested": (lambda x, n: torch.tensor([[n, 1], (n + 1, 2)]), 2),
    "half": (lambda x, n: torch.tensor([n / 3, n], dtype=torch.float16), 2),
    "bfloat16": (lambda x, n: torch.tensor(n / 3, dtype=torch.bfloat16, device="cpu"), 2),
    "doubles": (lambda x, n: torch.as_tensor([n / 3, 1], dtype=torch.float64), 2), "one": (lambda x, n: torch.tensor(n) + x, 2),
    "beyond float32": (lambda x, n: torch.tensor([n * 1e300, 1.0]), 2), "sum of it": (lambda x, n: x * torch.tensor([n] * 12), 2),
}


def run(program, values, most=None):
    compiled = preheat.compile(program, options={"cache": False, "recompile_limit": 60})
    before = preheat.counters()
    with torch.no_grad():
        for value in values:
            expected, found = outcome(program, (X, value)), outcome(compiled, (X, value))
            assert found[0] == expected[0] and (found[0] == "value" or found == expected), (value, found, expected)
            if expected[0] == "value":
                wrong = differs(found[1], expected[1], program is not PROGRAMS["step of a product"][0])
                assert not wrong, f"at {value}: {wrong}"
    after = preheat.counters()
    if most is not None:
        assert after["captures"] - before["captures"] <= most and after["breaks"] == before["breaks"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_captures_serve_all(name):
    program, most = PROGRAMS[name]
    run(program, VALUES * 2, most)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_that_do_not_fit(name):
    run(PROGRAMS[name][0], HARD * 2)


@pytest.mark.parametrize("name", ["step", "steps of columns", "step reshaped", "list", "list and bound", "index", "list of rows"])
def test_gradients_through_them(name):
    program, most = PROGRAMS[name]
    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    for value in VALUES * 2:
        grads = []
        for call in (program, compiled):
            x = X.clone().requires_grad_()
            (call(x, value) * 3).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads), value
    assert preheat.counters()["captures"] - before <= most + 2
