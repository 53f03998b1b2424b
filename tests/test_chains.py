"""Programs that meet the outside on their way: compiled as chains of nodes, the same as eager."""

import collections
import collections.abc
import hashlib
import os
import random
import sys
import threading
import warnings
import weakref
from pathlib import Path

import numpy
import pytest
import torch

import preheat
from preheat.base.names import c_base, has_hidden_memory, is_function_type, name_of
from same import Program, is_enabled, same_program
from tests.processes import printed

X = torch.linspace(-1.0, 1.0, 8)


def runs(make, calls=6, resumes=None, **rest):
    """Eager and compiled agree; how often the compiled side had to resume or interpret."""
    seen = same_program(make, calls=calls, **rest)
    if is_enabled():
        assert seen.counters["captures"] >= 1
        assert seen.counters["fallbacks"] == 0
    return seen.counters


def with_x(fn, watch=None, change=None, calls=6):
    """A program of one tensor; before call i `change(program, i)` may act."""

    def make():
        between = {i: (lambda p, i=i: change(p, i)) for i in range(calls)} if change else {}
        return Program(fn, (X.clone(),), watch=watch, between=between)

    return make


# ---------------------------------------------------------------------------- what happens outside
def test_prints():
    def program(x):
        print("largest", x.max().item())
        return x * 2

    counts = runs(with_x(program))
    assert counts["interpreted"] == 0


def test_lists_outside_grow():
    def make():
        log = []

        def program(x):
            log.append(x * 2)
            return x + 1

        return Program(program, (X.clone(),), watch=log)

    counts = runs(make)
    assert counts["captures"] <= 2


def test_dicts_outside_are_written_and_read_back():
    def make():
        seen = {"last": None, "gone": 1}

        def program(x):
            seen["last"] = x * 2
            seen.pop("gone", None)
            seen["next"] = seen["last"] + 1
            return seen["next"]

        return Program(program, (X.clone(),), watch=seen)

    runs(make)


def test_counters_on_self():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.last = 0, None
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            self.calls += 1
            self.last = self.linear(x)
            return self.last * 2

    counts = runs(lambda: Program(Counting().eval(), (X.clone(),)), captured=True)
    assert counts["captures"] <= 2  # the second time the counter is a number of the call


def test_whether_a_key_is_there_is_known_of_the_others():
    def make():
        space = {"old": 1, "kept": 2}

        def program(x):
            space["new"] = x * 2
            space.pop("old", None)
            return x + ("kept" in space) + 2 * ("old" in space) + 4 * ("new" in space) + (
                8 * ("none" in space))

        return Program(program, (X.clone(),), watch=space)

    runs(make)


def test_nonlocals_and_globals():
    def make():
        count = 0

        def program(x):
            nonlocal count
            count = count + 1
            return x * 2

        return Program(program, (X.clone(),), watch=program.__closure__)

    runs(make)


# ---------------------------------------------------------------------------- paths
def test_branches_on_values():
    def program(x):
        y = x * 2
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    def change(p, i):
        p.args = (X + (0.5 if i % 3 else -0.5),)

    counts = runs(with_x(program, change=change), calls=6)
    assert counts["captures"] <= 6


def test_a_loop_until_a_tolerance():
    def program(x):
        rounds = 0
        y = x
        while float((y * y).sum()) > 0.01:
            y = y * 0.5
            rounds += 1
            if rounds > 50:
                break
        return y, rounds

    def change(p, i):
        p.args = (X * (i + 1.0),)

    runs(with_x(program, change=change))


def test_functions_that_the_call_made_and_gave_away():
    """They come back from a list or out of a host call, with the cells that their maker has."""

    def program(x, log):
        count = 0

        def note():
            nonlocal count
            count += 1
            log.append(count)

        waiting = [note, note, log.copy]
        print(len(waiting))
        while waiting:
            waiting.pop()()
            print(count, len(waiting))
        return x + count, note.__closure__[0].cell_contents

    runs(lambda: Program(program, (X.clone(), log := []), watch=log))


def test_exceptions_of_host_calls_arise_in_the_program():
    def make():
        answers = iter((1, "bad", 2, KeyError("worse"), 3, "bad"))
        log = []

        def ask(x):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            if answer == "bad":
                raise ValueError("bad")
            return answer

        ask = preheat.disable(ask)

        def program(x):
            y = x * 2
            try:
                n = ask(y)
            except ValueError as error:
                log.append(str(error))
                return y - 1
            finally:
                log.append("done")
            return y * n

        return Program(program, (X.clone(),), watch=log)

    runs(make)


