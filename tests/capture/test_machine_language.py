"""The machine runs programs as CPython does: same value, output, exception, traceback.

Unwatched, watched, and giving up: whichever hook call gives up, wherever the bytecodes run out, the
result is the same and nothing happens twice.
"""

import contextlib
import io
import random
import types

import pytest

from preheat.capture.machine import run
from preheat.capture.observer import GiveUp, Observer
from machine_programs import PROGRAMS
from watching import Watching, hook_names


def outcome(source: str, observer: Observer | None, run=run) -> tuple:
    """What the program gives: (kind, text of the value or exception, printed)."""
    space: dict = {"__name__": "program"}
    exec(compile(source, "<program>", "exec"), space)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            value = space["main"]() if observer is None else run(space["main"], (), {}, observer)
            kind, text = "value", repr(value)
        except BaseException as error:
            kind, text = "error", described(error)
    return kind, text, printed.getvalue()


def described(error: BaseException | None) -> str:
    """Type, message, context and the program's lines of an exception."""
    if error is None:
        return ""
    lines, entry = [], error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == "<program>":
            lines.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
        entry = entry.tb_next
    return f"{error!r} {lines} <- {described(error.__context__)}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_cpython(name):
    assert outcome(PROGRAMS[name], Observer()) == outcome(PROGRAMS[name], None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_when_watched(name):
    assert outcome(PROGRAMS[name], Watching()) == outcome(PROGRAMS[name], None)


class Quitter(Watching):
    """Gives up at its n-th hook call; counts them otherwise."""

    def __init__(self, at: int):
        super().__init__()
        self.at, self.count = at, 0

    def arrived(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise GiveUp("test", "as asked")


def quitting(name: str):
    original = getattr(Watching, name)

    def hook(self, *args):
        self.arrived()
        return original(self, *args)

    return hook


for hook_name in hook_names():
    if hook_name not in ("gave_up", "is_native"):
        setattr(Quitter, hook_name, quitting(hook_name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_gives_up_anywhere(name):
    expected = outcome(PROGRAMS[name], None)
    counter = Quitter(0)
    outcome(PROGRAMS[name], counter)
    places = range(1, counter.count + 1)
    if len(places) > 25:
        places = random.Random(name).sample(places, 25)
    for at in places:
        assert outcome(PROGRAMS[name], Quitter(at)) == expected, f"gave up at hook call {at}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_stops_at_any_bytecode_limit(name):
    expected = outcome(PROGRAMS[name], None)
    for limit in (0, 1, 7, 40, 150, 600):
        observer = Watching()
        observer.bytecode_limit = limit
        assert outcome(PROGRAMS[name], observer) == expected, f"limit {limit}"


def test_frames_of_the_machine_do_not_show():
    def fail():
        return 1 / 0

    try:
        run(fail, (), {}, Observer())
    except ZeroDivisionError as error:
        names, entry = [], error.__traceback__
        while entry is not None:
            names.append(entry.tb_frame.f_code.co_name)
            entry = entry.tb_next
    assert names[-1] == "fail"
    assert isinstance(entry, types.NoneType)
