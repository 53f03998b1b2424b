"""Conditions of training that people count on: each program does the same compiled as eager, call by call.

A case is a function of `wrap`, which compiles or not; it gives `program(k, log)`, the k-th call, whose result is
compared, with what hooks have put into `log` and with where the generators stand.
"""

import pytest
import torch
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook, save_on_cpu, saved_tensors_hooks

import preheat
from tests.training.check import difference
from tests.training.place import random_states

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def weight(*sizes, seed=0):
    return torch.nn.Parameter(torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)))


def run(make, wrap, count=7):
    torch.manual_seed(0)
    program, rows = make(wrap), []
    for k in range(count):
        torch.manual_seed(k)
        log = []
        try:
            result = program(k, log)
        except RuntimeError as error:
            result = str(error)[:60]
        rows.append((result, log, random_states()))
    return rows


# ---------------------------------------------------------------------------- hooks of the graph
@case
def hooks_on_what_accumulates_gradients(wrap):
    w, seen = weight(3, 3), []
    node = w.view_as(w).grad_fn.next_functions[0][0]
    node.register_hook(lambda given, tangents: seen.append(("after", len(given), tangents[0].clone())))
    node.register_prehook(lambda tangents: seen.append(("before", tangents[0].clone())))
    call = wrap(lambda x: (x @ w).tanh().sum() + (w * w).sum())

    def program(k, log):
        seen.clear()
        w.grad = None
        call(torch.randn(2, 3)).backward()
        log += seen
        return w.grad, node is w.view_as(w).grad_fn.next_functions[0][0]

    return program


@case
def gradients_at_edges(wrap):
    w = weight(3, 3)
    edge = get_gradient_edge(w)

    def hidden(x):
        h = x @ w
        return h, h.tanh().sum()

    call = wrap(hidden)

    def program(k, log):
        h, loss = call(torch.randn(2, 3))
        return torch.autograd.grad(loss, [get_gradient_edge(h), edge, w]), w.grad

    return program


@case
def hooks_before_a_node_and_on_several_tensors(wrap):
    w, v = weight(3, 3), weight(3, 3, seed=1)

    def two(x):
        h = x @ w
        return h, (h.tanh() @ v).sum()

    call = wrap(two)

    def program(k, log):
        w.grad = v.grad = None
        h, loss = call(torch.randn(2, 3))
        loss.grad_fn.register_prehook(lambda tangents: log.append(tangents[0].clone()) or (tangents[0] * 2,))
        handles = [
            register_multi_grad_hook([h, w, v], lambda grads: log.append([g if g is None else g.clone() for g in grads])),
            register_multi_grad_hook([w, v], lambda grad: log.append("any"), mode="any")]
        (loss if k % 2 else h.sum()).backward()
        for handle in handles:
            handle.remove()
        return w.grad, v.grad

    return program


@case
def hooks_that_come_and_go(wrap):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    call, handles, seen = wrap(model), [], []

    def program(k, log):
        seen.clear()
        model.zero_grad()
        if k == 2:
            handles.append(model[0].weight.register_hook(lambda g: seen.append(g.clone()) or g * 2))
            handles.append(model[1].register_full_backward_hook(lambda m, ours, theirs: (theirs[0] * 3,)))
        if k == 3:
            handles.append(model[1].register_forward_hook(lambda m, given, made: seen.append(made.detach()) or made * 2))
            handles.append(model[2].register_full_backward_pre_hook(lambda m, tangents: (tangents[0] * 3,)))
        if k == 5:
            for handle in handles:
                handle.remove()
        call(torch.randn(2, 3)).sum().backward()
        log += seen
        return [param.grad.clone() for param in model.parameters()]

    return program


@case
def what_is_saved_is_packed_by_others(wrap):
    w = weight(3, 3)

    def inside(x):
        with save_on_cpu():
            return (x @ w).tanh().sum()

    calls = wrap(lambda x: (x @ w).tanh().sum()), wrap(inside)

    def program(k, log):
        w.grad, packed = None, []
        with saved_tensors_hooks(lambda saved: packed.append(1) or saved * 1, lambda saved: saved):
            loss = calls[0](torch.randn(2, 3))
        (loss + calls[1](torch.randn(2, 3))).backward()
        log.append(bool(packed))
        return w.grad

    return program


# ---------------------------------------------------------------------------- modes
@case
def anomaly_mode(wrap):
    w = weight(3, 3)
    call = wrap(lambda x: (x @ w).sqrt().sum())

    def program(k, log):
        w.grad = None
        with torch.autograd.set_detect_anomaly(k % 2 == 0):
            loss = call(torch.zeros(2, 3) if k == 4 else torch.randn(2, 3))
        with torch.autograd.set_detect_anomaly(False):
            loss.backward()
        return w.grad

    return program


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode_refuses_a_gradient_that_is_no_number():
    w = weight(3, 3)
    call = preheat.compile(lambda x: (x * w).sqrt().sum(), options={"cache": False})
    for _ in range(4):
        call(torch.zeros(3, 3)).backward()
    loss = call(torch.zeros(3, 3))
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="returned nan values"):
        loss.backward()