def test_random_numbers_of_all_kinds():
    def program(x):
        return x + torch.rand(8) + random.random() + float(numpy.random.rand())

    runs(with_x(program))


METHODS_OF_C = {
    "generator": (lambda: numpy.random.default_rng(0), "normal"),
    "random state": (lambda: numpy.random.RandomState(0), "rand"),
    "bit generator": (lambda: numpy.random.PCG64(0), "random_raw"),
    "random": (lambda: random.Random(0), "random"),
    "hash": (lambda: hashlib.md5(b"h"), "hexdigest"),
    "array": (lambda: numpy.ones(2), "sum"),
}


@pytest.mark.parametrize("use", ["called", "kept over a host call", "given"])
@pytest.mark.parametrize("make, name", METHODS_OF_C.values(), ids=METHODS_OF_C)
def test_methods_of_objects_of_c(make, name, use):
    """Some become methods as Python's functions do, and nothing can make them again (Cython)."""
    def program():
        owner = make()

        def called(x):
            return x * 2, str(getattr(owner, name)())

        def kept(x):
            method = getattr(owner, name)
            y = x * 2
            print(end="")
            first = method()
            return y + 1, str(first), str(method())

        def given(x):
            return x + 1, getattr(owner, name).__name__, [getattr(owner, name)][0].__self__ is owner

        function = {"called": called, "kept over a host call": kept, "given": given}[use]
        return Program(function, (X.clone(),))

    runs(program, calls=4)


def test_what_c_keeps_of_an_object_is_no_part_of_a_recipe():
    class Slotted:
        __slots__ = "a", "__weakref__"

    class Plain(Exception):
        b = 1

    for kind in (Slotted, Plain, collections.UserDict, collections.namedtuple("Pair", "a b")):
        base = c_base(kind)
        assert not has_hidden_memory(kind, base), kind
    method = type(numpy.random.default_rng(0)).__dict__["normal"]
    assert c_base(type(method)) is type(method) and is_function_type(type(method))
    assert name_of(method) == ("numpy.random._generator", "Generator.normal")
    data = type(collections.abc.Sized.__dict__["_abc_impl"])  # of C, with no `__new__` of its own
    assert has_hidden_memory(data, object)


def test_a_seed_is_set_in_the_middle():
    def program(x):
        y = torch.rand(8)
        torch.manual_seed(3)
        return x + y + torch.rand(8)

    same_program(with_x(program), calls=6)


def test_a_host_call_calls_the_compiled_function():
    def make():
        depth = []

        def deeper(x):
            if len(depth) < 3:
                depth.append(1)
                return compiled(x)
            depth.clear()
            return x

        deeper = preheat.disable(deeper)

        def program(x):
            return deeper(x * 2) + 1

        compiled = preheat.compile(program, options={"cache": False})
        return Program(program, (X.clone(),), watch=depth)

    runs(make)


def test_grad_mode_is_the_programs_around_host_calls():
    def make():
        modes = []
        note = preheat.disable(lambda: modes.append(torch.is_grad_enabled()))

        def program(x):
            note()
            with torch.no_grad():
                y = x * 2
                note()
                y = y + 1
            note()
            return y

        return Program(program, (X.clone(),), watch=modes)

    runs(make)


def test_an_index_out_of_range_after_a_host_call():
    def make():
        indices = iter((0, 3, 99, 5, 99, 1))
        ask = preheat.disable(lambda: torch.tensor([next(indices)]))

        def program(x):
            return (x * 2)[ask()] + 1

        return Program(program, (X.clone(),))

    same_program(make, calls=6)


def test_threads_share_a_chain():
    note = preheat.disable(lambda x: None)

    def program(x):
        y = x * 2
        note(y)
        return y + 1

    compiled = preheat.compile(program, options={"cache": False})
    found = []

    def work():
        with torch.no_grad():
            found.extend(bool(torch.equal(compiled(X), X * 2 + 1)) for _ in range(30))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 120


# ---------------------------------------------------------------------------- the second process
SECOND = '''
import sys, torch, preheat, chained
compiled = preheat.compile(chained.program)
x = torch.linspace(-1, 1, 8)
with torch.no_grad():
    for scale in (1.0, -1.0, 1.0, -1.0):
        print(compiled((x + 0.5) * scale).tolist())
ours = [n for n in sys.modules if n.startswith(("preheat.capture", "preheat.compiler"))]
print(sorted(ours)[:3], preheat.counters()["captures"], chained.log)
'''
CHAINED = '''
log = []

def program(x):
    y = x * 2
    log.append(1)
    if y.sum().item() > 0:
        print("positive")
        return y + 1
    return y - 1
'''


