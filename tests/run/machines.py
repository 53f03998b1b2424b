"""Plans with kernels that are Python functions, and machines that run them on a fake GPU."""

import ctypes
import functools
import struct

import torch

from entries import MISSED, VALUE, NoRows, Slow, runtime, tuple_of
from fake_cuda import FakeCuda, FakeLanes, floats, longs
from plans import f32
from preheat.ir.graph import Ref
from preheat.generate.build import build, host_target
from preheat.ir.loop import ANY, HOST, NUMBER, Axis, Index, Kernel, LoopOp, Param, Stage
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Output, Plan
from preheat.ir.trace import Node, Return, Signature, Source, Trace
from preheat.ir.types import tensor
from preheat.run import executable as executables
from preheat.run import gpu, lowering, recording, replays
from preheat.run.buffers import empty
from preheat.run.device import Context, context
from preheat.run.entry import make_entry
from preheat.run.load import load
from preheat.run.executable import Executable, _last_uses
from preheat.run.recipes import compile_recipe
from preheat.run.replays import Graphs

N = 12
X = f32(N)


def add(a, b, out):
    floats(out, N)[:] = floats(a, N) + floats(b, N)


def double(a, out):
    floats(out, N)[:] = floats(a, N) * 2


def bump(a):
    floats(a, N)[:] += 1


def scale(a, number, out):
    (value,) = struct.unpack("f", struct.pack("I", number & 0xFFFFFFFF))
    floats(out, N)[:] = floats(a, N) * value


MOST_ROWS, EACH = 3, 8  # that one launch writes to a table; elements of a program


