"""The native checker and driver of a machine are made beside the first recording: once, and nobody trips over it."""

import os
import threading

import pytest

import preheat.compiler
from preheat.base.errors import InternalError
from preheat.runtime import _Runtime


@pytest.fixture
def made(monkeypatch):
    """The threads in which the image is made; it waits for `go`."""
    threads, go, real = [], threading.Event(), preheat.compiler.runtime_image

    def make():
        threads.append(threading.current_thread())
        go.wait(60)
        return real()

    monkeypatch.setattr(preheat.compiler, "runtime_image", make)
    return threads, go


def test_who_needs_it_waits_for_the_thread(made):
    threads, go = made
    runtime = _Runtime(None)
    runtime.begin()
    runtime.begin()
    threading.Timer(0.1, go.set).start()
    image = runtime.image()
    assert image is runtime.image() and dict(image.entries).keys() == {"preheat_check", "preheat_entry"}
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_without_a_beginning_who_needs_it_makes_it(made):
    threads, go = made
    go.set()
    _Runtime(None).image()
    assert threads == [threading.current_thread()]


def test_a_fork_waits_until_llvm_is_done(made):
    threads, go = made
    runtime = _Runtime(None)
    runtime.begin()
    threading.Timer(0.1, go.set).start()
    child = os.fork()
    if not child:
        os._exit(0 if runtime._image is not None and runtime.image() is runtime._image else 1)
    assert os.waitpid(child, 0)[1] == 0 and go.is_set()


def test_where_no_thread_can_be_started_who_needs_it_makes_it(made, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    threads, go = made
    go.set()
    runtime = _Runtime(None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        runtime.begin()
    assert runtime.image() is not None and threads == [threading.current_thread()]


def test_an_error_is_that_of_who_needs_it(monkeypatch):
    def refuse():
        raise InternalError("LLVM refused")

    monkeypatch.setattr(preheat.compiler, "runtime_image", refuse)
    runtime = _Runtime(None)
    runtime.begin()
    with pytest.raises(InternalError):
        runtime.image()
