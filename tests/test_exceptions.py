"""Exceptions under chains: type, message, cause, effects, clean-up and traceback are the program's.

Everything is called several times, so that what raises is captured, replayed and resumed.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback

import pytest
import torch

import preheat
from same import Program, is_enabled, same_program

X = torch.linspace(-1.0, 1.2, 8)


@preheat.disable
def note(*what):
    """A host step that shows in what is printed."""
    print(*what)


@preheat.disable
def fail(kind, *args):
    raise kind(*args)


class Custom(Exception):
    def __init__(self, code, detail=None):
        super().__init__(code)
        self.code, self.detail = code, detail

    def __str__(self):
        return f"custom {self.code}"


class Guarded:
    """A context manager that tells what it saw."""

    def __init__(self, log, swallows=()):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, where):
        self.log.append(("exit", kind and kind.__name__, str(error)))
        return kind is not None and issubclass(kind, self.swallows)


# ---------------------------------------------------------------------------- programs (x, state)
def raised_after_effects(x, state):
    state["n"] += 1
    state["log"].append(state["n"])
    y = x * 2
    note("before")
    x.add_(1)
    state["late"] = True
    raise Custom(state["n"], detail="late")


def caught_around_a_host_call(x, state):
    try:
        y = x * 2
        fail(ValueError, "inside", 3)
    except ValueError as error:
        state["log"].append(error.args)
        y = x + 1
    else:
        y = x
    finally:
        state["log"].append("finally")
    return y * 2


def caught_outside(x, state):
    state["log"].append("in")
    try:
        return fail(KeyError, "gone")
    finally:
        state["log"].append("out")
        note("cleaned")


def finally_once(x, state):
    for i in range(3):
        try:
            y = x * i
            note(i)
            if y.sum() > 1:
                break
            if i == 1:
                continue
        finally:
            state["log"].append(i)
    return y


def return_in_finally(x, state):
    def inner():
        try:
            fail(ValueError)
        finally:
            return x * 3  # noqa: B012

    return inner()


def with_once(x, state):
    with Guarded(state["log"], (KeyError,)):
        y = x * 2
        note("with")
        if x.sum() > 0:
            fail(KeyError, "swallowed")
        state["log"].append("body")
    with Guarded(state["log"]):
        state["n"] += 1
    return x + state["n"]


def with_raises(x, state):
    with Guarded(state["log"]):
        x.mul_(2)
        fail(ValueError, "through")


def chained(x, state):
    try:
        fail(ValueError, "first")
    except ValueError as first:
        note("handling")
        raise RuntimeError("second") from first


def chained_by_context(x, state):
    try:
        fail(ValueError, "first")
    except ValueError:
        state["log"].append("handling")
        {}["missing"]


def chain_suppressed(x, state):
    try:
        fail(ValueError, "first")
    except ValueError:
        raise RuntimeError("second") from None


def raised_again(x, state):
    try:
        try:
            fail(Custom, 7)
        except Custom as error:
            error.add_note("seen")
            raise
    except Exception as error:
        state["log"].append((str(error), error.__notes__))
        raise


def deep(x, state):
    def level(n, y):
        try:
            if n == 0:
                note("bottom")
                raise LookupError("deep")
            return level(n - 1, y * 2)
        finally:
            state["log"].append(n)

    try:
        level(4, x)
    except LookupError as error:
        return x * len(str(error)), sys.exc_info()[0].__name__


def groups(x, state):
    try:
        raise ExceptionGroup("all", [ValueError("a"), KeyError("b"), ValueError("c")])
    except* ValueError as group:
        state["log"].append(len(group.exceptions))
    except* KeyError as group:
        state["log"].append(str(group.exceptions[0]))
    note("after")
    return x * 2


def asserted(x, state):
    y = x * 2
    if not y.sum() < 0:  # as `assert`, whose own message pytest would write
        raise AssertionError(f"sum is {y.sum().item():.3f}")
    return y


def of_torch(x, state):
    y = x * 2
    note("shape")
    return y.reshape(3, 5)


def of_an_op_after_a_branch(x, state):
    state["n"] += 1
    if x.sum() > 0:
        return torch.cat([x, x.reshape(2, 4)])
    return x


def stop_iteration(x, state):
    def rows():
        yield x
        fail(StopIteration, "leaks")

    return list(rows())


def attribute_missing(x, state):
    note("missing")
    return x * state.absent


def nothing_to_raise(x, state):
    raise


def exception_object_returned(x, state):
    try:
        fail(Custom, 3, [1, 2])
    except Custom as error:
        kept = error
    return x * kept.code, kept.detail, kept


def system_exit(x, state):
    state["log"].append("exiting")
    try:
        sys.exit(3)
    except SystemExit as error:
        state["log"].append(error.code)
    return x


def generator_raises(x, state):
    def rows():
        try:
            yield x * 2
            raise Custom(5)
        finally:
            state["log"].append("closed")

    total = x
    try:
        for row in rows():
            note("row")
            total = total + row
    except Custom as error:
        return total, error.code


def exit_stack(x, state):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Guarded(state["log"], (ValueError,)))
        stack.callback(state["log"].append, "callback")
        stack.enter_context(contextlib.suppress(KeyError))
        fail(ValueError, "in stack")
    return x + 1


def item_out_of_range(x, state):
    note("item")
    return x[torch.tensor([99])] + 1


def of_a_branch_condition(x, state):
    try:
        if x:  # ambiguous truth
            return x
    except RuntimeError as error:
        return x * 2, str(error)


PROGRAMS = [
    raised_after_effects, caught_around_a_host_call, caught_outside, finally_once, return_in_finally,
    with_once, with_raises, chained, chained_by_context, chain_suppressed, raised_again, deep, groups,
    asserted, of_torch, of_an_op_after_a_branch, stop_iteration, attribute_missing, nothing_to_raise,
    exception_object_returned, system_exit, generator_raises, exit_stack, item_out_of_range,
    of_a_branch_condition,
]


def make_program(fn):
    def make():
        state = {"n": 0, "log": [], "late": False}

        def flip(program):
            program.args = (-program.args[0], program.args[1])

        def wide(program):
            program.args = (program.args[0].double(), program.args[1])

        return Program(fn, (X.clone(), state), watch=state, between={2: flip, 3: flip, 5: wide})

    return make


@pytest.mark.parametrize("fn", PROGRAMS)
def test_same_exception_effects_and_clean_up(fn):
    seen = same_program(make_program(fn), calls=7)
    if is_enabled():
        assert seen.counters["fallbacks"] == 0


def frames_of(call, *args):
    """Of the exception and of each that it came from: (function, line) of the frames of this file,
    and where the others are from."""
    try:
        call(*args)
    except BaseException as error:
        users, others = [], []
        while error is not None:
            rows = traceback.extract_tb(error.__traceback__)
            users.append([
                (row.name, row.lineno) for row in rows
                if row.filename == __file__ and row.name != "frames_of"])
            others += [row.filename for row in rows if row.filename != __file__]
            error = error.__cause__ or error.__context__
        return users, others


PREHEAT = os.path.dirname(preheat.__file__)
RAISING = [
    raised_after_effects, caught_outside, with_raises, chained, chained_by_context, raised_again,
    of_torch, of_an_op_after_a_branch, attribute_missing, item_out_of_range, asserted,
]


@pytest.mark.parametrize("fn", RAISING)
def test_the_traceback_shows_the_users_lines_and_no_others(fn):
    def state():
        return X.clone(), {"n": 0, "log": [], "late": False}

    compiled = preheat.compile(fn, options={"cache": False})
    with torch.no_grad():
        expected = frames_of(fn, *state())
        for _ in range(4):
            users, others = frames_of(compiled, *state())
            assert users == expected[0]
            ours = [[name for name in files if PREHEAT in name] for files in (others, expected[1])]
            assert ours[0] == ours[1]  # that of `disable` around what is called


class Ill:
    """Gives what its callers in C refuse."""

    def __init__(self, value=None):
        self.value = value
        if value == "init":
            return 1

    def __str__(self):
        return 3

    def __bool__(self):
        return 4

    def __len__(self):
        return -1

    def __hash__(self):
        return "x"

    def __iter__(self):
        return 4

    def __contains__(self, other):
        return self


def empty_cell():
    def inner():
        return late

    inner()
    late = 1


def deleted_cell():
    value = 1

    def inner():
        return value

    del value
    del value


def deleted_name():
    class Inner:
        del nothing  # noqa: F821


def not_importable():
    from torch import not_there  # noqa: F401


def in_a_list():
    items = [late for _ in (1, 2)]
    late = items


REFUSED = {
    "init": lambda: Ill("init"), "str": lambda: str(Ill()), "bool": lambda: bool(Ill()),
    "len": lambda: len(Ill()), "hash": lambda: hash(Ill()), "iter": lambda: iter(Ill()),
    "contains": lambda: 1 in Ill(),
    **{f.__name__: f for f in (
        empty_cell, deleted_cell, deleted_name, not_importable, in_a_list)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_instruction_raises_in_a_handler_has_the_handled_error_as_its_context(name):
    act = REFUSED[name]

    def fn(x):
        try:
            [].pop()
        except IndexError:
            act()
        return x

    def told(call):
        with pytest.raises(Exception) as caught:
            call(X)
        error = caught.value
        return (
            type(error), str(error), type(error.__context__), error.__suppress_context__,
            error.__cause__)

    compiled = preheat.compile(fn, options={"cache": False})
    for _ in range(3):
        assert told(compiled) == told(fn)


# ---------------------------------------------------------------------------- interrupts
def interrupted_program(x, state):
    state["n"] += 1
    y = x * 2
    step(state)
    if y.sum() > 0:
        y = y + 1
    return y * 3, state["n"]


step = preheat.disable(lambda state: state["act"]())


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("at", range(5))
def test_an_interrupt_in_a_host_call_leaves_a_usable_object(kind, at):
    compiled = preheat.compile(interrupted_program, options={"cache": False})

    def stop():
        raise kind("now")

    with torch.no_grad():
        for call in range(6):
            state = {"n": call, "act": stop if call == at else lambda: None}
            x = X if call % 2 else X * -1
            if call == at:
                with pytest.raises(kind, match="now"):
                    compiled(x, state)
                assert state["n"] == call + 1
            else:
                torch.testing.assert_close(compiled(x, state), (
                    interrupted_program(x, {"n": call, "act": lambda: None})))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_signals_in_the_middle_of_captures_leave_usable_objects():
    """Interrupts at many moments of the first call: the machine's, the compiler's, the program's."""

    def program(x, rows):
        total = x
        for i in range(12):
            total = torch.tanh(total * (i + 1)) + i
            rows.append(i)
        if total.sum() > 0:
            total = total * 2
        return total

    def handler(signum, frame):
        raise KeyboardInterrupt

    with torch.no_grad():
        expected = program(X, [])
        before = signal.signal(signal.SIGALRM, handler)
        try:
            interrupted = 0
            for number in range(14):
                compiled = preheat.compile(program, options={"cache": False})
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.009 * number)
                    compiled(X, [])
                    compiled(X, [])
                    time.sleep(0.001)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                for x, result in ((X, expected), (X.double(), None), (X, expected)):
                    rows = []
                    found = compiled(x, rows)
                    torch.testing.assert_close(found, program(x, []) if result is None else result)
                    assert rows == list(range(12))
        finally:
            signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.is_grad_enabled()


def test_an_exception_injected_into_a_thread_leaves_the_lock_free():
    compiled = preheat.compile(interrupted_program, options={"cache": False})

    def work():
        with torch.no_grad(), contextlib.suppress(KeyboardInterrupt):
            compiled(X, {"n": 0, "act": interrupt})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with torch.no_grad():
        for n in range(3):
            state = {"n": n, "act": lambda: None}
            torch.testing.assert_close(
                compiled(X, dict(state)), interrupted_program(X, dict(state)))