def test_a_new_process_walks_stored_nodes_without_a_compiler(tmp_path):
    if not is_enabled():
        pytest.skip("nothing is compiled")
    (tmp_path / "chained.py").write_text(CHAINED)
    (tmp_path / "go.py").write_text(SECOND)
    environment = {
        **os.environ, "PREHEAT_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join((str(Path(preheat.__file__).parent.parent), str(tmp_path))),
    }
    cold, warm, again = [
        printed("go.py", folder=tmp_path, environment=environment).splitlines()
        for _ in range(3)
    ]
    assert cold[:-1] == warm[:-1] == again[:-1]
    assert warm[-1] == again[-1] == "[] 0 [1, 1, 1, 1]"


def test_a_profiler_that_a_host_call_starts_sees_plain_python():
    switch = preheat.disable(lambda is_on: sys.setprofile((lambda *_: None) if is_on else None))

    def program(x, is_on):
        y = x * 2
        switch(is_on)
        z = y + 1
        switch(False)
        return z

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for is_on in (False, True, False, True, True, False, False):
            assert torch.equal(compiled(X, is_on), X * 2 + 1)
        before = preheat.counters()
        compiled(X, False)
    after = preheat.counters()
    assert all(after[name] == before[name] for name in ("captures", "resumes", "interpreted"))


def test_autocast_around_a_host_call():
    def make():
        seen = []
        linear = torch.nn.Linear(8, 8)

        def note():
            with torch.autocast("cpu", torch.bfloat16):
                seen.append(linear(X).dtype)
            seen.append(torch.is_autocast_enabled("cpu"))
            seen.append(linear(X).dtype)

        note = preheat.disable(note)

        def program(x):
            with torch.autocast("cpu", torch.bfloat16):
                y = linear(x)
                note()
                z = linear(y)
            note()
            return y, z, linear(x)

        def change(p, i):
            with torch.no_grad():
                linear.weight.add_(0.25)  # a weight that was cast before must be cast anew

        return Program(
            program, (X.clone(),), watch=[seen, linear],
            between={i: (lambda p, i=i: change(p, i)) for i in range(6)})

    same_program(make, calls=6)


def test_a_forked_child_goes_on_in_the_chain():
    if not is_enabled():
        pytest.skip("nothing is compiled")
    ask = preheat.disable(lambda x: bool(x.sum() > 0))

    def program(x):
        y = x * 2
        return y + 1 if ask(y) else y - 1

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(3):
            compiled(X + 1)
        child = os.fork()
        if child == 0:
            is_right = torch.equal(compiled(X + 1), (X + 1) * 2 + 1)
            is_right &= torch.equal(compiled(X - 1), (X - 1) * 2 - 1)  # a path of its own
            os._exit(0 if is_right and torch.equal(compiled(X - 1), (X - 1) * 2 - 1) else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert torch.equal(compiled(X + 1), (X + 1) * 2 + 1)


def test_what_a_call_made_dies_with_it():
    refs = []
    note = preheat.disable(lambda y: refs.append(weakref.ref(y)))

    def program(x):
        y = x * 2
        note(y)
        z = y + 1
        note(z)
        return z * 2

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(4):
            compiled(X)
        del refs[:]
        compiled(X)
    assert len(refs) == 2 and all(ref() is None for ref in refs)


def test_the_warning_of_a_limit_says_where_and_which_value():
    answers = iter("abcdefghij")
    ask = preheat.disable(lambda: next(answers))
    table = {letter: letter + "!" for letter in "abcdefghij"}

    def program(x):
        return x * 2, table[ask()]

    compiled = preheat.compile(program, options={"cache": False, "recompile_limit": 2})
    line = program.__code__.co_firstlineno + 1
    with torch.no_grad(), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = [compiled(X)[1] for _ in range(6)]
    assert found == [letter + "!" for letter in "abcdef"]
    if is_enabled():
        (warning,) = heard
        text = str(warning.message)
        assert f"test_chains.py:{line}: 2 variants exist" in text and "recompile_limit" in text
        assert "the result of" in text and "found 'c'" in text
        assert warning.filename == __file__
