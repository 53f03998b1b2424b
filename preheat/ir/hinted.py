"""Hinted: the sizes of a plan that is made once for all sizes, while it is being made.

    n = hints({"n3": 17}, ...)["n3"]        a Scalar that knows what it was in a real call
    n * 4 + 1 > n          True             decided by algebra: whatever n is
    n * 64 == n * 32 * 2   True
    n == 17                False            a size is taken for no number, if it was another one once
    n < 500                True             not decidable: as in the real call, and noted as a condition
    estimate(n * 4)        68               what a choice between two right ways may look at
    prefer(("le", n, 64))                   where the choice is a good one: noted as a preference

A plan that was made from such sizes holds wherever `Book.conditions` do. An equation that algebra
does not decide is true, and a condition, if it was so in every call that is known of; else it is taken
to be false. So who asks "a == b" must be right, in the case of "no", for sizes that are equal, too. A
hinted size is no int: what needs the number raises Unsupported("symbolic").

Where `Book.preferences` do not hold the plan is right, and another one much faster.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from preheat.base.errors import Unsupported
from preheat.ir.dims import bounds, decide, divided, normal
from preheat.ir.scalar import EVALUATE, NUMBERS, Dim, Number, Scalar, apply, both


class Book:
    """What plans with hinted sizes rest on. `conditions`: each holds in the calls that were seen."""

    def __init__(self) -> None:
        self._conditions: dict[Scalar, None] = {}
        self._preferences: dict[Scalar, None] = {}
        self._made: dict[tuple, Number] = {}
        self._decided: dict[tuple, bool | None] = {}

    @property
    def conditions(self) -> tuple[Scalar, ...]:
        return tuple(self._conditions)

    @property
    def preferences(self) -> tuple[Scalar, ...]:
        return tuple(self._preferences)

    def require(self, condition: Number) -> None:
        if isinstance(condition, Scalar):
            self._conditions[condition] = None

    def prefer(self, condition: Scalar) -> None:
        self._preferences[condition] = None

    def decide(self, op: str, first: Number, second: Number) -> bool | None:
        """As `dims.decide`; each question is answered once."""
        key = op, _key(first), _key(second)
        if key not in self._decided:
            self._decided[key] = decide(op, first, second)
        return self._decided[key]

    def expression(self, op: str, args: tuple[Number, ...]) -> Number:
        """`op` of `args` in normal form."""
        key = op, *map(_key, args)
        found = self._made.get(key)
        if found is None:
            exact = divided(*args) if op == "floordiv" and isinstance(args[1], Scalar) else None
            found = self._made[key] = normal(apply(op, *args)) if exact is None else exact
        return found


def _key(value: Number) -> tuple:
    return type(value), value


class Hinted(Scalar):
    """A number made of sizes; `values`: what it was in each call that is known of."""

    __slots__ = ("plain", "values", "book")

    plain: Scalar
    values: tuple[int | float, ...]
    book: Book

    __add__, __radd__ = both("add")
    __sub__, __rsub__ = both("sub")
    __mul__, __rmul__ = both("mul")
    __floordiv__, __rfloordiv__ = both("floordiv")
    __truediv__, __rtruediv__ = both("truediv")
    __mod__, __rmod__ = both("mod")

    def _of(self, op: str, *args: Number) -> Number:
        return _of(self.book, op, *args)

    def __neg__(self) -> Number:
        return _of(self.book, "neg", self)

    def __abs__(self) -> Number:
        return self if self >= 0 else -self

    def __eq__(self, other: object) -> bool:
        return _compare("eq", self, other) if isinstance(other, NUMBERS) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.plain)

    def __lt__(self, other: Number) -> bool:
        return _compare("lt", self, other) if isinstance(other, NUMBERS) else NotImplemented

    def __le__(self, other: Number) -> bool:
        return _compare("le", self, other) if isinstance(other, NUMBERS) else NotImplemented

    def __gt__(self, other: Number) -> bool:
        return _compare("gt", self, other) if isinstance(other, NUMBERS) else NotImplemented

    def __ge__(self, other: Number) -> bool:
        return _compare("ge", self, other) if isinstance(other, NUMBERS) else NotImplemented

    def __bool__(self) -> bool:
        return not self == 0

    def __repr__(self) -> str:
        return f"<{self}>"

    def __index__(self) -> NoReturn:
        raise Unsupported("symbolic", f"one value of {self} is needed")

    __int__ = __float__ = __index__

    def __reduce__(self) -> tuple:
        return Scalar, (self.op, self.args, self.type)


def hints(calls: Sequence[Mapping[str, int]], book: Book) -> dict[str, Hinted]:
    """A hinted size for each symbol. `calls`: what the symbols were, in a real call first."""
    names = list(calls[0])
    return {
        name: _hinted(Scalar("sym", (name,), "int"), tuple(call[name] for call in calls), book)
        for name in names
    }


def with_hints(value: Number, known: Mapping[str, Hinted], book: Book) -> Number:
    """The value of `value` where each symbol is the one in `known`."""
    if not isinstance(value, Scalar):
        return value
    if value.op == "sym":
        return known[value.args[0]]
    args = tuple(with_hints(arg, known, book) for arg in value.args)
    if any(isinstance(arg, Hinted) for arg in args):
        return _of(book, value.op, *args)
    return EVALUATE[value.op](*args)


def estimate(dim: Dim) -> int:
    """What `dim` is likely to be. For choices only: nothing that is right may depend on it."""
    return dim.values[0] if isinstance(dim, Hinted) else _known(dim)


def prefer(*tests: tuple[str, Number, Number]) -> None:
    """Notes that the plan is a good one where one of these comparisons is true. One must be so in the real call."""
    found, book = None, None
    for op, *sides in tests:
        book = next((side.book for side in sides if isinstance(side, Hinted)), book)
        if not any(isinstance(side, Hinted) for side in sides):
            is_so: bool | None = EVALUATE[op](*map(_known, sides))
        else:
            is_so = book.decide(op, *map(_plain, sides))
        if is_so:
            return
        if is_so is None:
            test = apply(op, *map(_plain, sides))
            found = test if found is None else apply("or", found, test)
    if found is not None:
        book.prefer(found)


def holds(op: str, first: Number, second: Number) -> bool:
    """Whether the comparison is true whatever the sizes are."""
    found = first if isinstance(first, Hinted) else second
    if not isinstance(found, Hinted):
        return EVALUATE[op](_known(first), _known(second))
    return found.book.decide(op, _plain(first), _plain(second)) is True


def ends(dim: Dim) -> tuple[int | None, int | None]:
    """The least and the greatest that `dim` is whatever the sizes are, None where that is not known."""
    return bounds(_plain(dim))


def quotient(first: Dim, second: Dim) -> Dim | None:
    """first / second if that is a whole number whatever the sizes are, None if that is not known."""
    if not isinstance(first, Hinted) and not isinstance(second, Hinted):
        return None if _known(first) % _known(second) else first // second
    exact = divided(_plain(first), _plain(second))
    return None if exact is None else first // second


def longest(dims: Iterable[Dim]) -> Dim:
    """The greatest of some sizes."""
    return _extreme("max", "ge", dims)


def least(dims: Iterable[Dim]) -> Dim:
    """The smallest of some sizes."""
    return _extreme("min", "le", dims)


def _extreme(op: str, is_so: str, dims: Iterable[Dim]) -> Dim:
    kept: list[Dim] = []
    for dim in dims:
        if any(holds(is_so, other, dim) for other in kept):
            continue
        kept = [other for other in kept if not holds(is_so, dim, other)] + [dim]
    total = kept[0]
    for dim in kept[1:]:
        book = next(d.book for d in (total, dim) if isinstance(d, Hinted))
        total = _of(book, op, total, dim)
    return total


def as_float(value: Number) -> Number:
    """`value` as a float."""
    if not isinstance(value, Hinted):
        return float(value)
    return value if value.type == "float" else _of(value.book, "float", value)


def _known(dim: Dim) -> int:
    if isinstance(dim, Scalar):
        raise Unsupported("symbolic", f"{dim} is only known at run time")
    return dim


def _hinted(plain: Number, values: tuple, book: Book) -> Number:
    if not isinstance(plain, Scalar):
        return plain
    made = object.__new__(Hinted)
    for name, value in (("op", plain.op), ("args", plain.args), ("type", plain.type),
                        ("plain", plain), ("values", values), ("book", book)):
        object.__setattr__(made, name, value)
    return made


def _plain(value: Number) -> Number:
    return value.plain if isinstance(value, Hinted) else value


def _of(book: Book, op: str, *args: Number) -> Number:
    """`op` of numbers of which one is hinted at least."""
    for arg in args:
        if isinstance(arg, Scalar) and not isinstance(arg, Hinted):
            raise Unsupported("symbolic", f"{arg} beside sizes")
    expression = book.expression(op, tuple(map(_plain, args)))
    if not isinstance(expression, Scalar):
        return expression
    compute: Callable = EVALUATE[op]
    try:
        count = next(len(arg.values) for arg in args if isinstance(arg, Hinted))
        values = tuple(
            compute(*(arg.values[k] if isinstance(arg, Hinted) else arg for arg in args))
            for k in range(count))
    except (ArithmeticError, ValueError) as why:
        raise Unsupported("symbolic", f"{expression}: {why}") from why
    return _hinted(expression, values, book)


def _compare(op: str, first: Hinted, second: Number) -> bool:
    book, plain = first.book, _plain(second)
    if isinstance(plain, Scalar) and not isinstance(second, Hinted):
        return op == "eq" and first.plain == plain  # a number of another kind
    if isinstance(plain, float) and not math.isfinite(plain):
        return bool(EVALUATE[op](first.values[0], plain))
    decided = book.decide(op, first.plain, plain)
    if decided is not None:
        return decided
    others = second.values if isinstance(second, Hinted) else (plain,) * len(first.values)
    answers = [EVALUATE[op](a, b) for a, b in zip(first.values, others)]
    answer = all(answers) if op == "eq" else answers[0]
    condition: Any = apply(op, first.plain, plain)
    if answer:
        book.require(condition)
    elif op != "eq":
        book.require(apply("not", condition))
    return answer
