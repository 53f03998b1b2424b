"""Compiled: the callable that a user holds. Finds the variant that fits a call, or makes one.

    compiled(x)   ->  the front variant's native entry: guards, kernels, result
                  ->  MISS: the other variants, then the cache on disk, then capture and compile
                  ->  what cannot be compiled runs as plain Python, and the report says why

Guarantees: a call runs the user's program exactly once, whatever happens on the way. Threads may
call at once; a second thread that misses while a first one compiles runs eager. A call from inside
its own capture, under a trace function, a profiler, a foreign dispatch mode or a functorch level is
plain Python.
"""

import collections
import dataclasses
import functools
import os
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from preheat.base.collector import paused_collector
from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError, UserError, is_strict
from preheat.base.events import emit, timed, wants
from preheat.base.reasons import explain, whole_message
from preheat.bridge.ambient import AMBIENT, steps_aside
from preheat.bridge.tensors import call_facts, module_facts
from preheat.ir.artifact import Artifact, from_bytes, to_bytes
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image
from preheat.ir.trace import Break, Outcome
from preheat.run.load import machine_name
from preheat.run.variant import MISS, CannotBind, Variant
from preheat.store.calls import call_hint, call_key, machine_key
from preheat.store.disk import Disk, default_folder
from preheat.store.key import Key

# Kinds of call are remembered by their facts; new ones beyond this many run eager.
MOST_KINDS = 1000
# Ambient rows that tell kinds of calls apart.
_FACTS = ("grad_enabled", "inference_mode", "autocast_cpu")
# A first call often sets things up (fills a cache, installs hooks) and then breaks where later ones
# do not.
CAPTURE_ATTEMPTS = 2
# Captures that broke at one place of the program, over all kinds of call; then new kinds do not try.
BREAKS_AT_ONE_PLACE = 6


@dataclass
class Kind:
    """What is known of calls with equal facts: their variants, or why they run eager."""

    variants: tuple[Variant, ...] = ()
    attempts: int = 0  # captures that broke or raised
    breaks: tuple[Break, ...] = ()
    is_eager: bool = False


