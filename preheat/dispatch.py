"""Compiled: the callable that a user holds. Finds the variant that fits a call, or makes one.

    compiled(x)   ->  the front variant's native entry: guards, kernels, result
                  ->  MISS: the other variants, each a native refusal or the result; then the cache
                      on disk, then capture and compile
                  ->  what cannot be compiled runs as plain Python, and the report says why

A call that meets the outside on its way (prints, writes, looks at a value) is a chain of nodes
(`run/walk.py`): the same three steps are taken at each place where a node begins, with the state
that the program has there.

Guarantees: a call runs the user's program exactly once, whatever happens on the way. Threads may
call at once; a second thread that misses while a first one compiles runs plain Python. The lock is
held while a node is bound or captured, never while nodes run. A call from inside its own capture,
under a trace function, a profiler, a foreign dispatch mode or a functorch level is plain Python.
"""

import dataclasses
import functools
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from preheat.autotune import bench_of, search_settings
from preheat.base.callers import leaves_us, warn
from preheat.base.collector import paused_collector
from preheat.base.errors import InternalError, RecompileError, UserError, is_strict
from preheat.base.events import emit, timed, wants
from preheat.base.numbers import copied
from preheat.base.pins import Pin
from preheat.base.reasons import explain
from preheat.base.stance import present
from preheat.bridge.ambient import AMBIENT, steps_aside
from preheat.bridge.distributed import training_settings
from preheat.bridge.tensors import call_facts, module_facts, without_sizes
from preheat.ir.artifact import Artifact, from_bytes, packed
from preheat.ir.bench import Bench
from preheat.ir.graph import Graph
from preheat.ir.pack import NOTHING, Ahead
from preheat.ir.plan import Image, Plan
from preheat.ir.points import is_portable, point_key
from preheat.ir.text_trace import EVERY_SIZE, has_lists, is_axis_path
from preheat.ir.trace import Break, Captured, Outcome, Point, break_of
from preheat.run.breaks import Breaks, raised
from preheat.run.fronts import Fronts
from preheat.run.known import opened_by
from preheat.run.limits import Miss, Misses, counted, miss_at
from preheat.run.load import machine_name
from preheat.run.recipes import has_effects
from preheat.run.replays import Graphs, trim
from preheat.run.shims import verify
from preheat.run.variant import MISS, CannotBind, Variant, moved_for
from preheat.run.walk import (
    DONE, Bound, Finished, Onward, Place, Points, Unbound, follow, is_host, leads_to, why_not_opened)
from preheat.runtime import runtime_image
from preheat.store.calls import call_hint, call_key
from preheat.store.disk import Disk, default_folder
from preheat.store.key import Key

# Kinds of call are remembered by their facts; new ones beyond this many run eager.
MOST_KINDS = 1000
# Ambient rows that tell kinds of calls apart.
_FACTS = ("grad_enabled", "inference_mode", "autocast_cpu")
# A first call often sets things up (fills a cache) and then breaks where later ones do not.
CAPTURE_ATTEMPTS = 2
RAISED_AN_ATTEMPT = 8  # calls that raised: they say little about the next one
# A node whose guards memory never meets again is forgotten after so many checks.
_MOST_REFUSALS = 16


