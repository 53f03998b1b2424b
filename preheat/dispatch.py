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
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from preheat.base.collector import paused_collector
from preheat.base.errors import InternalError, UserError, is_strict
from preheat.base.events import emit, timed
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

# Calls that run eager are remembered by their facts; beyond this many kinds of call all are eager.
EAGER_KINDS = 1000
# Ambient rows that tell kinds of calls apart.
_FACTS = ("grad_enabled", "inference_mode", "autocast_cpu")
# A first call often sets things up (fills a cache, installs hooks) and then breaks where later ones
# do not.
CAPTURE_ATTEMPTS = 2


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
        self._eager: dict[Any, tuple[Break, ...]] = {}  # kinds of call that run eager, and why
        self._breaks: dict[Break, None] = {}  # in the order they happened
        self._attempts: collections.Counter = collections.Counter()  # captures that broke, likewise
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
            self._variants, self._front, self._eager = (), _miss, {}
            self._attempts.clear()
            self._breaks.clear()

    # ------------------------------------------------------------------ a call that the front
    # missed
    def _find(self, args: tuple, kwargs: dict) -> Any:
        if os.environ.get("PREHEAT_DISABLE") == "1" or steps_aside():
            return self.target(*args, **kwargs)
        for variant in self._variants:
            result = variant.entry(*args, **kwargs)
            if result is not MISS:
                self._front = variant.entry
                return result
        facts = self._facts(args, kwargs)
        breaks = self._eager.get(facts)
        may_compile = breaks is None and len(self._attempts) < EAGER_KINDS
        if may_compile and self._lock.acquire(blocking=False):
            try:
                return self._new(facts, args, kwargs)
            finally:
                self._lock.release()
        # known to run eager, or compiling in another thread, or inside our own capture
        self._raise_if_fullgraph(breaks or ())
        return self.target(*args, **kwargs)

    def _new(self, facts: Any, args: tuple, kwargs: dict) -> Any:
        failure = self._variants[-1].why_missed(args, kwargs) if self._variants else None
        if failure is not None:
            emit("guard_failed", name=self.name, why=str(failure))
        if len(self._variants) >= self.options.get("recompile_limit", 8):
            self._run_eager_from_now_on(facts, Break(
                "recompile_limit",
                f"{len(self._variants)} variants exist; the last one missed: {failure}",
                "", 0, "",
                "make the value that changes a tensor, or raise options={'recompile_limit': n}"))
            return self.target(*args, **kwargs)
        hint = call_hint((facts, module_facts(self.target)))
        stored = self._stored(hint, args, kwargs)
        if stored is not None:
            result = stored.entry(*args, **kwargs)
            if result is not MISS:
                self._add(stored)
                return result
        return self._compile(facts, hint, args, kwargs)

    def _compile(self, facts: Any, hint: str, args: tuple, kwargs: dict) -> Any:
        with paused_collector():  # the one lazy import: a warm process has no compiler
            from preheat.compiler import Request, compile_call

        request = Request(self.name, self.backend, self.options)
        made = compile_call(self.target, args, kwargs, request)
        outcome = made.outcome
        if outcome.error is not None:
            raise outcome.error
        if made.artifact is not None:
            self._bind_new(facts, hint, made.artifact, outcome, args, kwargs)
        elif made.fault is not None:
            self._report_fault(facts, made.fault)
        else:
            self._attempts[facts] += 1
            self._report_breaks(outcome.breaks)
            if self._attempts[facts] >= CAPTURE_ATTEMPTS:
                self._eager[facts] = outcome.breaks
        return outcome.result

    def _bind_new(
        self, facts: Any, hint: str, made: Artifact, outcome: Outcome, args: tuple, kwargs: dict,
    ) -> None:
        captured = outcome.captured
        try:
            variant = Variant.bind(
                made, self.target, args, kwargs, captured.objects, self._runtime())
        except CannotBind as why:
            # what the call had read is not as it was: the call itself, or another thread, changed
            # it
            self._run_eager_from_now_on(facts, Break(
                "own_write", str(why), "", 0, "", "move the change out of the compiled function"))
            return
        self._add(variant)
        if captured.why_not_stored:
            emit("cache", hit=None, name=self.name, why=f"not stored: {captured.why_not_stored}")
        elif self._disk is not None:
            self._disk.write(self._key, hint, to_bytes(made))

    def _stored(self, hint: str, args: tuple, kwargs: dict) -> Variant | None:
        if self._disk is None:
            return None
        for found in self._disk.read(self._key, hint):
            with paused_collector(), timed("cache", hit=False, name=self.name) as event:
                try:
                    variant = Variant.bind(
                        from_bytes(found.payload), self.target, args, kwargs, (), self._runtime())
                except (CannotBind, ValueError) as why:
                    event.set(why=str(why))
                    continue
                event.set(hit=True, why="", bytes=len(found.payload))
                return variant
        return None

    def _report_fault(self, facts: Any, fault: Exception) -> None:
        if is_strict():
            raise InternalError(f"{self.name} could not be compiled: {fault}") from fault
        warnings.warn(
            f"preheat: {self.name} runs eager because of a fault of the compiler "
            f"({type(fault).__name__}: {fault}); PREHEAT_STRICT=1 shows where. Please report it.",
            stacklevel=6)
        self._run_eager_from_now_on(facts, Break(
            "internal_error", f"{type(fault).__name__}: {fault}", "", 0, "",
            "run with PREHEAT_STRICT=1 and report it"))

    # ------------------------------------------------------------------ small parts
    def _add(self, variant: Variant) -> None:
        self._variants = (*self._variants, variant)
        self._front = variant.entry
        variant.announce = self._put_front

    def _put_front(self, entry: Callable) -> None:
        self._front = entry

    def _run_eager_from_now_on(self, facts: Any, *breaks: Break) -> None:
        self._eager[facts] = breaks
        self._report_breaks(breaks)

    def _report_breaks(self, breaks: tuple[Break, ...]) -> None:
        self._breaks.update(dict.fromkeys(breaks))
        for row in breaks:
            emit("break", name=self.name, **dataclasses.asdict(row))
        self._raise_if_fullgraph(breaks)

    def _raise_if_fullgraph(self, breaks: tuple[Break, ...]) -> None:
        if self.fullgraph and breaks:
            first = breaks[0]
            raise UserError(
                f"fullgraph=True, but {self.name} breaks at {first.file}:{first.line}: "
                f"{first.reason}: {first.detail}\n    {first.code}\n{first.hint}"
            )

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
