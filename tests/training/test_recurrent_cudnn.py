"""cuDNN's recurrent networks as calls of a graph, with a network on the CPU that torch takes for one of cuDNN's.

The kernels below stand for cuDNN's: one layer of tanh, whose buffer has the biases before the weights. `simulated::rnn`
does what torch's C++ does around them. On a GPU, with the real ones: tests/gpu/test_recurrent.py.
"""

import pytest
import torch

import preheat
from preheat.base.events import bus
from tests.training.place import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the real ones are there")
RNN_TANH = 1
KERNELS = torch.library.Library("aten", "IMPL")
SIMULATED = torch.library.Library("simulated", "DEF")
SIMULATED.define(
    "rnn(Tensor input, Tensor hx, Tensor[] weight, float dropout, bool train) -> (Tensor, Tensor)")
seen = {"laid": 0, "compacted": 0}


def offsets(weight):
    found, at = [0] * 4, 0
    for k in (2, 3, 0, 1):
        found[k], at = at, at + weight[k].numel()
    return found, at


def flatten(weight, stride0, input_size, mode, hidden, proj, layers, batch_first, both):
    places, count = offsets(weight)
    buffer = torch.zeros(count)
    for one, place in zip(weight, places):
        part = buffer[place:place + one.numel()].view(one.shape)
        part.copy_(one)
        one.set_(part)
    return buffer


def parts(weight, buffer):
    """The weights as cuDNN reads them: from the buffer."""
    places, _ = offsets(weight)
    return [buffer[at:at + one.numel()].view(one.shape) for one, at in zip(weight, places)]


def forward(input, weight, stride0, buffer, hx, cx, mode, hidden, proj, layers, batch_first, dropout, train, both,
            batch_sizes, state):
    seen["compacted" if buffer is None else "laid"] += 1
    fresh = buffer
    if buffer is None:
        fresh = flatten([one.clone() for one in weight], *[0] * 8)
    w, u, b, c = parts(weight, fresh)
    h, made = hx[0], []
    for x in input.unbind(1):
        h = torch.tanh(x @ w.t() + b + h @ u.t() + c)
        made.append(h)
    output = torch.stack(made, 1)
    return output, h[None].clone(), input.new_empty(0), output.clone(), fresh


def backward(input, weight, stride0, buffer, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden, proj, layers,
             batch_first, dropout, train, both, batch_sizes, state, reserve, mask):
    w, u, b, c = parts(weight, buffer)
    dx, grads = torch.zeros_like(input), torch.zeros(buffer.numel())
    dw, du, db, dc = parts(weight, grads)
    carried = torch.zeros_like(hx[0]) if grad_hy is None else grad_hy[0]
    for t in reversed(range(input.shape[1])):
        along = carried if grad_output is None else carried + grad_output[:, t]
        before = hx[0] if t == 0 else reserve[:, t - 1]
        along = along * (1 - reserve[:, t] ** 2)
        dx[:, t] = along @ w
        dw += along.t() @ input[:, t]
        du += along.t() @ before
        db += along.sum(0)
        dc += along.sum(0)
        carried = along @ u
    reserve.zero_()  # as cuDNN does with its reserve
    return dx, carried[None], None, [dw, du, db, dc]


def rnn(input, hx, weight, dropout, train):
    """What torch's C++ does with the weights of a module."""
    places, count = offsets(weight)
    buffer = torch.empty([0], dtype=weight[0].dtype, device=weight[0].device)
    buffer.set_(weight[0].untyped_storage())
    if any(one.data_ptr() != buffer.data_ptr() + 4 * at for one, at in zip(weight, places)):
        buffer = None
    state = torch.zeros(4) if dropout else None
    made = torch.ops.aten._cudnn_rnn.default(
        input, weight, 4, buffer, hx, None, RNN_TANH, hx.shape[-1], 0, 1, True, dropout, train, False, [], state)
    return made[0], made[1]


