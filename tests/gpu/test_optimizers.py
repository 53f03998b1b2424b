"""Compiled steps of optimizers against eager's: `make test-gpu`, on a machine with a GPU."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

import preheat
from preheat.base.events import bus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
NO_CACHE = {"cache": False}
SIZES = ((64,), (256, 64), (1000,), (1,), (3, 5, 7), (0,), (768, 129), (8, 16, 3, 3), (2048,), ())


@contextlib.contextmanager
def no_fallback():
    seen = []
    stop = bus.subscribe(lambda event: seen.append(str(event.data)), {"fallback", "direct"})
    try:
        yield
    finally:
        stop()
    assert not seen, seen


def weights(dtype=torch.float32, repeat=3):
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, generator=generator, device="cuda", dtype=dtype))
            for _ in range(repeat) for size in SIZES]


def give_gradients(params, step, held):
    """New tensors at each step, as a backward makes them; those before stay, so addresses change."""
    generator = torch.Generator("cuda").manual_seed(step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator, device="cuda", dtype=param.dtype)
        if param.dim() == 4 and step % 2:
            held.append(torch.empty(100, device="cuda"))
    held.append([param.grad for param in params])


def check(make, mode=None, steps=7, action=None, dtype=torch.float32, repeat=3, close=None):
    """Parameters and state of `make(params)` after compiled steps are eager's, and no step was captured
    again behind those that make the state."""
    close = close or {"rtol": 1e-4, "atol": 1e-5}
    twins = [weights(dtype, repeat) for _ in range(2)]
    optimizers = [make(params) for params in twins]
    actions = [(lambda o=o, p=p: action(o, p)) if action else o.step for o, p in zip(optimizers, twins)]
    compiled = preheat.compile(actions[1], mode=mode, options=NO_CACHE)
    held = []
    for step in range(steps):
        for params in twins:
            give_gradients(params, step, held)
        if step == 4:
            before = preheat.counters()["captures"]
        results = [actions[0](), compiled()]
        if isinstance(results[0], torch.Tensor):
            torch.testing.assert_close(results[1], results[0], **close)
        for a, b in zip(twins[1], twins[0], strict=True):
            torch.testing.assert_close(a, b, **close)
    if not isinstance(optimizers[0], torch.optim.RAdam):  # it goes another way at its sixth step
        assert preheat.counters()["captures"] == before
    states = [[o.state[p] for p in params] for o, params in zip(optimizers, twins)]
    for mine, theirs in zip(states[1], states[0], strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, **close)


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "RAdam": (torch.optim.RAdam, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name, foreach):
    kind, arguments = OPTIMIZERS[name]
    with no_fallback():
        check(lambda params: kind(params, foreach=foreach, **arguments))


@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "AdamW"])
def test_a_fused_one(name):
    kind, arguments = OPTIMIZERS[name]
    with no_fallback():
        check(lambda params: kind(params, fused=True, **arguments))


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RMSprop"])
def test_counters_on_the_gpu(name, foreach):
    kind, arguments = OPTIMIZERS[name]
    with no_fallback():
        check(lambda params: kind(params, foreach=foreach, capturable=True, **arguments))


@pytest.mark.parametrize("arguments", [{}, {"capturable": True}, {"fused": True}])
def test_graphs(arguments):
    before = preheat.counters()["graph_replays"]
    check(lambda params: torch.optim.AdamW(params, **arguments), "reduce-overhead", 12)
    assert preheat.counters()["graph_replays"] > before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    close = {"rtol": 2e-2, "atol": 2e-3} if dtype == torch.bfloat16 else {"rtol": 1e-9, "atol": 1e-9}
    check(lambda params: torch.optim.AdamW(params), dtype=dtype, close=close)


def test_a_schedule():
    twins = [weights(), weights()]
    optimizers = [torch.optim.AdamW(params) for params in twins]
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12) for o in optimizers]
    compiled = preheat.compile(optimizers[1].step, options=NO_CACHE)
    for step in range(10):
        for params in twins:
            give_gradients(params, step, [])
        optimizers[0].step()
        compiled()
        for scheduler in schedulers:
            scheduler.step()
        for a, b in zip(twins[1], twins[0], strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
        if step == 5:
            before = preheat.counters()["captures"]
    assert preheat.counters()["captures"] == before


@pytest.mark.parametrize("foreach", [None, False])
def test_clipping(foreach):
    def action(optimizer, params):
        total = torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=foreach)
        optimizer.step()
        return total

    check(lambda params: torch.optim.AdamW(params), action=action)


def test_a_gradient_that_is_not_aligned():
    params, twin = weights(), weights()
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in (params, twin)]
    compiled = preheat.compile(optimizers[0].step, options=NO_CACHE)
    for step in range(6):
        for given in (params, twin):
            give_gradients(given, step, [])
        grad = params[1].grad
        params[1].grad = torch.empty(grad.numel() + 1, device="cuda")[1:].view_as(grad).copy_(grad)
        compiled()
        optimizers[1].step()
        for a, b in zip(params, twin, strict=True):
            torch.testing.assert_close(a, b)


def test_streams_in_turn():
    params, twin = weights(), weights()
    optimizers = [torch.optim.AdamW(p) for p in (params, twin)]
    compiled = preheat.compile(optimizers[0].step, options=NO_CACHE)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for step in range(12):
        with torch.cuda.stream(streams[step % 3]):
            streams[step % 3].wait_stream(streams[(step - 1) % 3])
            for given in (params, twin):
                give_gradients(given, step, [])
            compiled()
            optimizers[1].step()
    torch.cuda.synchronize()
    for a, b in zip(params, twin, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def test_a_graph_of_the_programs_own():
    """An update captured by the program: what it launches is the graph's, the table, too."""
    def update(params, grads):
        torch._foreach_mul_(params, 0.9)
        torch._foreach_add_(params, grads, alpha=-0.1)

    ours, theirs = ([torch.ones(size, device="cuda") for size in SIZES * 3] for _ in range(2))
    grads = [torch.ones_like(param) for param in ours]
    compiled = preheat.compile(update, options=NO_CACHE)
    with torch.no_grad():
        for _ in range(4):
            compiled(ours, grads)
            update(theirs, grads)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(ours, grads)
        for step in range(3):
            for grad in grads:
                grad.fill_(step)
            graph.replay()
            update(theirs, grads)
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_whole_step(mode):
    def network():
        torch.manual_seed(0)
        return torch.nn.Sequential(*(
            part for k in range(6)
            for part in (torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()))).cuda()

    nets = [network(), network()]
    optimizers = [torch.optim.AdamW(net.parameters(), 1e-3) for net in nets]

    def trainer(net, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step

    steps = [trainer(*pair) for pair in zip(nets, optimizers)]
    compiled = preheat.compile(steps[1], mode=mode, options=NO_CACHE)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(10):
        x, y = (torch.randn(32, 64, generator=generator, device="cuda") for _ in range(2))
        torch.testing.assert_close(compiled(x, y), steps[0](x, y), rtol=1e-4, atol=1e-5)
    for a, b in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