class Compiled:
    """`target` compiled; called like it. Made by `preheat.compile`.

    fullgraph   a call that is not one graph raises UserError at its first break
    backend     "preheat", "eager" (captured graphs run op by op) or a callable (`run/outside.py`)
    options     a full mapping, as `base.options` checked it
    """

    def __init__(
        self, target: Callable, *, fullgraph: bool = False, dynamic: bool | None = None,
        backend: str | Callable = "preheat", mode: str | None = None, options: Mapping[str, Any] | None = None,
        name: str = "",
    ):
        self.target = target
        self.fullgraph, self.dynamic, self.backend, self.mode = fullgraph, dynamic, backend, mode
        self.options = dict(options or {})
        self.name = name or getattr(target, "__qualname__", type(target).__qualname__)
        self.graphs = Graphs.asked_for(self.name, mode, self.options)
        self.variants: tuple[Variant, ...] = ()
        self.ways = 0  # nodes that were ever captured or found on disk: ways through the program
        self._fronts = Fronts()
        self._kinds: dict[Any, Place] = {}  # the entry, by the facts of the call
        self._other_kinds = Place()
        self._other_kinds.is_closed = True
        self._points = Points()
        self._breaks = Breaks(self.name, fullgraph)
        self._misses = Misses()
        self._lock = threading.Lock()
        self._hosted: tuple[tuple[str, str], ...] = ()  # checkpoints that are no regions, see capture/regions
        self.told: Callable[[Place], None] | None = None  # see walk.Owner
        self.also_moving: Callable = lambda args, kwargs: frozenset()  # what else is known to move, at the entry
        self.sealed = ""  # the stance that is taken for good, whatever that of the process
        present.follow(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._fronts.first(*args, **kwargs)
        if result is MISS:
            result = self._fronts.other(args, kwargs)
            if result is MISS:
                return self._find(args, kwargs)
        return result

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Why calls ran eager, each reason once."""
        return tuple(self._breaks)

    @property
    def state(self) -> tuple[tuple[Place, ...], Mapping[str, Pin]]:
        """Where nodes begin, and what captures have looked at of numbers, by guard."""
        return (*self._kinds.values(), *self._points), self._misses.pins

    def reset(self) -> None:
        """Forgets every variant and every reason to run eager; the cache on disk stays."""
        with self._lock:
            self.variants, self._kinds, self._points = (), {}, Points()
            for known in (self._fronts, self._breaks, self._misses):
                known.clear()
        trim(self.graphs)

    def stance_changed(self) -> None:
        """The next call asks for the stance."""
        self._fronts.hide()

    # ------------------------------------------------------------------ a call that the front missed
    def _find(self, args: tuple, kwargs: dict) -> Any:
        if present.name == "force_eager" or os.environ.get("PREHEAT_DISABLE") == "1" or steps_aside():
            return self.target(*args, **kwargs)
        kind = self._kind(args, kwargs)
        for bound in self._entry_nodes(kind):
            begun = [bound, bound.entry(*args, **kwargs)]
            if begun[1] is not MISS:
                kind.add(bound)
                break
        else:
            begun = [*self.missed(kind, kind, args, kwargs)]
            bound = begun[0]
        # of a call that no node began, the next one is likely of this kind: it need not ask another's
        self._put(kind, bound if isinstance(bound, Bound) else None)
        return follow(self, kind, begun)

    def _kind(self, args: tuple, kwargs: dict) -> Place:
        """The entry for calls with these facts; one for all beyond MOST_KINDS."""
        facts = self._facts(args, kwargs)
        kind = self._kinds.get(facts)
        if kind is None and len(self._kinds) < MOST_KINDS:
            kind = self._kinds[facts] = Place(facts=facts)
            kind.is_closed = self._breaks.is_hopeless(facts[:2])
        return kind if kind is not None else self._other_kinds

    def _entry_nodes(self, kind: Place) -> tuple[Bound, ...]:
        """The bound nodes that a call of `kind` may begin with: its own, then those of others."""
        if kind.is_plain or kind.is_closed:
            return () if kind.is_plain else kind.bound
        others = (bound for other in self._kinds.values() for bound in other.bound)
        return tuple(dict.fromkeys((*kind.bound, *others)))

    def missed(
        self, kind: Place, place: Place, args: Sequence, kwargs: Mapping = types.MappingProxyType({}),
    ) -> tuple[Bound | Onward, Any]:
        """What is done at `place`, in a call of `kind`, when no bound node fits. See walk.Owner."""
        is_open = not kind.is_plain and (place.unbound or not place.is_closed)
        if place.point is not None and steps_aside():  # since the call began
            is_open = False
        if is_open and self._lock.acquire(blocking=False):
            try:
                bound = self._bind_unbound(place, args, kwargs)
                if bound is None and self._may_grow(kind, place, args, kwargs):
                    bound = self._bind_stored(place, args, kwargs)
                    if bound is None and self._may_compile(kind, place, args, kwargs):
                        return self._capture(kind, place, args, kwargs)
            finally:
                self._lock.release()
            if bound is not None and (made := bound.entry(*args, **kwargs)) is not MISS:
                return bound, made
        # closed, or another thread compiles, or this is inside our own capture
        kind.is_plain = kind.is_plain or place.is_full and place is not kind
        return DONE, self._rest(place, args, kwargs)

    def failed(self, kind: Place, place: Place, values: list) -> tuple[Bound | Onward, Any]:
        """As `missed`, where the host call before `place` raised. What ends in an exception is tried
        once: that a call has failed says nothing about the next one."""
        error = values[-1].error
        if not isinstance(error, Exception) or type(error) in place.uncaught:
            return DONE, self._rest(place, values, {})
        attempts = place.attempts
        try:
            return self.missed(kind, place, values)
        except Exception:
            place.uncaught |= {type(error)}
            place.attempts = place.attempts if place.is_closed else attempts
            raise

    def _plain(self, place: Place, *args: Any, **kwargs: Any) -> Finished:
        """What a node that begins at `place` does where it met a fault."""
        return self._rest(place, list(args), kwargs)

    def _rest(self, place: Place, args: Sequence, kwargs: Mapping) -> Finished:
        """The rest of a call from `place` as plain Python. Empties `args`, the slots of a point."""
        if place.point is None:
            self._breaks.refuse(place.breaks)
            return Finished(self.target(*args, **kwargs))
        from preheat.compiler import interpret_call  # lazy: see _capture

        emit("replay", name=self.name, interpreted=True)
        return Finished(interpret_call(place.point, place.open(args), args))

    # ------------------------------------------------------------------ nodes of this process
    def _capture(
        self, kind: Place, place: Place, args: Sequence, kwargs: Mapping,
    ) -> tuple[Bound | Onward, Any]:
        """Runs the call on for real from `place`, and keeps what it did."""
        # the one lazy import: a warm process has no compiler
        with paused_collector(is_lasting=True):
            from preheat.compiler import Request, compile_call, resume_call

        may_wait = self.told is None and not wants("stage")  # of who asks for code it is made
        request = Request(
            self.name, self.backend, self._limits(), self._is_known(place),
            self._moving(kind, place, args, kwargs), self._bench(), may_wait, self._meanwhile)
        if place.point is None:
            made = compile_call(self.target, args, kwargs, request)
        else:
            emit("replay", name=self.name, resumed=True)
            values = [copied(a) if type(a) in (int, float, str) else a for a in args]
            args.clear()
            made = resume_call(place.point, place.open(values), values, request)
        outcome = made.outcome
        self._misses.learn(outcome.counts.get("numbers", ()), opened_by(outcome.nodes))
        if any(row.reason == "marked_size" for row in outcome.breaks):
            (row,) = outcome.breaks
            where = f"{row.file}:{row.line}: " if row.file else ""
            raise UserError(
                f"{where}{self.name} {explain(row.reason, row.detail)[0]}\n"
                f"    {row.code}\n{row.hint}")
        if self.fullgraph and outcome.breaks:
            self._count_attempt(place, outcome)  # raises: no node before the break may run alone
        with paused_collector(is_lasting=True):
            last = self._keep(place, outcome.nodes, made.artifacts)
        if made.fault is not None:
            self._report_fault(last, made.fault)
        elif outcome.breaks or outcome.error is not None:
            self._count_attempt(last, outcome)
        elif place.point is None and len(outcome.nodes) == 1 and last is place:
            self._bind_new(place, args, kwargs)
        if outcome.error is not None:
            leaves_us(outcome.error)
            raise outcome.error
        if outcome.goes_on is None:
            return DONE, Finished(outcome.result)
        point, values = outcome.goes_on
        outcome.goes_on, handed = None, [values]
        del values  # the frames of an exception among them may lead to this one
        return Onward(self._points.at(point, outcome.nodes[-1].objects)), handed.pop()

    def _moving(self, kind: Place, place: Place, args: Sequence, kwargs: Mapping) -> frozenset[str]:
        """The numbers at `place` that are no longer what a node there was captured for."""
        known = place.bound or (self._entry_nodes(kind) if place is kind else ())
        there = self._kinds.values() if place is kind else (place,)
        waiting = (node.moved for owner in there for node in owner.unbound)
        place.moving |= moved_for([bound.variant for bound in known], waiting, args, kwargs)
        if place is kind:
            place.moving |= self.also_moving(args, kwargs)
        if self.dynamic is False:
            return frozenset(path for path in place.moving if not is_axis_path(path))
        return place.moving | {EVERY_SIZE} if self.dynamic else place.moving

    def _keep(
        self, place: Place, nodes: Sequence[Captured], artifacts: Sequence[Artifact],
    ) -> Place:
        """Puts the nodes of one capture where they begin. The place that they lead to, or `place`
        when they lead to the end of the call."""
        begin: Place | None = place
        for captured, artifact in zip(nodes, artifacts):
            point = leads_to(artifact)
            following = self._points.at(point, captured.objects) if point is not None else None
            is_stored = not captured.why_not_stored and self._disk is not None and all(
                map(is_portable, (begin.point, point)))
            self.ways += 1
            node = Unbound(artifact, captured.objects, following, is_stored)
            begin.unbound = (node, *begin.unbound)
            if captured.why is not None:
                following.why = captured.why
                self._breaks.goes_on(captured.why)
            if captured.why_not_stored:
                emit("cache", hit=None, name=self.name, why=f"not stored: {captured.why_not_stored}")
            elif is_stored:
                self._stored(begin)(artifact)
            begin = following
        return begin if begin is not None else place

    def _bind_new(self, place: Place, args: Sequence, kwargs: Mapping) -> None:
        """Binds the node that a whole capture has just made, unless the call changed what it
        read."""
        node = place.unbound[0]
        if node.next is not None or has_effects(node.artifact.trace.nodes[0].end.recipe):
            return
        if self._bind(place, node, args, kwargs) is not None:
            place.drop(node)
        else:
            # what the call had read is not as it was: the call, or another thread, changed it
            place.attempts += 1
            if place.attempts >= CAPTURE_ATTEMPTS:
                self._close(place, break_of("own_write", node.why))

    def _limits(self) -> dict[str, Any]:
        """What bounds one capture; with fullgraph the first break ends it."""
        nodes = self.options.get("node_limit", 64) - self._count_nodes()
        return {**self.options, "max_nodes": nodes + 1, "is_whole": self.fullgraph, "hosted": self._hosted,
                "has_regions": self.backend == "preheat"}

    def _count_attempt(self, place: Place, outcome: Outcome) -> None:
        hosted = outcome.counts.get("hosted", self._hosted)
        if hosted == self._hosted:  # else the next capture has more host calls
            place.attempts += self._cost(outcome)
        self._hosted, place.breaks = hosted, outcome.breaks
        place.is_closed = place.attempts >= CAPTURE_ATTEMPTS
        if place.point is None:
            self._breaks.count(place.facts[:2], outcome.breaks)
        if outcome.error is None:
            self._breaks.add(outcome.breaks)
        elif place.is_closed:
            self._close(place, *outcome.breaks, raised(outcome.error))

    def _cost(self, outcome: Outcome) -> float:
        """Of how many attempts. An error is the program's own: where one graph was asked for it closes nothing."""
        return 1 if outcome.error is None else 0 if self.fullgraph else 1 / RAISED_AN_ATTEMPT

    def _is_known(self, start: Place) -> Callable[[Any, tuple], bool]:
        """Where a capture stops: at places with nodes, at those that it has made itself, and when
        it has made as many nodes as may be."""
        seen = {start.key}
        limit = self.options.get("node_limit", 64) - self._count_nodes()

        def is_known(point: Point, objects: tuple) -> bool:
            key = point_key(point, objects)
            place = self._points.get(key)
            if key in seen or len(seen) > limit:
                return True
            seen.add(key)
            return place is not None and bool(place.bound or place.unbound or place.is_closed)

        return is_known

    # ------------------------------------------------------------------ binding
    def _bind_unbound(self, place: Place, args: Sequence, kwargs: Mapping) -> Bound | None:
        """The first node that waits at `place` and whose guards hold now, bound. At the entry,
        nodes of other kinds of call may fit as well: a list may have grown."""
        kinds = self._kinds.values() if place.point is None else ()
        for owner in dict.fromkeys((place, *kinds)):
            for node in owner.unbound:
                bound = self._bind(place, node, args, kwargs)
                node.refusals += owner is place
                if bound is not None or node.is_hopeless or node.refusals >= _MOST_REFUSALS:
                    owner.drop(node)
                if bound is not None:
                    return bound
        return None

    def _bind_stored(self, place: Place, args: Sequence, kwargs: Mapping) -> Bound | None:
        """The first node on disk that begins at `place` and whose guards hold now, bound."""
        if self._disk is None or wants("stage"):  # who wants to see the stages wants them run
            return None
        if place.point is not None and not is_portable(place.point):
            return None
        rejected = ""
        for found in self._disk.read(self._key, *self._hints(place)):
            with (
                paused_collector(is_lasting=True),
                timed("cache", hit=None, name=self.name) as event,
            ):
                try:
                    artifact = from_bytes(found.payload)
                    if self.fullgraph and is_host(artifact):
                        continue  # kept by a call that may leave the graph
                    bound, rejected = self._bind_read(place, artifact, args, kwargs)
                except ValueError as why:
                    bound, rejected = None, str(why)
                if bound is not None:
                    event.set(hit=True, why="", bytes=len(found.payload))
                    return bound
                event.set(why=f"entry {found.path.name}: {rejected}")
        if rejected:
            emit("cache", hit=False, name=self.name, why=f"no entry fits; the last one: {rejected}")
        return None

    def _bind_read(
        self, place: Place, artifact: Artifact, args: Sequence, kwargs: Mapping,
    ) -> tuple[Bound | None, str]:
        """The node of an artifact of another process, or why it cannot be bound here."""
        point = leads_to(artifact)
        if point is not None and (why := why_not_opened(point)):
            return None, why  # nobody could go on where it ends
        following = self._points.at(point) if point is not None else None
        self.ways += 1
        node = Unbound(artifact, (), following, is_stored=True)
        return self._bind(place, node, args, kwargs), node.why

    def _bind(
        self, place: Place, node: Unbound, args: Sequence, kwargs: Mapping,
    ) -> Bound | None:
        is_whole = place.point is None and node.next is None
        plain = None if is_whole else functools.partial(self._plain, place)
        try:
            specialise = self._specialise if self.backend == "preheat" else None
            bound = node.bind(self.target, args, dict(kwargs), self._runtime, plain, specialise,
                              self._teach, self.graphs, self.backend)
        except CannotBind as why:
            node.why, node.is_hopeless, node.moved = str(why), why.is_final, why.moved
            place.moving |= why.moved
            return None
        place.add(bound)
        self.variants = (*self.variants, bound.variant)
        bound.variant.may_compile = lambda: not self.sealed
        bound.variant.keep = self._stored(place) if node.is_stored else None
        bound.variant.announce = functools.partial(self._announced, place, bound)
        self._put(place, bound)
        return bound

    def _teach(self, artifact: Artifact) -> Any:
        """The lesson of a differentiable artifact."""
        from preheat.compiler import lesson_of  # lazy: see _capture

        settings = training_settings(self.options, self.target)
        return lesson_of(artifact.graph(), artifact.training, **settings, bench=self._bench(), meanwhile=self._meanwhile)

    def _specialise(self, graph: Graph) -> tuple[Plan, Image] | None:
        """The plan and the code of `graph`, whose sizes have come again and again."""
        if self.sealed:
            return None
        with paused_collector(is_lasting=True):
            from preheat.compiler import compile_sizes  # lazy: see _capture

        return compile_sizes(graph, self.name, self._bench())

    def _put(self, kind: Place, bound: Bound | None) -> None:
        """`bound`, if it begins calls, is tried first from now on: its entry, where it is all of them."""
        if bound is None:
            self._fronts.put(None, None)
        elif kind.point is None:
            front = bound.entry if bound.next is None else functools.partial(self._begin, kind, bound)
            self._fronts.put(bound, front, bound.variant.is_native)

    def _begin(self, kind: Place, bound: Bound, *args: Any, **kwargs: Any) -> Any:
        begun = [bound, MISS if kind.is_plain else bound.entry(*args, **kwargs)]
        return MISS if begun[1] is MISS else follow(self, kind, begun)

    def _announced(self, place: Place, bound: Bound, entry: Callable) -> None:
        bound.entry = entry
        self._put(place, bound)

    def _stored(self, place: Place) -> Callable[..., Any]:
        """Keeps on disk a node that begins at `place`."""
        def write(made: Artifact, ahead: Ahead = NOTHING) -> Any:
            one_size, any_size, any_length = self._hints(place)
            is_template = made.plan is not None and made.plan.symbols
            hint = any_length if has_lists(place.moving) else any_size if is_template else one_size
            name, payload = packed(made, ahead)
            return self._disk.write(self._key, hint, payload, name)

        return write

    def _hints(self, place: Place) -> tuple[str, str, str]:
        """Under which the store keeps the nodes of `place`: those for these sizes, for any, for any lists."""
        if place.point is not None:
            return (place.key[0][:16],) * 3
        facts, module = place.facts, module_facts(self.target)
        return tuple(call_hint((part, module)) for part in (facts, without_sizes(facts), facts[:2]))

    # ------------------------------------------------------------------ limits and faults
    def _may_grow(self, kind: Place, place: Place, args: Sequence, kwargs: Mapping) -> bool:
        """Whether another node may be made at `place`; says so when it is the first that may not,
        and which guard failed."""
        if place.is_closed:
            return False
        miss = self._miss(kind, place, args, kwargs)
        self._misses.add(place, miss)
        count = self._count_variants() if place is kind else place.nodes
        if count >= self.options.get("recompile_limit", 8):
            count = counted([*self._kinds.values()] if place is kind else [place])
        for reason, limit, reached in (
            ("recompile_limit", self.options.get("recompile_limit", 8), count),
            ("limit_nodes", self.options.get("node_limit", 64), self._count_nodes()),
        ):
            if reached >= limit:
                place.is_full = True
                self._report_limit(place, reason, limit)
                return False
        if miss.text and present.name == "default":
            emit("guard_failed", name=self.name, why=miss.text + self._misses.where(miss),
                 hint=self._misses.hint(miss, self.dynamic))
        return True

    def _miss(self, kind: Place, place: Place, args: Sequence, kwargs: Mapping) -> Miss:
        """The guard that keeps the call from a node known at `place`."""
        known = self._entry_nodes(kind) if place is kind else place.bound
        newest = sorted(known, key=lambda bound: self.variants.index(bound.variant), reverse=True)
        return miss_at(place, newest, args, kwargs)

    def _may_compile(self, kind: Place, place: Place, args: Sequence, kwargs: Mapping) -> bool:
        """Whether the stance lets a node be made. Raises RecompileError if it wants that."""
        if not self.sealed and present.name != "fail_on_recompile":
            return present.name == "default"
        failure = self._miss(kind, place, args, kwargs).text
        cause = f"because of {failure}" if failure else "since nothing is compiled for it yet"
        if self.sealed:
            return self._refuse(kind, cause)
        raise RecompileError(
            f"{self.name} has to be compiled {cause}, and the stance is 'fail_on_recompile': call it "
            f"so once under preheat.stance('default') before, or keep what changes the same")

    def _refuse(self, kind: Place, cause: str) -> bool:
        """A sealed function is called in a way that it has not been prepared for."""
        why = f"is sealed, and would have to be compiled {cause}"
        if self.sealed == "fail_on_recompile":
            raise RecompileError(f"{self.name} {why}: call it so in preheat.warmup before preheat.seal")
        if not kind.is_told:
            kind.is_told = True
            self._warn(f"{why}: it runs eager")
        emit("fallback", what=self.name, why=f"it {why}")
        return False

    def _count_variants(self) -> int:
        return len({one for kind in self._kinds.values() for one in (*kind.bound, *kind.unbound)})

    def _count_nodes(self) -> int:
        return self._count_variants() + sum(place.nodes for place in self._points)

    def _report_limit(self, place: Place, reason: str, limit: int) -> None:
        what = "variants" if reason == "recompile_limit" else "nodes"
        detail, hint = self._misses.told(place, limit, what, self.dynamic)
        row = break_of(reason, detail, place.why)
        row = dataclasses.replace(row, hint=hint) if reason == "recompile_limit" else row
        if row.reason in {known.reason for known in self._breaks}:
            place.is_closed, place.breaks = True, (row,)
            return
        where = f"{row.file}:{row.line}: " if row.file else ""
        self._warn(f"{where}{row.detail}; {row.hint}")
        self._close(place, row)

    def _report_fault(self, place: Place, fault: Exception) -> None:
        if is_strict():
            raise InternalError(f"{self.name} could not be compiled: {fault}") from fault
        self._warn(
            f"runs eager because of a fault of the compiler ({type(fault).__name__}: {fault}); "
            "PREHEAT_STRICT=1 shows where. Please report it.")
        self._close(place, break_of("internal_error", f"{type(fault).__name__}: {fault}"))

    def _warn(self, text: str) -> None:
        warn(f"{self.name}: {text}")

    # ------------------------------------------------------------------ small parts
    def _close(self, place: Place, *breaks: Break) -> None:
        """No more nodes are made at `place`."""
        place.is_closed, place.breaks = True, breaks
        self._breaks.add(breaks)

    def tell_all(self) -> None:
        """From now on each host call of a walk is reported, not only those of captures."""
        self.told = lambda place: None if place.why is None else self._breaks.goes_on(place.why)

    def _facts(self, args: tuple, kwargs: dict) -> tuple:
        """What tells kinds of calls apart: types and shapes of the arguments, training, modes."""
        modes = tuple(AMBIENT[name]() for name in _FACTS)
        return modes, getattr(self.target, "training", None), tuple(call_facts((args, kwargs)))

    @functools.cached_property
    def _disk(self) -> Disk | None:
        return Disk(default_folder()) if self.options.get("cache", True) else None

    def _runtime(self) -> Image | None:
        return runtime_image(self._disk) if self.backend == "preheat" else None

    def _meanwhile(self, plan: Plan, device: str) -> None:
        """What the call needs as well as the kernels of `plan`, which are being compiled."""
        verify(plan, device)
        self._runtime()

    def _bench(self) -> Bench | None:
        return bench_of(self.name, self.mode, self.backend, self.options, self._disk, self._runtime)

    @functools.cached_property
    def _key(self) -> Key:
        random = self.options.get("random", "eager")
        settings = {"backend": self.backend, "dynamic": self.dynamic, "random": random}
        settings |= search_settings(self.mode, self.backend, self.options)
        settings |= training_settings(self.options, self.target)
        return call_key(self.target, settings, machine_name())
