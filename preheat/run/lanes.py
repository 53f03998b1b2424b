"""Lanes: what the graphs of one stream share. Each stream that calls come on has a lane of its own.

    lane = Lanes.of_process().here(0)     that of the current stream of device 0
    with lane.recording(): ...            captured work, memory from the lane

Graphs of one stream run one after the other, and none leaves anything that counts in its memory, so
all of them have it from one pool, which is as large as the largest of them. It stays when they end, for
the next ones, until `preheat.reset()`. A lane captures on a
stream of its own, never on one of torch's, which programs use too; the workspaces that libraries
keep for that stream come from a pool that is never given back, since torch may let go of them while
graphs still point there.
"""

import contextlib
import ctypes
import functools
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from preheat.base.errors import PreheatError
from preheat.run import gpu

MOST_LANES = 16  # streams of a device that calls are recorded for; a lane is never given back
MOST_GRAPHS = 256  # of a lane, each some 100 KB of the driver's memory
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the legacy default stream does not wait for it


class Unsafe(PreheatError):
    """A plan cannot be a graph, or not now: its calls are launched one by one. The message says why."""


class Lane:
    """See the module docstring.

    target   the stream that its graphs are launched on;  stream   the one that it captures
    """

    def __init__(self, index: int, target: int):
        self.index, self.target = index, target
        handle = ctypes.c_void_p()
        with torch.cuda.device(index):
            gpu.bind_device()
            gpu.call("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING)
            self._workspaces = torch.cuda.MemPool()
        self.stream = handle.value
        self._stream = torch.cuda.ExternalStream(self.stream, device=torch.device("cuda", index))
        self._pool: Any = None
        # who has recorded it, and the graph; who has ended takes its graphs along
        self._graphs: list[tuple[weakref.ref, weakref.ref]] = []

    @contextlib.contextmanager
    def recording(self, calls_library: bool) -> Iterator[None]:
        """A block of this thread whose work goes to `stream`, and whose memory comes from the lane.

        calls_library   workspaces are needed, too
        """
        with torch.cuda.device(self.index), torch.cuda.stream(self._stream):
            if calls_library:
                self._prepare_workspaces()
            if self._pool is None:
                self._pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(self._pool, self.index):
                yield

    def _prepare_workspaces(self) -> None:
        """Libraries have one for each stream and each thread that calls them."""
        with torch.cuda.use_mem_pool(self._workspaces, self.index), torch.no_grad():
            torch.cuda.current_blas_handle()
            small = torch.ones(16, 16, device=torch.device("cuda", self.index))
            torch.addmm(small[0], small, small)  # by cublasLt, which may have another

    def memory(self) -> tuple[object, Sequence[tuple[int, int]]]:
        """What keeps the present memory, and where that is: address and bytes of each piece."""
        if self._pool is None:
            return None, ()
        return self._pool, [(s["address"], s["total_size"]) for s in self._pool.snapshot()]

    def admit(self, more_bytes: int, limit_bytes: int) -> None:
        """Raises Unsafe where the lane's memory and `more_bytes` are more than a graph may have."""
        held_bytes = sum(size for _, size in self.memory()[1])
        if more_bytes > limit_bytes or held_bytes > limit_bytes:
            raise Unsafe(
                f"its memory, {max(more_bytes, held_bytes) >> 20} MB, would be more than "
                f"graph_bytes, {limit_bytes >> 20} MB")

    def keep(self, owner: Any, graph: Any) -> None:
        """`graph` has been recorded by `owner`, a `Replays`. Where there are too many, the one that was
        launched longest ago goes."""
        self._graphs = [row for row in self._graphs if row[1]() is not None]
        if len(self._graphs) >= MOST_GRAPHS:
            oldest, unused = min(self._living(), key=lambda row: row[1]["used"])
            oldest.forget(unused)
        self._graphs.append((weakref.ref(owner), weakref.ref(graph)))

    def forget(self, graph: Any) -> None:
        self._graphs = [row for row in self._graphs if row[1]() not in (None, graph)]

    def settle(self, limit_bytes: int, error: BaseException) -> None:
        """A recording has failed with `error`: what it has taken is given back.

        Where that was too much, so is all that the lane has: its graphs are recorded anew when their
        calls come again.
        """
        held_bytes = sum(size for _, size in self.memory()[1])
        is_out = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        living = self._living()
        if living and held_bytes <= limit_bytes and not is_out:
            return
        for replays, graph in living:
            replays.forget(graph)
        self.trim()

    def trim(self) -> None:
        """Gives the memory back if no graph needs it."""
        if self._pool is not None and not self._living():
            gpu.call("cuStreamSynchronize", ctypes.c_void_p(self.target))
            self._graphs, self._pool = [], None

    def _living(self) -> list[tuple[Any, Any]]:
        rows = ((owner(), graph()) for owner, graph in self._graphs)
        return [row for row in rows if None not in row]


class Lanes:
    """The lanes of a process, by device and stream. `recording` is held by who records: one at a time."""

    def __init__(self) -> None:
        self.recording = threading.Lock()
        self._lanes: dict[tuple[int, int], Lane] = {}

    @classmethod
    @functools.cache
    def of_process(cls) -> "Lanes":
        return cls()

    def here(self, index: int) -> Lane | None:
        """The lane of the current stream of device `index`; None while the program captures that
        itself, and where there are as many as may be."""
        if torch.cuda.is_current_stream_capturing():
            return None
        target = torch.cuda.current_stream(index).cuda_stream
        lane = self._lanes.get((index, target))
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                return None
            lane = self._lanes[index, target] = Lane(index, target)
        return lane

    def trim(self) -> None:
        """Lanes give back what no graph needs, unless the program captures a graph just now."""
        if self._lanes and not torch.cuda.is_current_stream_capturing():
            gc.collect()  # what has ended may lie in cycles
            with self.recording:
                for lane in self._lanes.values():
                    lane.trim()
