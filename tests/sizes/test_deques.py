"""A deque from outside is a window over calls: what takes its elements is a host call, and the rest is compiled."""

from collections import deque

import pytest
import torch

import preheat
from tests.sizes.check import differs


def looped(window, x):
    window.append(x.mean())
    y = x
    for value in window:
        y = y + value
    return y


def put(window, value):
    window.append(value)
    return window


def changed_while_it_is_gone_through(window, x):
    try:
        for value in put(window, x):
            window.append(value)
    except RuntimeError as error:
        return str(error)


WINDOWS = {
    "sum": lambda window, x: sum(put(window, x.mean())) + x,
    "mean": lambda window, x: sum(put(window, x.mean())) / len(window) + x,
    "stack of a list": lambda window, x: torch.stack(list(put(window, x.mean()))).mean() + x,
    "stack of a tuple": lambda window, x: torch.stack(tuple(put(window, x.mean()))).mean() + x,
    "unpacked": lambda window, x: torch.stack([*put(window, x.mean())]).mean() + x,
    "comprehension": lambda window, x: torch.stack([v * 2 for v in put(window, x.mean())]).mean() + x,
    "generator": lambda window, x: sum(v * 2 for v in put(window, x.mean())) + x,
    "numbered": lambda window, x: sum(i * v for i, v in enumerate(put(window, x.mean()))) + x,
    "loop": looped,
    "largest": lambda window, x: max(put(window, x.mean())) + x,
    "ends": lambda window, x: put(window, x.mean())[-1] + window[0] + x,
    "floats": lambda window, x: sum(put(window, x.mean().item())) / len(window) * x,
    "numbers": lambda window, x: sum(put(window, len(window))) * x,
    "changed": changed_while_it_is_gone_through,
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("length", (3, None))
def test_a_window_is_as_the_calls_before_have_left_it(name, length):
    program, window, expected = WINDOWS[name], deque(maxlen=length), deque(maxlen=length)
    compiled = preheat.compile(lambda x: program(window, x), options={"cache": False})
    for k in range(8):
        if k == 6:
            before = preheat.counters()
        x = torch.full((3,), float(k))
        assert not differs(compiled(x), program(expected, x), is_exact=True), k
    after = preheat.counters()
    if length is not None:
        assert after["interpreted"] == before["interpreted"]
