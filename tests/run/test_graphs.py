"""Recorded graphs without a GPU: the native driver, the recorder and a CUDA driver of Python functions.

Every call is compared with the same plan launched call by call.
"""

import gc

import pytest
import torch

from machines import (
    N, X, Machine, kernels_only, library_machine, made, numbers, with_aliases, with_number,
)
from preheat.base.events import bus
from preheat.base.tally import GRAPH_REPLAYS
from preheat.ir.graph import Ref
from preheat.ir.plan import LibraryCall
from preheat.run import replays
from preheat.run.executable import Executable
from preheat.run.replays import CALLS_BEFORE_GRAPH, Graphs


@pytest.fixture
def machine(monkeypatch):
    return lambda *args, **kwargs: Machine(monkeypatch, *args, **kwargs)


@pytest.fixture
def told():
    seen = []
    stop = bus.subscribe(seen.append, {"direct", "graph"})
    yield seen
    stop()


def test_a_graph_after_three_calls(machine, told):
    m = machine(kernels_only())
    before = GRAPH_REPLAYS.value
    for k in range(8):
        x, y = numbers(k), numbers(k + 100)
        total, grown = x + y, x + 1
        version = x._version
        log, (twice, whole) = m.launched(x, y)
        assert log == (["graph"] if k >= CALLS_BEFORE_GRAPH else ["add", "double", "bump"])
        assert torch.equal(whole, total) and torch.equal(twice, total * 2)
        assert torch.equal(x, grown) and x._version == version + 1
    assert GRAPH_REPLAYS.value - before == 8 - CALLS_BEFORE_GRAPH
    assert [event.kind for event in told] == ["graph"]
    assert told[0].data["text"] == (
        "cuda graph (3 nodes)\n  kernel b0, b1, b3\n  kernel b3, b2\n  kernel b0")


def test_results_that_are_held_stay(machine):
    for m in (machine(kernels_only()), library_machine(machine, {})):
        held, expected = [], []
        for k in range(7):
            x, y = numbers(k), numbers(k + 50)
            held.append(m.call(x, y))
            expected.append([t.clone() for t in held[-1]])
        assert all(torch.equal(a, b) for h, e in zip(held, expected) for a, b in zip(h, e))
        assert len({t.data_ptr() for pair in held for t in pair}) == 14


def test_nodes_are_set_only_where_something_moved(machine):
    m = machine(with_aliases())
    x = numbers(0)
    for _ in range(CALLS_BEFORE_GRAPH):
        m.call(x)
    kept = m.call(x)
    m.launched(x)  # another output: the node that writes it is set
    assert m.sets() == 1
    del kept
    y = numbers(1)
    log, _ = m.launched(y)
    assert log == ["graph"] and m.sets() in (1, 2)  # the input's node; the output may lie as before


def test_numbers_are_set(machine):
    m = machine(with_number())
    x = numbers(0)
    for k in range(7):
        log, result = m.launched(x, torch.tensor(k + 0.5))
        assert torch.equal(result, x * (k + 0.5) * 2)
    assert log == ["graph"]


def test_aliases(machine):
    m = machine(with_aliases())
    for k in range(6):
        x = numbers(k)
        log, (result, part, mine) = m.launched(x)
        assert torch.equal(result, x * 4) and torch.equal(part, result[1:7:2])
        assert part.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
        assert mine.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert log == ["graph"]


def test_what_the_library_sees_is_fixed_or_copied(machine, told, monkeypatch):
    """w is the same object on every call, x is another one."""
    w = numbers(9)
    # the fake captures only what goes through the driver: library calls become kernels of its own
    m = library_machine(machine, bound={1: w})
    for k in range(6):
        x = numbers(k)
        log, (negated, twice) = m.launched(x)
        assert torch.equal(negated, -(x + w)) and torch.equal(twice, negated * 2)
    assert log == ["graph"]
    assert "  copy b0" in told[0].data["text"] and "  copy b3" in told[0].data["text"]
    w.add_(1)  # in place: the graph reads what is there
    log, (negated, _) = m.launched(x)
    assert log == ["graph"] and torch.equal(negated, -(x + w))


