"""Walks over hand-made nodes: ends, guards, faults, exceptions, limits, the store."""

import gc
import sys
import threading
import types
import warnings
import weakref

import pytest
import torch

import preheat
import preheat.compiler
from preheat.base.callers import Raised
from preheat.base.events import subscribe
from preheat.bridge.tensors import tensor_facts
from preheat.compiler import Made, compile_trace
from preheat.dispatch import CAPTURE_ATTEMPTS, RAISED_AN_ATTEMPT, Compiled
from preheat.ir.text import parse
from preheat.ir.trace import (
    Captured, Goto, Guard, Host, Live, Named, Node, Outcome, Point, Recipe, Return, Signature,
    Source, Step, Trace,
)
from preheat.run.walk import Points

X = torch.arange(4.0)
TIMES = 'graph aten (%0: f32[4] "x"):\n    %1: f32[4] = aten.mul.Scalar(%0, {})\n    return %1'


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def recipe(*steps):
    """Steps as (kind, *args); the last one is the result."""
    return Recipe(tuple(Step(kind, tuple(args)) for kind, *args in steps), len(steps) - 1)


def point(number, slots, has_answer=True, live=None):
    """A place of the program by number: nothing here rebuilds frames."""
    marks = () if live is None else (("const", Live(live)),)
    return Point(recipe(("const", number), *marks, ("tuple",)), slots, has_answer)


def node(end, *, arguments=1, factor=None, guards=(), objects=(), start=None, why="", live_steps=()):
    """A node whose sources are its arguments; `factor` times the first one is its value 0."""
    sources = tuple(Source(-1, "arg", k) for k in range(arguments))
    body, inputs = None, ()
    if factor is not None:
        body, inputs = parse(TIMES.format(factor)), (0,)
        guards = (Guard(0, "tensor", tensor_facts(X)), *guards)
    trace = Trace(Signature(arguments), sources, (Node(tuple(guards), inputs, body, end),))
    return Captured(trace, tuple(objects), why or ("objects" if objects else ""), start)


class Script:
    """Stands for the capture side: gives out prepared outcomes, and notes what it is asked."""

    def __init__(self, monkeypatch, calls=(), resumes=(), interprets=()):
        self.calls, self.resumes, self.interprets = list(calls), list(resumes), list(interprets)
        self.asked = []
        for name in ("compile_call", "resume_call", "interpret_call"):
            monkeypatch.setattr(preheat.compiler, name, getattr(self, name))

    def made(self, outcome):
        outcome = outcome() if callable(outcome) else outcome
        traces = [captured.trace for captured in outcome.nodes]
        return Made(outcome, tuple(compile_trace(trace, "scripted") for trace in traces))

    def compile_call(self, target, args, kwargs, request):
        self.asked.append(("call", args))
        self.request = request
        return self.made(self.calls.pop(0))

    def resume_call(self, point, opened, values, request):
        self.asked.append(("resume", point, tuple(values)))
        self.request = request
        return self.made(self.resumes.pop(0))

    def interpret_call(self, point, opened, values):
        error = values[-1].error if type(values[-1]) is Raised else None
        values = values if error is None else values[:-1] + [None]
        self.asked.append(("interpret", point, tuple(values), error))
        result = self.interprets.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result(error) if callable(result) else result


def compiled(target=lambda x: "plain", **options):
    return Compiled(target, options={"cache": False, **options})


P1, P2 = point(1, 2), point(2, 2)


def asks(function, following=P1, slot=0):
    """A host end that calls `function(x)` and carries x."""
    return Host(
        recipe(("source", slot), ("tuple", 0), ("dict",), ("const", Live(0)), ("tuple", 3, 1, 2, 0)),
        following), (function,)


def first(function, following=P1):
    end, objects = asks(function, following)
    return node(end, objects=objects)


def second(answer, factor, start=P1):
    """The node after the host call, for one answer: returns factor * x."""
    return node(
        Return(recipe(("value", 0))), arguments=2, factor=factor, start=start,
        guards=(Guard(1, "value", answer),))


def test_paths_are_variants_of_one_place(monkeypatch):
    asked = []
    answers = iter([True, True, False, True, False])
    host = lambda x: (asked.append(x), next(answers))[1]  # noqa: E731

    def whole():
        host(X)
        return Outcome("first", nodes=(first(host), second(True, 2.0)))

    script = Script(monkeypatch, [whole], [lambda: Outcome("new path", nodes=(second(False, 3.0),))])
    call = compiled()
    assert call(X) == "first"
    assert torch.equal(call(X), X * 2)  # both nodes are bound now
    assert call(X) == "new path"
    assert torch.equal(call(X), X * 2) and torch.equal(call(X), X * 3)
    assert [row[0] for row in script.asked] == ["call", "resume"]
    assert script.asked[1][1] == P1 and script.asked[1][2][1] is False
    assert len(asked) == 5 and len(call.variants) == 3


