"""Bound guards: the rows that the native checker compares on every call of one variant.

    found = checker.resolve(args, kwargs)         the Python checker accepted the call
    rows = bind_rows(checker, found, arguments)   "the memory that decided it is as it was"
    rows.address, rows.count                      for preheat_check
    rows.about(7)                                 what row 7 speaks of: "self.layers[3].weight"

Equal words imply that every guard still holds. A word that differs is no verdict, unless the row
says so (`ir/rows.VERDICT`): the caller resolves and checks again in Python, and binds new rows if
the guards hold. Objects reached then may be others than before (a parameter replaced by its equal),
so whoever remembers objects takes them anew, too.

Guards and sources that no row can express are judged in Python on every call (`rows.in_python`,
empty for ordinary programs): then the last row never passes, so that every call reaches the slow
path.
"""

import ctypes
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.base.names import instance_dict
from preheat.ir.rows import ROW
from preheat.ir.text_trace import show_guard, source_path
from preheat.ir.trace import Guard, Live, Trace
from preheat.run.arithmetic import add_words
from preheat.run.check import Checker, Failure, mentioned, references
from preheat.run.claims import add_claims
from preheat.run.items import Reads, reads_of
from preheat.run.layout import Layout, layout, word
from preheat.run.places import Places
from preheat.run.resolve import Call, NotThere, carriers, moving_numbers, replaced, resolve_source
from preheat.run.steps import add_all
from preheat.run.table import Table
from preheat.run.tensor_layout import TensorLayout, tensor_layout


