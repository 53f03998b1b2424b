"""The guard checker in plain Python: the oracle of the native one, and its fallback.

    checker = Checker(trace, model, objects)
    checker.check((x,), {})    ->  None, the guards hold
                               ->  Failure: "self.layers[3].weight: f32[8] expected, found f16[8]"
    checker.resolve((x,), {})  ->  the object of every source, or the Failure

Sources are resolved in order and each guard is judged as soon as all that it speaks of is there, so
a `type` guard protects the steps that go through its object. Values are compared by type and bits:
True is not 1, -0.0 is not 0.0, NaN is the same NaN. Nothing of the user runs, but the metaclass
that an `isinstance` guard names.
"""

import functools
import operator
import struct
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.digest import code_digest
from preheat.base.errors import Unsupported
from preheat.base.identity import identity
from preheat.base.names import mro_of, raw_attribute
from preheat.bridge import interpret
from preheat.bridge.ambient import AMBIENT
from preheat.bridge.tensors import extent, has_facts, is_plain, tensor_facts, unusual_keys
from preheat.ir.scalar import Scalar, symbols
from preheat.ir.text_trace import show_constant, source_path
from preheat.ir.trace import At, Constant, Guard, Named, TensorFacts, Trace
from preheat.ir.types import ScalarType
from preheat.run import resolve as steps
from preheat.run.resolve import Call, NotThere, constant, resolve_source, type_name
from preheat.run.sweeps import SWEEPS


@dataclass(frozen=True)
class Failure:
    """A guard that does not hold, or a source that is not there (then `guard` is None).

    `path` is the source as user code; `expected` and `found` are text.
    """

    guard: Guard | None
    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        if self.guard is None:
            return f"{self.path}: {self.found}"
        return f"{self.path}: expected {self.expected}, found {self.found}"


