"""Training on a GPU: both halves compiled, gradients and random states eager's. `make test-gpu`.

`make test-gpu` also runs `tests/training` there; what only a GPU has is here: streams, the engine's
own threads, its generator, alignment, half precision, layouts of convolutions.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat
from gpu.threads import at_once
from preheat.base.events import bus
from test_warm import run as run_warm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
NO_CACHE = {"cache": False}
FACTOR = 2  # of eager's own error, as a share of the largest element


@contextlib.contextmanager
def no_fallback():
    """Nothing in the block runs otherwise than compiled."""
    seen = []
    stop = bus.subscribe(lambda event: seen.append(event.data), {"fallback", "break"})
    try:
        yield
    finally:
        stop()
    assert not seen, seen


def near(found, eager, exact, where, slack):
    """`found` is as near to `exact` as `eager` is, within FACTOR and `slack` of the largest."""
    assert (found is None) is (eager is None), where
    if found is None:
        return
    assert (found.shape, found.dtype, found.stride()) == (eager.shape, eager.dtype, eager.stride()), where
    scale = float(exact.abs().max()) + 1e-12
    error, own = (float((t.double() - exact).abs().max()) / scale for t in (found, eager))
    assert error <= FACTOR * own + slack, f"{where}: error {error}, eager's {own}"


def trains(make, inputs, *, calls=5, autocast=None, draws=False):
    """Outputs and all gradients of `calls` steps, each with new tangents, are eager's; the generator
    ends where eager's does. `make()` gives a module, `inputs(k)` the arguments of step k."""
    with no_fallback():
        torch.manual_seed(0)
        net = make().cuda()
        compiled = preheat.compile(net, options=NO_CACHE)
        before = preheat.counters()
        for k in range(calls):
            rows = []
            for call in (net, compiled):
                given = [t.clone().detach().requires_grad_(t.requires_grad) for t in inputs(k)]
                net.zero_grad(set_to_none=True)
                torch.manual_seed(k)
                state = {name: b.clone() for name, b in net.named_buffers()}
                with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                    result = call(*given)
                generator = torch.Generator().manual_seed(k)
                tangent = torch.randn(result.shape, generator=generator).to(result)
                result.backward(tangent)
                after = {name: b.clone() for name, b in net.named_buffers()}
                rows.append((
                    [result.detach()], [g.grad for g in given], [p.grad for p in net.parameters()],
                    list(after.values()), torch.cuda.get_rng_state()))
                if call is net:
                    for name, buffer in net.named_buffers():
                        buffer.copy_(state[name])
            eager, found = rows
            assert torch.equal(eager[4], found[4]), f"step {k}: random state"
            exact = eager if draws else _exact(net, inputs(k), k)
            slack = {None: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[autocast]
            for kind in range(4):
                for place, (a, b, c) in enumerate(zip(found[kind], eager[kind], exact[kind])):
                    reference = None if c is None else c.double()
                    near(a, b, reference, f"step {k}, kind {kind}, {place}", slack)
        after = preheat.counters()
        assert after["captures"] - before["captures"] == 1
        assert after["compiles"] - before["compiles"] == 1


def _exact(net, given, k):
    """The same step in float64; buffers are not compared beyond eager's own."""
    import copy

    wide = copy.deepcopy(net).double()
    wide.zero_grad(set_to_none=True)
    given = [
        (t.double() if t.is_floating_point() else t).detach().requires_grad_(t.requires_grad)
        for t in given]
    result = wide(*given)
    generator = torch.Generator().manual_seed(k)
    result.backward(torch.randn(result.shape, generator=generator).to(result))
    return (
        [result.detach()], [g.grad for g in given], [p.grad for p in wide.parameters()],
        [b for b in net.buffers()])


def of(*sizes, grad=True, dtype=torch.float32):
    def make(k):
        generator = torch.Generator().manual_seed(100 + k)
        return [torch.randn(sizes, generator=generator).to("cuda", dtype).requires_grad_(grad)]
    return make


class Block(nn.Module):
    def __init__(self, width, p=0.0, act="gelu"):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.outer, self.drop, self.act = nn.Linear(4 * width, width), nn.Dropout(p), act

    def forward(self, x):
        return x + self.drop(self.outer(getattr(F, self.act)(self.inner(self.norm(x)))))


@pytest.mark.parametrize("act", ["gelu", "silu", "relu", "tanh", "mish"])
def test_blocks(act):
    trains(lambda: nn.Sequential(Block(96, act=act), Block(96, act=act)), of(70, 96))


@pytest.mark.parametrize("sizes", [(300, 1000), (4096, 64), (7, 5000), (2, 3, 40, 33)])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms(kind, sizes):
    trains(lambda: kind(sizes[-1]), of(*sizes))


@pytest.mark.parametrize("sizes", [(300, 1000), (65, 4096), (3, 40000)])
def test_softmax(sizes):
    class Net(nn.Module):
        def forward(self, x):
            return x.softmax(-1) + (x * 2).log_softmax(-1) + (x * 0.1).softmax(0)

    trains(Net, of(*sizes))


class Loss(nn.Module):
    """Embedding, tied product, cross-entropy."""

    def __init__(self, classes, width=64):
        super().__init__()
        self.table = nn.Embedding(classes, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, labels):
        h = self.norm(self.table(ids))
        return F.cross_entropy(h @ self.table.weight.t(), labels, ignore_index=-100)


@pytest.mark.parametrize("classes", [50, 3001])
def test_losses(classes):
    def inputs(k):
        generator = torch.Generator().manual_seed(k)
        ids = torch.randint(0, classes, (257,), generator=generator).cuda()
        labels = torch.randint(0, classes, (257,), generator=generator).cuda()
        labels[::7] = -100
        return [ids, labels]

    trains(lambda: Loss(classes), inputs)


class Attention(nn.Module):
    def __init__(self, width=64, p=0.0):
        super().__init__()
        self.qkv, self.out, self.p = nn.Linear(width, 3 * width), nn.Linear(width, width), p

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        return x + self.out(h.transpose(1, 2).reshape(b, t, w))


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_attention(p, autocast):
    trains(lambda: nn.Sequential(Attention(p=p), Block(64, p)), of(2, 128, 64), autocast=autocast,
           draws=p > 0)


def test_dropout_draws_what_eager_draws():
    trains(lambda: nn.Sequential(Block(64, 0.3), nn.Dropout(0.5)), of(33, 64), draws=True)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.n1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.n2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.pool, self.out = nn.MaxPool2d(2), nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.n1(self.first(x)))
        x = self.pool(F.relu(x + self.n2(self.second(x))))
        return self.out(x.mean((2, 3)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_convolutions(layout, autocast):
    def inputs(k):
        return [of(4, 3, 24, 24)(k)[0].detach().contiguous(memory_format=layout).requires_grad_()]

    trains(lambda: Convolutions().to(memory_format=layout), inputs, autocast=autocast)


def test_a_scaler():
    torch.manual_seed(0)
    results = []
    for wrap in (lambda net: net, lambda net: preheat.compile(net, options=NO_CACHE)):
        torch.manual_seed(0)
        net = nn.Sequential(Block(32), nn.Linear(32, 4)).cuda()
        call, scaler = wrap(net), torch.amp.GradScaler("cuda", init_scale=2.0**14)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        for k in range(8):
            x = of(16, 32)(k)[0].detach() * (1e6 if k == 5 else 1)  # one step is skipped
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = call(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(([p.detach().clone() for p in net.parameters()], scaler.get_scale()))
    assert results[0][1] == results[1][1]
    for a, b in zip(results[0][0], results[1][0]):
        torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-3)


def test_a_tangent_that_is_not_aligned():
    net = nn.Sequential(Block(64)).cuda()
    compiled = preheat.compile(net, options=NO_CACHE)
    with no_fallback():
        before = preheat.counters()
        for k in range(8):
            x = of(16, 64)(k)[0]
            tangent = torch.randn(16 * 64 + 1, device="cuda")[1:].view(16, 64)
            expected = torch.autograd.grad(net(x), [x, *net.parameters()], tangent)
            found = torch.autograd.grad(compiled(x), [x, *net.parameters()], tangent)
            for a, b in zip(found, expected):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert preheat.counters()["compiles"] - before["compiles"] == 1


def test_streams_and_threads_that_train_at_once():
    torch.manual_seed(0)
    net = nn.Sequential(Block(64), Block(64)).cuda()
    compiled, parameters = preheat.compile(net, options=NO_CACHE), list(net.parameters())
    torch.cuda.synchronize()

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for k in range(30):
                x = of(200, 64)(seed * 100 + k)[0].detach()
                expected = torch.autograd.grad(net(x).pow(2).sum(), parameters)
                loss = compiled(x).pow(2).sum()
                torch.cuda._sleep(20000)
                found = torch.autograd.grad(loss, parameters)
                for a, b in zip(found, expected):
                    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        stream.synchronize()

    at_once(work, range(4))


def test_the_backward_runs_on_the_stream_of_the_forward():
    """Forward on one stream, `backward()` called on another: the kernels wait for what they read."""
    torch.manual_seed(0)
    net = nn.Sequential(Block(256), Block(256)).cuda()
    compiled = preheat.compile(net, options=NO_CACHE)
    side = torch.cuda.Stream()
    for k in range(6):
        x = of(4000, 256)(k)[0].detach()
        expected = torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters()))
        net.zero_grad()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            loss = compiled(x).pow(2).sum()
        loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        for p, b in zip(net.parameters(), expected):
            torch.testing.assert_close(p.grad, b, rtol=1e-3, atol=2e-2)


