"""Calls of C that calculate with runtime numbers, in the form in which `Numbers.calculate` knows them.

    sum([n, 4, 6])       ->  sum of three numbers
    n.bit_length()       ->  int.bit_length(n)
    min(x.shape)         ->  min of its sizes
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.tensors import Size
from preheat.capture.arithmetic import NUMBERS, is_operation
from preheat.capture.policies import is_bound
from preheat.ir.functions import CALLS

EXTREMES = (min, max)
# Functions of a list of numbers, or of two, and what computes the same of their elements.
_OF_LISTS: Mapping[Callable, Callable] = {
    sum: CALLS["sum"].compute, math.prod: CALLS["prod"].compute, math.fsum: CALLS["fsum"].compute,
    math.dist: CALLS["dist"].compute,
}
_LISTS = (list, tuple)


def spelled_calculation(
    function: Any, args: tuple, table: Mapping[int, Any], read: Callable[[Any], None],
) -> tuple[Any, tuple]:
    """The function and its arguments, or those by which the same is calculated of numbers, if one that is in
    `table` is in a list or tuple among them. `read` is told of each list that is taken apart."""
    if is_bound(function) and identity(function.__self__) in table:
        method = getattr(type(function.__self__), function.__name__)
        return (method, (function.__self__, *args)) if is_operation(method) else (function, args)
    if function in EXTREMES and len(args) == 1:
        return function, (_parts(args, table, read, least=2) or args)
    if type(function) is not type(sum) or function not in _OF_LISTS:
        return function, args
    if function is math.dist and not (len(args) == 2 and len({len(a) if type(a) in _LISTS else -1 for a in args}) == 1):
        return function, args
    start = args[1:] if function is sum and len(args) == 2 and type(args[1]) in NUMBERS else ()
    parts = _parts(args[:1] if start else args, table, read, is_needed=not any(identity(n) in table for n in start))
    return (function, args) if parts is None else (_OF_LISTS[function], (*start, *parts))


def moves_elements(function: Callable, args: tuple, table: Mapping[int, Any]) -> bool:
    """Whether an operator puts lists or tuples together, or repeats one, and looks at none of their elements."""
    kinds = [type(arg) in _LISTS or type(arg) is Size for arg in args]
    if function is operator.mul and any(kinds):
        return any(type(arg) is int and identity(arg) not in table for arg in args)
    return function is operator.add and all(kinds)


def _parts(
    args: tuple, table: Mapping[int, Any], read: Callable[[Any], None], least: int = 0, is_needed: bool = True,
) -> tuple | None:
    """The numbers in lists and tuples, None if there are others than these, fewer than `least`, or none that is
    in `table` where one is needed."""
    if not all(type(arg) in _LISTS or type(arg) is Size for arg in args):
        return None
    parts = tuple([part for arg in args for part in arg])
    if len(parts) < least or not all(type(part) in NUMBERS for part in parts):
        return None
    if is_needed and not any(identity(part) in table for part in parts):
        return None
    for arg in args:
        read(arg)
    return parts
