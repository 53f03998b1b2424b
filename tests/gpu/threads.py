"""Threads that call compiled code at once."""

import threading
from collections.abc import Callable, Iterable
from typing import Any


def at_once(work: Callable[[Any], None], given: Iterable[Any]) -> None:
    """`work(each)` in a thread of its own for each of `given`. Raises AssertionError where any raised."""
    failures: list[str] = []

    def one(value: Any) -> None:
        try:
            work(value)
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=one, args=(value,)) for value in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
