"""Calls of C that are given runtime numbers: calculated, boxed, carried, or pinned.

    math.sqrt(n)            calculated: a runtime number again
    torch.add(x, n)         boxed: torch passes it on to the op, which takes it as an input
    rows.append(n)          carried: C stores the object and looks at nothing
    print(n)                a host call: its recipe gives the number
    x[n], x[:n]             boxed, in the parts that C takes it apart into (`subscripts.py`)
    rows[n]                 pinned: the program is captured for this value

What no row here allows pins every runtime number that C could reach. See `numbers.py` for what they
are, `bridge/symint.py` for the boxes.
"""

import itertools
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from preheat.base.identity import identity
from preheat.bridge.calls import BY_TYPES, Call
from preheat.bridge.composed import below_autograd
from preheat.bridge.of_numbers import as_numbers
from preheat.bridge.overloads import facts_of
from preheat.bridge.symint import is_available, is_safe, plain, show, unboxed
from preheat.bridge.tensors import PLAIN_TENSORS, Size, Tensor, tensor_facts
from preheat.capture.arithmetic import is_operation
from preheat.capture.calculations import EXTREMES, moves_elements, spelled_calculation
from preheat.capture.elements import is_followed
from preheat.capture.looks import BY_KEY
from preheat.capture.native import CALLS
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.pins import Pins
from preheat.capture.policies import is_bound
from preheat.capture.rehearsal import Rehearsal, merged
from preheat.capture.sizes import SizeRules, is_symbolic, now
from preheat.capture.sources import PRIMITIVES
from preheat.capture.spelling import SUBSCRIPTS, Spelling, owner_of
from preheat.capture.spoken import MAX_DEPTH, parts_of
from preheat.capture.subscripts import spelled_subscript
from preheat.ir.dims import normal
from preheat.ir.scalar import Scalar
from preheat.ir.trace import Point
from preheat.ir.types import TensorType

# Ops whose `value` and `alpha` are numbers in every overload: a tensor given for one is read.
_SCALED_BY_NUMBERS = frozenset("add sub subtract rsub addcmul addcdiv".split())
# Kinds of policies.py whose functions move what is in containers without looking at it.
_MOVING = frozenset((
    "shallow", "fill", "get", "identity", "abc", "class", "refuse", "operator", "own_gradients", "checkpoint",
    "whole_checkpoint"))
# Of these, the ones that only store or pass on their own arguments, too.
_STORING = frozenset((
    "get", "abc", "class", "refuse", "operator", "own_gradients", "checkpoint", "whole_checkpoint"))
_APPENDING = frozenset(("append", "appendleft"))
# Methods that change a container, and from which argument on they store what they get.
_STORED_FROM = {"append": 0, "appendleft": 0, "insert": 1, "setdefault": 1}
_SIZES = frozenset((Size, tuple))
_PUT_TOGETHER = _SIZES | {list}
_OF_SIZES = frozenset((operator.eq, operator.ne))
_BY_TYPES = frozenset(BY_TYPES)
_TAKES_BOXES = frozenset(("op", "reader", "metadata"))
_NO_BOXES = frozenset((operator.getitem, operator.delitem, operator.contains))


