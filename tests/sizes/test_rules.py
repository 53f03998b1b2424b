"""Size rules against torch, op by op, at sizes that are numbers: any layout, axes of one element and of none."""

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import preheat
from preheat.bridge.ops import arguments, overload
from preheat.bridge.resizing import spelled_out
from preheat.bridge.tensors import type_of
from preheat.bridge.tensors import type_of as type_of_tensor
from preheat.capture.numbers import Numbers
from preheat.capture.size_call import Call, NoRule, row_major
from preheat.capture.size_rules import RULES
from preheat.ir.dims import size_symbol
from preheat.ir.graph import Op, Ref
from preheat.ir.scalar import evaluate


def shapes_by_rule(name, tensors, attrs, named):
    """What the rule of an op says, and what torch gives: pairs of sizes and strides."""
    results = overload(name)(*tensors, *attrs, **named)
    results = [r for r in (results if isinstance(results, (tuple, list)) else [results])
               if isinstance(r, torch.Tensor)]
    op = Op(name, (*map(Ref, range(len(tensors))), *attrs), (), (), tuple(named.items()))
    numbers = Numbers({}, lambda source, value: None, lambda scalar, answer: None)
    call = Call(name, arguments(op), dict(enumerate(map(type_of, tensors))), list(map(type_of, results)), numbers)
    made = RULES[name.split(".")[1]](call)
    return [(s, row_major(s) if t is None else t) for s, t in made], [(tuple(r.shape), r.stride()) for r in results]


def same(name, tensors, attrs=(), **named):
    by_rule, by_torch = shapes_by_rule(name, tensors, attrs, named)
    assert len(by_rule) == len(by_torch)
    for (sizes, strides), (real_sizes, real_strides) in zip(by_rule, by_torch):
        assert sizes == real_sizes
        if 0 not in sizes:
            pairs = [(a, b) for a, b, n in zip(strides, real_strides, sizes) if n > 1]
            assert all(a == b for a, b in pairs), (name, sizes, strides, real_strides)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_fourier_transforms_of_any_axes_and_layout(rank):
    chance = random.Random(rank)
    for order in itertools.permutations(range(rank)):
        for count in range(1, min(rank, 3) + 1):
            for axes in itertools.permutations(range(rank), count):
                sizes = [chance.choice((1, 2, 3, 4, 5)) for _ in range(rank)]
                x = torch.randn(sizes).permute(order)
                z = torch.randn(sizes, dtype=torch.complex64).permute(order)
                if chance.random() < 0.3:
                    x = x.expand(*x.shape) if x.shape[0] > 1 else x.expand(3, *x.shape[1:])
                same("aten._fft_r2c.default", (x,), (axes, 0, chance.random() < 0.7))
                same("aten._fft_c2c.default", (z,), (axes, 0, True))
                same("aten._fft_c2r.default", (z,), (axes, 0, max(1, 2 * z.shape[axes[-1]] - chance.randint(1, 2))))


def matrices(chance, rows, columns):
    """A batch of matrices in some layout."""
    batch = chance.choice(((), (1,), (3,), (2, 3), (0,), (1, 2)))
    x = torch.randn(*batch, columns, rows).mT if chance.random() < 0.5 else torch.randn(*batch, rows, columns)
    return x.flip(0).transpose(0, 1).contiguous().transpose(0, 1) if len(batch) == 2 else x


def test_decompositions_of_any_size_and_layout():
    chance = random.Random(0)
    for _ in range(120):
        rows, columns = chance.randint(1, 4), chance.randint(1, 4)
        x, square = matrices(chance, rows, columns), matrices(chance, rows, rows)
        square = square @ square.mT + torch.eye(rows)
        for mode in ("reduced", "complete", "r"):
            same("aten.linalg_qr.default", (x,), (mode,))
        same("aten.geqrf.default", (x,))
        same("aten.linalg_lu_factor_ex.default", (x,))
        same("aten.linalg_lu.default", (x,))
        same("aten.linalg_ldl_factor_ex.default", (square,))
        same("aten._linalg_svd.default", (x,), (chance.random() < 0.5,))
        same("aten.linalg_eig.default", (square,))
        same("aten._linalg_eigh.default", (square,), ("L", chance.random() < 0.5))
        same("aten.linalg_cholesky_ex.default", (square,))
        same("aten.cholesky_inverse.default", (square,))
        same("aten.linalg_inv_ex.default", (square,))
        same("aten.linalg_pinv.atol_rtol_tensor", (x,))
        if square.is_contiguous() or rows > 1:
            same("aten.linalg_matrix_exp.default", (square / 9,))
        if columns <= rows:
            same("aten.linalg_householder_product.default", (x, x[..., 0, :]))
        factors, pivots, _ = torch.ops.aten.linalg_lu_factor_ex(x)
        same("aten.lu_unpack.default", (factors, pivots), (chance.random() < 0.5, chance.random() < 0.5))


