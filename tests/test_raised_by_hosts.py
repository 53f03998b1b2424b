"""Host calls that raise: the program's handlers are compiled, and nobody can tell.

Effects, messages, contexts and tracebacks are eager's, whichever way the host call goes.
"""

import contextlib
import json
import sys
import traceback

import pytest
import torch

import preheat
from same import Program, is_enabled, same_program

X = torch.linspace(-1.0, 1.2, 8)


class Coded(ValueError):
    """An exception with a field of its own."""

    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


RAISED = {
    "coded": lambda: Coded(3), "coded 4": lambda: Coded(4), "key": lambda: KeyError("k"),
    "stop": lambda: StopIteration(5), "type": lambda: TypeError("t"),
    "system": lambda: FileNotFoundError(2, "no", "f"),
}
KINDS = (
    "none", "coded", "key", "none", "coded 4", "stop", "type", "coded", "system", "none", "key",
)


@preheat.disable
def host(kind):
    if kind in RAISED:
        raise RAISED[kind]()
    return 2


@preheat.disable
def note(*what):
    print(*what)


def field_is_read(x, state):
    try:
        return x * host(state["kind"])
    except Coded as error:
        return x + error.code
    except Exception:
        return x


def is_stored(x, state):
    try:
        return x * host(state["kind"])
    except Exception as error:
        state["log"].append(error)
        note(len(state["log"]))
        return x - 1


def through_finally(x, state):
    def inner():
        try:
            state["n"] += 1
            return host(state["kind"])
        finally:
            state["n"] += 10
            note(state["n"])

    try:
        return x * inner()
    except (KeyError, ValueError, TypeError):
        return x + state["n"]
    except BaseException:
        state["n"] -= 1
        raise


@contextlib.contextmanager
def guarded(state):
    state["n"] += 1
    try:
        yield 3
    except ValueError as error:
        state["log"].append(str(error))
    finally:
        state["n"] += 1


def in_a_with(x, state):
    with guarded(state) as factor:
        x = x * factor
        x = x + host(state["kind"])
    return x


def suppressed(x, state):
    with contextlib.suppress(KeyError, ValueError):
        x = x * host(state["kind"])
        state["n"] += 1
    return x + state["n"]


class Asked:
    @property
    def value(self):
        return host(self.kind)


def of_a_property(x, state):
    asked = Asked()
    asked.kind = state["kind"]
    try:
        factor = getattr(asked, "value", 9)
    except Exception:
        factor = -3
    return x * factor


class Items:
    def __init__(self, kinds):
        self.kinds = iter(kinds)

    def __iter__(self):
        return self

    __next__ = preheat.disable(lambda self: host(next(self.kinds)))


def of_an_iterator(x, state):
    try:
        for factor in Items(["none", "none", state["kind"]]):
            x = x * factor
    except Exception as error:
        note(type(error).__name__)
        x = x + 1
    return x


def in_each_others_handlers(x, state):
    try:
        try:
            host(state["kind"])
        except KeyError as first:
            try:
                host("coded")
            except ValueError as second:
                note(repr(second.__context__), repr(first.__context__))
                raise
        except ValueError:
            raise RuntimeError("other")
    except RuntimeError as error:
        return x * 2, str(error.__context__)
    except ValueError as error:
        note(repr(error.__context__))
        return x * 3, None
    return x, None


def traceback_is_walked(x, state):
    try:
        host(state["kind"])
    except Exception as error:
        count, entry = 0, error.__traceback__
        while entry is not None:
            count, entry = count + 1, entry.tb_next
        note(count)
        note(error.with_traceback(None) is error, error.__traceback__)
    return x


def raised_again_in_a_loop(x, state):
    last = None
    for _ in range(3):
        try:
            if last is not None:
                raise last
            host(state["kind"])
        except Exception as error:
            last, x = error, x + 1
            note(len(traceback.extract_tb(error.__traceback__)))
    return x


def with_else(x, state):
    try:
        factor = host(state["kind"])
    except KeyError:
        x = x - 1
    else:
        x = x * factor
    finally:
        state["n"] += 1
    return x


def in_a_generator(x, state):
    def factors():
        try:
            yield host(state["kind"])
        except ValueError:
            yield 4
        yield 5

    for factor in factors():
        x = x * factor
    return x


def decoded(x, state):
    texts = {"none": "1", "coded": "{", "key": "[1"}
    try:
        return x + json.loads(texts.get(state["kind"], "2"))
    except json.JSONDecodeError as error:
        note(error.lineno, error.pos)
        return x


def leaves_a_loop(x, state):
    for _ in range(3):
        try:
            host(state["kind"])
        except KeyError:
            continue
        except ValueError:
            break
        finally:
            state["n"] += 1
    return x + state["n"]


