"""What pins a number is told: the value, the line, the function that needs it, and one thing to do."""

import pytest
import torch
import torch.nn.functional as F

import preheat
from preheat.base.pins import KEY

X, IMAGE = torch.ones(4), torch.ones(1, 16 * 9, 2, 2)
ROWS = [0.1, 0.2, 0.3, 0.4]


def shuffled(x, n):
    made = x * 2
    return F.pixel_shuffle(made, n)  # in a library, whose line is not to blame


def looked_up(x, n):
    return x * ROWS[n]


def remainder(x, n):
    return x.view(2, 2).sum(n % 2)


class Layer(torch.nn.Module):
    def forward(self, x):
        return x.view(2, 2).flip(self.axis)


def line_of(function, text):
    """file:line of the line of `function` that has `text`."""
    code = function.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return next(n + 1 for n in range(code.co_firstlineno - 1, len(lines)) if text in lines[n])


CASES = {
    "an argument": (shuffled, IMAGE, (2, 3), "pixel_shuffle", "arg1", "3", "torch.pixel_shuffle", "keep it the same"),
    "an index": (looked_up, X, (1, 2), "ROWS[n]", "arg1", "2", KEY, "look up outside"),
    "of what many give": (remainder, X, (1, 2), "sum", "(arg1 % (2))", "0", "torch.Tensor.sum", "keep it the same"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_number_that_is_pinned_is_told(name):
    function, x, values, text, path, value, by, hint = CASES[name]
    explained = preheat.explain(function)
    assert not explained(x, values[0]).numbers, "as long as it has not changed"
    explanation = explained(x, values[1])
    (pin,) = explanation.numbers
    assert (pin.path, pin.value, pin.by) == (path, value, by)
    assert (pin.file, pin.line) == (__file__, line_of(function, text)) and text in pin.code
    assert hint in pin.hint and pin.place in str(explanation) and pin.why in str(explanation)


def test_an_attribute_of_a_module():
    layer = Layer()
    explained = preheat.explain(layer)
    for layer.axis in (0, 1):
        explanation = explained(X)
    assert [(pin.path, pin.value, pin.by) for pin in explanation.numbers] == [("self.axis", "1", "torch.Tensor.flip")]


def test_a_number_that_nothing_pins_is_not_told():
    explained = preheat.explain(lambda x, n: F.leaky_relu(x, n) if n > 0.05 else x * n)
    assert not any(explained(X.clone().requires_grad_(), n).numbers for n in (0.1, 0.2, 0.01, 0.02))


def test_the_recompile_report_says_where():
    seen, compiled = [], preheat.compile(shuffled, options={"cache": False, "recompile_limit": 2})
    unsubscribe = preheat.base.events.bus.subscribe(lambda event: seen.append(event.data["why"]), ("guard_failed",))
    try:
        with pytest.warns(UserWarning, match="torch.pixel_shuffle, which has no rule for a number that changes.*keep it the same"):
            for n in (2, 3, 4, 6):
                compiled(IMAGE, n)
    finally:
        unsubscribe()
    assert seen == ["arg1: expected 2, found 3"]


def test_a_recompile_names_the_line_of_a_branch():
    def program(x, n):
        if n > 4:
            return x + n
        return x * n

    seen, compiled = [], preheat.compile(program, options={"cache": False})
    unsubscribe = preheat.base.events.bus.subscribe(lambda event: seen.append(event.data["why"]), ("guard_failed",))
    try:
        for n in (1, 2, 3, 5, 7):
            compiled(X, n)
    finally:
        unsubscribe()
    assert len(seen) == 2 and f"test_pins.py:{line_of(program, 'if n > 4')}: each way" in seen[1]
