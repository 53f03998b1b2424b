"""Programs on a GPU through `preheat.compile`, against eager: `make test-gpu`, on a machine with one.

Each is captured whole, runs as one plan of generated kernels and library calls, and falls back on
nothing, unless its row says otherwise.
"""


import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import preheat
from gpu.threads import at_once
from preheat.base.events import bus
from preheat.run.device import context
from preheat.run.shims import _is_right
from same import Program, same, same_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")


def cuda(*sizes, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed)
    real = getattr(torch, dtype)
    if real.is_floating_point:
        return torch.randn(sizes, generator=generator).to(real).cuda()
    most = 2 if real is torch.bool else 100
    return torch.randint(0, most, sizes, generator=generator).to(real).cuda()


def check(fn, *args, captured=True, **kwargs):
    """`same`, and nothing of it fell back or was refused by the compiler."""
    seen = []
    stop = bus.subscribe(lambda event: seen.append(event), {"fallback"})
    try:
        with torch.no_grad():
            same(fn, *args, captured=captured, **kwargs)
    finally:
        stop()
    assert not seen, seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise(dtype):
    x, y = cuda(1000, 33, dtype=dtype), cuda(33, dtype=dtype, seed=1)
    check(lambda a, b: ((a + b), a * b, a < b, torch.where(a < b, a, b), (a * b).float()), x, y)


FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh "
    "tanh asinh acosh atanh erf erfc sigmoid floor ceil trunc round sign abs neg isnan isinf"
).split()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 88.5, -104.0, 1e30])
    x = torch.cat([torch.randn(2000) * 3, torch.rand(500), odd]).to(getattr(torch, dtype)).cuda()
    check(lambda a: getattr(torch, name)(a), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(3, 5), (1000, 64), (300, 1000), (64, 4096), (7, 40001), (2, 300000)])
def test_rows(sizes, dtype):
    x = cuda(*sizes, dtype=dtype)
    check(lambda a: (a.softmax(-1), a.log_softmax(-1), a.softmax(0)), x)
    check(lambda a: (a.sum(-1), a.mean(0), a.amax(-1), a.amin(0), a.std(-1), a.var(0)), x)
    check(lambda a: (a.argmax(-1), a.argmin(0), a.max(-1), a.isnan().any(-1)), x)
    w = cuda(sizes[1], dtype=dtype, seed=1)
    check(lambda a, b: F.layer_norm(a, a.shape[-1:], b, b) + F.rms_norm(a, a.shape[-1:], b), x, w)


def test_nan_wins():
    x = cuda(50, 300)
    x[3, 7] = x[9, 1] = x[9, 200] = float("nan")
    check(lambda a: (a.amax(-1), a.amin(0), a.argmax(-1), a.argmin(-1), a.maximum(-a), a.clamp(0, 1)), x)


