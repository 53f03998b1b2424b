"""The transformers zoo does what eager does; the quick ones as one graph. Counts: `make zoo`."""

import pytest

from same import Program, same_program
from zoo.__main__ import document
from zoo.count import Count, ours
from zoo.models import ARCHITECTURES, CAUSAL, build

# Of each family one, all without a break.
QUICK = ("distilbert", "opt", "qwen3", "bart", "mobilenet_v1")


@pytest.mark.parametrize("name", QUICK)
def test_architecture_is_one_graph(name):
    same_program(lambda: _program(name), calls=2, captured=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in QUICK])
def test_architecture_is_as_eager(name):
    same_program(lambda: _program(name), calls=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_generation_is_as_eager(name):
    assert ours(f"generate:{name}").is_equal


def _program(name):
    model, inputs = build(name)
    return Program(model, (), inputs)


def test_there_are_enough():
    assert len(ARCHITECTURES) >= 60 and len(CAUSAL) >= 10


def test_the_document_counts_what_was_found():
    mine = {"a": Count("a", 0, 1, (), True), "b": Count("b", 2, 3, ("print",), False)}
    other = {"a": Count("a", 0, 1), "b": Count("b", -1, 0, error="TypeError: no")}
    text = document(mine, other)
    assert "2, of which 1 equal eager" in text and "Preheat 1, torch.compile 1" in text
    assert "| b | **no** | 2 | ! |" in text and "* b: TypeError: no" in text
