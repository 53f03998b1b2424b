"""The search of the modes "max-autotune", with a device that says what it is told to."""

import io
from dataclasses import replace

import pytest
import torch
from generate.test_triton import linear, softmax
from schedule.graphs import Make, on_gpu

import preheat
from preheat import differentiate, tuning
from preheat.autotune import bench_of, search_settings
from preheat.base.events import Event, bus
from preheat.base.options import MODES
from preheat.capture.capture import capture
from preheat.generate.cubin import kernel_key
from preheat.generate.products import product_of
from preheat.ir.bench import Bench
from preheat.ir.graph import Ref
from preheat.ir.plan import Image, KernelCall, LibraryCall, Target
from preheat.report.explain import explain_call
from preheat.report.logs import CHANNELS
from preheat.report.progress import Progress
from preheat.schedule.products import products_of, small_products
from preheat.schedule.schedule import schedule
from preheat.store.disk import Disk
from preheat.store.tuned import Tuned
from preheat.transform.pipeline import HALF

TARGET = Target("cuda", "sm_90")


class Device:
    """Answers what kernels and plans take: `kernel_us(tile text)`, `plan_us(plan)`."""

    name = "A device"

    def __init__(self, kernel_us, plan_us):
        self.kernel_us, self.plan_us = kernel_us, plan_us
        self.kernels = self.plans = 0

    def is_possible(self):
        return True

    def is_cold(self, plan):
        return False

    def kernels_us(self, candidates, plan, call, target, is_cold):
        self.kernels += len(candidates)
        return [self.kernel_us(candidate) for candidate in candidates]

    def plans_us(self, plans, is_graphed):
        self.plans += 1
        return [self.plan_us(plan) for plan, _ in plans]


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """A binary is the number of its tile; an image, the tiles of its kernels."""
    monkeypatch.setattr(tuning, "binary", lambda source, target: source.tile)

    def build(kernels, target, tiles, known):
        chosen = tuple(tiles.get(kernel_key(kernel)) for kernel in kernels)
        return Image(b"", (), target, chosen)

    monkeypatch.setattr(tuning, "build_gpu", build)


def library_calls(plan):
    return sum(isinstance(call, LibraryCall) for call in plan.calls)


def prefers_kernels(plan):
    return 10.0 + 5 * library_calls(plan) + len(plan.calls)


def largest(tile):
    return 1e6 / (tile.rows * tile.columns)


def by_rule(graph):
    return schedule(graph, TARGET, small_products(graph))


def search(graph, device, table, whole=None, **fields):
    bench = Bench("f", lambda where: device, lambda name, versions: table,
                  **{"seconds": 100.0, "is_deterministic": False, **fields})
    return tuning.tuned(graph, whole or (lambda: graph), TARGET, bench)


def test_the_fastest_tile_and_the_product_that_wins(tmp_path):
    graph, device = linear(128, 256, 256), Device(largest, prefers_kernels)
    table = Tuned(Disk(tmp_path), "A device", "1")
    events = []
    stop = bus.subscribe(events.append, {"tune"})
    plan, image = search(graph, device, table)
    stop()
    assert library_calls(plan) == 0 and len(plan.calls) == 1
    tile = image.binaries[0]
    assert tile.rows * tile.columns == 64 * 64 and device.kernels > 4 and device.plans == 2
    assert events[-1].data["choice"].startswith("1 product is a kernel")
    counted = [e.data for e in events if "seconds_left" in e.data]
    assert counted[-1]["done"] == counted[-1]["total"] and counted[0]["seconds_left"] >= 0.0

    # another process, and one without a device: nothing is measured
    for other in (Device(largest, prefers_kernels), None):
        again = search(graph, other, Tuned(Disk(tmp_path), "A device", "1"))
        assert again == (plan, image)
        assert other is None or (other.kernels, other.plans) == (0, 0)
    # another device has a table of its own
    other = Device(largest, prefers_kernels)
    search(graph, other, Tuned(Disk(tmp_path), "Another device", "1"))
    assert other.kernels and other.plans


