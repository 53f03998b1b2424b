"""The Python executor: every kind of buffer, call and output against torch."""

import threading

import pytest
import torch

from plans import add_plan, f32, hand_kernels, plan
from preheat.ir.graph import Ref, Token
from preheat.ir.plan import KernelCall, LibraryCall, Output, ProductCall
from preheat.ir.types import tensor
from preheat.run.executable import Executable
from preheat.run.library import Fault


def test_kernels_through_an_arena():
    x, y = torch.randn(1000), torch.randn(1000)
    (out,) = Executable(add_plan(), hand_kernels())([x, y])
    assert torch.equal(out, (x + y) * 2)


def test_outputs_have_the_exact_strides():
    x = f32(4, 6)
    turned = f32(4, 6, strides=(1, 4))
    p = plan((x,), [("input", 0, x), ("output", 0, turned)], [],
             [LibraryCall("aten.neg.default", (Ref(0),), (), (1,))], [1])
    value = torch.randn(4, 6)
    (out,) = Executable(p, None)([value])
    assert out.stride() == (1, 4) and torch.equal(out, -value)


@pytest.mark.parametrize("base", ["input", "output"])
def test_alias_outputs_share_memory(base):
    x = f32(4, 6)
    alias = Output(f32(2, 4, strides=(1, 6)), alias=base, base=0, offset=2)
    p = plan((x,), [("input", 0, x), ("output", 0, x)], ["double"], [KernelCall(0, (0, 1), 24, 192)], [1, alias])
    value = torch.randn(3, 4, 6)[1]  # an input with a storage offset
    out, view = Executable(p, hand_kernels())([value])
    source = value if base == "input" else out
    expected = source.as_strided((2, 4), (1, 6), source.storage_offset() + 2)
    assert view.data_ptr() == expected.data_ptr() and torch.equal(view, expected)


def test_input_is_written_in_place_and_its_version_counts():
    x = f32(10)
    p = plan((x,), [("input", 0, x), ("output", 0, x)], ["relu", "double"],
             [KernelCall(1, (0, 1), 10, 80), KernelCall(0, (0,), 10, 80)], [1])
    value = torch.randn(10)
    before, version = value.clone(), value._version
    (out,) = Executable(p, hand_kernels())([value])
    assert torch.equal(value, before.relu()) and torch.equal(out, before * 2) and value._version > version


def test_flag_raises_before_the_first_write():
    x = f32(10)
    p = plan((x,), [("input", 0, x), ("arena", 0, x)], ["checked", "relu"],
             [KernelCall(0, (0, 1), 10, 80), KernelCall(1, (0,), 10, 80)], [], 40)
    run = Executable(p, hand_kernels())
    value = torch.full((10,), -1.0)
    with pytest.raises(Fault) as caught:
        run([value])
    assert caught.value.flag == 1 and torch.equal(value, torch.full((10,), -1.0))
    run([torch.ones(10)])


def test_flag_is_tested_at_the_end():
    x = f32(10)
    p = plan((x,), [("input", 0, x), ("output", 0, x)], ["checked"], [KernelCall(0, (0, 1), 10, 80)], [1])
    with pytest.raises(Fault):
        Executable(p, hand_kernels())([-torch.ones(10)])


PRODUCTS = [
    ((5, 7), None, (7, 3), None, None),
    ((5, 7), None, (7, 3), (1, 7), None),
    ((5, 7), (1, 5), (7, 3), None, (1, 5)),
    ((2, 5, 7), None, (2, 7, 3), None, None),
    ((2, 4, 5, 7), (140, 7, 28, 1), (2, 4, 7, 3), (84, 3, 12, 1), None),
    ((2, 5, 7), None, (2, 7, 3), (0, 3, 1), None),
    ((1, 7), None, (7, 3), None, None),
    ((5, 0), None, (0, 3), None, None),
    ((0, 7), None, (7, 3), None, None),
    ((3, 5, 1), None, (3, 1, 4), None, None),
]


def product_plan(a, a_strides, b, b_strides, out_strides, beta=0, dtype="float32"):
    a, b = tensor(dtype, a, a_strides), tensor(dtype, b, b_strides)
    out = tensor(dtype, (*a.sizes[:-1], b.sizes[-1]), out_strides)
    buffers = [("input", 0, a), ("input", 1, b), ("output", 0, out)]
    calls = [ProductCall(0, 1, 2)] + ([ProductCall(0, 1, 2, beta)] if beta else [])
    return plan((a, b), buffers, [], calls, [2])


def filled(type):
    """Random values in the layout of `type`; an axis of stride 0 is expanded."""
    dense = [1 if step == 0 else size for size, step in zip(type.sizes, type.strides)]
    value = torch.empty_strided(dense, [step or 1 for step in type.strides], dtype=getattr(torch, type.dtype))
    return value.copy_(torch.randn(dense)).expand(type.sizes)


@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case, beta):
    p = product_plan(*case, beta=beta)
    a, b = map(filled, p.inputs)
    (out,) = Executable(p, None)([a, b])
    assert out.stride() == p.outputs[0].type.strides
    torch.testing.assert_close(out, torch.matmul(a, b) * (1 + beta))


def test_library_call_with_several_results_and_constants():
    x, owned = f32(4, 6), tensor("int64", (4, 2))
    p = plan((x,), [("input", 0, x), ("owned", 0, f32(4, 2)), ("owned", 1, owned), ("output", 0, tensor("float64", (4, 2)))], [],
             [LibraryCall("aten.topk.default", (Ref(0), 2), (), (-1, 2)),
              LibraryCall("aten.gather.default", (Ref(0), 1, Ref(2)), (), (1,)),
              LibraryCall("aten._to_copy.default", (Ref(1),), (("dtype", Token("dtype", "float64")),), (3,))], [3])
    value = torch.randn(4, 6)
    (out,) = Executable(p, None)([value])
    assert torch.equal(out, value.topk(2).values.double())


def test_library_error_before_a_write_is_a_fault():
    x = f32(4, 6)
    p = plan((x,), [("input", 0, x), ("output", 0, x)], [],
             [LibraryCall("aten.view.default", (Ref(0), (5, 5)), (), (1,))], [1])
    with pytest.raises(Fault):
        Executable(p, None)([torch.randn(4, 6)])


def test_zero_size():
    x = f32(0, 3)
    p = plan((x,), [("input", 0, x), ("output", 0, x)], ["double"], [KernelCall(0, (0, 1), 0, 0)], [1])
    (out,) = Executable(p, hand_kernels())([torch.empty(0, 3)])
    assert out.shape == (0, 3)


def test_two_threads_lease_two_arenas():
    run = Executable(add_plan(), hand_kernels())
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x, y = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
            if not torch.equal(run([x, y])[0], (x + y) * 2):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
