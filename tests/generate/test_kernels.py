"""Loops: reductions, tails, strides, masks, gathers, kept rows, shared ranges, checks."""

import ctypes
import mmap

import numpy
import pytest
import torch
from generate.kernels import pointwise, run, targets

from preheat.base.errors import InternalError
from preheat.generate.build import build, cpu_target, host_target
from preheat.ir.features import FEATURES
from preheat.ir.loop import FLAGS, Axis, Index, Kernel, LoopOp, Param, Stage, sizes_of
from preheat.ir.scalar import symbol

TARGETS = targets()
SIZES = (1, 2, 15, 16, 17, 31, 33, 100, 515)
EAGER = {
    "sum": lambda x: x.sum(1), "prod": lambda x: x.prod(1), "max": lambda x: x.amax(1), "min": lambda x: x.amin(1),
    "any": lambda x: x.any(1), "all": lambda x: x.all(1), "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
}


def reduction(how: str, rows: int, columns: int, dtype: str, result: str, lane: str | None = None) -> Kernel:
    """One result a row; in lane form the walk is along columns for a vector of rows."""
    at = Index(0, (("i0", columns), ("j", 1)))
    walk = Stage((Axis("j", columns),), (
        LoopOp("load", 0, dtype, param=0, index=at), LoopOp("reduce", 1, result, (0,), how=how),
    ))
    write = Stage((), (LoopOp("store", -1, result, (1,), param=1, index=Index(0, (("i0", 1),))),))
    params = (Param(dtype, "in"), Param(result, "out"))
    return Kernel(f"{how}_rows", params, (Axis("i0", rows),), (walk, write), 1, lane)


