"""A CUDA driver of Python functions: launches, captures and graphs on the host's memory, for tests.

`FakeCuda` stands for the driver's library (called through ctypes) and for the functions that native
code calls. A kernel is a Python function of the words of its parameters. What a graph does is what the
driver says it does: nodes keep the words they were captured or last set with, a launch uses those.
"""

import contextlib
import copy
import ctypes
import threading
import weakref

import numpy as np

from preheat.run.gpu import Launch
from preheat.run.recording import _KernelNode

CAPTURED = 7777  # the stream that lanes capture


def floats(address, count):
    """The memory at `address` as `count` float32 numbers."""
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_float)), (count,))


def longs(address, count):
    """The memory at `address` as `count` int64 numbers."""
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int64)), (count,))


class Node:
    def __init__(self, kind, function, words):
        self.kind, self.function, self.words = kind, function, list(words)


class FakeCuda:
    """stream: the current one;  log: what was launched;  fails: names of functions that fail;
    programs: of each launch by native code."""

    def __init__(self):
        self.stream, self.log, self.fails, self.capturing = 0, [], set(), None
        self.kernels, self.counts, self.programs = {}, {}, []
        self.graphs, self.executables, self.nodes = {}, {}, {}
        self._next = 1000
        self._kept = []
        self.words = self._words()

    def kernel(self, name, function, count, is_cooperative=False):
        """A kernel of `count` words."""
        handle = self._handle()
        self.kernels[handle], self.counts[handle] = (name, function), count
        return Launch(handle, 1, 32, 0, 0, -1, is_cooperative=is_cooperative)

    def run(self, launch, parameters):
        """What run/gpu.run does."""
        words = [p.value for p in parameters]
        self._do(self.stream, Node("kernel", launch.function, words))

    # ------------------------------------------------------------------ called through ctypes
    def cuStreamBeginCapture_v2(self, stream, mode):
        if "capture" in self.fails:
            return 1
        self.capturing = (_value(stream), [])
        return 0

    def cuStreamEndCapture(self, stream, out):
        assert self.capturing[0] == _value(stream)
        handle = self._handle()
        self.graphs[handle], self.capturing = self.capturing[1], None
        out._obj.value = handle
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream, status, number, graph, nodes, count):
        assert self.capturing[0] == _value(stream)
        last = (ctypes.c_void_p * 1)(self.capturing[1][-1])
        self._kept.append(last)
        status._obj.value, count._obj.value, nodes._obj.value = 1, 1, ctypes.addressof(last)
        return 0

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        if "instantiate" in self.fails:
            return 2
        handle = self._handle()
        self.executables[handle] = {n: copy.copy(self.nodes[n]) for n in self.graphs[_value(graph)]}
        out._obj.value = handle
        return 0

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self.graphs[_value(graph)])
        return 0

    def cuGraphDestroy(self, graph):
        del self.graphs[_value(graph)]
        return 0

    def cuGraphExecDestroy(self, executable):
        del self.executables[_value(executable)]
        return 0

    def cuMemcpyDtoDAsync_v2(self, target, source, size_bytes, stream):
        self._do(_value(stream), Node("copy", 0, [source.value, target.value, size_bytes.value]))
        return 0

    def cuGraphMemcpyNodeGetParams(self, node, out):
        words = self.nodes[_value(node)].words
        out._obj[6], out._obj[17], out._obj[22] = words
        return 0

    def cuCtxGetCurrent(self, out):
        out._obj.value = 55
        return 0

    def cuGraphExecKernelNodeSetParams_v2(self, executable, node, params):
        return self._set_kernel(_value(executable), _value(node), _value(params))

    def cuGraphExecMemcpyNodeSetParams(self, executable, node, params, owner):
        return self._set_copy(_value(executable), _value(node), _value(params), _value(owner))

    def cuGetErrorName(self, code, out):
        out._obj.value = b"CUDA_ERROR_FAKE"
        return 0

    # ------------------------------------------------------------------ called by native code
    def _words(self):
        word, number = ctypes.c_void_p, ctypes.c_int32
        rows = {
            "launch_kernel": (self._launch, word, *[ctypes.c_uint32] * 7, word, word, word),
            "launch_together": (self._launch_together, word, *[ctypes.c_uint32] * 7, word, word),
            "get_stream": (self._get_stream, number, word),
            "launch_graph": (self._launch_graph, word, word),
            "set_kernel_node": (self._set_kernel, word, word, word),
            "set_copy_node": (self._set_copy, word, word, word, word),
            "is_capturing": (self._is_capturing, word, word),
        }
        made = {name: ctypes.PYFUNCTYPE(number, *types)(f) for name, (f, *types) in rows.items()}
        self._kept.append(made)
        found = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in made.items()}
        return {**found, "bind_device": id(_nothing)}

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        self.programs.append(gx)
        self._do(stream or 0, Node("kernel", function, self._read(function, params)))
        return 0

    def _launch_together(self, function, *rest):
        self.log.append("together")
        return self._launch(function, *rest, None)

    def _get_stream(self, index, out):
        ctypes.c_void_p.from_address(out).value = self.stream
        return 0

    def _is_capturing(self, stream, out):
        is_it = self.capturing is not None and self.capturing[0] == (stream or 0)
        ctypes.c_int32.from_address(out).value = int(is_it)
        return 0

    def _set_kernel(self, executable, node, params):
        if "set" in self.fails:
            return 3
        made = _KernelNode.from_address(params)
        self.executables[executable][node] = Node(
            "kernel", made.function, self._read(made.function, made.params))
        self.log.append("set")
        return 0

    def _set_copy(self, executable, node, params, owner):
        if "set" in self.fails:
            return 3
        assert owner == 55
        words = (ctypes.c_uint64 * 25).from_address(params)
        self.executables[executable][node] = Node("copy", 0, [words[6], words[17], words[22]])
        self.log.append("set")
        return 0

    def _launch_graph(self, executable, stream):
        if "launch" in self.fails:
            return 4
        assert self.capturing is None or self.capturing[0] != (stream or 0)
        self.log.append("graph")
        for node in self.executables[executable].values():
            self._run(node)
        return 0

    # ------------------------------------------------------------------ parts
    def _do(self, stream, node):
        if self.capturing is not None and self.capturing[0] == stream:
            handle = self._handle()
            self.nodes[handle] = node
            self.capturing[1].append(handle)
            return
        self.log.append(self.kernels[node.function][0] if node.kind == "kernel" else "copy")
        self._run(node)

    def _run(self, node):
        if node.kind == "copy":
            source, target, size_bytes = node.words
            ctypes.memmove(target, source, size_bytes)
        else:
            self.kernels[node.function][1](*node.words)

    def _read(self, function, params):
        pointers = (ctypes.c_void_p * self.counts[function]).from_address(params)
        return [ctypes.c_uint64.from_address(at).value for at in pointers]

    def _handle(self):
        self._next += 1
        return self._next


