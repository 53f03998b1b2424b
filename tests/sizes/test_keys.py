"""Items by a number that changes: from its third value on a host step, and one compiled part behind it for all."""

import pytest
import torch

import preheat
from tests.sizes.check import differs, outcome

X = torch.arange(1.0, 5.0)
VALUES = [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 3, 0, 5, 2, 14, -1, 99, 4, -2, 7]
TENSORS = [torch.full((4,), float(k)) for k in range(15)]
SHAPES = [torch.full((k % 3 + 1, 4), float(k)) for k in range(15)]
BY_INT, BY_TEXT = dict(enumerate(TENSORS)), {str(k): t for k, t in enumerate(TENSORS)}
NUMBERS, NAMES = [k / 7 for k in range(15)], {k: f"name {k}" for k in range(15)}
MIXED = {k: (TENSORS[k], k / 3, None, f"{k}")[k % 4] for k in range(15)}
NESTED = {"rows": [[k, k + 1] for k in range(15)], "pairs": tuple((k, t) for k, t in enumerate(TENSORS))}
COUNTS = {}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(15)])
        self.named = torch.nn.ModuleDict({f"k{k}": torch.nn.Linear(4, 4) for k in range(15)})
        for k in range(15):
            self.register_buffer(f"scale{k}", torch.full((4,), float(k)))
        self.scales = torch.nn.ParameterList([torch.full((4,), float(k)) for k in range(15)])

    def forward(self, x, n):
        return self.layers[n](x) * self.scales[n] + self.named[f"k{n % 15}"](x)


LAYERS = Layers()


def counting(x, n):
    COUNTS[n] = COUNTS.get(n, 0) + 1
    return x * COUNTS[n]


def tried(x, n):
    try:
        return x * BY_INT[n]
    except KeyError as error:
        return x - 1, str(error)


def written(x, n):
    table = BY_INT
    before = table[n]
    table[n] = before + 0
    return x * table[n]


def within(x, n):
    return (x * TENSORS[n], 1) if n in BY_INT and str(n) in BY_TEXT else (x - 1, 0)


def by_name(x, n):
    return getattr(LAYERS, f"scale{n % 15}", X) * x, getattr(LAYERS, f"none{n}", 3)


def displayed(x, n):
    made = {f"layer {n}": x * 2, "n": n}
    made[n] = x * 3
    return made[n], made["n"]


def chosen(x, n):
    return x * (1.0, 2.0, 4.0)[n % 3] * {3: 1.0, 5: 2.0}.get(n, 0.5) * [x, x + 1, x + 2][n % 3]


def each_layer(x, n):
    for k in range(n % 15):
        x = LAYERS.layers[k](x)
    return x


def counted_out(x, n):
    out = {"x": x * 2}
    out["step"] = n
    return out["x"], out["step"] + 1, n in (3, 5, 7)


# and the captures that all of VALUES may take; a kind of item, of a shape, of an error is one each
PROGRAMS = {
    "dict": (lambda x, n: x * BY_INT[n], 3), "text": (lambda x, n: x * BY_TEXT[str(n)], 3), "f-string": (lambda x, n: x * BY_TEXT[f"{n}"], 3),
    "list": (lambda x, n: x * TENSORS[n], 3), "number": (lambda x, n: x * NUMBERS[n], 3), "tuple": (lambda x, n: x * NESTED["pairs"][n][1], 3),
    "of a sum": (lambda x, n: x * TENSORS[n // 2 + 1], 3), "twice": (lambda x, n: TENSORS[n] * x + TENSORS[n - 1], 3),
    "name": (lambda x, n: (x * 2, NAMES[n]), 4), "mixed": (lambda x, n: (x, MIXED[n]), 7), "shapes": (lambda x, n: x * SHAPES[n], 4),
    "row": (lambda x, n: x * sum(NESTED["rows"][n]), 16), "get": (lambda x, n: x * NUMBERS[n] if BY_INT.get(n) is not None else x, 4),
    "module": (LAYERS, 5), "counting": (counting, 5), "tried": (tried, 5), "written": (written, 3),
    "within": (within, 4), "by name": (by_name, 3), "displayed": (displayed, 3), "chosen": (chosen, 7),
    "each layer": (each_layer, 7), "counted out": (counted_out, 3),
}


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_captures_serve_every_key(name, has_grad, monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    program, most = PROGRAMS[name]
    seen = []
    for call in (program, preheat.compile(program, options={"cache": False, "recompile_limit": 30})):
        before, found = preheat.counters(), []
        COUNTS.clear()
        for value in VALUES:
            x = X.clone().requires_grad_(has_grad)
            kind, result = step(call, x, value) if has_grad else outcome(call, (x, value))[:2]
            found.append((kind, result, x.grad, dict(COUNTS)))
        seen.append(found)
    captures = preheat.counters()["captures"] - before["captures"]
    for value, (kind, one, grad, counts), (other_kind, other, other_grad, other_counts) in zip(VALUES, *seen):
        assert kind == other_kind and counts == other_counts, (value, one, other)
        wrong = differs(other, one, False)
        assert not wrong, (value, wrong)
        assert grad is None or torch.allclose(grad, other_grad), value
    assert captures <= most, captures


def step(call, x, value):
    try:
        made = call(x, value)
    except Exception as error:
        return "error", type(error).__name__
    tensor = made[0] if isinstance(made, tuple) else made
    if tensor.requires_grad:
        tensor.sum().backward()
    return "value", made


def test_what_is_replaced_between_calls_is_seen():
    table = [torch.full((4,), float(k)) for k in range(12)]
    compiled = preheat.compile(lambda x, n: x * table[n], options={"cache": False})
    with torch.no_grad():
        for k in (3, 5, 2, 7, 4, 9, 4, 4, 9, 2, 3):
            assert torch.equal(compiled(X, k), X * table[k])
            table[4] = table[4] + 1
            table[k] = table[k].double() if k == 9 else table[k] * 2


def test_a_whole_graph_has_a_variant_for_each_key():
    compiled = preheat.compile(lambda x, n: x * TENSORS[n], fullgraph=True, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()
    for k in range(6):
        assert torch.equal(compiled(X, k), X * TENSORS[k])
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 6 and after["breaks"] == before["breaks"]
