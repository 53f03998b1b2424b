"""Calls of C that are given runtime numbers: calculated, boxed, carried, or pinned.

    math.sqrt(n)            calculated: a runtime number again
    torch.add(x, n)         boxed: torch passes it on to the op, which takes it as an input
    rows.append(n)          carried: C stores the object and looks at nothing
    print(n)                a host call: its recipe gives the number
    divmod(n, 2), x[n]      pinned: the program is captured for this value

What no row here allows pins every runtime number that C could reach. See `numbers.py` for what they
are, `bridge/symint.py` for the boxes.
"""

import operator
from collections.abc import Callable
from typing import Any

from preheat.bridge.calls import BY_TYPES, Call
from preheat.bridge.symint import is_safe, plain, unboxed
from preheat.bridge.tensors import Tensor
from preheat.capture.guards import Guards
from preheat.capture.numbers import OPERATIONS
from preheat.capture.observer import GiveUp
from preheat.capture.policies import is_bound
from preheat.capture.recorder import Recorder

# Kinds of policies.py whose functions move what is in containers without looking at it.
_MOVING = frozenset(("shallow", "fill", "get", "identity", "abc", "class", "refuse", "operator"))
# Of these, the ones that only store or pass on their own arguments, too.
_STORING = frozenset(("get", "abc", "class", "refuse", "operator"))
_APPENDING = frozenset(("append", "appendleft"))
# Methods that change a container, and from which argument on they store what they get.
_STORED_FROM = {"append": 0, "appendleft": 0, "insert": 1, "setdefault": 1}
_LOOKING = frozenset((range,))  # of kind "identity", and yet they look
_BY_TYPES = frozenset(BY_TYPES)
_TAKES_BOXES = frozenset(("op", "reader"))
_NO_BOXES = frozenset((operator.getitem, operator.delitem, operator.contains))


class Boxing:
    """The part of the watcher that stands between runtime numbers and C."""

    numbers: dict[int, Any]
    guards: Guards
    recorder: Recorder
    perform: Callable

    def calculate(self, function: Callable, args: tuple) -> Any:
        return self.guards.numbers.calculate(function, args)

    def look_at(self, value: Any) -> None:
        self.guards.numbers.pin_all(value)

    def call_with_numbers(
        self, row: Call, function: Any, args: tuple, kwargs: dict, call: Callable,
    ) -> Any:
        """`call(self, function, args, kwargs, row)`, when the node has runtime numbers."""
        numbers = self.guards.numbers
        is_arithmetic = not kwargs and any(id(arg) in self.numbers for arg in args)
        if is_arithmetic and _is_operation(function):
            return numbers.calculate(function, args, self.perform)
        if _is_refused(self.numbers, function, args):
            return NotImplemented  # n - x: only the class of x knows
        if row.kind == "pure" and function in _BY_TYPES:
            args = tuple(numbers.bare(arg) for arg in args)
        elif row.kind in _TAKES_BOXES and is_safe(_owner(function), args, kwargs):
            boxes = [numbers.boxed(arg) for arg in args]
            named = {name: numbers.boxed(arg) for name, arg in kwargs.items()}
            if any(box is not arg for box, arg in zip((*boxes, *named.values()),
                                                      (*args, *kwargs.values()))):
                return self._boxed(
                    lambda: call(self, function, tuple(boxes), named, row),
                    lambda: call(self, function, args, kwargs, row), (args, kwargs))
        self._pin_unless_moved(row.kind, function, args, kwargs)
        return call(self, function, args, kwargs, row)

    def operate_with_numbers(self, function: Any, args: tuple, run: Callable) -> Any:
        """`run(function, args)`, an operator on objects of which some may be runtime numbers."""
        is_tensors = any(issubclass(type(arg), Tensor) for arg in args)
        if not is_tensors or function in _NO_BOXES or not is_safe(*args):
            return run(function, args)
        kept = 2 if function is operator.setitem else 0  # tensor and key stay as they are
        numbers = self.guards.numbers
        boxes = (*args[:kept], *(numbers.boxed(arg) for arg in args[kept:]))
        if all(box is arg for box, arg in zip(boxes, args)):
            return run(function, args)
        return self._boxed(
            lambda: run(function, boxes), lambda: run(function, args), args[kept:])

    def mutate_with_numbers(self, method: str, args: tuple, kwargs: dict) -> None:
        """A container is changed by its own method: some arguments are just stored."""
        stored = _STORED_FROM.get(method, len(args))
        for arg in args[:stored]:
            self.guards.numbers.pin(arg)
        for arg in kwargs.values() if method != "update" else ():
            self.guards.numbers.pin(arg)

    def _boxed(self, run: Callable, run_plain: Callable, looked_at: Any) -> Any:
        """What `run` gives, which calls torch with boxes.

        Some functions of torch refuse a symbolic number where they take a plain one. Then no op has
        run, and the call is made with the numbers, which are pinned.
        """
        recorder, numbers = self.recorder, self.guards.numbers
        recorder.is_boxed, recorder.boxed_ops = True, 0
        try:
            return numbers.unboxed(run())
        except GiveUp as given:
            given.result = unboxed(given.result, plain)
            raise
        except Exception:
            if recorder.boxed_ops:
                raise
        finally:
            recorder.is_boxed = False
        numbers.pin_all(looked_at)
        return run_plain()

    def _pin_unless_moved(self, kind: str, function: Any, args: tuple, kwargs: dict) -> None:
        numbers = self.guards.numbers
        if is_bound(function):
            numbers.pin(function.__self__)
        everything = (*args, *kwargs.values())
        if kind not in _MOVING or function in _LOOKING:
            for arg in (_owner(function), *everything):
                numbers.pin_all(arg)
        elif kind not in _STORING and not _stores(kind, function):
            for arg in everything:
                numbers.pin(arg)


def _is_refused(table: dict[int, Any], function: Any, args: tuple) -> bool:
    """Whether an operator's dunder of a runtime number gives the turn to a tensor."""
    if not is_bound(function) or id(function.__self__) not in table or len(args) != 1:
        return False
    return issubclass(type(args[0]), Tensor) and function(*args) is NotImplemented


def _is_operation(function: Any) -> bool:
    try:
        return function in OPERATIONS
    except TypeError:  # a callable object that cannot be hashed
        return False


def _stores(kind: str, function: Any) -> bool:
    return kind == "identity" or kind == "fill" and function.__name__ in _APPENDING


def _owner(function: Any) -> Any:
    """The object of a bound method of C."""
    return function.__self__ if is_bound(function) else None
