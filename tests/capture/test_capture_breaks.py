"""What is not captured: it runs for real, once, and the break names reason, line and what to do."""

import random
import threading
import time
import types

import numpy
import pytest
import torch

import preheat
from preheat.base import marks
from preheat.capture.capture import Limits, capture
from tests.capture.chains import Chain
from tests.capture.replay import assert_same, captured, missed, outcome, replay

COUNT, ARRAY = 0, numpy.ones(2)


class Holder:
    total = 0

    def __init__(self):
        self.n, self.items, self.table, self.t = 1, [1, 2], {"a": 1}, torch.ones(2)
        self.it = iter([1, 2, 3])


def branch(h, x):
    for _ in range(20):
        x = x * 1.5
    if x.sum() > 0:
        return x
    return -x


def item(h, x):
    return [0] * int(x.sum().abs().item() + 1)


def counter(h, x):
    h.n += 1
    return x * h.n


def same_value(h, x):
    h.n = h.n
    return x


def append(h, x):
    h.items.append(x)
    return x


def set_key(h, x):
    h.table["b"] = 2
    return x


def delete(h, x):
    del h.table["a"]
    return x


def class_attribute(h, x):
    Holder.total = 5
    return x


def type_attribute(h, x):
    type(h).total = 6
    return x


def set_global(h, x):
    global COUNT
    COUNT += 1
    return x


def outside_cell(h, x):
    return h.closure(x)


def tensor_attribute(h, x):
    h.t.tag = 3
    return x


def generator(h, x):
    return (x * i for i in range(3))


def fresh_class(h, x):
    class Local:
        pass

    return Local()


def entered_mode(h, x):
    with torch.inference_mode():
        return x + 1


def left_mode(h, x):
    torch.set_grad_enabled(False)
    return x + 1


def disabled(h, x):
    return h.disabled(x)


def object_to_c(h, x):
    return x * len("%s" % (h,))


def many_guards(h, x):
    return x * h.n * len(h.items) * h.table["a"]


async def coroutine():
    return 1


def call_coroutine(h, x):
    coroutine().close()
    return x


# What ends a node, or the capture: the first reason that is told.
ENDS = {
    branch: "data_dependent_branch",
    item: "data_dependent_number",
    lambda h, x: x.nonzero(): "data_dependent_shape",
    lambda h, x: x[x > 0]: "data_dependent_shape",
    lambda h, x: torch.unique(x): "data_dependent_shape",
    lambda h, x: x.tolist(): "tensor_escape",
    lambda h, x: x.numpy() + 1: "tensor_escape",
    lambda h, x: x.data_ptr() * 0: "tensor_escape",
    lambda h, x: float(x.sum()): "data_dependent_number",
    lambda h, x: int(x.sum()) + 1: "data_dependent_number",
    lambda h, x: torch.equal(x, x): "data_dependent_number",
    lambda h, x: torch.allclose(x, x): "data_dependent_number",
    lambda h, x: f"{x.sum():.1f}": "data_dependent_number",
    lambda h, x: torch.from_numpy(ARRAY): "tensor_escape",
    lambda h, x: torch.tensor(ARRAY): "opaque_argument",
    lambda h, x: x.data: "host_call",
    lambda h, x: x._version: "host_call",
    lambda h, x: x.untyped_storage().nbytes(): "tensor_escape",
    lambda h, x: x.storage_offset(): "tensor_escape",
    lambda h, x: x.clone().requires_grad_(True): "new_leaf",
    lambda h, x: x.resize_(1): "metadata_write",
    lambda h, x: x.t_(): "metadata_write",
    lambda h, x: h.t.unsqueeze_(0): "metadata_write",
    lambda h, x: h.items.sort(): "write_outside",
    lambda h, x: next(h.it): "outside_iterator",
    lambda h, x: x * random.random(): "host_call",
    lambda h, x: (x, time.time()): "host_call",
    lambda h, x: print("", end="") or x: "host_call",
    lambda h, x: torch.initial_seed() * 0 + x: "host_call",
    lambda h, x: torch.get_num_threads() + 0 * x: "host_call",
    lambda h, x: threading.get_ident() and x: "host_call",
    lambda h, x: x * float(numpy.float64(2.0)): "host_call",
    generator: "no_recipe", fresh_class: "no_recipe",
    entered_mode: "inference_mode_inside",
    disabled: "disabled_function",
    object_to_c: "opaque_argument",
    call_coroutine: "native_python",
}