def random(dtype: str, *sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if dtype.startswith("float"):
        return torch.randn(sizes, generator=generator, dtype=getattr(torch, dtype))
    high = 2 if dtype == "bool" else 5
    return torch.randint(0, high, sizes, generator=generator).to(getattr(torch, dtype))


@pytest.mark.parametrize("lane", [None, "i0"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how,dtype,result", [
    ("sum", "float32", "float32"), ("sum", "float64", "float64"), ("sum", "int32", "int64"), ("prod", "float32", "float32"),
    ("max", "float32", "float32"), ("min", "int8", "int8"), ("max", "uint8", "uint8"), ("any", "bool", "bool"),
    ("all", "bool", "bool"), ("argmax", "float32", "int64"), ("argmin", "int32", "int64"), ("argmax", "float64", "int64"),
])
def test_reductions(how, dtype, result, target, lane):
    for columns in SIZES if target == "host" else (1, 17, 515):
        x = random(dtype, 5, columns)
        if how == "prod":
            x = x.abs().clamp(0.9, 1.1)
        out = torch.zeros(5, dtype=getattr(torch, result))
        assert run(reduction(how, 5, columns, dtype, result, lane), [x, out], TARGETS[target]) == 0
        torch.testing.assert_close(out, EAGER[how](x).to(out.dtype), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("how", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("lane", [None, "i0"])
def test_nan_wins_and_the_first_of_equals(how, lane):
    for columns in (3, 16, 70):
        for places in ((0,), (columns - 1,), (1, 2), ()):
            for fill in (1.0, float("inf"), float("-inf")):
                x = torch.full((2, columns), fill)
                x[:, list(places)] = float("nan")
                result = "int64" if how.startswith("arg") else "float32"
                out = torch.zeros(2, dtype=getattr(torch, result))
                run(reduction(how, 2, columns, "float32", result, lane), [x, out])
                assert torch.equal(out.nan_to_num(7.0), EAGER[how](x).nan_to_num(7.0)), (columns, places, fill)


@pytest.mark.parametrize("columns", [100, 1000, 65536, 1_000_000])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lane", [None, "i0"])
def test_long_sums_are_as_exact_as_eager(lane, target, columns):
    """Equal terms are the hardest: all their rounding errors point the same way."""
    generator = torch.Generator().manual_seed(columns)
    errors = []
    for _ in range(3):
        x = torch.rand(1, columns, generator=generator)
        for terms in (x, x[:, :1].expand(1, columns).contiguous()):
            exact = terms.double().sum(1)
            # eager adds up columns of memory as lane form does, rows on as many lanes as the CPU has
            eager = terms.sum(1), terms.view(-1, 1).expand(-1, 4).contiguous().sum(0)[:1]
            out = torch.zeros(1)
            run(reduction("sum", 1, columns, "float32", "float32", lane), [terms, out], TARGETS[target])
            unit = torch.finfo(torch.float32).eps * exact
            errors.append([((value.double() - exact).abs() / unit).item() for value in (out, *eager)])
    ours, *eager = (max(column) for column in zip(*errors))
    assert ours <= max(2 * max(eager), 1.0), errors


def test_reduction_of_nothing_is_neutral():
    out = torch.ones(3)
    run(reduction("sum", 3, 0, "float32", "float32"), [torch.empty(1), out])
    assert out.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_nothing_outside_the_buffers(dtype, target):
    """Operand and result end at a page that must not be touched, and begin unaligned."""
    for count in (1, 2, 15, 16, 17, 31, 33, 100):
        x, out = (guarded(dtype, count) for _ in range(2))
        x.copy_(random(dtype if dtype != "float16" else "float32", count))
        before = guarded(dtype, count + 1)
        before.fill_(1)
        kernel = pointwise("copy", count, (dtype,), dtype)
        run(kernel, [x, before[1:]], TARGETS[target], [(0, count // 3), (count // 3, count)])
        run(kernel, [x, out], TARGETS[target])
        assert torch.equal(out, x) and torch.equal(before[1:], x) and bool(before[0] == 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int16", "int32"])
def test_nothing_beside_the_last_lane_of_narrowed_values(dtype, target):
    """A vector of one lane that is left over: stored as wide as before, it wrote past the end."""
    for count in (1, 9, 17, 33, 65):
        for step in (1, -1):
            load = LoopOp("load", 0, "float64", param=0, index=Index(0, (("j", 1),)))
            cast = LoopOp("cast", 1, dtype, (0,))
            at = Index(0 if step == 1 else count - 1, (("j", step),))
            store = LoopOp("store", -1, dtype, (1,), param=1, index=at)
            kernel = Kernel(
                "narrow", (Param("float64", "in"), Param(dtype, "out")), (Axis("i0", 1),),
                (Stage((Axis("j", count),), (load, cast, store)),))
            x, out = torch.arange(1.0, count + 1, dtype=torch.float64), guarded(dtype, count)
            whole = guarded(dtype, count + 2)  # the elements before and after stay, too
            whole.fill_(5)
            for made in (out, whole[1:-1]):
                run(kernel, [x, made], TARGETS[target])
                assert torch.equal(made, (x if step == 1 else x.flip(0)).to(made.dtype))
            assert whole[0] == 5 and whole[-1] == 5


def guarded(dtype: str, count: int) -> torch.Tensor:
    """A tensor whose last byte is the last of a page, with a protected page after it."""
    kind = getattr(torch, dtype)
    size = count * torch.empty(0, dtype=kind).element_size()
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, (size + page - 1) // page * page + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + len(pages) - page
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    array = numpy.frombuffer(pages, dtype=numpy.uint8)[len(pages) - page - size:len(pages) - page]
    return torch.from_numpy(array).view(kind)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stride", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_strides(stride, dtype, target):
    for count in (1, 17, 40):
        x = random(dtype, 3 * count + 1)
        base = -stride * (count - 1) if stride < 0 else 0
        load = LoopOp("load", 0, dtype, param=0, index=Index(base, (("i0", stride),)))
        places = Index(base, (("i0", stride),)) if stride else Index(0, (("i0", 1),))
        store = LoopOp("store", -1, dtype, (0,), param=1, index=places)
        params = (Param(dtype, "in"), Param(dtype, "out"))
        kernel = Kernel("strided", params, (Axis("i0", count),), (Stage((), (load, store)),), 1, "i0")
        out = torch.zeros_like(x)
        run(kernel, [x, out], TARGETS[target])
        places = [base + i * stride for i in range(count)]
        expected = torch.zeros_like(x)
        for i, place in enumerate(places):
            expected[place if stride else i] = x[place]
        assert torch.equal(out, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_masked_gather_with_check(target):
    """out[i] = table[index[i]] where the index is in range, else -1; a bad index sets the flag."""
    count, size = 37, 11
    at = Index(0, (("i0", 1),))
    body = (
        LoopOp("load", 0, "int64", param=0, index=at), LoopOp("const", 1, "int64", other=size),
        LoopOp("const", 2, "int64", other=0), LoopOp("lt", 3, "bool", (0, 1)), LoopOp("ge", 4, "bool", (0, 2)),
        LoopOp("bitwise_and", 5, "bool", (3, 4)), LoopOp("check", -1, "bool", (5,), how="index"),
        LoopOp("load", 6, "float32", param=1, index=Index(0, ((0, 1),)), mask=5, other=-1.0),
        LoopOp("store", -1, "float32", (6,), param=2, index=at),
    )
    params = (Param("int64", "in"), Param("float32", "in"), Param("float32", "out"))
    kernel = Kernel("take", params, (Axis("i0", count),), (Stage((), body),), 1, "i0")
    index, table, out = torch.randint(0, size, (count,)), torch.randn(size), torch.empty(count)
    assert run(kernel, [index, table, out], TARGETS[target]) == 0
    assert torch.equal(out, table[index])
    index[36], index[2] = 1 << 40, -1
    assert run(kernel, [index, table, out], TARGETS[target]) == FLAGS["index"]
    assert out[36] == -1 and out[2] == -1


@pytest.mark.parametrize("target", TARGETS)
def test_ranges_that_begin_and_end_inside_rows(target):
    """Lane form over two outer axes: any split of the range gives the same as all of it."""
    rows, lanes = 5, 37
    load = LoopOp("load", 0, "float32", param=0, index=Index(0, (("i1", rows), ("i0", 1))))
    store = LoopOp("store", -1, "float32", (0,), param=1, index=Index(0, (("i0", lanes), ("i1", 1))))
    params = (Param("float32", "in"), Param("float32", "out"))
    kernel = Kernel("turn", params, (Axis("i0", rows), Axis("i1", lanes)), (Stage((), (load, store)),), 2, "i1")
    x = torch.randn(lanes, rows)
    for cuts in ((), (1,), (36,), (37,), (38,), (5, 36, 100), (74, 75, 184), (10, 20, 30)):
        out = torch.full((rows, lanes), 7.0)
        edges = (0, *cuts, rows * lanes)
        run(kernel, [x, out], TARGETS[target], list(zip(edges, edges[1:])))
        assert torch.equal(out, x.t())
    assert run(kernel, [x, out], TARGETS[target], [(3, 3)]) == 0


def test_rows_of_three_shared_axes():
    axes = (Axis("i0", 3), Axis("i1", 4), Axis("i2", 5))
    at = Index(0, (("i2", 12 * 9), ("i1", 3 * 9), ("i0", 9), ("j", 1)))
    body = (
        LoopOp("load", 0, "float32", param=0, index=at), LoopOp("neg", 1, "float32", (0,)),
        LoopOp("store", -1, "float32", (1,), param=1, index=Index(0, (("i0", 180), ("i1", 45), ("i2", 9), ("j", 1)))),
    )
    params = (Param("float32", "in"), Param("float32", "out"))
    kernel = Kernel("permute", params, axes, (Stage((Axis("j", 9),), body),), 3)
    x, out = torch.randn(5, 4, 3, 9), torch.empty(3, 4, 5, 9)
    run(kernel, [x, out], None, [(0, 7), (7, 8), (8, 60)])
    assert torch.equal(out, -x.permute(2, 1, 0, 3))


@pytest.mark.parametrize("lane", [None, "i0"])
@pytest.mark.parametrize("target", TARGETS)
def test_kept_rows_and_two_walked_axes(lane, target):
    """x - max(x), divided by its sum, over two axes inside a row."""
    rows, a, b = 4, 3, 21
    walk = (Axis("a", a), Axis("b", b))
    at = Index(0, (("i0", a * b), ("a", b), ("b", 1)))
    stages = (
        Stage(walk, (LoopOp("load", 0, "float32", param=0, index=at), LoopOp("reduce", 1, "float32", (0,), how="max"))),
        Stage(walk, (
            LoopOp("load", 2, "float32", param=0, index=at), LoopOp("sub", 3, "float32", (2, 1), keep=True),
            LoopOp("reduce", 4, "float32", (3,), how="sum"),
        )),
        Stage((), (LoopOp("reciprocal", 5, "float32", (4,)),)),
        Stage(walk, (
            LoopOp("mul", 6, "float32", (3, 5)), LoopOp("store", -1, "float32", (6,), param=1, index=at),
        )),
    )
    kernel = Kernel("shares", (Param("float32", "in"), Param("float32", "out")), (Axis("i0", rows),), stages, 1, lane)
    x, out = torch.randn(rows, a, b), torch.empty(rows, a, b)
    run(kernel, [x, out], TARGETS[target])
    moved = x - x.amax((1, 2), keepdim=True)
    torch.testing.assert_close(out, moved / moved.sum((1, 2), keepdim=True))


def test_axis_positions_and_constants():
    body = (
        LoopOp("axis", 0, "int64", axis="i0"), LoopOp("axis", 1, "int64", axis="j"), LoopOp("const", 2, "int64", other=100),
        LoopOp("mul", 3, "int64", (0, 2)), LoopOp("add", 4, "int64", (3, 1)),
        LoopOp("store", -1, "int64", (4,), param=0, index=Index(0, (("i0", 19), ("j", 1)))),
    )
    kernel = Kernel("iota", (Param("int64", "out"),), (Axis("i0", 3),), (Stage((Axis("j", 19),), body),))
    out = torch.empty(3, 19, dtype=torch.int64)
    run(kernel, [out])
    assert torch.equal(out, torch.arange(3)[:, None] * 100 + torch.arange(19))


def test_equal_kernels_share_code():
    first = pointwise("a", 40, ("float32",), "float32")
    second = pointwise("b", 40, ("float32",), "float32")
    image = build((first, second), host_target())
    assert dict(image.entries)["a"] == dict(image.entries)["b"]


def test_an_extent_may_be_an_argument():
    kernel = pointwise("k", symbol("n0"), ("float32",), "float32")
    assert sizes_of(kernel) == (symbol("n0"),)
    assert [name for name, _ in build((kernel,), host_target()).entries] == ["k"]


def test_what_has_no_native_form_is_named():
    with pytest.raises(InternalError, match="before it is computed"):
        build((pointwise("k", 4, (), "float32", LoopOp("neg", 1, "float32", (0,))),), host_target())
    with pytest.raises(InternalError, match="FUSABLE"):
        build((pointwise("k", 4, ("int64", "int64"), "int64", LoopOp("pow", 2, "int64", (0, 1))),), host_target())


@pytest.mark.parametrize("arch,features", [("aarch64", ()), ("x86_64", ()), ("x86_64", tuple(FEATURES["x86_64"]))])
def test_every_target_links_without_imports(arch, features):
    target = cpu_target(arch, features)
    kernels = [reduction("argmax", 3, 50, "float32", "int64"), reduction("sum", 3, 500, "float32", "float32", "i0")]
    for op in ("exp", "sin", "erfc", "pow", "atan2", "round", "floor"):
        count = 2 if op in ("pow", "atan2") else 1
        ops = LoopOp(op, count, "float32", tuple(range(count)))
        kernels.append(pointwise(op, 77, ("float32",) * count, "float32", ops))
    kernels += [
        pointwise(f"cast_{a}_{b}", 50, (a,), b, LoopOp("cast", 1, b, (0,)))
        for a in ("float16", "bfloat16", "int64", "uint64") for b in ("float64", "float16", "uint32", "bfloat16") if a != b
    ]
    assert len(build(tuple(kernels), target).entries) == len(kernels)