def test_a_parameter_that_moves(machine):
    """`w.data = other`: no graph that reads the old memory is launched."""
    w = numbers(9)
    m = library_machine(machine, bound={1: w})
    x = numbers(0)
    for _ in range(5):
        log, _ = m.launched(x)
    assert log == ["graph"]
    old = w.data
    logs = []
    for k in range(6):
        w.data = numbers(20)
        log, (negated, _) = m.launched(x)
        assert torch.equal(negated, -(x + w))
        logs.append(log == ["graph"])
    assert not logs[0] and logs[-1]  # by then it is copied on each call
    w.data = old
    log, (negated, _) = m.launched(x)
    assert torch.equal(negated, -(x + w)) and log == ["graph"]


def test_a_switch_of_the_library(machine):
    setting = [True]
    w = numbers(9)
    m = library_machine(machine, bound={1: w})
    m.settings["switches"] = ((lambda: setting[0], True),)
    x = numbers(0)
    for _ in range(5):
        log, _ = m.launched(x)
    assert log == ["graph"]
    setting[0] = False
    m.settings["switches"] = ((lambda: setting[0], False),)
    assert m.launched(x)[0] != ["graph"]
    assert m.launched(x)[0] != ["graph"]  # recorded anew
    assert m.launched(x)[0] == ["graph"]


def test_streams_have_graphs_of_their_own(machine):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    for stream in (0, 5, 0, 5, 0, 5, 0, 5):
        m.fake.stream = stream
        log, _ = m.launched(x, y)
    assert log == ["graph"] and len(m.replays.recorded) == 2
    assert sorted(replay["stream"] for replay in m.replays.recorded) == [0, 5]


def test_nothing_is_launched_into_a_capture(machine):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    for _ in range(5):
        m.call(x, y)
    m.fake.capturing = (0, [])  # the program's own
    m.launched(x, y)
    assert not m.fake.log and len(m.fake.capturing[1]) == 3
    m.fake.capturing = None
    assert m.launched(x, y)[0] == ["graph"]


def test_no_recording_within_a_capture(machine):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    m.fake.capturing = (0, [])
    for _ in range(5):
        m.call(x, y)
    assert len(m.fake.capturing[1]) == 15 and not m.replays.recorded
    m.fake.capturing = None
    for _ in range(3):
        log, _ = m.launched(x, y)
    assert log == ["graph"]


@pytest.mark.parametrize("fails", ["capture", "instantiate", "set"])
def test_what_cannot_be_recorded_is_launched_call_by_call(machine, told, fails):
    m = machine(kernels_only())
    m.fake.fails.add(fails)
    for k in range(6):
        x, y = numbers(k), numbers(k + 100)
        total = x + y
        log, (_, whole) = m.launched(x, y)
        assert log == ["add", "double", "bump"] and torch.equal(whole, total)
    assert [event.kind for event in told] == ["direct"] and "FAKE" in told[0].data["why"]
    assert not m.fake.graphs and not m.fake.executables and m.fake.capturing is None


def test_a_recording_that_failed_is_tried_again(machine, told):
    """Another thread may have synchronised the device meanwhile."""
    m = machine(kernels_only())
    m.fake.fails.add("instantiate")
    x, y = numbers(0), numbers(1)
    for _ in range(5):
        m.call(x, y)
    m.fake.fails.clear()
    for _ in range(70):
        log, _ = m.launched(x, y)
    assert log == ["graph"] and [event.kind for event in told] == ["direct", "graph"]


def test_a_recording_that_fails_is_not_tried_for_ever(machine, told):
    m = machine(kernels_only())
    m.fake.fails.add("instantiate")
    x, y = numbers(0), numbers(1)
    for _ in range(400):
        m.call(x, y)
    assert [event.kind for event in told] == ["direct"] and m.replays._failures == 3
    assert not m.fake.graphs


def test_out_of_memory_while_recording(machine, told, monkeypatch):
    m = machine(kernels_only())

    def refuse(*args):
        raise torch.OutOfMemoryError("out of it")

    monkeypatch.setattr(m.executable, "record", refuse)
    for k in range(6):
        assert m.launched(numbers(k), numbers(9))[0] == ["add", "double", "bump"]
    assert "out of it" in told[0].data["why"] and not m.fake.graphs
    assert m.lanes.here(0).errors == [torch.OutOfMemoryError]