class Compiled:
    """`target` compiled; called like it. Made by `preheat.compile`.

    fullgraph   a call that cannot be captured whole raises UserError after it ran
    backend     "preheat" or "eager" (captured graphs run op by op)
    options     a full mapping, as `base.options` checked it
    """

    def __init__(
        self, target: Callable, *, fullgraph: bool = False, dynamic: bool | None = None,
        backend: str = "preheat", mode: str | None = None, options: Mapping[str, Any] | None = None,
        name: str = "",
    ):
        self.target = target
        self.fullgraph, self.dynamic, self.backend, self.mode = fullgraph, dynamic, backend, mode
        self.options = dict(options or {})
        self.name = name or getattr(target, "__qualname__", type(target).__qualname__)
        self._variants: tuple[Variant, ...] = ()
        self._front: Callable = _miss
        self._kinds: dict[Any, Kind] = {}
        self._breaks: dict[Break, None] = {}  # in the order they happened
        self._broke_at: collections.Counter = collections.Counter()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._front(*args, **kwargs)
        if result is MISS:
            return self._find(args, kwargs)
        return result

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Why calls ran eager, each reason once."""
        return tuple(self._breaks)

    @property
    def variants(self) -> tuple[Variant, ...]:
        return self._variants

    def reset(self) -> None:
        """Forgets every variant and every reason to run eager; the cache on disk stays."""
        with self._lock:
            self._variants, self._front, self._kinds = (), _miss, {}
            self._breaks.clear()
            self._broke_at.clear()

    # ------------------------------------------------------------------ a call that the front missed
    def _find(self, args: tuple, kwargs: dict) -> Any:
        if os.environ.get("PREHEAT_DISABLE") == "1" or steps_aside():
            return self.target(*args, **kwargs)
        facts = self._facts(args, kwargs)
        kind = self._kinds.get(facts)
        if kind is None:
            kind = Kind(is_eager=len(self._kinds) >= MOST_KINDS or self._is_hopeless(facts))
            self._kinds[facts] = kind
        for variant in kind.variants:
            result = variant.entry(*args, **kwargs)
            if result is not MISS:
                self._front = variant.entry
                return result
        if not kind.is_eager and self._lock.acquire(blocking=False):
            try:
                return self._new(facts, kind, args, kwargs)
            finally:
                self._lock.release()
        # known to run eager, or compiling in another thread, or inside our own capture
        self._front = _miss  # the next call is likely of this kind: it need not ask another's variant
        self._raise_if_fullgraph(kind.breaks)
        return self.target(*args, **kwargs)

    def _new(self, facts: Any, kind: Kind, args: tuple, kwargs: dict) -> Any:
        known = kind.variants or self._variants
        failure = known[-1].why_missed(args, kwargs) if known else None
        limit = self.options.get("recompile_limit", 8)
        if len(self._variants) >= limit:
            self._report_limit(kind, limit, failure)
            return self.target(*args, **kwargs)
        if failure is not None:
            emit("guard_failed", name=self.name, why=str(failure))
        hint = call_hint((facts, module_facts(self.target)))
        stored = self._stored(hint, args, kwargs)
        if stored is not None:
            result = stored.entry(*args, **kwargs)
            if result is not MISS:
                self._add(kind, stored)
                return result
        return self._compile(facts, kind, hint, args, kwargs)

    def _compile(self, facts: Any, kind: Kind, hint: str, args: tuple, kwargs: dict) -> Any:
        with paused_collector():  # the one lazy import: a warm process has no compiler
            from preheat.compiler import Request, compile_call

        request = Request(self.name, self.backend, self.options)
        made = compile_call(self.target, args, kwargs, request)
        outcome = made.outcome
        if made.artifact is not None:
            self._bind_new(kind, hint, made.artifact, outcome, args, kwargs)
        elif made.fault is not None:
            self._report_fault(kind, made.fault)
        else:
            self._count_attempt(facts, kind, outcome)
        if outcome.error is not None:
            raise outcome.error.with_traceback(_users_part(outcome.error.__traceback__))
        return outcome.result

    def _count_attempt(self, facts: Any, kind: Kind, outcome: Outcome) -> None:
        kind.attempts += 1
        kind.breaks = outcome.breaks
        kind.is_eager = kind.attempts >= CAPTURE_ATTEMPTS
        for row in outcome.breaks:
            self._broke_at[facts[:2], row.reason, row.file, row.line] += 1
        if outcome.error is None:
            self._report_breaks(outcome.breaks)

    def _is_hopeless(self, facts: Any) -> bool:
        """Whether calls in these modes broke at one place again and again, whatever their shapes."""
        return any(
            modes == facts[:2] and count >= BREAKS_AT_ONE_PLACE
            for (modes, *_), count in self._broke_at.items()
        )

    def _bind_new(
        self, kind: Kind, hint: str, made: Artifact, outcome: Outcome, args: tuple, kwargs: dict,
    ) -> None:
        captured = outcome.captured
        try:
            variant = Variant.bind(
                made, self.target, args, kwargs, captured.objects, self._runtime())
        except CannotBind as why:
            # what the call had read is not as it was: the call, or another thread, changed it
            self._run_eager_from_now_on(kind, _break("own_write", str(why)))
            return
        self._add(kind, variant)
        if captured.why_not_stored:
            emit("cache", hit=None, name=self.name, why=f"not stored: {captured.why_not_stored}")
        elif self._disk is not None:
            self._disk.write(self._key, hint, to_bytes(made))

    def _stored(self, hint: str, args: tuple, kwargs: dict) -> Variant | None:
        if self._disk is None or wants("stage"):  # who wants to see the stages wants them run
            return None
        rejected = ""
        for found in self._disk.read(self._key, hint):
            with paused_collector(), timed("cache", hit=None, name=self.name) as event:
                try:
                    variant = Variant.bind(
                        from_bytes(found.payload), self.target, args, kwargs, (), self._runtime())
                except (CannotBind, ValueError) as why:
                    rejected = str(why)
                    event.set(why=f"entry {found.path.name}: {rejected}")
                    continue
                event.set(hit=True, why="", bytes=len(found.payload))
                return variant
        if rejected:
            emit("cache", hit=False, name=self.name, why=f"no entry fits; the last one: {rejected}")
        return None

    def _report_fault(self, kind: Kind, fault: Exception) -> None:
        if is_strict():
            raise InternalError(f"{self.name} could not be compiled: {fault}") from fault
        warnings.warn(
            f"preheat: {self.name} runs eager because of a fault of the compiler "
            f"({type(fault).__name__}: {fault}); PREHEAT_STRICT=1 shows where. Please report it.",
            stacklevel=6)
        self._run_eager_from_now_on(
            kind, _break("internal_error", f"{type(fault).__name__}: {fault}"))

    # ------------------------------------------------------------------ small parts
    def _add(self, kind: Kind, variant: Variant) -> None:
        kind.variants = (variant, *kind.variants)
        self._variants = (*self._variants, variant)
        self._front = variant.entry
        variant.announce = self._put_front

    def _put_front(self, entry: Callable) -> None:
        self._front = entry

    def _report_limit(self, kind: Kind, limit: int, failure: Any) -> None:
        row = _break(
            "recompile_limit",
            f"{limit} variants exist, and another is needed because of {failure}")
        if row.reason not in {known.reason for known in self._breaks}:
            warnings.warn(f"preheat: {self.name}: {row.detail}; {row.hint}", stacklevel=6)
        self._run_eager_from_now_on(kind, row)

    def _run_eager_from_now_on(self, kind: Kind, *breaks: Break) -> None:
        kind.is_eager, kind.breaks = True, breaks
        self._report_breaks(breaks)

    def _report_breaks(self, breaks: tuple[Break, ...]) -> None:
        self._breaks.update(dict.fromkeys(breaks))
        for row in breaks:
            emit("break", name=self.name, **dataclasses.asdict(row))
        self._raise_if_fullgraph(breaks)

    def _raise_if_fullgraph(self, breaks: tuple[Break, ...]) -> None:
        if self.fullgraph and breaks:
            raise UserError(whole_message(self.name, **dataclasses.asdict(breaks[0])))

    def _facts(self, args: tuple, kwargs: dict) -> tuple:
        """What tells kinds of calls apart: types and shapes of the arguments, training, grad
        modes."""
        modes = tuple(AMBIENT[name]() for name in _FACTS)
        return modes, getattr(self.target, "training", None), tuple(call_facts((args, kwargs)))

    @functools.cached_property
    def _disk(self) -> Disk | None:
        return Disk(default_folder()) if self.options.get("cache", True) else None

    def _runtime(self) -> Image | None:
        return runtime_image(self._disk) if self.backend == "preheat" else None

    @functools.cached_property
    def _key(self) -> Key:
        settings = {"backend": self.backend, "dynamic": self.dynamic}
        return call_key(self.target, settings, machine_name())


def _users_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """`traceback` from the first frame that is not ours."""
    ours = os.path.dirname(__file__)
    first = traceback
    while first is not None and first.tb_frame.f_code.co_filename.startswith(ours):
        first = first.tb_next
    return first if first is not None else traceback


def _break(reason: str, detail: str) -> Break:
    """A break that no line of the program is to blame for."""
    return Break(reason, detail, "", 0, "", explain(reason, detail)[1])


def _miss(*args: Any, **kwargs: Any) -> Any:
    """The front of a Compiled without variants."""
    return MISS


@functools.lru_cache(maxsize=8)
def runtime_image(disk: Disk | None) -> Image:
    """The native checker and driver of this machine, from `disk` or made anew."""
    key, hint = machine_key("runtime", machine_name()), "image"
    for found in disk.read(key, hint) if disk is not None else ():
        image = decode(found.payload)
        if isinstance(image, Image):
            return image
    from preheat.compiler import runtime_image as make_runtime  # lazy: see Compiled._compile

    image = make_runtime()
    if disk is not None:
        disk.write(key, hint, encode(image))
    return image