@dataclass(frozen=True)
class Rows:
    """Rows in memory. Keep the object alive as long as its address may be read.

    owners      for each row the guard it belongs to, or the number of the source
    in_python   guards that no row expresses; `check_python` judges them
    holds       objects that must not die while the rows are compared
    versions    the dict whose version a row compares, by row
    items       the dict of whose items a row speaks, by row
    held        the object of each source that is among `holds`, else None
    ambient     ids of the dicts that ambient rows lean on
    moved       sources that rows follow from a pointer loaded anew on each call
    loose       sources that lead from an argument to one object which is compared by its address
    """

    buffer: Any
    count: int
    owners: tuple[Guard | int, ...]
    in_python: tuple[Guard, ...]
    holds: tuple[Any, ...]
    versions: Mapping[int, dict]
    items: Mapping[int, dict]
    held: tuple[Any, ...]
    ambient: frozenset[int]
    moved: frozenset[int]
    loose: frozenset[int]
    checker: Checker
    slow: Checker | None
    replaced: frozenset[int]  # sources of objects that each call replaces
    words: Mapping[int, ctypes.c_uint64]  # by source: where each check leaves the word of a number

    @property
    def address(self) -> int:
        return ctypes.addressof(self.buffer)

    def is_python(self, row: int) -> bool:
        """Whether `row` is the one that never passes: all native guards held."""
        return self.slow is not None and row == self.count - 1

    def native(self) -> "Rows":
        """The same rows without the one that never passes, once Python has judged its guards."""
        return replace(self, count=self.count - 1, slow=None)

    def check_python(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Failure | None:
        """Judges the guards that have no rows, once the rows passed (see `is_python`)."""
        return None if self.slow is None else self.slow.check(args, kwargs)

    def is_verdict(self, failure: Failure) -> bool:
        """Whether what `check_python` found is a guard of the trace that does not hold, not merely
        an object that is another one than the executable remembers."""
        expected = None if failure.guard is None else failure.guard.expected
        return type(expected) is not Live or expected.index < len(self.checker.objects)

    def about(self, row: int) -> str:
        """What `row` compares, as text for reports."""
        owner, trace = self.owners[row], self.checker.trace
        return source_path(trace, owner) if isinstance(owner, int) else show_guard(trace, owner)

    def restless(self, row: int) -> int:
        """The loose source that `row` speaks of, or of what lies in it; -1 if there is none.

        When it is another object on each call, Python should judge what the program reads of it:
        to bind rows to each of them costs more.
        """
        owner = self.owners[row]
        number = owner if isinstance(owner, int) else getattr(owner, "source", -1)
        while number >= 0 and number not in self.loose:
            number = self.checker.trace.sources[number].parent
        return number

    def repair(self, row: int) -> bool:
        """True if `row` differed for nothing: a dict changed, and all that was read of it did not.

        Then the row expects the new version, and the native check can be tried again.
        """
        space = self.versions.get(row)
        if space is None or not self._reads_the_same(space):
            return False
        ctypes.c_uint64.from_buffer(self.buffer, row * ROW.size + _EXPECTED).value = word(
            id(space) + layout().dict_version
        )
        return True

    def refutes(self, row: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if a guard on what `row` speaks of does not hold: a verdict without checking all others.

        False is no verdict. Only guards that speak of one source are asked, along its own path.
        """
        space = self.versions.get(row, self.items.get(row))
        if space is not None and self._has_refuted(space):
            return True
        owner, sources = self.owners[row], self.checker.trace.sources
        number = owner if isinstance(owner, int) else getattr(owner, "source", -1)
        if number < 0 or number not in self._alone:
            return False
        way = [number]
        while sources[way[-1]].parent >= 0:
            way.append(sources[way[-1]].parent)
        call = Call(self.checker.target, args, kwargs, self.checker.objects)
        found: list[Any] = [None] * (number + 1)
        try:
            for step in reversed(way):
                if any(True for _ in references(sources[step].key)):
                    return False
                found[step] = resolve_source(sources[step], call, found)
        except NotThere:
            return True
        return any(self.checker.judge(guard, found) is not None for guard in self._alone[number])

    def _has_refuted(self, space: dict) -> bool:
        """Whether an item of dict `space` is another one now, and a guard on it does not hold."""
        for key, number, held in self._reads[identity(space)].items:
            now = dict.get(space, key, _MISSING)
            if now is held or number in self.moved and now is not _MISSING:
                continue
            found = [None] * number + [now]
            guards = self._alone.get(number, ())
            if now is _MISSING or any(self.checker.judge(g, found) is not None for g in guards):
                return True
        return False

    @functools.cached_property
    def _alone(self) -> dict[int, list[Guard]]:
        """By source: the guards on it that mention no other source."""
        alone: dict[int, list[Guard]] = {}
        for guard in self.checker.guards:
            if guard.source >= 0 and not any(True for _ in mentioned(guard.kind, guard.expected)):
                alone.setdefault(guard.source, []).append(guard)
        return alone

    def _reads_the_same(self, space: dict) -> bool:
        """Whether every source read from dict `space`, and every guard on it, is as it was."""
        reads = self._reads[identity(space)]
        get = dict.get
        for key, number, held in reads.items:
            now = get(space, key, _MISSING)
            if now is not held and not self._may_move(number, held, now):
                return False
        for key in reads.absent:
            if get(space, key, _MISSING) is not _MISSING:
                return False
        if not (reads.sources or reads.guards or identity(space) in self.ambient):
            return True
        call = Call(self.checker.target, (), {}, self.checker.objects)
        for number in reads.sources:
            try:
                now = resolve_source(self.checker.trace.sources[number], call, self.held)
            except NotThere:
                return False
            held = self.held[number]
            if now is not held and not self._may_move(number, held, now):
                return False
        others = (n for guard in reads.guards for n in mentioned(guard.kind, guard.expected))
        if any(self.held[number] is None for number in others):
            return False  # it speaks of an argument, which only a full check knows
        if identity(space) in self.ambient and self.checker.check_ambient() is not None:
            return False
        return all(self.checker.judge(guard, self.held) is None for guard in reads.guards)

    def _may_move(self, number: int, held: Any, now: Any) -> bool:
        """Whether source `number` is a number of which only the class is fixed."""
        return number in self._moving and type(now) is type(held)

    @functools.cached_property
    def _moving(self) -> frozenset[int]:
        return moving_numbers(self.checker.trace)

    @functools.cached_property
    def _reads(self) -> Mapping[int, Reads]:
        """What is read of each dict in `versions`, by id. Of what each call replaces, Python judges
        every guard, or rows do."""
        spaces = {identity(space) for space in (*self.versions.values(), *self.items.values())}
        checker = self.checker
        return reads_of(checker.trace, checker.guards, self.held, spaces, self.replaced)


def bind_rows(
    checker: Checker, found: Sequence[Any], arguments: Sequence[Any], *,
    without: tuple[str, ...] = (), fleeting: frozenset[int] = frozenset(),
    changing: Iterable[dict] = (), unlisted: Iterable[dict] = (),
    is_judged: bool = False,
) -> Rows:
    """Rows for the guards of `checker`, which held for the resolved objects `found`.

    arguments   the call's objects as the native entry gets them: positional, then keyword ones
    without     what shall count as not native: fields of Layout, "tensors", guard kinds, names of
                ambient rows
    fleeting    sources in arguments that Python shall follow
    changing    dicts that change from call to call; unlisted: those that shall have no rows for
                their items
    is_judged   Python goes on with every call, even if no guard is left to it
    """
    trace = checker.trace
    where: Layout = layout(without=tuple(sorted({*without} & set(Layout.__dataclass_fields__))))
    tensors: TensorLayout | None = None if "tensors" in without else tensor_layout()
    table = Table(arguments)
    keywords = {
        name: trace.signature.positional + i for i, name in enumerate(trace.signature.keywords)
    }
    others, numbers = replaced(trace, found), moving_numbers(trace)
    numbers |= carriers(trace, found, numbers)
    spaces = {identity(space) for space in changing} | _changed(trace, found, numbers | others)
    spaces -= {identity(space) for space in unlisted}
    places = Places(
        table, where, tensors, trace.sources, found, keywords, numbers, others,
        lasting_parts(checker.target), fleeting, checker.by_source,
        reads_of(trace, checker.guards, found, spaces))
    add_all(places)
    slow = add_claims(places, checker.by_kind, found, without)
    words = {} if "words" in without else add_words(places, trace.nodes[0].inputs)
    objects = list(checker.objects)
    for number in _remembered(trace, places, others):
        slow.append(Guard(number, "is", Live(len(objects))))
        objects.append(found[number])
    slow_checker = None
    if slow or is_judged:
        slow_checker = Checker(trace, checker.target, objects, only=slow)
        table.owner = slow[0] if slow else 0
        table.never()
    packed = table.pack()
    buffer = ctypes.create_string_buffer(packed, max(len(packed), 1))
    return Rows(
        buffer, len(table.rows), tuple(table.owners), tuple(slow), tuple(table.holds),
        table.versions, table.items, places.held(), frozenset(table.ambient),
        frozenset(n for n, place in enumerate(places.where) if place is not None and place.base),
        _loose(trace, places), checker, slow_checker, others, words,
    )


def _changed(trace: Trace, found: Sequence[Any], moving: frozenset[int]) -> set[int]:
    """The ids of the dicts that the sources `moving` are items of: each call changes them."""
    parents = (trace.sources[number].parent for number in moving)
    spaces = (found[parent] for parent in parents if parent >= 0)
    return {identity(space) for space in spaces if isinstance(space, dict)}


def _loose(trace: Trace, places: Places) -> frozenset[int]:
    """Of arguments and the data in them: objects at fixed places that are not held, strings, and
    dicts of attributes that are empty."""
    found, inside = [], set()
    for number, place in enumerate(places.where):
        if trace.sources[number].parent in inside:
            inside.add(number)
        elif place is not None and _root_kind(trace, number) in ("arg", "kwarg"):
            is_text = type(places.found[number]) in (str, bytes)
            if not places.is_held[number] if place.is_fixed else is_text:
                found.append(number)
                inside.add(number)
    return frozenset(found) | places.bare_ones


def lasting_parts(target: Any) -> frozenset[int]:
    """The ids of the compiled module, or of the one whose method is compiled, and of all modules in
    it: to hold them keeps nothing alive that would not be."""
    rest, found = [target.__self__ if type(target) is types.MethodType else target], set()
    while rest:
        module = rest.pop()
        if isinstance(module, torch.nn.Module) and identity(module) not in found:
            found.add(identity(module))
            rest += (instance_dict(module) or {}).get("_modules", {}).values()
    return frozenset(found)


_EXPECTED = 8  # byte of a row
_MISSING = object()


def _remembered(trace: Trace, places: Places, replaced: frozenset[int]) -> list[int]:
    """Sources without a place whose objects an executable remembers.

    Those are inputs of the body and results that do not come from arguments.
    """
    (node,) = trace.nodes
    steps = node.end.recipe.steps
    wanted = {*node.inputs, *(step.args[0] for step in steps if step.kind == "source")}
    lost = (number for number in sorted(wanted) if places.where[number] is None)
    moving = moving_numbers(trace) | replaced  # these are read anew on each call
    return [
        number for number in lost
        if number not in moving and _root_kind(trace, number) not in ("arg", "kwarg", "number")
    ]


def _root_kind(trace: Trace, number: int) -> str:
    source = trace.sources[number]
    while source.parent >= 0:
        source = trace.sources[source.parent]
    return source.kind
