"""Answers: what a dunder of Python's gave, for C to judge as it would have: its own errors, its own conversions.

    judged(len, "__len__", -1)       ValueError: __len__() should return >= 0
    judged(hash, "__hash__", 1 << 70)     512
"""

import functools
from collections.abc import Callable
from typing import Any


def judged(function: Callable, dunder: str, result: Any, *rest: Any) -> Any:
    """`function(object, *rest)`, of C, for an object whose `dunder` gives `result`."""
    answer = _answer(dunder)()
    answer.result = result
    return function(answer, *rest)


@functools.lru_cache(maxsize=None)
def _answer(dunder: str) -> type:
    return type("Answer", (), {dunder: lambda self, *_: self.result, "__slots__": ("result",)})
