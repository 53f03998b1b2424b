"""Nodes end inside exception handlers: what is called there sees the exception, on every call."""

import contextlib
import io
import logging
import sys
import traceback

import pytest
import torch

from preheat.capture.capture import capture
from preheat.ir.trace import Named
from tests.capture.chains import Chain
from tests.capture.test_capture_inside import equal
from tests import processes
from tests.same import same

LOG = logging.getLogger("tests.capture.handlers")
LOG.propagate = False


class Refused(Exception):
    def __init__(self, what, limit):
        super().__init__(what)
        self.limit = limit


def check(x, size):
    if x.shape[0] != size:
        raise Refused(f"not {size} rows", size)
    return x * 2


def printed(x):
    try:
        y = check(x, 3)
    except Refused as error:
        print("refused", error, error.limit)
        y = x + error.limit
    return y - 1


def logged(x):
    try:
        y = check(x, 3)
    except Refused:
        LOG.exception("while checking")
        y = x + 1
    return y * 2


def chained(x):
    try:
        try:
            {}["absent"]
        except KeyError as missing:
            print("missing", missing)
            raise Refused("nothing", 0) from missing
    except Refused as error:
        traceback.print_exc(file=sys.stdout)
        cause = error.__cause__
        y = x + len(cause.args)
    return y


def in_context(x):
    try:
        try:
            int("seven")
        except ValueError:
            print("no number", sys.exc_info()[0].__name__)
            [].pop()
    except IndexError:
        print(traceback.format_exc())
        x = x * 3
    print(sys.exc_info())
    return x


def in_a_loop(x):
    for size in (1, 2, 3):
        try:
            x = check(x, size)
        except Refused as error:
            print(size, repr(error))
            x = x + 1
        else:
            print("right", x.sum().item())
    return x


def numbers():
    for i in range(3):
        try:
            yield i
        except Refused as error:
            print("thrown", error, sys.exc_info()[1] is error)
            yield 10 + i
            print("later", repr(sys.exc_info()[1]))


def thrown(x):
    made = numbers()
    x = x + next(made)
    try:
        check(x, 7)
    except Refused as error:
        x = x + made.throw(error)
        print("between", repr(sys.exc_info()[1]))
    for i in made:
        print("then", i, sys.exc_info())
        x = x * i
    return x


@contextlib.contextmanager
def forgiving(name):
    print("enter", name)
    try:
        yield name
    except Refused as error:
        print("forgiven", error, error.limit)
    finally:
        print("leave", name)


def forgiven(x):
    with forgiving("a"):
        x = x + 1
        check(x, 9)
        x = x + 100
    return x * 2


def at_last(x):
    try:
        x = x + 1
        try:
            check(x, 9)
        finally:
            print("at last")
    except Refused as error:
        x = x + error.limit
    return x


def with_fields(x):
    try:
        x.absent
    except AttributeError as error:
        print(error.name, error.obj is x, error)
    try:
        next(iter(()))
    except StopIteration as stop:
        print(stop.value)
    try:
        print(undefined)  # noqa: F821
    except NameError as error:
        error.add_note("a note")
        print(error.name, error.__notes__)
    return x + 1


def again(x):
    try:
        try:
            check(x, 9)
        except Refused as error:
            print("first", error)
            raise
    except Refused as error:
        print("second", len(traceback.extract_tb(error.__traceback__)))
    return x + 2


def leaves(x):
    try:
        check(x, 9)
    except Refused as error:
        print("leaves", error)
        raise RuntimeError("left") from error


def by_value(x):
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        print("not positive")
        y = x * 0
    return y


CUT = (printed, logged, chained, in_context, in_a_loop, thrown, forgiven, with_fields)
PARTLY = (again, leaves, at_last, by_value)


def outcome(call, x):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(lineno)d %(funcName)s %(message)s"))
    LOG.handlers[:] = [handler]
    result = None
    with torch.no_grad(), contextlib.redirect_stdout(out):
        try:
            result = call(x)
        except RuntimeError as error:
            print(lines(error), repr(error.__cause__), lines(error.__cause__))
    return result, out.getvalue()


def lines(error):
    return [
        (f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)
        if f.filename == __file__ and f.name != "outcome"
    ]


@pytest.mark.parametrize("is_closing", [True, False])
@pytest.mark.parametrize("program", [*CUT, *PARTLY])
def test_handlers(program, is_closing):
    chain = Chain(program, is_closing)
    for k in range(6):
        x = torch.eye(2) * (1 + k // 3)
        expected, found = outcome(program, x), outcome(chain, x)
        assert expected[1] == found[1]
        assert equal(expected[0], found[0])
        if program in CUT and k == 2:
            assert (chain.captures, chain.breaks) == (1, [])


@pytest.mark.parametrize("program", [*CUT, *PARTLY])
def test_compiled(program):
    seen = same(program, torch.eye(2), calls=5)
    if program in CUT:
        assert seen.counters["captures"] <= 2


def test_a_failure_that_hangs_on_values_is_no_part_of_a_node():
    chain = Chain(by_value)
    for sign in (-1, -1):
        assert outcome(chain, torch.eye(2) * sign)[1] == "not positive\n"
    assert torch.equal(outcome(chain, torch.eye(2) * 4)[0], torch.eye(2) * 2)
    assert chain.replays == 0


def reads_where(x):
    try:
        check(x, 9)
    except Refused as error:
        print("where", error)
        found = sys.exc_info()[2]
        x = x + found.tb_lineno
        print(traceback.format_tb(found), traceback.format_tb(error.__traceback__))
    return x


def test_a_traceback_is_read_where_it_stands():
    chain = Chain(reads_where)
    for _ in range(3):
        assert outcome(chain, torch.eye(2))[1] == outcome(reads_where, torch.eye(2))[1]
    assert chain.captures <= 2


def test_a_warm_process_has_what_the_recipes_name():
    loaded = "import sys, preheat.run.walk; print(*sys.modules)"
    there = processes.printed("-c", loaded).split()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        nodes = capture(printed, (torch.eye(2),), {}, limits=None).nodes
    steps = [step for node in nodes for step in node.trace.nodes[0].end.recipe.steps]
    named = {arg.module for step in steps for arg in step.args if type(arg) is Named}
    assert {name for name in named if name.startswith("preheat")} <= set(there)
    assert "preheat.base.stubs" in named and "preheat.base.callers" in named