PROGRAMS = [
    field_is_read, is_stored, through_finally, in_a_with, suppressed, of_a_property, of_an_iterator,
    in_each_others_handlers, traceback_is_walked, raised_again_in_a_loop, with_else, in_a_generator,
    decoded, leaves_a_loop,
]


@pytest.mark.parametrize("start", (0, 1, 4))
@pytest.mark.parametrize("fn", PROGRAMS)
def test_whatever_is_raised(fn, start):
    kinds = KINDS[start:] + KINDS[:start]

    def make():
        def turn(kind):
            return lambda program: program.args[1].update(kind=kind)

        state = {"kind": kinds[0], "n": 0, "log": []}
        between = {call: turn(kind) for call, kind in enumerate(kinds) if call}
        return Program(fn, (X.clone(), state), watch=state, between=between)

    seen = same_program(make, calls=len(kinds))
    if is_enabled():
        assert seen.counters["fallbacks"] == 0


# ---------------------------------------------------------------------------- texts that are no numbers
parsed = preheat.disable(lambda text: int(text))


def dropped(x, text):
    try:
        n = parsed(text)
    except ValueError:
        n = -1
    return x * n


def through_frames(x, text):
    def inner(y):
        with contextlib.ExitStack():
            return y * parsed(text)

    try:
        return inner(x + 1)
    except (KeyError, ValueError) as error:
        note("bad", type(error).__name__)
        return x


def printed(x, text):
    try:
        return x * parsed(text)
    except ValueError:
        note([row.lineno for row in traceback.extract_tb(sys.exc_info()[2])][:1])
        return x


def raised_again_and_caught(x, text):
    try:
        try:
            n = parsed(text)
        except ValueError:
            note("seen")
            raise
    except Exception as error:
        note([row.name for row in traceback.extract_tb(error.__traceback__)][:1])
        n = 1
    return x * n


def chained_to(x, text):
    try:
        try:
            n = parsed(text)
        except ValueError as error:
            raise KeyError("k") from error
    except KeyError as error:
        note(repr(error.__cause__), error.__context__ is error.__cause__)
        n = 1
    return x * n


def saved(x, text):
    held = None
    try:
        parsed(text)
    except ValueError as error:
        held = error
    note("after")
    return x + 1, held


def second_in_the_handler(x, text):
    try:
        return x * parsed(text)
    except ValueError as first:
        try:
            parsed(text + "!")
        except ValueError as second:
            note(second.__context__ is first, first.__context__)
    return x


def not_caught(x, text):
    y = x * 2
    return y * parsed(text)


HOSTS = [
    dropped, through_frames, printed, raised_again_and_caught, chained_to, saved,
    second_in_the_handler, not_caught,
]


@pytest.mark.parametrize("fn", HOSTS)
def test_host_calls_that_raise(fn):
    texts = ("3", "a", "b", "3", "a", "b", "4", "3", "a")

    def make():
        def other(program):
            text = texts[(texts.index(program.args[1]) + 1) % 7]
            program.args = (program.args[0], text)

        return Program(fn, (X.clone(), "3"), between={call: other for call in range(1, 9)})

    same_program(make, calls=9)


@pytest.mark.parametrize("fn", [dropped, through_frames, raised_again_and_caught, saved])
def test_what_is_caught_stays_compiled(fn, capsys):
    compiled = preheat.compile(fn, options={"cache": False})
    with torch.no_grad():
        for text in ("3", "a", "4", "b", "5", "c"):
            compiled(X, text)
        before = preheat.counters()
        for text in ("3", "a", "4", "b", "5", "c"):
            compiled(X, text)
    change = {name: count - before[name] for name, count in preheat.counters().items()}
    assert change["captures"] == change["interpreted"] == change["fallbacks"] == 0


def test_a_traceback_that_a_replay_gives_is_eagers():
    compiled = preheat.compile(saved, options={"cache": False})
    for text in ("3", "a", "b", "c", "d"):
        held = compiled(X, text)[1], saved(X, text)[1]
        rows = [
            [(row.name, row.lineno) for row in traceback.extract_tb(error.__traceback__)
             if row.filename == __file__] if error else None for error in held]
        assert rows[0] == rows[1] and (text == "3" or len(rows[0]) == 2)


def texts_of_a_number(x, text):
    try:
        n = int(text)
    except ValueError:
        n = -1
    return x * n


def test_a_text_that_is_no_number_is_looked_at():
    """A text that changes is no constant of the trace, and what it raised was its very own."""
    compiled = preheat.compile(texts_of_a_number, options={"cache": False})
    for text in ("3", "a", "b", "4", "c", "5"):
        assert torch.equal(compiled(X, text), texts_of_a_number(X, text))