class Boxing(Spelling, Observer):
    """The part of the watcher that stands between runtime numbers and C."""

    perform: Callable
    known_source: Callable[[Any], int | None]
    refuse_text: Callable
    end_if_touched: Callable[[Any], None]
    machine: Any
    fixed: tuple[str, str, str, int] | None  # where and why a marked size was pinned
    pins: Pins | None = None  # of all nodes of the run
    counters: dict[int, int | float]  # see `loops.py`, and the next two
    decided: list[tuple[Any, int]]
    note_test: Callable[[Scalar], None]
    missed: dict[str, int]  # how often which op pinned the sizes that it was given
    _shown: dict[int, Any]  # in the call under way: what C sees for a tensor, by its id

    # ------------------------------------------------------------------ tensors with symbols
    def begin_recording(self, has_tests: bool = False) -> None:
        """A new node: the recorder asks for numbers, and tells of sizes, of its guards."""
        self.recorder.begin(has_tests)
        self.pins = self.pins or Pins(self)
        self.counters, self.decided, self.often, self.guards.tested = {}, [], {}, self.note_test
        self.guards.numbers.told, self.guards.numbers.told_equal = self.pins.note, self.pins.note_equal
        if is_available():
            self.recorder.element_symbol = self.guards.element
            self.recorder.element_divides = self.guards.numbers.divides
        self.guards.can_end = lambda: self.machine is None or self.machine.stands_before()
        self.guards.has_sizes = self.recorder.has_sizes = self.begin_sizes

    def element(self, tensor: Any) -> float | None:
        """The number in `tensor`, a runtime number where it follows from what is outside; None if it
        is not known how."""
        found = self.recorder.element_of(tensor)
        if found is None:
            return None
        number, value = found
        return self.guards.numbers.made(number, value)

    def with_elements(self, function: Any, kwargs: dict) -> dict:
        """The arguments of an op, where C takes the number out of a tensor, with this number."""
        if getattr(function, "__name__", "").removesuffix("_") not in _SCALED_BY_NUMBERS:
            return kwargs
        found = {name: self.element(kwargs[name]) for name in ("value", "alpha")
                 if is_followed(kwargs.get(name))}
        return {**kwargs, **{name: n for name, n in found.items() if n is not None}} if found else kwargs

    def begin_sizes(self) -> None:
        """The node has sizes that change: rules find the types of what ops give."""
        if self.recorder.rules is None:
            numbers = self.guards.numbers
            self.recorder.rules = SizeRules(numbers, self.missed)
            self.recorder.show = numbers.shown = self.shown
            numbers.fixed = self.size_fixed

    def size_fixed(self, path: str, why: str) -> None:
        """A size that the program has marked to change is pinned where it is now."""
        if self.fixed is None:
            frame = self.machine.blamed_frame() if self.machine is not None else None
            place = ("", 0) if frame is None else (frame.source.co_filename, frame.line())
            self.fixed = ("marked_size", f"{path}: {why}", *place)

    def outside_type(self, source: int, tensor: Any) -> TensorType:
        """The type of a tensor from outside, as its guard has it."""
        return self.guards.tensors.get(source) or tensor_facts(tensor).type

    def symbolic_type(self, value: Any) -> TensorType | None:
        """The type of a tensor, if any of its sizes is a symbol."""
        if self.recorder.rules is None or type(value) not in PLAIN_TENSORS:
            return None
        found = self.recorder.value_of(value)
        if found is not None:
            made = self.recorder.builder.type_of[found]
        else:
            made = self.guards.tensors.get(self.known_source(value))
        if made is None or not is_symbolic(made):
            return None
        made = now(made, self.guards.numbers)
        return made if is_symbolic(made) else None

    def axes_of(self, value: Any) -> frozenset[int]:
        """The axes of a tensor whose sizes are symbols."""
        found = self.symbolic_type(value)
        return frozenset() if found is None else frozenset(
            axis for axis, size in enumerate(found.sizes) if isinstance(size, Scalar))

    def carried(self, values: tuple, point: Point) -> tuple[dict, dict[int, frozenset[int]]]:
        """What the next node takes over: runtime numbers, a float that is the answer of a host call among
        them, and of tensors the axes that change; both by id."""
        answers = {identity(value): value for value in values[-1:] if point.has_answer and type(value) is float}
        axes = {identity(value): self.axes_of(value) for value in values if type(value) is Tensor}
        return (
            {place: value for place, (value, _) in self.numbers.items()} | self.counters | answers,
            {place: found for place, found in axes.items() if found})

    def shown(self, value: Any) -> Any:
        """What C sees for `value`: a tensor with symbols as one whose sizes are boxes."""
        if type(value) not in PLAIN_TENSORS:
            return value
        made = self._shown.get(identity(value))
        if made is None:
            found = self.symbolic_type(value)
            if found is None:
                return value
            made = self._shown[identity(value)] = show(value, found, self.guards.numbers)
        return made

    def read_size(self, owner: Any, name: str) -> Any:
        found = self.symbolic_type(owner) if name in ("shape", "nbytes") else None
        if found is None:
            return None
        if name == "nbytes":
            return self.guards.numbers.of_size(normal(reduce(operator.mul, found.sizes, owner.itemsize)))
        return Size([self.guards.numbers.of_size(size) for size in found.sizes])

    def is_indexed_by_boxes(self, container: Any, key: Any) -> bool:
        return issubclass(type(container), Tensor) and (
            self.recorder.rules is not None or self._is_cut(container, key))

    def _is_cut(self, container: Any, key: Any) -> bool:
        """Whether a number that changes says which part of a tensor is meant."""
        return type(container) in PLAIN_TENSORS and is_available() and self.holds_int(key)

    def pin_sizes(self, value: Any) -> None:
        """C looks at the sizes of the tensors in `value`, and nobody sees at which."""
        if type(value) in (list, tuple):
            for part in value:
                self.pin_sizes(part)
        elif (found := self.symbolic_type(value)) is not None:
            self.recorder.rules.pin(found)

    # ------------------------------------------------------------------ numbers

    def calculate(self, function: Callable, args: tuple) -> Any:
        self.pins.during(function)
        return self.guards.numbers.calculate(function, args)

    def is_operation(self, function: Any) -> bool:
        return is_operation(function)

    def has_sizes(self, value: Any) -> bool:
        return type(value) is Tensor

    def look_at(self, value: Any) -> None:
        self.guards.numbers.pin_all(value)

    def call_by_row(self, row: Call, function: Any, args: tuple, kwargs: dict) -> Any:
        """What the row of `function` says is done with the call."""
        call = CALLS[row.kind]
        self.refuse_text(row.kind, function, args, kwargs)
        if row.kind in _TAKES_BOXES:
            args, kwargs = tuple(map(self.with_items, args)), named_of(kwargs, self.with_items)
        if row.kind == "op" and kwargs:
            kwargs = self.with_elements(function, kwargs)
        if self.numbers:
            return self.call_with_numbers(row, function, args, kwargs, call)
        return call(self, function, args, kwargs, row)

    def with_items(self, value: Any) -> Any:
        """A list or tuple from outside, all of which C takes: one with the numbers in it as the program sees them."""
        kind = type(value)
        if kind not in _PUT_TOGETHER or not value or identity(value) not in self.known:
            return value
        if self.guards.is_moving_list(value):
            return value
        self.end_if_touched(value)
        if identity(value) not in self.known or self.guards.length(value, len(value)) is not None:
            return value
        seen = [self.read_item(value, place, part) for place, part in enumerate(value)]
        return kind([self.with_items(part if other is None else other) for part, other in zip(value, seen)])

    def call_with_numbers(
        self, row: Call, function: Any, args: tuple, kwargs: dict, call: Callable,
    ) -> Any:
        """`call(self, function, args, kwargs, row)`, when the node has runtime numbers."""
        numbers = self.guards.numbers
        self.pins.during(function)
        function, args = self.with_noise(function, args, kwargs)
        args = args if kwargs else self.as_tensors(function, args)
        if is_bound(function) and self.symbolic_type(function.__self__) is not None:
            if row.kind in _TAKES_BOXES:
                return self._boxed_method(row, function, args, kwargs, call)
            if row.kind != "refuse":  # of which the host makes a call of its own
                self.pin_sizes(function.__self__)
        if not kwargs:
            function, args = spelled_calculation(function, args, self.numbers, self.read_known)
        is_arithmetic = not kwargs and any(identity(arg) in self.numbers for arg in args)
        if is_arithmetic and function in EXTREMES and len(args) > 2:
            return reduce(lambda a, b: numbers.calculate(function, (a, b), self.perform), args)
        if is_arithmetic and is_operation(function):
            return numbers.calculate(function, args, self.perform)
        if _is_refused(self.numbers, function, args):
            return NotImplemented  # n - x: only the class of x knows
        if row.kind == "pure" and function in _BY_TYPES:
            args = tuple(numbers.bare(arg) for arg in args)
        elif row.kind in _TAKES_BOXES and self._is_open(owner_of(function), args, kwargs):
            function, args, kwargs = self.spelled_out(function, args, kwargs)
            product = self.product(function, args, kwargs)

            def twice(refused: str = "") -> Any:
                plain, named = tuple(map(numbers.plain, args)), named_of(kwargs, numbers.plain)
                return self._twice(
                    lambda: call(self, function, plain, named, row),
                    lambda boxed: lambda: (product(boxed) if product else _of_boxed(function, boxed))(
                        *map(boxed, args), **named_of(kwargs, boxed)),
                    (args, kwargs), not any(map(_is_foreign, (function, *args[:1]))), refused)

            if product is not None or not is_safe(owner_of(function), args, kwargs):
                return twice()
            boxes = [numbers.boxed(arg) for arg in args]
            named = {name: numbers.boxed(arg) for name, arg in kwargs.items()}
            if any(box is not arg for box, arg in zip((*boxes, *named.values()),
                                                      (*args, *kwargs.values()))):
                return self._boxed(
                    lambda: call(self, function, tuple(boxes), named, row), twice, (args, kwargs), function)
        if row.kind == "fill":
            self.refuse_changing_key(function, args)
        if function is not range:  # which holds them
            self._pin_unless_moved(row.kind, function, args, kwargs)
        if row.kind in _TAKES_BOXES:
            self.pin_sizes((*args, *kwargs.values()))
        return call(self, function, args, kwargs, row)

    def read_known(self, value: Any) -> None:
        if identity(value) in self.known:
            self.read_whole(value)

    def _boxed_method(
        self, row: Call, function: Any, args: tuple, kwargs: dict, call: Callable,
    ) -> Any:
        """A method of a tensor with symbols."""
        numbers, owner = self.guards.numbers, function.__self__
        product = self.product(function, args, kwargs)

        def method(boxed: Callable) -> tuple:
            boxes, named = tuple(map(boxed, args)), named_of(kwargs, boxed)
            found = None if product is None else (product(boxed), boxes, named)
            if function.__name__ == "reshape":
                found = self.reshaping(owner, boxed(owner), boxes, named)
            return found or (as_numbers(getattr(boxed(owner), function.__name__), args), boxes, named)

        def again(boxed: Callable) -> Callable:
            made, boxes, named = method(boxed)
            return lambda: made(*boxes, **named)

        def twice(refused: str = "") -> Any:
            plain, named = tuple(map(numbers.plain, args)), named_of(kwargs, numbers.plain)
            return self._twice(
                lambda: call(self, function, plain, named, row), again, looked_at, refused=refused)

        looked_at = (owner, args, kwargs)
        if product is not None or not is_safe(*looked_at):
            return twice()
        return self._boxed(lambda: call(self, *method(numbers.boxed), row), twice, looked_at, function)

    def operate_with_numbers(self, function: Any, args: tuple, run: Callable) -> Any:
        """`run(function, args)`, an operator on objects of which some may be runtime numbers."""
        self.pins.during(function)
        if function in BY_KEY and self.is_keyed(*args[:2]):
            return run(function, args)
        args = self.with_indices(function, self.as_tensors(function, args))
        if moves_elements(function, args, self.numbers) and not any(map(self.guards.is_moving_list, args)):
            return self.perform(function, args, {})
        if function in _OF_SIZES and (all(map(_holds_ints, args)) or all(map(_lists_ints, args))):
            return self._compare_sizes(function, *args)
        is_tensors = any(issubclass(type(arg), Tensor) for arg in args)
        has_symbols = any(self.symbolic_type(arg) is not None for arg in args)
        if has_symbols and function is len:
            return self.guards.numbers.of_size(self.symbolic_type(args[0]).sizes[0])
        is_cut = function in SUBSCRIPTS and self._is_cut(*args[:2])
        if is_cut:
            self.begin_sizes()
        is_indexed = function in _NO_BOXES and self.recorder.rules is None
        if not is_tensors or is_indexed or function is operator.contains or not self._is_open(*args):
            for arg in args:
                self.pin_sizes(arg)
            return run(function, args)
        numbers = self.guards.numbers

        def made(cuts: bool) -> Callable:
            key = numbers.boxed(args[1]) if is_cut else None
            return is_cut and spelled_subscript(function, args[0], key, cuts) or function

        product = self.product(function, args, {})

        def twice(refused: str = "") -> Any:
            plain, own = tuple(map(numbers.plain, args)), made(not refused)
            return self._twice(
                lambda: run(function, plain, None if refused else own),
                lambda boxed: lambda: (product(boxed) if product else own)(*map(boxed, args)), args,
                refused=refused)

        if product is not None or not is_safe(*args):
            return twice()
        # without symbols, tensor and key stay as they are
        kept = 2 if function is operator.setitem and not (has_symbols or is_cut) else 0
        boxes = (*args[:kept], *(numbers.boxed(arg) for arg in args[kept:]))
        if all(box is arg for box, arg in zip(boxes, args)):
            return run(function, args)
        return self._boxed(lambda: run(function, boxes, made(False)), twice, args[kept:], function)

    def _compare_sizes(self, function: Callable, first: tuple, second: tuple) -> bool:
        """`x.shape == y.shape`, or of two lists of ints, size by size."""
        for arg in (first, second):
            if identity(arg) in self.known:
                self.read_whole(arg)
        is_equal = len(first) == len(second) and all(
            self.guards.numbers.calculate(operator.eq, pair) for pair in zip(first, second))
        return is_equal is (function is operator.eq)

    def mutate_with_numbers(self, method: str, args: tuple, kwargs: dict) -> None:
        """A container is changed by its own method: some arguments are just stored."""
        stored = _STORED_FROM.get(method, len(args))
        for arg in args[:stored]:
            self.guards.numbers.pin(arg)
        for arg in kwargs.values() if method != "update" else ():
            self.guards.numbers.pin(arg)

    def _boxed(self, run: Callable, twice: Callable, looked_at: Any, function: Any) -> Any:
        """What `run` gives, which calls torch's `function` with boxes.

        Some functions of torch refuse a symbolic number where they take a plain one. Then the call is made
        `twice`, as if nothing had run.
        """
        recorder, numbers = self.recorder, self.guards.numbers
        recorder.is_boxed, recorder.boxed_ops, recorder.has_acted = True, 0, False
        mark = recorder.mark()
        recorder.first_of_call = mark[-1]
        self._shown.clear()
        try:
            return self._with_views(numbers.unboxed(run()), mark)
        except GiveUp as given:
            given.result = unboxed(given.result, plain)
            raise
        except Exception:
            if recorder.has_acted or recorder.boxed_ops and recorder.rules is None:
                self._pin_within(looked_at)  # the program sees it: these very numbers raise
                raise
        finally:
            recorder.is_boxed = False
            self._shown.clear()
        if recorder.boxed_ops:
            recorder.rewind(mark)
        return twice(getattr(function, "__name__", str(function)))

    def _with_views(self, result: Any, mark: tuple) -> Any:
        """`result` of a call that was given others for its tensors: its views are made once more, of the
        tensors themselves, since autograd has to know what each is a view of."""
        if self.recorder.rules is None:
            return result
        if type(result) in (list, tuple):
            return type(result)([self._with_views(part, mark) for part in result])
        return self.recorder.as_view(result, mark) if type(result) is Tensor else result

    def _is_open(self, *values: Any) -> bool:
        """Whether C may be given boxes beside `values`: in a call that autograd takes part in, only
        where it is made again for that."""
        if is_safe(*values):
            return True
        if is_available() and any(map(self.guards.numbers.holds_one, values)):
            self.begin_sizes()
        return self.recorder.rules is not None and is_available()

    def holds_int(self, value: Any) -> bool:
        """Whether an int that changes is in `value`."""
        if type(value) is dict:
            value = tuple(value.values())
        if type(value) is slice:
            value = (value.start, value.stop, value.step)
        if type(value) in _PUT_TOGETHER:
            return any(map(self.holds_int, value))
        return type(value) is int and identity(value) in self.numbers

    def _twice(
        self, run: Callable, again: Callable, looked_at: Any, is_known: bool = True, refused: str = "",
    ) -> Any:
        """What `run` gives, a call that autograd takes part in or that looks at sizes, with the numbers of
        the same call of what C shall see: see `rehearsal.py`.

        again(boxed)   makes that call, given what turns an argument into what C shall see
        is_known       nothing but ops happens in the call
        refused        the name of the function, where it has refused symbols
        """
        recorder, numbers = self.recorder, self.guards.numbers
        if not self._has_symbols(looked_at):
            return run()
        rehearsal = recorder.rehearsal = Rehearsal(self._shown_again)
        try:
            result = run()
        except GiveUp:
            raise
        except Exception:
            self._pin_call(rehearsal, looked_at)  # the program sees it: these very numbers raise
            raise
        finally:
            recorder.rehearsal = None
        for is_spelled in (True, False) if is_known else ():
            rehearsal.begin(is_spelled)
            found = self._rehearsed(rehearsal, again, result)
            if found is not NOT_DONE:
                return found
        self._pin_call(rehearsal, looked_at)
        if refused:
            self.missed[refused] = self.missed.get(refused, 0) + 1
        else:
            self.missed_rehearsal(rehearsal)
        return result

    def _rehearsed(self, rehearsal: Rehearsal, again: Callable, result: Any) -> Any:
        """`result` with numbers that are known to be made of sizes, NOT_DONE if the call goes another
        way."""
        recorder, numbers = self.recorder, self.guards.numbers
        if recorder.is_stopped or below_autograd is None:
            return NOT_DONE
        self._shown.clear()
        shown_before = numbers.shown
        recorder.rehearsal, recorder.is_rehearsing = rehearsal, True
        numbers.shown = self._shown_again
        try:
            with below_autograd():
                made = again(numbers.boxed)()
            if not rehearsal.is_over(recorder) or recorder.is_stopped:
                return NOT_DONE
            return merged(result, made, numbers.unboxed)
        except Exception:
            return NOT_DONE
        finally:
            numbers.shown = shown_before
            recorder.rehearsal, recorder.is_rehearsing = None, False
            self._shown.clear()

    def _shown_again(self, value: Any) -> Any:
        """What C sees for `value` while the call is made again: no tensor is itself, so that nothing
        can happen to it."""
        if type(value) not in PLAIN_TENSORS:
            return value
        made = self._shown.get(identity(value))
        if made is None:
            type_now = self.symbolic_type(value) or tensor_facts(value).type
            made = self._shown[identity(value)] = show(value, type_now, self.guards.numbers)
            if value.requires_grad:
                made.requires_grad_()
        return made

    def _has_symbols(self, value: Any) -> bool:
        """Whether a runtime number is in `value`, or a tensor whose sizes are symbols."""
        if type(value) is dict:
            value = tuple(value.values())
        if type(value) in _PUT_TOGETHER:
            return any(map(self._has_symbols, value))
        if type(value) is slice:
            return any(map(self._has_symbols, (value.start, value.stop, value.step)))
        return identity(value) in self.numbers or self.symbolic_type(value) is not None

    def _pin_within(self, value: Any) -> None:
        self.guards.numbers.pin_all(value)
        self.pin_sizes_within(value)

    def _pin_call(self, rehearsal: Rehearsal, looked_at: Any) -> None:
        """The call stays as it was recorded: with what it was given, and for other views of what it wrote."""
        self._pin_within(looked_at)
        ops = self.recorder.builder.ops
        for _, place, _ in rehearsal.noted:
            for written in ops[place].writes if 0 <= place < len(ops) else ():
                self.recorder.pin_relatives(written, ops[place].refs())

    def missed_rehearsal(self, rehearsal: Rehearsal) -> None:
        for function, _, _ in rehearsal.noted[:1]:
            name = facts_of(function).name
            self.missed[name] = self.missed.get(name, 0) + 1

    def pin_sizes_within(self, value: Any, depth: int = 0) -> None:
        """As `pin_sizes`, in other containers too."""
        if self.recorder.rules is None or type(value) in PRIMITIVES or depth > MAX_DEPTH:
            return
        self.pin_sizes(value)
        for part in parts_of(value):
            self.pin_sizes_within(part, depth + 1)

    def _pin_unless_moved(self, kind: str, function: Any, args: tuple, kwargs: dict) -> None:
        numbers = self.guards.numbers
        if is_bound(function):
            numbers.pin(function.__self__)
        everything = (*args, *kwargs.values())
        if kind not in _MOVING:
            for arg in (owner_of(function), *everything):
                numbers.pin_all(arg)
        elif kind not in _STORING and not _stores(kind, function):
            for arg in everything[function is itertools.repeat:]:  # which stores the first
                numbers.pin(arg)


