"""Listeners: counters count, logs read well, stages become files, explanations collect."""

import html.parser
import logging

import pytest
import torch

import preheat
from preheat.base.errors import UserError
from preheat.base.events import Event, bus, emit
from preheat.base.pins import Pin
from preheat.report.counters import counters
from preheat.report.explain import explain_call
from preheat.report.logs import CHANNELS, Logs, checked_channels
from preheat.report.stages import StageFolder
from preheat.report.start import start

BREAK = {
    "name": "f",
    "reason": "host_call",
    "detail": "print",
    "file": "model.py",
    "line": 12,
    "code": '    print("loss", x)',
    "hint": "move it out",
}
TRACE = "entry(1 args)\n  s1 = arg 0\n  node 0\n    guard s1 tensor f32[8]\n    body (s1) -> %1\n"


@pytest.fixture
def no_new_listeners(monkeypatch):
    monkeypatch.setattr(bus, "_listeners", bus._listeners)


def test_counters_follow_the_table():
    before = counters()
    emit("capture", name="f", captured=True)
    emit("capture", name="f", captured=False)
    emit("cache", name="f", hit=True)
    emit("cache", name="f", hit=None, why="not stored: a lambda")
    emit("break", **BREAK)
    after = counters()
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == {"captures": 1, "cache_hits": 1, "breaks": 1}


