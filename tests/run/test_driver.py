"""The native driver against the Python executor: every plan, every feature taken away in turn."""

import pytest
import torch

from entries import Slow, entry_of
from plans import ZOO, filled, hand_kernels
from preheat.run.device import FEATURES, context
from preheat.run.driver import Row, with_releases
from preheat.run.executable import Executable

WITHOUT = [(), ("storage",), ("wrap",), ("blas",), ("batch",), ("openmp",), ("storage", "wrap", "blas", "openmp")]


def same_layout(tensor):
    """A copy with the strides kept (clone closes gaps); an expanded tensor is not copied."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


@pytest.mark.parametrize("without", WITHOUT, ids=lambda names: " ".join(names) or "nothing")
@pytest.mark.parametrize("name", ZOO)
def test_native_equals_python(name, without):
    plan = ZOO[name]
    torch.manual_seed(0)
    inputs = [filled(t) for t in plan.inputs]
    twins = [same_layout(t) for t in inputs]
    expected = Executable(plan, hand_kernels())(twins)
    slow = Slow()
    entry = entry_of(plan, without=without, slow=slow)
    assert entry.is_native
    for _ in range(2):  # the second call takes a used frame
        inputs_now = [same_layout(t) for t in inputs]
        result = entry.call(*inputs_now)
        assert not slow.calls
        results = [result] if len(plan.outputs) == 1 else list(result)
        for mine, theirs, output in zip(results, expected, plan.outputs, strict=True):
            assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride() == output.type.strides
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
    rows = [Row("kernel", (), 15_000), Row("offset", (), 0), Row("product", (), 15_000), Row("library"),
            Row("kernel", (), 100), Row("end")]
    kinds = [row.kind for row in with_releases(rows)]
    assert kinds == ["release", "kernel", "offset", "product", "acquire", "library", "kernel", "end"]
