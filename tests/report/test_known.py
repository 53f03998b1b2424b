"""What `explain` tells of a function's sizes and numbers: symbols, pinned ones and why, those that have not changed."""

import pytest
import torch
import torch.nn.functional as F

import preheat

OPTIONS = {"options": {"cache": False}}


def scaled(x, n, k):
    y = x * n
    return F.pixel_shuffle(y.view(4, -1, 2), k)


def called(program, calls, **settings):
    compiled = preheat.compile(program, **{**OPTIONS, **settings})
    with torch.no_grad():
        for args in calls:
            compiled(*args)
    return compiled


def explained(compiled, *args):
    with torch.no_grad():
        found = preheat.explain(compiled)(*args)
    assert found.error is None, found.error
    return found


def test_a_function_that_has_been_called():
    calls = [(torch.ones(size, 4), n, k) for size, n, k in ((4, 2, 1), (6, 3, 2), (8, 4, 2), (8, 5, 2))]
    compiled = called(scaled, calls)
    found = explained(compiled, *calls[-1])
    before = preheat.counters()["captures"]
    with torch.no_grad():
        compiled(*calls[-1])
    assert preheat.counters()["captures"] == before, "its own variants are as they were"
    assert found.symbols == ("arg0.shape[0]", "arg1")
    assert found.held == ("arg0.shape[1] is 4",)
    (pin,) = found.numbers
    assert (pin.path, pin.value, pin.by, pin.file) == ("arg2", "2", "torch.pixel_shuffle", __file__)
    text = str(found)
    assert "any value: arg0.shape[0], arg1" in text and "      arg0.shape[1] is 4" in text and pin.hint in text


@pytest.mark.parametrize("program", [scaled, preheat.compile(scaled, **OPTIONS)])
def test_a_function_that_has_not_been_called(program):
    with torch.no_grad():
        found = preheat.explain(program)(torch.ones(4, 4), 2, 1)
    assert not found.symbols and not found.numbers
    assert found.held == ("arg0.shape[0] is 4", "arg0.shape[1] is 4", "arg1 is 2", "arg2 is 1")


def test_a_module_and_its_attributes():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls, self.slope = torch.nn.Linear(4, 4), 0, 0.5

        def forward(self, x):
            self.calls += 1
            return F.leaky_relu(self.linear(x), self.slope) * self.calls

    calls = [(torch.ones(size, 4),) for size in (2, 3, 5)]
    found = explained(called(Layer(), calls), *calls[-1])
    assert found.symbols == ("arg0.shape[0]", "self.calls") and not found.numbers
    assert found.held == ("arg0.shape[1] is 4", "self.slope is 0.5")


def test_what_pins_a_size_is_told():
    def program(x, weight):
        if x.shape[1] == 4:
            x = x * 2
        return [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7][x.shape[0]] * (x @ weight)

    found = explained(called(program, [], dynamic=True), torch.ones(3, 4), torch.ones(4, 2))
    assert "arg1.shape[1]" in found.symbols
    by_path = {pin.path: pin for pin in found.numbers}
    assert by_path["arg0.shape[0]"].why == "it is an index or a key"
    assert by_path["arg0.shape[1]"].must and "the program asks" in by_path["arg0.shape[1]"].why
    assert by_path["arg0.shape[1]"].code == "if x.shape[1] == 4:"


def test_an_op_without_a_size_rule_is_told():
    """With the sizes that it pins, and the line; the rest of the program is as open as before."""
    def program(x, y):
        return torch.ormqr(x[:, :1], x[0, :1], x).sum(), y * 2

    found = explained(called(program, [], dynamic=True), torch.ones(4, 6), torch.ones(3))
    assert found.symbols == ("arg1.shape[0]",) and found.pinned == ("aten.ormqr.default",)
    assert {pin.path for pin in found.numbers} == {"arg0.shape[0]", "arg0.shape[1]"}
    assert all("aten.ormqr.default is given, which has no size rule" in pin.why for pin in found.numbers)
    assert all("torch.ormqr(" in pin.code and "other ops" in pin.hint for pin in found.numbers)


def test_sizes_that_no_symbol_may_be():
    compiled = called(lambda x: x * 2, [(torch.ones(3),), (torch.ones(1),)])
    (text,) = explained(compiled, torch.ones(1)).held
    assert text.startswith("arg0.shape[0] is 1 or 3") or "an axis of one element" in text
    compiled = called(lambda x: x * 2, [(torch.ones(3),), (torch.ones(5),)], dynamic=False)
    (text,) = explained(compiled, torch.ones(5)).held
    assert text == "arg0.shape[0] is 5 or 3: dynamic=False makes each size a variant"


def test_what_another_process_has_captured(tmp_path, monkeypatch):
    """A function whose variants came from the cache has them told, too."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    calls = [(torch.ones(size, 4), n, 2) for size, n in ((4, 2), (6, 3))]
    called(scaled, calls, options={})
    before = preheat.counters()
    compiled = called(scaled, calls[-1:], options={})
    assert preheat.counters()["captures"] == before["captures"]
    with torch.no_grad():
        assert {"arg0.shape[0]", "arg1"} <= set(preheat.explain(compiled)(*calls[0]).symbols)


def test_elements_of_a_list_are_told_together():
    compiled = called(lambda x: x * len(set(x.tolist())), [(torch.arange(20.0) * k,) for k in (1, -2, 3)])
    text = str(explained(compiled, torch.arange(20.0)))
    assert 1 <= text.count(" for good") <= 2 and "and so is each of" in text, text