class Product(torch.autograd.Function):
    """A product in float32 whatever autocast says; `seen` has what its backward was given."""

    seen: list = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, tangent):
        a, b = ctx.saved_tensors
        Product.seen.append((str(tangent.dtype), torch.is_autocast_enabled("cpu")))
        return tangent @ b.t(), a.t() @ tangent


@case
def functions_with_rules_for_autocast(wrap):
    w = weight(4, 4)

    def f(x):
        h = x @ w
        return Product.apply(h, w).sum() + h.float().sum()

    def inside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return f(x)

    calls = wrap(f), wrap(inside)

    def program(k, log):
        Product.seen.clear()
        w.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=k % 3 != 2):
            loss = calls[0](torch.randn(3, 4))
        (loss + calls[1](torch.randn(3, 4))).backward()
        log += Product.seen
        return loss.detach(), w.grad

    return program


@case
def casts_of_weights_under_autocast(wrap):
    """A cast made without gradients is not the one that gradients go through."""
    w = weight(4, 4)
    call = wrap(lambda x: (x @ w).sum())

    def program(k, log):
        w.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                first = call(torch.ones(3, 4))
            second = call(torch.ones(3, 4))
        second.float().backward()
        with torch.no_grad():
            w.add_(0.5)
        return first, second.detach(), w.grad

    return program


def test_a_cast_of_a_weight_is_not_kept_from_call_to_call():
    """Eager keeps it until the region ends, also where the weight has changed since."""
    w = torch.nn.Parameter(torch.ones(4, 4))
    call = preheat.compile(lambda x: (x @ w).sum(), options={"cache": False})
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = call(torch.ones(2, 4)).item()
            with torch.no_grad():
                w.mul_(2)
            assert call(torch.ones(2, 4)).item() == 2 * before
        with torch.no_grad():
            w.div_(2)


# ---------------------------------------------------------------------------- modules and steps
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent


@case
def a_function_that_is_differentiated_once(wrap):
    w = weight(3, 3)
    call = wrap(lambda x: Square.apply(x @ w).sum())

    def program(k, log):
        (grad,) = torch.autograd.grad(call(torch.randn(2, 3)), w, create_graph=k % 2 == 1)
        return torch.autograd.grad(grad.sum(), w) if k % 2 else grad

    return program


@case
def a_spectral_norm(wrap):
    model = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = wrap(lambda x: model(x).pow(2).sum())

    def program(k, log):
        model.train(k != 4)
        optimizer.zero_grad()
        loss = call(torch.randn(3, 4))
        loss.backward()
        optimizer.step()
        return loss.detach(), [part.detach().clone() for part in (*model.buffers(), *model.parameters())]

    return program


@case
def two_optimizers_and_a_detached_result(wrap):
    maker, judge = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)
    optimizers = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.SGD(judge.parameters(), lr=0.1)
    distance = torch.nn.functional.binary_cross_entropy_with_logits

    def step(x, real):
        made = maker(x)
        optimizers[1].zero_grad()
        loss = distance(judge(real), torch.ones(3, 1)) + distance(judge(made.detach()), torch.zeros(3, 1))
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        distance(judge(made), torch.ones(3, 1)).backward()
        optimizers[0].step()
        return loss.detach()

    call = wrap(step)
    return lambda k, log: (
        call(torch.randn(3, 4), torch.randn(3, 2)),
        [(p.detach().clone(), p.grad.clone()) for p in (*maker.parameters(), *judge.parameters())])


@case
def gradients_for_some_of_the_inputs_alone(wrap):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward(inputs=[model[0].weight, model[2].bias], retain_graph=True)
        loss.backward(torch.tensor(0.5))
        return loss.detach()

    call = wrap(step)

    def program(k, log):
        model.zero_grad()
        return call(torch.randn(3, 4)), [param.grad.clone() for param in model.parameters()]

    return program


@case
def a_gradient_that_lies_in_memory_of_others(wrap):
    flat, w = torch.zeros(12), weight(4, 3)
    w.grad = flat.view(4, 3)

    def step(x):
        loss = (x @ w).tanh().sum()
        loss.backward()
        return loss.detach()

    call = wrap(step)

    def program(k, log):
        if k % 3 == 0:
            flat.zero_()
        return call(torch.randn(2, 4)), flat.clone(), w.grad.data_ptr() == flat.data_ptr()

    return program


@case
def a_step_that_is_skipped(wrap):
    model = torch.nn.Linear(4, 2)
    optimizer, skipped = torch.optim.AdamW(model.parameters(), lr=0.01), []

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        if not torch.isfinite(loss):
            skipped.append(len(skipped))
            return None
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        return loss.item()

    call = wrap(step)
    return lambda k, log: (
        call(torch.randn(3, 4) / (k != 3)), [param.detach().clone() for param in model.parameters()], list(skipped))


@pytest.mark.parametrize("name", CASES)
def test_condition(name):
    expected = run(CASES[name], lambda fn: fn)
    found = run(CASES[name], lambda fn: preheat.compile(fn, options={"cache": False}))
    for number, pair in enumerate(zip(expected, found, strict=True)):
        assert not (why := difference(*pair, False)), f"call {number}: {why}"
