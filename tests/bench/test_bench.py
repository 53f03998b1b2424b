"""The benchmark's own arithmetic, its table, and the command line around it."""

import json

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from bench import models, suite, table, worker
from preheat.base.errors import UserError
from preheat.cli import commands
from preheat.store.disk import Disk
from preheat.store.key import Key


def result(**fields):
    base = {
        "cold_s": {"eager": 0.1, "torch.compile": 20.1, "preheat": 0.2},
        "warm_s": {"eager": 0.1, "torch.compile": 3.1, "preheat": 0.15},
        "steady_us": {"eager": 300.0, "torch.compile": 240.0, "preheat": 100.0},
        "error": {"eager": 1e-7, "torch.compile": 2e-7, "preheat": 1e-7},
    }
    return suite.Result("mlp_1", **{**base, **fields})


def printed(report):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))
    table.show(report, console)
    return console.export_text()


def test_ratios_are_the_others_time_over_ours():
    one = result()
    assert table.ratio(one.steady_us, "torch.compile") == pytest.approx(2.4)
    assert table.beyond_eager(one.cold_s) == pytest.approx({"torch.compile": 20.0, "preheat": 0.1})
    assert table.geometric_mean([2.0, 8.0, None]) == pytest.approx(4.0)
    assert table.geometric_mean([None]) is None
    text = printed(suite.Report({"threads": 1}, [one]))
    assert "2.40x" in text and "200x" in text and "3.00x" in text


def test_what_failed_or_ran_eager_is_printed():
    failed = result(
        failures={"cold torch.compile": "no C++ compiler"},
        counters={"cold preheat": {"breaks": 2}, "warm preheat": {"captures": 1, "cache_hits": 0}},
    )
    text = printed(suite.Report({}, [failed]))
    assert "cold torch.compile failed: no C++ compiler" in text
    assert "2 breaks, 0 calls went on as plain Python" in text and "did not find it in the cache" in text


def test_a_report_is_json():
    report = suite.Report(suite.machine(), [result()], {"gb_per_s": {"copy": 10.0, "kernel": 9.0}})
    assert json.loads(report.as_json())["results"][0]["steady_us"]["preheat"] == 100.0
    assert "ratio 0.90" in printed(report)


def test_peak_memory_is_printed_for_training():
    trained = suite.Result("train_mlp", peak_bytes={"eager": 4_000_000, "preheat": 3_000_000})
    text = printed(suite.Report({}, [trained]))
    assert "4.00" in text and "3.00" in text and "0.75" in text


def test_leaves_and_errors():
    found = {"a": torch.tensor([1.0, 2.0]), "b": [(torch.tensor([3.0]), "text", None)]}
    assert [leaf.tolist() for leaf in worker.leaves(found)] == [[1.0, 2.0], [3.0]]
    error = worker.relative_error([torch.tensor([1.0, 4.1])], [torch.tensor([1.0, 4.0])])
    assert error == pytest.approx(0.025, rel=1e-4)


def test_alternation_takes_turns():
    order = []
    worker.alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, 0.0)
    assert "".join(order[-6:]) == "ababab"


def test_every_subject_is_the_same_in_every_process():
    for name in ("mlp_1", "call_function", "call_layers", "llama_decode"):
        one, other = models.make(name), models.make(name)
        with torch.no_grad():
            pair = [worker.leaves(s.call(*s.args, **s.kwargs)) for s in (one, other)]
        assert all(torch.equal(a, b) for a, b in zip(*pair)), name
    assert len([row for row in models.MODELS.values() if row.kind == "model"]) >= 10


def test_command_line():
    run = CliRunner().invoke
    assert "convnext" in run(commands, ["bench", "--list"]).output
    assert isinstance(run(commands, ["bench", "--models", "brt"]).exception, UserError)
    assert "did you mean 'bert'" in str(run(commands, ["explain", "brt"]).exception)
    assert "1 graph, 0 breaks" in run(commands, ["explain", "mlp_1"]).output
    assert "preheat, version" in run(commands, ["--version"]).output


def test_cache_command(cache_folder):
    run = CliRunner().invoke
    assert run(commands, ["cache"]).exit_code == 0
    path = Disk(cache_folder).write(Key("program", {}), "hint", b"x" * 4096)
    bystander = cache_folder / "photos" / "2024" / "beach-1.jpg"
    bystander.parent.mkdir(parents=True)
    bystander.write_bytes(b"not ours")
    shown = run(commands, ["cache"]).output
    assert "program" in shown and "photos" not in shown
    assert "removed 1 entries" in run(commands, ["cache", "--clear"]).output
    assert not path.exists() and bystander.exists()


def test_rivals_stand_in_a_table_of_their_own():
    stepped = result(steady_us={"eager": 300.0, "preheat": 100.0, "eager fused": 150.0})
    stepped.model = "adamw_200"
    text = printed(suite.Report({}, [stepped]))
    assert "eager fused" in text and "1.50x" in text and "3.00x" in text


def test_the_optimizer_of_the_benchmark_steps():
    subject = models.make("adamw_200")
    (rival,) = subject.rivals.values()
    with torch.no_grad():
        assert subject.call() is None and rival() is None
