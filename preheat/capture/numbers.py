"""Numbers: which ints and floats of the program are only known when it runs.

    numbers.make(symbol("s3", "int"), 7)      an int 7 of its own, known to be source 3
    numbers.calculate(operator.add, (n, 1))   8, known to be s3 + 1
    numbers.pin(n)                            guard s3 value 7: the program has looked at it

A runtime number is an ordinary int or float of the program, told by its identity: no other object
is it, not even an equal one. So the program, and all of C, see a number like any other, and what
does not ask this table can never mistake it. What the program computes from one is one again, as long as
`ir.scalar` has the operation with the very type and value that Python gives; whatever else is done
with it (an index of a list, a key, a call of C) must be told here and pins the sources of
its expression at their present values. Of a comparison or a branch only the answer is guarded. The machine asks at each operation on plain values, the
watcher at each call.
"""

import functools
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.base.numbers import copied, has_copies
from preheat.bridge.symint import Shown, box, combined, is_box, plain, scalar_of
from preheat.bridge.tensors import Size
from preheat.capture.arithmetic import (
    CALLED, COUNTS, DOMAINS, NUMBERS, OF_FINITE, OPERATIONS, PREDICATES, SAME, TESTS, TEXTS, TO_FINITE, TUPLES,
    has_power, is_always_finite, is_one_to_one,
)
from preheat.ir.dims import is_size, size_symbol, solved, source_of, substitute
from preheat.ir.functions import CALLS, is_defined
from preheat.ir.scalar import EVALUATE, Number, Scalar, apply, symbol, symbols, type_of

TOLD = NUMBERS | {str}  # kinds of values that may be told apart
_CONSTANTS = frozenset((int, float, bool))
_SPELLED = _CONSTANTS | {str}
_WALKED = frozenset((
    list, tuple, Size, dict, set, frozenset, deque, slice, range, OrderedDict, defaultdict,
))
_BOXED_WITHIN = frozenset((list, tuple, Size))
_NAMED_RESULTS = "torch.return_types"  # tuples with names, as x.max(0) gives
_MAX_DEPTH = 50


def _call(function: Callable, args: tuple, kwargs: dict) -> Any:
    return function(*args, **kwargs)


