"""Plain functions and modules: captured as one node, replayed on other inputs as eager."""

import pytest
import torch
from torch import nn

from tests.capture.replay import assert_same, captured, missed, outcome, replay
from tests.processes import printed

F = nn.functional


def chain(x):
    y = F.gelu(x) * 2.0
    return F.layer_norm(y, (y.shape[-1],)) + x


def several(x, *, scale=2, bias=None):
    parts = x.chunk(2, dim=-1)
    total = sum(p.sum() for p in parts)
    out = {"a": parts[0] * scale, "b": [total, x], "shape": x.shape, "name": f"{scale}!", "none": bias}
    return out, (parts[1], parts[1])


def in_place(x):
    y = x.clone()
    y[0] = 5.0
    y.add_(1).mul_(2)
    y.unsqueeze_(0)
    return y[:, 1:], y


def constants(x):
    table = torch.tensor([[1.0, 1.0, 2.0], [0.0, -0.0, 3.5]])
    index = torch.tensor([0, 2])
    return x @ table.t(), x[:, index], torch.arange(3) + 1, torch.full((2,), True), torch.tensor(7)


def control(x, flag=True, n=3):
    if flag and n > 2:
        for i in range(n):
            x = x + i
    try:
        x = x.missing
    except AttributeError:
        x = x * 2
    with torch.no_grad():
        return [v for v in (x, None) if v is not None]


@pytest.mark.parametrize("function", [chain, several, in_place, constants, control])
def test_function(function):
    torch.manual_seed(0)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    if function is several:
        x, y = torch.randn(4, 6), torch.randn(4, 6)
    made = captured(function, x)
    assert_same(made.result, function(x))
    assert_same(replay(made, function, y), function(y))


MODULES = {
    "sequential": lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (2, 8)),
    "layer_norm": lambda: (nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1)), (2, 8)),
    "convolution": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)), (2, 3, 8, 8)),
    "lstm": lambda: (nn.LSTM(8, 16, num_layers=2, batch_first=True), (2, 5, 8)),
    "lstm_cell": lambda: (nn.LSTMCell(8, 16), (2, 8)),
    "gru": lambda: (nn.GRU(8, 16), (5, 2, 8)),
    "encoder": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), (2, 5, 16)),
    "group_norm": lambda: (nn.Sequential(nn.GroupNorm(2, 4), nn.Softmax(-1)), (2, 4, 5)),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, mode):
    torch.manual_seed(0)
    model, shape = MODULES[name]()
    model.eval()
    with mode():
        x, y = torch.randn(shape), torch.randn(shape)
        made = captured(model, x)
        assert made.why_not_stored == ""
        assert_same(made.result, model(x))
        assert_same(replay(made, model, y), model(y))


def test_attention():
    model = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    with torch.no_grad():
        made = captured(model, x, x, x, need_weights=True)
        assert_same(replay(made, model, y, y, y, need_weights=True), model(y, y, y, need_weights=True))


def test_embedding():
    model = nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 2)).eval()
    x, y = torch.randint(0, 10, (2, 3)), torch.randint(0, 10, (2, 3))
    with torch.no_grad():
        made = captured(model, x)
        assert_same(replay(made, model, y), model(y))


def test_batch_norm_in_training_writes_its_buffers():
    model = nn.BatchNorm1d(4)
    twin = nn.BatchNorm1d(4)
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    with torch.no_grad():
        found = outcome(model, x)
        twin(x)
        assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))
        if found.breaks:  # num_batches_tracked is a tensor: adding one is an op
            raise AssertionError(found.breaks)
        replay(found.captured, model, y)
        twin(y)
        assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_guards_notice():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4)
    with torch.no_grad():
        made = captured(model, x)
        assert missed(made, model, x) is None
        assert missed(made, model, torch.randn(3, 4)) is not None
        model[0].bias.data = model[0].bias.data.double()
        assert missed(made, model, x) is not None
        model[0].float()
        model.train()
        made = captured(model, x)
        model[1].register_forward_hook(lambda *a: None)
        assert missed(made, model, x) is not None
    with torch.inference_mode():
        assert missed(made, model, x) is not None


def test_capture_imports_nothing_of_torchs_compiler():
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "from preheat.capture.capture import capture\n"
        "with torch.no_grad():\n"
        "    out = capture(torch.nn.Linear(2, 2), (torch.ones(1, 2),), {})\n"
        "assert not out.breaks, out.breaks\n"
        "bad = [m for m in set(sys.modules) - before if m.startswith(('torch._dynamo', 'torch._inductor', "
        "'torch._functorch'))]\n"
        "assert not bad, bad\n"
    )
    printed("-c", code)


def test_the_recorder_keeps_no_tensor_alive():
    import gc
    import weakref

    alive = []

    def f(x):
        for _ in range(4):
            x = x + 1
            alive.append(weakref.ref(x))
        return x.sum()

    def count(x):
        result = f(x)
        return result

    from preheat.capture.recorder import Recorder

    recorder = Recorder(lambda t: 0, lambda *a: None, lambda t: 0, lambda *a: None)
    x = torch.ones(3)
    recorder.enter()
    out = count(x)
    recorder.leave()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 4
    assert recorder.value_of(out) is not None