def test_solutions_of_any_size_and_layout():
    chance = random.Random(1)
    for _ in range(120):
        size, count = chance.randint(1, 4), chance.randint(1, 4)
        a = matrices(chance, size, size)
        a = a @ a.mT + torch.eye(size)
        if 0 in a.shape:
            continue
        batch = a.shape[:-2]
        left = chance.random() < 0.5
        b = torch.randn(*batch, *((size, count) if left else (count, size)))
        if batch and chance.random() < 0.3:
            b = b[..., :1, :, :]
        b = b.mT.contiguous().mT if chance.random() < 0.5 else b
        factors, pivots, _ = torch.ops.aten.linalg_lu_factor_ex(a)
        same("aten._linalg_solve_ex.default", (a, b), left=left)
        same("aten.linalg_lu_solve.default", (factors, pivots, b), left=left)
        same("aten.linalg_solve_triangular.default", (a, b), left=left, upper=True)
        if left:
            same("aten.cholesky_solve.default", (b, torch.linalg.cholesky(a)))
            same("aten._linalg_solve_ex.default", (a, torch.randn(*batch, size)))
            same("aten._linalg_solve_ex.default", (a, torch.randn(size)))
        if left and b.shape[:-2] == batch:
            same("aten.linalg_ldl_solve.default", (*torch.ops.aten.linalg_ldl_factor_ex(a)[:2], b))


def test_rows_and_columns_of_triangles():
    for rows, columns, offset in itertools.product(range(6), range(6), range(-7, 8)):
        for name in ("tril_indices", "triu_indices"):
            same("preheat.made.default", (), (name, (rows, columns, offset), ()), dtype=None, device=None)


def test_layers_of_any_size():
    chance = random.Random(2)
    for _ in range(40):
        sizes = [chance.randint(1, 5) for _ in range(6)]
        same("aten._pdist_forward.default", (torch.randn(sizes[0], sizes[1]),))
        blocks = [torch.randn(sizes[:k]) for k in (0, 1, 2, 2, 1)] + [torch.randn(0, 2), torch.randn(3, sizes[0]).t()]
        chance.shuffle(blocks)
        by_rule = RULES["block_diag"](Call("aten.block_diag.default", {
            "tensors": tuple(map(Ref, range(len(blocks))))}, dict(enumerate(map(type_of, blocks))), (), None))
        assert by_rule[0][0] == tuple(torch.block_diag(*blocks).shape)
        a, b, c, d, e, f = sizes
        i1, i2, i3 = torch.randn(a, b), torch.randn(c, b, d), torch.randn(a, d)
        same("aten._trilinear.default", (i1, i2, i3), ((1, 3), (0,), (1, 2), (2, 3)))


def same_or_none(*args, **named):
    """As `same`, where there is a rule."""
    with contextlib.suppress(NoRule):
        same(*args, **named)


def image(chance, *sizes):
    """Images or volumes row-major, with channels last, or in rows of channels."""
    made = torch.randn(sizes)
    kind, last = chance.random(), torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    if kind < 0.3:
        return made
    return made.to(memory_format=last) if kind < 0.8 else made.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request, monkeypatch):
    """What rules take tensors to be on: on a GPU torch is asked which layout it makes, and here it answers for one."""
    monkeypatch.setitem(globals(), "type_of", lambda tensor: replace(type_of_tensor(tensor), device=request.param))
    return request.param


def test_volumes_of_any_layout(device):
    chance, one = random.Random(4), torch.ones
    for _ in range(60):
        n, c, d, h, w = (chance.choice((1, 2, 3, 4)) for _ in range(5))
        x, kernel, turned = image(chance, n, c, d, h, w), image(chance, 4, c, 1, 1, 3), image(chance, c, 4, 1, 1, 3)
        same_or_none("aten.convolution.default", (x, kernel), (
            None, (1, 1, 2), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), 1))
        same_or_none("aten.convolution.default", (x, turned), (
            None, (2, 2, 2), (0, 0, 0), (1, 1, 1), True, (0, 0, 0), 1))
        for name in ("max_pool3d_with_indices", "avg_pool3d") if min(d, h, w) > 1 else ():
            same_or_none(f"aten.{name}.default", (x,), ((2, 2, 2), (2, 1, 1)))
        for name in ("_adaptive_avg_pool3d", "adaptive_max_pool3d", "upsample_nearest3d"):
            same_or_none(f"aten.{name}.default", (x,), ((3, 2, 2),))
        same_or_none("aten.constant_pad_nd.default", (x,), ((1, 0, 0, 2), 0.0))
        same_or_none("aten.replication_pad3d.default", (x,), ((1, 0, 0, 2, 1, 1),))
        same_or_none("aten.native_batch_norm.default", (x, *[one(c)] * 4), (chance.random() < 0.5, 0.1, 1e-5))
        grad = image(chance, n, 4, d + 2, h + 2, (w - 1) // 2 + 1)
        same_or_none("aten.convolution_backward.default", (grad, x, kernel), (
            [4], (1, 1, 2), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), 1, (chance.random() < 0.5, True, True)))
        grad = image(chance, n, c, d, h, w)
        same_or_none("aten.native_batch_norm_backward.default", (grad, x, *[one(c)] * 5), (
            True, 1e-5, (True, True, True)))
        same_or_none("aten._adaptive_avg_pool3d_backward.default", (image(chance, n, c, 3, 2, 2), x))
        same_or_none("aten.upsample_nearest3d_backward.default", (
            image(chance, n, c, 3, 2, 2),), ((3, 2, 2), (n, c, d, h, w)))