def test_products_stay_with_the_library_where_that_is_faster():
    device = Device(largest, lambda plan: 50.0 - 5 * library_calls(plan))
    plan, _ = search(linear(128, 256, 256), device, Tuned(None, "", ""))
    assert library_calls(plan) == 1


def test_each_kind_of_product_is_tried():
    """The first kind wins as a kernel, the second as a library call."""
    m = Make()
    x = m.input(64, 64)
    one = m.op("tanh", m.matmul(x, m.input(64, 64)))
    graph = on_gpu(m.graph(m.op("tanh", m.matmul(one, m.input(64, 128)))))
    assert len(set(products_of(graph).values())) == 2

    def plan_us(plan):
        wide = [k for k in plan.kernels if product_of(k) and product_of(k).along[0].extent == 128]
        return 50.0 - 5 * library_calls(plan) + 20 * (library_calls(plan) != 1) + 30 * len(wide)

    plan, _ = search(graph, Device(largest, plan_us), Tuned(None, "", ""))
    assert library_calls(plan) == 1
    assert [product_of(k).along[0].extent for k in plan.kernels if product_of(k)] == [64]


def test_a_long_product_with_few_results_may_be_cut(tmp_path):
    graph = linear(64, 2048, 128)
    device = Device(largest, lambda plan: 10.0 + 20 * library_calls(plan) - 3 * len(plan.calls))
    table = Tuned(Disk(tmp_path), "A device", "1")
    plan, _ = search(graph, device, table)
    assert len(plan.calls) == 2 and library_calls(plan) == 0
    assert any(text.startswith("fused") and ":2" in text for text in table.rows.values())
    again, _ = search(graph, None, Tuned(Disk(tmp_path), "A device", "1"))
    assert again == plan


def test_a_convolution_that_wins_is_a_kernel_with_its_bias(tmp_path):
    m = Make()
    x, w, bias = (m.input(*sizes, dtype="bfloat16") for sizes in ((8, 16, 14, 14), (32, 16, 3, 3), (32,)))
    y = m.convolution(x, w, 1, 1)
    op = m.builder.ops.pop()
    m.builder.append(replace(op, args=(*op.args[:2], Ref(bias), *op.args[3:])))
    graph = on_gpu(m.graph(m.op("neg", y)))
    plan, _ = search(graph, Device(largest, prefers_kernels), Tuned(Disk(tmp_path), "A device", "1"))
    assert library_calls(plan) == 0 and any(k.name.startswith("convolution") for k in plan.kernels)
    again, _ = search(graph, None, Tuned(Disk(tmp_path), "A device", "1"))
    assert again == plan
    by_library = Device(largest, lambda plan: 50.0 - 5 * library_calls(plan))
    assert library_calls(search(graph, by_library, Tuned(None, "", ""))[0]) == 1
    plan, _ = search(graph, Device(largest, prefers_kernels), Tuned(None, "", ""), is_deterministic=True)
    assert library_calls(plan) == 1


def test_eager_runs_where_it_is_faster(tmp_path):
    graph, table = linear(128, 256, 256), Tuned(Disk(tmp_path), "A device", "1")
    m = Make()
    other = on_gpu(m.graph(m.op("neg", m.input(128, 256, dtype="bfloat16"))))
    marked = schedule(other, TARGET)
    device = Device(largest, lambda plan: 1.0 if plan == marked else 10.0)
    events = []
    stop = bus.subscribe(events.append, {"tune"})
    plan, _ = search(graph, device, table, whole=lambda: other)
    assert plan == marked and events[-1].data["choice"].startswith("eager's own library calls run")
    plan, _ = search(graph, None, Tuned(Disk(tmp_path), "A device", "1"), whole=lambda: other)
    stop()
    assert plan == marked and "from the table" in events[-1].data["choice"]


