"""Plans as they are measured, on the CPU: called natively, on data in range, or not at all."""

import pytest
import torch
from entries import runtime
from schedule.graphs import TARGET, Make, on_gpu

from preheat.generate.build import build, host_target
from preheat.ir.plan import Target
from preheat.ir.types import tensor
from preheat.run.executable import executable
from preheat.run.measure import entry_of, filled, is_measurable
from preheat.schedule.schedule import schedule


@pytest.mark.parametrize("is_native", (True, False))
def test_a_plan_is_called_like_a_function_of_its_inputs(is_native):
    m = Make()
    x, y = m.input(8, 16), m.input(16)
    graph = m.graph(m.op("add", x, y), m.softmax(x, 1))
    plan = schedule(graph, host_target())
    made = executable(plan, build(plan.kernels, host_target()))
    call = entry_of(made, runtime() if is_native else None)
    a, b = torch.randn(8, 16), torch.randn(16)
    total, soft = call(a, b)
    torch.testing.assert_close(total, a + b)
    torch.testing.assert_close(soft, a.softmax(1))
    assert TARGET.kind == "cpu"


def test_data_have_the_type_and_leave_the_random_state_alone():
    before = torch.get_rng_state()
    for type in (
        tensor("float32", (3, 4), (1, 3)), tensor("int64", (5,)), tensor("bool", (2, 0)),
        tensor("bfloat16", (6, 4), (0, 1)), tensor("float32", ()),
    ):
        made = filled(type, torch.Generator().manual_seed(0))
        assert (tuple(made.shape), made.stride()) == (type.sizes, type.strides)
        assert type.kind == "f" or not made.any()
    assert torch.equal(before, torch.get_rng_state())


def test_what_may_assert_on_data_of_ours_is_not_measured():
    target = Target("cuda", "sm_90")
    m = Make()
    table, index = m.input(100, 64), m.input(9, dtype="int64")
    assert is_measurable(schedule(on_gpu(m.graph(m.take(table, index))), target))
    m = Make()
    table, index = m.input(100, 64), m.cast(m.input(9), "int64")
    assert not is_measurable(schedule(on_gpu(m.graph(m.take(table, index))), target))
