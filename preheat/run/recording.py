"""Recording: the calls of a plan as one CUDA graph, and which of its words change from call to call.

    recording = record(executable, inputs, roles, lane)
    recording.executable       what cuGraphLaunch takes
    recording.patches          nodes to set anew: kernel 3: word 0 from slot 2; copy in of slot 0; ..

The calls run under a stream's capture, so nothing is computed and nothing is written: the graph does
it at each launch. Kernels of the plan get the addresses of their call, word by word (`patched`). What
library calls see lies at one place: an input is where it always was (`fixed`) or is copied there by
the graph's first nodes (`copied_in`); a result is copied to fresh memory by its last ones
(`copied_out`). Between two launches a graph holds nothing that counts, so those of one stream share
their memory.

Source: CUDA Driver API 13.0, stream capture; CUDA Programming Guide, "Updating instantiated graphs".
"""

import contextlib
import ctypes
import weakref
from collections.abc import Iterator, Sequence

import torch

from preheat.base.collector import paused_collector
from preheat.base.dataclass import dataclass
from preheat.run import gpu
from preheat.run.batches import Parameter
from preheat.run.buffers import empty, extent_bytes
from preheat.run.executable import Executable
from preheat.run.lanes import Lane, Unsafe

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile
# CUDA_MEMCPY3D is 25 words; these two are the device addresses.
_COPY_WORDS, _SOURCE, _TARGET = 25, 6, 17


@dataclass(frozen=True, slots=True)
class Roles:
    """Buffers by number: inputs and results of a plan. What is not named is not used."""

    patched: frozenset[int]
    copied_in: tuple[int, ...]
    copied_out: tuple[int, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A word of a node: the pointer in `slot`, `bytes` further, or the number of `width` bytes there."""

    address: int
    slot: int
    bytes: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class Patch:
    """A node with words that change. kind: a row of records.NODES. `kept`: what `params` points to."""

    kind: str
    node: int
    params: int
    owner: int
    sites: tuple[Site, ...]
    kept: tuple


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in (
            "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")),
        ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    ]


class Recording:
    """A graph, and once it is instantiated its executable. It lives until nobody holds this; a launch
    under way ends well. `memory` is what its nodes use."""

    def __init__(self, graph: ctypes.c_void_p, patches: Sequence[Patch], memory: object):
        self.patches, self.nodes = tuple(patches), 0
        self._graph, self._made = graph, ctypes.c_void_p()
        weakref.finalize(self, _destroy, gpu.driver(), graph, self._made, memory)

    @property
    def executable(self) -> int:
        """What is launched."""
        return self._made.value or 0

    def instantiate(self) -> None:
        """Makes the executable. Raises InternalError where a node cannot be set, too."""
        count, made = ctypes.c_size_t(), self._made
        gpu.call("cuGraphGetNodes", self._graph, None, ctypes.byref(count))
        self.nodes = count.value
        gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(made), self._graph,
                 ctypes.c_ulonglong(0))
        for patch in self.patches:
            node, params = ctypes.c_void_p(patch.node), ctypes.c_void_p(patch.params)
            if patch.kind == "kernel":
                gpu.call("cuGraphExecKernelNodeSetParams_v2", made, node, params)
            else:
                owner = ctypes.c_void_p(patch.owner)
                gpu.call("cuGraphExecMemcpyNodeSetParams", made, node, params, owner)

    def text(self) -> str:
        """The graph for people: what it has, and what of it changes from call to call."""
        lines = [f"cuda graph ({self.nodes} nodes)"]
        for patch in self.patches:
            words = ", ".join(_site_text(site) for site in patch.sites)
            lines.append(f"  {patch.kind} {words}")
        return "\n".join(lines)


def record(
    executable: Executable, inputs: Sequence[torch.Tensor], roles: Roles, lane: Lane,
    calls_library: bool = True,
) -> Recording:
    """The graph of `executable`'s calls. Raises Unsafe, and what the calls raise."""
    notes = _Notes(executable, roles, lane.stream)
    plan = executable.plan
    tails = {b: empty(plan.buffers[b].type) for b in roles.copied_out}
    given = list(inputs)
    with paused_collector(), lane.recording(calls_library), torch.no_grad(), _captured(lane.stream) as graph:
        for buffer in roles.copied_in:
            type, index = plan.buffers[buffer].type, plan.buffers[buffer].index
            inner = empty(type)
            notes.copy(inner.data_ptr(), given[index].data_ptr(), extent_bytes(type), buffer, _SOURCE)
            given[index] = inner
        values = executable.record(given, notes.launched)
        for buffer, tail in tails.items():
            size_bytes = extent_bytes(plan.buffers[buffer].type)
            notes.copy(tail.data_ptr(), values[buffer].data_ptr(), size_bytes, buffer, _TARGET)
    made = [
        value.data_ptr() for buffer, value in zip(plan.buffers, values[:-1])
        if buffer.kind not in ("input", "view") and isinstance(value, torch.Tensor) and value.numel()
        and buffer.type.device == executable.device]
    holder, pieces = lane.memory()
    recording = Recording(graph, notes.patches, holder)
    if not all(any(at <= one < at + size for at, size in pieces) for one in made):
        raise Unsafe("its memory comes from a pool of the program's own")
    recording.instantiate()
    return recording


@contextlib.contextmanager
def _captured(stream: int) -> Iterator[ctypes.c_void_p]:
    """A block whose work on `stream` becomes the graph, which is there at its end."""
    graph = ctypes.c_void_p()
    gpu.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _THREAD_LOCAL)
    try:
        yield graph
    except BaseException:
        # what was captured is of no use, and so is the error that the end of it gives
        gpu.driver().cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        if graph:
            gpu.driver().cuGraphDestroy(graph)
        raise
    gpu.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))