def make_holder():
    holder = Holder()
    n = 0

    def closure(x):
        nonlocal n
        n += 1
        return x * n

    @preheat.disable
    def disabled_function(x):
        return x + 1

    holder.closure, holder.disabled = closure, disabled_function
    return holder


# From here on no later call can go on: it runs to its end as plain Python.
UNCAPTURED = ("no_recipe", "inference_mode_inside")


def fresh_call():
    torch.manual_seed(0)
    random.seed(0)
    return make_holder(), torch.randn(2)


@pytest.mark.parametrize("number", range(len(ENDS)))
def test_ends_of_nodes(number):
    program, reason = list(ENDS.items())[number]
    with torch.no_grad():
        found = capture(program, fresh_call(), {})
        chain, (holder, x), (same_holder, same_x) = Chain(program), fresh_call(), fresh_call()
        Holder.total = 0
        for _ in range(3):
            random.seed(0)
            expected = program(same_holder, same_x)
            random.seed(0)
            assert_alike(chain(holder, x), expected)
            assert_same_state(holder, same_holder)
    assert found.error is None
    row = next((row for node in found.nodes if (row := node.why)), None) or found.breaks[0]
    assert row.reason == reason, row
    assert row.file == __file__ and row.line > 0 and row.code and row.hint and row.detail
    assert bool(found.breaks) == (reason in UNCAPTURED), found.breaks
    Holder.total = 0


# What a node does when it ends: the call stays one node.
EFFECTS = (
    counter, same_value, append, set_key, delete, class_attribute, type_attribute, set_global,
    outside_cell, tensor_attribute, lambda h, x: setattr(h, "n", 3),
    lambda h, x: h.__dict__.update(n=4),
)


@pytest.mark.parametrize("number", range(len(EFFECTS)))
def test_effects_are_done_on_every_call(number):
    program = EFFECTS[number]
    with torch.no_grad():
        assert capture(program, fresh_call(), {}).captured is not None
        chain, (holder, x), (same_holder, same_x) = Chain(program), fresh_call(), fresh_call()
        for _ in range(3):
            if program is delete:
                holder.table["a"] = same_holder.table["a"] = 1
            expected = program(same_holder, same_x)
            was, Holder.total = Holder.total, 0
            assert_alike(chain(holder, x), expected)
            assert Holder.total == was
            assert_same_state(holder, same_holder)
    Holder.total = 0


def assert_alike(one, other):
    """Times, addresses and objects of classes that the call made differ between two runs."""
    assert type(one) is type(other) or type(one).__qualname__ == type(other).__qualname__
    if isinstance(one, torch.Tensor) or type(one) in (int, str, list):
        assert_same(one, other)


def assert_same_state(one, other):
    assert (one.n, one.table, len(one.items)) == (other.n, other.table, len(other.items))
    assert getattr(one.t, "tag", 0) == getattr(other.t, "tag", 0)
    assert_same(one.t, other.t)


def test_what_is_captured_has_its_history():
    model = torch.nn.Linear(2, 2)
    found = outcome(model, torch.ones(1, 2))
    assert not found.breaks and found.captured.trace.nodes[0].body.grad_outputs == (0,)
    found.result.sum().backward()
    assert model.weight.grad is not None


def test_no_grad_inside_is_captured():
    model = torch.nn.Linear(2, 2)

    def inside(x):
        with torch.no_grad():
            return model(x) * 2

    made = captured(inside, torch.ones(1, 2))
    assert_same(replay(made, inside, torch.ones(1, 2) * 3), inside(torch.ones(1, 2) * 3))


