"""Attention and losses that C composes of other ops: one capture serves all sizes, whatever torch it is."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import preheat
import preheat.capture.boxing as boxing

SIZES = ((2, 3), (4, 5), (6, 7), (3, 9), (2, 2), (7, 7), (9, 4))
attend = F.scaled_dot_product_attention


def heads(b, n, count=4, width=8, dtype=torch.float32):
    return torch.randn(b, count, n, width, dtype=dtype)


def equal(b, n):
    return heads(b, n), heads(b, n), heads(b, n)


def grouped(b, n, count=2, dtype=torch.float32):
    return heads(b, n, dtype=dtype), heads(b, n, count, dtype=dtype), heads(b, n, count, dtype=dtype)


def rows(b, n):
    return tuple(torch.randn(b, n, 8) for _ in range(3))


def likely(b, n):
    return torch.randn(b, 5, n), torch.randn(b, 5, n).softmax(1)


RATES = torch.arange(1.0, 6)
FORMS = {
    "as it is": (attend, lambda b, n: (heads(b, n), heads(b, n + 1), heads(b, n + 1))),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), equal),
    "a bool mask": (attend, lambda b, n: (*equal(b, n), torch.rand(n, n) > 0.3)),
    "a bool mask that is broadcast": (
        lambda q, k, v, m: attend(q, k, v, attn_mask=m), lambda b, n: (*equal(b, n), torch.rand(b, 1, n, n) > 0.3)),
    "a mask of rows without any key": (attend, lambda b, n: (*equal(b, n), torch.rand(b, 1, n, n) > 2)),
    "a float mask": (attend, lambda b, n: (*equal(b, n), torch.randn(b, 1, 1, n))),
    "dropout": (lambda q, k, v: attend(q, k, v, dropout_p=0.3), equal),
    "dropout of rows by batches": (
        lambda q, k, v: attend(q, k, v, dropout_p=0.3),
        lambda b, n: (torch.randn(n, 8), torch.randn(n, 8), torch.randn(b, n, 8))),
    "grouped heads": (lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), grouped),
    "one head of keys": (lambda q, k, v: attend(q, k, v, enable_gqa=True), lambda b, n: grouped(b, n, 1)),
    "a scale": (lambda q, k, v: attend(q, k, v, scale=0.5), equal),
    "a scale below zero": (lambda q, k, v: attend(q, k, v, scale=-0.5), equal),
    "bfloat16": (
        lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True),
        lambda b, n: grouped(b, n, dtype=torch.bfloat16)),
    "float16": (attend, lambda b, n: grouped(b, n, 4, torch.float16)),
    "three axes": (lambda q, k, v: attend(q, k, v, is_causal=True), rows),
    "turned heads": (
        lambda q, k, v: attend(*(x.view(*x.shape[:2], 2, 4).transpose(1, 2) for x in (q, k, v))), rows),
    "wide values": (attend, lambda b, n: (heads(b, n), heads(b, n), heads(b, n, width=16))),
    "under autocast": (attend, equal),
    "a loss of probabilities": (F.cross_entropy, likely),
    "a loss of probabilities of one row": (lambda x, y: F.cross_entropy(x[0, :, 0], y[0, :, 0]) + x.sum(), likely),
    "a loss of smooth probabilities": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), likely),
    "a loss of weighed probabilities": (lambda x, y: F.cross_entropy(x, y, RATES, label_smoothing=0.1), likely),
    "losses of probabilities": (lambda x, y: F.cross_entropy(x, y, RATES, reduction="none"), likely),
    "a sum of losses": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), likely),
}
MODES = {"no_grad": torch.no_grad, "training": contextlib.nullcontext, "inference_mode": torch.inference_mode}


def same_at(sizes, name, mode):
    """Runs a form of attention, compiled and in eager, and compares every bit; returns the captures."""
    program, arguments = FORMS[name]
    compiled = preheat.compile(program, backend="eager", options={"cache": False})
    before = preheat.counters()
    for size in sizes:
        xs = [x.requires_grad_(mode == "training" and x.is_floating_point()) for x in arguments(*size)]
        found = []
        for call in (compiled, program):
            own = [x.detach().clone().requires_grad_(x.requires_grad) for x in xs]
            torch.manual_seed(0)
            with sdpa_kernel(SDPBackend.MATH), MODES[mode](), torch.autocast(
                    "cpu", torch.bfloat16, enabled=name == "under autocast"):
                made = call(*own)
            drawn = torch.rand(1)
            if mode == "training":
                made.square().sum().backward()
            found.append((made.detach(), drawn, *(x.grad for x in own if x.requires_grad)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            assert a is b is None or a.stride() == b.stride()  # no gradient where nothing had an element
    after = preheat.counters()
    assert [after[k] - before[k] for k in ("fallbacks", "breaks")] == [0, 0]
    return after["captures"] - before["captures"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMS)
def test_one_capture_serves_all_sizes_and_every_bit_is_eagers(name, mode):
    assert same_at(SIZES, name, mode) == 2


@pytest.mark.parametrize("mode", MODES)
def test_axes_of_one_element_and_of_none_as_in_eager(mode):
    for name in FORMS:
        nothing = () if name == "a loss of probabilities of one row" else ((0, 3),)
        same_at(((3, 4), (2, 5), (1, 4), (4, 1), (1, 1), (5, 3), *nothing), name, mode)


def test_which_kernel_computes_it_is_asked_of_sizes_again():
    def program(q, k, v):
        return attend(q, k, v)

    compiled = preheat.compile(program, backend="eager", options={"cache": False})
    with torch.no_grad():
        for n in (3, 5, 0, 7, 0, 4):  # without any key it is composed
            xs = heads(2, n), heads(2, n), heads(2, n)
            assert torch.equal(compiled(*xs), program(*xs))


def test_a_torch_without_the_door_below_autograd_pins_sizes(monkeypatch):
    monkeypatch.setattr(boxing, "below_autograd", None)
    assert same_at(SIZES[:4], "grouped heads", "training") == 4
