"""A sweep over all guards of a kind says True only where each of them holds."""

import collections
import types

import pytest

from preheat.ir.trace import Guard
from preheat.run.check import CLAIMS, Claim
from preheat.run.sweeps import SWEEPS


class Dict(dict):
    """A dict whose lookups are the user's."""

    def __contains__(self, key):
        raise AssertionError("code of the user runs")

    __len__ = __contains__


SHARED = object()
OBJECTS = [
    {"a": 1}, collections.OrderedDict(b=2), [1, 2], (1,), {3}, frozenset(), "text", None, True, 1,
    1.0, SHARED, Dict(a=1), types.MappingProxyType({"a": 1}), dict, Dict,
]
EXPECTED = {
    "type": (dict, list, Dict, type(None), int, bool),
    "is": (None, True, 1, SHARED, dict),
    "absent": ("a", "b", 3, ("a",), None),
    "len": (0, 1, 2, 4, True),
}
CASES = [
    (kind, number, expected)
    for kind, values in EXPECTED.items()
    for number in range(len(OBJECTS))
    for expected in values
    if not (kind in ("absent", "len") and type(OBJECTS[number]) is Dict)
]


@pytest.mark.parametrize("kind, number, expected", CASES)
def test_a_sweep_never_accepts_what_the_guard_refuses(kind, number, expected):
    guard, claim = Guard(number, kind, expected), Claim(CLAIMS[kind], expected, None, -1)
    if SWEEPS[kind]([(guard, claim)], OBJECTS):
        assert claim.wrong(guard, OBJECTS) is None


@pytest.mark.parametrize("kind, good, bad", [
    ("type", (0, dict), (2, dict)), ("is", (7, None), (8, None)),
    ("absent", (0, "z"), (0, "a")), ("len", (2, 2), (2, 3)),
])
def test_one_that_does_not_hold_is_seen_among_others(kind, good, bad):
    def rows(*pairs):
        return [
            (Guard(number, kind, expected), Claim(CLAIMS[kind], expected, None, -1))
            for number, expected in pairs
        ]

    assert SWEEPS[kind](rows(*[good] * 5), OBJECTS)
    for place in range(5):
        pairs = [good] * 5
        pairs[place] = bad
        assert not SWEEPS[kind](rows(*pairs), OBJECTS)


@pytest.mark.parametrize("kind, expected", [("absent", "z"), ("len", 1)])
def test_containers_of_the_users_classes_are_left_to_the_guards(kind, expected):
    number = next(n for n, value in enumerate(OBJECTS) if type(value) is Dict)
    row = Guard(number, kind, expected), Claim(CLAIMS[kind], expected, None, -1)
    assert SWEEPS[kind]([row], OBJECTS) is False


def test_what_names_a_source_is_read_anew():
    claim = Claim(CLAIMS["is"], None, lambda found: found[1], 1)
    assert SWEEPS["is"]([(Guard(0, "is", None), claim)], [SHARED, SHARED])
    assert not SWEEPS["is"]([(Guard(0, "is", None), claim)], [None, SHARED])