def test_effects_are_done_once_a_call_and_never_bound_at_once(monkeypatch):
    log = []
    append = node(
        Return(recipe(("source", 0), ("const", 1), ("append", 0, 1), ("const", "done"))),
        guards=(Guard(0, "type", Named("builtins", "list")),))

    def whole():
        log.append(1)
        return Outcome("done", nodes=(append,))

    Script(monkeypatch, [whole])
    call = compiled()
    assert call(log) == "done" and log == [1] and not call.variants
    assert call(log) == "done" and log == [1, 1] and len(call.variants) == 1
    assert call(log) == "done" and log == [1, 1, 1]


def test_a_goto_goes_on_with_the_slots_alone(monkeypatch):
    place = point(5, 1, has_answer=False)
    begin = node(Goto(recipe(("source", 0), ("tuple", 0)), place))
    rest = node(Return(recipe(("value", 0))), factor=4.0, start=place)
    Script(monkeypatch, [Outcome("first", nodes=(begin, rest))])
    call = compiled()
    assert call(X) == "first" and torch.equal(call(X), X * 4) and torch.equal(call(X), X * 4)


def test_a_capture_that_meets_a_known_place_goes_on_compiled(monkeypatch):
    """A loop: halve until the host says stop. The second round begins where the first did."""
    answers = []
    host = lambda x: answers.pop(0)  # noqa: E731
    end, objects = asks(host, P1)
    body = Host(
        recipe(("value", 0), ("tuple", 0), ("dict",), ("const", Live(0)), ("tuple", 3, 1, 2, 0)), P1)
    around = node(
        body, arguments=2, factor=0.5, objects=objects, start=P1, guards=(Guard(1, "value", True),))
    leave = node(
        Return(recipe(("source", 0))), arguments=2, start=P1,
        guards=(Guard(1, "value", False), Guard(0, "tensor", tensor_facts(X))))

    def whole():
        host(X)  # True
        answer = host(X * 0.5)
        return Outcome(
            nodes=(node(end, objects=objects), around), goes_on=(P1, (X * 0.5, answer)))

    def last():
        return Outcome(X * 0.125, nodes=(leave,))

    script = Script(monkeypatch, [whole], [last])
    call = compiled()
    answers[:] = [True, True, True, False]
    assert torch.equal(call(X), X * 0.125)
    for rounds in (0, 1, 7):
        answers[:] = [True] * rounds + [False]
        assert torch.equal(call(X), X * 0.5**rounds) and not answers
    assert [row[0] for row in script.asked] == ["call", "resume"]


def test_a_host_call_that_raises_has_answered(monkeypatch):
    """A node is made for the answer; where the call ends in an exception, the next one is plain."""
    host = lambda x: 1 / 0  # noqa: E731
    left = KeyError("left")

    def escapes(error):
        assert sys.exc_info()[1] is None and error.__context__ is None
        raise error

    script = Script(
        monkeypatch, [Outcome("first", nodes=(first(host), second(True, 2.0)))],
        [Outcome(error=left)], [escapes])
    call = compiled()
    assert call(X) == "first"
    with pytest.raises(KeyError) as raised:
        call(X)
    assert raised.value is left and left.__context__ is None
    kind, place, (carried, answer) = script.asked[1]
    assert (kind, place) == ("resume", P1) and carried is X and type(answer) is Raised
    error = answer.error
    assert type(error) is ZeroDivisionError and error.__context__ is None
    frames = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry.tb_frame.f_code.co_name)
        entry = entry.tb_next
    assert frames == ["<lambda>"]
    with pytest.raises(ZeroDivisionError) as raised:
        call(X)
    assert raised.value.__context__ is None and script.asked[2][:2] == ("interpret", P1)
    assert script.asked[2][2] == (X, None)  # no answer


def test_a_fault_in_the_middle_is_interpreted_from_the_nodes_start(monkeypatch):
    text = (
        'graph aten (%0: f32[4] "x", %1: i64[1] "i"):\n'
        "    %2: f32[1] = aten.index_select.default(%0, 0, %1)\n    return %2")
    index = torch.zeros(1, dtype=torch.int64)
    sources = (Source(-1, "arg", 0), Source(-1, "arg", 1))
    guards = (Guard(0, "tensor", tensor_facts(X)), Guard(1, "tensor", tensor_facts(index)))
    trace = Trace(
        Signature(2), sources,
        (Node(guards, (0, 1), parse(text), Return(recipe(("value", 0)))),))
    take = Captured(trace, (), "", P1)
    indices = []
    host = lambda x: indices.pop(0)  # noqa: E731
    script = Script(
        monkeypatch, [Outcome("first", nodes=(first(host), take))], (), [IndexError("the user's")])
    call = compiled()
    assert call(X) == "first"
    indices[:] = [torch.tensor([2]), torch.tensor([9]), torch.tensor([3])]
    assert call(X).tolist() == [2.0]
    with pytest.raises(IndexError, match="the user's"):
        call(X)
    assert script.asked[-1][0] == "interpret" and script.asked[-1][1] == P1
    assert script.asked[-1][2][1].tolist() == [9]
    assert call(X).tolist() == [3.0]


