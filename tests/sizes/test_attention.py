"""Attention whose op gives lengths as numbers, which autograd keeps for the backward.

A CPU has no such op: here it is made of the one that a CPU has, with the results of the GPU's.
"""

import pytest
import torch

import preheat

flash = torch.ops.aten._scaled_dot_product_flash_attention.default
LENGTHS = (4, 5, 9, 12, 7, 5, 9, 7, 12, 5, 9, 7, 31)


def forward(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    of_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    made, logs = of_cpu(q, k, v, dropout_p, is_causal, scale=scale)
    states = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return (torch.empty_like(q).copy_(made), logs.contiguous(), None, None, q.shape[2], k.shape[2],
            *states, torch.empty(0))


def backward(grad, q, k, v, out, logs, cum_q, cum_k, max_q, max_k, p, is_causal, seed, offset, *, scale=None):
    assert (max_q, max_k) == (q.shape[2], k.shape[2])
    logs = logs.transpose(1, 2).contiguous().transpose(1, 2)
    of_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    made = of_cpu(grad, q, k, v, out, logs, p, is_causal, scale=scale)
    return tuple(torch.empty_like(own).copy_(one) for own, one in zip((q, k, v), made))


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_flash_attention", forward, "CPU")
    library.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
    yield
    library._destroy()


def attention(x, w):
    batch, length, _ = x.shape
    q, k, v = (x @ w).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
    return flash(q, k, v, 0.0, True, False)[0].transpose(1, 2).reshape(batch, length, 16).tanh()


def attention_and_its_length(x, w):
    batch, length, _ = x.shape
    q, k, v = (x @ w).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
    made = flash(q, k, v)
    return made[0].transpose(1, 2).reshape(batch, -1, 16) * made[4] + made[5]


@pytest.mark.parametrize("program", [attention, attention_and_its_length])
@pytest.mark.parametrize("has_grad", [False, True])
def test_lengths_are_captured_once(program, has_grad, monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    torch.manual_seed(0)
    compiled, w = preheat.compile(program, options={"cache": False}), torch.randn(16, 48, requires_grad=has_grad)
    before = preheat.counters()
    for length in LENGTHS:
        x = torch.randn(2, length, 16)
        found, expected = compiled(x, w), program(x, w)
        torch.testing.assert_close(found, expected)
        if has_grad:
            (a,), (b,) = (torch.autograd.grad(y.square().mean(), w) for y in (found, expected))
            torch.testing.assert_close(a, b)
    after = preheat.counters()
    assert [after[k] - before[k] for k in ("captures", "fallbacks", "breaks")] == [2, 0, 0]
