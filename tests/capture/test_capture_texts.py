"""Texts made of runtime numbers: written on every call, captured once; who looks inside pins them."""

import pytest
import torch

import preheat

SEEN = []


@preheat.disable
def say(text):
    SEEN.append(text)


class Named:
    def __init__(self):
        self.n, self.a1, self.a2, self.a3, self.a4 = 0, 1.0, 2.0, 3.0, 4.0


def counted(h, x):
    h.n += 1
    say(f"call {h.n} of {h.n + 1:>4d}")
    return x * h.n


def spelled(h, x):
    h.n += 1
    say("%d" % h.n + ", " + str(h.n * 0.5) + repr(h.n))
    return x + h.n


def kept(h, x):
    h.n += 1
    h.text = f"{h.n}"
    return x


def as_attribute(h, x):
    h.n += 1
    return x * getattr(h, f"a{h.n % 3 + 1}")


def as_key(h, x):
    h.n += 1
    return x * {"k0": 1.0, "k1": 2.0}[f"k{h.n % 2}"]


def by_length(h, x):
    h.n += 4
    return x * len(f"{h.n}") + len([c for c in f"{h.n}" if c == "1"])


def as_test(h, x):
    h.n += 1
    return x + 1 if f"{h.n}" == "3" else x - 1


def changed(h, x):
    h.n += 1
    say(f"{h.n}!{h.n!a}".upper().split("!")[0])
    return x


def measured(h, x):
    loss = (x * 2).sum().item()
    say(f"loss {loss:.3f}")
    return x * loss


@pytest.mark.parametrize("program", [
    counted, spelled, kept, as_attribute, as_key, by_length, as_test, changed, measured,
])
def test_texts_are_those_of_eager(program):
    compiled = preheat.compile(program, options={"cache": False})
    ours, theirs = Named(), Named()
    with torch.no_grad():
        for k in range(7):
            x = torch.ones(2) * k
            SEEN.clear()
            expected, said = program(theirs, x), [*SEEN]
            SEEN.clear()
            assert torch.equal(compiled(ours, x), expected)
            assert SEEN == said and vars(ours) == vars(theirs)


@pytest.mark.parametrize("program", [counted, spelled, kept, measured])
def test_texts_cost_no_captures(program):
    compiled, holder = preheat.compile(program, options={"cache": False}), Named()
    with torch.no_grad():
        for k in range(4):
            compiled(holder, torch.ones(2) * k)
        before = preheat.counters()["captures"]
        for k in range(4, 12):
            compiled(holder, torch.ones(2) * k)
    assert preheat.counters()["captures"] == before
