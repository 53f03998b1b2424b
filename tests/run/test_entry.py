"""Entries: signatures, ways out, reference counts, threads, recursion, forks, results."""

import ctypes
import gc
import os
import signal
import sys
import threading
import weakref

import pytest
import torch

from entries import MISSED, VALUE, Slow, entry_of, tuple_of
from plans import (
    add_plan,
    alias_plan,
    checked_plan,
    checked_write_plan,
    f32,
    failing_after_write_plan,
    failing_plan,
    late_check_plan,
    library_plan,
    plan,
    product_plan,
    wide_plan,
    write_plan,
)
from preheat.ir.graph import Ref
from preheat.ir.plan import KernelCall, LibraryCall
from preheat.ir.rows import ALL_BITS, LOAD, ROW, VERDICT
from preheat.ir.trace import Recipe, Signature, Source, Step


def pair(n=1000):
    return torch.randn(n), torch.randn(n)


# ---------------------------------------------------------------------------- signatures
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x, y: f(x),
        lambda f, x, y: f(x, y, y),
        lambda f, x, y: f(),
        lambda f, x, y: f(x, y=y),
        lambda f, x, y: f(x, y, z=1),
    ],
)
def test_another_signature_is_a_miss(call):
    slow = Slow()
    x, y = pair()
    before = sys.getrefcount(MISSED)
    assert call(entry_of(add_plan(), slow=slow).call, x, y) is MISSED
    assert slow.calls == [] and sys.getrefcount(MISSED) == before


def test_keywords_in_order():
    slow = Slow()
    sources = (Source(-1, "arg", 0), Source(-1, "kwarg", "other"))
    entry = entry_of(add_plan(), sources=sources, signature=Signature(1, ("other",)), slow=slow)
    x, y = pair()
    assert torch.equal(entry.call(x, other=y), (x + y) * 2)
    assert torch.equal(entry.call(x, **{"".join(["oth", "er"]): y}), (x + y) * 2)  # not interned
    assert entry.call(x, another=y) is MISSED and entry.call(x, y) is MISSED and slow.calls == []


def test_arguments_inside_arguments_and_bound_tensors():
    bound = torch.randn(1000)
    sources = (
        Source(-1, "arg", 0),
        Source(0, "item", "x"),
        Source(1, "item", 1),
        Source(-1, "live", 0),
    )
    x = torch.randn(1000)
    argument = {"x": [None, x]}
    entry = entry_of(
        add_plan(),
        sources=sources,
        inputs=(2, 3),
        signature=Signature(1),
        found=[argument, argument["x"], x, bound],
    )
    assert torch.equal(entry.call(argument), (x + bound) * 2)
    other = torch.randn(1000)
    before = sys.getrefcount(other)
    assert torch.equal(entry.call({"x": (None, other)}), (other + bound) * 2)
    assert sys.getrefcount(other) == before


# ---------------------------------------------------------------------------- ways out
class OneRow:
    """A guard row that compares a word of memory with 7."""

    def __init__(self, value, kind=LOAD):
        self.word = ctypes.c_int64(value)
        self.rows = ctypes.create_string_buffer(
            ROW.pack(ctypes.addressof(self.word), 7, ALL_BITS, kind, 0, 0, 0)
        )
        self.address, self.count, self.words = ctypes.addressof(self.rows), 1, {}


def test_a_guard_that_differs_is_slow():
    slow = Slow()
    rows = OneRow(7)
    entry = entry_of(add_plan(), slow=slow, rows=rows)
    x, y = pair()
    assert torch.is_tensor(entry.call(x, y))
    rows.word.value = 8
    assert entry.call(x, y) == "slow"
    assert slow.calls[0][:2] == ("guard", 0) and slow.calls[0][2][1] is y and slow.calls[0][3] == ()


def test_a_guard_that_decides_is_a_miss():
    slow = Slow()
    rows = OneRow(7, LOAD | VERDICT)
    entry = entry_of(add_plan(), slow=slow, rows=rows)
    x, y = pair()
    assert torch.is_tensor(entry.call(x, y))
    rows.word.value = 8
    assert entry.call(x, y) is MISSED and slow.calls == []


