"""Any Python under chains: the language's own constructs do what they do, on every call.

Each program meets the outside in its middle (a host call, a branch on a value, a write), so that
captures, replays and resumes all go through the construct under test.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time

import pytest
import torch

import preheat
import python_classes
import python_functions
from preheat.base.events import bus
from python_functions import COMMANDS, LOG, cached_scale, matched
from same import Program, is_enabled, same_program

X = torch.linspace(-1.0, 1.2, 8)


def check(fn, *more, calls=6, why=""):
    """`fn(x, *more)` on x of changing sign and, later, dtype; the compiled side really is compiled."""

    def make():
        LOG.clear()
        cached_scale.cache_clear()

        def flip(program):
            program.args = (-program.args[0], *program.args[1:])

        def wide(program):
            program.args = (program.args[0].double(), *program.args[1:])

        return Program(fn, (X.clone() + 0.1, *more), watch=LOG, between={2: flip, 3: flip, 4: wide})

    eager = []
    unsubscribe = bus.subscribe(
        lambda event: None if event.data.get("goes_on") else eager.append(event.data), {"break"})
    try:
        seen = same_program(make, calls=calls)
    finally:
        unsubscribe()
    if is_enabled():
        assert seen.counters["fallbacks"] == 0
        if why is not None:
            assert not eager, eager
            assert seen.counters["captures"] >= 1, seen
            assert seen.counters["interpreted"] == 0, seen
    return seen


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_match(number):
    check(matched, COMMANDS[number])


PROGRAMS = [
    python_functions.closures,
    python_functions.closures_returned,
    python_functions.arguments,
    python_functions.bad_arguments,
    python_functions.recursive,
    python_functions.recursive_on_values,
    python_functions.comprehensions,
    python_functions.walrus_and_star,
    python_functions.generator_whole,
    python_functions.generator_sent,
    python_functions.generator_closed,
    python_functions.generator_in_the_middle,
    python_functions.functools_all,
    python_functions.caches,
    python_classes.records,
    python_classes.enums,
    python_classes.classes,
    python_classes.dunders,
    python_classes.substitutions,
    python_classes.raw_attributes,
    python_classes.autograd_functions,
]
# the host call is where no later call could go on from: inside a callback of C, a class body
PLAIN = [
    python_functions.decorated,
    python_functions.generator_thrown,
    python_functions.total_order,
    python_classes.classes_made_inside,
    python_classes.sorts,
    python_classes.hashes,
    python_classes.reductions,
    python_classes.default_dicts,
    python_classes.contexts,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled(program):
    check(program)


@pytest.mark.parametrize("program", PLAIN)
def test_right_in_any_case(program):
    check(program, why=None)


# ---------------------------------------------------------------------------- async
def test_coroutines_run_eager():
    """Awaited natively; the compiled function inside is compiled."""
    inner = preheat.compile(lambda x: torch.relu(x) * 2, options={"cache": False})

    async def rows(x):
        for i in range(3):
            await asyncio.sleep(0)
            yield inner(x) * i

    @contextlib.asynccontextmanager
    async def opened():
        LOG.append("open")
        yield 2
        LOG.append("closed")

    async def program(x):
        async with opened() as n:
            results = [row * n async for row in rows(x)]
        return await asyncio.gather(*[one(row) for row in results])

    async def one(x):
        await asyncio.sleep(0)
        return inner(x)

    LOG.clear()
    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(3):
            found = asyncio.run(compiled(X))
            for i, row in enumerate(found):
                torch.testing.assert_close(row, torch.relu(torch.relu(X) * 2 * i * 2) * 2)
    assert LOG == ["open", "closed"] * 3


# ---------------------------------------------------------------------------- threads, re-entry
def mixed(x, state):
    state["calls"] = state.get("calls", 0) + 1
    y = torch.tanh(x) * 2
    note_quietly(y)
    if y.sum() > 0:
        y = y + y.max().item()
    return y - 1, state["calls"]


note_quietly = preheat.disable(lambda y: time.sleep(0.001))


def test_threads_call_one_function_at_once():
    compiled = preheat.compile(mixed, options={"cache": False})
    inputs = [X * scale for scale in (1, -1, 3, -2)] + [X.double(), torch.ones(3, 4)]
    failures, barrier = [], threading.Barrier(6)

    def work(number):
        x, state = inputs[number], {}
        try:
            barrier.wait()
            with torch.no_grad():
                for call in range(12):
                    found, expected = compiled(x, state), mixed(x, {"calls": call})
                    torch.testing.assert_close(found, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_re_entry_from_a_host_call_a_key_and_a_property():
    depth = []

    def program(x, n):
        y = x * 2 + n
        if n:
            y = y + call(x, n - 1)
            y = y + sorted([2, 1], key=lambda i: depth.append(n) or i)[0]
        note_quietly(y)
        return y + y.sum().item()

    compiled = preheat.compile(program, options={"cache": False})
    call = preheat.disable(lambda x, n: (compiled if is_compiled else program)(x, n))
    with torch.no_grad():
        for scale in (1.0, 2.0, -1.0, 1.0):
            is_compiled = False
            expected, seen = program(X * scale, 3), depth[:]
            depth.clear()
            is_compiled = True
            torch.testing.assert_close(compiled(X * scale, 3), expected)
            assert depth == seen
            depth.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_goes_on_captures_and_resumes():
    compiled = preheat.compile(mixed, options={"cache": False})
    with torch.no_grad():
        compiled(X, {}), compiled(X, {})
        child = os.fork()
        if child == 0:
            try:
                for x in (X, -X, X.double(), X):  # replays, resumes, captures
                    torch.testing.assert_close(compiled(x, {}), mixed(x, {}))
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        torch.testing.assert_close(compiled(-X, {}), mixed(-X, {}))


# ---------------------------------------------------------------------------- tracers
@pytest.mark.parametrize("kind", ["settrace", "setprofile"])
@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_tracers_see_the_frames_of_plain_python(kind, calls_before):
    def inner(y):
        return y + 1

    def program(x):
        y = inner(x * 2)
        note_quietly(y)
        return inner(y)

    def traced(call):
        names = []

        def tracer(frame, event, arg):
            if frame.f_code.co_filename == __file__ and event in ("call", "return"):
                names.append((event, frame.f_code.co_name))
            return tracer

        getattr(sys, kind)(tracer)
        try:
            call(X)
        finally:
            getattr(sys, kind)(None)
        return [row for row in names if row[1] != "traced"]

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(calls_before):
            compiled(X)
        assert traced(compiled) == traced(program)
        before = preheat.counters()["interpreted"]
        torch.testing.assert_close(compiled(X), program(X))
        assert preheat.counters()["interpreted"] == before