class Checker:
    """The guards of node `node` of `trace`, bound to a target and the trace's live objects.

    only      other guards over the same sources: just these are judged, just their sources resolved

    Raises NotThere when a name that a guard expects does not resolve in this process, Unsupported
    for a guard of an unknown kind or one that needs symbolic sizes.
    """

    def __init__(
        self, trace: Trace, target: Any, objects: Sequence[Any] = (), node: int = 0,
        only: Sequence[Guard] | None = None,
    ):
        self.trace, self.target, self.objects = trace, target, tuple(objects)
        self.guards = trace.nodes[node].guards if only is None else tuple(only)
        self.by_kind = _by_kind(self.guards, _claims(self.guards, self.objects))
        self._ambient = [
            row for kind in _WITHOUT_SOURCE for row in self.by_kind.get(kind, ()) if row[1].last < 0
        ]
        self._only = None if only is None else tuple(sorted(_needed(trace, self.guards)))

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Failure | None:
        """None if every guard holds in a call with these arguments, else the first failure."""
        found = self.resolve(args, kwargs)
        return found if isinstance(found, Failure) else None

    def resolve(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | Failure:
        """The object of every source, all guards checked; or the first guard that fails.

        Sources that `only` does not need are None.
        """
        failure = self._check_signature(args, kwargs) or self.check_ambient()
        if failure is not None:
            return failure
        call = Call(self.target, args, kwargs, self.objects)
        if self._only is None:
            everything = self._everything(call)
            if everything is not None and self._all_hold(everything):
                return everything
        return self._in_order(call)

    def _everything(self, call: Call) -> list[Any] | None:
        """The object of every source, no guard checked; None if one is not there, or is asked for
        by a call, which its guards have to allow first."""
        found: list[Any] = []
        try:
            for source in self.trace.sources:
                if source.kind == "result":
                    return None
                found.append(resolve_source(source, call, found))
        except NotThere:
            return None
        return found

    def _all_hold(self, found: Sequence[Any]) -> bool:
        """Whether every guard holds: kind by kind, most kinds in one sweep."""
        for kind in sorted(self.by_kind, key=_LATE.__contains__):
            rows, sweep = self.by_kind[kind], SWEEPS.get(kind)
            if kind == "ambient" or sweep is not None and sweep(rows, found):
                continue
            if any(claim.wrong(guard, found) is not None for guard, claim in rows):
                return False
        return True

    def _in_order(self, call: Call) -> list[Any] | Failure:
        """As `resolve`: each guard as soon as what it speaks of is there, so the first that fails
        is the one to report."""
        sources, due = self.trace.sources, self._due
        found: list[Any] = [None] * len(sources)
        for number in range(len(sources)) if self._only is None else self._only:
            try:
                found[number] = resolve_source(sources[number], call, found)
            except NotThere as why:
                return Failure(None, source_path(self.trace, number), "", str(why))
            for guard, claim in due[number]:
                wrong = claim.wrong(guard, found)
                if wrong is not None:
                    return self._failure(guard, wrong)
        return found

    @functools.cached_property
    def by_source(self) -> dict[int, list[Guard]]:
        """The guards on each source; those on none are under -1."""
        guards: dict[int, list[Guard]] = {}
        for guard in self.guards:
            guards.setdefault(guard.source, []).append(guard)
        return guards

    @functools.cached_property
    def _due(self) -> list[list]:
        """For each source the guards, with their claims, to judge once it is resolved."""
        due: list[list[tuple[Guard, Claim]]] = [[] for _ in self.trace.sources]
        for kind, rows in self.by_kind.items():
            for guard, claim in rows if kind != "ambient" else ():
                last = max(guard.source, claim.last)
                if last >= 0:
                    due[last].append((guard, claim))
        return due

    def _check_signature(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Failure | None:
        """None if the call has the trace's shape; keywords in its order, as `**kwargs` shows it."""
        wanted = self.trace.signature
        if len(args) == wanted.positional and tuple(kwargs) == wanted.keywords:
            return None
        return Failure(
            None, "the call", "",
            f"{len(args)} positional arguments and keywords {tuple(kwargs)}, "
            f"captured with {wanted.positional} and {wanted.keywords}",
        )

    def check_ambient(self) -> Failure | None:
        """None if every guard that speaks of no source holds now."""
        for guard, claim in self._ambient:
            wrong = claim.wrong(guard, ())
            if wrong is not None:
                return self._failure(guard, wrong)
        return None

    def judge(self, guard: Guard, found: Sequence[Any]) -> Failure | None:
        """None if `guard` holds for the resolved objects `found`."""
        wrong = _claim(guard.kind, guard.expected, self.objects).wrong(guard, found)
        return None if wrong is None else self._failure(guard, wrong)

    def _failure(self, guard: Guard, wrong: str) -> Failure:
        return Failure(guard, _subject(self.trace, guard), _expectation(self.trace, guard), wrong)


@dataclass(frozen=True, slots=True)
class Claim:
    """What guards of one kind and one expected constant have in common.

    test      a row of `CLAIMS`
    expected  the constant made an object
    reads     makes it from the resolved objects on each check, when it names sources (`At`)
    last      the largest source that it names, -1 if none
    """

    test: Callable[[Any, Any, Sequence[Any]], str | None]
    expected: Any
    reads: Callable[[Sequence[Any]], Any] | None
    last: int

    def wrong(self, guard: Guard, found: Sequence[Any]) -> str | None:
        """None if `guard`, one of these, holds for the resolved objects, else what was found."""
        value = found[guard.source] if guard.source >= 0 else None
        expected = self.expected if self.reads is None else self.reads(found)
        try:
            return self.test(value, expected, found)
        except NotThere as why:
            return str(why)

    def object(self, found: Sequence[Any]) -> Any:
        """The expected constant as an object, where the sources resolved to `found`."""
        return self.expected if self.reads is None else self.reads(found)


def _claims(guards: Sequence[Guard], objects: Sequence[Any]) -> Iterator[Claim]:
    """The claim of each guard; made once for all that share kind and expected object.

    A decoded trace holds equal constants as one object: 6187 guards of a BERT have 577 claims.
    """
    # the guards keep what is expected alive, so an id stands for one object
    keys = list(zip(map(_KIND, guards), map(identity, map(_EXPECTED, guards))))
    known = {
        key: _claim(guard.kind, guard.expected, objects)
        for key, guard in dict(zip(keys, guards)).items()
    }
    return map(known.__getitem__, keys)


_KIND, _EXPECTED = operator.attrgetter("kind"), operator.attrgetter("expected")


def _claim(kind: str, expected: Any, objects: Sequence[Any]) -> Claim:
    if kind not in CLAIMS:
        raise Unsupported("guard_kind", f"a guard of kind {kind!r}")
    if isinstance(expected, TensorFacts):
        return Claim(CLAIMS[kind], expected, None, -1)
    if kind == "test" and all(type(i.type) is ScalarType for i in expected[0].inputs):
        return Claim(_test_of_numbers(expected), expected, None, max(expected[1], default=-1))
    if expected.__class__ is Named:
        return Claim(CLAIMS[kind], constant(expected, objects), None, -1)
    last = max(mentioned(kind, expected), default=-1)
    if any(True for _ in references(expected)):
        reads = functools.partial(constant, expected, objects)
        return Claim(CLAIMS[kind], None, reads, last)
    return Claim(CLAIMS[kind], constant(expected, objects), None, last)


_WITHOUT_SOURCE = ("ambient", "alias", "distinct", "test")
# Kinds that count on what others prove of the same objects, or that may run code.
_LATE = frozenset(("alias", "distinct", "test", "isinstance", "issubclass"))


def _by_kind(
    guards: Sequence[Guard], claims: Iterator[Claim],
) -> dict[str, list[tuple[Guard, Claim]]]:
    """The guards of each kind with their claims; "ambient" is there and comes first."""
    kinds: dict[str, list] = {"ambient": []}
    for row in zip(guards, claims):
        kind = row[0].kind
        if kind in kinds:
            kinds[kind].append(row)
        else:
            kinds[kind] = [row]
    return kinds


def _needed(trace: Trace, guards) -> frozenset[int]:
    """The sources that guards speak of, and those on the way to them."""
    needed: set[int] = set()
    todo = [s for guard in guards for s in (guard.source, *mentioned(guard.kind, guard.expected))]
    while todo:
        number = todo.pop()
        if number >= 0 and number not in needed:
            needed.add(number)
            todo.append(trace.sources[number].parent)
            todo.extend(references(trace.sources[number].key))
    return frozenset(needed)


def mentioned(kind: str, expected: Any) -> Iterator[int]:
    """The sources that a guard speaks of besides its own."""
    yield from references(expected)
    if kind == "alias":
        for group in expected:
            yield from group
    elif kind == "distinct":
        yield from expected
    elif kind == "test":
        yield from expected[1]


def references(value: Constant | Scalar) -> Iterator[int]:
    """The sources that a constant names, or that the symbols of a Scalar stand for."""
    if value.__class__ is At:
        yield value.index
    elif value.__class__ is tuple:
        for part in value:
            yield from references(part)
    elif value.__class__ is Scalar:
        for name in symbols(value):
            yield int(name[1:])


# ---------------------------------------------------------------------------- text
def _subject(trace: Trace, guard: Guard) -> str:
    if guard.kind == "ambient":
        return f"ambient {guard.expected[0]}"
    if guard.kind == "alias":
        return "memory of the inputs"
    if guard.kind == "test":
        return "a branch on " + ", ".join(source_path(trace, s) for s in guard.expected[1])
    if guard.kind == "distinct":
        return "objects that were compared"
    return source_path(trace, guard.source)


def _expectation(trace: Trace, guard: Guard) -> str:
    expected = guard.expected
    if guard.kind in _EXPECTATIONS:
        return _EXPECTATIONS[guard.kind](trace, expected)
    if isinstance(expected, TensorFacts):
        return _facts_text(expected)
    return show_constant(trace, expected)


_EXPECTATIONS: Mapping[str, Callable[[Trace, Any], str]] = types.MappingProxyType({
    "type": lambda trace, e: f"a {show_constant(trace, e)}",
    "isnot": lambda trace, e: f"another object than {show_constant(trace, e)}",
    "code": lambda trace, e: f"code {e[:8]}",
    "absent": lambda trace, e: f"no key {show_constant(trace, e)}",
    "contains": lambda trace, e: f"{_a(e[1])} member {show_constant(trace, e[0])}",
    "keys": lambda trace, e: f"keys {show_constant(trace, e)}",
    "len": lambda trace, e: f"length {e}",
    "set": lambda trace, e: f"elements {show_constant(trace, e)}",
    "noattr": lambda trace, e: f"no attribute {e!r}",
    "class": lambda trace, e: f"class attribute {e[0]} to be {show_constant(trace, e[1])}",
    "mro": lambda trace, e: f"MRO {show_constant(trace, e)}",
    "isinstance": lambda trace, e: f"{_a(e[1])}n instance of {show_constant(trace, e[0])}",
    "issubclass": lambda trace, e: f"{_a(e[1])} subclass of {show_constant(trace, e[0])}",
    "test": lambda trace, e: str(e[2]),
    "distinct": lambda trace, e: "different objects at " + _paths(trace, e),
    "ambient": lambda trace, e: repr(e[1]),
    "alias": lambda trace, e: "overlap inside groups only: "
    + "; ".join(_paths(trace, group) for group in e),
})


def _a(is_so: bool) -> str:
    """The article of a claim that something is so, or is not."""
    return "a" if is_so else "not a"


def _paths(trace: Trace, sources: Sequence[int]) -> str:
    return ", ".join(source_path(trace, source) for source in sources)


def _facts_text(facts: TensorFacts) -> str:
    marks = {
        "requires_grad": facts.requires_grad, "inference": facts.is_view_of_inference,
        "conjugate": facts.is_conj, "negative": facts.is_neg,
        facts.layout: facts.layout != "strided", facts.dispatch_keys: bool(facts.dispatch_keys),
    }
    return " ".join([str(facts.type), *(mark for mark, is_set in marks.items() if is_set)])


def _text(value: Any) -> str:
    """`value` as text, without running the user's `__repr__`."""
    kind = type(value)
    if kind in _PRINTABLE:
        return repr(value)[:80]
    if issubclass(kind, type):
        return f"class {type_name(value)}"
    if kind in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType):
        return f"{kind.__name__} {value.__name__}"
    return f"a {type_name(kind)}"


_PRINTABLE = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis)))


