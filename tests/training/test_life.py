"""Differentiable calls hold nothing behind them, serve threads, and hand gradients over as DDP asks."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import preheat
from tests.training import ddp
from tests.training.place import DEVICE

NO_CACHE = {"cache": False}


def two_results(x, w):
    h = torch.tanh(x @ w)
    return h, (h * w).sum()


def written(x, w):
    x.mul_(w)
    return x, (x * 2).sum()


@pytest.mark.parametrize("fn", [two_results, written])
@pytest.mark.parametrize("with_backward", [True, False])
def test_a_call_dies_with_its_results(fn, with_backward):
    compiled, w = preheat.compile(fn, options=NO_CACHE), torch.randn(4, 4, device=DEVICE, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        for number in range(7):
            x = torch.randn(4, 4, device=DEVICE, requires_grad=True) * 1
            results = compiled(x, w)
            if number < 3 or with_backward:
                results[1].backward()
            alive = [weakref.ref(result) for result in (*results, x)]
            del results, x
            assert [ref() for ref in alive] == [None] * 3, number
    finally:
        gc.enable()


def test_threads_that_train_at_once():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(DEVICE)
    compiled, wrong = preheat.compile(net, options=NO_CACHE), []
    parameters = list(net.parameters())

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(5, 8, generator=generator).to(DEVICE)
            expected = torch.autograd.grad(net(x).pow(2).sum(), parameters)
            found = torch.autograd.grad(compiled(x).pow(2).sum(), parameters)
            if not all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(expected, found)):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ddp_on_two_processes(tmp_path):
    ddp.run_two(tmp_path)
