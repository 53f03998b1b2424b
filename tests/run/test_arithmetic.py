"""Tests of numbers as rows: they go the way that Python says, or leave it to Python."""

import math
import random

import pytest
from consult import Book
from native_rows import native_check

from preheat.ir.rows import ROW, VERDICT
from preheat.ir.scalar import EVALUATE, Scalar, apply, symbol, type_of
from preheat.ir.trace import Named
from preheat.run.check import Checker, Failure
from preheat.run.rows import bind_rows

INTS = (0, 1, -1, 2, 3, -7, 10, 1 << 31, -(1 << 53), (1 << 53) + 1, (1 << 62) + 5, -(1 << 63), 1 << 70)
FLOATS = (
    0.0, -0.0, 1.0, -1.5, 2.0, 3.25, 1e300, -1e-300, 5e-324, 2.0**53, 2.0**60, math.inf, -math.inf,
    math.nan,
)
TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "min", "max")
ONE = ("neg", "abs", "float", "int", "trunc", "sqrt", "round")
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


class Numbers:
    """Random expressions over a few arguments."""

    def __init__(self, chance: random.Random):
        self.chance = chance
        self.kinds = [chance.choice((int, float)) for _ in range(3)]

    def values(self) -> list:
        pools = {int: INTS, float: FLOATS}
        return [
            self.chance.choice(pools[kind]) if self.chance.random() < 0.5
            else kind(self.chance.randint(-20, 20)) for kind in self.kinds
        ]

    def number(self, depth: int):
        chance = self.chance
        if depth == 0 or chance.random() < 0.2:
            if chance.random() < 0.3:
                return chance.choice((*INTS, *FLOATS[:8]))
            place = chance.randrange(len(self.kinds))
            return symbol(f"s{place}", self.kinds[place].__name__)
        op = chance.choice(TWO + ONE)
        operands = [self.number(depth - 1) for _ in range(2 if op in TWO else 1)]
        if op in ("min", "max") and len({*map(type_of, operands)}) > 1:
            return operands[0]  # which one it is is a test of its own
        return self.made(op, *operands)

    def test(self) -> Scalar:
        while True:
            op = self.chance.choice((*TESTS, "bool"))
            count = 1 if op == "bool" else 2
            made = self.made(op, *(self.number(2) for _ in range(count)))
            if self.chance.random() < 0.2:
                made = self.made("not", made)
            if isinstance(made, Scalar):
                return made

    def made(self, op, *operands):
        try:
            return apply(op, *operands)
        except (ArithmeticError, ValueError):
            return operands[0]


def bound(numbers: Numbers):
    """A checker of one test, and rows for values that it holds for."""
    book, scalar = Book(), numbers.test()
    for place, kind in enumerate(numbers.kinds):
        book.guard(book.source(-1, "arg", place), "type", Named("builtins", kind.__name__))
    source = book.source(-1, "number", scalar)
    for _ in range(20):
        args = numbers.values()
        probe = Checker(book.trace(), None, book.objects)
        found = probe.resolve(args, {})
        if not isinstance(found, Failure):
            book.guard(source, "is", found[source])
            checker = Checker(book.trace(), None, book.objects)
            return checker, bind_rows(checker, checker.resolve(args, {}), args)
    return None, None


@pytest.mark.parametrize("seed", range(40))
def test_random_tests_of_numbers(seed):
    numbers = Numbers(random.Random(seed))
    for _ in range(12):
        numbers.kinds = [numbers.chance.choice((int, float)) for _ in range(3)]
        checker, rows = bound(numbers)
        if rows is None or rows.in_python:
            continue
        for _ in range(25):
            args = numbers.values()
            if numbers.chance.random() < 0.1:
                args[0] = numbers.chance.choice((True, None, 1.5, 2))
            row, verdict = native_check(rows, args), checker.check(args, {})
            if row == -1:
                assert verdict is None, (str(verdict), args)
            elif ROW.unpack_from(rows.buffer, row * ROW.size)[3] & VERDICT:
                assert isinstance(verdict, Failure), (rows.about(row), args)


CASES = {
    "int": (lambda a: apply("gt", a, 3), (4, 5, 1 << 40), (3, -9)),
    "mod": (lambda a: apply("bool", apply("mod", a, 2)), (1, -1, 7), (0, -4)),
    "floordiv": (lambda a: apply("eq", apply("floordiv", a, 3), -1), (-1, -3), (0, -4, 3)),
    "float": (lambda a: apply("lt", apply("mul", a, 0.5), 1.0), (1.0, -0.0, -math.inf), (2.0, math.nan)),
    "mixed": (lambda a: apply("ge", apply("truediv", a, 4), 1), (4.0, math.inf), (3.9, math.nan)),
    "root": (lambda a: apply("eq", apply("sqrt", apply("abs", a)), 2.0), (4.0, -4.0), (2.0,)),
}


@pytest.mark.parametrize("name", CASES)
def test_usual_tests_need_no_python(name):
    make, holds, fails = CASES[name]
    book = Book()
    kind = type(holds[0]).__name__
    book.guard(book.source(-1, "arg", 0), "type", Named("builtins", kind))
    book.guard(book.source(-1, "number", make(symbol("s0", kind))), "is", True)
    checker = Checker(book.trace(), None, book.objects)
    rows = bind_rows(checker, checker.resolve([holds[0]], {}), [holds[0]])
    assert not rows.in_python
    assert [native_check(rows, [value]) for value in holds] == [-1] * len(holds)
    for value in fails:
        row = native_check(rows, [value])
        assert ROW.unpack_from(rows.buffer, row * ROW.size)[3] & VERDICT


def test_every_operation_is_one_of_the_scalars():
    assert {*TWO, *ONE, *TESTS} <= EVALUATE.keys()
