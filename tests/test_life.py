"""Memory and life: everything hangs on the compiled object, and nothing of a call outlives it."""

import gc
from collections import Counter
import resource
import sys
import threading
import tracemalloc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import preheat
from same import is_enabled

X = torch.linspace(-1.0, 1.0, 8)
is_compiling = pytest.mark.skipif(not is_enabled(), reason="compiles nothing")


def compiled_of(fn, **options):
    return preheat.compile(fn, options={"cache": False, **options})


def quiet(x):
    """A host step with nothing to see."""
    return None


quiet = preheat.disable(quiet)


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
    if refs[2]() is not None:
        print("config alive", [type(r) for r in gc.get_referrers(refs[2]())])
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
