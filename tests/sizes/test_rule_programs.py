"""The programs of `rule_programs.py`: what a rule says of symbols holds at other sizes, and every rule has a program."""

import pytest
import torch

import preheat
from preheat.capture import size_rules
from tests.sizes import operators, programs, test_adversarial
from tests.sizes.rule_programs import BACKWARD, FORWARD
from tests.sizes.test_operators import run, same
from tests.sizes.test_rules_of_calls import ELSEWHERE

SIZES = ((5, 6), (6, 9), (7, 7), (9, 5))


class Noted(dict):
    """Rules; `met`: those that were asked for."""

    def __init__(self, rules):
        super().__init__(rules)
        self.met = set()

    def get(self, key, default=None):
        if key in self:
            self.met.add(key)
        return super().get(key, default)


@pytest.fixture
def rules(monkeypatch):
    monkeypatch.setattr(size_rules, "RULES", Noted(size_rules.RULES))
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    return size_rules.RULES


def check(program, has_grad, backend="eager"):
    compiled = preheat.compile(program, dynamic=True, backend=backend, options={"cache": False, "recompile_limit": 30})
    before = preheat.counters()["captures"]
    for place, size in enumerate(SIZES):
        seen = []
        for function in (compiled, program):
            x = torch.randn(size, generator=torch.Generator().manual_seed(place))
            torch.manual_seed(place)
            seen.append(run(function, [x], has_grad))
        same(*seen, backend == "eager")
    captures = preheat.counters()["captures"] - before
    assert captures <= 2, f"{captures} captures"  # wide or tall is a way of its own


@pytest.mark.parametrize("name", FORWARD)
def test_a_rule_at_sizes_that_change(name, rules):
    check(FORWARD[name], False)
    assert set(name.split()) <= rules.met, sorted(rules.met)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
def test_a_rule_of_a_backward(name, rules):
    check(BACKWARD[name], True, "preheat")
    assert set(name.split()) <= rules.met, sorted(rules.met)


# Of a GPU alone; of what comes whole only below autograd, or is made of other ops before sizes are asked of it; of marks.
NO_PROGRAM = ELSEWHERE | frozenset("""
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward cudnn_batch_norm cudnn_batch_norm_backward
    _fused_rms_norm _fused_rms_norm_backward aten.max.other aten.min.other avg_pool1d linspace logspace lift_fresh
    _native_batch_norm_legit _batch_norm_with_update
""".split())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_rule_has_a_program(rules):
    for row in operators.ROWS.values():
        compiled = preheat.compile(row.program, backend="eager", options={"cache": False, "recompile_limit": 30})
        for size in operators.SIZES[:3]:
            run(compiled, row.arguments(*size), False)
    for table in (programs.PROGRAMS, test_adversarial.PROGRAMS):
        for program, *_ in table.values():
            preheat.compile(program, dynamic=True, backend="eager", options={"cache": False})(torch.randn(6, 6))
    named = {name for table in (FORWARD, BACKWARD) for names in table for name in names.split()}
    assert rules.keys() - rules.met - named == NO_PROGRAM & rules.keys() - rules.met
    assert not named & NO_PROGRAM
