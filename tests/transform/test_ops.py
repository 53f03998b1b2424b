"""Every decomposition against eager, over dtypes, layouts and edge values: one row a program."""

import math

import pytest
import torch
import torch.nn.functional as F

from transform.check import check, library_ops

from same import same

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)


def draw(dtype: torch.dtype, *sizes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(sizes, generator=generator, dtype=torch.float64) * 2).to(dtype)
    if dtype == torch.bool:
        return torch.rand(sizes, generator=generator) < 0.5
    low = 0 if dtype == torch.uint8 else -100
    return torch.randint(low, 100, sizes, generator=generator).to(dtype)


def special(dtype: torch.dtype) -> torch.Tensor:
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 2.5, 3.5, -2.5, 30.0, -30.0, 1e-6, 1e4]
    return torch.tensor(numbers, dtype=dtype)


UNARY = {
    "neg": lambda x: -x, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "atan": torch.atan, "sinh": torch.sinh, "asinh": torch.asinh,
    "tanh": torch.tanh, "erf": torch.erf, "erfc": torch.erfc, "sigmoid": torch.sigmoid, "floor": torch.floor,
    "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "frac": torch.frac, "isnan": torch.isnan,
    "isinf": torch.isinf, "isfinite": torch.isfinite, "square": torch.square, "logical_not": torch.logical_not,
    "nan_to_num": torch.nan_to_num, "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "elu": F.elu, "celu": F.celu,
    "selu": F.selu, "leaky_relu": F.leaky_relu, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "softplus": F.softplus, "mish": F.mish, "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink, "hardshrink": F.hardshrink, "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "pow 2": lambda x: x**2, "pow 3": lambda x: x**3,
    "pow 0.5": lambda x: x**0.5, "pow -1": lambda x: x**-1, "pow -2": lambda x: x**-2, "pow 0": lambda x: x**0,
    "pow 1.7": lambda x: x.abs() ** 1.7, "2 pow": lambda x: 2**x, "add 1": lambda x: x + 1, "1 sub": lambda x: 1 - x,
    "div 3": lambda x: x / 3, "3 div": lambda x: 3 / x, "clamp": lambda x: x.clamp(-0.5, 1.5),
    "clamp min": lambda x: x.clamp(min=0.25), "clamp max": lambda x: x.clamp(max=0.25), "gt": lambda x: x > 0.1,
    "le": lambda x: x <= 1, "eq": lambda x: x == 0.5, "to int": lambda x: x.clamp(-50, 50).nan_to_num().to(torch.int32),
    "to half": lambda x: x.to(torch.float16), "to bool": lambda x: x.bool(), "to double": lambda x: x.double(),
    "div trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"), "logit": lambda x: torch.logit(x, eps=1e-3),
    "user's rounding": lambda x: x.to(torch.bfloat16).to(torch.float32) * 2,
}
# Not at infinities and NaN: integers are undefined there, eager's gelu(inf) depends on its build.
PARTIAL = {"frac", "to int", "gelu"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    fn = UNARY[name]
    graph = check(fn, draw(dtype, 5, 7))
    check(fn, draw(dtype, 7, 5).t())
    if name not in PARTIAL:
        check(fn, special(dtype))
    assert not library_ops(graph)


BINARY = {
    "add": torch.add, "add alpha": lambda x, y: torch.add(x, y, alpha=2), "sub": lambda x, y: x - y,
    "rsub": lambda x, y: torch.rsub(x, y), "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "atan2": torch.atan2, "copysign": torch.copysign,
    "lt": torch.lt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne, "where": lambda x, y: torch.where(x > y, x, y),
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor, "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp far": lambda x, y: torch.lerp(x, y, 0.8), "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=2), "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss, "clamp tensor": lambda x, y: torch.clamp(x, min=y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -1.5), "prelu": lambda x, y: F.prelu(x, y[0, :1].contiguous()),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    graph = check(BINARY[name], draw(dtype, 4, 6), draw(dtype, 4, 6, seed=1))
    assert not library_ops(graph)
    if name not in ("prelu", "mse", "smooth_l1", "huber"):
        check(BINARY[name], draw(dtype, 3, 4, 6), draw(dtype, 6, 4, seed=1).t())


MIXED = {
    "f32 f16": (torch.float32, torch.float16), "bf16 f16": (torch.bfloat16, torch.float16),
    "f32 i64": (torch.float32, torch.int64), "f16 i32": (torch.float16, torch.int32),
    "i32 i64": (torch.int32, torch.int64), "u8 i8": (torch.uint8, torch.int8), "bool f32": (torch.bool, torch.float32),
    "bool i8": (torch.bool, torch.int8), "f64 f32": (torch.float64, torch.float32),
}
PROMOTING = {
    "add": torch.add, "mul": torch.mul, "div": torch.div, "lt": torch.lt, "eq": torch.eq,
    "maximum": torch.maximum, "where": lambda x, y: torch.where(x == y, x, y),
    "add 0-d": lambda x, y: x + y.flatten()[0], "gt 0-d": lambda x, y: x > y.flatten()[0],
    "gt number": lambda x, y: (x > 1, y <= 1.5), "cat": lambda x, y: torch.cat([x, y]),
}


@pytest.mark.parametrize("pair", MIXED)
@pytest.mark.parametrize("name", PROMOTING)
def test_promotion(name, pair):
    a, b = MIXED[pair]
    check(PROMOTING[name], draw(a, 4, 5), draw(b, 4, 5, seed=1))


INTEGER = {
    "add": lambda x, y: x + y, "add wraps": lambda x, y: x + 120, "mul": lambda x, y: x * y, "sub": lambda x, y: x - y,
    "neg": lambda x, y: -x, "abs": lambda x, y: x.abs(), "floordiv": lambda x, y: x // (y | 1),
    "truncdiv": lambda x, y: torch.div(x, y | 1, rounding_mode="trunc"), "remainder": lambda x, y: x % (y | 1),
    "fmod": lambda x, y: torch.fmod(x, y | 1), "remainder 3": lambda x, y: x % 3, "and": lambda x, y: x & y,
    "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y, "not": lambda x, y: ~x, "shl": lambda x, y: x << 2,
    "shr": lambda x, y: x >> 1, "shift tensor": lambda x, y: x << (y & 3), "max": torch.maximum, "clamp": lambda x, y: x.clamp(2, 9),
    "lt": lambda x, y: x < y, "true div": lambda x, y: x / (y | 1), "square": lambda x, y: x**2, "sum": lambda x, y: x.sum(),
    "sum dim": lambda x, y: x.sum(0), "prod": lambda x, y: x.prod(), "any": lambda x, y: x.any(), "all": lambda x, y: x.all(0),
    "max dim": lambda x, y: x.max(1), "argmin": lambda x, y: x.argmin(1), "sign": lambda x, y: x.sign(),
    "to float": lambda x, y: x.float() * 1.5, "mean": lambda x, y: x.float().mean(), "sin": lambda x, y: torch.sin(x),
    "widened": lambda x, y: (x + x).to(torch.int16), "invert bool": lambda x, y: ~(x > 3),
    "bool arithmetic": lambda x, y: ((x > 0) + (y > 0), (x > 0) * (y > 0), (x > 0) ^ (y > 0)),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_integers(name, dtype):
    check(INTEGER[name], draw(dtype, 4, 6), draw(dtype, 4, 6, seed=1))


@pytest.mark.parametrize("name", ("floordiv", "remainder"))
def test_integer_division_by_zero_raises_as_eager(name):
    from preheat.bridge import interpret
    from preheat.transform.pipeline import lower
    from transform.record import record

    fn = {"floordiv": lambda x, y: x // y, "remainder": lambda x, y: x % y}[name]
    graph, _, _ = record(fn, [torch.tensor([4]), torch.tensor([2])])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        interpret.run(lower(graph, is_checked=True), [torch.tensor([4]), torch.tensor([0])])


REDUCING = {
    "sum": lambda x: x.sum(), "sum dims": lambda x: x.sum((0, 2)), "sum keep": lambda x: x.sum(1, keepdim=True),
    "sum dtype": lambda x: x.sum(-1, dtype=torch.float64), "mean": lambda x: x.mean(), "mean dim": lambda x: x.mean(-1),
    "var": lambda x: x.var(), "var dim": lambda x: x.var(1, unbiased=False), "std": lambda x: x.std(-1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, dim=-1), "norm": lambda x: x.norm(), "norm 1": lambda x: x.norm(p=1, dim=1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, ord=math.inf, dim=(0, 1)), "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 1)), "amin": lambda x: x.amin(-1, keepdim=True), "max": lambda x: x.max(),
    "max dim": lambda x: x.max(1), "min dim": lambda x: x.min(-1, keepdim=True), "argmax": lambda x: x.argmax(),
    "argmax dim": lambda x: x.argmax(1), "argmin keep": lambda x: x.argmin(0, keepdim=True), "any": lambda x: x.any(),
    "all dim": lambda x: (x > 0).all(1), "softmax": lambda x: F.softmax(x, -1), "softmax 0": lambda x: x.softmax(0),
    "safe softmax": lambda x: torch.ops.aten._safe_softmax(x.masked_fill(x.amax(-1, True) < 1, -torch.inf), -1),
    "log_softmax": lambda x: F.log_softmax(x, 1), "logsumexp": lambda x: x.logsumexp(-1), "normalize": lambda x: F.normalize(x, dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)), "layer_norm 2": lambda x: F.layer_norm(x, (5, 6)),
    "rms": lambda x: F.rms_norm(x, (6,), eps=1e-6), "group_norm": lambda x: F.group_norm(x.reshape(3, 6, 5), 2),
    "glu": lambda x: F.glu(x), "cosine": lambda x: F.cosine_similarity(x[0], x[1]), "softmin": lambda x: F.softmin(x, -1),
    "is the largest": lambda x: (x * 1.1) == (x * 1.1).amax(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REDUCING)
def test_reductions(name, dtype):
    x = draw(dtype, 3, 5, 6)
    graph = check(REDUCING[name], x, factor=4)
    check(REDUCING[name], draw(dtype, 6, 5, 3).permute(2, 1, 0), factor=4)
    assert not library_ops(graph)


@pytest.mark.parametrize("name", ("amax", "max dim", "argmax", "softmax", "argmin keep", "min dim", "sum"))
def test_nan_in_reductions(name):
    x = draw(torch.float32, 3, 5, 6)
    x[0, 1, 2] = math.nan
    x[1, 2] = -math.inf
    check(REDUCING[name], x)


def test_bool_extrema_and_ties():
    x = draw(torch.bool, 4, 6)
    check(lambda x: (x.max(1), x.min(1), x.any(0), x.all(), x.amax(0), x.sum(), x.float().mean()), x)


AFFINE = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (6,), w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (6,), w, 1e-5),
    "group_norm": lambda x, w, b: F.group_norm(x.transpose(1, 2), 3, w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x.transpose(1, 2), w, b.abs() + 1, w, b),
    "linear": lambda x, w, b: F.linear(x, w.expand(4, 6) * 2, b[:4]),
    "instance_norm": lambda x, w, b: F.instance_norm(x.transpose(1, 2), weight=w, bias=b),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", AFFINE)
def test_affine(name, dtype):
    check(AFFINE[name], draw(dtype, 3, 5, 6), draw(dtype, 6, seed=1), draw(dtype, 6, seed=2), factor=4)


MOVING = {
    "view": lambda x: x.view(6, 20) + 1, "reshape copy": lambda x: x.transpose(0, 1).reshape(-1) * 2,
    "permute": lambda x: x.permute(2, 0, 1) + 0.5, "slice": lambda x: x[1:, ::2, -3:] * 2, "select": lambda x: x[:, 1] + x[:, -1],
    "expand": lambda x: x[:, :1].expand(4, 5, 6) * x, "unsqueeze": lambda x: x.unsqueeze(1) - x.unsqueeze(0),
    "squeeze": lambda x: x[:1].squeeze(0) + 1, "cat": lambda x: torch.cat([x, x * 2, x[:1]], 0),
    "cat empty": lambda x: torch.cat([torch.empty(0), x]) if x.dtype == torch.float32 else x + 1,
    "stack": lambda x: torch.stack([x, x + 1], -1), "split": lambda x: [p * 2 for p in x.split(2, 1)],
    "chunk": lambda x: [p + i for i, p in enumerate(x.chunk(3, -1))], "unbind": lambda x: sum(x.unbind(1)),
    "flip": lambda x: x.flip(0, 2), "roll": lambda x: x.roll((1, -2), (0, 2)), "roll flat": lambda x: x.roll(7),
    "repeat": lambda x: x.repeat(2, 1, 1, 3), "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "tril": lambda x: x.tril(), "triu": lambda x: x.triu(1), "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1.5),
    "pad negative": lambda x: F.pad(x, (-1, 2)), "diagonal": lambda x: x.diagonal(0, 1, 2) + 1,
    "movedim": lambda x: x.movedim(0, -1) * 2, "flatten": lambda x: x.flatten(1) + 1, "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.transpose(0, 2).contiguous(), "channels": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "unfold": lambda x: x.unfold(1, 2, 1) + 1, "tile": lambda x: x.tile(2), "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
    "as_strided": lambda x: (x * 2).as_strided((3, 2), (1, 4), 2) + 1, "outer": lambda x: torch.outer(x[0, 0], x[0, 1]),
    "empty": lambda x: x[:0] * 2, "narrow": lambda x: x.narrow(1, 1, 2) + 1, "pixel_shuffle": lambda x: F.pixel_shuffle(x[None, :, :, :], 2),
    "interleave": lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape), "rot90": lambda x: x.rot90(1, (1, 2)),
    "scalar": lambda x: x[0, 0, 0] * 2, "cat of one": lambda x: torch.cat([x]), "bitcast": lambda x: x.view(torch.int32) + 1 if x.dtype == torch.float32 else x + 1,
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64), ids=str)
@pytest.mark.parametrize("name", MOVING)
def test_movement(name, dtype):
    check(MOVING[name], draw(dtype, 4, 5, 6))