SIMULATED.impl("rnn", rnn, "CompositeImplicitAutograd")
RNN = torch.ops.simulated.rnn.default
KERNELS.impl("_cudnn_rnn", forward, "CPU")
KERNELS.impl("_cudnn_rnn_backward", backward, "CPU")
KERNELS.impl("_cudnn_rnn_flatten_weight", flatten, "CPU")


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.weight = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(*shape) / 4) for shape in ((6, 5), (6, 6), (6,), (6,)))
        self.dropout = dropout
        self.lay_out()

    def lay_out(self):
        with torch.no_grad():
            flatten(list(self.weight), *[0] * 8)

    def forward(self, x):
        hx = x.new_zeros(1, x.shape[0], 6)
        y, h = RNN(x * 2, hx, list(self.weight), self.dropout, self.training)
        return torch.relu(y) + h[0].sum()


@pytest.fixture(autouse=True)
def counted():
    seen.update(laid=0, compacted=0)
    told = []
    stop = bus.subscribe(told.append, {"break", "fallback"})
    yield told
    stop()


def ops_of(model, x):
    """The names of what the model becomes."""
    told = []
    stop = bus.subscribe(lambda event: told.append(event.data), {"stage"})
    compiled = preheat.compile(model, options={"cache": False})
    compiled(x)
    stop()
    return compiled, [text["text"] for text in told if text["name"] == "plan"]


def test_it_is_one_call_of_one_graph(counted):
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 7, 5)
    with torch.no_grad():
        compiled, (plan,) = ops_of(model, x)
        assert plan.count("preheat.recurrent.default") == 1 and "set_" not in plan and not counted
        before, expected = preheat.counters(), model(x)
        for _ in range(3):
            assert torch.equal(compiled(x), expected)
        assert preheat.counters()["captures"] == before["captures"]
        assert seen["compacted"] == 0 and seen["laid"] >= 5


def test_weights_that_are_laid_out_otherwise_are_found_where_they_are(counted):
    """No guard knows where they lie: each call looks, as eager does."""
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 7, 5)
    with torch.no_grad():
        compiled = preheat.compile(model, options={"cache": False})
        for _ in range(2):
            same_as(compiled, model, x)
        before = preheat.counters()["captures"]
        for weight in model.weight:
            weight.data = torch.randn_like(weight)  # each a storage of its own
        same_as(compiled, model, x)
        assert seen["compacted"] == 2  # eager's, and ours
        model.lay_out()
        same_as(compiled, model, x)
        assert seen["compacted"] == 2
        model.weight[0].data = model.weight[0].data.clone()
        same_as(compiled, model, x)
        assert seen["compacted"] == 4 and preheat.counters()["captures"] == before and not counted


def same_as(compiled, model, x):
    assert torch.equal(compiled(x), model(x))


def trained(call, x):
    x = x.clone().requires_grad_()
    call.zero_grad()
    loss = call(x).square().sum()
    loss.backward(retain_graph=True)
    return [loss.detach(), x.grad, *(p.grad.clone() for p in call.parameters())]


def test_it_is_trained_in_one_graph(counted):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 7, 5)
    compiled, plans = preheat.compile(model, options={"cache": False}), []
    stop = bus.subscribe(lambda event: plans.append(event.data), {"stage"})
    for step in range(5):
        if step == 3:
            stop()
            for weight in model.weight:
                weight.data = torch.randn_like(weight) / 4
        expected = trained(model, x)
        for ours, theirs in zip(trained(compiled, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    text = "".join(data["text"] for data in plans if data["name"] == "plan")
    assert text.count("preheat.recurrent.default") == text.count("preheat.recurrent_backward.default") == 1
    assert not counted


def test_a_backward_may_run_twice(counted):
    """cuDNN writes over its reserve; what the backward is given is a copy."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 7, 5)
    compiled = preheat.compile(model, options={"cache": False})
    for _ in range(4):
        loss = compiled(x).square().sum()
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        again = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for a, b, c in zip(first, again, expected):
            torch.testing.assert_close(a, c)
            torch.testing.assert_close(b, c)
    assert not counted


def test_dropout_breaks_the_graph(counted):
    torch.manual_seed(0)
    model, x = Net(0.5), torch.randn(2, 7, 5)
    compiled = preheat.compile(model, options={"cache": False})
    for _ in range(3):
        expected = trained(model, x)
        for ours, theirs in zip(trained(compiled, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert counted and counted[0].kind == "break" and "cuDNN's dropout" in counted[0].data["detail"]
