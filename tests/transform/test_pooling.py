"""Pooling as slices: which windows, and that values, NaN and layouts are eager's."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from same import same
from transform.check import check


def image(*sizes, dtype=torch.float32, is_last=False):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(0)).to(dtype)
    return x.to(memory_format=torch.channels_last) if is_last and x.dim() == 4 else x


def overloads(core):
    return [op.attr("op") for op in core.ops if op.name == "library"]


WINDOWS = [
    dict(kernel_size=2), dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=(3, 2), stride=(1, 2), padding=(1, 0)),
    dict(kernel_size=3, stride=1, padding=1, dilation=2),
    dict(kernel_size=3, stride=2, ceil_mode=True), dict(kernel_size=5, stride=3, padding=2),
    dict(kernel_size=(1, 4), stride=1, padding=(0, 2), ceil_mode=True),
]
SIZES = [(2, 3, 9, 11), (3, 8, 8), (1, 1, 7, 7)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_largest_of_a_window(window, dtype):
    for sizes in SIZES:
        core = check(lambda x: F.max_pool2d(x, **window), image(*sizes, dtype=dtype))
        assert not overloads(core)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_values_that_are_not_finite(value):
    x = image(2, 3, 9, 11)
    x[0, 0, 4, 5] = x[1, 2, 0, 0] = x[1, 1, 8, 10] = value
    x[0, 1] = value
    for window in WINDOWS:
        core = check(lambda x: F.max_pool2d(x, **window), x)
        assert not overloads(core)
    assert not overloads(check(lambda x: F.avg_pool2d(x, 3, 2, 1), x))


AVERAGES = [
    dict(kernel_size=2), dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=(3, 2), stride=(1, 2)), dict(kernel_size=3, stride=2, ceil_mode=True),
    dict(kernel_size=3, padding=1, divisor_override=4), dict(kernel_size=3, count_include_pad=False),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("window", AVERAGES, ids=str)
def test_the_average_of_a_window(window, dtype):
    for sizes in ((2, 3, 9, 11), (3, 9, 13)):  # windows of stride 2 end with the image
        core = check(lambda x: F.avg_pool2d(x, **window), image(*sizes, dtype=dtype))
        assert not overloads(core)


def test_averages_of_windows_of_different_sizes_stay_with_the_library():
    x = image(2, 3, 8, 8)
    for window in (dict(kernel_size=3, padding=1, count_include_pad=False),
                   dict(kernel_size=3, stride=2, ceil_mode=True)):
        assert overloads(check(lambda x: F.avg_pool2d(x, **window), x)) == ["aten.avg_pool2d.default"]
    core = check(lambda x: F.adaptive_avg_pool2d(x, 3), x)
    assert overloads(core) == ["aten._adaptive_avg_pool2d.default"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, (4, 3), (24, 2)])
def test_adaptive_averages_of_equal_windows(size, dtype):
    for is_last in (False, True):
        core = check(
            lambda x: F.adaptive_avg_pool2d(x, size), image(2, 5, 24, 12, dtype=dtype, is_last=is_last))
        assert not overloads(core)


def test_what_reads_the_places_and_what_is_large_stays_with_the_library():
    x = image(1, 2, 20, 20)
    for call in (lambda x: F.max_pool2d(x, 2, return_indices=True), lambda x: F.max_pool2d(x, 7)):
        assert overloads(check(call, x)) == ["aten.max_pool2d_with_indices.default"]
    assert overloads(check(lambda x: F.avg_pool2d(x, 6), x)) == ["aten.avg_pool2d.default"]


def test_padded_windows_over_channels_last_stay_with_the_library_of_a_cpu():
    x = image(2, 8, 9, 9, is_last=True)
    assert overloads(check(lambda x: F.max_pool2d(x, 3, 2, 1), x))
    assert not overloads(check(lambda x: F.max_pool2d(x, 2), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled(dtype):
    for is_last, window in itertools.product((False, True), WINDOWS):
        x = image(2, 6, 13, 17, dtype=dtype, is_last=is_last)
        with torch.no_grad():
            same(lambda x: F.max_pool2d(x.relu() * 2, **window) + 1, x, captured=True, calls=2)
            same(lambda x: (F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x[:, :, 1:, 1:], 4)), x,
                 captured=True, calls=2)