def test_faults_run_slow_and_change_nothing():
    slow = Slow()
    value = -torch.ones(10)
    assert (
        entry_of(checked_write_plan(), recipe=Recipe((Step("const", (None,)),), 0), slow=slow).call(
            value
        )
        == "slow"
    )
    assert slow.calls[0][:2] == ("fault", 1) and torch.equal(value, -torch.ones(10))
    assert entry_of(checked_plan(), slow=slow).call(value) == "slow"
    assert entry_of(failing_plan(), slow=slow).call(torch.randn(4, 6)) == "slow"
    assert slow.calls[2][:2] == ("fault", 0)


def test_a_fault_after_a_write_is_told_apart():
    slow = Slow()
    entry_of(late_check_plan(), slow=slow).call(torch.ones(10), -torch.ones(10))
    assert slow.calls[0][:2] == ("late_fault", 1)


def test_an_exception_of_slow_propagates():
    def slow(*arguments):
        raise KeyError("from slow")

    with pytest.raises(KeyError, match="from slow"):
        entry_of(add_plan(), slow=slow, rows=OneRow(8)).call(*pair())


def test_library_error_after_a_write_propagates():
    with pytest.raises(RuntimeError, match="invalid for input"):
        entry_of(failing_after_write_plan()).call(torch.randn(4, 6))


def library_of(function):
    """A plan whose library call is `function`, registered as an overload of the tests."""
    x = f32(4)
    return plan(
        (x,),
        [("input", 0, x), ("output", 0, x)],
        [],
        [LibraryCall(function, (Ref(0),), (), (1,))],
        [1],
    )


@pytest.fixture(scope="module")
def overloads():
    """preheat_test.call(x) runs whatever stands in `overloads["run"]`."""
    held = {}
    library = torch.library.Library("preheat_test", "DEF")
    library.define("call(Tensor x) -> Tensor")
    library.impl("call", lambda x: held["run"](x), "CPU")
    yield held
    library._destroy()


def test_keyboard_interrupt_is_no_fault(overloads):
    def run(x):
        raise KeyboardInterrupt

    overloads["run"] = run
    slow = Slow()
    with pytest.raises(KeyboardInterrupt):
        entry_of(library_of("preheat_test.call.default"), slow=slow).call(torch.randn(4))
    assert not slow.calls


def test_recursion_through_a_library_call(overloads):
    entry = entry_of(library_of("preheat_test.call.default"))
    overloads["run"] = lambda x: x + 1 if x[0] > 5 else entry.call(x + 1) + 0
    assert torch.equal(entry.call(torch.zeros(4)), torch.full((4,), 7.0))


def test_an_unexpected_library_result_is_a_fault_or_copied(overloads):
    slow = Slow()
    entry = entry_of(library_of("preheat_test.call.default"), slow=slow)
    overloads["run"] = lambda x: torch.stack([x, x], 1)[:, 0]  # other strides
    result = entry.call(torch.arange(4.0))
    assert result.stride() == (1,) and result.tolist() == [0, 1, 2, 3]
    overloads["run"] = lambda x: x[:2].clone()
    assert entry.call(torch.zeros(4)) == "slow" and slow.calls[0][0] == "fault"


# ---------------------------------------------------------------------------- results
def test_results_by_recipe():
    x, y = pair()
    steps = (
        Step("value", (0,)),
        Step("source", (1,)),
        Step("const", ("a",)),
        Step("dict", (2, 0)),
        Step("list", (3, 1, 0)),
    )
    result = entry_of(add_plan(), recipe=Recipe(steps, 4)).call(x, y)
    assert result[1] is y and result[0]["a"] is result[2] and torch.equal(result[2], (x + y) * 2)


@pytest.mark.parametrize("kind", ["tuple", "list"])
def test_many_results(kind):
    x = f32(4)
    buffers = [("input", 0, x)] + [("output", k, x) for k in range(300)]
    calls = [KernelCall(0, (k, k + 1), 4, 32) for k in range(300)]
    many = plan((x,), buffers, ["double"], calls, list(range(1, 301)))
    steps = (*(Step("value", (k,)) for k in range(300)), Step(kind, tuple(range(300))))
    result = entry_of(many, recipe=Recipe(steps, 300)).call(torch.ones(4))
    assert type(result).__name__ == kind
    assert [r[0].item() for r in result[:100]] == [2.0 ** (k + 1) for k in range(100)]


def test_tuple_results():
    out, view = entry_of(alias_plan("output")).call(torch.randn(4, 6))
    assert view._base is out


def test_an_alias_of_an_input_is_a_view_of_it():
    value = torch.randn(4, 6)
    _, view = entry_of(alias_plan("input")).call(value)
    assert view._base is value


