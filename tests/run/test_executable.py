"""The Python executor: every kind of buffer, call and output against torch."""

import threading

import pytest
import torch

from plans import (
    PRODUCTS,
    add_plan,
    alias_plan,
    checked_plan,
    checked_write_plan,
    empty_plan,
    failing_after_write_plan,
    failing_plan,
    filled,
    hand_kernels,
    late_check_plan,
    library_plan,
    mixed_plan,
    product_plan,
    row_write_plan,
    strided_output_plan,
    write_plan,
)
from preheat.base.errors import InternalError
from preheat.run.executable import Executable
from preheat.run.library import Fault


def run(plan, *inputs):
    return Executable(plan, hand_kernels())(list(inputs))


def test_kernels_through_an_arena():
    x, y = torch.randn(1000), torch.randn(1000)
    assert torch.equal(run(add_plan(), x, y)[0], (x + y) * 2)


def test_outputs_have_the_exact_strides():
    value = torch.randn(4, 6)
    (out,) = run(strided_output_plan(), value)
    assert out.stride() == (1, 4) and torch.equal(out, -value)


@pytest.mark.parametrize("base", ["input", "output"])
def test_alias_outputs_share_memory(base):
    value = torch.randn(3, 4, 6)[1]  # an input with a storage offset
    out, view = run(alias_plan(base), value)
    source = value if base == "input" else out
    expected = source.as_strided((2, 4), (1, 6), source.storage_offset() + 2)
    assert view.data_ptr() == expected.data_ptr() and torch.equal(view, expected)


def test_input_is_written_in_place_and_its_version_counts():
    value = torch.randn(10)
    before, version = value.clone(), value._version
    (out,) = run(write_plan(), value)
    assert (
        torch.equal(value, before.relu())
        and torch.equal(out, before * 2)
        and value._version > version
    )


def test_only_the_row_is_written():
    x, y = torch.zeros(4, 6), torch.ones(6)
    run(row_write_plan(), x, y)
    assert x.sum(1).tolist() == [0, 0, 6, 0]


def test_flag_raises_before_the_first_write():
    value = torch.full((10,), -1.0)
    with pytest.raises(Fault) as caught:
        run(checked_write_plan(), value)
    assert caught.value.flag == 1 and torch.equal(value, torch.full((10,), -1.0))
    run(checked_write_plan(), torch.ones(10))


def test_flag_is_tested_at_the_end():
    with pytest.raises(Fault):
        run(checked_plan(), -torch.ones(10))


def test_a_fault_after_a_write_is_our_own_error():
    with pytest.raises(InternalError, match="after an input was written"):
        run(late_check_plan(), torch.ones(10), -torch.ones(10))


@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case, beta):
    p = product_plan(*case, beta=beta)
    a, b = map(filled, p.inputs)
    (out,) = run(p, a, b)
    assert out.stride() == p.outputs[0].type.strides
    torch.testing.assert_close(out, torch.matmul(a, b) * (1 + beta))


def test_library_call_with_several_results_and_constants():
    value = torch.randn(4, 6)
    assert torch.equal(run(library_plan(), value)[0], value.topk(2).values.double())


def test_views_of_every_kind_of_memory():
    x = torch.randn(8, 8)
    square, half = run(mixed_plan(), x)
    torch.testing.assert_close(square, 2 * (x @ x.T))
    torch.testing.assert_close(half, square[:4] + 2 * (2 * x[4:]).sigmoid())


def test_library_error_before_a_write_is_a_fault():
    with pytest.raises(Fault):
        run(failing_plan(), torch.randn(4, 6))


def test_library_error_after_a_write_is_the_programs_own():
    with pytest.raises(RuntimeError, match="invalid for input"):
        run(failing_after_write_plan(), torch.randn(4, 6))


def test_zero_size():
    assert run(empty_plan(), torch.empty(0, 3))[0].shape == (0, 3)


def test_two_threads_lease_two_arenas():
    executable = Executable(add_plan(), hand_kernels())
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x, y = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
            if not torch.equal(executable([x, y])[0], (x + y) * 2):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
