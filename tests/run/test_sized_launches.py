"""Kernels of a GPU that take sizes, without a GPU: which function the native driver launches, of how many
programs, with which words."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from entries import VALUE, NoRows, Slow, runtime
from fake_cuda import floats
from machines import Machine, kernels_only
from preheat.base.errors import InternalError
from preheat.ir.graph import Ref
from preheat.ir.hinted import Book
from preheat.ir.loop import Axis, Index, Kernel, LoopOp, Param, Stage, sizes_of
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Output, Plan, Sizing
from preheat.ir.scalar import symbol
from preheat.ir.sized import at, with_hinted_sizes
from preheat.ir.trace import Node, Return, Signature, Source, Trace
from preheat.ir.types import TensorType
from preheat.run import library_rows
from preheat.run.device import Context, context
from preheat.run.entry import EntryStencil
from preheat.run.executable import KEPT_BYTES, Executable
from preheat.run.gpu import Launch, LoadedGpu
from preheat.run.lowering import lower
from preheat.run.memory import Stencil, compiled_expressions
from preheat.run.recipes import compile_recipe
from preheat.run.shims import ShimCall
from preheat.run.sized import Instance, Planned
from preheat.run.sized_calls import SizedCalls
from preheat.run.stencils import Stencils

LENGTH = symbol("n2")
X = TensorType("float32", (LENGTH,), (1,))


def kernel():
    at_i0 = Index(0, (("i0", 1),))
    body = (LoopOp("load", 0, "float32", param=0, index=at_i0),
            LoopOp("store", -1, "float32", (0,), param=1, index=at_i0))
    return Kernel("double", (Param("float32", "in"), Param("float32", "out")),
                  (Axis("i0", LENGTH),), (Stage((), body),), 1, "i0")


def plan(calls=1):
    """x doubled `calls` times."""
    buffers = [Buffer("input", 0, X), *(Buffer("owned", 0, X) for _ in range(calls - 1)), Buffer("output", 0, X)]
    return Plan(
        (X,), tuple(buffers), (kernel(),),
        tuple(KernelCall(0, (k, k + 1), LENGTH, 0, sizes_of(kernel())) for k in range(calls)),
        (Output(X, calls),), 0, ("n2",), ())


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch, kernels_only())


def doubles(fake, name):
    def run(a, out, n):
        n &= 0xFFFFFFFF
        floats(out, n)[:] = floats(a, n) * 2

    return replace(fake.kernel(name, run, 3), programs=0)


def loaded(fake):
    """Two functions: of whole fours, and of any; each program does eight."""
    blocks = (((LENGTH,), 8),)
    return LoadedGpu({"double": [
        (doubles(fake, "whole"), Sizing(blocks, (((LENGTH,), 100),), (((LENGTH,), 4),))),
        (doubles(fake, "short"), Sizing(blocks, (((LENGTH,), 100),))),
        (doubles(fake, "any"), Sizing(blocks))]}, [])


def native(machine, given, sizes, hint=8, kernels=None):
    """The native entry of a plan at `sizes`, from tables for all."""
    book = Book()
    made = Executable(
        with_hinted_sizes(given, ("n2",), [(hint,), (11,)], book), kernels or loaded(machine.fake))
    made.is_gpu = True
    trace = Trace(Signature(1), (Source(-1, "arg", 0),), (Node((), (0,), None, Return(VALUE)),))
    here = context()
    known = Context({**here.words, **machine.fake.words}, here.have, here.dtype_codes)
    return EntryStencil(
        trace, [None], NoRows, made, compile_recipe(VALUE, 1), Slow(), ("n2",), book,
        runtime=runtime(), context=known).at(sizes)


@pytest.mark.parametrize("size, name, programs", [
    (8, "whole", 1), (11, "short", 2), (100, "whole", 13), (97, "short", 13), (104, "any", 13), (1, "short", 1)])
@pytest.mark.parametrize("calls", [1, 3])
def test_the_first_that_is_for_the_size_is_launched(machine, size, name, programs, calls):
    call = native(machine, plan(calls), {"n2": size})
    for seed in range(3):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        machine.fake.log.clear()
        machine.fake.programs.clear()
        assert torch.equal(call(x), x * 2**calls)
        assert machine.fake.log == [name] * calls and machine.fake.programs == [programs] * calls


def test_the_same_from_python(machine, monkeypatch):
    for size, name in ((8, "whole"), (9, "short"), (200, "any")):
        made = Executable(at(plan(), {"n2": size}), loaded(machine.fake))
        made.is_gpu = True
        made.__dict__.pop("_actions", None)
        x = torch.randn(size)
        machine.fake.log.clear()
        (found,) = made([x])
        assert torch.equal(found, x * 2) and machine.fake.log == [name]


def test_a_launch_has_memory_for_itself_and_so_many_programs_as_are_known(machine):
    """The address comes behind the sizes, at a multiple of 128 bytes from where torch's memory begins."""
    found = []

    def run(a, out, n, own):
        n &= 0xFFFFFFFF
        found.append(own)
        floats(own, n)[:] = floats(a, n)
        floats(out, n)[:] = floats(own, n) * 2

    launch = replace(machine.fake.kernel("owns", run, 4), programs=3, memory_bytes=512)
    kernels = LoadedGpu({"double": [(launch, Sizing((), least=(((LENGTH,), 4),)))]}, [])
    x = torch.randn(50)
    assert torch.equal(native(machine, plan(3), {"n2": 50}, kernels=kernels)(x), x * 8)
    assert machine.fake.programs == [3] * 3 and len({at % 128 for at in found}) == 1 and len(set(found)) == 3
    made = Executable(at(plan(), {"n2": 50}), kernels)
    made.is_gpu = True
    made.__dict__.pop("_actions", None)
    assert torch.equal(made([x])[0], x * 2)
    with pytest.raises(InternalError, match="double"):
        kernels.launch("double", {LENGTH: 3})


