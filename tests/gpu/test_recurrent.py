"""cuDNN's recurrent networks are calls of one graph, in both directions; see `bridge/recurrent.py`."""

import pytest
import torch
from torch import nn

import preheat
from preheat.base.events import bus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
MAKE = {
    "lstm": lambda: nn.LSTM(16, 32, 2, batch_first=True),
    "gru": lambda: nn.GRU(16, 32, 2, bidirectional=True),
    "rnn": lambda: nn.RNN(16, 32, nonlinearity="relu"),
    "projected": lambda: nn.LSTM(16, 32, proj_size=8, bidirectional=True),
    "without biases": lambda: nn.GRU(16, 32, bias=False),
    "half": lambda: nn.LSTM(16, 32).bfloat16(),  # its weights are apart: cuDNN is given copies
}


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.core = MAKE[name]()

    def forward(self, x):
        y, state = self.core(x * 0.5)
        last = state[0] if isinstance(state, tuple) else state
        return torch.relu(y) + last.sum()


@pytest.fixture
def told():
    before = torch.backends.cudnn.allow_tf32
    torch._C._set_cudnn_allow_tf32(False)  # it makes much of a last bit; test helpers freeze the setter
    events = []
    stop = bus.subscribe(events.append, {"break", "fallback"})
    yield events
    stop()
    torch._C._set_cudnn_allow_tf32(before)


def made(name):
    torch.manual_seed(0)
    net = Net(name).cuda()
    dtype = next(net.parameters()).dtype
    return net, torch.randn(5, 7, 16, device="cuda", dtype=dtype)


def close(ours, theirs):
    """What is between cuDNN's calls is computed in float32 here, and rounded on the way in eager."""
    off = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    assert ours.dtype == theirs.dtype and off < (0.03 if theirs.dtype == torch.bfloat16 else 1e-4)


def trained(call, x):
    x = x.clone().requires_grad_()
    call.zero_grad()
    loss = call(x).float().square().mean()
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad.clone() for p in call.parameters())]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.filterwarnings("ignore:RNN module weights")
def test_inference(name, told):
    net, x = made(name)
    net.eval()
    with torch.no_grad():
        compiled = preheat.compile(net, options={"cache": False})
        for _ in range(4):
            close(compiled(x), net(x))
        before = preheat.counters()["captures"]
        for weight in net.parameters():
            weight.data = weight.data.clone() * 0.5
        close(compiled(x), net(x))
        net.core.flatten_parameters()
        close(compiled(x), net(x))
        assert preheat.counters()["captures"] == before and not told


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.filterwarnings("ignore:RNN module weights")
def test_training(name, told):
    net, x = made(name)
    compiled, plans = preheat.compile(net, options={"cache": False}), []
    stop = bus.subscribe(lambda event: plans.append(event.data), {"stage"})
    for step in range(5):
        if step == 4:
            stop()
            for weight in net.parameters():
                weight.data = weight.data.clone() * 0.5
        for ours, theirs in zip(trained(compiled, x), trained(net, x), strict=True):
            close(ours, theirs)
    text = "".join(data["text"] for data in plans if data["name"] == "plan")
    assert text.count("preheat.recurrent.default") == text.count("preheat.recurrent_backward.default") == 1
    assert not told


def test_packed_sequences(told):
    net = nn.LSTM(16, 32, 2).cuda().eval()

    def program(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(net(packed)[0])[0]

    compiled = preheat.compile(program, options={"cache": False})
    with torch.no_grad():
        for lengths in ([5, 3, 2], [4, 4, 1], [5, 3, 2]):
            x = torch.randn(5, 3, 16, device="cuda")
            torch.testing.assert_close(compiled(x, lengths), program(x, lengths))


@pytest.mark.parametrize("way", ["dropout", "autocast"])
def test_what_still_breaks_the_graph_is_right(way, told):
    torch.manual_seed(0)
    net = nn.LSTM(16, 32, 2, dropout=0.5 if way == "dropout" else 0.0).cuda()
    compiled = preheat.compile(lambda x: net(x * 2)[0].float() + 1, options={"cache": False})
    x = torch.randn(5, 7, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
        for _ in range(3):
            if way == "autocast":
                torch.testing.assert_close(compiled(x), net(x * 2)[0].float() + 1)
            assert bool(compiled(x).isfinite().all())
    assert {event.kind for event in told} == {"break"}


def test_as_a_graph(told):
    net, x = made("lstm")
    net.eval()
    compiled = preheat.compile(net, mode="reduce-overhead", options={"cache": False})
    with torch.no_grad():
        for _ in range(6):
            torch.testing.assert_close(compiled(x), net(x))
            x = torch.randn_like(x)