class _Notes:
    """The nodes with words that change, noted while they are captured."""

    def __init__(self, executable: Executable, roles: Roles, stream: int):
        self.executable, self.roles, self.stream = executable, roles, ctypes.c_void_p(stream)
        self.patches: list[Patch] = []
        self.owner = ctypes.c_void_p()
        gpu.call("cuCtxGetCurrent", ctypes.byref(self.owner))

    def launched(self, launch: gpu.Launch, parameters: Sequence[Parameter], values: Sequence) -> None:
        """A launch has just been captured."""
        plan, places = self.executable.plan, self.executable.places
        words = (ctypes.c_uint64 * (len(parameters) + launch.words))()
        sites: list[Site] = []
        for k, (kind, value, further) in enumerate(parameters):
            at = ctypes.addressof(words) + 8 * k
            if kind == "word":
                words[k] = ctypes.c_uint64(value).value
            elif kind == "number":
                width = plan.buffers[value].type.itemsize
                ctypes.memmove(at, values[value].data_ptr(), width)
                sites.append(Site(at, value, width=width))
            else:
                words[k] = values[value].data_ptr() + further
                if value < len(places) and places[value].root in self.roles.patched:
                    sites.append(Site(at, places[value].root, places[value].offset_bytes))
        if not sites:
            return
        pointers = (ctypes.c_void_p * len(words))(
            *(ctypes.addressof(words) + 8 * k for k in range(len(words))))
        params = _KernelNode(
            launch.function, launch.programs, 1, 1, launch.threads, 1, 1, launch.shared_bytes,
            ctypes.addressof(pointers))
        self._note("kernel", ctypes.addressof(params), sites, (words, pointers, params))

    def copy(self, target: int, source: int, size_bytes: int, slot: int, word: int) -> None:
        """Captures a copy in which `word` is the pointer of `slot`."""
        if size_bytes == 0:
            return
        gpu.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_uint64(source),
                 ctypes.c_size_t(size_bytes), self.stream)
        params = (ctypes.c_uint64 * _COPY_WORDS)()
        at = ctypes.addressof(params)
        gpu.call("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(self._last()), ctypes.byref(params))
        if (params[_SOURCE], params[_TARGET]) != (source, target):
            raise Unsafe("the driver describes a copy in a way that is not known")
        self._note("copy", at, [Site(at + 8 * word, slot)], (params,))

    def _note(self, kind: str, params: int, sites: list[Site], kept: tuple) -> None:
        owner = self.owner.value or 0
        self.patches.append(Patch(kind, self._last(), params, owner, tuple(sites), kept))

    def _last(self) -> int:
        """The node that was captured last."""
        status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
        graph, nodes = ctypes.c_void_p(), ctypes.c_void_p()
        gpu.call("cuStreamGetCaptureInfo_v2", self.stream, *map(
            ctypes.byref, (status, number, graph, nodes, count)))
        if count.value != 1:
            raise Unsafe(f"its calls run side by side: {count.value} ends of one stream")
        return ctypes.c_void_p.from_address(nodes.value).value


def _site_text(site: Site) -> str:
    if site.width:
        return f"number b{site.slot}"
    return f"b{site.slot}" + (f" + {site.bytes}" if site.bytes else "")


def _destroy(
    driver: ctypes.CDLL, graph: ctypes.c_void_p, executable: ctypes.c_void_p, memory: object
) -> None:
    """`memory` is what the graph used: it is let go last."""
    if executable:
        driver.cuGraphExecDestroy(executable)
    driver.cuGraphDestroy(graph)
