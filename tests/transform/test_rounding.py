"""16-bit values: what several ops read is the same for all of them, and narrow where it has memory."""

import pytest
import torch

import preheat
from preheat.capture.capture import capture
from preheat.ir.plan import Target
from preheat.ir.text import parse
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import lower
from preheat.transform.rounding import round_shared

HALVES = (torch.bfloat16, torch.float16)


def free_casts(body: str) -> list[bool]:
    """For each rounding of `body`, whether it stays free."""
    graph = round_shared(parse(f'graph core (%0: f32[4, 8] "x"):\n{body}\n  return %9'))
    return [bool(op.attr("free")) for op in graph.ops if op.name == "cast" and op.type.dtype == "bfloat16"]


ROUNDED = "  %1: bf16[4, 8] = cast(%0, dtype='bfloat16', free=True)\n"
WIDE = "  %{}: f32[4, 8] = cast(%{}, dtype='float32', free=True)\n"


@pytest.mark.parametrize("rest, free", [
    (WIDE.format(2, 1) + "  %9: f32[4, 8] = exp(%2)", True),
    (WIDE.format(2, 1) + WIDE.format(3, 1) + "  %9: f32[4, 8] = sub(%2, %3)", False),
    ("  %2: bf16[8, 4]{1, 8} = permute(%1, axes=(1, 0))\n  %3: f32[8, 4]{1, 8} = cast(%2, dtype='float32', free=True)\n"
     "  %9: f32[8, 4]{1, 8} = exp(%3)", True),
    ("  %2: bf16[8, 4]{1, 8} = permute(%1, axes=(1, 0))\n  %3: f32[8, 4]{1, 8} = cast(%2, dtype='float32', free=True)\n"
     "  %4: f32[8, 4]{1, 8} = cast(%2, dtype='float32', free=True)\n  %9: f32[8, 4]{1, 8} = sub(%3, %4)", False),
    ("  %9: bf16[4, 8] = cast(%1, dtype='bfloat16')", True),  # a copy, which one reads
])
def test_a_rounding_is_free_for_one_reader(rest, free):
    assert free_casts(ROUNDED + rest) == [free] + [False] * ("dtype='bfloat16')" in rest)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [8, 64, 1000, 5000])
@pytest.mark.parametrize("seen", ["", "x", "m", "product"])
def test_what_is_rounded_is_so_for_every_reader(dtype, columns, seen):
    def distance(a, b):
        x = torch.tanh(a * b)
        most = x.amax(-1, keepdim=True)
        found = [(most - x).sqrt(), x.gather(1, x.argmax(-1, keepdim=True)) == most]
        return found + {"": [], "x": [x], "m": [most], "product": [x @ x.t()]}[seen]

    torch.manual_seed(0)
    a, b = torch.randn(2, 16, columns).to(dtype)
    compiled = preheat.compile(distance, options={"cache": False})
    for _ in range(2):
        root, is_most = compiled(a, b)[:2]
        assert not root.isnan().any() and bool((root == 0).any(-1).all()) and bool(is_most.all())


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_a_largest_element_are_shared_by_its_equals(dtype):
    def program(a, b):
        return (a * b * 0.7).amax(-1)

    a, b = torch.randn(2, 16, 500).to(dtype)
    a.requires_grad_()
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        (found,) = torch.autograd.grad(compiled(a, b).sum(), a)
        assert bool((found != 0).any(-1).all())


def test_what_lies_between_two_kernels_is_narrow():
    """A residual that a product and the next sum read: 16 bits in memory, and no second copy."""
    def block(x, y, w):
        total = torch.tanh(x + y)
        return (total + total @ w).tanh()

    given = [torch.randn(256, 256, dtype=torch.bfloat16) for _ in range(3)]
    (node,) = capture(block, given, {}, limits=None).nodes
    plan = schedule(lower(node.trace.nodes[0].body), Target("cpu", "x86_64", ("avx512f",), 64))
    assert {b.type.dtype for b in plan.buffers} == {"bfloat16"}
    assert sum(b.kind == "arena" for b in plan.buffers) <= 2