# ---------------------------------------------------------------------------- claims
def same(value: Any, expected: Any) -> bool:
    """Same type and equal; floats by their bits, tuples item by item, other objects by identity."""
    kind = type(expected)
    if type(value) is not kind:
        return False
    if kind in _EXACT:
        return value == expected
    if kind is float:
        return value is expected or struct.pack("<d", value) == struct.pack("<d", expected)
    if kind is complex:
        return same(value.real, expected.real) and same(value.imag, expected.imag)
    if kind is tuple:
        return len(value) == len(expected) and all(map(same, value, expected))
    return value is expected


_EXACT = frozenset((bool, int, str, bytes))

# A claim takes (object, expected, all resolved objects); it gives None if it holds, else what was
# found, as text.


def _is_type(value: Any, expected: Any, found) -> str | None:
    return None if type(value) is expected else f"a {type_name(type(value))}"


def _is(value: Any, expected: Any, found) -> str | None:
    return None if value is expected else _other(value, expected)


def _is_not(value: Any, expected: Any, found) -> str | None:
    return "the same object" if value is expected else None


def _equals(value: Any, expected: Any, found) -> str | None:
    return None if same(value, expected) else _other(value, expected)


def _other(value: Any, expected: Any) -> str:
    text = _text(value)
    return f"another one ({text})" if text == _text(expected) and text.startswith("a ") else text


