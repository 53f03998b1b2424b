"""Sweeps: all guards of a kind judged at once, for the usual case that every one of them holds.

    SWEEPS["type"](rows, found)  ->  True: all hold;  False: each has to be asked (`run/check`)

A model has thousands of guards of four kinds, and a Python call for each is most of what checking
them costs. A sweep says True only where the tests of `run/check` would accept every row.
"""

import collections
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preheat.ir.trace import Guard

# A guard and its `check.Claim`: `expected`, or `reads` where that names sources.
Rows = Sequence[tuple[Guard, Any]]


def _all_types(rows: Rows, found: Sequence[Any]) -> bool:
    return all([type(found[guard.source]) is claim.expected for guard, claim in rows])


def _all_identical(rows: Rows, found: Sequence[Any]) -> bool:
    return all([
        found[guard.source] is (claim.expected if claim.reads is None else claim.reads(found))
        for guard, claim in rows
    ])


def _all_absent(rows: Rows, found: Sequence[Any]) -> bool:
    spaces = [found[guard.source] for guard, _ in rows]
    keys = [claim.expected for _, claim in rows]
    is_sure = _HAS_KEYS.issuperset(map(type, spaces)) and {*map(type, keys)} == {str}
    return is_sure and not any(map(operator.contains, spaces, keys))


def _all_as_long(rows: Rows, found: Sequence[Any]) -> bool:
    spaces = [found[guard.source] for guard, _ in rows]
    is_sure = _HAS_LENGTH.issuperset(map(type, spaces))
    return is_sure and list(map(len, spaces)) == [claim.expected for _, claim in rows]


_HAS_KEYS = frozenset((
    dict, collections.OrderedDict, set, frozenset, types.MappingProxyType,
))
_HAS_LENGTH = _HAS_KEYS | {list, tuple}

SWEEPS: Mapping[str, Callable[[Rows, Sequence[Any]], bool]] = types.MappingProxyType({
    "type": _all_types, "is": _all_identical, "absent": _all_absent, "len": _all_as_long,
})
