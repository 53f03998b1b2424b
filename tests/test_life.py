"""Memory and life: everything hangs on the compiled object, and nothing of a call outlives it."""

import gc
import os
import resource
import subprocess
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import preheat
from same import is_enabled

X = torch.linspace(-1.0, 1.0, 8)
is_compiling = pytest.mark.skipif(not is_enabled(), reason="compiles nothing")


def compiled_of(fn, **options):
    return preheat.compile(fn, options={"cache": False, **options})


@preheat.disable
def quiet(x):
    """A host step with nothing to see."""


# ---------------------------------------------------------------------------- programs
class Counting(nn.Module):
    """Three kinds of step: a host call, a branch on a value, a write."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.count, self.log = 0, {}

    def forward(self, x):
        y = self.inner(x)
        self.count += 1
        quiet(y)
        if y.sum() > 0:
            y = y * 2
        self.log["last"] = self.count
        return y + y.max().item()


def plain(x):
    return torch.relu(x * 2) + 1


def looping(x):
    n = 0
    while x.norm() > 1.0:
        x = x * 0.5
        n += 1
    return x, n


def tables(x):
    rows = [x * i for i in range(3)]
    quiet(rows)
    rows.append(rows[0] + rows[1])
    return {"rows": rows, "sum": sum(row.sum().item() for row in rows)}


def caught(x):
    try:
        raise_it(x)
    except ValueError as error:
        return x + len(str(error))


@preheat.disable
def raise_it(x):
    raise ValueError("no")


def generating(x):
    def rows():
        for i in range(3):
            quiet(x)
            yield x * i

    return sum(row for row in rows())


PROGRAMS = [plain, looping, tables, caught, generating]


# ---------------------------------------------------------------------------- the object dies
@pytest.mark.parametrize("program", [*PROGRAMS, "module"])
def test_deleting_the_compiled_object_frees_it(program):
    held = Counting() if program == "module" else program
    big = torch.zeros(64, 8)
    if program == "module":
        held.register_buffer("big", big)
    compiled = compiled_of(held)
    with torch.no_grad():
        for scale in (1.0, -1.0, 4.0):
            compiled(X * scale)
    refs = [weakref.ref(compiled), weakref.ref(big)]
    if program == "module":
        refs.append(weakref.ref(held))
    else:
        big = None
    del compiled, held, big
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


@is_compiling
def test_graphs_kernels_and_machine_code_die_with_the_object():
    def alive():
        gc.collect()
        kinds = [type(found) for found in gc.get_objects()]
        return Counter(
            kind.__name__ for kind in kinds if str(kind.__module__).startswith("preheat."))

    def once():
        for program in PROGRAMS:
            compiled = compiled_of(program)
            with torch.no_grad():
                for scale in (1.0, -1.0, 4.0):
                    compiled(X * scale)

    once()
    before = alive()
    once()
    assert alive() == before


def test_closures_and_arguments_die():
    class Held:
        pass

    held, key = Held(), Held()
    table = {key: 2.0}

    def program(x, config):
        quiet(x)
        return x * table[key] + len(vars(held)) + config.scale

    config = Held()
    config.scale = 3
    refs = [weakref.ref(held), weakref.ref(key), weakref.ref(config)]
    compiled = compiled_of(program)
    with torch.no_grad():
        for _ in range(3):
            compiled(X, config)
    del config
    gc.collect()
    del compiled, program, held, key, table
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_arguments_are_not_kept_after_the_call():
    class Config:
        scale = 2

    for program in (lambda x, c: x * c.scale, lambda x, c: (quiet(x), x * c.scale)[1]):
        compiled = compiled_of(program)
        config, x = Config(), X.clone()
        refs = [weakref.ref(config), weakref.ref(x)]
        with torch.no_grad():
            for _ in range(3):
                compiled(x, config)
        del x, config
        gc.collect()
        assert refs[1]() is None
        assert refs[0]() is None


@pytest.mark.parametrize("grad", [False, True])
def test_arguments_of_other_sizes_and_numbers_are_not_kept_after_the_call(grad):
    class Config:
        scale = 2

    def inside(x, c, parts, n):
        return parts["x"] * c.scale * n

    for program in (inside, lambda x, c, parts, n: (quiet(x), x * c.scale + parts["others"][0])[1]):
        compiled, refs = compiled_of(program), []
        with torch.set_grad_enabled(grad):
            for n in range(2, 8):
                config, x, y = Config(), torch.ones(n, requires_grad=grad), torch.ones(n)
                refs += [weakref.ref(config), weakref.ref(x), weakref.ref(y)]
                result = compiled(x, config, {"x": x, "others": [y]}, n)
                if grad:
                    result.sum().backward()
                del config, x, y, result
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)


# ---------------------------------------------------------------------------- what a call makes
REFS: list = []


@preheat.disable
def keep(y):
    """A host step that remembers what it was given, weakly."""
    REFS.append(weakref.ref(y))


@preheat.disable
def count_dead(number):
    """How many of the tensors kept so far are dead."""
    print(number, sum(ref() is None for ref in REFS))
    return number


def rebinding(x):
    for i in range(3):
        x = torch.sin(x) * 2
        keep(x)
        count_dead(i)
    return x.sum()


def branching(x):
    for i in range(3):
        y = x * 2 + i
        keep(y)
        x = y + 1 if y.sum() > 0 else y - 1
        del y
        count_dead(i)
    return x


def nested(x):
    def inner(a):
        b = a * 2
        keep(b)
        c = b + 1
        count_dead("inner")
        return c

    for _ in range(2):
        x = inner(x)
        count_dead("outer")
    return x


def in_a_list(x):
    rows = [x * i for i in range(3)]
    for row in rows:
        keep(row)
    row = None
    count_dead("all")
    rows.pop()
    count_dead("popped")
    rows.clear()
    count_dead("cleared")
    return x + 1


def in_a_handler(x):
    y = x * 3
    keep(y)
    try:
        raise_it(y)
    except ValueError:
        y = x + 1
    count_dead("after")
    return y


def number_of_it(x):
    y = torch.exp(x)
    keep(y)
    n = y.sum().item()
    y = x * n
    count_dead("after")
    return y


def attribute_replaced(x):
    held = Holder()
    held.y = x * 2
    keep(held.y)
    held.y = x * 3
    count_dead("replaced")
    return held.y


class Holder:
    pass


WITH_INTERMEDIATES = [
    rebinding, branching, nested, in_a_list, in_a_handler, number_of_it, attribute_replaced,
]


@pytest.mark.parametrize("program", WITH_INTERMEDIATES)
def test_intermediates_die_when_the_program_lets_them_go(program, capsys):
    """On captures, replays and resumes, without a collector: as soon as in eager, or sooner."""

    def run(call, x):
        REFS.clear()
        call(x)
        assert all(ref() is None for ref in REFS)
        return [(row.split()[0], int(row.split()[1])) for row in capsys.readouterr().out.splitlines()]

    gc.collect()
    gc.disable()
    try:
        compiled = compiled_of(program)
        with torch.no_grad():
            for x in (X + 0.1, X + 0.1, X - 0.3, X - 0.3, (X + 0.1).double(), X + 0.1):
                found, expected = run(compiled, x), run(program, x)
                assert [name for name, _ in found] == [name for name, _ in expected]
                if program is not in_a_handler:  # what was raised lives to the end of the call
                    assert all(dead >= least for (_, dead), (_, least) in zip(found, expected))
    finally:
        gc.enable()


def test_results_are_the_callers_alone():
    compiled = compiled_of(rebinding)
    with torch.no_grad():
        for scale in (1.0, 1.0, 2.0):
            found = weakref.ref(compiled(X * scale))
            assert found() is None


# ---------------------------------------------------------------------------- errors
def refusing(y):
    """An error of an op, under an intermediate of the program."""
    REFS.append(weakref.ref(y))
    return y @ torch.ones(3)


@preheat.disable
def refusing_host(y):
    return refusing(y)


def raised_at_once(x):
    return refusing(x * 2)


def raised_below_c(x):
    return sorted([x * 2, x * 3], key=refusing)


def raised_by_a_host(x):
    return refusing_host(x * 2) + 1


def raised_in_a_region(x):
    return checkpoint(refusing, x * 2, use_reentrant=False)


def raised_in_a_host_region(x):
    return checkpoint(refusing_host, x * 2, use_reentrant=False)


def raised_anew(x):
    try:
        return refusing(x * 2)
    except RuntimeError as error:
        raise ValueError("refused") from error


class InAClass(nn.Module):
    def forward(self, x):
        return refusing_host(x * 2)


def in_a_module(x, call=InAClass()):
    return call(x)


ENDED_BY_ERRORS = [
    raised_at_once, raised_below_c, raised_by_a_host, raised_in_a_region, raised_in_a_host_region, raised_anew,
    in_a_module]


@pytest.mark.parametrize("program", ENDED_BY_ERRORS)
def test_an_error_that_is_dropped_takes_what_it_held_along(program):
    """Without a collector: a checkpoint that lives on in a traceback would save for all programs after it."""
    x = X.clone().requires_grad_()
    compiled = compiled_of(program if program is not in_a_module else InAClass())
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            REFS.clear()
            with pytest.raises((RuntimeError, ValueError)) as caught:
                compiled(x)
            assert REFS
            del caught
            if program is not raised_in_a_region:  # torch's own holds it, in eager too
                assert all(ref() is None for ref in REFS)
            assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------------- peak of a capture
PEAK = """
import gc, sys, torch, preheat
sys.path.insert(0, sys.argv[1])
import test_life as programs

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

