"""What the public functions are given wrongly is a UserError at that line, with the value and what to do."""

import pytest
import torch

import preheat

BUCKET = {"lengths": [4], "dims": {"x": 0}}
INF, NAN = float("inf"), float("nan")


def f(x, y=None):
    return x * 2


def compiled(**options):
    return preheat.compile(f, options={"cache": False, **options})


def asked(**options):
    return lambda: preheat.compile(f, options=options)


X = torch.ones(3, 4)


def ranging(ranges):
    return lambda: preheat.warmup(compiled(), [(X,)], ranges=ranges)


def padded(model=f, **rest):
    return lambda: preheat.bucketed(model, **{"lengths": [4], "dims": {"x": 0}, **rest})


def marked(*args, mark=preheat.mark_dynamic, **bounds):
    return lambda: mark(torch.ones(3, 4), *args, **bounds)


WRONG = {
    "a target": [
        (lambda: preheat.compile(3), r"cannot compile 3 \(int\)"),
        (lambda: preheat.compile([f]), "cannot compile"),
        (lambda: preheat.explain(3), r"cannot explain 3 \(int\): give a function"),
        (lambda: preheat.explain(None), "cannot explain None"),
        (lambda: preheat.disable("f"), "cannot disable 'f'"),
    ],
    "compile": [
        (lambda: preheat.compile(f, fullgraph="no"), "fullgraph must be True or False, got 'no'"),
        (lambda: preheat.compile(f, disable="no"), "disable must be True or False, got 'no'"),
        (lambda: preheat.compile(disable=None), "disable must be True or False, got None"),
        (lambda: preheat.compile(f, dynamic="auto"), "dynamic must be True or False, got 'auto'"),
        (lambda: preheat.compile(f, mode="max_autotune"), "did you mean 'max-autotune'"),
        (lambda: preheat.compile(f, mode=["default"]), "unknown mode"),
        (lambda: preheat.compile(f, backend="eagre"), "did you mean 'eager'"),
        (lambda: preheat.compile(f, backend=None), "a name or a callable"),
        (lambda: preheat.compile(f, mode="max-autotune", backend="eager"), "for the backend 'preheat'"),
        (lambda: preheat.compile(f, mode="max-autotune", backend=max), "for the backend 'preheat'"),
    ],
    "options": [
        (lambda: preheat.compile(f, options=3), "options must be a dict, got int"),
        (asked(caches=True), "did you mean 'cache'"),
        (asked(cache=1), "takes bool, got 1"),
        (asked(on_miss="raise"), "one of eager, error, not 'raise'"),
        (asked(on_miss="Eager"), "did you mean 'eager'"),
        (asked(on_miss=None), "takes str, got None"),
        (asked(random="generate"), "did you mean 'generated'"),
        (asked(gradient_bucket_mb=INF), "takes a finite number, got inf"),
        (asked(gradient_bucket_mb=NAN), "takes a finite number, got nan"),
        (asked(gradient_bucket_mb=-1), "at least 0"),
        (asked(gradient_bucket_mb=True), "takes float, got True"),
        (asked(memory_budget=2), "at most 1"),
        (asked(recompile_limit=0), "at least 1"),
        (asked(autotune_seconds=1.5), "takes int"),
    ],
    "marks": [
        (lambda: preheat.mark_dynamic(3, 0), "of a tensor can be marked, not of a int"),
        (lambda: preheat.mark_static(None), "of a tensor can be marked, not of a NoneType"),
        (marked(2), r"no axis 2 of \[3, 4\]"),
        (marked(-3), r"no axis -3 of \[3, 4\]"),
        (marked([0, 7]), r"no axis 7 of \[3, 4\]"),
        (marked(None), r"no axis None of \[3, 4\]"),
        (marked(1.0), r"no axis 1.0 of"),
        (marked(True), r"no axis True of"),
        (marked("0"), r"no axis '0' of"),
        (marked(2, mark=preheat.mark_static), r"no axis 2 of"),
        (marked(0.5, mark=preheat.mark_static), r"no axis 0.5 of"),
        (marked(0, min=5, max=2), "min=5 is more than max=2"),
        (marked(0, min="1"), "min must be a size, an int that is not negative, got '1'"),
        (marked(0, max=4.5), "max must be a size"),
        (marked(0, min=-3), "min must be a size"),
        (marked(0, min=4), r"axis 0 of \[3, 4\] is 3, which is not within min=4"),
    ],
    "disable": [
        (lambda: preheat.disable(f, recursive="no"), "recursive must be True or False"),
        (lambda: preheat.disable(f, reason=3), "reason must be a text, got 3"),
    ],
    "warmup": [
        (lambda: preheat.warmup(f, []), "f is not compiled"),
        (lambda: preheat.warmup(int, []), "int is not compiled"),
        (lambda: preheat.seal(3), "int is not compiled"),
        (lambda: preheat.warmup(compiled(), None), "takes a list of inputs, got NoneType"),
        (lambda: preheat.warmup(compiled(), X), r"got Tensor: write \[\(x,\)\]"),
        (lambda: preheat.warmup(compiled(), "abc"), "got str"),
        (lambda: preheat.warmup(compiled(), []), "was given no inputs, so nothing would be compiled"),
        (lambda: preheat.warmup(compiled(), iter(())), "an iterator that was used before is empty"),
        (lambda: preheat.warmup(compiled(), {"x": X}), "got dict"),
        (ranging(3), "ranges must be"),
        (ranging([]), "ranges must be"),
        (ranging({"x": 3}), "ranges must be"),
        (ranging({"x": {0: 3}}), r"ranges\['x'\] must be \{axis: sizes\}"),
        (ranging({"x": {0: []}}), "must be {axis: sizes}"),
        (ranging({"x": {0: [-1]}}), "not negative"),
        (ranging({"x": {0: ["a"]}}), "must be {axis: sizes}"),
        (ranging({"x": {"0": [1]}}), "must be {axis: sizes}"),
        (ranging({"x": {0: [1.0]}}), "must be {axis: sizes}"),
        (ranging({"x": {5: [1]}}), r"no axis 5 of \[3, 4\], input 0"),
        (ranging({"z": {0: [1]}}), "no argument 'z'"),
        (ranging({"y": {0: [1]}}), r"ranges\['y'\]: in input 0 it is None, no tensor"),
        (ranging({"x": {0: [1, 2]}, "y": {0: [2, 3]}}), "change together"),
    ],
    "buckets": [
        (padded(None), "cannot compile None"),
        (padded(torch.relu), "says no names of its arguments"),
        (padded(len), "no argument 'x'"),
        (padded(lengths=None), "lengths must be positive integers"),
        (padded(lengths="48"), "lengths must be positive integers"),
        (padded(lengths=[True]), "lengths must be positive integers"),
        (padded(dims=None), "dims must be {argument: axis}"),
        (padded(dims={"x": True}), "dims must be {argument: axis}"),
        (padded(dims={3: 0}), "no argument 3"),
        (padded(fill=3), r"fill must be \{argument: number\}, such as \{'x': 0\}, got 3"),
        (padded(fill=[1]), "fill must be"),
        (padded(fill=0), "fill must be"),
        (padded(fill={"x": None}), "fill of 'x' must be a number, got None"),
        (padded(fill={"y": 0}), "no axis that is padded"),
        (padded(options=3), "options must be a dict, got int"),
        (padded(options={"buckets": {"b": {"lengths": [2], "dims": {"y": 0}}}}), "give all of them to"),
        (asked(buckets=[]), "takes dict"),
        (asked(buckets={"a": BUCKET, "b": BUCKET}), "axis 0 of 'x' is padded by"),
    ],
    "stance": [
        (lambda: preheat.stance("fail_on_recompiles"), "did you mean 'fail_on_recompile'"),
        (lambda: preheat.stance(["default"]), "unknown stance"),
        (lambda: preheat.stance("default", skip_guard_eval_unsafe=True), "guards are never skipped"),
    ],
}
ROWS = [
    pytest.param(call, words, id=f"{name} {place}")
    for name, rows in WRONG.items() for place, (call, words) in enumerate(rows)]