CREATING = {
    "arange": lambda x: torch.arange(7) + x, "arange step": lambda x: torch.arange(1, 15, 2) * x,
    "arange float": lambda x: torch.arange(0, 0.7, 0.1) + x, "arange down": lambda x: torch.arange(6, -1, -1) - x,
    "zeros": lambda x: x.new_zeros(3, 7) + x, "ones": lambda x: torch.ones_like(x) * 2, "full": lambda x: torch.full((2, 7), 1.5) * x,
    "eye": lambda x: torch.eye(7) @ x, "eye 2": lambda x: torch.eye(3, 7) * x, "scalar": lambda x: torch.where(x > 0, 1.0, 0.0) + x,
    "tensor": lambda x: x + torch.tensor(2.5), "mask": lambda x: torch.ones(7, 7, dtype=torch.bool).tril() & (x > 0),
    "causal": lambda x: torch.full((7, 7), -math.inf).triu(1) + x, "linspace": lambda x: torch.linspace(0, 1, 7) + x,
    "empty": lambda x: torch.empty(7).fill_(3) + x, "zero_": lambda x: torch.empty_like(x).zero_() + x,
}


@pytest.mark.parametrize("name", CREATING)
def test_creation(name):
    check(CREATING[name], draw(torch.float32, 7))


