"""Several GPUs in one process, and one process for each: `make test-gpu`, on a machine with two."""

import copy

import pytest
import torch
from torch import nn

import preheat
from gpu.threads import at_once
from preheat.base.events import bus
from tests.training import ddp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU, or none"),
]
NO_CACHE = {"cache": False}
FIRST, SECOND = "cuda:0", "cuda:1"


@pytest.fixture
def fallbacks():
    """The calls that did not run compiled, as they come."""
    seen = []
    stop = bus.subscribe(lambda event: seen.append(event.data), {"fallback"})
    yield seen
    stop()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def inputs(step, device, rows=16):
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(step)).to(device)


class Halves(nn.Module):
    """The first half on one GPU, the second on another."""

    def __init__(self):
        super().__init__()
        layers = network()
        self.first, self.second = layers[:3].to(FIRST), layers[3:].to(SECOND)

    def forward(self, x):
        return self.second(self.first(x).to(SECOND)) * 2


def gradients(net, call, x):
    net.zero_grad()
    call(x).pow(2).sum().backward()
    return [p.grad.clone() for p in net.parameters()]


def close(found, expected, where=None):
    for a, b in zip(found, expected, strict=True):
        assert a.device == b.device, where
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_function_on_each_gpu_in_turn(mode, fallbacks):
    def chain(x):
        return (x * 2 + 1).softmax(-1) @ x.t()

    compiled = preheat.compile(chain, mode=mode, options=NO_CACHE)
    with torch.no_grad():
        for step in range(8):
            for device in (FIRST, SECOND):
                x = inputs(step, device)
                close([compiled(x)], [chain(x)], (step, device))
    assert torch.cuda.current_device() == 0 and not fallbacks


@pytest.mark.parametrize("current", [0, 1])
def test_training_on_another_gpu_than_the_current_one(current, fallbacks):
    net = network().to(SECOND)
    compiled = preheat.compile(net, options=NO_CACHE)
    with torch.cuda.device(current):
        for step in range(5):
            x = inputs(step, SECOND)
            close(gradients(net, compiled, x), gradients(net, net, x), step)
        assert torch.cuda.current_device() == current
    assert not fallbacks


def test_halves_of_a_model():
    net = Halves()
    compiled = preheat.compile(net, options=NO_CACHE)
    for step in range(5):
        x = inputs(step, FIRST)
        close(gradients(net, compiled, x), gradients(net, net, x), step)
        with torch.no_grad():
            close([compiled(x)], [net(x)], step)


def test_an_optimizer_over_both():
    nets = [Halves(), Halves()]
    steps = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in nets]
    compiled = preheat.compile(steps[1].step, options=NO_CACHE)
    for number in range(5):
        for net, step in zip(nets, (steps[0].step, compiled)):
            gradients(net, net, inputs(number, FIRST))
            step()
    close(list(nets[1].parameters()), list(nets[0].parameters()))


def test_a_thread_for_each_gpu():
    nets = {device: network(seed).to(device) for seed, device in enumerate((FIRST, SECOND))}
    compiled = {device: preheat.compile(net, options=NO_CACHE) for device, net in nets.items()}
    truth = {device: copy.deepcopy(net) for device, net in nets.items()}

    def work(device):
        torch.cuda.set_device(device)
        for step in range(20):
            x = inputs(step, device)
            close(gradients(nets[device], compiled[device], x), gradients(truth[device], truth[device], x))

    at_once(work, nets)


def test_ddp_on_two_gpus(tmp_path):
    """A compiled model in DDP and DDP in a compiled model: gradients of every step are plain DDP's."""
    ddp.run_two(tmp_path, "cuda")
