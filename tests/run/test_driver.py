"""The native driver against the Python executor: every plan, every feature taken away in turn."""

import pytest
import torch

from entries import Slow, entry_of
from plans import ZOO, f32, filled, hand_kernels, plan
from preheat.ir.graph import Ref
from preheat.ir.plan import LibraryCall
from preheat.run.device import FEATURES, context
from preheat.run.executable import Executable
from preheat.run.lowering import Row, lower, with_releases
from preheat.run.memory import Memory
from preheat.run.shims import SHIMS, _is_right

WITHOUT = [
    (),
    ("storage",),
    ("wrap",),
    ("shims",),
    ("blas",),
    ("batch",),
    ("openmp",),
    ("grad_mode",),
    ("storage", "wrap", "blas", "openmp"),
]


def same_layout(tensor):
    """A copy with the strides kept (clone closes gaps); an expanded tensor is not copied."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


@pytest.mark.parametrize("without", WITHOUT, ids=lambda names: " ".join(names) or "nothing")
@pytest.mark.parametrize("name", ZOO)
def test_native_equals_python(name, without):
    given = ZOO[name]
    torch.manual_seed(0)
    inputs = [filled(t) for t in given.inputs]
    twins = [same_layout(t) for t in inputs]
    expected = Executable(given, hand_kernels())(twins)
    slow = Slow()
    entry = entry_of(given, without=without, slow=slow)
    assert entry.is_native
    for _ in range(2):  # the second call takes a used frame
        inputs_now = [same_layout(t) for t in inputs]
        result = entry.call(*inputs_now)
        assert not slow.calls
        results = [result] if len(given.outputs) == 1 else list(result)
        for mine, theirs, output in zip(results, expected, given.outputs, strict=True):
            assert (
                mine.dtype == theirs.dtype
                and mine.stride() == theirs.stride() == output.type.strides
            )
            torch.testing.assert_close(mine, theirs)
        for mine, theirs in zip(inputs_now, twins):
            torch.testing.assert_close(mine, theirs)


def test_every_feature_is_found_here_and_can_be_left_out():
    assert context().have == set(FEATURES)
    for name in FEATURES:
        assert name not in context({name}).have
    assert not context({"native"}).have and "batch" not in context({"blas"}).have


def test_environment_leaves_features_out(monkeypatch):
    monkeypatch.setenv("PREHEAT_FORCE_FALLBACK", "blas,openmp")
    assert not {"blas", "openmp"} & context().have
    monkeypatch.setenv("PREHEAT_FORCE_FALLBACK", "bals")
    with pytest.raises(Exception, match="blas"):
        context()


def test_the_gil_is_released_around_long_stretches_only():
    rows = [
        Row("kernel", (), 15_000),
        Row("offset", (), 0),
        Row("product", (), 15_000),
        Row("library"),
        Row("kernel", (), 100),
        Row("end"),
    ]
    kinds = [row.kind for row in with_releases(rows)]
    assert kinds == [
        "release",
        "kernel",
        "offset",
        "product",
        "acquire",
        "library",
        "kernel",
        "end",
    ]


@pytest.mark.parametrize(
    "name", ["bf16 linear", "attention", "masked attention", "convolution with bias"]
)
def test_frequent_library_calls_go_through_shims(name):
    executable = Executable(ZOO[name], hand_kernels())
    rows = lower(executable, context(), Memory(), 0).rows
    shims = sum(call.op in SHIMS["cpu"] for call in ZOO[name].calls)
    assert [row.kind for row in rows].count("shim") == shims > 0


@pytest.mark.parametrize("op", SHIMS["cpu"])
def test_shims_agree_with_their_overloads(op):
    assert _is_right(op, context(), "cpu")


def test_a_shim_that_reports_an_error_is_a_fault():
    slow = Slow()
    call = LibraryCall("aten.mm.default", (Ref(0), Ref(0)), (), (1,))  # [4, 6] @ [4, 6]
    x = f32(4, 6)
    wrong = plan((x,), [("input", 0, x), ("output", 0, x)], [], [call], [1])
    assert (
        entry_of(wrong, slow=slow).call(torch.randn(4, 6)) == "slow" and slow.calls[0][0] == "fault"
    )


def test_a_shim_result_of_another_layout_is_a_fault():
    slow = Slow()
    x, heads = f32(2, 5, 3, 4), f32(2, 3, 5, 4)  # the library gives permuted strides
    call = LibraryCall(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        (Ref(1), Ref(1), Ref(1)),
        (),
        (2, -1),
    )
    buffers = [
        ("input", 0, x),
        ("view", 0, f32(2, 3, 5, 4, strides=(60, 4, 12, 1)), 0),
        ("output", 0, heads),
    ]
    assert (
        entry_of(plan((x,), buffers, [], [call], [2]), slow=slow).call(torch.randn(2, 5, 3, 4))
        == "slow"
    )
    assert slow.calls[0][0] == "fault"


def test_autocast_changes_no_recorded_call():
    x = f32(4, 6)
    call = LibraryCall("aten.mm.default", (Ref(0), Ref(1)), (), (2,))
    buffers = [("input", 0, x), ("view", 0, f32(6, 4, strides=(1, 6)), 0), ("output", 0, f32(4, 4))]
    value = torch.randn(4, 6)
    expected = value @ value.T
    with torch.autocast("cpu", torch.bfloat16):
        entry = entry_of(plan((x,), buffers, [], [call], [2]))
        assert torch.equal(entry.call(value), expected) and torch.equal(
            entry.run([value]), expected
        )