def test_images_of_any_layout(device):
    same = same_or_none if device != "cpu" else globals()["same"]
    chance, one = random.Random(3), torch.ones
    for _ in range(40):
        n, c, h, w = (chance.choice((1, 2, 3, 4)) for _ in range(4))
        x, kernel, turned = image(chance, n, c, h, w), image(chance, 4, c, 1, 3), image(chance, c, 4, 1, 3)
        same("aten.convolution.default", (x, kernel), (None, (1, 2), (1, 1), (1, 1), False, (0, 0), 1))
        same("aten.convolution.default", (x, turned), (None, (2, 2), (0, 0), (1, 1), True, (0, 0), 1))
        signal = torch.randn(n, w + 1, c + 1).transpose(1, 2)
        same("aten.convolution.default", (signal, torch.randn(4, c + 1, 1)), (None, (1,), (0,), (1,), False, (0,), 1))
        for name in ("max_pool2d_with_indices", "avg_pool2d") if h > 1 and w > 1 else ():
            same(f"aten.{name}.default", (x,), ((2, 2), (2, 1)))
        for name in ("_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "_upsample_nearest_exact2d"):
            same(f"aten.{name}.default", (x,), ((3, 2),))
        for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"):
            same(f"aten.{name}.default", (x,), ((3, 2), False))
        same("aten.constant_pad_nd.default", (x,), ((1, 0, 0, 2), 0.0))
        same("aten.replication_pad2d.default", (x,), ((1, 0, 0, 2),))
        same_or_none("aten.native_batch_norm.default", (x, *[one(c)] * 4), (chance.random() < 0.5, 0.1, 1e-5))
        plain = x.contiguous(memory_format=chance.choice((torch.channels_last, torch.contiguous_format)))
        same("aten.native_group_norm.default", (plain, one(c), one(c)), (n, c, h * w, 1, 1e-5))
        if c == 4:
            same("aten.pixel_shuffle.default", (x,), (2,))
        grad = image(chance, n, 4, h + 2, (w - 1) // 2 + 1)
        same("aten.convolution_backward.default", (grad, x, kernel), (
            [4], (1, 2), (1, 1), (1, 1), False, (0, 0), 1, (True, True, True)))
        grad = image(chance, n, c, h, w)
        same_or_none("aten.native_batch_norm_backward.default", (grad, x, *[one(c)] * 5), (True, 1e-5, (True, True, True)))
        same("aten.native_group_norm_backward.default", (grad, plain, one(n, 1), one(n, 1), one(c)), (
            n, c, h * w, 1, (True, True, True)))
        same("aten.upsample_bilinear2d_backward.default", (image(chance, n, c, 3, 2),), ((3, 2), (n, c, h, w), False))
        same("aten._adaptive_avg_pool2d_backward.default", (image(chance, n, c, 3, 2), x))
        same("aten.replication_pad2d_backward.default", (image(chance, n, c, h + 2, w + 1), x), ((1, 0, 0, 2),))


@pytest.mark.parametrize("factor", [1.5, 2.0, 0.5, 0.7, 1 / 3, 4 / 3, 1.1, 0.1, 2.25, 1 + 2**-40, 1e-3, 3, 7 / 9])
def test_sizes_by_a_factor_are_those_of_torch(factor):
    n = size_symbol(3)
    _, (size,), _ = spelled_out(torch._C._nn.upsample_nearest1d, (None, None, [factor]), (2, 3, n))
    for length in range(1, 2000):
        made = evaluate(size, {"n3": length})
        if made:
            assert made == F.interpolate(torch.empty(1, 1, length, device="meta"), scale_factor=factor).shape[-1]


# What pins sizes, and what is named for it.
GRU = torch.nn.GRU(4, 5)


def cast(x):
    with torch.autocast("cpu", torch.bfloat16):  # in which each step stays an op of the graph
        return GRU(x.unflatten(1, (-1, 4)))[0]


PINNED = {"aten.unbind.int": (cast, True)}


@pytest.mark.parametrize("name", PINNED)
def test_what_pins_sizes_is_right_and_named(name):
    program, has_grad = PINNED[name]
    with torch.set_grad_enabled(has_grad):
        told = preheat.explain(preheat.compile(program, dynamic=True, options={"cache": False}))(torch.randn(3, 8))
        assert any(name in text for text in told.pinned), told.pinned
        compiled = preheat.compile(program, options={"cache": False, "recompile_limit": 30})
        for b in (3, 4, 5, 3, 6, 4):
            x = torch.randn(b, 8)
            found, expected = (torch.manual_seed(b) and f(x) for f in (compiled, program))
            torch.testing.assert_close(found, expected)
