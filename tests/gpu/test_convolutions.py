"""Convolutions as kernels on a GPU, and float32 rounded to tf32 where it may be, against eager and float64."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from gpu.test_products import arch, core_of, cuda

import preheat
from preheat.base.events import bus
from preheat.generate.cubin import build_gpu, gpu_target, kernel_key
from preheat.generate.products import product_of
from preheat.generate.tuned import choices
from preheat.ir.plan import KernelCall, Rounding
from preheat.run.executable import executable
from preheat.schedule.layouts import laid_out
from preheat.schedule.products import products_of, small_products
from preheat.schedule.schedule import schedule
from same import same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
TF32_EPS = 2.0 ** -10
# images, channels, side, filters, taps; stride, padding, dilation
CASES = (
    ((8, 64, 28, 128, 3), (1, 1, 1)), ((3, 64, 15, 96, 3), (2, 1, 1)), ((32, 3, 32, 64, 7), (2, 3, 1)),
    ((1, 64, 14, 256, 1), (1, 0, 1)), ((2, 256, 14, 64, 1), (2, 0, 1)), ((4, 20, 9, 30, 3), (1, 2, 2)))


@contextlib.contextmanager
def allowed(products, convolutions):
    """What the library may round, within the block."""
    def allow(products, convolutions):
        torch.backends.cuda.matmul.allow_tf32 = products
        torch._C._set_cudnn_allow_tf32(convolutions)  # torch's test helpers freeze the flag's own setter

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allow(products, convolutions)
    try:
        yield
    finally:
        allow(*before)


def error_of(found, truth):
    return ((found.double() - truth).abs().max() / truth.abs().max()).item()


def check(fn, *args, rounding=Rounding(), tiles=None, factor=2):
    """One kernel for each product of `fn`, no further from float64 than eager is, by a factor (which of what
    it may round is left exact by the library differs from shape to shape)."""
    target = gpu_target(arch())
    core = laid_out(core_of(fn, *args), target)
    plan = schedule(core, target, products_of(core), rounding=rounding)
    assert all(isinstance(call, KernelCall) for call in plan.calls)
    assert any(product_of(kernel) is not None for kernel in plan.kernels)
    with torch.no_grad():
        inputs = [args[int(given.name)] for given in core.inputs]
        ours = executable(plan, build_gpu(plan.kernels, target, tiles or {}))(inputs)[0]
        with allowed(*rounding):
            eager = fn(*args)
        truth = fn(*(a.double() for a in args))
    assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
    allowance = TF32_EPS / 2 if any(rounding) else torch.finfo(eager.dtype).eps
    bound = factor * error_of(eager, truth) + allowance
    assert error_of(ours, truth) <= bound, (error_of(ours, truth), bound)
    return plan, target


def operands(sizes, dtype):
    images, channels, side, filters, taps = sizes
    x, w = cuda(images, channels, side, side, dtype=dtype), cuda(filters, channels, taps, taps, dtype=dtype, seed=1)
    return [t.contiguous(memory_format=torch.channels_last) for t in (x, w)]


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32", "tf32"))
@pytest.mark.parametrize("case", range(len(CASES)))
def test_convolutions(case, dtype):
    sizes, numbers = CASES[case]
    rounding = Rounding(convolutions=dtype == "tf32")
    x, w = operands(sizes, "float32" if dtype == "tf32" else dtype)
    check(lambda x, w: F.conv2d(x, w, None, *numbers), x, w, rounding=rounding, factor=3)
    b = cuda(sizes[3], 1, 1, seed=2).to(x.dtype)
    r = F.conv2d(x, w, None, *numbers)
    check(lambda x, w, b, r: torch.relu(F.conv2d(x, w, None, *numbers) * b + r), x, w, b, r,
          rounding=rounding, factor=3)


@pytest.mark.parametrize("dtype", ("bfloat16", "tf32"))
def test_every_tile(dtype):
    x, w = operands((4, 64, 14, 128, 3), "float32" if dtype == "tf32" else dtype)
    rounding = Rounding(convolutions=dtype == "tf32")
    program = lambda x, w: F.conv2d(x, w, None, 1, 1).relu()  # noqa: E731 - an argument, many times
    plan, target = check(program, x, w, rounding=rounding, factor=3)
    (kernel,) = (k for k in plan.kernels if product_of(k) is not None)
    for tile in choices(kernel, target).values():
        check(program, x, w, rounding=rounding, tiles={kernel_key(kernel): tile}, factor=3)


@pytest.mark.parametrize("sizes", ((128, 256, 256), (100, 70, 50), (257, 1000, 96), (16, 4096, 16)))
def test_rounded_products(sizes):
    """Of normal and of positive numbers, where what is cut off would not cancel."""
    rows, inner, columns = sizes
    x, w, b = cuda(rows, inner), cuda(columns, inner, seed=1), cuda(columns, seed=2)
    for given in ((x, w, b), (x.abs(), w.abs(), b)):
        check(lambda x, w, b: F.linear(x, w, b).relu(), *given, rounding=Rounding(products=True))
    x[3, 5], x[9, 1] = float("nan"), float("inf")
    target, core = gpu_target(arch()), core_of(lambda x, w: x @ w.t(), x, w)
    plan = schedule(core, target, products_of(core), rounding=Rounding(products=True))
    inputs = [(x, w)[int(given.name)] for given in core.inputs]
    (ours,) = executable(plan, build_gpu(plan.kernels, target))(inputs)
    assert torch.equal(ours.isnan(), (x @ w.t()).isnan()) and torch.equal(ours.isinf(), (x @ w.t()).isinf())


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_what_is_allowed_is_a_guard(mode):
    net = torch.nn.Sequential(*(m for _ in range(3) for m in (torch.nn.Linear(256, 256), torch.nn.ReLU())))
    net, x = net.cuda().eval(), cuda(128, 256)
    assert len(small_products(core_of(lambda x, w: x @ w, x, cuda(256, 256)), Rounding(products=True))) == 1
    compiled = preheat.compile(net, mode=mode, options={"cache": False})
    with torch.no_grad():
        truth = net.double()(x.double())
        net.float()
        before, found = preheat.counters()["captures"], {}
        for _ in range(2):
            for is_allowed in (False, True):
                with allowed(is_allowed, True):
                    for _ in range(5):
                        made = compiled(x)
                    eager = net(x)
                assert error_of(made, truth) <= 2 * error_of(eager, truth) + torch.finfo(torch.float32).eps
                assert torch.equal(found.setdefault(is_allowed, made), made)
    assert preheat.counters()["captures"] - before == 2
    assert error_of(found[False], truth) * 20 < error_of(found[True], truth)
    torch.set_float32_matmul_precision("high")
    try:
        with torch.no_grad():
            assert torch.equal(compiled(x), found[True])
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_search_over_convolutions(tmp_path, monkeypatch):
    """Searched for once; another process finds the answers in the table."""
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 1, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 3, 2, 1), torch.nn.ReLU()).cuda().bfloat16().eval()
    x = cuda(8, 64, 14, 14, dtype="bfloat16")
    told = []
    stop = bus.subscribe(told.append, {"tune", "fallback"})
    try:
        with torch.no_grad():
            compiled = preheat.compile(net, mode="max-autotune-no-cudagraphs")
            for _ in range(3):
                torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=2e-2)
            assert any("table" in e.data for e in told) and not [e for e in told if e.kind == "fallback"]
            (choice,) = {e.data["choice"] for e in told if "choice" in e.data and "table" not in e.data}
            assert "kernel" in choice or "library" in choice
            told.clear()
            again = preheat.compile(lambda x: net(x), mode="max-autotune-no-cudagraphs")
            for _ in range(2):
                torch.testing.assert_close(again(x), net(x), rtol=2e-2, atol=2e-2)
            assert not [e for e in told if "table" in e.data]
            same(net, x, settings={"mode": "max-autotune-no-cudagraphs"}, captured=True)
    finally:
        stop()