def test_a_fault_at_the_entry_runs_the_program_itself(monkeypatch):
    text = (
        'graph aten (%0: f32[4] "x", %1: i64[1] "i"):\n'
        "    %2: f32[1] = aten.index_select.default(%0, 0, %1)\n    return %2")
    index = torch.zeros(1, dtype=torch.int64)
    guards = (Guard(0, "tensor", tensor_facts(X)), Guard(1, "tensor", tensor_facts(index)))
    end = Host(recipe(
        ("value", 0), ("tuple", 0), ("dict",), ("const", Live(0)), ("tuple", 3, 1, 2, 0)), P1)
    trace = Trace(
        Signature(2), (Source(-1, "arg", 0), Source(-1, "arg", 1)),
        (Node(guards, (0, 1), parse(text), end),))
    begin = Captured(trace, (len,), "objects")
    rest = node(Return(recipe(("source", 1))), arguments=2, start=P1)
    Script(monkeypatch, [Outcome("first", nodes=(begin, rest))])
    call = compiled(lambda x, i: "the program ran")
    assert call(X, index) == "first" and call(X, index) == 1
    assert call(X, torch.tensor([9])) == "the program ran"


def test_a_place_where_captures_give_up_is_interpreted(monkeypatch):
    attempts = CAPTURE_ATTEMPTS * RAISED_AN_ATTEMPT
    script = Script(
        monkeypatch,
        [Outcome(error=KeyError("first"), nodes=(first(lambda x: 1),))],
        [Outcome(error=KeyError("again")) for _ in range(attempts - 1)], ["third", "fourth"])
    call = compiled()
    for message in ("first", *["again"] * (attempts - 1)):
        with pytest.raises(KeyError, match=message):
            call(X)
    assert call(X) == "third" and call(X) == "fourth"
    assert [row[0] for row in script.asked] == ["call", *["resume"] * (attempts - 1), "interpret", "interpret"]


def test_too_many_paths_warn_once_and_then_calls_are_plain(monkeypatch):
    answers = iter(range(100))
    host = lambda x: next(answers)  # noqa: E731
    made = iter(range(1, 100))
    new_path = lambda: Outcome("path", nodes=(second(next(made), 1.0),))  # noqa: E731

    def whole():
        host(X)
        return Outcome("path", nodes=(first(host), second(0, 1.0)))

    script = Script(monkeypatch, [whole], [new_path] * 2, ["interpreted"])
    call = compiled(recompile_limit=3)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = [call(X) for _ in range(6)]
    assert found == ["path"] * 3 + ["interpreted", "plain", "plain"]
    (warning,) = heard
    assert "recompile_limit" in str(warning.message) and "expected" in str(warning.message)
    assert warning.filename == __file__
    assert [row[0] for row in script.asked] == ["call", "resume", "resume", "interpret"]


def test_a_capture_stops_when_it_has_made_as_many_nodes_as_may_be(monkeypatch):
    places = [point(100 + k, 2) for k in range(10)]
    host = lambda x: True  # noqa: E731

    def unrolled():
        made = [first(host, places[0])]
        for here, there in zip(places, places[1:]):
            if script.request.is_known(here, (host,)):
                return Outcome(nodes=tuple(made), goes_on=(here, (X, True)))
            end, objects = asks(host, there)
            made.append(node(end, arguments=2, objects=objects, start=here))
        raise AssertionError("never stopped")

    script = Script(monkeypatch, [unrolled], (), ["interpreted"])
    call = compiled(node_limit=4)
    with pytest.warns(UserWarning, match="node_limit"):
        assert call(X) == "interpreted"
    assert call(X) == "plain"


def test_a_capture_knows_the_places_that_it_has_made_itself(monkeypatch):
    known = []

    def whole():
        known.extend(script.request.is_known(p, ()) for p in (P1, P2, P1))
        return Outcome("first", nodes=())

    script = Script(monkeypatch, [whole])
    compiled()(X)
    assert known == [False, False, True]


def test_points_are_told_apart_by_bytes_and_objects():
    points, one, other = Points(), object(), object()
    constants = [Point(recipe(("const", value)), 0) for value in (1, True, 1.0, 0.0, -0.0)]
    assert len({id(points.at(p)) for p in constants}) == 5
    assert points.at(constants[0]) is points.at(Point(recipe(("const", 1)), 0))
    live = point(1, 0, live=0)
    moved = point(1, 0, live=3)
    place = points.at(live, (one,))
    assert points.at(moved, (None, None, None, one)) is place and place.objects == (one,)
    assert points.at(live, (other,)) is not place


