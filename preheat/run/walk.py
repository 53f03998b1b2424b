"""The walk: a call as a chain of nodes, each a native entry, with the outside between them.

    def f(self, x):                     entry   y = x * 2; self.n += 1    -> host print(y) -> point 1
        y = x * 2                       point 1 bool(y.sum() > 0)         -> host bool     -> point 2
        self.n += 1                     point 2, answer True              -> return y + 1
        print(y)                        point 2, answer False             -> return y - 1
        return y + 1 if y.sum() > 0 else y - 1

A `Place` is a point with the nodes known to begin there. `follow` calls a node, makes the host call
that its end asks for, and goes on at the next place with the slots and the answer, until a node
returns. Where no bound node fits, the owner binds, captures or interprets on.

Guarantees: what happened before a place is never undone or repeated. An exception of a host call is
an answer, too (`callers.Raised`): nodes that begin in its handler guard its type; where there is
none it arises in the user's own frames, which the owner rebuilds. Holds no lock and no state of its own, so
threads and recursions may be anywhere in one chain. Values die as they would in eager: nothing of a
node that has been left is kept.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from preheat.base.callers import Raised, caller
from preheat.base.names import find
from preheat.bridge import checkpoints as _named  # noqa: F401 - host calls name a function of it
from preheat.ir.artifact import Artifact
from preheat.ir.plan import Image
from preheat.ir.points import PointKey, constants, point_key, renumbered
from preheat.ir.trace import Break, Host, Named, Point, Return
from preheat.run.recipes import Rebuild, compile_recipe
from preheat.run.replays import Graphs
from preheat.run.variant import MISS, Variant


class Finished:
    """The result of a call that was interpreted from somewhere on: the walk is over."""

    __slots__ = ("result",)

    def __init__(self, result: Any):
        self.result = result


class Place:
    """A point of the program, or its entry (point None), with the nodes that begin there.

    objects    what `Live(k)` of the point's snapshot means
    why        the break that the call goes on from here after
    key        of the point; facts: of an entry, what tells kinds of calls apart
    bound      nodes that can be called, the newest first
    unbound    nodes that are checked against memory the next time the place is reached
    by_answer  the bound node whose guards demand this answer of the host call: a guess
    attempts   captures from here that gave up or raised; breaks: why
    uncaught   classes of exceptions of the host call before it that ended in one of the call
    moving     paths of the numbers that have changed from call to call: runtime numbers from now on
    is_closed  no more nodes are made here: what fits none runs as plain Python
    is_full    closed by a limit
    is_plain   of an entry: its calls run as plain Python from now on
    """

    __slots__ = (
        "point", "objects", "why", "key", "facts", "bound", "unbound", "by_answer", "attempts",
        "breaks", "uncaught", "moving", "is_closed", "is_full", "is_plain", "is_told", "_snapshot",
    )

    def __init__(
        self, point: Point | None = None, objects: tuple = (), key: PointKey = (), facts: Any = None,
    ):
        self.point, self.objects, self.key, self.facts = point, objects, key, facts
        self.why: Break | None = None
        self.bound: tuple[Bound, ...] = ()
        self.unbound: tuple[Unbound, ...] = ()
        self.by_answer: dict[Any, Bound] = {}
        self.attempts = 0
        self.breaks: tuple[Break, ...] = ()
        self.uncaught: frozenset[type] = frozenset()
        self.moving: frozenset[str] = frozenset()
        self.is_closed = self.is_full = self.is_plain = self.is_told = False
        self._snapshot: Rebuild | None = None

    @property
    def nodes(self) -> int:
        """How many nodes begin here."""
        return len(self.bound) + len(self.unbound)

    def open(self, values: Sequence) -> Any:
        """What the point's snapshot gives for its slots: the frames of the program, to go on from."""
        if self._snapshot is None:
            point = self.point
            self._snapshot = compile_recipe(point.snapshot, point.slots, self.objects)
        return self._snapshot.function(*values)

    def add(self, bound: "Bound") -> None:
        if bound in self.bound:
            return
        self.bound = (bound, *self.bound)
        for answer in bound.answers:
            self.by_answer = {**self.by_answer, answer: bound}

    def drop(self, node: "Unbound") -> None:
        self.unbound = tuple(other for other in self.unbound if other is not node)


class Unbound:
    """A node that is compiled, or read from the store, but not bound to objects yet.

    next      where its end leads; None: it returns
    why       it could not be bound at last, so many times (refusals)
    moved     what was another number then than it was captured for
    is_hopeless  nor ever will be in this process
    is_stored    another process can use it, too
    """

    __slots__ = (
        "artifact", "objects", "next", "why", "moved", "refusals", "is_hopeless", "is_stored")

    def __init__(
        self, artifact: Artifact, objects: tuple, following: Place | None, is_stored: bool = False,
    ):
        self.artifact, self.objects, self.next = artifact, objects, following
        self.is_stored = is_stored
        self.why, self.refusals, self.is_hopeless = "", 0, False
        self.moved: frozenset[str] = frozenset()

    def bind(
        self, target: Any, args: Sequence, kwargs: dict, runtime: Callable[[], Image | None],
        plain: Callable | None, specialise: Callable | None = None, teach: Callable | None = None,
        graphs: Graphs | None = None, backend: str | Callable = "preheat",
    ) -> "Bound":
        """The node for calls like this one; `plain` runs those that met a fault, `teach` learns
        its backward, `graphs` may be recorded of it, `backend` compiles it if it is a callable.
        Raises CannotBind."""
        variant = Variant.bind(
            self.artifact, target, tuple(args), kwargs, self.objects, runtime, plain=plain,
            specialise=specialise, teach=teach, graphs=graphs, backend=backend)
        return Bound(variant, self.next)


