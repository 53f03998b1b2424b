"""Verify: every rule has a graph that breaks it, and the error names the op."""

import pytest

from preheat.base.errors import InternalError
from preheat.ir.text import parse
from preheat.ir.verify import verify

GOOD = """graph core (%0: f32[4, 8] "x", %1: i64[3]):
    %2: f32[4, 8] = neg(%0)
    %3: f32[4] = sum(%2, axes=(1,), keepdim=False)
    %4: f32[3, 8] = take(%0, %1, axis=0)
    %5: f32[8, 4]{1, 8} = permute(%0, axes=(1, 0))
    %6: f32[4, 4] = matmul(%2, %5)
    write %0 <- %2
    return %3, %4, %6"""

BROKEN = {
    "read before": ("%2: f32[4, 8] = neg(%9)", "before it is defined"),
    "sizes": ("%2: f32[4, 8] = neg(%1)", "operand sizes"),
    "dtype": ("%2: f16[4, 8] = neg(%0)", "needs a cast"),
    "unknown": ("%2: f32[4, 8] = negate(%0)", "not a row"),
    "arity": ("%2: f32[4, 8] = add(%0)", "takes 2 operands"),
    "attrs": ("%2: f32[4, 8] = neg(%0, axis=1)", "attrs"),
    "comparison": ("%2: f32[4, 8] = eq(%0, %0)", "yields bool"),
    "cast": ("%2: f32[4, 8] = cast(%0, dtype='float16')", "attr dtype"),
    "twice": ("%0: f32[4, 8] = neg(%0)", "defined twice"),
    "reshape": ("%2: f32[4, 9] = reshape(%0)", "expected"),
    "permute": ("%2: f32[4, 8] = permute(%0, axes=(1, 0))", "expected"),
    "slice": ("%2: f32[3, 8] = slice(%0, axis=0, start=2, step=1)", "expected"),
    "expand": ("%2: f32[8, 8] = expand(%0)", "expansion"),
    "place": ("%2: f32[4, 8] = place(%0, %1, axis=0, start=0, step=1)", "keeps the dtype"),
    "reduce": ("%2: f32[4, 8] = max(%0, axes=(1,), keepdim=True)", "gives"),
    "strides": ("%2: f32[4, 8]{8} = neg(%0)", "one stride an axis"),
}


def test_a_good_graph_passes():
    verify(parse(GOOD))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name):
    line, rule = BROKEN[name]
    text = GOOD.replace("%2: f32[4, 8] = neg(%0)", line)
    with pytest.raises(InternalError, match=rule):
        verify(parse(text))


@pytest.mark.parametrize("end", ["write %2 <- %0\n    return %3", "write %0 <- %3\n    return %3", "return %77",
                                 "return %3 at output 0 + 0", "return %3 at input 7 + 0"])
def test_ends(end):
    text = GOOD[: GOOD.index("write")] + end
    with pytest.raises(InternalError):
        verify(parse(text))