def peak_kb(call, x):
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmHWM")
    call(x)
    return status("VmHWM") - before

x = torch.rand(4096, 256) - 0.3
with torch.no_grad():
    for program in programs.LARGE:
        program = program() if isinstance(program, type) else program
        for warm in (preheat.compile(programs.LARGE[0]), preheat.compile(programs.LARGE[1])):
            warm(x[:2])
            warm(x[:2])
        program(x)
        eager = peak_kb(program, x)
        found = peak_kb(preheat.compile(program, options={"cache": False}), x)
        print(type(program).__name__ if isinstance(program, torch.nn.Module) else program.__name__,
              eager, found)
"""


def steps(x):
    for _ in range(6):
        x = torch.sin(x) * 2
    return x.sum()


def steps_with_host_calls(x):
    for i in range(5):
        x = torch.sin(x) * 2
        quiet(x)
    return x.sum()


def steps_with_branches(x):
    for _ in range(4):
        y = torch.sin(x) * 2
        x = y + 1 if y.max() > 0.1 else y - 1
    return x.sum()


def steps_in_functions(x):
    def inner(a):
        b = a * 2
        quiet(None)
        return b + 1

    for _ in range(4):
        x = inner(x)
    return x.sum()


def steps_in_place(x):
    y = x * 2
    for i in range(4):
        y += i
        y.mul_(2)
        quiet(i)
    return y.sum()


def steps_in_generator(x):
    def rows(y):
        for i in range(4):
            y = y * 2 + 1
            yield y.sum()

    return sum(rows(x))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            self.count += 1
            quiet(self.count)
        return x.sum()


LARGE = [
    steps, steps_with_host_calls, steps_with_branches, steps_in_functions, steps_in_place,
    steps_in_generator, Stack,
]


@is_compiling
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak to reset")
def test_the_peak_of_a_capture_is_that_of_an_eager_run():
    """4 MB tensors, each mapped by itself; at most 1.1 times eager, and half a MB of Python."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    here = str(Path(__file__).parent)
    found = subprocess.run(
        [sys.executable, "-c", PEAK, here], env=environment, capture_output=True, text=True,
        cwd=Path(here).parent)
    assert found.returncode == 0, found.stderr
    rows = [line.split() for line in found.stdout.splitlines()]
    assert len(rows) == len(LARGE)
    for name, eager_kb, capture_kb in rows:
        assert int(capture_kb) <= 1.1 * int(eager_kb) + 512, (name, eager_kb, capture_kb)