def test_deterministic_searches_only_what_keeps_the_bits():
    device = Device(largest, prefers_kernels)
    graph = linear(128, 256, 256)
    plan, _ = search(graph, device, Tuned(None, "", ""), is_deterministic=True)
    assert plan == by_rule(graph) and device.plans == device.kernels == 0
    graph = linear(2048, 768, 768)
    plan, _ = search(graph, device, Tuned(None, "", ""), is_deterministic=True)
    assert library_calls(plan) == 1 and device.plans == 0  # the relu's tile may change
    assert 0 < device.kernels
    device = Device(largest, prefers_kernels)
    search(on_gpu(softmax(4096, 1024)), device, Tuned(None, "", ""), is_deterministic=True)
    assert device.kernels == 0


def test_without_time_the_rules_decide_and_nothing_is_kept(tmp_path):
    device, table = Device(largest, prefers_kernels), Tuned(Disk(tmp_path), "A device", "1")
    graph = linear(128, 256, 256)
    plan, image = search(graph, device, table, seconds=0.0)
    assert plan == by_rule(graph) and set(image.binaries) == {None}
    assert (device.kernels, device.plans, table.rows) == (0, 0, {})


def test_a_device_that_fails_costs_the_search_alone():
    def fails(plan):
        raise RuntimeError("out of memory")

    graph, table = linear(128, 256, 256), Tuned(None, "", "")
    events = []
    stop = bus.subscribe(events.append, {"tune"})
    assert library_calls(search(graph, Device(fails, prefers_kernels), Tuned(None, "", ""))[0]) == 0
    plan, _ = search(graph, Device(largest, fails), table)
    stop()
    assert plan == by_rule(graph) and "out of memory" in events[-1].data["choice"]
    assert not any(kind == "plan" for kind, _ in table.rows)


def test_what_could_not_be_timed_is_not_decided():
    table = Tuned(None, "", "")
    plan, _ = search(linear(2048, 768, 768), Device(largest, lambda plan: None), table)
    assert library_calls(plan) == 1 and not any(kind == "plan" for kind, _ in table.rows)


def test_a_kernel_that_may_assert_is_not_run():
    m = Make()
    graph = on_gpu(m.graph(m.take(m.input(100, 64), m.input(9, dtype="int64"))))
    device = Device(largest, prefers_kernels)
    search(graph, device, Tuned(None, "", ""))
    assert device.kernels == 0


def test_nonsense_in_the_table_is_searched_anew(tmp_path):
    graph = linear(128, 256, 256)
    table = Tuned(Disk(tmp_path), "A device", "1")
    search(graph, Device(largest, prefers_kernels), table)
    for row in list(table.rows):
        table.put(*row, "fused 99 x" if row[0] == "plan" else "7x7x7 warps 0 stages 0")
    device = Device(largest, prefers_kernels)
    plan, _ = search(graph, device, table)
    assert library_calls(plan) == 0 and device.kernels and device.plans


def test_reports():
    told = io.StringIO()
    progress = Progress(told)
    progress(Event("tune", {"name": "f", "done": 3, "total": 9, "seconds_left": 4.4}))
    progress(Event("tune", {"name": "kernel", "choice": "16x16 warps 1: 2.0 us", "table": {}}))
    progress(Event("tune", {"name": "f", "choice": "x", "done": 9, "total": 9, "seconds_left": 0.0}))
    first, *_ = told.getvalue().strip("\r").split("\r")
    assert first == "preheat: tuning f: 3 of 9 steps, 4 s left"
    assert told.getvalue().endswith(" \r")
    (channel,) = CHANNELS["autotune"]
    assert not channel.shows({"done": 1})
    assert channel.line({"name": "k", "choice": "a: 1.0 us", "table": {"a": 1.0}}, 0.0) == (
        "k: a: 1.0 us\n    a: 1.0 us")


def test_explanations_tell_what_was_chosen(tmp_path):
    graph = linear(128, 256, 256)

    def call():
        search(graph, Device(largest, prefers_kernels), Tuned(None, "", ""))

    told = explain_call(call, "f")
    (choice,) = told.tuned
    assert choice.startswith("1 product is a kernel: ") and f"tuned: {choice}" in str(told)
    assert "1 product is a kernel: " in told.to_html(tmp_path / "page.html").read_text()