def _tensor(value: Any, expected: TensorFacts, found) -> str | None:
    if not issubclass(type(value), torch.Tensor):
        return _text(value)
    if not is_plain(value):
        return f"a {type_name(type(value))} of another class or layout, or wrapped"
    if not has_facts(value, expected):
        return _facts_text(tensor_facts(value))
    keys = unusual_keys(value)
    return None if keys == expected.dispatch_keys else f"dispatch keys {keys or '(ordinary)'}"


def _code(value: Any, expected: str, found) -> str | None:
    if type(value) is not types.FunctionType:
        return _text(value)
    digest = code_digest(value.__code__)
    return None if digest == expected else f"code {digest[:8]}"


def _absent(value: Any, expected: Any, found) -> str | None:
    return f"{_text(expected)} in it" if _has(value, expected) else None


def _contains(value: Any, expected: tuple, found) -> str | None:
    has = _has(value, expected[0])
    return None if has is expected[1] else ("it is in" if has else "it is not in")


def _has(value: Any, key: Any) -> bool:
    if type(value) is dict:
        return key in value
    for base, contains in _MEMBERSHIP:
        if issubclass(type(value), base):
            return contains(value, key)
    raise NotThere(f"a {type_name(type(value))}")


_MEMBERSHIP: tuple[tuple[type, Callable[[Any, Any], bool]], ...] = tuple(
    (base, base.__contains__) for base in (dict, set, frozenset, types.MappingProxyType)
)


def _keys(value: Any, expected: tuple, found) -> str | None:
    now = tuple(steps.keys(value))
    return None if same(now, expected) else f"keys ({', '.join(map(_text, now))})"


def _len(value: Any, expected: int, found) -> str | None:
    now = steps.length(value)
    return None if now == expected else f"length {now}"


def _set(value: Any, expected: tuple, found) -> str | None:
    if not issubclass(type(value), (set, frozenset)):
        return _text(value)
    iterate = set.__iter__ if issubclass(type(value), set) else frozenset.__iter__
    now = list(iterate(value))
    is_same = len(now) == len(expected) and all(any(same(a, b) for a in now) for b in expected)
    return None if is_same else f"{len(now)} elements: {', '.join(map(_text, now))}"