def test_recursion_and_threads_walk_one_chain(monkeypatch):
    depth = []

    def host(x):
        if len(depth) < 3:
            depth.append(1)
            return bool(torch.equal(call(x), X * 2))
        return True

    Script(monkeypatch, [Outcome("first", nodes=(first(host), second(True, 2.0)))])
    call = compiled()
    depth[:] = [1] * 3
    assert call(X) == "first" and torch.equal(call(X), X * 2)
    depth.clear()
    assert torch.equal(call(X), X * 2) and len(depth) == 3
    found = []
    workers = [
        threading.Thread(target=lambda: found.extend(torch.equal(call(X), X * 2) for _ in range(50)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 200


def test_a_call_inside_its_own_capture_is_plain(monkeypatch):
    def whole():
        return Outcome(call(X), nodes=())

    Script(monkeypatch, [whole])
    call = compiled()
    assert call(X) == "plain"


def test_an_interrupt_leaves_the_object_usable(monkeypatch):
    answers = [True, KeyboardInterrupt(), True]

    def host(x):
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def thrown(error):
        raise error

    Script(monkeypatch, [Outcome("first", nodes=(first(host), second(True, 2.0)))], (), [thrown])
    call = compiled()
    assert call(X) == "first" and torch.equal(call(X), X * 2)
    with pytest.raises(KeyboardInterrupt):
        call(X)
    assert torch.equal(call(X), X * 2)


def test_no_value_outlives_its_call_and_reset_frees_all(monkeypatch):
    class Answer:
        pass

    seen = []

    def host(x):
        answer = Answer()
        seen.append(weakref.ref(answer))
        return answer

    rest = node(Return(recipe(("const", "end"))), arguments=2, start=P1)
    Script(monkeypatch, [Outcome("first", nodes=(first(host), rest))])
    call = compiled()
    call(X)
    assert call(X) == call(X) == "end"
    assert all(ref() is None for ref in seen)
    held = weakref.ref(call.variants[-1])
    call.reset()
    gc.collect()
    assert held() is None and not call.variants


def test_what_a_call_did_is_counted(monkeypatch):
    kinds = []
    unsubscribe = subscribe(lambda event: kinds.append(event.data), ["replay"])
    Script(
        monkeypatch, [Outcome("first", nodes=(first(lambda x: 1),))],
        [Outcome("second", nodes=(second(2, 1.0),))], ["third"])
    call = compiled(recompile_limit=1)
    before = preheat.counters()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [call(X) for _ in range(3)] == ["first", "second", "third"]
    finally:
        unsubscribe()
    change = {k: v - before[k] for k, v in preheat.counters().items() if v != before[k]}
    assert change["resumes"] == 1 and change["interpreted"] == 1 and "graph_replays" not in change


def test_a_stored_node_is_bound_only_where_its_end_can_be_gone_on_from(monkeypatch, tmp_path):
    """The frames behind a host call name functions: a process without them starts anew."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    module = types.ModuleType("walked_elsewhere")
    module.helper = lambda x: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    place = Point(recipe(("const", Named(module.__name__, "helper")), ("tuple", 0)), 2, True)
    end = Host(
        recipe(
            ("source", 0), ("tuple", 0), ("dict",), ("const", Named("builtins", "len")),
            ("tuple", 3, 1, 2, 0)),
        place)
    begin = node(end, guards=(Guard(0, "tensor", tensor_facts(X)),))
    rest = node(Return(recipe(("source", 1))), arguments=2, start=place)
    whole = Outcome("first", nodes=(begin, rest))
    script = Script(monkeypatch, [whole])
    program = lambda x: "plain"  # noqa: E731
    assert Compiled(program, options={"cache": True})(X) == "first"
    assert Compiled(program, options={"cache": True})(X) == 4  # from the store
    del module.helper
    script.calls.append(Outcome("anew"))
    assert Compiled(program, options={"cache": True})(X) == "anew"


def test_an_interrupt_between_calls_is_seen_by_the_program(monkeypatch):
    """An exception that no host call raised has no frame of one."""
    script = Script(
        monkeypatch, [Outcome("first", nodes=(first(lambda x: 1), second(1, 2.0)))], (),
        ["handled"])
    call = compiled()
    assert call(X) == "first" and torch.equal(call(X), X * 2)

    def interrupted(function, args, kwargs):
        raise KeyboardInterrupt

    (kind,) = call._kinds.values()
    kind.bound[0].call = interrupted
    assert call(X) == "handled"
    assert type(script.asked[-1][3]) is KeyboardInterrupt