def test_what_the_modes_ask_for():
    options = {"autotune_seconds": 7, "deterministic": False}
    assert search_settings("default", "preheat", options) == {}
    assert search_settings(None, "preheat", options) == {}
    assert search_settings("max-autotune", "eager", options) == {}
    bench = bench_of("f", "max-autotune", "preheat", options, None, lambda: None)
    assert (bench.seconds, bench.is_deterministic) == (7, False)
    assert bench.measure("cpu") is None
    table = bench.table("A device", "triton 0")
    table.put("tile", "0", "a")
    assert bench.table("A device", "triton 0").get("tile", "0") == "a"
    assert bench.table("Another", "triton 0").get("tile", "0") is None
    torch.use_deterministic_algorithms(True)
    try:
        assert bench_of("f", "max-autotune", "preheat", options, None, lambda: None).is_deterministic
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [name for name, row in MODES.items() if row.searches])
def test_a_cpu_has_the_default_kernels(mode, recwarn):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
    x = torch.randn(4, 16)
    compiled = preheat.compile(model, mode=mode, options={"cache": False})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
        told = preheat.explain(compiled)(x)
    assert told.tuned == ()


def test_the_call_of_a_plan_takes_one_buffer_a_parameter():
    """What is measured is what is called: parameters and buffers in one order."""
    plan = schedule(linear(128, 256, 256), TARGET, products_of(linear(128, 256, 256)))
    (call,) = plan.calls
    assert isinstance(call, KernelCall)
    types = [plan.buffers[b].type.dtype for b in call.buffers]
    assert types == [param.dtype for param in plan.kernels[call.kernel].params]


def test_both_halves_of_a_training_step_are_searched(monkeypatch):
    lowered = differentiate._lowered

    def moved(graph, passes, is_for_many=False):
        made = lowered(graph, passes, is_for_many)
        return on_gpu(made) if passes is HALF else made

    monkeypatch.setattr(differentiate, "target_of", lambda graph: TARGET)
    monkeypatch.setattr(differentiate, "_lowered", moved)
    device, table = Device(largest, lambda plan: 10.0), Tuned(None, "", "")
    bench = Bench("f", lambda where: device, lambda name, versions: table, 100.0)

    def layer(x, w):
        return torch.nn.functional.gelu(x * w).softmax(-1)

    x, w = torch.ones(64, 96), torch.ones(96, requires_grad=True)
    body = capture(layer, (x, w), {}, limits=None).captured.trace.nodes[0].body
    lesson = differentiate.Lesson.of(body, aims=differentiate.Aims(bench=bench))
    lesson.run([x, w]).backward(0, [torch.ones(64, 96)], [], False)
    told = []
    stop = bus.subscribe(told.append, {"tune"})
    plan, image, training = lesson.compiled("f")
    stop()
    (backward,) = training.backwards
    assert sum("choice" in e.data and "table" not in e.data for e in told) == 2
    tiles = [tile for made in (image, backward.image) for tile in made.binaries]
    assert len(tiles) == len(plan.kernels) + len(backward.plan.kernels) and any(tiles)
    assert device.kernels > len(tiles)


def test_half_a_step_has_no_calls_of_eager():
    """What the table says of a whole program is no choice for a half that looks the same."""
    graph, table = linear(2048, 768, 768), Tuned(None, "", "")
    m = Make()
    other = on_gpu(m.graph(m.op("neg", m.input(128, 256, dtype="bfloat16"))))
    marked = schedule(other, TARGET)
    device = Device(largest, lambda plan: 1.0 if plan == marked else prefers_kernels(plan))
    assert search(graph, device, table, whole=lambda: other)[0] == marked
    bench = Bench("f", lambda where: device, lambda name, versions: table, 100.0)
    plan, _ = tuning.tuned(graph, None, TARGET, bench, passed=())
    assert plan != marked and library_calls(plan) == 0


def test_the_search_may_undo_what_the_rules_choose():
    graph = linear(128, 256, 256)
    assert library_calls(by_rule(graph)) == 0
    plan, _ = search(graph, Device(largest, lambda plan: 50.0 - 5 * library_calls(plan)), Tuned(None, "", ""))
    assert library_calls(plan) == 1
