"""Loops over `range(n)` where n changes: from its third value on the body is one compiled part, whatever n is."""

import pytest
import torch

import preheat
from tests.sizes.check import differs, outcome

X = torch.arange(24.0).reshape(24, 1) % 7 - 3
VALUES = [3, 5, 2, 7, 4, 9, 6, 8, 1, 11, 10, 12, 0, 13, -1, 20, 3, 5]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")


def counted(x, n):
    for _ in range(n):
        x = x * 0.5 + 1
    return x


def with_counter(x, n):
    for i in range(n):
        x = x * 0.5 + i
    return x, n


def indexed(x, n):
    y = x[0] * 0
    for i in range(n):
        y = y + x[i] * 2
    return y


def from_to(x, n):
    for i in range(2, n + 1, 2):
        x = x - i
    return x


def downward(x, n):
    for i in range(n, 0, -1):
        x = x * 0.5 + i
    return x


def listed(x, n):
    made = []
    for i in range(n):
        made.append(x * i)
    return torch.stack(made).sum(0) if made else x


def comprehended(x, n):
    return [x + i for i in range(n)]


def until_break(x, n):
    for i in range(n):
        if i == 6:
            break
        if i % 2:
            continue
        x = x + i
    else:
        x = x * 2
    return x


def nested(x, n):
    for i in range(n):
        for k in range(2):
            x = x * 0.5 + k
        x = x + i
    return x


def twice(x, n):
    for i in range(n):
        x = x + i
    for i in range(n // 2):
        x = x * 0.5 + i
    return x


def enumerated(x, n):
    for k, i in enumerate(range(n)):
        x = x * 0.5 + k - i
    return x


def numbered_from(x, n):
    for k, i in enumerate(range(1, n), 1):
        x = x * 0.5 + k * i
    return x


def backward(x, n):
    for i in reversed(range(n)):
        x = x * 0.5 + i
    return x


def zipped(x, n):
    for i, row, k in zip(range(n), TABLE, range(100, 0, -1)):
        x = x * 0.5 + row * i + k
    return x


def summed(x, n):
    return sum(x * i for i in range(n)) + sum(range(n))


def delegated(x, n):
    def numbers():
        yield from range(n)

    for i in numbers():
        x = x * 0.5 + i
    return x


def by_steps(x, n):
    for i in range(0, 20, n if n else 1):
        x = x * 0.5 + i
    return x


def without_a_step(x, n):
    try:
        for i in range(0, 9, n):
            x = x * 0.5 + i
    except ValueError as error:
        return x, str(error)
    return x


def named(x, n):
    return {f"part {i}": x * i for i in range(n)}


def put_in(x, n):
    made = {}
    for i in range(n):
        made[i] = x + i
    return made


def kept(x, n):
    numbers = range(n)
    for i in numbers:
        x = x + i
    return x, numbers, len(numbers), numbers.stop, 4 in numbers


def asked(x, n):
    return x, range(n) == range(4), hash(range(n)) == hash(range(5)), str(range(n)), bool(range(n))


def displayed(x, n):
    first, *others = range(n + 2)
    return x, [*range(n)], (*range(n), 3), {*range(n)}, sorted(range(n)), list(range(n)), first, others


TABLE = [torch.full((1,), float(k)) for k in range(30)]


class State:
    steps = 0


def stateful(x, n):
    for _ in range(n):
        State.steps += 1
        x = x + 1
    return x * 2


def quarter(x, n):
    for i in range(n // 4):
        x = x * 0.5 + i
    return x


# and the captures that all of VALUES may take
PROGRAMS = {
    "counted": (counted, 5), "with counter": (with_counter, 5), "indexed": (indexed, 5), "from to": (from_to, 5),
    "downward": (downward, 5), "listed": (listed, 7), "comprehended": (comprehended, 5), "until break": (until_break, 7),
    "nested": (nested, 5), "twice": (twice, 7), "enumerated": (enumerated, 5), "stateful": (stateful, 8),
    "quarter": (quarter, 5), "numbered from": (numbered_from, 5), "backward": (backward, 5), "zipped": (zipped, 5),
    "summed": (summed, 9), "delegated": (delegated, 5), "by steps": (by_steps, 7), "without a step": (without_a_step, 8),
    "named": (named, 10), "put in": (put_in, 10), "kept": (kept, 10), "asked": (asked, 18), "displayed": (displayed, 18),
}


@pytest.mark.filterwarnings("ignore:preheat.*variants exist")
@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_captures_serve_every_length(name, has_grad):
    program, most = PROGRAMS[name]
    seen = []
    for call in (program, preheat.compile(program, options={"cache": False, "recompile_limit": 30})):
        State.steps, before = 0, preheat.counters()
        found = []
        for value in VALUES:
            x = X.clone().requires_grad_(has_grad)
            with torch.set_grad_enabled(has_grad):
                kind, *result = (grad_outcome if has_grad else outcome)(call, (x, value))
            found.append((kind, listed_parts(result[0]) if kind == "value" else result, x.grad, State.steps))
        seen.append(found)
    captures = preheat.counters()["captures"] - before["captures"]
    for value, (kind, one, grad, steps), (other_kind, other, other_grad, other_steps) in zip(VALUES, *seen):
        assert kind == other_kind and steps == other_steps, (value, one, other)
        assert not differs(other, one, not has_grad), value
        assert not has_grad or kind == "error" or grad is None or torch.allclose(grad, other_grad), value
    assert captures <= most, captures


def listed_parts(result):
    return [part for entry in result.items() for part in entry] if isinstance(result, dict) else result


def grad_outcome(call, args):
    try:
        found = call(*args)
    except Exception as error:
        return "error", type(error).__name__, str(error)
    parts = listed_parts(found)
    tensors = [t for t in (parts if isinstance(parts, (list, tuple)) else [parts]) if isinstance(t, torch.Tensor)]
    if tensors and any(t.grad_fn is not None for t in tensors):
        sum(t.sum() for t in tensors).backward()
    return "value", found


def test_a_whole_graph_has_a_variant_for_each_length():
    compiled = preheat.compile(counted, fullgraph=True, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()
    with torch.no_grad():
        for value in VALUES[:6]:
            assert torch.equal(compiled(X, value), counted(X, value))
    after = preheat.counters()
    assert after["captures"] - before["captures"] == 6 and after["breaks"] == before["breaks"]
