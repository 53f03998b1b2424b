"""Each line of the log of recompiles ends with the one thing to do, by what differed."""

import re

import pytest
import torch

import preheat
from preheat.base.events import bus
from preheat.base.remedies import REMEDIES, hint_of, kind_of_tensors
from preheat.report.logs import CHANNELS

X = torch.ones(3)
SHARED = torch.ones(6)


class Box:
    kind = "a"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class OtherBox(Box):
    pass


class Counted(Box):
    rate = 2.0


class Mode:
    """Calls a program with grad mode on in the second call."""

    def __call__(self, compiled, calls):
        for grad, args in zip((False, True), calls):
            with torch.set_grad_enabled(grad):
                compiled(*args)


def changed_class(compiled, calls):
    for Counted.rate, args in zip(("a", "b"), calls):
        compiled(*args)


def signature(compiled, calls):
    compiled(X, 2)
    compiled(X, n=2)


def plain(compiled, calls):
    for args in calls:
        compiled(*args)


def of_kind(x, box):
    return x * (2 if box.kind == "a" else 3)


# by row of REMEDIES: the program, its calls, the settings, and who makes the calls
CASES = {
    "size": (lambda x: x * 2, [(X,), (torch.ones(5),)], {}, plain),
    "size_fixed": (lambda x: x * 2, [(X,), (torch.ones(5),)], {"dynamic": False}, plain),
    "size_test": (lambda x: x * 2, [(X,), (torch.ones(5),), (torch.ones(0),)], {}, plain),
    "rank": (lambda x: x * 2, [(X,), (X[None],)], {}, plain),
    "tensor": (lambda x: x * 2, [(X,), (X.double(),)], {}, plain),
    "number": (lambda x, n: x * n, [(X, 2), (X, 3)], {}, plain),
    "value": (lambda x, n: x * len(n.upper()), [(X, "a"), (X, "bc")], {}, plain),
    "test": (lambda x, n: x * n if n < 4 else x, [(X, 2), (X, 3), (X, 5)], {}, plain),
    "flag": (lambda x, n: x * 2 if n else x, [(X, True), (X, False)], {}, plain),
    "is": (lambda x, f: f(x), [(X, torch.sin), (X, torch.cos)], {}, plain),
    "type": (lambda x, box: box.n + x, [(X, Box(n=1)), (X, OtherBox(n=1))], {}, plain),
    "code": (lambda x, f: f(x), [(X, lambda x: x * 2), (X, lambda x: x + 2)], {}, plain),
    "len": (lambda xs: sum(xs), [([X],), ([X, X],)], {}, plain),
    "keys": (lambda xs: sum(xs.values()), [({"a": X},), ({"a": X, "b": X},)], {}, plain),
    "class": (lambda x: x * len(Counted.rate), [(X,), (X,)], {}, changed_class),
    "missing": (lambda x, box: x * getattr(box, "n", 2), [(X, Box()), (X, Box(n=1))], {}, plain),
    "alias": (lambda x, y: x.mul_(2) * y, [(SHARED[:3], SHARED[3:]), (SHARED[:3], SHARED[1:4])], {}, plain),
    "ambient": (lambda x: x * 2, [(X,), (X,)], {}, Mode()),
    "signature": (lambda x, n: x * n, [], {}, signature),
}


def log_of(program, calls, settings, call):
    """The lines of the log, and their hints."""
    lines, hints = [], []

    def listen(event):
        lines.append(CHANNELS["recompiles"][0].line(event.data, event.seconds))
        hints.append(event.data["hint"])

    compiled = preheat.compile(program, options={"cache": False}, **settings)
    unsubscribe = bus.subscribe(listen, ("guard_failed",))
    try:
        with torch.no_grad():
            call(compiled, calls)
    finally:
        unsubscribe()
    return lines, hints


@pytest.mark.parametrize("name", CASES)
def test_a_new_variant_is_told_with_what_to_do(name):
    lines, hints = log_of(*CASES[name])
    assert lines and lines[-1].endswith(f"; {hints[-1]}"), lines
    assert hints[-1] == hint_of(name), lines[-1]


def test_every_remedy_has_a_program():
    assert CASES.keys() == REMEDIES.keys() - {""} and all(not re.search(r"\.$", row.hint) for row in REMEDIES.values())


def test_what_was_looked_at_has_its_own_hint():
    program = lambda x, n: x * [0.1, 0.2, 0.3, 0.4][n]  # noqa: E731
    lines, hints = log_of(program, [(X, 0), (X, 1), (X, 2)], {}, plain)
    assert hints[1].startswith("look up outside") and "test_recompiles.py" in lines[1]


def test_a_size_that_was_looked_at_has_its_own_hint():
    program = lambda x: x * [0.1, 0.2, 0.3, 0.4, 0.5, 0.6][x.shape[0]]  # noqa: E731
    lines, hints = log_of(program, [(torch.ones(n),) for n in (2, 3, 4)], {}, plain)
    assert "mark_dynamic" in hints[0]
    assert hints[1].startswith("look up outside") and "it is an index or a key" in lines[1]


@pytest.mark.parametrize("before, now, kind", [
    ("f32[3]", "f32[4]", "size"), ("f32[]", "f32[4]", "rank"), ("f32[3, 4]", "f32[4]", "rank"),
    ("f32[3]", "f64[4]", "tensor"), ("f32[3, 4]", "f32[3, 4]{1, 3}", "tensor"), ("f32[n2, 4]", "f32[3, 5]", "size"),
    ("f32[3] requires_grad", "f32[3]", "tensor"), ("f32[3]", "a list", "tensor"),
])
def test_what_differs_of_a_tensor(before, now, kind):
    assert kind_of_tensors(before, now) == kind
