"""Long reductions over axes whose sizes are not known, in as many parts as the sizes of a call say."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from generate.sized_programs import planned
from schedule.graphs import same
from schedule.loop_interpret import run_plan

from preheat.ir.pack import decode, encode
from preheat.ir.scalar import evaluate
from preheat.ir.sized import evaluated
from preheat.schedule import cost, open_parts, split


@pytest.fixture
def short_rows(monkeypatch):
    """Rows of more than 64 elements are long here, and 16 are a step."""
    monkeypatch.setattr(cost, "GPU_ROW_ELEMS", 64)
    monkeypatch.setattr(split, "GPU_STEPS", (4, 16))
    monkeypatch.setattr(open_parts, "OPEN_PARTS", 8)
    monkeypatch.setattr(open_parts, "PROGRAMS", 8)


def rows_of(made, *sizes):
    """The rows that each kernel of a plan has at the sizes of a tensor."""
    plan, _ = made.at((torch.empty(sizes),))
    return [call.extent for call in plan.calls]


def run_at(made, x):
    """What the plan gives for `x`, with the sizes in the text of its kernels."""
    plan, given = made.at((x,))
    kernels = evaluated(decode(encode(plan.kernels)), {"n2": x.shape[0], "n3": x.shape[1]})
    return run_plan(replace(plan, kernels=kernels), given)


def is_preferred(made, rows, length):
    return all(evaluate(test, {"n2": rows, "n3": length}) for test in made.preferences)


PROGRAMS = {
    "softmax": lambda x: x.softmax(-1), "logsumexp": lambda x: x.logsumexp(-1), "var": lambda x: x.var(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "largest": lambda x: x.amax(-1),
    "all": lambda x: (x.var(), x.sum(), (x * x[0]).sum(), x.mean())}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_at_all_sizes(name, short_rows):
    """Of few long rows and many short ones, by the plan of few long ones."""
    program = PROGRAMS[name]
    made = planned(program, (torch.randn(5, 153),))
    for sizes in ((5, 153), (3, 128), (2, 300), (9, 65), (1, 17), (40, 3), (300, 100)):
        x = torch.randn(sizes) + 3
        if not all(evaluate(test, {"n2": sizes[0], "n3": sizes[1]}) for test in made.conditions):
            continue
        expected = program(x)
        for a, b in zip(run_at(made, x), expected if isinstance(expected, tuple) else (expected,), strict=True):
            same(a, b)


def test_what_is_minus_infinity_in_parts(short_rows):
    made = planned(lambda x: x.softmax(-1), (torch.randn(5, 153),))
    x = torch.randn(3, 200)
    x[0], x[1, :150] = float("-inf"), float("-inf")
    (found,) = run_at(made, x)
    same(found, x.softmax(-1))


def test_rows_are_cut_by_their_number_and_length():
    """About 1056 parts of all rows: 16 softmaxes of 4194304 took 403 us on an H200 where a row was a program's, 106 cut."""
    made = planned(lambda x: x.softmax(-1), (torch.randn(5, 40000),))
    assert rows_of(made, 16, 4194304)[:2] == [16 * 64, 16] and rows_of(made, 64, 1048576)[0] == 64 * 16
    assert rows_of(made, 3, 10000001)[0] == 3 * 349 and rows_of(made, 100, 40000)[0] == 100 * 5
    assert is_preferred(made, 16, 4194304) and is_preferred(made, 100, 40000)
    assert not is_preferred(made, 32768, 1024) and not is_preferred(made, 1000, 1 << 20)


def test_many_rows_prefer_another_plan_where_they_are_few_and_long():
    made = planned(lambda x: x.softmax(-1), (torch.randn(200, 40),))
    assert len(made.plan.kernels) == 1
    assert is_preferred(made, 4096, 32768) and is_preferred(made, 1, 65536) and is_preferred(made, 66, 1 << 22)
    assert not is_preferred(made, 16, 4194304)


def test_a_sum_of_all_prefers_parts_where_it_is_long():
    short, long = planned(lambda x: x.sum(), (torch.randn(5, 37),)), planned(lambda x: x.sum(), (torch.randn(90, 100),))
    assert len(short.plan.kernels) == 1 and is_preferred(short, 100, 300) and not is_preferred(short, 1000, 300)
    assert len(long.plan.kernels) == 2 and is_preferred(long, 2, 3), "a second kernel costs little"
    assert rows_of(long, 262141, 67) == [858, 1], "no program has a part of which nothing is there"


def test_columns_prefer_parts_where_they_are_long_and_few():
    few, many = (planned(lambda x: x.amax(0), (torch.randn(rows, 48),)) for rows in (20, 1000))
    assert len(few.plan.kernels) == 1 and len(many.plan.kernels) == 2
    assert is_preferred(few, 256, 48) and not is_preferred(few, 40000, 48) and is_preferred(few, 2000, 1 << 16)
    assert is_preferred(many, 64, 9) and not is_preferred(many, 16, 1 << 20)


def test_a_mean_of_all_is_no_reason_to_take_positions_apart():
    """x - x.mean() is, element by element, what lies in memory."""
    made = planned(lambda x: x.var(), (torch.randn(90, 100),))
    ops = {op.op for kernel in made.plan.kernels for stage in kernel.stages for op in stage.body}
    assert not ops & {"floordiv", "remainder"}
    assert rows_of(made, 1 << 20, 16) == [1024, 1], "squares are about the mean of each part"