def test_autocast_inside_is_captured():
    def inside(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    x, w = torch.randn(2, 2), torch.randn(2, 2)
    made = captured(inside, x, w)
    assert made.result.dtype is torch.bfloat16
    assert_same(replay(made, inside, w, x), inside(w, x))


def asks_for_stream_capture(x):
    try:
        return x * (2 if torch.cuda.is_current_stream_capturing() else 3)
    except RuntimeError:  # no driver, or no CUDA in this torch
        return x * 4


def ambient_guards(made):
    return {g.expected[0] for g in made.trace.nodes[0].guards if g.kind == "ambient"}


def test_the_matmul_precision_is_guarded_where_it_is_read():
    def asks(x):
        return x * 2 if torch.get_float32_matmul_precision() == "highest" else x * 3

    made = captured(asks, torch.ones(2))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert missed(made, asks, torch.ones(2))
    finally:
        torch.set_float32_matmul_precision(before)
    assert not missed(made, asks, torch.ones(2))


def test_stream_capture_is_guarded_where_it_is_read():
    made = captured(asks_for_stream_capture, torch.ones(2))
    assert ("stream_capture" in ambient_guards(made)) == (torch.version.cuda is not None)
    assert_same(replay(made, asks_for_stream_capture, torch.ones(2)), asks_for_stream_capture(torch.ones(2)))
    without = captured(lambda x: x * 2, torch.ones(2))
    assert "stream_capture" not in ambient_guards(without)


def test_what_the_machine_is_is_guarded_where_it_is_read():
    def asks(x):
        fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        return x * 2 if fast else x * 3

    made = captured(asks, torch.ones(2))
    assert "cuda_available" in ambient_guards(made)
    assert ("cuda_bf16" in ambient_guards(made)) == torch.cuda.is_available()
    assert_same(replay(made, asks, torch.ones(2)), asks(torch.ones(2)))


def test_a_net_change_of_the_grad_mode_is_made_again():
    chain = Chain(left_mode)
    for _ in range(2):
        with torch.enable_grad():
            chain(None, torch.ones(2))
            assert not torch.is_grad_enabled()
    assert chain.captures == 1


def test_exceptions_are_the_programs_own():
    def failing(x):
        y = x + 1
        raise KeyError("mine") if y is not None else None

    found = capture(failing, (torch.ones(2),), {})
    assert type(found.error) is KeyError and found.error.args == ("mine",)
    assert found.captured is None and not found.breaks
    found = capture(lambda x: x @ x, (torch.ones(2, 3),), {})
    assert isinstance(found.error, RuntimeError) and "mat1" in str(found.error) or "size" in str(found.error)


def test_a_fault_of_ours_is_no_exception_of_the_program(monkeypatch):
    from preheat.capture import native

    def faulty(watcher, function, args, kwargs, row):
        result = watcher.perform(function, args, kwargs)
        raise ZeroDivisionError("ours")

    monkeypatch.setitem(native.CALLS, "op", faulty)
    found = outcome(lambda x: torch.relu(x) + 1, torch.ones(2))
    assert found.error is None and found.breaks[0].reason == "fault"
    assert_same(found.result, torch.full((2,), 2.0))


def test_effects_happen_once():
    seen = []

    def program(x):
        seen.append(1)
        seen.append(2)
        return x + len(seen)

    found = outcome(program, torch.zeros(1))
    assert seen == [1, 2] and found.result.item() == 2


@preheat.compile
def compiled_inside(x):
    return torch.relu(x) + COUNT


@preheat.compile
def breaking_inside(x):
    print("", end="")
    return x + 1


def test_compiled_functions_are_captured_through():
    def program(x):
        return compiled_inside(x) * 2

    with torch.no_grad():
        made = captured(program, torch.ones(2))
        assert len(made.trace.nodes[0].body.ops) == 3
        assert_same(replay(made, program, -torch.ones(2)), program(-torch.ones(2)))
        found = outcome(lambda x: breaking_inside(x) * 2, torch.ones(2))
        why = found.nodes[0].why
        assert why.reason == "host_call" and "print" in why.code and not found.breaks
        assert_same(found.result, torch.full((2,), 4.0))


def test_limits():
    x = torch.ones(2)
    for limits, reason in (
        (Limits(max_ops=3), "limit_ops"), (Limits(max_bytecodes=20), "bytecodes"), (Limits(max_guards=30), "limit_guards"),
    ):
        with torch.no_grad():
            found = capture(branchless, (x,), {}, limits=limits)
        assert found.breaks[0].reason == reason
        assert_same(found.result, branchless(x))


def branchless(x):
    for _ in range(10):
        x = x + torch.ones(2)
    return x * COUNT * len(ENDS)


def test_foreign_state():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __init__(self):
            super().__init__()

    Mode.__torch_dispatch__ = lambda self, f, types, args=(), kwargs=None: f(*args, **(kwargs or {}))
    with Mode():
        assert outcome(branchless, torch.ones(2)).breaks[0].reason == "foreign_state"
    seen = []

    def enters(x):
        with Mode():
            seen.append(1)
            return x + 1

    assert outcome(enters, torch.ones(2)).breaks and seen == [1]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_custom_builtins():
    scope = {"torch": torch, "COUNT": 1, "ENDS": [1], "__builtins__": {"range": range, "len": len}}
    function = types.FunctionType(branchless.__code__, scope)
    made = captured(function, torch.ones(2))
    assert missed(made, function, torch.ones(2)) is None
    scope["__builtins__"]["len"] = lambda values: 7
    assert missed(made, function, torch.ones(2)) is not None


def test_locks_in_pairs():
    lock = threading.Lock()

    def paired(x):
        with lock:
            return x + 1

    def kept(x):
        lock.acquire()
        return x

    assert_same(captured(paired, torch.ones(2)).result, torch.full((2,), 2.0))
    assert outcome(kept, torch.ones(2)).breaks[0].reason == "host_call"


def test_subclass_of_tensor():
    class Mine(torch.Tensor):
        pass

    found = outcome(lambda x: x + 1, torch.ones(2).as_subclass(Mine))
    assert found.breaks[0].reason == "tensor_subclass"


def test_context_variables_set_and_reset():
    import contextvars

    var = contextvars.ContextVar("preheat_net", default=1)

    def balanced(x):
        token = var.set(5)
        try:
            return x * var.get()
        finally:
            var.reset(token)

    def unbalanced(x):
        var.set(6)
        return x

    assert_same(captured(balanced, torch.ones(2)).result, torch.full((2,), 5.0))
    chain = Chain(unbalanced)
    for _ in range(3):
        var.set(1)
        chain(torch.ones(2))
        assert var.get() == 6
    assert chain.captures == 1


def test_is_compiling():
    assert not marks.is_compiling()
    assert captured(lambda x: x * (2 if preheat.is_compiling() else 1), torch.ones(2)).result[0] == 2


def pooled(x, mask):
    """A branch that more ops decide than a guard runs on each call."""
    parts = torch.nn.functional.max_pool1d(mask.float()[:, None], 2)[:, 0].to(torch.bool)
    return x * 2 if parts.all() else x - parts.sum()


def test_one_graph_may_ask_more_where_there_must_be_one():
    x, full = torch.ones(3), torch.ones(2, 4, dtype=torch.int64)
    half = full.clone()
    half[1, :2] = 0
    with torch.no_grad():
        assert preheat.explain(pooled)(x, full).break_count == 1
        whole = preheat.compile(pooled, fullgraph=True, options={"cache": False})
        before = preheat.counters()
        for mask in (full, half, full, half, full):
            assert_same(whole(x, mask), pooled(x, mask))
        after = preheat.counters()
    assert after["captures"] - before["captures"] == 2 and after["breaks"] == before["breaks"]