def grow(table, sizes, blocks):
    """a += number * b for each row (a, b, number) that a block is of."""
    seen = {}
    for block in longs(blocks, grow.programs):
        seen.setdefault(int(block) >> 32, []).append(int(block) & 0xFFFFFFFF)
    for row, found in seen.items():
        a, b, number = longs(table, 3 * (row + 1))[3 * row :]
        n = int(longs(sizes, row + 1)[row])
        (value,) = struct.unpack("d", struct.pack("q", number))
        assert found == list(range(-(-n // EACH)))
        floats(a, n)[:] += value * floats(b, n)


def grow_table(table, *words):
    longs(table, len(words))[:] = [word - (1 << 64) if word >= 1 << 63 else word for word in words]


# a = a + 1 of one number, by the host
COUNTER = Kernel("count", (Param("float32", "inout", HOST),), (Axis("i0", 1),), (Stage((), (
    LoopOp("load", 0, "float32", param=0, index=Index(0)), LoopOp("const", 1, "float32", other=1.0),
    LoopOp("add", 2, "float32", (0, 1)), LoopOp("store", -1, "float32", (2,), param=0, index=Index(0)))),), 1)
KERNELS = {
    "grow": (grow, "inout in number"), "grow_table": (grow_table, "out" + " in" * 3 * MOST_ROWS),
    "add": (add, "in in out"), "double": (double, "in out"), "bump": (bump, "inout"),
    "scale": (scale, "in number out"),
}


def noun(name):
    if name == "count":
        return COUNTER
    roles, is_flat = KERNELS[name][1].split(), name == "grow"
    return Kernel(name, tuple(
        Param("float64" if is_flat else "float32", "in", NUMBER) if role == "number"
        else Param("float32", role, f"p{k}")
        for k, role in enumerate(roles)), (Axis("i0", ANY),) if is_flat else (), ())


def made(inputs, buffers, kernels, calls, outputs, arena_bytes=0):
    outputs = tuple(o if isinstance(o, Output) else Output(buffers[o][2], o) for o in outputs)
    return Plan(tuple(inputs), tuple(Buffer(*b) for b in buffers), tuple(map(noun, kernels)),
                tuple(calls), outputs, arena_bytes)


def kernels_only():
    """((x + y) * 2, x + y) and x grows by 1: no library."""
    return made(
        (X, X),
        [("input", 0, X), ("input", 1, X), ("output", 0, X), ("output", 1, X)],
        ["add", "double", "bump"],
        [KernelCall(0, (0, 1, 3), N), KernelCall(1, (3, 2), N), KernelCall(2, (0,), N)], [2, 3])


def with_library(out="output"):
    """-(x + w) by the library, then twice that; w is read by the library too."""
    return made(
        (X, X),
        [("input", 0, X), ("input", 1, X), ("owned", 0, X), (out, 0, X), ("output", 1, X)],
        ["double"],
        [LibraryCall("aten.add.Tensor", (Ref(0), Ref(1)), (), (2,)),
         LibraryCall("aten.neg.default", (Ref(2),), (), (3,)), KernelCall(0, (3, 4), N)], [3, 4])


def with_number():
    number = tensor("float32", ())
    return made(
        (X, number), [("input", 0, X), ("input", 1, number), ("arena", 0, X), ("output", 0, X)],
        ["scale", "double"],
        [KernelCall(0, (0, 1, 2), N), KernelCall(1, (2, 3), N)], [3], 64)


def with_aliases():
    """x * 4, a view of it and one of x."""
    part = f32(3, strides=(2,))
    return made(
        (X,), [("input", 0, X), ("arena", 0, X), ("output", 0, X)], ["double"],
        [KernelCall(0, (0, 1), N), KernelCall(0, (1, 2), N)],
        [2, Output(part, alias="output", base=0, offset=1), Output(part, alias="input", offset=2)],
        64)


def batch_of(sizes):
    """Each input of two thirds, one for each size, grows by a number times another one; the last input counts."""
    number = tensor("float64", ())
    types = [f32(n) for n in sizes] * 2 + [number] * len(sizes) + [tensor("float32", ())]
    count = len(sizes)
    return made(
        types, [("input", k, type) for k, type in enumerate(types)], ["grow", "count"],
        [KernelCall(1, (3 * count,), 1),
         *(KernelCall(0, (k, count + k, 2 * count + k), n) for k, n in enumerate(sizes))],
        [Output(types[0], alias="input", base=0)])


class Machine:
    """A plan on the fake GPU: `call` is its native entry."""

    def __init__(self, monkeypatch, given, bound=(), limit_bytes=1 << 30, cells=None):
        self.fake = fake = FakeCuda()
        self.settings = settings = {"switches": ()}
        monkeypatch.setattr(gpu, "driver", lambda: fake)
        monkeypatch.setattr(executables, "run_gpu", fake.run)
        monkeypatch.setattr(lowering, "_CUDA", 0)
        monkeypatch.setattr(recording, "empty", functools.partial(_kept_empty, fake))
        monkeypatch.setattr(replays, "library_switches", lambda *what: settings["switches"])
        monkeypatch.setenv("PREHEAT_STRICT", "")
        self.lanes = FakeLanes(self.fake)
        self.graphs = Graphs("f", limit_bytes, self.lanes)
        self.executable = self._executable(given)
        self.slow = Slow()
        self.rows = NoRows()
        self.rows.words = cells or {}  # by place: where the check leaves a number's word
        self.entry = self._entry(bound)
        self.call = self.entry.call

    def _executable(self, given):
        fake = self.fake

        class Loaded:
            launches, host = {}, load(build((COUNTER,), host_target()))

            def launch(self, name, sizes=()):
                function, roles = KERNELS[name]
                return self.launches.setdefault(
                    name, fake.kernel(name, function, len(roles.split())))

            def words(self, name):
                return self.launch(name).words

            def memory_bytes(self, name):
                return self.launch(name).memory_bytes

            def address(self, name):
                return self.host.address(name)

            def most(self, name, size):
                return {"grow": EACH, "grow_table": MOST_ROWS}[name]

        class Kept(Executable):
            def record(self, *args):  # a lane's memory outlives the recording, the host's would not
                values = super().record(*args)
                fake._kept.append(values)
                return values

        found = Kept(given, Loaded(), is_lean=True)  # as on a GPU
        found.is_gpu, found.graphs = True, self.graphs
        found.keeps_arena = found.arena_bytes <= executables.KEPT_BYTES
        found.free_after = _last_uses(given, found.places, ("owned", "arena"))
        return found

    def _entry(self, bound):
        given = self.executable.plan
        count = len(given.inputs)
        free = [k for k in range(count) if k not in dict(bound)]
        sources = tuple(
            Source(-1, "live", list(dict(bound)).index(k)) if k in dict(bound)
            else Source(-1, "arg", free.index(k)) for k in range(count))
        recipe = VALUE if len(given.outputs) == 1 else tuple_of(len(given.outputs))
        trace = Trace(Signature(len(free)), sources, (
            Node((), tuple(range(count)), None, Return(recipe)),))
        here = context()
        fake_context = Context({**here.words, **self.fake.words}, here.have, here.dtype_codes)
        found = [dict(bound).get(k) for k in range(count)]
        return make_entry(
            trace, found, self.rows, self.executable, compile_recipe(recipe, len(given.outputs)),
            self.slow, runtime=runtime(), context=fake_context, live=tuple(dict(bound).values()),
            miss=MISSED)

    @property
    def replays(self):
        (only,) = self.executable.replays.values()
        return only

    def launched(self, *args):
        """What a call launches, and its result."""
        self.fake.log.clear()
        result = self.call(*args)
        assert not self.slow.calls, self.slow.calls
        return [entry for entry in self.fake.log if entry != "set"], result

    def sets(self):
        return self.fake.log.count("set")


def _kept_empty(fake, type):
    fake._kept.append(empty(type))
    return fake._kept[-1]


def numbers(seed):
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


def library_machine(machine, bound):
    """`with_library` whose library calls are seen by the fake driver's capture."""
    m = machine(with_library(), bound=bound)
    fake = m.fake
    negate = fake.kernel("neg", lambda a, out: floats(out, N).__setitem__(
        slice(None), -floats(a, N)), 2)
    plus = fake.kernel("plus", add, 3)

    def run(launch, *tensors):
        out = torch.empty(N)
        fake.run(launch, [ctypes.c_uint64(t.data_ptr()) for t in (*tensors, out)])
        fake._kept.append(out)
        return out

    def act(values):
        values[2] = run(plus, values[0], values[1])

    def act_too(values):
        values[3] = run(negate, values[2])

    m.executable.__dict__["_actions"] = (act, act_too, m.executable._action(
        2, m.executable.plan.calls[2]))
    return m
