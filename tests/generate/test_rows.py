"""Short outer axes written out: what is loaded once, what once a row, and the same results."""

import pytest
import torch
from generate.kernels import run, targets

from preheat.generate.rows import side_by_side
from preheat.ir.loop import Kernel
from preheat.ir.text_loop import read_kernel, show_kernel
from preheat.ir.words import Reader

PRODUCT = """
kernel product_0(%p0: f32 in, %p1: f32 in, %p2: f32 out) over i0:20 parallel, i1:2
  stage j:36 vector
    v0: f32 = load p0[i1*36 + j]
    v1: f32 = load p1[i0*36 + j]
    v2: f32 = mul v0, v1
    v3: f32 = reduce sum v2
  stage
    store p2[i0 + i1*20] = v3: f32
"""
WRITTEN_OUT = """
kernel product_0(%p0: f32 in, %p1: f32 in, %p2: f32 out) over i0:20 parallel
  stage j:36 vector
    v0: f32 = load p0[j]
    v4: f32 = load p0[j + 36]
    v1: f32 = load p1[i0*36 + j]
    v2: f32 = mul v0, v1
    v5: f32 = mul v4, v1
    v3: f32 = reduce sum v2
    v6: f32 = reduce sum v5
  stage
    store p2[i0] = v3: f32
    store p2[i0 + 20] = v6: f32
"""
# Row 2 - i1 of p0 by way of an index, masked past element 30, scaled by the row's number.
INDIRECT = """
kernel product_0(%p0: f32 in, %p1: f32 in, %p2: f32 out) over i0:20 parallel, i1:3
  stage
    v0: i64 = axis i1
    v1: i64 = const 2
    v2: i64 = sub v1, v0
    v3: f32 = cast v0
  stage j:36 vector
    v4: i64 = axis j
    v5: i64 = const 30
    v6: bool = lt v4, v5
    v7: f32 = load p0[j + v2*36] if v6 else 0.0
    v8: f32 = load p1[i0*36 + j]
    v9: f32 = mul v7, v8
    v10: f32 = reduce sum v9
  stage
    v11: f32 = mul v10, v3
    store p2[i0 + i1*20] = v11: f32
"""
# Columns: a lane walks down p1; five columns of p0 at once.
DOWN = """
kernel product_0(%p0: f32 in, %p1: f32 in, %p2: f32 out) over i0:300 parallel lane, i1:5
  stage j:36
    v0: f32 = load p0[i1*36 + j]
    v1: f32 = load p1[i0 + j*300]
    v2: f32 = mul v0, v1
    v3: f32 = reduce sum v2
  stage
    store p2[i0 + i1*300] = v3: f32
"""


def kernel(text: str) -> Kernel:
    return read_kernel(Reader(text))


def test_what_the_axis_does_not_move_is_there_once():
    assert show_kernel(side_by_side(kernel(PRODUCT))) == WRITTEN_OUT.strip()


def test_long_axes_stay_loops():
    long = kernel(PRODUCT.replace("i1:2", "i1:9"))
    assert side_by_side(long) == long


@pytest.mark.parametrize("target", targets().values(), ids=targets())
@pytest.mark.parametrize("text", [PRODUCT, PRODUCT.replace("i1:2", "i1:9")])
def test_rows(text, target):
    given = kernel(text)
    x, w = torch.randn(given.axes[1].extent, 36), torch.randn(20, 36)
    out = torch.empty(len(x), 20)
    assert run(given, [x, w, out], target, [(7, 20), (0, 7)]) == 0
    torch.testing.assert_close(out, x @ w.t())


@pytest.mark.parametrize("target", targets().values(), ids=targets())
def test_rows_by_number(target):
    x, w, out = torch.randn(3, 36), torch.randn(20, 36), torch.empty(3, 20)
    assert run(kernel(INDIRECT), [x, w, out], target) == 0
    expected = x.flip(0)[:, :30] @ w.t()[:30] * torch.arange(3.0)[:, None]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", targets().values(), ids=targets())
def test_lanes_down_columns(target):
    x, w, out = torch.randn(5, 36), torch.randn(36, 300), torch.empty(5, 300)
    assert run(kernel(DOWN), [x, w, out], target, [(0, 131), (131, 300)]) == 0
    torch.testing.assert_close(out, x @ w, rtol=1e-5, atol=1e-5)
