"""Numbers that change in training: one capture for the first value, one for all others; gradients as in eager."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import preheat

X, Y, A = (torch.randn(8, 16, generator=torch.Generator().manual_seed(k)) for k in range(3))
Z = torch.rand(8, 16, generator=torch.Generator().manual_seed(3)) * 0.8 + 0.1
LINE, WIDE = torch.linspace(0.5, 2.0, 4), torch.linspace(0.5, 2.0, 16)
CLASSES, SIGNS, MASK = torch.arange(8) * 3 % 16, torch.tensor([1.0, -1.0] * 4), X > 0
SQUARE = A @ A.t()
VALUES = [0.11 + 0.06 * k for k in range(9)]


def image(x):
    return x.view(2, 4, 4, 4)


def heads(x):
    return x.view(1, 2, 4, 16)


def attend(x, v, **options):
    return F.scaled_dot_product_attention(heads(x), heads(x * 0.9), heads(x.tanh()), scale=v, **options)


def in_place(name, *args, **kwargs):
    def call(x, v):
        made = [v if arg is None else x * 0.5 if arg is X else arg for arg in args]
        return getattr(x.abs() + 0.2, name)(*made, **{key: v for key in kwargs})
    return call


CALLS = {
    "layer_norm": lambda x, v: F.layer_norm(x, (16,), WIDE, WIDE, v),
    "layer_norm with weights of x": lambda x, v: F.layer_norm(x, (16,), x[0], x[1], v),
    "rms_norm": lambda x, v: F.rms_norm(x, (16,), WIDE, v),
    "group_norm": lambda x, v: F.group_norm(image(x), 2, LINE, LINE, v),
    "batch_norm": lambda x, v: F.batch_norm(image(x), LINE.clone(), LINE.clone(), LINE, LINE, True, v, v),
    "batch_norm without statistics": lambda x, v: F.batch_norm(image(x), None, None, LINE, LINE, True, v, v),
    "batch_norm in inference": lambda x, v: F.batch_norm(image(x), LINE, LINE, LINE, LINE, False, 0.1, v),
    "instance_norm": lambda x, v: F.instance_norm(image(x), eps=v),
    "local_response_norm": lambda x, v: F.local_response_norm(image(x), 2, alpha=v),
    "normalize": lambda x, v: F.normalize(x, eps=v * 10),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "leaky_relu in place": lambda x, v: F.leaky_relu(x * 1, v, inplace=True),
    "elu": lambda x, v: F.elu(x, v),
    "celu": lambda x, v: F.celu(x, v),
    "softplus": lambda x, v: F.softplus(x, v, 1 - v),
    "threshold": lambda x, v: F.threshold(x, v, -v),
    "hardshrink": lambda x, v: F.hardshrink(x, v),
    "softshrink": lambda x, v: F.softshrink(x, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v),
    "clamp": lambda x, v: x.clamp(min=-v, max=2 * v),
    "clamp from below": lambda x, v: torch.clamp(x, min=v),
    "clamp_max": lambda x, v: x.clamp_max(v),
    "logit": lambda x, v: torch.logit(x.sigmoid(), v),
    "logit, a method": lambda x, v: x.sigmoid().logit(v),
    "nan_to_num": lambda x, v: torch.nan_to_num(x / (x > 0.5), v, v, v),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "huber": lambda x, v: F.huber_loss(x, Y, delta=v),
    "huber of both": lambda x, v: F.huber_loss(x, x * x, reduction="none", delta=v),
    "smooth_l1": lambda x, v: F.smooth_l1_loss(x, Y, reduction="sum", beta=v),
    "cross_entropy": lambda x, v: F.cross_entropy(x, CLASSES, label_smoothing=v),
    "cross_entropy with weights": lambda x, v: F.cross_entropy(x, CLASSES, WIDE, ignore_index=3, label_smoothing=v),
    "cross_entropy of each": lambda x, v: F.cross_entropy(x, CLASSES, reduction="none", label_smoothing=v),
    "cross_entropy of pixels": lambda x, v: F.cross_entropy(image(x), MASK[:4].view(2, 4, 8)[:, :, :4].long(), label_smoothing=v),
    "cross_entropy of probabilities": lambda x, v: F.cross_entropy(x, Z, WIDE, label_smoothing=v),
    "margin_ranking": lambda x, v: F.margin_ranking_loss(x, Y, SIGNS[:, None], v),
    "hinge_embedding": lambda x, v: F.hinge_embedding_loss(x, Y.sign(), v),
    "cosine_embedding": lambda x, v: F.cosine_embedding_loss(x, Y, SIGNS, v),
    "triplet_margin": lambda x, v: F.triplet_margin_loss(x, Y, Z, v, swap=True),
    "triplet_margin with a distance": lambda x, v: F.triplet_margin_with_distance_loss(x, Y, Z, margin=v),
    "multi_margin": lambda x, v: F.multi_margin_loss(x, CLASSES, margin=v),
    "poisson_nll": lambda x, v: F.poisson_nll_loss(x.abs(), Z, log_input=False, eps=v),
    "gaussian_nll": lambda x, v: F.gaussian_nll_loss(x, Y, Z, eps=v),
    "cosine_similarity": lambda x, v: F.cosine_similarity(x, Y, eps=v * 10),
    "pairwise_distance": lambda x, v: F.pairwise_distance(x, Y, eps=v),
    "attention": attend,
    "causal attention": lambda x, v: attend(x, v, is_causal=True),
    "masked attention": lambda x, v: attend(x, v, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril()),
    "quantile": lambda x, v: x.quantile(v),
    "quantile of rows": lambda x, v: torch.quantile(x, v, 1),
    "lerp": lambda x, v: x.lerp(Y, v) + torch.lerp(Y, x, v),
    "addcmul": lambda x, v: torch.addcmul(x, Y, x, value=v),
    "addcdiv": lambda x, v: torch.addcdiv(x, x, Z + x * x, value=v),
    "alphas": lambda x, v: torch.add(x, x, alpha=v) + torch.sub(Y, x, alpha=v) + torch.rsub(x, Y, alpha=v),
    "addmm": lambda x, v: torch.addmm(SQUARE, x, x.t(), beta=v, alpha=1 - v) + torch.addmm(x[:, :8], A, Y.t(), beta=v),
    "baddbmm": lambda x, v: torch.baddbmm(SQUARE[None], x[None], x.t()[None], beta=v, alpha=v),
    "addbmm": lambda x, v: torch.addbmm(x[:, :8], x[None], x.t()[None], beta=v, alpha=v),
    "addmv": lambda x, v: torch.addmv(x[:, 0], x, x[0], beta=v, alpha=v),
    "addr": lambda x, v: torch.addr(x[:, :8], x[:, 0], x[:, 1], beta=v, alpha=v),
    "pow": lambda x, v: torch.pow(x.abs() + 0.1, v + 1),
    "a power of a number": lambda x, v: v**x,
    "float_power": lambda x, v: torch.float_power(x.abs() + 0.1, v),
    "arithmetic": lambda x, v: v - (x * v + v) / (v + 1) + v / (x.abs() + 1),
    "arithmetic of 16 bits": lambda x, v: (x.bfloat16() * v / (1 + v)).float(),
    "remainders": lambda x, v: x % v + torch.fmod(x, v),
    "xlogy": lambda x, v: torch.xlogy(v, x.abs() + 0.1),
    "copysign": lambda x, v: torch.copysign(x, v),
    "masked_fill": lambda x, v: x.masked_fill(MASK, v),
    "where": lambda x, v: torch.where(MASK, x, v),
    "a comparison": lambda x, v: x * (x > v),
    "index_add": lambda x, v: x.index_add(0, torch.arange(8) % 3, x * x, alpha=v),
    "index_fill": lambda x, v: x.index_fill(0, torch.arange(3), v),
    "scatter": lambda x, v: x.scatter(1, CLASSES[:, None], v),
    "made of a number": lambda x, v: torch.full_like(x, v) * x + x.new_full((16,), v) * x,
    "mul_": in_place("mul_", None), "add_": in_place("add_", X, alpha=1), "div_": in_place("div_", None),
    "clamp_": in_place("clamp_", None), "lerp_": in_place("lerp_", X, None), "pow_": in_place("pow_", None),
    "addcmul_": in_place("addcmul_", X, Z, value=1), "addcdiv_": in_place("addcdiv_", X, Z, value=1),
    "masked_fill_": in_place("masked_fill_", MASK, None), "fill_": lambda x, v: (x * 1).fill_(v) + x,
}


def step(call, v):
    torch.manual_seed(3)
    x = X.clone().requires_grad_()
    made = call(x, v)
    (made * torch.linspace(0.3, 1.7, made.numel()).view(made.shape)).sum().backward()
    return made.detach(), x.grad


def compared(call, values, limit, run=step):
    compiled, before = preheat.compile(call, options={"cache": False}), dict(preheat.counters())
    for v in values:
        torch.testing.assert_close(run(compiled, v), run(call, v), equal_nan=True)
    after = preheat.counters()
    assert after["captures"] - before["captures"] <= limit
    assert after["fallbacks"] == before["fallbacks"]


@pytest.mark.parametrize("name", CALLS)
def test_a_number_that_changes_is_captured_twice(name):
    compared(CALLS[name], VALUES, 2)


@pytest.mark.parametrize("name", [
    "layer_norm", "leaky_relu", "clamp", "huber", "attention", "lerp", "masked_fill", "arithmetic", "addcmul"])
def test_bits_of_what_is_not_fused_are_those_of_eager(name):
    call = CALLS[name]
    compiled = preheat.compile(call, options={"cache": False}, backend="eager")
    for v in VALUES:
        for found, wanted in zip(step(compiled, v), step(call, v)):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("name, values, limit", [
    ("pow", [0.3, -0.5, -1.0, 1.0, 0.2, -1.0, -0.2], 3),  # the exponent is 0 where v is -1
    ("cross_entropy", [0.1, 0.0, 0.2, 0.3, 0.0, 1.0], 3),
    ("logit", [0.1, 0.2, 0.3, 0.05], 2),
    ("huber", [0.1, 0.2, math.inf, 0.3], 3),
    ("clamp", [0.1, 0.2, math.inf, math.nan, -1.0, 0.3], 2),
    ("layer_norm", [0.1, 0.0, 2.0, math.inf, 0.3], 2),
])
def test_a_number_that_decides_is_guarded_where_it_does(name, values, limit):
    compared(CALLS[name], values, limit)


@pytest.mark.parametrize("name", ["cross_entropy", "huber", "smooth_l1"])
def test_what_eager_refuses_is_refused(name):
    compiled = preheat.compile(CALLS[name])
    for v in (0.1, 0.2, 0.3, -1.0, 0.4):
        try:
            wanted = step(CALLS[name], v)
        except (RuntimeError, ValueError) as error:
            with pytest.raises(type(error)):
                step(compiled, v)
            continue
        torch.testing.assert_close(step(compiled, v), wanted)


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_quantile_of_one_element_is_refused_beyond_0_and_1(is_trained):
    def call(x, q):
        return x[:, :1].quantile(q, 1)

    compiled, before = preheat.compile(call, options={"cache": False}), preheat.counters()["captures"]
    for q in (0.3, 0.4, 0.5, 1.0, 0.6):
        x = X.clone().requires_grad_(is_trained)
        assert torch.equal(compiled(x, q), call(x, q))
    assert preheat.counters()["captures"] - before == 2
    for q in (1.5, -0.5, math.nan):
        with pytest.raises(RuntimeError, match="q must be in the range"):
            compiled(X.clone().requires_grad_(is_trained), q)


def both(x, v):
    return F.elu(F.layer_norm(x, (16,), WIDE, None, v), v) * v


def test_second_derivatives():
    def run(call, v):
        x = X.clone().requires_grad_()
        grad, = torch.autograd.grad(call(x, v).square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        return grad.detach(), x.grad

    compared(both, VALUES, 2, run)


def test_many_tangents_at_once():
    def run(call, v):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(call(x, v), x, torch.eye(128).view(128, 8, 16)[:5], is_grads_batched=True)

    compared(both, VALUES[:4], 2, run)


def test_sizes_change_too():
    def run(call, k):
        x = X[:8 - k % 5].clone().requires_grad_()
        made = call(x, 0.1 + 0.05 * k)
        made.sum().backward()
        return made.detach(), x.grad

    compared(lambda x, v: F.huber_loss(both(x, v), x * 0.5, delta=v) + x.lerp(x * x, v), range(14), 3, run)


def test_inside_of_a_checkpoint():
    compared(lambda x, v: checkpoint(both, x * 2, v, use_reentrant=False).tanh(), VALUES, 2)


def test_a_result_and_what_follows_from_it():
    def run(call, v):
        x = X.clone().requires_grad_()
        made, loss = call(x, v)
        inner, = torch.autograd.grad(loss, made, retain_graph=True)
        (made.sum() + loss).backward()
        return made.detach(), inner, x.grad

    def call(x, v):
        made = F.elu(x, v)
        return made, (made * v).clamp(max=v).sum()

    compared(call, VALUES, 2, run)


def test_what_a_formula_has_not_saved_may_be_changed():
    """An operand of lerp by a number; that of leaky_relu may not."""
    def changed(name):
        compiled = preheat.compile(CALLS[name])
        for v in VALUES[:5]:
            x = X.clone().requires_grad_()
            z = x * 1
            made = compiled(z, v)
            with torch.no_grad():
                z.mul_(2)
            made.sum().backward()

    changed("lerp")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed("leaky_relu")


def test_attributes_of_modules():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.LeakyReLU(0.1), torch.nn.Linear(16, 16), torch.nn.ELU())
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

    def run(call, v):
        model[1].eps, model[2].negative_slope, model[4].alpha, loss.label_smoothing = v, v / 2, v * 2, v / 3
        model.zero_grad()
        made = call(X)
        made.backward()
        return made.detach(), *(p.grad for p in model.parameters())

    compared(lambda x: loss(model(x), CLASSES), VALUES, 3, run)


def test_numbers_are_of_the_call_that_is_run_backward():
    call, compiled = both, preheat.compile(both)
    for v in VALUES[:3]:
        step(compiled, v)
    xs = [X.clone().requires_grad_() for _ in range(4)]
    made = [(compiled if k < 2 else call)(x, 0.2 + k % 2) for k, x in enumerate(xs)]
    for one in reversed(made):
        one.sum().backward()
    torch.testing.assert_close([x.grad for x in xs[:2]], [x.grad for x in xs[2:]])