class Numbers:
    """The runtime numbers of one node.

    table    id of a number -> (the number, its expression); whoever is in it is kept alive
    claim    told (source, value) of each number that the program has looked at
    tested   told (expression, answer) of each test that the program has made
    source_for   gives a source to a number, where there are sources
    """

    def __init__(
        self, table: dict[int, tuple[int | float, Scalar]],
        claim: Callable[[int, int | float], None], tested: Callable[[Number, bool], None],
        source_for: Callable[[Scalar], int] | None = None,
    ) -> None:
        self.table, self._claim, self._tested, self._source_for = table, claim, tested, source_for
        self._values: dict[int, int | float] = {}  # source -> its number
        self._made: dict[int, tuple[Scalar, int | float | str]] = {}  # id of an expression -> it, and its value
        self.same: dict[str, Number] = {}  # what a symbol is, by the guards
        self.sizes: dict[str, Scalar] = {}  # symbols of sizes and strides by name
        self._recorded: set[str] = set()  # those of a graph that was recorded before
        self.shown: Callable[[Any], Any] = _as_it_is  # a tensor as C shall see it
        self.wanted: dict[str, str] = {}  # sizes that have to be symbols, and their paths
        self.fixed: Callable[[str, str], None] = lambda path, why: None  # told of one that is not
        self.told: Callable[[Number, Any], None] = lambda scalar, test: None  # of what is looked at, and by which test
        self.told_equal: Callable[[Scalar], None] = lambda scalar: None  # of a size that must be what it is
        self.rule = ""  # the op whose size rule looks at numbers

    def symbol_for(self, scalar: Scalar) -> Number:
        """The symbol of a number that is computed on each call, `scalar`; its value, pinned, where there are no
        sources."""
        value = self.value(scalar)
        if self._source_for is None:
            self.pin_scalar(scalar)
            return value
        source = self._source_for(scalar)
        self.of_source(source, value)
        return symbol_of(source, value)

    def of_source(self, source: int, value: int | float) -> int | float:
        """The number that source `source` gives, whose value now is `value`: always one object."""
        known = self._values.get(source)
        if known is None:
            known = self.make(symbol_of(source, value), value)
            self._values[source] = known
        return known

    def size_of(self, source: int, value: int, symbol: Callable = size_symbol) -> Number:
        """The symbol of a size (or stride) that is `value` now; the number itself where it was
        looked at, or can be no symbol."""
        if source not in self._values:
            # one element: rules and torch go other ways then, which hold for nothing else
            if not (value > 1 if symbol is size_symbol else value >= 0):
                return value
            made = symbol(source)
            self._values[source] = self.make(made, value)
            self.sizes[made.args[0]] = made
        return self.normal(symbol(source))

    def know(self, name: str, value: int) -> None:
        """The symbol `name`, of a graph that was recorded before, is `value` now."""
        made = Scalar("sym", (name,), "int")
        self._values[source_of(name)], self.sizes[name] = value, made
        self._recorded.add(name)
        if is_size(name) and value <= 1:
            self.pin_scalar(made)  # as in `size_of`

    def of_size(self, size: Number) -> int:
        """A size as the program sees it."""
        if not isinstance(size, Scalar):
            return size
        value = self.value(size)
        if size.op == "sym":
            return self._values[source_of(size.args[0])]
        return self.make(size, value)

    def normal(self, scalar: Number) -> Number:
        """The expression with what the guards say; one without sizes is left as it is."""
        if not isinstance(scalar, Scalar) or not self.sizes:
            return scalar
        return substitute(scalar, self.same) if self._has_sizes(scalar) else scalar

    def is_of_sizes(self, scalar: Number) -> bool:
        """Whether a number is known, or follows from sizes alone."""
        return all(name in self.sizes for name in symbols(scalar))

    def _has_sizes(self, scalar: Scalar) -> bool:
        return bool(self.sizes) and any(name in self.sizes for name in symbols(scalar))

    def value(self, scalar: Number) -> int | float | bool:
        """The value of an expression now."""
        if not isinstance(scalar, Scalar):
            return scalar
        known = self._made.get(identity(scalar))
        if known is not None:
            return known[1]
        if scalar.op == "sym":
            return self._values[source_of(scalar.args[0])]
        return EVALUATE[scalar.op](*map(self.value, scalar.args))

    def adopt(self, source: int, value: int | float) -> int | float:
        """`value`, an object of its own already, is what source `source` gives."""
        self._values[source] = value
        self.table[identity(value)] = (value, symbol_of(source, value))
        return value

    def of(self, name: str) -> int | float:
        """The number that the symbol `name` stands for."""
        return self._values[source_of(name)]

    def made(self, scalar: Number, value: int | float) -> int | float:
        """The number that is `scalar`, `value` now: that of the source, if it is one's."""
        if not isinstance(scalar, Scalar):
            return scalar
        if scalar.op == "sym":
            return self._values[source_of(scalar.args[0])]
        return self.make(scalar, value)

    def make(self, scalar: Scalar, value: int | float | str) -> int | float | str:
        """A new number, equal to `value`, that is `scalar`."""
        made = copied(value)
        self.table[identity(made)] = (made, scalar)
        if scalar.op != "sym":
            self._made[identity(scalar)] = (scalar, value)
        return made

    def scalar_of(self, value: Any) -> Scalar | None:
        """The expression of a runtime number, None for any other object."""
        known = self.table.get(identity(value))
        return None if known is None else known[1]

    # ------------------------------------------------------------------ looking
    def pin(self, value: Any) -> None:
        """The program has looked at `value`: what it came from must stay. Others are left alone."""
        known = self.table.get(identity(value))
        if known is not None:
            self.pin_scalar(known[1])

    def pin_scalar(self, scalar: Number) -> None:
        """`scalar` must stay what it is: what it came from must, and what that is by the guards; so does what follows.
        Of what many numbers give, as n % 3, only that is asked."""
        if self.is_of_many(scalar):
            value = self.value(scalar)
            if type(value) is not float or value == value and value != 0.0:  # of -0.0 another one is equal
                self.told(scalar, test := apply("eq", scalar, value))
                return self.test(test, True)
        self.told(scalar, None)
        for name in dict.fromkeys((*symbols(scalar), *symbols(self.normal(scalar)))):
            source = source_of(name)
            self._claim(source, self._values[source])
            if name in self.sizes and name not in self.same:
                self._is_wanted(name, "it is used in a way that needs its value")
                self._put(name, self._values[source] + 0)  # a number like any other

    def is_of_many(self, scalar: Number) -> bool:
        """Whether other numbers than the present ones may give the same; of sizes, which are pinned one by one, no."""
        if not isinstance(scalar, Scalar) or self._has_sizes(scalar) or self._has_sizes(self.normal(scalar)):
            return False
        return not is_one_to_one(scalar) or len(list(symbols(scalar))) > 1

    def test(self, scalar: Number, answer: bool) -> None:
        """The program, or C, has asked whether the expression holds: it does so, or does not."""
        scalar = self.normal(scalar)
        if not isinstance(scalar, Scalar):
            return
        if scalar.op == "not":
            self.test(scalar.args[0], not answer)
        elif scalar.op == ("and" if answer else "or"):
            for part in scalar.args:
                self.test(part, answer)
        else:
            self.told(scalar, scalar)
            self._tested(scalar, answer)
            if scalar.op == ("eq" if answer else "ne") and self._has_sizes(scalar):
                found = solved(*scalar.args)
                if found is not None:
                    self._is_now(*found)
            elif scalar.op == "ge" and answer and scalar.args[1] == 1:
                self._is_some(scalar.args[0])

    def _is_wanted(self, name: str, why: str) -> None:
        if name in self.wanted:
            self.fixed(self.wanted[name], why)

    def _is_some(self, number: Number) -> None:
        """A guard says that a number is at least 1: it is as good as a size."""
        if isinstance(number, Scalar) and number.op == "sym" and not (
                is_size(number.args[0]) or number.args[0] in self._recorded):
            made = size_symbol(source_of(number.args[0]))
            self.sizes[made.args[0]] = made
            self._is_now(number.args[0], made)

    def is_settled(self, test: Scalar) -> bool:
        """Whether the numbers that symbols are by now decide the test."""
        known = {name: value for name, value in self.same.items() if type(value) is int}
        return known.keys() >= set(symbols(test))

    def require(self, scalar: Scalar) -> None:
        """What is so now has to be so: it tells nothing else about the symbols in it."""
        self._tested(scalar, True)

    def _is_now(self, name: str, what: Number) -> None:
        """A guard says what the size `name` is."""
        if type(what) is int:
            self._is_wanted(name, f"it must be {what}")
            self.told_equal(symbol(name))
        self._put(name, what)

    def _put(self, name: str, what: Number) -> None:
        self.same = {known: substitute(value, {name: what}) for known, value in self.same.items()}
        self.same[name] = what

    def pin_all(self, value: Any, depth: int = 0) -> None:
        """C looks at `value`: pins each runtime number in it and in builtin containers under it."""
        if identity(value) in self.table:
            self.pin(value)
        elif type(value) in _WALKED and depth < _MAX_DEPTH:
            for part in _parts(value):
                if type(part) in TOLD or type(part) in _WALKED:
                    self.pin_all(part, depth + 1)

    def holds_one(self, value: Any, depth: int = 0) -> bool:
        """Whether `value` is a runtime number, or a builtin container with one under it."""
        if identity(value) in self.table:
            return True
        return type(value) in _WALKED and depth < _MAX_DEPTH and any(
            self.holds_one(part, depth + 1) for part in _parts(value))

    # ------------------------------------------------------------------ calculating
    def calculate(self, function: Callable, args: tuple, run: Callable = _call) -> Any:
        """`function(*args)`, done now, of plain values: a runtime number again where that can be.

        run    run(function, args, {}) makes the call
        """
        if function in SAME and type(args[0]) in SAME[function]:
            return args[0]
        if function in TEXTS or str in map(type, args):
            return self._text(function, args, run)
        if function in TESTS and all(type(arg) in _CONSTANTS for arg in args):
            return self._test(function, args, run)
        if function in PREDICATES and len(args) == 1 and type(args[0]) is float:
            answer = run(function, args, {})
            self.test(PREDICATES[function](self._scalar_or_value(args[0])), answer)
            return answer
        if function is divmod and len(args) == 2 and all(type(arg) in NUMBERS for arg in args) and args[1]:
            return tuple([self.calculate(part, args, run) for part in (operator.floordiv, operator.mod)])
        op = OPERATIONS.get(function)
        if op is None or not self._fits(op, args):
            return self._called(function, args, run)
        if op in ("min", "max") and len({type(arg) for arg in args}) > 1:
            return self._smaller(operator.lt if op == "min" else operator.gt, *args)
        try:
            result = run(function, args, {})
        except Exception:  # the program sees it: these very numbers raise
            for arg in args:
                self.pin(arg)
            raise
        scalars: list[Number] = [self._scalar_or_value(arg) for arg in args]
        made = combined(op, scalars, list(args), result)
        if made is None and op == "pow":
            made = self._power(scalars, args, result)
        if op in DOMAINS and not self._is_defined(op, scalars, args):
            made = None
        self._stays_finite(op, scalars, result)
        if op == "pow" and type(result) is int and not has_power(*args):
            made = None
        if made is None:
            for arg in args:
                self.pin(arg)
            return result
        made = self.normal(made)
        return self.make(made, result) if isinstance(made, Scalar) else result

    def _is_defined(self, op: str, scalars: list[Number], args: tuple) -> bool:
        """Guards that the operation will not raise, even if nobody needs its result; False: it is
        not so simple."""
        place, test = DOMAINS[op]
        if not getattr(operator, test)(args[place], 0):
            return False
        self.test(apply(test, scalars[place], 0), True)
        return True

    def _stays_finite(self, op: str, scalars: list[Number], result: int | float) -> None:
        """Guards that a float is finite, or is not, where Python raises for it, even if nobody needs the result."""
        for number in scalars if op in OF_FINITE else (apply(op, *scalars),) if op in TO_FINITE else ():
            if isinstance(number, Scalar) and number.type == "float" and not is_always_finite(number):
                test = apply("eq", apply("sub", number, number), 0.0)
                if op in OF_FINITE and not self.value(test):  # NaN does not raise, an infinity does
                    self.pin_scalar(number)
                else:
                    self.test(test, self.value(test))

    def _called(self, function: Callable, args: tuple, run: Callable) -> Any:
        """What Python computes on each call, and nothing else knows; where it might raise, that it does not is a
        guard."""
        ops = TUPLES.get(function) or (CALLED.get(function),)
        kinds = {type(arg).__name__ for arg in args}
        row = CALLS.get(ops[0])
        if row is None or not row.least <= len(args) <= row.most or not kinds <= row.takes:
            for arg in args:
                self.pin_all(arg)
            return run(function, args, {})
        try:
            result = run(function, args, {})
        except Exception:  # as in `calculate`
            self.pin_all(list(args))
            raise
        if not (row.is_total or is_defined(ops[0], *args)):  # it takes too long to be done at each check
            self.pin_all(list(args))
            return result
        scalars = [self._scalar_or_value(arg) for arg in args]
        parts = result if function in TUPLES else (result,)
        made = [self.normal(apply(op, *scalars)) for op in ops]
        if any(type_of(scalar) != type(part).__name__ for scalar, part in zip(made, parts, strict=True)):
            self.pin_all(list(args))
            return result
        if not row.is_total:
            self.test(apply("defined", ops[0], *scalars), True)
        seen = tuple([self._seen(scalar, part) for scalar, part in zip(made, parts)])
        return seen if function in TUPLES else seen[0]

    def _seen(self, scalar: Number, value: Any) -> Any:
        """`value`, which is `scalar`, as the program sees it."""
        if not isinstance(scalar, Scalar):
            return value
        if scalar.type == "bool":
            self.test(scalar, value)
            return value
        return self.make(scalar, value) if has_copies(value) else value

    def holds(self, test: Number) -> bool:
        """Whether the test holds, which is guarded then."""
        is_so = bool(self.value(test))
        if is_so:
            self.test(test, True)
        return is_so

    def divides(self, scalar: Scalar) -> bool:
        """Whether `scalar` is not 0, which is guarded then."""
        return self.holds(apply("ne", scalar, 0))

    def _text(self, function: Callable, args: tuple, run: Callable) -> Any:
        """A text of numbers and texts: one again, unless it is empty or made in another way."""
        kinds = set(map(type, args))
        op = TEXTS.get(function)
        if function in (operator.add, operator.iadd) and kinds == {str}:
            op = "join"
        elif function in (operator.mod, operator.imod) and kinds <= _SPELLED:
            op = "percent"
        elif function in TESTS and kinds <= _SPELLED:
            return self._test(function, args, run)
        if op is None and function in CALLED:
            return self._called(function, args, run)
        try:
            result = run(function, args, {})
        except Exception:  # as in `calculate`
            self.pin_all(list(args))
            raise
        is_own = type(result) is str and has_copies(result)
        if op is None or not kinds <= _SPELLED or not is_own:
            for arg in args:
                self.pin_all(arg)
            return result
        return self.make(apply(op, *map(self._scalar_or_value, args)), result)

    def _test(self, function: Callable, args: tuple, run: Callable) -> bool:
        answer = run(function, args, {})
        self.test(apply(TESTS[function], *map(self._scalar_or_value, args)), answer)
        return answer

    def is_one_of(self, value: int | float, members: list[int | float]) -> bool:
        """`value in members`: one test, whichever it is."""
        answer = value in members
        equal = [
            apply("eq", self._scalar_or_value(value), self._scalar_or_value(member)) for member in members]
        tests = [test for test in equal if isinstance(test, Scalar)]
        if tests and True not in equal:
            self.test(functools.reduce(functools.partial(apply, "or"), tests), answer)
        return answer

    def _smaller(self, is_less: Callable, first: Any, second: Any) -> Any:
        """min of an int and a float: which one it is is a test."""
        return second if self._test(is_less, (second, first), _call) else first

    def _power(self, scalars: list[Number], args: tuple, result: Any) -> Number | None:
        """A power whose type hangs on a sign: a float of no negative number, an int of ints whose
        exponent is not negative. The sign is a test."""
        decides = 0 if float in map(type, args) else 1
        if type(result) not in NUMBERS or not args[decides] >= 0:
            return None
        self.test(apply("ge", scalars[decides], 0), True)
        return apply("pow", *scalars)

    def _fits(self, op: str, args: tuple) -> bool:
        low, high = COUNTS.get(op, (1, 2))
        return low <= len(args) <= high and all(type(arg) in _CONSTANTS for arg in args)

    # ------------------------------------------------------------------ through torch
    def boxed(self, value: Any) -> Any:
        """`value` with a symbolic number for each runtime number in it, and each tensor as C shall
        see it; lists, tuples and slices deep."""
        return self._replaced(value, self._box, self.shown)

    def plain(self, value: Any) -> Any:
        """`value` with a number like any other, equal to it, for each runtime number, as deep."""
        return self._replaced(value, lambda scalar, value: copied(value), _as_it_is)

    def _box(self, scalar: Scalar, value: int | float | str) -> Any:
        if type(value) is str:
            self.pin_scalar(scalar)
            return value
        return box(scalar, value, self)

    def _replaced(self, value: Any, number: Callable, other: Callable) -> Any:
        known = self.table.get(identity(value))
        if known is not None:
            return number(known[1], known[0])
        kind = type(value)
        if kind in _BOXED_WITHIN:
            parts = [self._replaced(part, number, other) for part in value]
            is_same = all(map(operator.is_, parts, value))
            return value if is_same else (tuple if kind is Size else kind)(parts)
        if kind is slice:
            ends = (value.start, value.stop, value.step)
            parts = [self._replaced(part, number, other) for part in ends]
            return value if all(map(operator.is_, parts, ends)) else slice(*parts)
        return other(value)

    def bare(self, value: Any) -> Any:
        """`value` with a number like any other for each runtime number, lists and tuples deep."""
        if identity(value) in self.table:
            return type(value)(0)
        if type(value) in (list, tuple) and self.holds_one(value):
            return type(value)([self.bare(part) for part in value])
        return value

    def unboxed(self, value: Any) -> Any:
        """`value` with a runtime number for each symbolic one, and the tensors that C saw as others.
        """
        if is_box(value):
            scalar = self.normal(scalar_of(value))
            return self.make(scalar, plain(value)) if isinstance(scalar, Scalar) else plain(value)
        kind = type(value)
        if kind is Shown:
            return value.meant
        if kind in _BOXED_WITHIN or kind.__module__ == _NAMED_RESULTS:
            parts = [self.unboxed(part) for part in value]
            return value if all(map(operator.is_, parts, value)) else kind(parts)
        return value

    def _scalar_or_value(self, value: int | float | bool) -> Number:
        known = self.table.get(identity(value))
        return value if known is None else known[1]


def _as_it_is(value: Any) -> Any:
    return value


def symbol_of(source: int, value: int | float) -> Scalar:
    """The symbol of the number at source `source`, which is `value` now."""
    return Scalar("sym", (f"s{source}",), type(value).__name__)


def _parts(value: Any) -> list:
    kind = type(value)
    if issubclass(kind, dict):
        return [*value.keys(), *value.values()]
    if kind is slice or kind is range:
        return [value.start, value.stop, value.step]
    return list(value)