def test_double_backward_and_retained_graphs():
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
    compiled = preheat.compile(net, options=NO_CACHE)
    for k in range(5):
        rows = []
        for call in (net, compiled):
            x = of(8, 16)(k)[0]
            (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
            net.zero_grad()
            total = slope.pow(2).sum() + call(x).sum()
            total.backward(retain_graph=True)
            total.backward()
            rows.append([x.grad, *(p.grad for p in net.parameters())])
        for a, b in zip(*rows):
            assert (a is None) is (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


def test_a_saved_tensor_that_is_changed_is_refused():
    def fn(x, w):
        h = torch.tanh(x * w)
        return h * h

    compiled = preheat.compile(fn, options=NO_CACHE)
    for k in range(5):
        w = of(8)(k)[0]
        x = of(8)(k)[0].detach()
        out = compiled(x, w)
        if k > 2:
            x.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                out.sum().backward()
        else:
            out.sum().backward()


@pytest.mark.parametrize("shape", [(), (1,)])
def test_scalars_of_the_host(shape):
    """A 0-d tensor in the host's memory takes part."""
    def fn(x, t):
        return (x * t).sigmoid().sum()

    compiled = preheat.compile(fn, options=NO_CACHE)
    for k in range(5):
        rows = []
        for call in (fn, compiled):
            x = of(40)(k)[0]
            t = torch.tensor(0.5, device="cpu" if shape == () else "cuda").reshape(shape).requires_grad_()
            call(x, t).backward()
            rows.append((x.grad, t.grad))
        for a, b in zip(*rows):
            assert a.device == b.device
            torch.testing.assert_close(b, a)


def test_a_warm_process_trains_without_a_compiler(tmp_path):
    cold = run_warm("training", tmp_path, WARM_DEVICE="cuda")
    assert cold["counters"]["captures"] == 1 and cold["counters"]["compiles"] == 1
    assert cold["counters"]["fallbacks"] == 0
    warm = run_warm("training", tmp_path, WARM_DEVICE="cuda")
    assert warm["counters"]["captures"] == 0 and warm["counters"]["compiles"] == 0
    assert warm["counters"]["fallbacks"] == 0
    assert warm["loaded"] == []


def test_statistics_are_updated_once_a_call():
    """Whatever makes the body run again: another kind of backward, a double one, a small budget."""
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda()

    x = torch.randn(4, 3, 9, 9).cuda()
    nets = make(), make()
    calls = nets[0], preheat.compile(nets[1], options=NO_CACHE | {"memory_budget": 0.0})
    for step in range(6):
        for net, call in zip(nets, calls):
            result = call(x)
            is_double = step % 2 == 1
            tangent = torch.ones_like(result)
            if step == 4:
                tangent = tangent.to(memory_format=torch.channels_last)
            grads = torch.autograd.grad(result, list(net.parameters()), tangent, create_graph=is_double)
            if is_double:
                sum(grad.square().sum() for grad in grads).backward()
        for mine, eager in zip(nets[1].buffers(), nets[0].buffers()):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