def _no_attribute(value: Any, expected: str, found) -> str | None:
    descriptor = raw_attribute(type(value), expected, _ABSENT)
    if descriptor is not _ABSENT:
        if type(descriptor) not in steps.C_DESCRIPTORS:
            return "one that is no C-level attribute"
        try:
            descriptor.__get__(value, type(value))
        except AttributeError:  # a slot without a value
            return None
        return "one"
    if issubclass(type(value), type) and raw_attribute(value, expected, _ABSENT) is not _ABSENT:
        return "one in the class"
    return None


def _class(value: Any, expected: tuple, found) -> str | None:
    name, wanted = expected
    if not issubclass(type(value), type):
        return _text(value)
    now = raw_attribute(value, name, _ABSENT)
    if now is _ABSENT or wanted == "<absent>":
        if now is _ABSENT and wanted == "<absent>":
            return None
        return "none" if now is _ABSENT else _text(now)
    return None if same(now, wanted) else _other(now, wanted)


def _mro(value: Any, expected: tuple, found) -> str | None:
    if not issubclass(type(value), type):
        return _text(value)
    now = mro_of(value)
    is_same = len(now) == len(expected) and all(a is b for a, b in zip(now, expected))
    return None if is_same else f"({', '.join(map(_text, now))})"


def _isinstance(value: Any, expected: tuple, found) -> str | None:
    now = isinstance(value, expected[0])
    return None if now is expected[1] else f"isinstance(...) is {now}"


def _issubclass(value: Any, expected: tuple, found) -> str | None:
    now = issubclass(value, expected[0])
    return None if now is expected[1] else f"issubclass(...) is {now}"


def _test(value: Any, expected: tuple, found) -> str | None:
    graph, sources, answer = expected
    with torch.no_grad():
        (now,) = interpret.run(graph, [found[source] for source in sources])
    return None if bool(now) is answer else str(not answer)


def _test_of_numbers(expected: tuple) -> Callable[[Any, Any, Sequence[Any]], str | None]:
    """`_test`, where numbers alone decide: its last answers are kept."""
    sources = expected[1]

    @functools.lru_cache(maxsize=1024)
    def wrong(*numbers: int) -> str | None:
        return _test(None, expected, dict(zip(sources, numbers)))

    return lambda value, _, found: wrong(*[found[source] for source in sources])


def _distinct(value: Any, expected: tuple, found) -> str | None:
    objects = {identity(found[source]) for source in expected}
    return None if len(objects) == len(expected) else "two of them are one object"


def _ambient(value: Any, expected: tuple, found) -> str | None:
    name, wanted = expected
    if name not in AMBIENT:
        return "a state that this version does not know"
    now = AMBIENT[name]()
    return None if same(now, wanted) else repr(now)


def _alias(value: Any, expected: tuple, found) -> str | None:
    """One sweep over the extents in order of their first byte: n log n for n tensors."""
    group_of = {source: number for number, group in enumerate(expected) for source in group}
    spans = sorted((*extent(found[source]), source) for source in group_of)
    reach, widest = -1, -1  # the furthest byte so far, and whose it is
    joined: set[int] = set()
    for start, end, source in spans:
        if start == end:
            continue
        if start < reach:
            if group_of[source] != group_of[widest]:
                return f"sources {widest} and {source} share memory"
            joined.update((source, widest))
        if end > reach:
            reach, widest = end, source
    shared = (source for group in expected if len(group) > 1 for source in group)
    apart = [source for source in shared if source not in joined and _bytes(found[source])]
    return f"source {apart[0]} shares no memory" if apart else None


def _bytes(tensor: torch.Tensor) -> int:
    start, end = extent(tensor)
    return end - start


_ABSENT = object()

CLAIMS: Mapping[str, Callable[[Any, Any, Sequence[Any]], str | None]] = types.MappingProxyType({
    "type": _is_type, "is": _is, "isnot": _is_not, "value": _equals, "tensor": _tensor,
    "code": _code, "absent": _absent, "contains": _contains, "keys": _keys, "len": _len,
    "set": _set,
    "noattr": _no_attribute, "class": _class, "mro": _mro, "isinstance": _isinstance,
    "issubclass": _issubclass, "distinct": _distinct, "test": _test,
    "ambient": _ambient, "alias": _alias,
})

