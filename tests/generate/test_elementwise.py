"""Every elementwise op and dtype that FUSABLE promises, against eager on the same values."""

import pytest
import torch
from generate.kernels import apply, pointwise, run, targets

from preheat.ir.loop import FLAGS, LoopOp
from preheat.ir.ops import CORE, ELEMENTWISE, FUSABLE

TARGETS = targets()
LESSER = ("float32", "float16", "int8", "int64", "bool")  # what lesser targets do in their own way
DTYPES = {
    name: getattr(torch, name)
    for name in "float32 float64 bfloat16 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
}
EAGER = {
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "cast": None, "bitcast": None,
}
MATHEMATICS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc sigmoid pow atan2 sqrt rsqrt".split()  # MKL rounds even sqrt otherwise
)
SPECIAL = [
    0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0,
    1e-45, -1e-45, 1e-40, 1.2e-38, 3.4e38, -3.4e38, 88.72, 88.73, -87.4, -103.9, 127.9, -149.0, 1e5, -1e5, 1e10,
    1e22, -3e30, 0.9999999, 1.0000001, 8388607.5, -8388607.5, 16777217.0, 3.95, 29999.0, 30001.0,
]


def values(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Special and random values, an odd number of them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False] * 7)
    if dtype.is_floating_point:
        random = torch.randn(60, generator=generator) * 3
        return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), random.double()]).to(dtype)
    facts = torch.iinfo(dtype)
    special = [0, 1, 2, 3, 7, 8, 31, 33, 64, 100, facts.max, facts.max - 1, facts.min, facts.min + 1]
    special += [v for v in (-1, -2, -3, -7) if facts.min < 0]
    random = torch.randint(-(2 ** 62), 2 ** 62, (41,), generator=generator).to(dtype)
    return torch.cat([torch.tensor(special, dtype=torch.int64 if facts.max < 2 ** 63 else dtype).to(dtype), random])


def operands(op: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every pair of values for two operands; divisors that trap in eager left out."""
    x = values(dtype)
    if CORE[op].arity < 2:
        return [x]
    a, b = (t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))
    if op in ("floordiv", "truncdiv", "remainder", "fmod") and not dtype.is_floating_point:
        wraps = (a == torch.iinfo(dtype).min) & (b == -1) if torch.iinfo(dtype).min else b == 0
        a, b = a[(b != 0) & ~wraps], b[(b != 0) & ~wraps]
    return [a, b]


def check(op: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit but for NaN payloads; mathematics within a few units in the last place."""
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    same = found == expected
    if op not in ("maximum", "minimum", "fmax", "fmin"):  # which zero is larger, eager leaves open
        same &= torch.signbit(found) == torch.signbit(expected)
    same |= found.isnan() & expected.isnan()
    if op in MATHEMATICS:
        facts = torch.finfo(expected.dtype)
        near = (found - expected).abs() <= 4 * facts.eps * expected.abs() + facts.tiny * facts.eps
        same |= near & expected.isfinite()
    assert bool(same.all()), (found[~same][:5], expected[~same][:5])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", sorted(ELEMENTWISE - {"where", "cast", "bitcast", "tf32", "times"}))
def test_op_as_eager(op, target):
    tested = 0
    for name, dtype in DTYPES.items():
        if name not in FUSABLE[op] or target != "host" and name not in LESSER:
            continue
        args = operands(op, dtype)
        eager = EAGER.get(op) or getattr(torch, op)
        is_mathematics = op in MATHEMATICS and name != "float64"
        try:
            expected = eager(*(a.double() if is_mathematics else a for a in args))
        except (RuntimeError, NotImplementedError):
            continue  # eager has no such kernel
        result = dtype if is_mathematics else expected.dtype
        check(op, apply(op, args, result, TARGETS[target]), expected.to(result))
        tested += 1
    assert tested or target != "host"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", DTYPES)
def test_cast_as_eager(source, target):
    x = values(DTYPES[source])
    for name, dtype in DTYPES.items():
        if name == source or target != "host" and not {name, source} & set(LESSER[1:]):
            continue
        part = x
        if DTYPES[source].is_floating_point and name == "uint32":
            part = x[(x >= 0) & (x < 2.0 ** 32)]  # elsewhere undefined, and eager varies
        check("cast", apply("cast", [part], dtype, TARGETS[target]), part.to(dtype))


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values()], ids=str)
def test_where_and_bitcast(dtype):
    x, y = values(dtype), values(dtype, 1)
    condition = torch.arange(len(x)) % 3 == 0
    found = apply("where", [condition, x, y], dtype)
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    integer = sizes[x.element_size()]
    # by signed views: torch 2.11 has no `where` of wide unsigned numbers
    expected = torch.where(condition, x.view(integer), y.view(integer)).view(dtype)
    check("where", found, expected)
    if dtype != torch.bool:
        assert torch.equal(apply("bitcast", [x], integer), x.view(integer))


@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("target", TARGETS)
def test_integer_division_never_traps(op, dtype, target):
    kind = DTYPES[dtype]
    x = torch.full((37,), torch.iinfo(kind).min, dtype=kind)
    kernel = pointwise("divide", 37, (dtype, dtype), dtype, LoopOp(op, 2, dtype, (0, 1)))
    out = torch.empty_like(x)
    assert run(kernel, [x, torch.full_like(x, -1 if kind.is_signed else 255), out], TARGETS[target]) == 0
    zero = torch.ones_like(x)
    zero[36] = 0
    assert run(kernel, [x, zero, out], TARGETS[target]) == FLAGS["zero_division"]


@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_division_by_constants(op, dtype):
    x = values(DTYPES[dtype])
    for divisor in (1, 2, 3, 7, -1, -2, -5, 100):
        usable = x[x != torch.iinfo(x.dtype).min] if divisor == -1 else x
        ops = LoopOp("const", 1, dtype, other=divisor), LoopOp(op, 2, dtype, (0, 1))
        out = torch.empty_like(usable)
        assert run(pointwise("divide", len(usable), (dtype,), dtype, *ops), [usable, out]) == 0
        eager = EAGER.get(op) or getattr(torch, op)
        assert torch.equal(out, eager(usable, torch.full_like(usable, divisor))), divisor


def test_every_op_has_a_row():
    assert set(FUSABLE) == set(ELEMENTWISE)