@pytest.mark.parametrize("fails", ["launch", "set"])
def test_a_graph_that_breaks_serves_no_further_call(machine, fails):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    for _ in range(5):
        m.call(x, y)
    m.fake.fails.add(fails)
    before = x.clone()
    assert m.call(numbers(2), y) == "slow" and m.slow.calls[0][0] == "fault"
    assert torch.equal(x, before)
    m.slow.calls.clear()
    m.fake.fails.clear()
    assert m.launched(x, y)[0] == ["add", "double", "bump"]


def test_memory_is_bounded(machine, told):
    m = machine(with_aliases(), limit_bytes=16)
    for k in range(5):
        log, _ = m.launched(numbers(k))
    assert log == ["double", "double"] and "too large" in told[0].data["why"]


def test_a_graph_that_has_to_make_room(machine):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    for _ in range(5):
        m.call(x, y)
    (lane,) = m.lanes.lanes.values()
    (owner, graph), = lane.graphs
    owner().forget(graph())
    assert not m.replays.recorded and not lane.graphs
    gc.collect()
    assert not m.fake.executables and not m.fake.graphs
    for _ in range(5):
        log, _ = m.launched(x, y)
    assert log == ["graph"]


def test_a_graph_in_use_outlives_its_drop(machine):
    m = machine(kernels_only())
    for _ in range(5):
        m.call(numbers(0), numbers(1))
    (replay,) = m.replays.recorded
    replay["busy"] = 1  # a call of another thread is about to launch it
    m.replays.drop(replay)
    address = replay["executable"]
    del replay
    gc.collect()
    assert address in m.fake.executables
    m.replays._dropped[0]["busy"] = 0
    m.replays.notice(numbers(0), numbers(1))
    for replay in m.replays.recorded:
        m.replays.drop(replay)
    gc.collect()
    assert address not in m.fake.executables


def test_a_graph_ends_with_its_program(machine):
    m = machine(kernels_only())
    for _ in range(5):
        m.call(numbers(0), numbers(1))
    fake = m.fake
    assert fake.executables
    del m
    gc.collect()
    assert not fake.executables and not fake.graphs


def test_another_program_of_the_executable_has_its_graphs(machine):
    m = machine(kernels_only())
    x, y = numbers(0), numbers(1)
    for _ in range(5):
        m.call(x, y)
    m.entry, old = m._entry(()), m.entry
    m.call = m.entry.call
    assert m.launched(x, y)[0] == ["graph"]


@pytest.mark.parametrize("mode, limit, is_asked", [
    ("reduce-overhead", 1 << 20, True), ("max-autotune", 1 << 20, True), ("default", 1 << 20, False),
    (None, 1 << 20, False), ("max-autotune-no-cudagraphs", 1 << 20, False),
    ("reduce-overhead", 0, False),
])
def test_modes_that_ask_for_graphs(mode, limit, is_asked):
    asked = Graphs.asked_for("f", mode, {"graph_bytes": limit})
    assert (asked is not None) == is_asked and (asked is None or asked.limit_bytes == limit)


REASONS = {
    "draws": (LibraryCall("aten.bernoulli.p", (Ref(0), 0.5), (), (1,)), "draws random numbers"),
    "asks": (LibraryCall("aten.masked_select.default", (Ref(0), Ref(0)), (), (1,)), "asks the GPU"),
    "custom": (LibraryCall("mine.op.default", (Ref(0),), (), (1,)), "operator of the program's"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_never_a_graph(name):
    call, why = REASONS[name]
    found = Executable(made((X,), [("input", 0, X), ("output", 0, X)], [], [call], [1]), None)
    assert why in replays.why_direct(found)


def test_attention_without_dropout_is_no_draw():
    from preheat.bridge.ops import draws

    name = "aten._scaled_dot_product_flash_attention.default"
    assert draws(name, (Ref(0), Ref(1), Ref(2), 0.5), ())
    assert not draws(name, (Ref(0), Ref(1), Ref(2)), ())
    assert not draws(name, (Ref(0), Ref(1), Ref(2), 0.0), ())
    assert draws("aten.native_dropout.default", (Ref(0), 0.0, True), ())
