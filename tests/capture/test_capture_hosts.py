"""Host calls: made from the user's line, once, with no exception of ours in sight."""

import contextlib
import contextvars
import io
import logging
import sys
import traceback

import torch

from tests.capture.chains import Chain


def reported(call):
    """What a program logs and the traceback it ends with, addresses and our own lines left out."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(filename)s:%(lineno)d %(funcName)s %(message)s"))
    LOG.handlers[:] = [handler]
    try:
        call()
    except Exception as error:
        frames = [
            (f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)
            if f.filename == __file__ and f.name not in ("reported", "<lambda>")
        ]
        return stream.getvalue(), repr(error), repr(error.__context__), frames
    return stream.getvalue()


LOG = logging.getLogger("tests.capture.hosts")
LOG.propagate = False
LOG.setLevel(logging.INFO)


def logs(x, k):
    LOG.info("call %d", k)
    LOG.debug("nothing")
    return x + 1


@torch.compiler.disable
def raises(k):
    if k == 3:
        raise KeyError("k3")
    return sys.exc_info()


def calls_what_raises(x, k):
    y = x + 1
    seen = raises(k)
    return y, seen


def test_the_log_names_the_users_line():
    chain = Chain(logs)
    for k in (0, 1, 0, 1):
        expected = reported(lambda: logs(torch.ones(2), k))  # noqa: B023
        assert "logs call" in expected
        assert reported(lambda: chain(torch.ones(2), k)) == expected  # noqa: B023


def test_what_a_host_call_raises_has_the_users_frames_and_context():
    chain = Chain(calls_what_raises)
    for k in (0, 3, 0, 3):
        expected = reported(lambda: calls_what_raises(torch.ones(2), k))  # noqa: B023
        assert reported(lambda: chain(torch.ones(2), k)) == expected  # noqa: B023
    assert chain(torch.ones(2), 0)[1] == (None, None, None)


def test_printing_is_in_order_with_what_is_written():
    def program(x, log):
        log.append("a")
        print(log)
        x = x * 2
        log.append("b")
        print(log, len(log))
        return x

    chain, ours, theirs = Chain(program), [], []
    for _ in range(3):
        printed = [io.StringIO(), io.StringIO()]
        with contextlib.redirect_stdout(printed[0]):
            program(torch.ones(2), theirs)
        with contextlib.redirect_stdout(printed[1]):
            chain(torch.ones(2), ours)
        assert printed[0].getvalue() == printed[1].getvalue() and ours == theirs


STATE = contextvars.ContextVar("state", default="outside")


def under_a_variable(x, seen):
    token = STATE.set("inside")
    try:
        x = x + 1
        seen.append(asked())
        if x.sum() > 0:
            x = x * 2
    finally:
        STATE.reset(token)
    return x


@torch.compiler.disable
def asked():
    return STATE.get()


def test_host_calls_see_the_context_variables_of_the_program():
    chain, ours, theirs = Chain(under_a_variable), [], []
    for k in (1, 1, -5, -5, 1):
        x = torch.ones(2) * k
        assert torch.equal(chain(x, ours), under_a_variable(x, theirs))
        assert ours == theirs and STATE.get() == "outside"
    assert not chain.breaks and chain.captures == 2