def test_integers():
    x, y = cuda(999, dtype="int64"), cuda(999, dtype="int64", seed=1) + 1
    check(lambda a, b: ((a - 50) // b, (a - 50) % b, torch.fmod(a - 50, b), a << 3, (a - 50) >> 1, a & b, ~a), x, y)
    check(lambda a: (a.sum(), a.prod(), a.cumsum(0)), x)


def test_movement():
    x = cuda(64, 48, 6)
    check(lambda a: (a.permute(2, 0, 1).contiguous(), a.transpose(0, 1) + 1, a.flip(1) * 2), x)
    check(lambda a: (torch.cat([a, a * 2, a[:, :3]], 1), F.pad(a, (1, 2, 3, 0)), a[::3, 2:7].clone()), x)
    check(lambda a: (a.reshape(48, -1) + 1, a.roll(3, 0), a.repeat(2, 1, 1), a.tril(), a.unfold(0, 4, 2) + 1), x)


def test_gathers():
    table, index = cuda(100, 40), cuda(7, 9, dtype="int64")
    check(lambda t, i: (F.embedding(i, t) * 2, t[i], t.index_select(0, i[0]), t.gather(0, i[:, :9] % 100)), table, index)
    check(lambda t, i: t[i - 50, i % 40], table, index)


def test_scatters():
    x, index, values = cuda(100, 40), cuda(30, dtype="int64"), cuda(30, 40, seed=2)
    check(lambda a, i, v: (a.index_add(0, i, v), torch.scatter(a, 0, i[:, None].expand(30, 40) % 7, v * 0 + 1)), x, index, values)


def test_losses():
    x, y = cuda(64, 3000), cuda(64, dtype="int64")
    check(lambda a, b: (F.cross_entropy(a, b), F.nll_loss(a.log_softmax(-1), b), F.mse_loss(a, a * 2)), x, y)


def test_writes():
    def step(p, m, g):
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)
        p[3] = 0
        return p.sum()

    check(step, cuda(100, 20), cuda(100, 20, seed=1), cuda(100, 20, seed=2))


def test_a_number_that_changes():
    def scaled(x, rate, step):
        return x * rate + step

    x = cuda(1000)

    def make():
        program = Program(scaled, (x, 0.5, 1))

        def change(k):
            def between(p):
                p.args = (x, 0.5 + k * 0.25, k)
            return between

        program.between = {k: change(k) for k in range(1, 6)}
        return program

    with torch.no_grad():
        same_program(make, calls=6, captured=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products(dtype):
    x, w, b = cuda(64, 96, dtype=dtype), cuda(128, 96, dtype=dtype, seed=1), cuda(128, dtype=dtype, seed=2)
    check(lambda a, m, c: (F.gelu(F.linear(a, m, c)), a @ m.t(), torch.addmm(c, a, m.t(), alpha=0.5)), x, w, b)
    q = cuda(4, 8, 32, dtype=dtype)
    check(lambda a: (a @ a.transpose(1, 2)).softmax(-1) @ a, q)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_unaligned_columns(dtype):
    """Large enough to be cut (schedule/alignment.py); the results have eager's strides."""
    x, w, b = (cuda(*sizes, dtype=dtype, seed=k) for k, sizes in enumerate([(2, 512, 768), (10001, 768), (10001,)]))
    check(lambda a, m: a @ m.t(), x, w)
    check(lambda a, m, c: (F.linear(a, m, c), F.linear(a, m, c).log_softmax(-1)), x, w, b)


def test_modules():
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU())]).cuda().eval()
    check(mlp, cuda(32, 64))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 8, 3), torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.LayerNorm(8)).cuda().eval()
    check(net, cuda(2, 3, 32, 32))
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).cuda()
    check(layer, cuda(2, 10, 64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(dtype, bias):
    """Of 16-bit floats with channels last; the result has eager's strides (`same`)."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, 2, 3, bias=bias), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(32, 64, 1, bias=bias), torch.nn.SiLU(),
        torch.nn.Conv2d(64, 64, 3, 2, 1, bias=bias), torch.nn.GroupNorm(8, 64),
        torch.nn.Conv2d(64, 64, 3, 1, 1, groups=64), torch.nn.Upsample(scale_factor=2),
        torch.nn.Conv2d(64, 16, 3, bias=bias)).cuda().to(getattr(torch, dtype)).eval()
    check(net, cuda(4, 3, 65, 70, dtype=dtype))
    check(Both(net[:5], net[5:7]), cuda(2, 3, 64, 64, dtype=dtype))


class Both(torch.nn.Module):
    """A module, so that its float64 twin can be judged by; the first result leaves, too."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        made = self.first(x)
        return made, self.second(made).relu()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_pooling(dtype):
    x = cuda(3, 16, 30, 41, dtype=dtype)
    x[0, 0, 3, 3] = x[1, 5, 0, 0] = float("nan")
    x[2, 1] = float("-inf")
    for is_last in (False, True):
        y = x.to(memory_format=torch.channels_last) if is_last else x
        check(lambda a: (F.max_pool2d(a.relu(), 3, 2, 1), F.max_pool2d(a, 2, ceil_mode=True)), y)
        check(lambda a: (F.avg_pool2d(a, 3, 1, 1) + 1, F.adaptive_avg_pool2d(a[..., 1:], (5, 4))), y)
        check(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention(dtype):
    q = cuda(2, 4, 64, 32, dtype=dtype)
    check(lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True) * 2, q)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"])
def test_attention_by_each_library(backend):
    """Through its C shim, which gives numbers and undefined tensors beside the output; with a scale."""
    op = {"FLASH_ATTENTION": "flash", "CUDNN_ATTENTION": "cudnn", "EFFICIENT_ATTENTION": "efficient"}
    q, k = cuda(2, 4, 100, 64, dtype="bfloat16"), cuda(2, 4, 128, 64, dtype="bfloat16", seed=1)
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        check(lambda a, b: F.scaled_dot_product_attention(a, b, b, scale=0.2) * 2, q, k)
        check(lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True), q)
    name = f"aten._scaled_dot_product_{op[backend]}_attention.default"
    assert _is_right(name, context(), "cuda:0"), "the shim is not what its row says"


def test_random_numbers():
    check(lambda a: F.dropout(a, 0.3, True) + torch.rand_like(a) * torch.randn(a.shape, device="cuda"), cuda(100, 30))


def test_training():
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)).cuda()
    same(mlp, cuda(16, 32), grad=True)


def test_values_that_are_looked_at():
    def look(x):
        y = x * 2
        if y.sum() > 0:
            return y + y.max().item()
        return y - 1

    with torch.no_grad():
        same(look, cuda(100))
        same(look, -cuda(100).abs())


def test_a_tensor_that_is_not_aligned():
    """A copy of it goes to the kernels; one that is written runs eager."""
    x, ids, table = cuda(1001), cuda(3, 9, dtype="int64"), cuda(100, 40)
    check(lambda a: a[1:] * 2 + 1, x)
    check(lambda a: (a * 2 + 1, a[2:]), x[1:])
    check(lambda i, t: F.embedding(i, t) * 2, ids[:, 1:], table)
    check(lambda a: a.sum(0), cuda(300, 41, dtype="bfloat16")[:, 1:])
    with torch.no_grad():
        same(lambda a: a.add_(1), x[1:])