INDEXING = {
    "embedding": lambda w, i: F.embedding(i, w), "embedding pad": lambda w, i: F.embedding(i, w, padding_idx=1),
    "index_select": lambda w, i: w.index_select(0, i[0]), "gather": lambda w, i: w.gather(1, i.clamp(max=3)[:2]),
    "index": lambda w, i: w[i], "index negative": lambda w, i: w[-i - 1], "index both": lambda w, i: w[i, i.clamp(max=3)],
    "index second": lambda w, i: w[:, i.clamp(max=3)], "index apart": lambda w, i: w[None].expand(2, 9, 4)[i.clamp(max=1), :, i.clamp(max=3)],
    "index mixed": lambda w, i: w[i, 1:3], "index none": lambda w, i: w[None, i],
    "index_put": lambda w, i: w.index_put((i[0],), w[0]), "index_add": lambda w, i: w.index_add(0, i[0], w[:5]),
    "scatter": lambda w, i: w.scatter(0, i[:, :4], w[:2]), "take_along": lambda w, i: torch.take_along_dim(w, i[:1, :4], 0),
    "i32": lambda w, i: F.embedding(i.int(), w), "masked": lambda w, i: w.masked_fill(w > 1, -7),
    "put masked": lambda w, i: w.index_put((w > 1,), w.new_tensor(7)), "put masked rows": lambda w, i: w.index_put((w[:, 0] > 1,), w[0]),
    "put masked columns": lambda w, i: torch.ops.aten.index_put(w, [None, w[0] > 1], w.new_tensor([3])),
    "put masked middle": lambda w, i: torch.ops.aten.index_put(w.view(3, 3, 4), [None, w[:3, 0] > 1], w[0]),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64), ids=str)