@pytest.mark.parametrize("call, words", ROWS)
def test_wrong_arguments_are_told_where_they_are_given(call, words):
    before = preheat.counters()
    with pytest.raises(preheat.UserError, match=words):
        call()
    assert preheat.counters() == before


def test_every_option_refuses_what_is_not_of_its_type():
    for name, option in preheat.options().items():
        for value in (None, object(), [1], b"x"):
            with pytest.raises(preheat.UserError, match=f"option '{name}' takes {option.type.__name__}"):
                preheat.compile(f, options={name: value})


def test_an_error_of_the_program_in_warmup_says_for_which_input():
    for inputs, kind in (
            ([(X,), (X, 1, 2)], TypeError), ([X, {"z": X}], TypeError), ([X, ()], TypeError),
            ([X, None], TypeError), ([(X,), (X, X.to("meta"))], RuntimeError)):
        program = preheat.compile(lambda x, y=1.0: x * 2 + y, options={"cache": False})
        with torch.no_grad(), pytest.raises(kind) as error:
            preheat.warmup(program, inputs)
        assert "warmup has called it with input 1 of 2: (" in error.value.__notes__[0]
        preheat.warmup(program, inputs[:1])
        assert torch.equal(program(X), X * 2 + 1)


def test_inputs_of_warmup_may_come_from_anywhere():
    for inputs in ((X,), [X], iter([(X,)]), ((X,) for _ in range(2))):
        program = compiled(on_miss="error")
        preheat.warmup(program, inputs)
        preheat.seal(program)
        assert torch.equal(program(X), X * 2)