def test_other_devices():
    """Tensors of the CPU are another variant; a graph on both runs op by op."""
    def double(x):
        return x * 2 + 1

    compiled = preheat.compile(double, options={"cache": False})
    x = torch.randn(100)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x), double(x))
            assert torch.equal(compiled(x.cuda()), double(x.cuda()))
            assert compiled(x.cuda()).device.type == "cuda"
        same(lambda a: (a * 2).cuda() + 1, x)
        same(lambda a: (a * 2).cpu() + 1, x.cuda())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_gpu_than_the_current_one():
    def chain(x):
        return (x * 2 + 1).softmax(-1) @ x.t()

    x = cuda(200, 300)
    check(chain, x.to("cuda:1"))
    check(chain, x)
    assert torch.cuda.current_device() == 0


def test_streams_and_threads():
    def chain(x):
        return (x * 2 + 1).softmax(-1).sum(0)

    compiled = preheat.compile(chain, options={"cache": False})

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for k in range(30):
                x = cuda(200, 300, seed=seed * 100 + k)
                torch.testing.assert_close(compiled(x), chain(x))
        stream.synchronize()

    with torch.no_grad():
        compiled(cuda(200, 300))
    at_once(work, range(4))


def test_out_of_memory():
    def large(x, n):
        return (x + 1).expand(n, *x.shape).contiguous()

    compiled = preheat.compile(large, options={"cache": False})
    x = cuda(1024, 1024, 64)
    with torch.no_grad():
        assert compiled(x, 2).shape[0] == 2
        for _ in range(2):
            with pytest.raises(torch.cuda.OutOfMemoryError):
                compiled(x, 1000)
        torch.cuda.empty_cache()
        assert torch.equal(compiled(x, 2), large(x, 2))


def test_outputs_are_fresh():
    compiled = preheat.compile(lambda x: (x + 1).softmax(-1), options={"cache": False})
    with torch.no_grad():
        held = [compiled(torch.full((64, 64), float(k), device="cuda").cumsum(1)) for k in range(8)]
        for k, value in enumerate(held):
            x = torch.full((64, 64), float(k), device="cuda").cumsum(1)
            torch.testing.assert_close(value, (x + 1).softmax(-1))


def test_another_process_finds_it(tmp_path):
    """What one Compiled has stored, another finds; the code loads and is right."""
    def program(x):
        return (x * 3).softmax(-1)

    x = cuda(128, 500)
    with torch.no_grad():
        first = preheat.compile(program)
        first(x)
        before = preheat.counters()
        second = preheat.compile(program)
        for _ in range(2):
            torch.testing.assert_close(second(x), program(x))
        assert preheat.counters()["captures"] == before["captures"]


def test_attention_is_captured_once_in_a_new_process():
    """torch sets the order of attention's kernels when it first chooses among them."""
    text = (
        "import torch, torch.nn.functional as F, preheat\n"
        "f = preheat.compile(lambda q: F.scaled_dot_product_attention(q * 2, q, q) + 1, options={'cache': False})\n"
        "q = torch.randn(2, 4, 64, 64, device='cuda', dtype=torch.bfloat16)\n"
        "with torch.no_grad():\n"
        "    made = [f(q) for _ in range(3)]\n"
        "print(preheat.counters()['captures'], torch._C._get_sdp_priority_order())\n"
        "F.scaled_dot_product_attention(q, q, q)\n"
        "print(preheat.counters()['captures'], torch._C._get_sdp_priority_order())\n")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    first, second = done.stdout.splitlines()
    assert first == second and first.startswith("1 ")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_coarse_functions_down_to_the_least_numbers(dtype):
    """Results below 2**-126 of exponentials, sigmoids and shares of a sum are no zeros."""
    x = torch.linspace(-110, 110, 4096).to(getattr(torch, dtype)).cuda()
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0], device="cuda", dtype=x.dtype)

    def program(x):
        return torch.exp(x), torch.sigmoid(x), F.gelu(x), F.silu(x), torch.softmax(x, -1), torch.erf(x)

    with torch.no_grad():
        compiled = preheat.compile(program, options={"cache": False})
        for given in (x, torch.cat([x, odd]), x.repeat(3, 1)):
            for name, a, b in zip(("exp", "sigmoid", "gelu", "silu", "softmax", "erf"), compiled(given), program(given)):
                torch.testing.assert_close(a, b, rtol=2e-2 if dtype != "float32" else 1e-5, atol=4e-7, equal_nan=True)
                least = (b.abs() > 1e-38) if dtype != "float16" else b != 0
                if name in ("exp", "sigmoid", "softmax"):
                    assert (a[least] != 0).all(), name


@pytest.mark.parametrize("rows, columns", [(32768, 4096), (5000, 1024), (2047, 515)])
def test_columns_of_what_is_stored(rows, columns):
    x, b, g = cuda(rows, columns, dtype="bfloat16"), cuda(columns, dtype="bfloat16"), cuda(rows, columns, dtype="bfloat16", seed=2)

    def program(x, b, g):
        made = torch.ops.aten.gelu_backward(g, x + b)
        return made, made.sum(0)

    check(program, x, b, g)