@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name, dtype):
    check(INDEXING[name], draw(dtype, 9, 4), torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", ("embedding", "index_select", "index", "gather"))
def test_index_out_of_range_raises_as_eager(name):
    from preheat.bridge import interpret
    from preheat.transform.pipeline import lower
    from transform.record import record

    w, i = draw(torch.float32, 9, 4), torch.zeros(2, 5, dtype=torch.int64)
    graph, _, _ = record(INDEXING[name] if name != "gather" else lambda w, i: w.gather(0, i[:, :4]), [w, i])
    core = lower(graph, is_checked=True)
    bad = [torch.full_like(i, 9)] + ([] if name == "index" else [torch.full_like(i, -1)])
    for index in bad:
        with pytest.raises((IndexError, RuntimeError)):
            interpret.run(core, [w, index])


PRODUCTS = {
    "mm": lambda a, b: a @ b, "bmm": lambda a, b: a.expand(3, 4, 6) @ b.expand(3, 6, 5), "mv": lambda a, b: a @ b[:, 0],
    "addmm": lambda a, b: torch.addmm(b[0], a, b), "addmm factors": lambda a, b: torch.addmm(a[:, :5], a, b, beta=0.5, alpha=2),
    "addmm beta 0": lambda a, b: torch.addmm(a[:, :5] * math.nan, a, b, beta=0), "dot": lambda a, b: torch.dot(a[0], b[:, 0]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :5], a[None], b[None]), "linear": lambda a, b: F.linear(a, b.t()),
    "matmul 4d": lambda a, b: a.expand(2, 3, 4, 6) @ b, "einsum": lambda a, b: torch.einsum("ij,jk->ki", a, b),
    "vector": lambda a, b: a[0] @ b, "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[:, 0]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype):
    check(PRODUCTS[name], draw(dtype, 4, 6), draw(dtype, 6, 5, seed=1), factor=4)


KEPT = {
    "conv": (lambda x: F.conv1d(x, x[:, :, :3].transpose(0, 0)), "aten.convolution.default"),
    "cumsum": (lambda x: x.cumsum(0), "aten.cumsum.default"), "sort": (lambda x: x.sort(-1), "aten.sort.default"),
    "topk": (lambda x: x.topk(2, -1), "aten.topk.default"), "float mod": (lambda x: x % 0.3, "aten.remainder.Scalar"),
    "complex": (lambda x: torch.complex(x, x).abs(), "aten.abs.default"), "pool": (lambda x: F.max_pool1d(x, 2), ""),
    "fft": (lambda x: torch.fft.rfft(x).real, "aten._fft_r2c.default"), "lgamma": (lambda x: x.abs().lgamma(), "aten.lgamma.default"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_with_the_library(name):
    fn, overload = KEPT[name]
    graph = check(fn, draw(torch.float32, 3, 3, 8))
    assert not overload or overload in library_ops(graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_of_classes(dtype):
    x, y = torch.randn(64, 300).to(dtype), torch.randint(0, 300, (64,))
    y[3] = -100

    def losses(a, b):
        return F.cross_entropy(a, b), F.cross_entropy(a, b, reduction="sum"), F.nll_loss(a, b)

    with torch.no_grad():
        same(losses, x, y, captured=True)
        same(losses, x, torch.full((64,), -100), captured=True)
        y[0] = 300
        same(losses, x, y)  # raises as eager does


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.0])
def test_a_scale_beside_bools_is_no_bool(scale):
    def backward(grad_output, mask):
        return torch.ops.aten.native_dropout_backward(grad_output, mask, scale)

    bools = draw(torch.bool, 4, 8)
    for grad_output in (bools, draw(torch.int32, 4, 8), draw(torch.float32, 4, 8)):
        same(backward, grad_output, bools.clone())


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("name", ["std", "std_mean"])
def test_a_spread_whose_square_is_no_float32(name, scale):
    x = draw(torch.float32, 3, 40) * scale
    same(lambda x: torch.stack([*map(torch.atleast_1d, getattr(torch, name)(x, -1))]) / scale, x)
    same(lambda x: torch.stack([*map(torch.atleast_1d, getattr(torch, name)(x, 0))]) / scale, x.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_a_program_multiplies_is_rounded_before_it_is_added(dtype):
    """In one instruction x*x - y*y is the rounding error of y*y where x is y, and half of the roots are NaN."""
    x, y = draw(dtype, 1000), draw(dtype, 1000, seed=1)
    same(lambda a, b: torch.sqrt(a * a - b * b), x, x.clone(), calls=3)
    same(lambda a, b, c: torch.sqrt(b * b - 4 * a * c), torch.ones_like(x), -2 * x, x * x, calls=3)
    same(lambda a, b, c, d: ((a * d + b * c) != 0).sum(), x, y, x.clone(), -y, calls=3)
    same(lambda a, b: ((a * b).view(-1, 2).sum(1) != 0).sum(), x.view(-1, 2), (y.view(-1, 2)[:, :1] * x.view(-1, 2).flip(1)
         * torch.tensor([1.0, -1.0], dtype=dtype)), calls=3)