def test_outputs_follow_the_mode_of_the_call():
    x, y = pair()
    entry = entry_of(add_plan())
    with torch.inference_mode():
        assert entry.call(x, y).is_inference()
    assert not entry.call(x, y).is_inference() and not entry.call(x, y).requires_grad
    assert entry.call(x, y).device == torch.device("cpu") and entry.call(x, y).is_leaf


def test_written_inputs_count_a_version():
    value = torch.randn(10)
    version = value._version
    entry_of(write_plan()).call(value)
    assert value._version > version


# ---------------------------------------------------------------------------- reference counts
@pytest.mark.parametrize(
    "make, arguments",
    [
        (add_plan, lambda: pair()),
        (library_plan, lambda: (torch.randn(4, 6),)),
        (lambda: alias_plan("input"), lambda: (torch.randn(4, 6),)),
        (write_plan, lambda: (torch.randn(10),)),
        (failing_plan, lambda: (torch.randn(4, 6),)),
        (checked_plan, lambda: (-torch.ones(10),)),
    ],
)
def test_reference_counts_are_exact(make, arguments):
    p = make()
    steps = tuple(Step("value", (k,)) for k in range(len(p.outputs)))
    recipes = [
        tuple_of(len(p.outputs)),
        Recipe(
            (*steps, Step("source", (0,)), Step("list", tuple(range(len(steps) + 1)))),
            len(steps) + 1,
        ),
    ]
    if len(p.outputs) == 1:
        recipes.append(VALUE)
    for recipe in recipes:
        values = arguments()
        entry = entry_of(p, recipe=recipe, slow=lambda *a: None)
        counted = [*values, None, entry.call]
        entry.call(*values)
        before = [sys.getrefcount(v) for v in counted]
        for _ in range(100):
            result = entry.call(*values)
        del result
        after = [sys.getrefcount(v) for v in counted]
        assert all(
            abs(a - b) <= (5 if v is None else 0) for a, b, v in zip(after, before, counted)
        ), (before, after)


def test_results_are_freed():
    x, y = pair()
    entry = entry_of(add_plan())
    result = entry.call(x, y)
    assert sys.getrefcount(result) == 2
    gone = weakref.ref(result)
    del result
    assert gone() is None


def test_many_calls_keep_the_memory():
    x, y = pair(1 << 14)
    entry = entry_of(add_plan(1 << 14))
    for _ in range(2000):
        entry.call(x, y)
    before = resident_bytes()
    for _ in range(100_000 if os.environ.get("PREHEAT_LONG_TESTS") else 20_000):
        entry.call(x, y)
    assert resident_bytes() - before < 8 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_entry_is_garbage_with_what_it_holds():
    class Owner:
        def slow(self, *arguments):
            return None

    owner = Owner()
    owner.entry = entry_of(add_plan(), slow=owner.slow)
    owner.entry.call(*pair())
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------------------- threads and forks
def test_threads_in_one_entry():
    entry = entry_of(wide_plan(1 << 18))
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(1 << 18, generator=generator)
            if not torch.equal(entry.call(x), x * 2):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(1 << 20)
        assert torch.equal(entry_of(wide_plan()).call(x), x * 2)
    finally:
        torch.set_num_threads(before)


def test_a_forked_child_uses_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    x, a, b = torch.randn(1 << 20), torch.randn(300, 300), torch.randn(300, 300)
    double, multiply = entry_of(wide_plan()), entry_of(
        product_plan((300, 300), None, (300, 300), None, None)
    )
    expected = multiply.call(a, b)
    assert torch.equal(double.call(x), x * 2)  # the pool of threads exists now
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a hang must not outlive the test
        # torch's own large ops would hang here: compare single elements
        doubled, product = double.call(x)[-1].item(), multiply.call(a, b)[-1, -1].item()
        same = doubled == 2 * x[-1].item() and abs(product - expected[-1, -1].item()) < 1e-3
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    torch.set_num_threads(before)
    assert status == 0


def test_without_native_everything_is_slow():
    slow = Slow()
    entry = entry_of(add_plan(), slow=slow, without=("native",))
    x, y = pair()
    assert not entry.is_native and entry.call(x, y=y) == "slow"
    assert slow.calls[0][0] == "guard" and slow.calls[0][3] == ("y",)
    assert torch.equal(entry.run([x, y]), (x + y) * 2)
