"""Every kind of guard is needed: leave one kind out, and a fuzzer sees wrong results.

For each kind the fuzzers' own rows are narrowed to what concerns it, and a fixed small number of
programs is run with and without the guards.
"""

import re

import pytest

import test_guard_fuzz as guards
import test_tensor_fuzz as tensors
from fuzz.ablation import KINDS, without

PROGRAMS = 16

# For each kind, which reads and which mutations of the guard fuzzer.
FOCUS = {
    "type": (r"w\.thing\.(apply|double)", r"w\.thing = "),
    "is": (r"w\.activation|w\.partial", r"w\.activation|w\.partial"),
    "isnot": (r" is w\.tensors| is not w\.heir| is w\.other", r"= w\.(heir|thing|tensors|child)"),
    "value": (r"w\.scale|w\.count", r"w\.scale|w\.count"),
    "tensor": (r"t in w\.tensors|w\.child\.mean|weight\.dtype", r"tensors\[0\] = |child\.|float64"),
    "code": (r"helper", r"helper"),
    "absent": (r"'maybe'", r"maybe"),
    "contains": (r"'x' in w\.kinds|in w\.items: y", r"kinds"),
    "keys": (r"w\.table|in NAMES", r"table|NAMES"),
    "len": (r"w\.items|LIMITS", r"items\.|LIMITS"),
    "set": (r"len\(k\) for k in w\.kinds|set\(w\.kinds", r"kinds"),
    "noattr": (r"w\.slots", r"w\.slots"),
    "class": (r"w\.thing\.apply|w\.child\(y\)|len\(w\.thing", r"g\['(Thing|Child)'\]\."),
    "mro": (r"w\.heir, Plain", r"__bases__"),
    "isinstance": (r"_abc\._abc", r"register"),
    "issubclass": (r"w\.heir.*Named\)", r"register"),
    "distinct": (r"len\(\{", r"w\.(heir|thing) = w|tensors\[0\] = w"),
    "test": (r"w\.mask\.all", r"w\.mask"),
    "ambient": (r"torch\.ones\(2, 4\)|itemsize|deterministic", r"torch\.(set|use)_"),
}


def rows(table, pattern):
    found = tuple(row for row in table if re.search(pattern, row))
    assert found, f"no row of the guard fuzzer matches {pattern}"
    return found


def holds(check, *args):
    """Whether a program does as eager; what goes wrong in any way does not."""
    try:
        check(*args)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("kind", FOCUS)
def test_the_guard_fuzzer_sees_a_kind_that_is_not_checked(kind):
    reads, changes = rows(guards.READS, FOCUS[kind][0]), rows(guards.MUTATIONS, FOCUS[kind][1])
    for seed in range(PROGRAMS):
        with without(kind):
            is_seen = not holds(guards.check, seed, "eager", reads, changes)
        if is_seen:
            assert holds(guards.check, seed, "eager", reads, changes), "fails with all guards"
            return
    pytest.fail(f"{PROGRAMS} programs hold without guards of kind {kind}")


def test_the_tensor_fuzzer_sees_overlap_that_is_not_checked():
    apart_then_overlapping = (7, 7, 6, 6)
    for seed in range(2 * PROGRAMS):
        with without("alias"):
            is_seen = not holds(tensors.check, seed, "preheat", apart_then_overlapping)
        if is_seen:
            assert holds(tensors.check, seed, "preheat", apart_then_overlapping)
            return
    pytest.fail("no program sees that guards of kind alias are missing")


def test_every_kind_is_tried():
    assert {*FOCUS, "alias"} == set(KINDS)