class FakeLane:
    def __init__(self, fake, target):
        self.fake, self.target, self.stream = fake, target, CAPTURED
        self.graphs, self.held_bytes, self.errors = [], 0, []

    @contextlib.contextmanager
    def recording(self, calls_library):
        before, self.fake.stream = self.fake.stream, self.stream
        try:
            yield
        finally:
            self.fake.stream = before

    def memory(self):
        return None, [(0, 1 << 63)]

    def admit(self, more_bytes, limit_bytes):
        from preheat.run.lanes import Unsafe

        if max(more_bytes, self.held_bytes) > limit_bytes:
            raise Unsafe("too large")

    def keep(self, owner, graph):
        self.graphs.append((weakref.ref(owner), weakref.ref(graph)))

    def forget(self, graph):
        self.graphs = [row for row in self.graphs if row[1]() is not graph]

    def settle(self, limit_bytes, error):
        self.errors.append(type(error))


class FakeLanes:
    def __init__(self, fake):
        self.fake, self.lanes, self.recording = fake, {}, threading.Lock()

    def here(self, index):
        if self.fake.capturing is not None and self.fake.capturing[0] == self.fake.stream:
            return None
        return self.lanes.setdefault(self.fake.stream, FakeLane(self.fake, self.fake.stream))


def _value(handle):
    return (handle.value or 0) if hasattr(handle, "value") else handle


def _nothing():
    return None