def messages(channels: list[str], *events: Event) -> list[str]:
    """What these channels say of the events."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logs, loggers = Logs(channels), [logging.getLogger(f"preheat.{channel}") for channel in channels]
    for logger in loggers:
        logger.addHandler(handler)
    for event in events:
        logs(event)
    for logger in loggers:
        logger.removeHandler(handler)
    return told


def test_logs_show_their_channels_only():
    events = (
        Event("break", BREAK), Event("stage", {"name": "trace", "text": TRACE}),
        Event("stage", {"name": "core", "text": "graph core"}))
    assert messages(["graph_breaks", "guards"], *events) == [
        'model.py:12: host_call: print  (in f)\n    print("loss", x)\n    move it out',
        "1 guards\n    s1 tensor f32[8]",
    ]


@pytest.mark.parametrize("name", CHANNELS)
def test_every_channel_survives_bare_events(name):
    logs = Logs([name])
    for kind in logs.kinds:
        logs(Event(kind, {}))
        logs(Event(kind, {"name": "plan", "text": "x", "hit": True, "why": "y"}, seconds=0.1))


def test_channel_names():
    assert checked_channels("") == () and checked_channels("all") == tuple(CHANNELS)
    assert checked_channels("cache, guards,cache") == ("cache", "guards")
    with pytest.raises(UserError, match="did you mean 'graph_breaks'"):
        checked_channels("graph_break")


def test_stage_folder(tmp_path, no_new_listeners):
    start({"PREHEAT_COMPILE_DEBUG": "1", "PREHEAT_COMPILE_DEBUG_DIR": str(tmp_path / "out")})
    assert bus.wants("stage")
    emit("stage", name="core", text="graph core ()")
    emit("compile", name="f", kernels=2)
    (folder,) = (tmp_path / "out").iterdir()
    assert [p.name for p in sorted(folder.iterdir())] == ["000_core.txt", "001_compile.txt"]
    assert (folder / "000_core.txt").read_text() == "graph core ()\n"


def test_stage_folder_names_are_file_names(tmp_path):
    StageFolder(tmp_path)(Event("kernel", {"name": "a/b c", "text": "x"}))
    assert [p.name for p in tmp_path.iterdir()] == ["000_a_b_c.txt"]


def test_explanation_collects_and_reads():
    def call():
        emit("capture", name="f", captured=True)
        emit("stage", name="trace", text=TRACE)
        emit("compile", name="f", kernels=2)
        return 7

    found = explain_call(call, "f")
    assert (found.graph_count, found.break_count, found.kernels, found.result) == (1, 0, 2, 7)
    assert found.guards == ("s1 tensor f32[8]",)
    assert str(found).startswith("f: 1 graph, 0 breaks, 1 guard, 2 kernels")


def test_plans_without_a_graph_are_told():
    why = "launched call by call: aten.bernoulli.p draws random numbers"
    explanation = explain_call(lambda: emit("direct", name="f", why=why), "f")
    assert explanation.direct == (why,) and f"no CUDA graph: {why}" in str(explanation)
    direct = Event("direct", {"name": "f", "why": why})
    assert messages(["perf_hints"], direct) == [f"f has no CUDA graph, it is {why}"]


def test_explanation_of_a_break_and_of_an_exception():
    def call():
        emit("capture", name="f", captured=False)
        emit("break", **BREAK)
        raise KeyError("k")

    found = explain_call(call, "f")
    assert (
        found.break_count == 1 and found.breaks[0].line == 12 and isinstance(found.error, KeyError)
    )
    assert 'model.py:12: host_call: print\n      print("loss", x)\n      move it out' in str(found)


def test_what_captures_of_a_script_have_pinned_is_told():
    pin = Pin("arg1", "arg1", "3", "torch.pixel_shuffle", "f.py", 12, "pixel_shuffle(x, n)")
    found = explain_call(lambda: emit("capture", name="f", captured=True, numbers=(pin, pin)), "script.py")
    assert found.numbers == (pin,) and str(pin) in str(found)


def test_all_breaks_of_one_run_with_counts_and_costs():
    def call():
        emit("capture", name="f", captured=True, nodes=3)
        for seconds in (0.25, 0.5):
            bus.send(Event("break", {**BREAK, "goes_on": True}, seconds=seconds))
        emit("break", **{**BREAK, "line": 14, "reason": "write_outside", "hint": "a\n    b"})

    found = explain_call(call, "f")
    assert (found.graph_count, found.break_count) == (3, 2)
    first, second = found.breaks
    assert (first.kind, first.count, first.seconds) == ("host", 2, 0.75)
    assert first.cost.startswith("host step, 2 times, 0.750 s: the function is called anew")
    assert (second.kind, second.count) == ("eager", 1)
    assert "\n      a\n          b\n      eager part: from there" in str(found)


class Page(html.parser.HTMLParser):
    """The text of a page, and its tags; fails on anything loaded from outside."""

    def __init__(self):
        super().__init__()
        self.text, self.tags = "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_the_page_says_all_and_escapes_it(tmp_path):
    def call():
        emit("capture", name="f", captured=False)
        emit("stage", name="trace", text=TRACE)
        emit("break", **{**BREAK, "code": "if x < y and '<b>' > z:", "hint": "instead: a & b"})
        emit("fallback", what="f", why="<script>")
        raise KeyError("<i>")

    path = explain_call(call, "<lambda>").to_html(tmp_path / "page.html")
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    for text in ("<lambda>", "if x < y and '<b>' > z:", "instead: a & b", "<script>", "model.py:12",
                 "s1 tensor f32[8]", "calls print", "eager part", "KeyError: '<i>'"):
        assert text in page.text, text
    assert not {"script", "b", "i", "lambda"} & set(page.tags)


def test_the_page_of_a_whole_graph(tmp_path):
    with torch.no_grad():
        found = preheat.explain(lambda x: torch.relu(x) + 1)(torch.ones(2))
    text = found.to_html(str(tmp_path / "page.html")).read_text(encoding="utf-8")
    assert "1 graph, 0 breaks" in text and "guards, checked on every call" in text


def test_channels_name_stages_that_exist():
    """A compile that is listened to shows each stage that a channel asks for."""
    seen = []
    unsubscribe = bus.subscribe(seen.append, {"stage"})
    with torch.no_grad():
        preheat.compile(lambda x: torch.relu(x) + 1, options={"cache": False})(torch.ones(2))
    unsubscribe()
    names = {event.data["name"] for event in seen}
    for name, rows in CHANNELS.items():
        if any(row.kind == "stage" for row in rows):
            assert any(row.shows(event.data) for row in rows for event in seen), (name, names)
