"""What counts against the limit of variants, and what the report says when it is reached."""

import warnings

import pytest
import torch

import preheat

X = torch.ones(3)


def told(program, calls, limit=3, **options):
    """The warning of a program that is called with each of `calls`, and how often it was captured."""
    compiled = preheat.compile(program, options={"cache": False, "recompile_limit": limit, **options})
    before = preheat.counters()["captures"]
    with warnings.catch_warnings(record=True) as heard, torch.no_grad():
        warnings.simplefilter("always")
        for args in calls:
            expected = program(*args)
            assert torch.equal(compiled(*args), expected)
    return " ".join(str(row.message) for row in heard), preheat.counters()["captures"] - before


def test_a_variant_for_one_number_counts_half_where_others_leave_it_open():
    """Each way of the program is captured for a rate first, then for all rates."""
    def program(x, way, rate):
        if way == "a":
            return x * rate
        return x + rate if way == "b" else x - rate

    calls = [(X, way, rate) for way in "abc" for rate in (0.1, 0.2, 0.3)]
    text, captures = told(program, calls, limit=4)
    assert not text and captures == 4


# by name: the program, its calls, and what the warning says
REPORTS = {
    "an index": (
        lambda x, place: x * [0.1, 0.2, 0.3, 0.4, 0.5][place], [(X, k) for k in range(5)],
        ("arg1: expected 1, found 2", "it is an index or a key", "look up outside what hangs on it")),
    "dtypes": (
        lambda x: x * 2, [(X.to(dtype),) for dtype in (torch.float32, torch.float64, torch.int32)],
        ("arg0: expected f64[3], found i32[3]", "the same dtype, device, strides")),
    "functions": (
        lambda x, f: f(x), [(X, lambda x: x * 2), (X, lambda x: x + 2), (X, lambda x: x - 2)],
        ("arg1: expected", "make the function once, outside")),
    "keys": (
        lambda x, table: x * len([*table]), [(X, dict.fromkeys("abc"[:n])) for n in range(3)],
        ("arg1: expected", "its length and its keys")),
    "ways": (
        # the variant for the first number counts half
        lambda x, n: x * (1 if n < 3 else 2 if n < 5 else 3), [(X, n) for n in (1, 2, 4, 6)],
        ("(arg1 < (5)): expected", "each way that the program goes is a variant")),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_says_what_missed_and_what_to_do(name):
    program, calls, words = REPORTS[name]
    text, captures = told(program, calls, limit=2)
    assert captures == (3 if name == "ways" else 2) and "2 variants exist" in text and "recompile_limit" in text
    assert all(word in text for word in words), text


def test_the_miss_that_came_most_often_is_told():
    """Of three misses two were the flag's; the last one was not."""
    calls = [(X, "a"), (X, "b"), (X, "c"), (X.double(), "c")]
    text, _ = told(lambda x, flag: x * len(flag.upper()), calls)
    assert "because of arg1: expected 'b', found 'c' (2 of 3 times)" in text