def named_of(kwargs: dict, change: Callable) -> dict:
    return {name: change(arg) for name, arg in kwargs.items()}


def _holds_ints(value: Any) -> bool:
    return type(value) in _SIZES and all(type(part) is int for part in value)


def _lists_ints(value: Any) -> bool:
    return type(value) is list and all(type(part) is int for part in value)


def _is_refused(table: dict[int, Any], function: Any, args: tuple) -> bool:
    """Whether an operator's dunder of a runtime number gives the turn to a tensor."""
    if not is_bound(function) or identity(function.__self__) not in table or len(args) != 1:
        return False
    return issubclass(type(args[0]), Tensor) and function(*args) is NotImplemented


def _stores(kind: str, function: Any) -> bool:
    return kind == "identity" or kind == "fill" and function.__name__ in _APPENDING


def _of_boxed(function: Any, boxed: Callable) -> Callable:
    """`function`; a method of a tensor, of what C shall see for that."""
    owner = owner_of(function)
    if not issubclass(type(owner), Tensor):
        return function
    return getattr(boxed(owner), function.__name__)


def _is_foreign(function: Any) -> bool:
    """Whether an operator is the user's: its Python may do anything."""
    if type(function).__module__ != "torch._ops":
        return False
    return not str(function).startswith(("aten.", "prims."))
