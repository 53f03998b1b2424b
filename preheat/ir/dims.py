"""Dims: integer expressions over sizes in one normal form, and what holds for all sizes.

    normal(4*n1 + n2*2*n1 - n1)  ==  2*n1*n2 + 3*n1        equal polynomials are equal objects
    divided(normal(6*n1), 3)     ==  2*n1
    decide("gt", n1 + 1, 0)      is  True                   whatever size n1 is
    decide("gt", n1, 4)          is  None                   a guard has to say

A symbol whose name begins with "n" is the size of an axis (`size_symbol`), at least 1 (and of 64 bits): an axis
without elements is no symbol, since nearly all of torch looks whether a tensor has any. One that
begins with "t" is a stride, "s" any other number. What a polynomial cannot say (`//`, `%`, min, max
of symbols) is an atom of it. Requires integers; an expression of floats is its own normal form.
"""

import functools
from collections.abc import Iterable, Mapping

from preheat.ir.scalar import Dim, Number, Scalar, apply, symbols, type_of

_Atom = Scalar
_Monomial = tuple[_Atom, ...]  # sorted by text
_Polynomial = dict[_Monomial, int]
_RING = frozenset(("add", "sub", "mul", "neg"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_MOST_TERMS = 200
MOST = (1 << 63) - 1  # elements of an axis


def size_symbol(source: int) -> Scalar:
    """The symbol of the size that source `source` gives."""
    return Scalar("sym", (f"n{source}",), "int")


def stride_symbol(source: int) -> Scalar:
    """The symbol of the stride that source `source` gives."""
    return Scalar("sym", (f"t{source}",), "int")


def is_size(name: str) -> bool:
    return name.startswith("n")


def source_of(name: str) -> int:
    """The source that a symbol stands for: of a size "n12", of a number "s12"."""
    return int(name[1:])


@functools.lru_cache(maxsize=1 << 16)
def _normal(value: Scalar) -> Number:
    if value.type == "bool":
        return _normal_test(value)
    terms = _polynomial(value)
    return value if terms is None else _scalar(terms)


def normal(value: Number) -> Number:
    """`value` in normal form."""
    return _normal(value) if isinstance(value, Scalar) else value


def _normal_test(value: Scalar) -> Number:
    args = tuple(normal(arg) for arg in value.args)
    if value.op in _COMPARISONS and all(type_of(arg) == "int" for arg in args):
        known = decide(value.op, *args)
        if known is not None:
            return known
    return apply(value.op, *args)


def _polynomial(value: Number) -> _Polynomial | None:
    """The terms of an integer expression, None of any other or of one that is too long."""
    if not isinstance(value, Scalar):
        return ({(): int(value)} if value else {}) if type(value) in (int, bool) else None
    if value.type != "int":
        return None
    if value.op not in _RING:
        atom = _simple(value)
        return {(atom,): 1} if isinstance(atom, Scalar) and atom.op not in _RING else _polynomial(atom)
    parts = [_polynomial(arg) for arg in value.args]
    if None in parts:
        return None
    if value.op == "mul":
        return _times(*parts)
    if value.op == "neg":
        return {key: -count for key, count in parts[0].items()}
    total, sign = dict(parts[0]), -1 if value.op == "sub" else 1
    for key, count in parts[1].items():
        _put(total, key, total.get(key, 0) + sign * count)
    return total


def _times(first: _Polynomial, second: _Polynomial) -> _Polynomial | None:
    total: _Polynomial = {}
    for a, m in first.items():
        for b, n in second.items():
            key = tuple(sorted((*a, *b), key=str))
            _put(total, key, total.get(key, 0) + m * n)
    return total if len(total) <= _MOST_TERMS else None


def _put(terms: _Polynomial, key: _Monomial, count: int) -> None:
    if count:
        terms[key] = count
    else:
        terms.pop(key, None)


@functools.lru_cache(maxsize=1 << 16)  # which asks for those of what it is made of, again and again
def _simple(value: Scalar) -> Number:
    """An operation that is no polynomial, on operands in normal form, folded where it can be."""
    if value.op == "sym":
        return value
    args = tuple(normal(arg) for arg in value.args)
    if not any(isinstance(arg, Scalar) for arg in args):
        try:
            return apply(value.op, *args)
        except (ArithmeticError, ValueError):
            return value
    if value.op in ("floordiv", "mod") and type(args[1]) is int and args[1] > 0:
        whole, rest = _split(args[0], args[1])
        if value.op == "mod":  # (6*n + m + 5) % 3 is (m + 2) % 3
            return apply("mod", rest, args[1])
        parts = _divided(rest, args[1])
        return normal(apply("add", whole, parts)) if whole != 0 else parts
    if value.op in ("min", "max") and len(args) == 2:
        is_first = decide("le" if value.op == "min" else "ge", *args)
        if is_first is not None:
            return args[0] if is_first else args[1]
    return apply(value.op, *args)


def _split(value: Number, divisor: int) -> tuple[Number, Number]:
    """(a, b) with value == a * divisor + b, where a has every term that `divisor` divides, and b
    no constant that is not less than it."""
    terms = _polynomial(value) or {}
    whole = {
        key: n // divisor for key, n in terms.items() if n // divisor and (not key or not n % divisor)}
    rest = {
        key: n if key else n % divisor for key, n in terms.items() if n % divisor}
    return _scalar(whole), _scalar(rest)


def _divided(value: Number, divisor: int) -> Number:
    """value // divisor, of a quotient the quotient by both divisors."""
    if isinstance(value, Scalar) and value.op == "floordiv" and type(value.args[1]) is int:
        if value.args[1] > 0:
            return normal(apply("floordiv", value.args[0], value.args[1] * divisor))
    return apply("floordiv", value, divisor)


def _scalar(terms: _Polynomial) -> Number:
    """The expression of a polynomial: terms by degree and text, the constant last."""
    total: Number = 0
    for key in sorted(terms, key=lambda key: (-len(key), str(key))):
        term: Number = terms[key]
        for atom in reversed(key):
            term = apply("mul", atom, term)
        total = apply("add", total, term)
    return total


def divided(value: Dim, divisor: Dim) -> Dim | None:
    """The exact quotient of polynomials, None where there is none. A divisor with symbols must not
    be zero: who divides sees to that."""
    terms, by = _polynomial(value), _polynomial(divisor)
    if terms is None or by is None or len(by) != 1:
        return 1 if terms is not None and terms == by and terms else None
    ((key, count),) = by.items()
    made: _Polynomial = {}
    for monomial, number in terms.items():
        rest = list(monomial)
        for atom in key:
            if atom not in rest:
                return None
            rest.remove(atom)
        if number % count:
            return None
        made[tuple(rest)] = number // count
    return _scalar(made)


def decide(op: str, first: Number, second: Number) -> bool | None:
    """Whether the comparison holds for all sizes; None where that depends on them."""
    terms = _polynomial(apply("sub", first, second))
    if terms is None:
        return None
    low, high = _bounds(_without_common(terms))
    if low is None or high is None or low < 0 < high:
        by_rest = _bounds(_without_common(_by_remainders(terms)))
        low = max((n for n in (low, by_rest[0]) if n is not None), default=None)
        high = min((n for n in (high, by_rest[1]) if n is not None), default=None)
    if op in ("eq", "ne"):
        if low == high == 0:
            return op == "eq"
        is_apart = low is not None and low > 0 or high is not None and high < 0
        return op == "ne" if is_apart or _differs_by_remainder(terms) else None
    if op in ("lt", "ge"):
        answer = True if high is not None and high < 0 else False if low is not None and low >= 0 else None
        return answer if op == "lt" or answer is None else not answer
    answer = True if low is not None and low > 0 else False if high is not None and high <= 0 else None
    return answer if op == "gt" or answer is None else not answer


def bounds(value: Dim) -> tuple[int | None, int | None]:
    """The least and the greatest that `value` is whatever the sizes are, None where that is not known."""
    terms = _polynomial(value)
    return (None, None) if terms is None else _bounds(terms)


def _without_common(terms: _Polynomial) -> _Polynomial:
    """`terms`, of the same sign: without sizes that are factors of each. n*n - n is n - 1."""
    if len(terms) < 2 or () in terms:
        return terms
    first, *others = terms
    for atom in first:
        if (_atom_bounds(atom)[0] or 0) > 0 and all(atom in key for key in others):
            divided_terms = {}
            for key, count in terms.items():
                rest = list(key)
                rest.remove(atom)
                divided_terms[tuple(rest)] = count
            return _without_common(divided_terms)
    return terms


def _by_remainders(terms: _Polynomial) -> _Polynomial:
    """`terms` with n - n % 3 for n // 3 * 3, so that n - n // 3 * 3 has bounds."""
    total = dict(terms)
    for key, count in terms.items():
        atom = next((a for a in key if a.op == "floordiv" and type(a.args[1]) is int and a.args[1] > 0), None)
        if atom is None or count % atom.args[1]:
            continue
        rest = list(key)
        rest.remove(atom)
        whole = _polynomial(apply("sub", atom.args[0], apply("mod", *atom.args)))
        made = whole and _times(whole, {tuple(rest): count // atom.args[1]})
        if made:
            _put(total, key, 0)
            for other, more in made.items():
                _put(total, other, total.get(other, 0) + more)
    return total


def _bounds(terms: _Polynomial) -> tuple[int | None, int | None]:
    """The least and the greatest value of a polynomial, None where it has none that is known."""
    low: int | None = 0
    high: int | None = 0
    for key, count in terms.items():
        bottom, top = _product_bounds(key)
        if count < 0:
            bottom, top = top, bottom
        low = None if low is None or bottom is None else low + count * bottom
        high = None if high is None or top is None else high + count * top
    return low, high


def _product_bounds(atoms: Iterable[_Atom]) -> tuple[int | None, int | None]:
    bottom: int | None = 1
    top: int | None = 1
    for atom in atoms:
        low, high = _atom_bounds(atom)
        if low is None or low < 0:
            return None, None
        bottom *= low
        top = None if top is None or high is None else top * high
    return bottom, top


@functools.lru_cache(maxsize=1 << 16)
def _atom_bounds(atom: _Atom) -> tuple[int | None, int | None]:
    if atom.op == "sym":
        return (1, MOST) if is_size(atom.args[0]) else (None, None)
    if atom.op in ("floordiv", "mod") and type(atom.args[1]) is int and atom.args[1] > 0:
        if atom.op == "mod":
            return 0, atom.args[1] - 1
        low, high = bounds(atom.args[0])
        by = atom.args[1]
        return None if low is None else low // by, None if high is None else high // by
    if atom.op == "floordiv" and isinstance(atom.args[1], Scalar):
        (low, high), (by, _) = (bounds(arg) for arg in atom.args)
        if low is None or low < 0 or by is None or by < 1:
            return None, None
        return 0, None if high is None else high // by
    if atom.op in ("min", "max"):
        parts = [bounds(arg) for arg in atom.args]
        choose = min if atom.op == "min" else max
        lows, highs = ([p[k] for p in parts if p[k] is not None] for k in (0, 1))
        is_least = atom.op == "min"  # which has a bound where one of them has one above, and all have one below
        return (
            choose(lows) if len(lows) == len(parts) or lows and not is_least else None,
            choose(highs) if len(highs) == len(parts) or highs and is_least else None)
    return None, None


def _differs_by_remainder(terms: _Polynomial) -> bool:
    """2*n + 1 is never zero: the constant is no multiple of what divides all other terms."""
    counts = [abs(n) for key, n in terms.items() if key]
    if not counts:
        return False
    divisor = functools.reduce(_gcd, counts)
    return terms.get((), 0) % divisor != 0


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def solved(first: Dim, second: Dim) -> tuple[str, Dim] | None:
    """From `first == second`: a size, and the expression that it is. None where none stands alone."""
    terms = _polynomial(apply("sub", first, second))
    for key in sorted(terms or {}, key=str, reverse=True):
        if len(key) != 1 or key[0].op != "sym" or not is_size(key[0].args[0]):
            continue
        count, name = terms[key], key[0].args[0]
        rest = {k: n for k, n in terms.items() if k != key}
        if abs(count) == 1 and name not in (s for k in rest for atom in k for s in symbols(atom)):
            return name, _scalar({k: -count * n for k, n in rest.items()})
    return None


def substitute(value: Number, by: Mapping[str, Number]) -> Number:
    """`value` in normal form with `by[name]` for each symbol in it."""
    if not by or not isinstance(value, Scalar):
        return normal(value)
    return normal(_replaced(value, by))


def _replaced(value: Number, by: Mapping[str, Number]) -> Number:
    if not isinstance(value, Scalar):
        return value
    if value.op == "sym":
        return by.get(value.args[0], value)
    return apply(value.op, *(_replaced(arg, by) for arg in value.args))