class Bound:
    """A node that can be called: `entry(*slots)` gives MISS, or Finished, or what its end says.

    call      makes the host call of its end, as from the user's line
    answers   the answers of the host call before it that its guards name
    """

    __slots__ = ("entry", "variant", "next", "is_host", "call", "answers")

    def __init__(self, variant: Variant, place: Place | None):
        (node,) = variant.artifact.trace.nodes
        self.variant, self.entry = variant, variant.entry
        self.next, self.is_host = place, isinstance(node.end, Host)
        self.call = caller(*node.end.where) if self.is_host else None
        self.answers = tuple(_answers(variant.artifact))


class Onward:
    """Leads to a place that a capture has reached: the walk goes on there."""

    __slots__ = ("next",)
    is_host = False

    def __init__(self, place: Place | None):
        self.next = place


DONE = Onward(None)


class Owner(Protocol):
    """What the walk asks for when it cannot go on by itself. `kind` is the entry of the call.

    told   is told the place behind each host call, before it is made; None: nobody wants to know
    """

    told: Callable[[Place], None] | None

    def missed(self, kind: Place, place: Place, values: Sequence) -> tuple[Bound | Onward, Any]:
        """A node that was called at `place` and what it gave; no bound node there fitted. The
        list `values` may be emptied."""

    def failed(self, kind: Place, place: Place, values: list) -> tuple[Bound | Onward, Any]:
        """As `missed`, where the last of `values` is what a host call raised."""


def follow(owner: Owner, kind: Place, begun: list) -> Any:
    """The result of the call that has begun: `begun` is a node and what it has just given, and is
    emptied, so that nobody else holds these values."""
    bound, made = begun
    begun.clear()
    function = args = kwargs = None
    while True:
        if type(made) is Finished:
            return made.result
        place = bound.next
        if place is None:
            return made
        if bound.is_host:
            function, args, kwargs, *values = made
            made = None
            if owner.told is not None:
                owner.told(place)
            try:
                values.append(bound.call(function, args, kwargs))
            except BaseException as raised:  # it lives as long as the program's handlers have it
                values.append(Raised(raised.with_traceback(_behind_the_call(raised.__traceback__))))
            function = args = kwargs = None
            bound = place.by_answer.get(values[-1]) if type(values[-1]) in _PLAIN else None
        else:
            values, bound = list(made), None
        guess, made = bound, MISS if bound is None else bound.entry(*values)
        if made is MISS:
            for bound in place.bound:
                if bound is not guess and (made := bound.entry(*values)) is not MISS:
                    break
            else:
                is_raised = type(values[-1]) is Raised if values else False
                bound, made = (owner.failed if is_raised else owner.missed)(kind, place, values)
        values = None  # an exception among them has frames that lead to this one


def _behind_the_call(entry: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback of an exception without the entries of `follow` and of the caller's line."""
    for _ in ("follow", "caller"):
        entry = entry.tb_next if entry is not None else None
    return entry


# Answers that a place can look up: hashing them runs no code of the user.
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))


def _answers(artifact: Artifact) -> Iterator[Any]:
    """The values that the node's guards demand of its last slot."""
    trace = artifact.trace
    last = trace.signature.positional - 1
    for guard in trace.nodes[0].guards:
        if guard.kind == "value" and guard.source >= 0 and type(guard.expected) in _PLAIN:
            source = trace.sources[guard.source]
            if source.kind == "arg" and source.key == last:
                yield guard.expected


# ---------------------------------------------------------------------------- points
class Points:
    """Every place of one compiled object that is not an entry, found by its point's content."""

    def __init__(self) -> None:
        self._places: dict[PointKey, Place] = {}

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    def at(self, point: Point, objects: Sequence = ()) -> Place:
        """The place of `point`, whose `Live(k)` is `objects[k]`; made when it is new."""
        point, objects = renumbered(point, objects)
        key = point_key(point, objects)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(point, objects, key)
        return place

    def get(self, key: PointKey) -> Place | None:
        """The place with this key, if it is known."""
        return self._places.get(key)


def why_not_opened(point: Point) -> str:
    """The name that the point's frames need and this process does not have, or ""."""
    for name in constants(point, Named):
        try:
            find(name.module, name.qualname)
        except LookupError as why:
            if not name.module.startswith(_CAPTURE):
                return str(why)
    return ""


_CAPTURE = "preheat.capture."  # is there when a point is opened, and only then


def is_host(artifact: Artifact) -> bool:
    """Whether the artifact's node ends with a host call."""
    return isinstance(artifact.trace.nodes[0].end, Host)


def leads_to(artifact: Artifact) -> Point | None:
    """The point at the end of the artifact's node; None when it returns."""
    end = artifact.trace.nodes[0].end
    return None if isinstance(end, Return) else end.point
