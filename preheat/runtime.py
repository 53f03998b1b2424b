"""The native checker and driver of this machine: kept on disk, made where they are not there yet.

    begin_runtime(disk)     something new is about to be recorded: a thread makes them meanwhile
    runtime_image(disk)     -> Image, which everything that is bound needs

LLVM takes 40 to 160 ms for them, a good part of a small program's cold first call, and holds no lock of the
interpreter while it works.
"""

import contextlib
import functools
import os
import threading

from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image
from preheat.run.load import machine_name
from preheat.store.calls import machine_key
from preheat.store.disk import Disk


def begin_runtime(disk: Disk | None) -> None:
    """Begins to make what `runtime_image` gives, where there is a processor to spare for it."""
    if len(os.sched_getaffinity(0)) > 1:
        _runtime(disk).begin()


def runtime_image(disk: Disk | None) -> Image:
    """The native checker and driver of this machine, from `disk` or made anew."""
    return _runtime(disk).image()


class _Runtime:
    """The image that is kept on `disk`: one thread makes it, all others wait for that. A fork waits, too, or LLVM's
    locks would stay locked in the child."""

    def __init__(self, disk: Disk | None):
        self._disk, self._lock = disk, threading.RLock()
        self._image: Image | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(before=self._join)

    def begin(self) -> None:
        """Starts the thread, once."""
        with self._lock:
            if self._image is None and self._thread is None:
                thread = threading.Thread(target=self._make, name="preheat runtime")
                with contextlib.suppress(RuntimeError):  # there can be no more threads
                    thread.start()
                    self._thread = thread

    def image(self) -> Image:
        """The image. Raises what LLVM raises."""
        with self._lock:
            if self._image is None:
                self._image = _image(self._disk)
            return self._image

    def _make(self) -> None:
        with contextlib.suppress(Exception):  # who needs the image gets the error
            self.image()

    def _join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


@functools.lru_cache(maxsize=8)
def _runtime(disk: Disk | None) -> _Runtime:
    return _Runtime(disk)


def _image(disk: Disk | None) -> Image:
    key, hint = machine_key("runtime", machine_name()), "image"
    for found in disk.read(key, hint) if disk is not None else ():
        image = decode(found.payload)
        if isinstance(image, Image):
            return image
    from preheat.compiler import runtime_image as make_runtime  # lazy: as in dispatch

    image = make_runtime()
    if disk is not None:
        disk.write(key, hint, encode(image))
    return image