def test_one_set_of_tables_keeps_the_same_results_in_a_frame_at_sizes_that_differ(machine, monkeypatch):
    """Which results lie in the frame hangs on their bytes: at most as many as fit at the first sizes, at
    others the same ones, as long as the frame stays within twice as much."""
    rows = TensorType("float32", (LENGTH, 256), (256, 1))
    count = 12
    buffers = [Buffer("input", 0, rows), *(Buffer("owned", 0, rows) for _ in range(count)), Buffer("output", 0, rows)]
    calls = tuple(LibraryCall("aten.neg.default", (Ref(k),), (), (k + 1,)) for k in range(count + 1))
    given = Plan((rows,), tuple(buffers), (), calls, (Output(rows, count + 1),), 0, ("n2",), ())
    monkeypatch.setattr(
        library_rows, "shim_call", lambda call, *_: ShimCall(1, True, (("tensor", call.args[0].id),), ()))
    here = context()
    known = Context({**here.words, **machine.fake.words}, here.have | {"shims"}, here.dtype_codes)
    kept = {}
    for hint in (100, 1000, 4000):
        book = Book()
        made = Executable(with_hinted_sizes(given, ("n2",), [(hint,), (11,)], book), loaded(machine.fake))
        made.is_gpu = True
        kept[hint] = len(lower(made, known, Stencil(), 0).kept)
        allows = compiled_expressions(("n2",), book.conditions)
        most = 2 * KEPT_BYTES // (kept[hint] * 1024)
        assert all(allows(hint // 2)) and all(allows(most)) and not all(allows(most + 1)), book.conditions
    assert kept == {100: 12, 1000: 8, 4000: 2}


def test_what_is_chosen_for_many_sizes_is_what_is_chosen_for_each():
    """Rows that fill a tile, that are shorter and divide, and shorter ones; of two lengths, then of any."""
    launches = []
    for size in (64, 128):
        for least, multiple in ((size, 4), (size // 2, 4), (size // 2, 1)):
            dims = (LENGTH,)
            launches.append((Launch(len(launches), 0, 32, 0, 0, 0), Sizing(
                ((dims, size),), ((dims, size),), ((dims, multiple),), ((dims, least),))))
    launches.append((Launch(len(launches), 0, 32, 0, 0, 0), Sizing((((LENGTH,), 1),))))
    only = LoadedGpu({"rows": launches}, [])
    choose = only.chooser("rows", {LENGTH: lambda given: given})
    found = {}
    for length in range(200):
        one, (launch, programs) = only.launch("rows", {LENGTH: length}), choose(length)
        assert (one.function, one.programs) == (launch.function, programs)
        found.setdefault(one.function, []).append(length)
    assert found[0] == [64] and found[3] == [128] and found[1] == list(range(32, 64, 4))
    assert found[6] == [*range(32), *range(129, 200)]


def test_a_size_that_no_function_is_for_is_our_fault(machine):
    only = LoadedGpu({"double": [(doubles(machine.fake, "short"), Sizing((((LENGTH,), 8),), (((LENGTH,), 4),)))]}, [])
    with pytest.raises(InternalError, match="double"):
        only.launch("double", {LENGTH: 5})


@pytest.mark.parametrize("device, has_graphs, expected", [
    ("cuda:0", True, ["shared", "shared", "own", "own"]), ("cuda:0", False, ["shared"] * 4), ("cpu", True, ["shared"] * 4)])
def test_sizes_that_come_again_get_tables_of_their_own_where_these_may_be_a_graph(device, has_graphs, expected):
    calls = object.__new__(SizedCalls)
    calls.sized, calls.trace, calls.found = SimpleNamespace(device=device), None, None
    calls._stamped, calls._rebuild = lambda run: "shared", lambda whole: None
    calls._entry_at = lambda *given: SimpleNamespace(call="own")
    run = Planned(SimpleNamespace(plan=SimpleNamespace(symbols=())), (), object() if has_graphs else None)
    run.__dict__["executable"] = None
    instance = Instance(run)
    assert [calls._native(instance, run) for _ in expected] == expected


def test_sizes_that_tables_are_not_for_get_others_a_few():
    class Stencil:
        def __init__(self, most):
            self.most = most

        def at(self, sizes):
            return self.most if sizes["n2"] <= self.most else None

    made = []
    stencils = Stencils(lambda values: made.append(*values) or Stencil(*values))
    found = [stencils.at((n,), {"n2": n}) for n in (4096, 4100, 4097, 4101, 4102, 4103, 4095)]
    assert found == [4096, 4100, 4100, 4101, 4102, None, 4096] and made == [4096, 4100, 4101, 4102]