# ---------------------------------------------------------------------------- many calls
@pytest.mark.parametrize("program", [*PROGRAMS, number_of_it, Counting])
def test_many_calls_stay_flat(program):
    """Thousands of calls of every kind of end, on both paths: not a block of memory more."""
    held = program() if isinstance(program, type) else program
    compiled = compiled_of(held)
    inputs = [X + 0.2, X - 0.6, X * 3]

    def call(times):
        for i in range(times):
            compiled(inputs[i % 3])
            REFS.clear()

    with torch.no_grad():
        call(60)
        gc.collect()
        before, blocks = preheat.counters(), sys.getallocatedblocks()
        call(1500)
        gc.collect()
        after, grown = preheat.counters(), sys.getallocatedblocks() - blocks
    assert grown < 100
    if is_enabled():
        for name in ("captures", "compiles", "breaks"):
            assert after[name] == before[name], name


@is_compiling
def test_tens_of_thousands_of_calls_stay_flat():
    """The memory of the process, which counts what C allocates too."""
    compiled = [compiled_of(Counting()), compiled_of(tables), compiled_of(looping)]
    inputs = [X + 0.2, X - 0.6]

    def call(times):
        for i in range(times):
            for one in compiled:
                one(inputs[i % 2])

    with torch.no_grad():
        call(3000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call(10_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048  # KB


def test_threads_that_end_leave_nothing():
    compiled = compiled_of(Counting())

    def work():
        with torch.no_grad():
            compiled(X + 0.2)
            compiled(X - 0.6)

    def run(threads):
        for _ in range(threads):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    run(20)
    gc.collect()
    before = sys.getallocatedblocks()
    run(60)
    gc.collect()
    assert sys.getallocatedblocks() - before < 200
