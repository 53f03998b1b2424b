"""One random program, eager and compiled, compared after every call.

    verdict = check(script, backend="eager")
    verdict.kind       "same", "differs" (a wrong result), "fault" (an error of ours), "hangs"
    verdict.seen       counters of the compiled side

A program is `program(x, y, v, n, flag, items, options, *rest, w, **named)` or a module with such a
forward; it may read and write everything that `world.TEXT` defines.
"""

import collections
import contextlib
import linecache
import os
import signal
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzz.grammar import Script
from fuzz.world import TEXT
from preheat.dispatch import Compiled
from same import Program, Seen, same_program

SECONDS = 60  # a program that runs longer hangs
_WORLD = compile(TEXT, "<world>", "exec")
linecache.cache["<world>"] = (len(TEXT), None, TEXT.splitlines(True), "<world>")


@dataclass(frozen=True)
class Verdict:
    kind: str
    message: str = ""
    seen: Seen | None = None
    calls: int = 0
    plain: int = 0  # calls that ended as plain Python


class Hangs(BaseException):
    """The time is over. Not an Exception: programs catch those."""


def check(script: Script, backend: str = "preheat") -> Verdict:
    """Runs the program on both sides, in strict mode, within `SECONDS`."""
    try:
        code = compile(script.text, "<program>", "exec")
    except SyntaxError as error:
        return Verdict("fault", f"the grammar: {error}")
    linecache.cache["<program>"] = (
        len(script.text), None, script.text.splitlines(True), "<program>")
    settings = {"backend": backend, "options": {"recompile_limit": 32}}
    with _strictly(), _limited(), _counting_plain() as plain:
        try:
            seen = same_program(
                lambda: _program(script, code), calls=len(script.calls), settings=settings)
        except AssertionError as difference:
            cause = difference.__cause__
            told = "" if cause is None else "".join(traceback.format_exception(cause)[-6:])
            return Verdict("differs", f"{difference}\n{told}")
        except Hangs:
            return Verdict("hangs", traceback.format_exc(limit=-8))
        except Exception:
            return Verdict("fault", traceback.format_exc(limit=-8))
    return Verdict("same", "", seen, len(script.calls), len(plain))


def _program(script: Script, code: types.CodeType) -> Program:
    """A fresh world with the program in it."""
    space = types.ModuleType("fuzz_world").__dict__
    exec(_WORLD, space)
    exec(code, space)
    call = space["Program"]() if script.is_module else space["program"]
    world = call if script.is_module else space["WORLD"]
    args = (
        torch.arange(16.0).reshape(4, 4) % 5 - 2, torch.arange(16.0).reshape(4, 4).t() % 3,
        torch.arange(4.0), 2, True, [1, 2], {},
    )
    return Program(
        call, args, {} if script.is_module else {"w": world}, watch=_Globals(space),
        between={number: _changes(rows, world, space) for number, rows in enumerate(script.calls)},
    )


def _changes(rows: tuple[str, ...], world: Any, space: dict) -> Any:
    def change(program: Program) -> None:
        args, named = list(program.args), dict(program.kwargs)
        for row in rows:
            # one that the program made impossible does nothing, on both sides
            with contextlib.suppress(Exception):
                exec(row, {"args": args, "named": named, "w": world, "g": space, "torch": torch})
        program.args, program.kwargs = tuple(args), named

    return change


class _Globals(Mapping):
    """What a program may have changed in its module, as it is now."""

    __slots__ = ("space",)  # no __dict__: only what `names` says is looked at
    names = ("CALLS", "TABLE", "LOG", "LIMITS", "WORLD")

    def __init__(self, space: dict):
        self.space = space

    def __getitem__(self, name: str) -> Any:
        thing = self.space["Thing"]
        return {"level": thing.level, "made": thing.made}.get(name, self.space.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter((*self.names, "level", "made"))

    def __len__(self) -> int:
        return len(self.names) + 2


@contextlib.contextmanager
def _strictly() -> Iterator[None]:
    """Faults of ours are raised; warnings of the programs are not shown."""
    before = os.environ.get("PREHEAT_STRICT")
    os.environ["PREHEAT_STRICT"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del os.environ["PREHEAT_STRICT"]
        if before is not None:
            os.environ["PREHEAT_STRICT"] = before


@contextlib.contextmanager
def _counting_plain() -> Iterator[list]:
    """An item for each call that compiled code did not bring to its end, nor a capture."""
    original, seen = Compiled._plain, []

    def plain(self: Compiled, *args: Any, **kwargs: Any) -> Any:
        seen.append(self.name)
        return original(self, *args, **kwargs)

    Compiled._plain = plain
    try:
        yield seen
    finally:
        Compiled._plain = original


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def over(number: int, frame: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Tally:
    """Sums over many programs, so that "everything ran eager" is seen."""

    programs: int = 0
    whole: int = 0  # programs that never broke
    calls: int = 0
    plain: int = 0  # calls that ended as plain Python
    counters: collections.Counter = field(default_factory=collections.Counter)
    breaks: collections.Counter = field(default_factory=collections.Counter)

    def add(self, verdict: Verdict) -> None:
        self.programs += 1
        if verdict.seen is not None:
            self.whole += verdict.seen.is_captured
            self.calls += verdict.calls
            self.plain += verdict.plain
            self.counters.update(verdict.seen.counters)
            self.breaks.update({row.partition(":")[0] for row in verdict.seen.breaks})

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counters.items() if count)
        breaks = ", ".join(f"{name} {count}" for name, count in self.breaks.most_common(12))
        return (
            f"{self.programs} programs, {self.whole} without a break; {self.calls} calls, "
            f"{self.plain} ended as plain Python; {counts}\n"
            f"programs that broke, by reason: {breaks}")
